-- Grants a lock like acquire.lua; whoever is refused stands in the queue for it, in the place that it has.
--
-- KEYS[1]  the lock
-- KEYS[2]  the counter of fencing tokens, shared by all locks of the shard
-- KEYS[3]  the queue
-- ARGV[1]  token
-- ARGV[2]  lease in whole milliseconds
-- ARGV[3]  channel on which the process that asks is woken
-- ARGV[4]  milliseconds after which a queue that nobody joins or renews vanishes
--
-- Returns {fence, 0} when granted, or {"0", milliseconds that the holder has left}.
local fence, token = held(KEYS[1])
if token == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
elseif token then
  local now = redis.call('TIME')
  redis.call('ZADD', KEYS[3], 'NX', string.format('%.0f', now[1] * 1000000 + now[2]), ARGV[3])
  redis.call('PEXPIRE', KEYS[3], ARGV[4])
  return {'0', left(KEYS[1])}
else
  fence = grant(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
end
redis.call('ZREM', KEYS[3], ARGV[3])
return {fence, 0}

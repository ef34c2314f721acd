-- Ends the lease of one token and grants the lock to another.
--
-- KEYS[1]  the lock
-- KEYS[2]  the counter of fencing tokens, shared by all locks of the shard
-- KEYS[3]  the queue
-- ARGV[1]  token that holds the lock
-- ARGV[2]  token that gets it
-- ARGV[3]  lease in whole milliseconds
-- ARGV[4]  channel on which the process that asks is woken
--
-- Returns {fence, number of other processes in the queue}, or {"0", 0} when neither token holds the lock: then
-- nothing changes. When the second one holds it already, this is a repetition, and gets the same answer.
local fence, token = held(KEYS[1])
if token == ARGV[1] then
  fence = grant(KEYS[1], KEYS[2], ARGV[2], ARGV[3])
elseif token ~= ARGV[2] then
  primary(KEYS[1], token)
  return {'0', 0}
end
redis.call('ZREM', KEYS[3], ARGV[4])
return {fence, redis.call('ZCARD', KEYS[3])}

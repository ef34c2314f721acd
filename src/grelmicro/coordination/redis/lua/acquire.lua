-- Grants a lock, or renews the grant of a token that holds it.
--
-- KEYS[1]  the lock
-- KEYS[2]  the counter of fencing tokens, shared by all locks of the shard
-- ARGV[1]  token
-- ARGV[2]  lease in whole milliseconds
--
-- Returns {fence, 0} when granted, or {"0", milliseconds that the holder has left}.
--
-- A token that holds the lock gets its remaining time set, and the fence that it has.
local fence, token = held(KEYS[1])
if token == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {fence, 0}
end
if token then
  primary(KEYS[1], true)
  return {'0', left(KEYS[1])}
end
return {grant(KEYS[1], KEYS[2], ARGV[1], ARGV[2]), 0}

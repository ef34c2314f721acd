-- Grants a lock, or renews the grant of a token that holds it.
--
-- KEYS[1]  the lock
-- KEYS[2]  the counter of fencing tokens, shared by all locks of the shard
-- ARGV[1]  token
-- ARGV[2]  lease in whole milliseconds
--
-- Returns {fence, 0} when granted, or {"0", milliseconds that the holder has left}.
--
-- Taking the lock and its expiry are one command. A token that holds the lock gets its remaining time set, and
-- the fence that it has. A new grant gets a fence above every one before, also when the counter was lost:
-- max(last + 1, server time in microseconds).
local fence, token = held(KEYS[1])
if token == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {fence, 0}
end
if token then
  primary(KEYS[1], true)
  local left = redis.call('PTTL', KEYS[1])
  if left == -1 then
    return redis.error_reply('FOREIGN the key holds a lock that never expires')
  end
  return {'0', math.max(left, 0)}
end
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
if not last then
  return redis.error_reply('FOREIGN the counter of fencing tokens holds no number')
end
local now = redis.call('TIME')
-- %.0f: plain conversion would print an exponent.
fence = string.format('%.0f', math.max(last + 1, now[1] * 1000000 + now[2]))
redis.call('SET', KEYS[2], fence)
redis.call('SET', KEYS[1], fence .. ':' .. ARGV[1], 'PX', ARGV[2])
return {fence, 0}

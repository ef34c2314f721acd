-- Included in front of the scripts that grant locks.
-- grant(key, counter, token, milliseconds) gives a free lock to the token and returns its fence, which is above
-- every one before, also when the counter was lost: max(last + 1, server time in microseconds). Taking the lock
-- and its expiry are one command.
local function grant(key, counter, token, milliseconds)
  local last = tonumber(redis.call('GET', counter) or '0')
  if not last then
    error('FOREIGN the counter of fencing tokens holds no number')
  end
  local now = redis.call('TIME')
  -- %.0f: plain conversion would print an exponent.
  local fence = string.format('%.0f', math.max(last + 1, now[1] * 1000000 + now[2]))
  redis.call('SET', counter, fence)
  redis.call('SET', key, fence .. ':' .. token, 'PX', milliseconds)
  return fence
end

-- left(key) returns the milliseconds that the holder of a held lock has left.
local function left(key)
  local milliseconds = redis.call('PTTL', key)
  if milliseconds == -1 then
    error('FOREIGN the key holds a lock that never expires')
  end
  return math.max(milliseconds, 0)
end


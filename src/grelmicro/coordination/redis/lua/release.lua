-- Frees a lock that a token holds.
--
-- KEYS[1]  the lock
-- ARGV[1]  token
--
-- Returns 1 when the token held it, else 0. Another token's lock is left alone.
local _, token = held(KEYS[1])
if token ~= ARGV[1] then
  primary(KEYS[1], token)
  return 0
end
redis.call('DEL', KEYS[1])
return 1

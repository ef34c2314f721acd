-- Says who holds a lock. Changes nothing.
--
-- KEYS[1]  the lock
-- ARGV[1]  token
--
-- Returns 0 when it is free, 1 when the token holds it, 2 when another one does.
local _, token = held(KEYS[1])
primary(KEYS[1], token)
if not token then
  return 0
end
return token == ARGV[1] and 1 or 2

-- Frees a lock that a token holds, and wakes the first process in the queue for it.
--
-- KEYS[1]  the lock
-- KEYS[2]  the queue
-- ARGV[1]  token
-- ARGV[2]  name of the lock, as it is published
-- ARGV[3]  channel on which the process that asks is woken; it leaves the queue
-- ARGV[4]  1 when listeners may be on other nodes than this one
--
-- Returns 1 when the token held it, else 0. Another token's lock is left alone.
local _, token = held(KEYS[1])
if token ~= ARGV[1] then
  primary(KEYS[1], token)
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[3])
call_next(KEYS[2], ARGV[2], ARGV[4])
return 1

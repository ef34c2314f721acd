-- Wakes the next process in the queue for a lock, if the lock is free.
--
-- KEYS[1]  the lock
-- KEYS[2]  the queue
-- ARGV[1]  name of the lock, as it is published
-- ARGV[2]  1 when listeners may be on other nodes than this one
--
-- Returns 1 when the lock is free, else 0.
local _, token = held(KEYS[1])
primary(KEYS[1], token)
if token then
  return 0
end
call_next(KEYS[2], ARGV[1], ARGV[2])
return 1

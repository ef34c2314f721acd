-- Claims a fire of a schedule: of any number of claims for one due time, one gets it.
--
-- KEYS[1]  the schedule
-- ARGV[1]  due time in seconds, as text that gives the same double when read
-- ARGV[2]  hexadecimal name of this claim; a repetition of it gets the same answer
-- ARGV[3]  milliseconds for which the last fire is kept
--
-- Returns 1 when nothing or something smaller was stored, which ARGV[1] then replaces, else 0.
local due, claim = fired(KEYS[1])
if due and tonumber(due) >= tonumber(ARGV[1]) then
  primary(KEYS[1], true)
  return due == ARGV[1] and claim == ARGV[2] and 1 or 0
end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[3])
return 1

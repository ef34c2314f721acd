-- Ends the lead of a token, and tells all who listen.
--
-- KEYS[1]  the election
-- ARGV[1]  token
-- ARGV[2]  milliseconds for which the record outlives its lease
-- ARGV[3]  channel on which vacancies are published
-- ARGV[4]  name of the election, as it is published
--
-- Returns 1 when the token led, else 0. Another token's lease is left alone; the count of transitions stays. A
-- server that refuses to publish does not keep the lease from ending.
local time = now()
local found = record(KEYS[1])
if not found or found.holder ~= ARGV[1] or tonumber(found['until']) <= time then
  primary(KEYS[1], found)
  return 0
end
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', time))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.pcall('PUBLISH', ARGV[3], ARGV[4])
return 1

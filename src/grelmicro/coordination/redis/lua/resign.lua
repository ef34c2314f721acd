-- Ends the lead of a token.
--
-- KEYS[1]  the election
-- ARGV[1]  token
-- ARGV[2]  milliseconds for which the record outlives its lease
--
-- Returns 1 when the token led, else 0. Another token's lease is left alone; the count of transitions stays.
local time = now()
local found = record(KEYS[1])
if not found or found.holder ~= ARGV[1] or tonumber(found['until']) <= time then
  primary(KEYS[1], found)
  return 0
end
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', time))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1

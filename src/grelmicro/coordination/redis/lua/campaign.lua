-- Takes the lead of an election that nobody leads, or renews the lead of a token that has it.
--
-- KEYS[1]  the election
-- ARGV[1]  token
-- ARGV[2]  lease in whole milliseconds
-- ARGV[3]  lease in seconds, as the record shows it
-- ARGV[4]  metadata, JSON
-- ARGV[5]  milliseconds for which the record outlives its lease
--
-- Returns the record as it then stands: {holder, until, duration, acquired, renewed, transitions, metadata},
-- all text, times in microseconds of the server's clock. Another token's live lease is left alone.
--
-- Whoever takes over what an earlier lease left behind, ended or given up, counts one transition more.
local time = now()
local found = record(KEYS[1])
local live = found and tonumber(found['until']) > time
if live and found.holder ~= ARGV[1] then
  primary(KEYS[1], true)
  return reply(found)
end
local text = string.format('%.0f', time)
local new = {
  holder = ARGV[1],
  ['until'] = string.format('%.0f', time + ARGV[2] * 1000),
  duration = ARGV[3],
  acquired = live and found.acquired or text,
  renewed = text,
  transitions = '0',
  metadata = ARGV[4],
}
if live then
  new.transitions = found.transitions
elseif found then
  new.transitions = string.format('%.0f', found.transitions + 1)
end
local pairs_of = {}
for name, value in pairs(new) do
  pairs_of[#pairs_of + 1] = name
  pairs_of[#pairs_of + 1] = value
end
redis.call('HSET', KEYS[1], unpack(pairs_of))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ARGV[2] + ARGV[5]))
return reply(new)

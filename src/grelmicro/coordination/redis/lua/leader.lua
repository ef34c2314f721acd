-- Says who leads an election. Changes nothing.
--
-- KEYS[1]  the election
--
-- Returns the record as campaign.lua does, or nil when nobody leads.
local found = record(KEYS[1])
primary(KEYS[1], found)
if found and tonumber(found['until']) > now() then
  return reply(found)
end
return nil

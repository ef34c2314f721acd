-- Says when a schedule last fired. Changes nothing.
--
-- KEYS[1]  the schedule
--
-- Returns the due time as it was claimed, as text, or nil.
local due = fired(KEYS[1])
primary(KEYS[1], due)
return due

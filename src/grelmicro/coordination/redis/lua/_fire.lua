-- Included in front of the scripts about schedules.
-- A schedule is a string "DUE CLAIM": the last fire as text of a number, and the claim that got it. fired(key)
-- returns both, or nothing. Anything else under the key stops the script.
local function fired(key)
  local value = redis.call('GET', key)
  if not value then
    return nil
  end
  local due, claim = string.match(value, '^(%S+) (%x+)$')
  if not tonumber(due) then
    error('FOREIGN the key holds something that is no schedule')
  end
  return due, claim
end


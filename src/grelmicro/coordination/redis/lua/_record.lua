-- Included in front of the scripts about elections.
-- An election is a hash with the fields below; it outlives its lease, so that changes of leader can be counted.
-- record(key) returns the fields by name, or nothing when there is no hash; now() returns the server's time in
-- microseconds. A hash that lacks a field stops the script: an unreadable record is not one to take over.
local FIELDS = {'holder', 'until', 'duration', 'acquired', 'renewed', 'transitions', 'metadata'}
local NUMBERS = {'until', 'acquired', 'renewed', 'transitions'}

local function record(key)
  local values = redis.call('HMGET', key, unpack(FIELDS))
  local found, count = {}, 0
  for i, name in ipairs(FIELDS) do
    found[name] = values[i] or nil
    count = count + (values[i] and 1 or 0)
  end
  if count == 0 and redis.call('EXISTS', key) == 0 then
    return nil
  end
  for _, name in ipairs(NUMBERS) do
    if count < #FIELDS or not tonumber(found[name]) then
      error('CORRUPT the key holds no readable record of an election')
    end
  end
  return found
end

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Numbers stay text: Redis would cut them to integers, and Lua prints large ones with an exponent.
local function reply(found)
  local values = {}
  for i, name in ipairs(FIELDS) do
    values[i] = found[name]
  end
  return values
end


-- Included in front of every script.
-- A replica that was demoted, or a server that takes no writes, must not answer from what it last heard.
-- primary(key, exists) is a write that changes nothing, which such a server refuses; it belongs on every path
-- that writes nothing else. (On other paths it would do harm: after a first write, no later one in a script is
-- refused for want of memory.)
local function primary(key, exists)
  if exists then
    redis.call('RENAMENX', key, key)
  else
    redis.call('DEL', key)
  end
end


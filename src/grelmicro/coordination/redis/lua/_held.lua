-- Included in front of the scripts about locks.
-- A lock is a string "FENCE:TOKEN" that expires with the lease. held(key) returns the fence and the token of
-- the live lease, or nothing when the lock is free. Anything else under the key stops the script: it is
-- neither a lock held nor a lock free.
local function held(key)
  local value = redis.call('GET', key)
  if not value then
    return nil
  end
  local fence, token = string.match(value, '^(%d+):(.*)$')
  if not fence then
    error('FOREIGN the key holds something that is no lock')
  end
  return fence, token
end


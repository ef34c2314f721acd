-- Included in front of the scripts that wake whoever waits for a lock.
-- The queue is a sorted set of the channels of the processes that wait, in the order in which they came.
-- call_next(queue, name, spread) takes the first out and publishes the name to it; one that nobody listens to is
-- passed over, unless listeners may be on other nodes (spread). A server that refuses to publish wakes nobody:
-- those who wait find out by asking.
local function call_next(queue, name, spread)
  while true do
    local first = redis.call('ZPOPMIN', queue)[1]
    if not first then
      return
    end
    local listeners = redis.pcall('PUBLISH', first, name)
    if type(listeners) == 'table' or listeners > 0 or spread == '1' then
      return
    end
  end
end


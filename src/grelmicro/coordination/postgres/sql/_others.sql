-- Included where the queue of a lock is needed without this process.
-- {me}: its channel.
array_remove(lock.waiting, {me})

-- Included in updates of locks that wake whoever is next: takes the first out of the queue, and this process.
-- {me}: its channel.
called = CASE WHEN lock.waiting IS NOT NULL THEN split_part(({_others})[1], ' ', 1) END,
       waiting = CASE WHEN lock.waiting IS NOT NULL THEN nullif(({_others})[2:], '{}') END

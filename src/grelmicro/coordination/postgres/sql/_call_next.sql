-- Included in updates of locks that wake whoever is next: takes the first out of the queue, and this process.
-- {me}: its channel.
called = ({_others})[1], waiting = nullif(({_others})[2:], '{}')

-- Included where a process stands in the queue of a lock: its entry.
-- {me}: its channel.
({me} || ' ' || date_part('epoch', statement_timestamp())::bigint)

-- Included where the queue of a lock is needed: those in it that gave a sign of life lately, but for this process.
-- {me}: its channel. The time is that of the statement, so that it is the same for all that the statement computes.
ARRAY (SELECT entry FROM unnest(lock.waiting) WITH ORDINALITY AS queue (entry, place)
        WHERE split_part(entry, ' ', 1) <> {me}
          AND split_part(entry, ' ', 2)::bigint > date_part('epoch', statement_timestamp()) - 5
        ORDER BY place)

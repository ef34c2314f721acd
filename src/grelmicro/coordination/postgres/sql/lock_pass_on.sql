-- Wakes the next process in the queue of each name that is free.
-- $1 names (distinct, sorted by code point).
-- Answers no row that matters. Rows that are locked are left alone: who has locked them is taking the lock, and will
-- wake whoever is next. Nothing of this need survive a crash, so it does not wait for the disk.
WITH mine AS MATERIALIZED (
    SELECT name FROM {table}
     WHERE name = ANY ($1::text[])
       AND expires_at <= clock_timestamp() AND waiting IS NOT NULL
       AND (SELECT set_config('lock_timeout', '100', true) || set_config('synchronous_commit', 'off', true)) <> ''
       FOR UPDATE SKIP LOCKED
)
UPDATE {table} AS lock SET {_call_next}
 WHERE name = ANY (ARRAY (SELECT name FROM mine))
RETURNING name, {_word_to_called}

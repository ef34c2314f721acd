-- The table of locks: one row per name that was used within the last hour.
-- {table}: the quoted table, {schema}: its quoted schema. Harmless to run again.
-- `waiting` is the queue for the lock: the channels on which the processes that wait are woken, first come first, or null
-- when nobody waits. `renewed` maps them to the epoch second of their last sign of life. `called` is the channel of the
-- process that the last release woke.
-- A table made before there were queues gets them, after a look at whether it is one of ours.
CREATE TABLE IF NOT EXISTS {table} (
    name text COLLATE "C" PRIMARY KEY,
    token text COLLATE "C" NOT NULL,
    expires_at timestamptz NOT NULL,
    fence bigint NOT NULL,
    waiting text[] COLLATE "C",
    renewed jsonb,
    called text COLLATE "C"
) WITH (fillfactor = 70);
SELECT name, token, expires_at, fence FROM {table} LIMIT 0;
ALTER TABLE {table}
    ADD COLUMN IF NOT EXISTS waiting text[] COLLATE "C",
    ADD COLUMN IF NOT EXISTS renewed jsonb,
    ADD COLUMN IF NOT EXISTS called text COLLATE "C";

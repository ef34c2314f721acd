-- The table of locks: one row per name that was used within the last hour.
-- {table}: the quoted table, {schema}: its quoted schema. Harmless to run again.
CREATE TABLE IF NOT EXISTS {table} (
    name text COLLATE "C" PRIMARY KEY,
    token text COLLATE "C" NOT NULL,
    expires_at timestamptz NOT NULL,
    fence bigint NOT NULL
) WITH (fillfactor = 70);

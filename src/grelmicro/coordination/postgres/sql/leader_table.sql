-- The table of elections: one row per name that was used within the last hour.
-- {table}: the quoted table. Harmless to run again.
CREATE TABLE IF NOT EXISTS {table} (
    name text COLLATE "C" PRIMARY KEY,
    token text COLLATE "C" NOT NULL,
    expires_at timestamptz NOT NULL,
    duration double precision NOT NULL,
    acquired_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    transitions bigint NOT NULL,
    metadata text NOT NULL
) WITH (fillfactor = 70);

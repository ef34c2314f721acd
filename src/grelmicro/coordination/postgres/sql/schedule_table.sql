-- The table of schedules: one row per name that ever fired, which is kept.
-- {table}: the quoted table. Harmless to run again.
CREATE TABLE IF NOT EXISTS {table} (
    name text COLLATE "C" PRIMARY KEY,
    last_fired double precision NOT NULL,
    claim text COLLATE "C" NOT NULL
) WITH (fillfactor = 70);

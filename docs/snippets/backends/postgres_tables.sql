CREATE TABLE IF NOT EXISTS grelmicro_locks (
    name text COLLATE "C" PRIMARY KEY,
    token text COLLATE "C" NOT NULL,
    expires_at timestamptz NOT NULL,
    fence bigint NOT NULL,
    waiting text[] COLLATE "C",
    renewed jsonb,
    called text COLLATE "C"
) WITH (fillfactor = 70);

CREATE TABLE IF NOT EXISTS grelmicro_leaders (
    name text COLLATE "C" PRIMARY KEY,
    token text COLLATE "C" NOT NULL,
    expires_at timestamptz NOT NULL,
    duration double precision NOT NULL,
    acquired_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    transitions bigint NOT NULL,
    metadata text NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE IF NOT EXISTS grelmicro_schedules (
    name text COLLATE "C" PRIMARY KEY,
    last_fired double precision NOT NULL,
    claim text COLLATE "C" NOT NULL
) WITH (fillfactor = 70);

-- Gives each election to its candidate if it is free, or renews the candidate's lease.
-- $1 names (distinct, sorted by code point), $2 the candidates' tokens, $3 durations in seconds (as text),
-- $4 metadata (JSON).
-- Answers the record (name, won, token, duration, acquired_at, renewed_at, transitions, metadata) of each name that is
-- decided. A name without a row is undecided, its row being locked by another transaction: ask again.
-- The clock is read after the row lock. A refusal of a lease seen to be live locks and writes nothing.
WITH asked AS MATERIALIZED (
    SELECT name, token, duration::float8, metadata
      FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS u (name, token, duration, metadata)
), seen AS MATERIALIZED (
    SELECT * FROM {table} WHERE name = ANY ($1::text[])
), free AS MATERIALIZED (
    SELECT name FROM {table}
     WHERE name = ANY ($1::text[])
       AND (expires_at <= clock_timestamp() OR token = ANY ($2::text[]))
       AND (SELECT set_config('lock_timeout', '100', true)) IS NOT NULL
       FOR UPDATE SKIP LOCKED
), led AS (
    INSERT INTO {table} AS leader (name, token, expires_at, duration, acquired_at, renewed_at, transitions, metadata)
    SELECT name, token, time.now + duration * interval '1 second', duration, time.now, time.now, 0, metadata
      FROM (SELECT * FROM asked WHERE name IN (SELECT name FROM free) OR name NOT IN (SELECT name FROM seen)) AS fit
     CROSS JOIN LATERAL (SELECT clock_timestamp() AS now WHERE fit.name IS NOT NULL OFFSET 0) AS time
    ON CONFLICT (name) DO UPDATE
       SET token = excluded.token,
           expires_at = excluded.expires_at,
           duration = excluded.duration,
           acquired_at = CASE WHEN leader.token = excluded.token AND leader.expires_at > excluded.renewed_at
                              THEN leader.acquired_at ELSE excluded.acquired_at END,
           renewed_at = excluded.renewed_at,
           transitions = CASE WHEN leader.token = excluded.token AND leader.expires_at > excluded.renewed_at
                              THEN leader.transitions ELSE leader.transitions + 1 END,
           metadata = excluded.metadata
     WHERE leader.token = excluded.token OR leader.expires_at <= clock_timestamp()
    RETURNING name, token, duration, acquired_at, renewed_at, transitions, metadata
)
SELECT name, true AS won, token, duration, acquired_at, renewed_at, transitions, metadata FROM led
 UNION ALL
SELECT name, false, token, duration, acquired_at, renewed_at, transitions, metadata FROM seen
 WHERE expires_at > clock_timestamp() AND name NOT IN (SELECT name FROM led)

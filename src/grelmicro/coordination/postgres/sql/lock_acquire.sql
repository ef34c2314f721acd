-- Grants each name to its token, or renews the token's grant.
-- $1 names (distinct, sorted by code point), $2 their tokens, $3 their durations in seconds (as text).
-- Answers (name, holder, fence) for each name that is decided: a fence means granted to `holder`, none that `holder`
-- has it. A name without a row is undecided, its row being locked by another transaction: ask again.
-- Every clock reading follows the row lock. A refusal of a lease seen to be live locks and writes nothing.
WITH asked AS MATERIALIZED (
    SELECT name, token, duration::float8 FROM unnest($1::text[], $2::text[], $3::text[]) AS u (name, token, duration)
), seen AS MATERIALIZED (
    SELECT name, token, expires_at FROM {table} WHERE name = ANY ($1::text[])
), free AS MATERIALIZED (
    SELECT name FROM {table}
     WHERE name = ANY ($1::text[])
       AND (expires_at <= clock_timestamp() OR token = ANY ($2::text[]))
       AND (SELECT set_config('lock_timeout', '100', true)) IS NOT NULL
       FOR UPDATE SKIP LOCKED
), taken AS (
    INSERT INTO {table} AS lock (name, token, expires_at, fence)
    SELECT name, token, clock_timestamp() + duration * interval '1 second',
           (date_part('epoch', clock_timestamp()) * 1000000)::bigint
      FROM asked
     WHERE name IN (SELECT name FROM free) OR name NOT IN (SELECT name FROM seen)
    ON CONFLICT (name) DO UPDATE
       SET token = excluded.token,
           expires_at = excluded.expires_at,
           fence = CASE WHEN lock.token = excluded.token AND lock.expires_at > clock_timestamp() THEN lock.fence
                        ELSE greatest(lock.fence + 1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint)
                   END
     WHERE lock.token = excluded.token OR lock.expires_at <= clock_timestamp()
    RETURNING name, token, fence
)
SELECT name, token AS holder, fence FROM taken
 UNION ALL
SELECT name, token, NULL FROM seen
 WHERE expires_at > clock_timestamp() AND name NOT IN (SELECT name FROM taken)

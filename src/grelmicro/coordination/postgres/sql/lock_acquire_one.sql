-- Grants one name to a token, or renews the token's grant, and waits a moment for another transaction that has the row.
-- $1 name, $2 token, $3 duration in seconds.
-- Answers like lock_acquire.sql, with one row or none. A refusal of a lease seen to be live locks and writes nothing.
WITH held AS MATERIALIZED (
    SELECT name, token FROM {table} WHERE name = $1::text AND token <> $2::text AND expires_at > clock_timestamp()
), taken AS (
    INSERT INTO {table} AS lock (name, token, expires_at, fence)
    SELECT $1::text, $2::text, clock_timestamp() + $3::float8 * interval '1 second',
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
     WHERE NOT EXISTS (SELECT FROM held)
       AND (SELECT set_config('lock_timeout', '100', true)) IS NOT NULL
    ON CONFLICT (name) DO UPDATE
       SET token = excluded.token,
           expires_at = clock_timestamp() + $3::float8 * interval '1 second',
           fence = CASE WHEN lock.token = excluded.token AND lock.expires_at > clock_timestamp() THEN lock.fence
                        ELSE greatest(lock.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
                   END
     WHERE lock.token = excluded.token OR lock.expires_at <= clock_timestamp()
    RETURNING name, token, fence
)
SELECT name, token AS holder, fence FROM taken
 UNION ALL
SELECT name, token, NULL FROM held

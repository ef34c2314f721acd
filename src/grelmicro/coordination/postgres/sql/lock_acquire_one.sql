-- Grants one name to a token, or renews the token's grant; waits a moment for a transaction that has locked the row.
-- $1 name, $2 token, $3 duration in seconds.
-- Answers (fence), or no row when another token is live.
-- A refusal of a lease seen to be live locks and writes nothing. Otherwise the clock is read after the row lock, but
-- for a new row, which has none to wait for. The bound on waiting is set with the row's values, so before it is locked.
INSERT INTO {table} AS lock (name, token, expires_at, fence)
SELECT $1::text,
       CASE WHEN set_config('lock_timeout', '100', true) <> '' THEN $2::text END,
       clock_timestamp() + $3::float8 * interval '1 second',
       (date_part('epoch', clock_timestamp()) * 1000000)::bigint
 WHERE NOT EXISTS (
           SELECT FROM {table} WHERE name = $1::text AND token <> $2::text AND expires_at > clock_timestamp()
       )
ON CONFLICT (name) DO UPDATE
   SET token = excluded.token,
       expires_at = clock_timestamp() + $3::float8 * interval '1 second',
       fence = CASE WHEN lock.token = excluded.token AND lock.expires_at > clock_timestamp() THEN lock.fence
                    ELSE greatest(lock.fence + 1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint)
               END
 WHERE lock.token = excluded.token OR lock.expires_at <= clock_timestamp()
RETURNING fence

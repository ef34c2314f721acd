-- Grants each name as lock_acquire.sql does; who is refused stands in the queue for it, in the place that it has.
-- $1 names (distinct, sorted by code point), $2 their tokens, $3 their durations in seconds (as text), $4 the channel
-- of this process, for each name.
-- Answers (name, holder, fence, remaining) for each name that is decided: a fence means granted to `holder`, none that
-- `holder` has it for `remaining` seconds. A name without a row is undecided: ask again.
-- A refusal whose place was renewed within two seconds locks and writes nothing: with the row, its place is seen to be
-- in the queue while the lease is live, so whoever releases it will see it too. Nor does one when a hundred wait. Who
-- writes also deletes the places of those who gave no sign of life for five seconds.
-- A place in the queue need not survive a crash, so nothing waits for the disk when nothing is granted.
WITH asked AS MATERIALIZED (
    SELECT name, token, duration::float8 FROM unnest($1::text[], $2::text[], $3::text[]) AS u (name, token, duration)
), seen AS MATERIALIZED (
    SELECT name, token, expires_at,
           coalesce({me} = ANY (waiting) AND (renewed ->> {me})::bigint > {_now} - 2, false)
        OR (SELECT count(*) FROM unnest(waiting) AS queue (one) WHERE one <> {me} AND {_alive}) >= 100 AS stands
      FROM {table} AS lock WHERE name = ANY ($1::text[])
), free AS MATERIALIZED (
    SELECT name FROM {table}
     WHERE name = ANY ($1::text[])
       AND (expires_at <= clock_timestamp() OR token = ANY ($2::text[]))
       AND (SELECT set_config('lock_timeout', '100', true)) IS NOT NULL
       FOR UPDATE SKIP LOCKED
), crowded AS MATERIALIZED (
    SELECT name FROM {table}
     WHERE name = ANY (ARRAY (SELECT name FROM seen WHERE NOT stands AND name NOT IN (SELECT name FROM free)))
       AND expires_at > clock_timestamp() AND token <> ALL ($2::text[])
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
                   END,
           waiting = nullif({_others}, '{}')
     WHERE lock.token = excluded.token OR lock.expires_at <= clock_timestamp()
    RETURNING name, token, fence
), queued AS (
    UPDATE {table} AS lock
       SET waiting = ARRAY (
               SELECT one FROM unnest(lock.waiting) WITH ORDINALITY AS queue (one, place)
                WHERE one = {me} OR {_alive} ORDER BY place
           ) || CASE WHEN {me} = ANY (lock.waiting) THEN '{}' ELSE ARRAY [{me}] END,
           renewed = coalesce(
               (SELECT jsonb_object_agg(one, lock.renewed -> one) FROM unnest(lock.waiting) AS queue (one) WHERE {_alive}),
               '{}'
           ) || jsonb_build_object({me}, {_now})
     WHERE name = ANY (ARRAY (SELECT name FROM crowded))
    RETURNING name, token, expires_at
)
SELECT name, token AS holder, fence, NULL AS remaining, NULL AS quickly FROM taken
 UNION ALL
SELECT name, token, NULL, greatest(0, date_part('epoch', expires_at - clock_timestamp())),
       CASE WHEN NOT EXISTS (SELECT FROM taken) THEN set_config('synchronous_commit', 'off', true) END
  FROM (SELECT name, token, expires_at FROM queued
         UNION ALL
        SELECT name, token, expires_at FROM seen WHERE stands AND expires_at > clock_timestamp()) AS held
 WHERE name NOT IN (SELECT name FROM taken)

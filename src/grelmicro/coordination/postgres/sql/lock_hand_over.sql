-- Ends the lease of each name's token and grants the name to another.
-- $1 names (distinct, sorted by code point), $2 the tokens that hold them, $3 those that get them, $4 the durations in
-- seconds (as text), $5 the channel of this process, for each name; it leaves the queue.
-- Answers (name, fence, others_wait) for each name that either token holds: no fence means undecided, the row being
-- locked by another transaction: ask again. A name without a row is held by neither. When the one that gets it has it
-- already, this is a repetition, and gets the same answer.
WITH seen AS MATERIALIZED (
    SELECT name, token, fence, coalesce({_others} <> '{}', false) AS others_wait FROM {table} AS lock
     WHERE name = ANY ($1::text[])
       AND token IN (($2::text[])[array_position($1::text[], name)], ($3::text[])[array_position($1::text[], name)])
       AND expires_at > clock_timestamp()
), mine AS MATERIALIZED (
    SELECT name FROM {table}
     WHERE name = ANY ($1::text[])
       AND token = ($2::text[])[array_position($1::text[], name)]
       AND expires_at > clock_timestamp()
       AND (SELECT set_config('lock_timeout', '100', true)) IS NOT NULL
       FOR UPDATE SKIP LOCKED
), passed AS (
    UPDATE {table} AS lock
       SET token = ($3::text[])[array_position($1::text[], name)],
           expires_at = clock_timestamp()
                      + (($4::text[])[array_position($1::text[], name)])::float8 * interval '1 second',
           fence = greatest(lock.fence + 1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint),
           waiting = nullif({_others}, '{}')
     WHERE name = ANY (ARRAY (SELECT name FROM mine))
    RETURNING name, fence, waiting IS NOT NULL AS others_wait
)
SELECT name, fence, others_wait FROM passed
 UNION ALL
SELECT name, CASE WHEN token = ($3::text[])[array_position($1::text[], name)] THEN fence END, others_wait FROM seen
 WHERE name NOT IN (SELECT name FROM passed)

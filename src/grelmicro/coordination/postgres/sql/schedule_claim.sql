-- Claims a fire of each schedule: stores it if nothing or something smaller is stored.
-- $1 names (distinct, sorted by code point), $2 the fires in UTC epoch seconds (as text), $3 a nonce of each claim.
-- Answers (name, claimed) for each name that is decided; a claim sent again, with the same nonce, gets the same answer.
-- A name without a row is undecided, its row being locked by another transaction: ask again.
-- A refusal writes nothing.
WITH asked AS MATERIALIZED (
    SELECT name, due::float8, claim FROM unnest($1::text[], $2::text[], $3::text[]) AS u (name, due, claim)
), seen AS MATERIALIZED (
    SELECT name, last_fired, claim FROM {table} WHERE name = ANY ($1::text[])
), older AS MATERIALIZED (
    SELECT name FROM {table}
     WHERE name = ANY ($1::text[])
       AND last_fired < (($2::text[])[array_position($1::text[], name)])::float8
       AND (SELECT set_config('lock_timeout', '100', true)) IS NOT NULL
       FOR UPDATE SKIP LOCKED
), claimed AS (
    INSERT INTO {table} AS schedule (name, last_fired, claim)
    SELECT name, due, claim FROM asked
     WHERE name IN (SELECT name FROM older) OR name NOT IN (SELECT name FROM seen)
    ON CONFLICT (name) DO UPDATE SET last_fired = excluded.last_fired, claim = excluded.claim
     WHERE schedule.last_fired < excluded.last_fired
    RETURNING name
)
SELECT name, true AS claimed FROM claimed
 UNION ALL
SELECT name, claim = ($3::text[])[array_position($1::text[], name)] FROM seen
 WHERE last_fired >= (($2::text[])[array_position($1::text[], name)])::float8

-- Frees each name whose token is live; the row stays, so that its fence, or count of transitions, is remembered.
-- $1 names (distinct, sorted by code point), $2 their tokens; {and_freed}: what else an update sets; {word}: an expression
-- that tells others of it.
-- Answers (name, released) for each name whose token is live: false means undecided, the row being locked by another
-- transaction: ask again. A name without a row was not held by its token.
WITH seen AS MATERIALIZED (
    SELECT name FROM {table}
     WHERE name = ANY ($1::text[])
       AND token = ($2::text[])[array_position($1::text[], name)]
       AND expires_at > clock_timestamp()
), mine AS MATERIALIZED (
    SELECT name FROM {table}
     WHERE name = ANY ($1::text[])
       AND token = ($2::text[])[array_position($1::text[], name)]
       AND expires_at > clock_timestamp()
       AND (SELECT set_config('lock_timeout', '100', true)) IS NOT NULL
       FOR UPDATE SKIP LOCKED
), freed AS (
    UPDATE {table} AS lock SET token = '', expires_at = clock_timestamp(){and_freed}
     WHERE name = ANY (ARRAY (SELECT name FROM mine))
    RETURNING name, {word} AS word
)
SELECT name, true AS released, word FROM freed
 UNION ALL
SELECT name, false, NULL FROM seen WHERE name NOT IN (SELECT name FROM freed)

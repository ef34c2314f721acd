-- Deletes rows whose lease ended more than an hour ago, looking at a few hundred rows in the order of their names.
-- $1 the name after which to look.
-- Answers one row: (last), the last name looked at, or null at the end of the table. Names that grow would else be
-- followed for ever.
-- The row lock comes before the last look at the lease, and rows that are locked are left alone: a row that is live
-- or was used within the hour stays, however late this runs.
WITH page AS MATERIALIZED (
    SELECT name, expires_at FROM {table} WHERE name > $1::text ORDER BY name LIMIT 500
), old AS MATERIALIZED (
    SELECT name FROM {table}
     WHERE name = ANY (ARRAY (SELECT name FROM page WHERE expires_at < clock_timestamp() - interval '1 hour'))
       AND expires_at < clock_timestamp() - interval '1 hour'
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {table} WHERE name = ANY (ARRAY (SELECT name FROM old))
)
SELECT CASE WHEN count(*) = 500 THEN max(name) END AS last FROM page

-- Frees one name if its token is live, and waits a moment for another transaction that has the row.
-- $1 name, $2 token.
-- Answers like release.sql, with one row or none.
UPDATE {table} SET token = '', expires_at = clock_timestamp()
 WHERE name = $1::text AND token = $2::text AND expires_at > clock_timestamp()
   AND (SELECT set_config('lock_timeout', '100', true)) IS NOT NULL
RETURNING name, true AS released

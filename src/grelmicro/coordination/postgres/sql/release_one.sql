-- Frees one name if its token is live; waits a moment for a transaction that has locked the row.
-- $1 name, $2 token; {and_freed}, {word}: as in release.sql.
-- Answers (released), always true, or no row when the name was not held by the token.
-- The bound on waiting is set with the row's new token, the empty one, so before the row is locked.
UPDATE {table} AS lock
   SET token = left(set_config('lock_timeout', '100', true), 0), expires_at = clock_timestamp(){and_freed}
 WHERE name = $1::text AND token = $2::text AND expires_at > clock_timestamp()
RETURNING true AS released, {word} AS word

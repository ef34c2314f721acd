-- Reads the live record of each election.
-- $1 names.
-- Answers (name, token, duration, acquired_at, renewed_at, transitions, metadata) for each name that has a leader.
SELECT name, token, duration, acquired_at, renewed_at, transitions, metadata FROM {table}
 WHERE name = ANY ($1::text[]) AND expires_at > clock_timestamp()

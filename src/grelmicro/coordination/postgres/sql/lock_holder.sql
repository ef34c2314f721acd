-- Says who holds each name.
-- $1 names.
-- Answers (name, holder) for each name that is held.
SELECT name, token AS holder FROM {table} WHERE name = ANY ($1::text[]) AND expires_at > clock_timestamp()

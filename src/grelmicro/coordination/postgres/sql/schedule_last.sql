-- Reads the last fire of each schedule.
-- $1 names.
-- Answers (name, last_fired) for each name that ever fired.
SELECT name, last_fired FROM {table} WHERE name = ANY ($1::text[])

-- Included in releases of elections, whose candidates are not counted.
-- {vacancies}: the channel to which they listen.
pg_notify('{vacancies}', name)::text

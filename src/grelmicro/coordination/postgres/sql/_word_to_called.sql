-- Included behind _call_next.sql. NOTIFY takes a lock on the whole database, so it is not sent when nobody waits.
CASE WHEN called IS NOT NULL THEN pg_notify(called, name)::text END

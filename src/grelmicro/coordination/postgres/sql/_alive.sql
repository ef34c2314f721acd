-- Included where a queue is gone through: whether `one` in it gave a sign of life lately.
(lock.renewed ->> one)::bigint > {_now} - 5

-- Included where signs of life are dated: the epoch second at the start of the statement.
date_part('epoch', statement_timestamp())::bigint

CREATE TABLE stock (
    item text PRIMARY KEY,
    number integer NOT NULL,
    fence bigint NOT NULL DEFAULT 0
);

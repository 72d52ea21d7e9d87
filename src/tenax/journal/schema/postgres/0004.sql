-- Migration 4: devices.

-- A browser that a user signed in. It proves itself with two secrets, a cookie and a key of the page; only their SHA-256 is stored.
-- A device that is revoked loses its row.
create table devices (
    id text collate "C" not null primary key,
    owner text collate "C" not null,
    name text not null,
    cookie_hash text not null,
    key_hash text not null,
    made_at bigint not null,
    seen_at bigint not null
);
create index devices_owner on devices (owner);

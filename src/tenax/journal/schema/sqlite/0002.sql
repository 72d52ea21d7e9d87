-- Migration 2: memory.

-- What is remembered of a person: a row a version, and the greatest version of an id is the fact. `place` is the message
-- that it was learned from, `scope` the one conversation that it may be recalled into. `replaces` is the fact that went
-- from version `replaced` to the next in the same transaction.
create table facts (
    owner text not null,
    id text not null,
    version integer not null,
    state text not null,
    text text not null,
    about text not null,
    by text not null,
    at integer not null,
    place integer,
    scope integer,
    replaces text,
    replaced integer,
    key text,
    primary key (owner, id, version)
) strict;
create index facts_standing on facts (owner, at) where state = 'standing';
create index facts_place on facts (place) where place is not null;
create unique index facts_key on facts (owner, key) where key is not null;

-- Whoever changes a user's facts changes this row first, so that one does so at a time.
create table memories (
    owner text primary key,
    revision integer not null
) strict, without rowid;

-- Who else than its user has written in a conversation.
create table authors (
    conversation integer not null,
    author text not null,
    primary key (conversation, author)
) strict, without rowid;

-- What a reader gave up on, so that the line behind it goes on.
create table letters (
    conversation integer not null,
    reader text not null,
    seq integer not null,
    error text not null,
    at integer not null,
    primary key (conversation, reader, seq)
) strict, without rowid;

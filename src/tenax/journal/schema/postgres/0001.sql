-- Migration 1: the store.
--
-- An event's place is its conversation's number shifted left by 32, plus its seq: one number that names it in the
-- whole store, keeps a conversation together on disk, and is the table's own key.
--
-- Names are compared byte by byte (collation "C"): an index then outlives a change of the system's sorting rules.

create table store (
    one bigint primary key check (one = 1),
    schema bigint not null,
    incarnation text not null,
    life text not null,
    created_at bigint not null
);

-- Emptied by the server itself after a crash, a failover and a restore, because it is not in the log: that is how a
-- process learns that unflushed writes may be gone.
create unlogged table pulse (
    one bigint primary key check (one = 1),
    name text not null,
    since timestamptz not null
);

create table conversations (
    num bigint generated always as identity primary key,
    owner text collate "C" not null,
    id text collate "C" not null,
    source text collate "C" not null,
    origin bigint,
    title text,
    pinned bigint not null default 0,
    archived bigint not null default 0,
    opened_at bigint not null,
    updated_at bigint not null,
    unique (owner, id)
);
create index conversations_list on conversations (owner, archived, pinned, updated_at, num);
create index conversations_origin on conversations (origin) where origin is not null;

create table heads (
    conversation bigint primary key,
    head bigint not null,
    facts bigint not null,
    turns bigint not null,
    due bigint not null,
    revision bigint not null,
    epoch bigint not null,
    digest bytea not null,
    run text collate "C",
    stretch bigint not null,
    context_from bigint not null,
    unanswered bigint not null,
    messages bigint not null,
    stretch_messages bigint not null,
    stretch_from bigint not null,
    stretch_covers bigint not null,
    listed_at bigint not null,
    version bigint not null
) with (fillfactor = 50);

-- A message, and whatever else is a row of the transcript, has a role, and with it `first`, `waiting` and `dead`. The body
-- stands last: what is asked of the other columns is answered without reading it.
create table events (
    place bigint primary key,
    kind text not null,
    at bigint not null,
    run text collate "C",
    first bigint,
    role bigint,
    waiting bigint,
    dead bigint,
    append_id bytea,
    salt bytea,
    body_hash bytea,
    digest bytea not null,
    body bytea
);
create index events_waiting on events (place) where waiting = 1;

create table partials (
    place bigint primary key,
    code bigint not null,
    at bigint not null,
    append_id bytea,
    body bytea not null
);

create table stretches (
    num bigint generated always as identity primary key,
    owner text collate "C" not null,
    name text collate "C" not null,
    conversation bigint not null,
    parent text collate "C",
    opened_at bigint not null,
    opened_seq bigint not null,
    covers_to bigint not null,
    ended_at bigint,
    ended_seq bigint,
    reason text,
    messages bigint not null,
    unique (owner, name)
);
create index stretches_conversation on stretches (conversation, opened_seq);
create index stretches_parent on stretches (owner, parent) where parent is not null;

create table runs (
    conversation bigint not null,
    run text collate "C" not null,
    started_seq bigint,
    finished_seq bigint,
    outcome text,
    late bigint not null default 0,
    sealed_seq bigint,
    attempts bigint not null default 0,
    first_seen bigint,
    primary key (conversation, run)
);
create index runs_open on runs (conversation) where started_seq is not null and finished_seq is null;

create table spent (
    conversation bigint not null,
    day bigint not null,
    owner text not null,
    input bigint not null,
    output bigint not null,
    cost bigint not null,
    unpriced bigint not null,
    primary key (conversation, day)
);
create index spent_day on spent (owner, day);

create table received (
    owner text collate "C" not null,
    source text collate "C" not null,
    id text collate "C" not null,
    place bigint not null,
    count bigint not null,
    primary key (owner, source, id)
);

create table leases (
    owner text collate "C" not null,
    name text collate "C" not null,
    holder text,
    fence bigint not null,
    until double precision not null,
    seconds double precision not null,
    instance text collate "C" not null,
    life text not null,
    token bytea,
    primary key (owner, name)
);

create table instances (
    id text collate "C" primary key,
    host text not null,
    started_at bigint not null,
    ended_at bigint,
    swept_at bigint,
    up text not null
);

create table readers (
    name text collate "C" primary key,
    follows text not null,
    start text not null
);

create table cursors (
    conversation bigint not null,
    reader text collate "C" not null,
    follows text not null,
    seq bigint not null,
    behind bigint not null,
    retry_at bigint,
    tries bigint not null default 0,
    error text,
    primary key (conversation, reader)
) with (fillfactor = 70);
create index cursors_behind on cursors (reader, conversation) where behind = 1;

create table blobs (
    owner text collate "C" not null,
    hash text collate "C" not null,
    size bigint not null,
    at bigint not null,
    primary key (owner, hash)
);

create table blob_chunks (
    owner text collate "C" not null,
    hash text collate "C" not null,
    n bigint not null,
    bytes bytea not null,
    primary key (owner, hash, n)
);

create table mentions (
    owner text collate "C" not null,
    hash text collate "C" not null,
    place bigint not null,
    primary key (owner, hash, place)
);
create index mentions_place on mentions (place);

create table tombstones (
    owner text collate "C" not null,
    id text collate "C" not null,
    num bigint not null,
    head bigint not null,
    digest bytea not null,
    at bigint not null,
    primary key (owner, id)
);

-- The words of the messages, for search. An index for parts of words, search_docs_pieces, is added where the server has
-- the extension pg_trgm.
create table search_docs (
    place bigint primary key,
    owner text collate "C" not null,
    at bigint not null,
    folded text collate "C" not null,
    keys text[] collate "C" not null
);
create index search_docs_newest on search_docs (owner, at, place);
create index search_docs_keys on search_docs using gin (keys);

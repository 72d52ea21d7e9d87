-- Migration 1: the store.
--
-- An event's place is its conversation's number shifted left by 32, plus its seq: one number that names it in the
-- whole store, keeps a conversation together on disk, and is the table's own key.

create table store (
    one integer primary key check (one = 1),
    schema integer not null,
    incarnation text not null,
    life text not null,
    created_at integer not null
) strict;

create table conversations (
    num integer primary key autoincrement,
    owner text not null,
    id text not null,
    source text not null,
    origin integer,
    title text,
    pinned integer not null default 0,
    archived integer not null default 0,
    opened_at integer not null,
    updated_at integer not null,
    unique (owner, id)
) strict;
create index conversations_list on conversations (owner, archived, pinned, updated_at, num);
create index conversations_origin on conversations (origin) where origin is not null;

create table heads (
    conversation integer primary key,
    head integer not null,
    facts integer not null,
    turns integer not null,
    due integer not null,
    revision integer not null,
    epoch integer not null,
    digest blob not null,
    run text,
    stretch integer not null,
    context_from integer not null,
    unanswered integer not null,
    messages integer not null,
    stretch_messages integer not null,
    stretch_from integer not null,
    stretch_covers integer not null,
    listed_at integer not null,
    version integer not null
) strict;

-- A message, and whatever else is a row of the transcript, has a role, and with it `first`, `waiting` and `dead`. The body
-- stands last: what is asked of the other columns is answered without reading it.
create table events (
    place integer primary key,
    kind text not null,
    at integer not null,
    run text,
    first integer,
    role integer,
    waiting integer,
    dead integer,
    append_id blob,
    salt blob,
    body_hash blob,
    digest blob not null,
    body blob
) strict;
create index events_waiting on events (place) where waiting = 1;

create table partials (
    place integer primary key,
    code integer not null,
    at integer not null,
    append_id blob,
    body blob not null
) strict;

create table stretches (
    num integer primary key autoincrement,
    owner text not null,
    name text not null,
    conversation integer not null,
    parent text,
    opened_at integer not null,
    opened_seq integer not null,
    covers_to integer not null,
    ended_at integer,
    ended_seq integer,
    reason text,
    messages integer not null,
    unique (owner, name)
) strict;
create index stretches_conversation on stretches (conversation, opened_seq);
create index stretches_parent on stretches (owner, parent) where parent is not null;

create table runs (
    conversation integer not null,
    run text not null,
    started_seq integer,
    finished_seq integer,
    outcome text,
    late integer not null default 0,
    sealed_seq integer,
    attempts integer not null default 0,
    first_seen integer,
    primary key (conversation, run)
) strict, without rowid;
create index runs_open on runs (conversation) where started_seq is not null and finished_seq is null;

create table spent (
    conversation integer not null,
    day integer not null,
    owner text not null,
    input integer not null,
    output integer not null,
    cost integer not null,
    unpriced integer not null,
    primary key (conversation, day)
) strict, without rowid;
create index spent_day on spent (owner, day);

create table received (
    owner text not null,
    source text not null,
    id text not null,
    place integer not null,
    count integer not null,
    primary key (owner, source, id)
) strict, without rowid;

create table leases (
    owner text not null,
    name text not null,
    holder text,
    fence integer not null,
    until real not null,
    seconds real not null,
    instance text not null,
    life text not null,
    token blob,
    primary key (owner, name)
) strict, without rowid;

create table instances (
    id text primary key,
    host text not null,
    started_at integer not null,
    ended_at integer,
    swept_at integer
) strict, without rowid;

create table readers (
    name text primary key,
    follows text not null,
    start text not null
) strict, without rowid;

create table cursors (
    conversation integer not null,
    reader text not null,
    follows text not null,
    seq integer not null,
    behind integer not null,
    retry_at integer,
    tries integer not null default 0,
    error text,
    primary key (conversation, reader)
) strict, without rowid;
create index cursors_behind on cursors (reader, conversation) where behind = 1;

create table blobs (
    owner text not null,
    hash text not null,
    size integer not null,
    at integer not null,
    primary key (owner, hash)
) strict, without rowid;

create table blob_chunks (
    owner text not null,
    hash text not null,
    n integer not null,
    bytes blob not null,
    primary key (owner, hash, n)
) strict;

create table mentions (
    owner text not null,
    hash text not null,
    place integer not null,
    primary key (owner, hash, place)
) strict, without rowid;
create index mentions_place on mentions (place);

create table tombstones (
    owner text not null,
    id text not null,
    num integer not null,
    head integer not null,
    digest blob not null,
    at integer not null,
    primary key (owner, id)
) strict, without rowid;

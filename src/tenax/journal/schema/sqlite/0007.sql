-- Migration 7: chats of chat apps (`conversation.routed`), and what is delivered there.

-- The connections of conversations with chats, derived from the events.
create table routes (
    conversation integer not null,
    account text not null,
    chat text not null,
    thread text not null,
    closed integer not null,
    at integer not null,
    seq integer not null,
    primary key (conversation, account, chat, thread)
) strict, without rowid;
create index routes_chat on routes (account, chat, thread);

-- How far the events of a conversation are delivered to a chat. An ended route delivers nothing more.
create table route_cursors (
    conversation integer not null,
    account text not null,
    chat text not null,
    thread text not null,
    seq integer not null,
    ended integer not null,
    primary key (conversation, account, chat, thread)
) strict, without rowid;
create index route_cursors_open on route_cursors (account) where ended = 0;

-- The messages that go out. `unit` names what is delivered, `piece` counts its messages. The state is waiting, sending,
-- placed, delivered, uncertain or dead. `message` is the platform's id. Only a notice keeps its text here.
create table deliveries (
    account text not null,
    chat text not null,
    thread text not null,
    unit text not null,
    piece integer not null,
    conversation integer,
    seq integer not null,
    state text not null,
    key text not null,
    message text not null,
    text text not null,
    repeated integer not null,
    tries integer not null,
    retry_at integer not null,
    error text not null,
    at integer not null,
    primary key (account, chat, thread, unit, piece)
) strict, without rowid;
create index deliveries_unfinished on deliveries (account, at) where state in ('waiting', 'sending', 'placed');
create index deliveries_failed on deliveries (at) where state in ('uncertain', 'dead');
create index deliveries_message on deliveries (account, chat, message);
create index deliveries_question on deliveries (account, key) where substr(unit, 1, 2) = 'q:';
create index deliveries_conversation on deliveries (conversation);

-- Where an account is on its platform: the cursor of what was received, waits, and when something last came and went.
create table channel_values (
    account text not null,
    name text not null,
    value text not null,
    primary key (account, name)
) strict, without rowid;

create table chats (
    account text not null,
    chat text not null,
    thread text not null,
    title text not null,
    is_group integer not null,
    seen_at integer not null,
    primary key (account, chat, thread)
) strict, without rowid;

-- The people who may talk to an account, and their user.
create table channel_people (
    account text not null,
    person text not null,
    owner text not null,
    name text not null,
    at integer not null,
    primary key (account, person)
) strict, without rowid;

-- Strangers who got a code, and when.
create table pairings (
    account text not null,
    person text not null,
    code text not null,
    name text not null,
    chat text not null,
    at integer not null,
    primary key (account, person)
) strict, without rowid;

-- What was said in a group and was not for the bot. Few messages are kept, and not for long.
create table observed (
    account text not null,
    chat text not null,
    thread text not null,
    message text not null,
    name text not null,
    text text not null,
    at integer not null,
    primary key (account, chat, thread, message)
) strict, without rowid;

-- Files of stored messages that could not be fetched in time.
create table late_files (
    account text not null,
    id text not null,
    conversation integer not null,
    file text not null,
    tries integer not null,
    retry_at integer not null,
    at integer not null,
    primary key (account, id)
) strict, without rowid;
create index late_files_conversation on late_files (conversation);

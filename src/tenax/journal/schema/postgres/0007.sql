-- Migration 7: chats of chat apps (`conversation.routed`), and what is delivered there.

-- The connections of conversations with chats, derived from the events.
create table routes (
    conversation bigint not null,
    account text collate "C" not null,
    chat text collate "C" not null,
    thread text collate "C" not null,
    closed bigint not null,
    at bigint not null,
    seq bigint not null,
    primary key (conversation, account, chat, thread)
);
create index routes_chat on routes (account, chat, thread);

-- How far the events of a conversation are delivered to a chat. An ended route delivers nothing more.
create table route_cursors (
    conversation bigint not null,
    account text collate "C" not null,
    chat text collate "C" not null,
    thread text collate "C" not null,
    seq bigint not null,
    ended bigint not null,
    primary key (conversation, account, chat, thread)
);
create index route_cursors_open on route_cursors (account) where ended = 0;

-- The messages that go out. `unit` names what is delivered, `piece` counts its messages. The state is waiting, sending,
-- placed, delivered, uncertain or dead. `message` is the platform's id. Only a notice keeps its text here.
create table deliveries (
    account text collate "C" not null,
    chat text collate "C" not null,
    thread text collate "C" not null,
    unit text collate "C" not null,
    piece bigint not null,
    conversation bigint,
    seq bigint not null,
    state text collate "C" not null,
    key text collate "C" not null,
    message text collate "C" not null,
    text text not null,
    repeated bigint not null,
    tries bigint not null,
    retry_at bigint not null,
    error text not null,
    at bigint not null,
    primary key (account, chat, thread, unit, piece)
);
create index deliveries_unfinished on deliveries (account, at) where state in ('waiting', 'sending', 'placed');
create index deliveries_failed on deliveries (at) where state in ('uncertain', 'dead');
create index deliveries_message on deliveries (account, chat, message);
create index deliveries_question on deliveries (account, key) where substr(unit, 1, 2) = 'q:';
create index deliveries_conversation on deliveries (conversation);

-- Where an account is on its platform: the cursor of what was received, waits, and when something last came and went.
create table channel_values (
    account text collate "C" not null,
    name text collate "C" not null,
    value text not null,
    primary key (account, name)
);

create table chats (
    account text collate "C" not null,
    chat text collate "C" not null,
    thread text collate "C" not null,
    title text not null,
    is_group bigint not null,
    seen_at bigint not null,
    primary key (account, chat, thread)
);

-- The people who may talk to an account, and their user.
create table channel_people (
    account text collate "C" not null,
    person text collate "C" not null,
    owner text collate "C" not null,
    name text not null,
    at bigint not null,
    primary key (account, person)
);

-- Strangers who got a code, and when.
create table pairings (
    account text collate "C" not null,
    person text collate "C" not null,
    code text collate "C" not null,
    name text not null,
    chat text collate "C" not null,
    at bigint not null,
    primary key (account, person)
);

-- What was said in a group and was not for the bot. Few messages are kept, and not for long.
create table observed (
    account text collate "C" not null,
    chat text collate "C" not null,
    thread text collate "C" not null,
    message text collate "C" not null,
    name text not null,
    text text not null,
    at bigint not null,
    primary key (account, chat, thread, message)
);

-- Files of stored messages that could not be fetched in time.
create table late_files (
    account text collate "C" not null,
    id text collate "C" not null,
    conversation bigint not null,
    file text not null,
    tries bigint not null,
    retry_at bigint not null,
    at bigint not null,
    primary key (account, id)
);
create index late_files_conversation on late_files (conversation);

-- Migration 3: schedules.

-- What is asked by itself at a time: `words`, in a conversation, at the `times` that are told in words, in a `zone`. `due` is
-- when next; null once it is over, and then the words are gone, and the row only keeps its id from being used again.
-- `place` is the message that asked for it, if one did.
create table schedules (
    owner text not null,
    id text not null,
    conversation integer not null,
    words text not null,
    times text not null,
    zone text not null,
    due integer,
    made_at integer not null,
    place integer,
    primary key (owner, id)
) strict, without rowid;
create index schedules_due on schedules (owner, due) where due is not null;
create index schedules_conversation on schedules (conversation);
create index schedules_place on schedules (place) where place is not null;

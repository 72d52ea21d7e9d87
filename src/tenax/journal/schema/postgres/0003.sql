-- Migration 3: schedules.

-- What is asked by itself at a time: `words`, in a conversation, at the `times` that are told in words, in a `zone`. `due` is
-- when next; null once it is over, and then the words are gone, and the row only keeps its id from being used again.
-- `place` is the message that asked for it, if one did.
create table schedules (
    owner text collate "C" not null,
    id text collate "C" not null,
    conversation bigint not null,
    words text not null,
    times text not null,
    zone text not null,
    due bigint,
    made_at bigint not null,
    place bigint,
    primary key (owner, id)
);
create index schedules_due on schedules (owner, due) where due is not null;
create index schedules_conversation on schedules (conversation);
create index schedules_place on schedules (place) where place is not null;

-- Migration 5: choices, the state of the list, preferences, read marks, projects, and usage by model.

-- What the person chose for a conversation. An empty model or project is the default.
alter table conversations add column model text not null default '';
alter table conversations add column mode text not null default 'ask';
alter table conversations add column project text not null default '';

-- The calls that wait for a person, as a JSON array of answer and call; empty without one. Whether the last run failed. The end of
-- the last run that completed or failed.
alter table heads add column asks text not null default '';
alter table heads add column failed bigint not null default 0;
alter table heads add column answered bigint not null default 0;
update heads set
    failed = case when exists (select 1 from runs r where r.conversation = heads.conversation and heads.run is null
                               and r.finished_seq = heads.turns and r.outcome = 'failed') then 1 else 0 end,
    answered = coalesce((select max(r.finished_seq) from runs r
                         where r.conversation = heads.conversation and r.outcome in ('completed', 'failed')), 0);
-- The next append to a conversation with an open run derives `asks` from the events.
update heads set version = 1 where run is not null;

-- A preference of a user, as JSON text.
create table preferences (
    owner text collate "C" not null,
    name text collate "C" not null,
    value text not null,
    primary key (owner, name)
);

-- How far a user has read a conversation.
create table read_marks (
    conversation bigint not null,
    owner text collate "C" not null,
    seq bigint not null,
    primary key (conversation, owner)
);

create table projects (
    owner text collate "C" not null,
    id text collate "C" not null,
    name text not null,
    folder text not null,
    instructions text not null,
    model text not null,
    created_at bigint not null,
    primary key (owner, id)
);

-- Every change of the preferences or projects of a user changes the revision. `reads_since` is the time of the first read mark.
create table personal (
    owner text collate "C" not null primary key,
    revision bigint not null,
    reads_since bigint
);

-- Usage has the model as part of the key. Older usage has no model: finding the model would read every event.
alter table spent add column model text collate "C" not null default '';
alter table spent alter column model drop default;
alter table spent drop constraint spent_pkey;
alter table spent add primary key (conversation, day, model);

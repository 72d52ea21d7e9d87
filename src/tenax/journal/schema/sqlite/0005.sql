-- Migration 5: choices, the state of the list, preferences, read marks, projects, and usage by model.

-- What the person chose for a conversation. An empty model or project is the default.
alter table conversations add column model text not null default '';
alter table conversations add column mode text not null default 'ask';
alter table conversations add column project text not null default '';

-- The calls that wait for a person, as a JSON array of answer and call; empty without one. Whether the last run failed. The end of
-- the last run that completed or failed.
alter table heads add column asks text not null default '';
alter table heads add column failed integer not null default 0;
alter table heads add column answered integer not null default 0;
update heads set
    failed = exists (select 1 from runs r where r.conversation = heads.conversation and heads.run is null
                     and r.finished_seq = heads.turns and r.outcome = 'failed'),
    answered = coalesce((select max(r.finished_seq) from runs r
                         where r.conversation = heads.conversation and r.outcome in ('completed', 'failed')), 0);
-- The next append to a conversation with an open run derives `asks` from the events.
update heads set version = 1 where run is not null;

-- A preference of a user, as JSON text.
create table preferences (
    owner text not null,
    name text not null,
    value text not null,
    primary key (owner, name)
) strict, without rowid;

-- How far a user has read a conversation.
create table read_marks (
    conversation integer not null,
    owner text not null,
    seq integer not null,
    primary key (conversation, owner)
) strict, without rowid;

create table projects (
    owner text not null,
    id text not null,
    name text not null,
    folder text not null,
    instructions text not null,
    model text not null,
    created_at integer not null,
    primary key (owner, id)
) strict, without rowid;

-- Every change of the preferences or projects of a user changes the revision. `reads_since` is the time of the first read mark.
create table personal (
    owner text not null primary key,
    revision integer not null,
    reads_since integer
) strict, without rowid;

-- Usage has the model as part of the key. Older usage has no model: finding the model would read every event.
alter table spent rename to spent_without_model;
drop index spent_day;
create table spent (
    conversation integer not null,
    day integer not null,
    model text not null,
    owner text not null,
    input integer not null,
    output integer not null,
    cost integer not null,
    unpriced integer not null,
    primary key (conversation, day, model)
) strict, without rowid;
create index spent_day on spent (owner, day);
insert into spent (conversation, day, model, owner, input, output, cost, unpriced)
select conversation, day, '', owner, input, output, cost, unpriced from spent_without_model;
drop table spent_without_model;

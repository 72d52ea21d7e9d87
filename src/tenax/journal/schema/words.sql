-- The file `-search` beside a SQLite store: the words of its messages, and how far in each conversation.
--
-- It can be deleted at any time and is then made again. A row's id is the message's time in units of 64 microseconds, or
-- the next that is free, at most `drift` above: the index gives the newest first without sorting. (Ids that lie close
-- together make a small index.)
-- A scope is three characters for private use that name a user or a conversation: one token, so it is met in the index.
-- The positions of tokens are not kept (`detail=none`): the text of a hit is looked at anyhow.

-- name: schema
create table meta (
    one integer primary key check (one = 1),
    generation text not null,
    life text,
    chore integer not null,
    docs integer not null,
    unmerged integer not null,
    drift integer not null
) strict;
create table owners (num integer primary key, name text not null unique) strict;
create table positions (
    conversation integer primary key,
    seq integer not null,
    digest blob not null,
    forgets integer not null
) strict;
create table docs (
    id integer primary key,
    place integer not null unique,
    at integer not null,
    owner integer not null,
    folded text not null
) strict;
create virtual table grams using fts5(
    owner, conversation, folded, content='', columnsize=0, detail=none, tokenize='trigram case_sensitive 1');
create virtual table keys using fts5(
    owner, conversation, folded, content='', columnsize=0, detail=none, tokenize='ascii');

-- name: put_meta
insert into meta (one, generation, life, chore, docs, unmerged, drift) values (1, :generation, null, 0, 0, 0, 0)

-- name: meta
select generation, life from meta

-- name: chores
select chore, docs, unmerged from meta

-- name: count_docs
update meta set docs = docs + :docs, unmerged = unmerged + :docs, drift = max(drift, :drift)

-- name: drift
select drift from meta

-- name: set_life
update meta set life = :life

-- name: set_chore
update meta set chore = :chore

-- name: next_chore
update meta set chore = :to, unmerged = case :to when 0 then 0 else unmerged end where chore = :was

-- name: owner
select num from owners where name = :name

-- name: put_owner
insert into owners (name) values (:name) returning num

-- name: position
select seq, digest, forgets from positions where conversation = :num

-- name: positions_page
select conversation, seq from positions where conversation in (select value from json_each(:nums))

-- name: set_position
insert into positions (conversation, seq, digest, forgets) values (:num, :seq, :digest, 0)
on conflict (conversation) do update set seq = excluded.seq, digest = excluded.digest

-- name: note_forgetting
insert into positions (conversation, seq, digest, forgets) values (:num, 0, x'', 1)
on conflict (conversation) do update set forgets = forgets + 1

-- name: taken
select 1 from docs where id = ?

-- name: put_doc
insert into docs (id, place, at, owner, folded) values (?, ?, ?, ?, ?)

-- name: put_grams
insert into grams (rowid, owner, conversation, folded) values (?, ?, ?, ?)

-- name: put_keys
insert into keys (rowid, owner, conversation, folded) values (?, ?, ?, ?)

-- name: docs_between
select id, place, owner, folded from docs where place between :low and :high order by place limit :limit

-- name: drop_doc
delete from docs where id = ?

-- name: drop_grams
insert into grams (grams, rowid, owner, conversation, folded) values ('delete', ?, ?, ?, ?)

-- name: drop_keys
insert into keys (keys, rowid, owner, conversation, folded) values ('delete', ?, ?, ?, ?)

-- name: have_docs
select k.value from json_each(:nums) k
where exists (select 1 from docs where place between k.value << 32 and (k.value << 32) + 4294967295)

-- name: by_grams
select d.id, d.at, d.place, d.owner from grams join docs d on d.id = grams.rowid
where grams match :grams and grams.rowid <= :top order by grams.rowid desc

-- name: by_keys
select d.id, d.at, d.place, d.owner from keys join docs d on d.id = keys.rowid
where keys match :keys and keys.rowid <= :top order by keys.rowid desc

-- name: by_both
select d.id, d.at, d.place, d.owner from grams join docs d on d.id = grams.rowid
where grams match :grams and grams.rowid <= :top
      and +grams.rowid in (select rowid from keys where keys match :keys and rowid <= :top)
order by grams.rowid desc

-- name: folded
select folded from docs where id = :id

-- name: begin_merging_grams
insert into grams (grams, rank) values ('merge', -200)

-- name: begin_merging_keys
insert into keys (keys, rank) values ('merge', -200)

-- name: merge_grams
insert into grams (grams, rank) values ('merge', 200)

-- name: merge_keys
insert into keys (keys, rank) values ('merge', 200)

-- Search in a table of its own. `likes` and `keys` are what a text must hold; an empty list asks nothing.

-- name: found
select e.place, c.id, e.kind, e.at, e.body, coalesce(e.dead, 0)
from unnest(cast(:places as bigint[])) k(place) join events e on e.place = k.place
     join conversations c on c.num = e.place >> 32
where c.owner = :owner and e.body is not null

-- Erased while it was on its way here: then there is no body, and no row.
-- name: put_search_doc_many
insert into search_docs (place, owner, at, folded, keys)
select e.place, d.owner, e.at, d.folded, string_to_array(d.keys, ' ')
from unnest(cast(:place as bigint[]), cast(:owner as text[]), cast(:folded as text[]), cast(:keys as text[]))
     d(place, owner, folded, keys) join events e on e.place = d.place
where e.body is not null on conflict (place) do nothing

-- name: lock_search
select seq from cursors where conversation = :num and reader = :reader for update

-- name: delete_search_docs
delete from search_docs where place between :low and :high

-- name: delete_search_doc_many
delete from search_docs where place = any(cast(:place as bigint[]))

-- name: orphan_search_docs
select t.num from unnest(cast(:nums as bigint[])) t(num)
where exists (select 1 from search_docs where place between t.num << 32 and (t.num << 32) + 4294967295)

-- The newest messages of a user, one by one: what is common is found here.
-- name: search_walk
select at, place, case when folded like all (cast(:likes as text[])) and keys @> cast(:keys as text[]) then folded end
from search_docs where owner = :owner and (at, place) < (:at, :place) order by at desc, place desc limit :limit

-- name: search_within
select at, place, folded from (
    with conversation as materialized (select * from search_docs where place > :low and place <= :high)
    select * from conversation) f
where owner = :owner and (at, place) < (:at, :place)
      and folded like all (cast(:likes as text[])) and keys @> cast(:keys as text[])
order by at desc, place desc limit :limit

-- All of a user's messages through an index: what is rare is found here. Inner queries are fenced off: a planner that
-- sees the order and the limit walks all the messages instead.
-- name: search_by_keys
select f.at, f.place, d.folded from (
    with found as materialized (
        select at, place from search_docs
        where keys @> cast(:keys as text[]) and owner = :owner and folded like all (cast(:likes as text[])))
    select at, place from found where (at, place) < (:at, :place) order by at desc, place desc limit :limit) f
join search_docs d on d.place = f.place order by f.at desc, f.place desc

-- name: search_by_pieces
select f.at, f.place, d.folded from (
    with found as materialized (
        select at, place from search_docs
        where folded like :first and folded like :second and owner = :owner
              and folded like all (cast(:likes as text[])) and keys @> cast(:keys as text[]))
    select at, place from found where (at, place) < (:at, :place) order by at desc, place desc limit :limit) f
join search_docs d on d.place = f.place order by f.at desc, f.place desc

-- name: pieces_index
select exists (select 1 from pg_class c join pg_index i on i.indexrelid = c.oid
               where i.indrelid = cast('search_docs' as regclass) and c.relname = 'search_docs_pieces' and i.indisvalid)

-- name: add_trigrams
create extension if not exists pg_trgm

-- name: index_pieces
create index if not exists search_docs_pieces on search_docs using gin (folded gin_trgm_ops)

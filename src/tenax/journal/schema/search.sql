-- What search asks of the journal, on every engine.

-- Bodies may be large: those that come after the first `bytes` of them are left out.
-- name: facts_from
select e.place, e.kind, e.at, e.body, e.digest
from (select place, sum(size) over (order by place) - size as earlier
      from (select place, coalesce(length(body), 0) as size from events
            where place >= :low and place <= :high order by place limit :limit) p) w
     join events e on e.place = w.place
where w.earlier < :bytes order by e.place

-- name: facts_back
select e.place, e.kind, e.at, e.body
from (select place, sum(size) over (order by place desc) - size as earlier
      from (select place, coalesce(length(body), 0) as size from events
            where place > :low and place <= :high order by place desc limit :limit) p) w
     join events e on e.place = w.place
where w.earlier < :bytes order by e.place desc

-- name: unindexed
select k.conversation, k.seq from cursors k join conversations c on c.num = k.conversation
where k.reader = :reader and k.behind = 1 and c.owner = :owner order by c.updated_at desc limit :limit

-- name: newest_conversations
select num, 0 from conversations where owner = :owner order by updated_at desc limit :limit

-- name: cursors_page
select conversation, seq from cursors where reader = :reader and conversation > :past order by conversation limit :limit

-- name: set_back
update cursors set seq = :to, behind = 1 where conversation = :num and reader = :reader and seq > :to

-- name: tombstones_page
select num from tombstones where num > :past order by num limit :limit

-- What search asks of the journal, on every engine.

-- name: facts_from
select place, kind, at, body, digest from events where place >= :low and place <= :high order by place limit :limit

-- name: facts_back
select place, kind, at, body from events where place > :low and place <= :high order by place desc limit :limit

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

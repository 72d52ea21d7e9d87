-- What SQLite says in its own way. A list of numbers comes as JSON.

-- name: heads
select (select schema from store), c.owner, c.id, h.conversation, h.head, h.facts, h.turns, h.due, h.revision, h.epoch,
       h.digest, h.run, h.stretch, h.context_from, h.unanswered, h.messages, h.stretch_messages, h.stretch_from,
       h.stretch_covers, h.listed_at, h.version, h.asks, h.failed, h.answered
from heads h join conversations c on c.num = h.conversation where h.conversation in (select value from json_each(:nums))

-- name: heads_now
select conversation, head from heads where conversation in (select value from json_each(:nums))

-- name: digests
select e.place, e.digest from json_each(:places) p join events e on e.place = p.value

-- name: head_of
select (select schema from store), c.owner, c.id, h.conversation, h.head, h.facts, h.turns, h.due, h.revision, h.epoch,
       h.digest, h.run, h.stretch, h.context_from, h.unanswered, h.messages, h.stretch_messages, h.stretch_from,
       h.stretch_covers, h.listed_at, h.version, h.asks, h.failed, h.answered
from heads h join conversations c on c.num = h.conversation where h.conversation = :num

-- name: put_head
replace into heads values (:conversation, :head, :facts, :turns, :due, :revision, :epoch, :digest, :run, :stretch,
    :context_from, :unanswered, :messages, :stretch_messages, :stretch_from, :stretch_covers, :listed_at, :version,
    :asks, :failed, :answered)

-- name: wake_readers
update cursors set behind = 1
where conversation in (select value from json_each(:nums)) and follows = :follows and behind = 0

-- name: prompts_with
select c.id, m.place from mentions m cross join events e on e.place = m.place and e.kind = 'context.opened'
cross join blob_chunks k on k.owner = m.owner and k.hash = m.hash and instr(k.bytes, :piece) > 0
join conversations c on c.num = m.place >> 32 where m.owner = :owner

-- name: prove_file
select (select application_id from pragma_application_id), (select auto_vacuum from pragma_auto_vacuum),
       (select page_size from pragma_page_size), (select page_count from pragma_page_count)

-- name: prove_schema
select type, name, tbl_name, sql from sqlite_schema where name not like 'sqlite\_%' escape '\' order by type, name

-- name: prove_whole_file
select integrity_check from pragma_integrity_check

-- name: prove_table
select integrity_check from pragma_integrity_check(:name)

-- name: engine_version
select sqlite_version()

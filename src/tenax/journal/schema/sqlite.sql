-- What SQLite says in its own way. A list of numbers comes as JSON.

-- name: heads
select (select schema from store), conversation, head, facts, turns, due, revision, epoch, digest, run, stretch,
       context_from, unanswered, messages, stretch_messages, stretch_from, stretch_covers, listed_at, version
from heads where conversation in (select value from json_each(:nums))

-- name: head_of
select (select schema from store), conversation, head, facts, turns, due, revision, epoch, digest, run, stretch,
       context_from, unanswered, messages, stretch_messages, stretch_from, stretch_covers, listed_at, version
from heads where conversation = :num

-- name: wake_readers
update cursors set behind = 1
where conversation in (select value from json_each(:nums)) and follows = :follows and behind = 0

-- Statements that SQLite and PostgreSQL read alike. An engine's own file adds to these and wins.
-- Where a statement is run with a tuple, its parameters stand in the tuple's order and each appears once.

-- the store ------------------------------------------------------------------------------------------------

-- name: store
select schema, incarnation, life from store

-- name: put_store
insert into store (one, schema, incarnation, life, created_at) values (1, :schema, :incarnation, :life, :at)

-- name: set_schema
update store set schema = :schema

-- name: set_incarnation
update store set incarnation = :incarnation, life = :life

-- append: what a group has to know -------------------------------------------------------------------------

-- name: tombstone
select 1 from tombstones where owner = :owner and id = :id

-- name: fence
select fence, token from leases where owner = :owner and name = :name

-- name: received
select place, count from received where owner = :owner and source = :source and id = :id

-- name: append_ids
select place, at, append_id from events where place > :low and place < :high order by place desc limit :limit

-- name: append_ids_of_partials
select place, at, append_id from partials where place > :low and place < :high order by place desc limit :limit

-- name: stretch_name
select name from stretches where num = :num

-- name: stretch_taken
select 1 from stretches where owner = :owner and name = :name

-- append: what it writes -----------------------------------------------------------------------------------

-- name: open_conversation
insert into conversations (owner, id, source, origin, opened_at, updated_at)
values (:owner, :id, :source, (select num from conversations c where c.owner = :owner and c.id = :origin), :at, :at)
returning num

-- name: put_event
insert into events (place, kind, at, run, first, role, waiting, dead, append_id, salt, digest, body)
values (:place, :kind, :at, :run, :first, :role, :waiting, :dead, :append_id, :salt, :digest, :body)

-- name: put_partial
insert into partials (place, code, at, append_id, body) values (:place, :code, :at, :append_id, :body)

-- name: put_head
insert into heads (conversation, head, facts, turns, due, revision, epoch, digest, run, stretch, context_from,
                   unanswered, messages, stretch_messages, stretch_from, stretch_covers, listed_at, version, asks, failed,
                   answered)
values (:conversation, :head, :facts, :turns, :due, :revision, :epoch, :digest, :run, :stretch, :context_from,
        :unanswered, :messages, :stretch_messages, :stretch_from, :stretch_covers, :listed_at, :version, :asks, :failed,
        :answered)
on conflict (conversation) do update set head = excluded.head, facts = excluded.facts, turns = excluded.turns,
    due = excluded.due, revision = excluded.revision, epoch = excluded.epoch, digest = excluded.digest,
    run = excluded.run, stretch = excluded.stretch, context_from = excluded.context_from,
    unanswered = excluded.unanswered, messages = excluded.messages, stretch_messages = excluded.stretch_messages,
    stretch_from = excluded.stretch_from, stretch_covers = excluded.stretch_covers, listed_at = excluded.listed_at,
    version = excluded.version, asks = excluded.asks, failed = excluded.failed, answered = excluded.answered

-- name: set_head_seq
update heads set head = :head where conversation = :conversation

-- name: recount
update heads set
    messages = (select count(*) from events where place between :low and :high and dead = 0 and role <= :roles),
    stretch_messages = (select count(*) from events
                        where place between :low + :stretch_from and :high and dead = 0 and role <= :roles),
    unanswered = coalesce((select min(place) from events
                           where place between :low and :high and waiting = 1 and dead = 0) - :low, 0)
where conversation = :num

-- name: recount_stretches
update stretches set messages = (
    select count(*) from events
    where place between :low + stretches.opened_seq and :low + stretches.ended_seq and dead = 0 and role <= :roles)
where conversation = :num and ended_seq is not null

-- name: touch
update conversations set updated_at = :at where num = :num

-- name: set_title
update conversations set title = :value where num = :num

-- name: set_pinned
update conversations set pinned = :value where num = :num

-- name: set_archived
update conversations set archived = :value where num = :num

-- name: set_model
update conversations set model = :value where num = :num

-- name: set_mode
update conversations set mode = :value where num = :num

-- name: set_project
update conversations set project = :value where num = :num

-- name: put_route
insert into routes (conversation, account, chat, thread, closed, at, seq)
values (:num, :account, :chat, :thread, :closed, :at, :seq)
on conflict (conversation, account, chat, thread) do update set closed = excluded.closed, at = excluded.at,
    seq = excluded.seq

-- name: put_route_cursor
insert into route_cursors (conversation, account, chat, thread, seq, ended)
values (:num, :account, :chat, :thread, :seq, :closed)
on conflict (conversation, account, chat, thread) do update set seq = excluded.seq, ended = excluded.ended

-- name: kill_rows
update events set dead = :by where place > :after and place <= :high and dead = 0

-- name: revive_rows
update events set dead = 0 where place > :after and place <= :high and dead = :by

-- name: count_rows
select count(*) from events where place > :after and place <= :high and dead = :dead and role <= :roles

-- name: take_input
update events set waiting = 0 where place = :place and waiting = 1

-- name: open_stretch
insert into stretches (owner, name, conversation, parent, opened_at, opened_seq, covers_to, messages)
values (:owner, :name, :num, :parent, :at, :seq, :covers_to, 0)
returning num

-- name: end_stretch
update stretches set ended_at = :at, ended_seq = :seq, reason = :reason, messages = :messages
where owner = :owner and name = :name

-- name: open_run
insert into runs (conversation, run, started_seq) values (:num, :run, :seq)
on conflict (conversation, run) do update set started_seq = excluded.started_seq

-- name: close_run
update runs set finished_seq = :seq, outcome = :outcome where conversation = :num and run = :run

-- name: late_output
insert into runs (conversation, run, late) values (:num, :run, 1)
on conflict (conversation, run) do update set late = runs.late + 1

-- name: seal_run
insert into runs (conversation, run, sealed_seq) values (:num, :run, :seq)
on conflict (conversation, run) do update set sealed_seq = excluded.sealed_seq

-- name: put_author
insert into authors (conversation, author) values (:num, :author) on conflict do nothing

-- name: put_received
insert into received (owner, source, id, place, count) values (:owner, :source, :id, :place, :count)

-- name: put_mention
insert into mentions (owner, hash, place) values (:owner, :hash, :place) on conflict do nothing

-- name: erase_body
update events set body_hash = :body_hash, body = null, salt = null where place = :place

-- name: new_cursors
insert into cursors (conversation, reader, follows, seq, behind)
select :num, name, follows, case start when 'now' then :now else 0 end,
       case when (case follows when 'facts' then :facts when 'turns' then :turns else :due end)
                 > (case start when 'now' then :now else 0 end) then 1 else 0 end
from readers

-- append: what a rare event may ask ------------------------------------------------------------------------

-- name: kind_at
select kind from events where place = :place and body is not null

-- name: standing_between
select count(*) from events where place > :low and place <= :high and dead = 0

-- name: killed_by
select count(*) from (
    select 1 from events where place > :low and place <= :high and dead = :by order by place desc limit 1) as k

-- name: waiting
select place from events where place > :low and place <= :high and waiting = 1 and dead = 0 order by place limit :limit

-- name: last_title
select coalesce(max(place), 0) from events
where place between :low and :high and kind = 'conversation.titled' and body is not null

-- name: is_withdrawn
select count(*) from events where kind = 'message.withdrawn'
and place = cast(:low as bigint) + (select dead from events where place = :place)

-- name: edits_since
select kind, body from events where place > :low and place <= :high
and kind in ('conversation.rewound', 'conversation.cleared', 'conversation.restored', 'content.erased',
             'message.withdrawn') order by place

-- reading --------------------------------------------------------------------------------------------------

-- name: conversation_of
select id from conversations where num = :num

-- name: conversation
select num from conversations where owner = :owner and id = :id

-- name: read
select place, kind, at, run, body, digest, 0 from events where place > :low and place <= :high
union all
select place, '', at, null, body, null, code from partials where place > :low and place <= :high
order by 1 limit :limit

-- name: witness_heads
select h.conversation, c.owner, c.id, h.facts, h.digest, h.messages from heads h
join conversations c on c.num = h.conversation order by c.updated_at desc, c.num desc limit :limit

-- name: last_moved
select coalesce(max(updated_at), 0) from conversations

-- What a user reads of a conversation. Its number was learned earlier, and a store that was put back may have given it to
-- another conversation, also of another user: so it is read only if the number is still of this owner and id.

-- name: read_own
select place, kind, at, run, body, digest, 0 from events where place > :low and place <= :high and
exists (select 1 from conversations where num = :num and owner = :owner and id = :id)
union all
select place, '', at, null, body, null, code from partials where place > :low and place <= :high and
exists (select 1 from conversations where num = :num and owner = :owner and id = :id)
order by 1 limit :limit

-- name: head_own
select h.conversation, h.head, h.facts, h.turns, h.due, h.revision, h.epoch, h.digest, h.run, s.name, h.context_from,
       h.unanswered, h.messages
from conversations c join heads h on h.conversation = c.num left join stretches s on s.num = h.stretch
where c.owner = :owner and c.id = :id

-- name: head
select h.head, h.facts, h.turns, h.due, h.revision, h.epoch, h.digest, h.run, s.name, h.context_from, h.unanswered,
       h.messages
from heads h left join stretches s on s.num = h.stretch where h.conversation = :num

-- name: last_rows
select place, first, role from events where place > :low and place < :high and dead = 0
and exists (select 1 from conversations where num = :num and owner = :owner and id = :id)
order by place desc limit :limit

-- name: waiting_facts
select place, kind, at, run, body, digest, 0 from events
where place > :low and place <= :high and waiting = 1 and dead = 0
and exists (select 1 from conversations where num = :num and owner = :owner and id = :id)
order by place

-- name: row_changes
select place, kind, at, run, body, digest, 0 from events where place > :low and place <= :high
and exists (select 1 from conversations where num = :num and owner = :owner and id = :id)
and kind in ('conversation.rewound', 'conversation.cleared', 'conversation.restored', 'content.erased',
             'message.withdrawn', 'run.late', 'run.sealed', 'tool.late', 'run.recovered', 'memory.noted',
             'files.changed') order by place

-- name: next_run
select place, kind, at, run, body, digest, 0 from events where place > :low and place <= :high and kind = 'run.started'
and exists (select 1 from conversations where num = :num and owner = :owner and id = :id)
order by place limit 1

-- name: standing_facts
select role, first, place, kind, at, run, body, digest, 0 from events
where place > :low and place <= :high and dead = 0 order by place

-- name: messages
select place, kind, at, run, body, digest, 0 from events
where place > :low and place <= :high and dead = 0 and role <= :roles
and exists (select 1 from conversations where num = :num and owner = :owner and id = :id)
order by place

-- name: fact
select place, kind, at, run, body, digest, 0 from events where place = :place
and exists (select 1 from conversations where num = :num and owner = :owner and id = :id)

-- name: stretch
select s.name, c.id, s.parent, s.opened_at, s.opened_seq, s.ended_at, s.ended_seq, s.reason, s.covers_to,
       case when s.ended_seq is null then h.stretch_messages else s.messages end
from stretches s join conversations c on c.num = s.conversation join heads h on h.conversation = s.conversation
where s.owner = :owner and s.name = :name

-- name: children
select name from stretches where owner = :owner and parent = :name order by num

-- name: delegated
select d.id from stretches p join stretches c on c.owner = p.owner and c.parent = p.name and c.opened_seq = 1
     join conversations d on d.num = c.conversation and d.source = 'delegate'
where p.conversation = :num order by d.num

-- name: list
select c.id, h.stretch, c.title, c.source, h.messages, c.opened_at, c.updated_at, c.pinned, c.archived, h.run, c.num, null,
       h.revision, h.asks, h.failed, h.answered, c.model, c.mode, c.project, m.seq,
       (select reads_since from personal where owner = :owner)
from (select * from conversations
      where owner = :owner and archived = :archived and source <> 'delegate' and (pinned, updated_at, num) < (:pinned, :updated_at, :num)
      order by pinned desc, updated_at desc, num desc limit :limit) c
     join heads h on h.conversation = c.num
     left join read_marks m on m.conversation = c.num and m.owner = c.owner
order by c.pinned desc, c.updated_at desc, c.num desc

-- name: summary
select c.id, h.stretch, c.title, c.source, h.messages, c.opened_at, c.updated_at, c.pinned, c.archived, h.run, c.num,
       (select q.id from stretches s join stretches p on p.owner = s.owner and p.name = s.parent
             join conversations q on q.num = p.conversation
        where s.conversation = c.num and s.opened_seq = 1 and c.source = 'delegate'),
       h.revision, h.asks, h.failed, h.answered, c.model, c.mode, c.project, m.seq,
       (select reads_since from personal p where p.owner = c.owner)
from conversations c join heads h on h.conversation = c.num
     left join read_marks m on m.conversation = c.num and m.owner = c.owner
where c.num = :num

-- name: choice
select c.source, c.model, c.mode, c.project from conversations c join heads h on h.conversation = c.num
where c.owner = :owner and c.id = :id

-- name: run
select started_seq, finished_seq, outcome, late, sealed_seq, attempts from runs where conversation = :num and run = :run

-- name: late_runs
select 1 from runs where conversation = :num and finished_seq between :first and :last and late > 0 limit 1

-- name: use_attempt
update runs set attempts = attempts + 1 where conversation = :num and run = :run and attempts = :was returning attempts

-- name: spend
insert into spent (conversation, day, model, owner, input, output, cost, unpriced)
values (:num, :day, :model, :owner, :input, :output, :cost, :unpriced)
on conflict (conversation, day, model) do update set input = spent.input + excluded.input,
    output = spent.output + excluded.output, cost = spent.cost + excluded.cost,
    unpriced = spent.unpriced + excluded.unpriced

-- name: spent_in
select coalesce(sum(input), 0), coalesce(sum(output), 0), coalesce(sum(cost), 0), coalesce(sum(unpriced), 0)
from spent where conversation = :num or conversation in (
    select d.num from stretches p join stretches c on c.owner = p.owner and c.parent = p.name and c.opened_seq = 1
         join conversations d on d.num = c.conversation and d.source = 'delegate'
    where p.conversation = :num)

-- name: spent_since
select coalesce(sum(input), 0), coalesce(sum(output), 0), coalesce(sum(cost), 0), coalesce(sum(unpriced), 0)
from spent where owner = :owner and day >= :day

-- The usage of a sub-agent belongs to the conversation of its parent. The usage of a deleted conversation has no id.
-- name: usage
select u.day, u.model, coalesce(q.id, c.id, ''), cast(sum(u.input) as bigint), cast(sum(u.output) as bigint),
       cast(sum(u.cost) as bigint), cast(sum(u.unpriced) as bigint)
from spent u left join conversations c on c.num = u.conversation
     left join stretches s on s.conversation = c.num and s.opened_seq = 1 and c.source = 'delegate'
     left join stretches p on p.owner = s.owner and p.name = s.parent
     left join conversations q on q.num = p.conversation
where u.owner = :owner and u.day >= :since and u.day <= :until
group by u.day, u.model, coalesce(q.id, c.id, '') order by u.day, u.model, 3

-- name: open_runs
select c.owner, c.id, r.run from runs r join conversations c on c.num = r.conversation
where r.started_seq is not null and r.finished_seq is null and (cast(:owner as text) is null or c.owner = :owner)
order by r.conversation limit :limit

-- Asked every few seconds, so by the index of the list: not by all runs that ever were.
-- name: interrupted
select c.owner, c.id, r.run from conversations c cross join heads h cross join runs r
where c.owner = :owner and c.archived in (0, 1) and c.pinned in (0, 1) and c.updated_at >= :since
      and h.conversation = c.num and h.run is null and r.conversation = c.num and r.outcome = 'interrupted'
      and not exists (select 1 from runs n where n.conversation = c.num and n.finished_seq > r.finished_seq)
order by c.num limit :limit

-- name: interrupted_of_all
select c.owner, c.id, r.run from conversations c join heads h on h.conversation = c.num
     join runs r on r.conversation = c.num
where c.updated_at >= :since and h.run is null and r.outcome = 'interrupted'
      and not exists (select 1 from runs n where n.conversation = c.num and n.finished_seq > r.finished_seq)
order by c.num limit :limit

-- name: asking
select c.owner, c.id, null from (select distinct place >> 32 as num from events where waiting = 1 and dead = 0) w
     join conversations c on c.num = w.num
where cast(:owner as text) is null or c.owner = :owner order by c.num limit :limit

-- leases and instances -------------------------------------------------------------------------------------

-- name: lease
select holder, fence, until, seconds, instance, life, token from leases where owner = :owner and name = :name

-- name: put_lease
insert into leases (owner, name, holder, fence, until, seconds, instance, life, token)
values (:owner, :name, :holder, :fence, :until, :seconds, :instance, :life, :token)
on conflict (owner, name) do update set holder = excluded.holder, fence = excluded.fence, until = excluded.until,
    seconds = excluded.seconds, instance = excluded.instance, life = excluded.life, token = excluded.token

-- name: renew_lease
update leases set until = :until, seconds = :seconds
where owner = :owner and name = :name and fence = :fence and token = :token returning fence

-- name: release_lease
update leases set holder = null, token = null, until = 0
where owner = :owner and name = :name and fence = :fence and token = :token returning fence

-- name: release_held
update leases set holder = null, token = null, until = 0
where owner = :owner and name = :name and holder = :holder returning fence

-- name: put_instance
insert into instances (id, host, started_at) values (:id, :host, :at) on conflict (id) do nothing

-- name: end_instance
update instances set ended_at = :at where id = :id and ended_at is null

-- name: sweep_instance
update instances set swept_at = :at, ended_at = coalesce(ended_at, :at) where id = :id and swept_at is null returning id

-- name: drop_instances
delete from instances where swept_at < :before

-- name: drop_instance
delete from instances where id = :id

-- name: drop_leases
delete from leases

-- name: instances
select id, host, started_at, ended_at, swept_at from instances order by started_at, id

-- readers --------------------------------------------------------------------------------------------------

-- name: reader
select follows, start from readers where name = :name

-- name: put_reader
insert into readers (name, follows, start) values (:name, :follows, :start)

-- name: place_reader
insert into cursors (conversation, reader, follows, seq, behind)
select conversation, :name, :follows,
       case when :start = 'now' then head else 0 end,
       case when :start = 'now' then 0
            when (case :follows when 'facts' then facts when 'turns' then turns else due end) > 0 then 1 else 0 end
from heads

-- name: cursor
select seq from cursors where conversation = :num and reader = :reader

-- name: advance
update cursors set seq = :to, tries = 0, error = null, retry_at = null, behind =
    case when (select case r.follows when 'facts' then h.facts when 'turns' then h.turns else h.due end
               from heads h, readers r where h.conversation = :num and r.name = :reader) > :to then 1 else 0 end
where conversation = :num and reader = :reader and seq = :was returning seq

-- name: defer
update cursors set tries = tries + 1, error = :error, retry_at = :retry_at
where conversation = :num and reader = :reader returning tries

-- name: put_letter
insert into letters (conversation, reader, seq, error, at) values (:num, :reader, :seq, :error, :at)
on conflict (conversation, reader, seq) do update set error = excluded.error, at = excluded.at

-- name: drop_letter
delete from letters where conversation = :num and reader = :reader and seq = :seq returning seq

-- name: letters
select c.id, l.seq, l.error, l.at from letters l join conversations c on c.num = l.conversation
where l.reader = :reader and (cast(:owner as text) is null or c.owner = :owner)
order by l.at, l.conversation, l.seq limit :limit

-- name: behind
select c.owner, c.id, k.seq, case r.follows when 'facts' then h.facts when 'turns' then h.turns else h.due end,
       k.tries, k.error, k.conversation
from cursors k join readers r on r.name = k.reader join heads h on h.conversation = k.conversation
     join conversations c on c.num = k.conversation
where k.reader = :reader and k.behind = 1 and k.conversation > :past
      and (k.retry_at is null or k.retry_at <= :now) and (cast(:owner as text) is null or c.owner = :owner)
order by k.conversation limit :limit

-- name: owed_answers
select c.id from heads h join conversations c on c.num = h.conversation
where h.asks <> '' and c.owner = :owner and c.archived = 0 order by c.updated_at desc, c.num

-- name: owed_memory
select k.reader, sum(k.behind), 0 from cursors k where k.behind = 1 and substr(k.reader, 1, 7) = 'memory:' group by k.reader
union all
select l.reader, 0, count(*) from letters l group by l.reader

-- a restored store -----------------------------------------------------------------------------------------

-- name: settle_deliveries
update deliveries set state = 'uncertain', error = 'The store was restored from a backup.'
where state in ('waiting', 'sending', 'placed')

-- name: settle_routes
update route_cursors set seq = (select h.head from heads h where h.conversation = route_cursors.conversation)
where ended = 0

-- Every turn and every end that a memory provider is owed becomes a dead letter. The time is that of the last change.
-- name: bury_owed
insert into letters (conversation, reader, seq, error, at)
select k.conversation, k.reader, e.place & 4294967295, 'The store was restored from a backup.',
       (select max(updated_at) from conversations)
from cursors k join heads h on h.conversation = k.conversation
     join events e on e.place > (k.conversation << 32 | k.seq)
         and e.place <= (k.conversation << 32 | case k.follows when 'turns' then h.turns else h.due end)
         and e.kind = case k.follows when 'turns' then 'run.finished' else 'memory.due' end
where k.behind = 1 and substr(k.reader, 1, 7) = 'memory:' and k.reader not in ('memory:idle', 'memory:review')
on conflict do nothing

-- name: settle_readers
update cursors set behind = 0, tries = 0, error = null, retry_at = null,
    seq = (select case cursors.follows when 'turns' then h.turns else h.due end
           from heads h where h.conversation = cursors.conversation)
where behind = 1 and substr(reader, 1, 7) = 'memory:' and reader not in ('memory:idle', 'memory:review')

-- memory ---------------------------------------------------------------------------------------------------

-- name: completed_since
select finished_seq from runs where conversation = :num and finished_seq > :after and outcome = 'completed'
order by finished_seq

-- name: undone_since
select place, kind, body from events where place > :low and place <= :high
and kind in ('conversation.rewound', 'conversation.cleared', 'conversation.restored') order by place

-- name: stale
select 1 from heads where conversation = :num and version < :version

-- A conversation that this version has not indexed yet may have other authors: it counts as one that has.
-- name: shared
select h.version < :version or exists (select 1 from authors a where a.conversation = h.conversation)
from heads h where h.conversation = :num

-- name: shared_own
select h.version < :version, exists (select 1 from authors a where a.conversation = h.conversation)
from heads h join conversations c on c.num = h.conversation
where h.conversation = :num and c.owner = :owner and c.id = :id

-- It answers, so that it is sent alone: what follows sees what was stored while it waited.
-- name: change_memory
insert into memories (owner, revision) values (:owner, 1)
on conflict (owner) do update set revision = memories.revision + 1 returning revision

-- name: revision
select revision from memories where owner = :owner

-- name: put_fact
insert into facts (owner, id, version, state, text, about, by, at, place, scope, replaces, replaced, key)
values (:owner, :id, :version, :state, :text, :about, :by, :at, :place, :scope, :replaces, :replaced, :key)

-- name: fact_of_key
select id, version from facts where owner = :owner and key = :key

-- name: facts_standing
select count(*) from facts f where f.owner = :owner and f.state = 'standing'
and not exists (select 1 from facts n where n.owner = f.owner and n.id = f.id and n.version = f.version + 1)

-- name: fact_versions
select f.id, f.version, f.state, f.text, f.about, f.by, f.at, c.id, f.place, s.id, f.replaces, f.scope, f.replaced
from facts f left join conversations c on c.num = f.place >> 32 left join conversations s on s.num = f.scope
where f.owner = :owner and f.id = :id order by f.version

-- name: remembered
select f.id, f.version, f.state, f.text, f.about, f.by, f.at, c.id, f.place, s.id, f.replaces, f.scope, f.replaced
from facts f left join conversations c on c.num = f.place >> 32 left join conversations s on s.num = f.scope
where f.owner = :owner and f.state = 'standing'
      and not exists (select 1 from facts n where n.owner = f.owner and n.id = f.id and n.version = f.version + 1)
order by f.at desc, f.id desc

-- What was learned for this conversation alone or in it; the rest of the user's too, if nobody else has written here.
-- name: usable
select f.id, f.version, f.state, f.text, f.about, f.by, f.at, c.id, f.place, s.id, f.replaces, f.scope, f.replaced
from facts f left join conversations c on c.num = f.place >> 32 left join conversations s on s.num = f.scope
where f.owner = :owner and f.state = 'standing'
      and not exists (select 1 from facts n where n.owner = f.owner and n.id = f.id and n.version = f.version + 1)
      and (f.scope = :num or f.scope is null
           and (f.place between :low and :high
                or exists (select 1 from heads h where h.conversation = :num and h.version >= :version)
                   and not exists (select 1 from authors a where a.conversation = :num)))
order by f.at desc, f.id desc

-- A fact goes with all its versions, if any of them was learned there; that one was forgotten there says nothing of it.
-- name: forget_learned
delete from facts where owner = :owner and id in (
    select id from facts where owner = :owner and place between :low and :high and state = 'standing')

-- name: learned_from
select distinct id, text from facts where owner = :owner and id in (
    select id from facts where owner = :owner and place = :place and state = 'standing')

-- name: named_in
select c.id, m.place from mentions m join conversations c on c.num = m.place >> 32
where m.owner = :owner and m.hash = :hash

-- name: unplace_facts
update facts set place = null where owner = :owner and place between :low and :high

-- schedules ------------------------------------------------------------------------------------------------

-- name: put_schedule
insert into schedules (owner, id, conversation, words, times, zone, due, made_at, place)
values (:owner, :id, :num, :words, :times, :zone, :due, :at, :place) on conflict do nothing

-- name: schedules
select s.id, c.id, s.words, s.times, s.zone, s.due, s.made_at from schedules s join conversations c on c.num = s.conversation
where s.owner = :owner and s.due is not null order by s.due, s.id

-- name: schedule
select s.id, c.id, s.words, s.times, s.zone, s.due, s.made_at from schedules s join conversations c on c.num = s.conversation
where s.owner = :owner and s.id = :id

-- name: first_due
select min(due) from schedules where owner = :owner and due is not null

-- name: schedule_owners
select distinct owner from schedules where due is not null

-- name: schedule_fired
select e.at from received r join events e on e.place = r.place
where r.owner = :owner and r.source = :source and r.id = :key

-- name: move_schedule
update schedules set due = :to where owner = :owner and id = :id and due = :was returning id

-- name: end_schedule
update schedules set due = null, words = '' where owner = :owner and id = :id and due is not null returning id

-- name: forget_schedules
delete from schedules where owner = :owner and place between :low and :high

-- devices --------------------------------------------------------------------------------------------------

-- name: put_device
insert into devices (id, owner, name, cookie_hash, key_hash, made_at, seen_at)
values (:id, :owner, :name, :cookie_hash, :key_hash, :at, :at)

-- name: device
select id, owner, name, made_at, seen_at, cookie_hash, key_hash from devices where id = :id

-- name: devices
select id, owner, name, made_at, seen_at from devices
where made_at > :since and (cast(:owner as text) is null or owner = :owner) order by owner, seen_at desc, id

-- name: is_device
select 1 from devices where id = :id and made_at > :since

-- name: device_seen
update devices set seen_at = :at where id = :id

-- name: revoke_device
delete from devices where id = :id and (cast(:owner as text) is null or owner = :owner) returning 1

-- name: revoke_devices
delete from devices where cast(:owner as text) is null or owner = :owner returning 1

-- name: drop_old_devices
delete from devices where made_at <= :since

-- name: drop_more_devices
delete from devices where owner = :owner and id not in
    (select id from devices where owner = :owner order by seen_at desc, id limit :kept)

-- preferences, read marks, projects --------------------------------------------------------------------------

-- It answers, so that it is sent alone: what follows sees what was stored while it waited.
-- name: change_personal
insert into personal (owner, revision) values (:owner, 1)
on conflict (owner) do update set revision = personal.revision + 1 returning revision

-- name: personal
select revision from personal where owner = :owner

-- name: start_reading
insert into personal (owner, revision, reads_since) values (:owner, 0, :at)
on conflict (owner) do update set reads_since = excluded.reads_since where personal.reads_since is null

-- name: preferences
select name, value from preferences where owner = :owner order by name

-- name: put_preference
insert into preferences (owner, name, value) values (:owner, :name, :value)
on conflict (owner, name) do update set value = excluded.value

-- name: drop_preference
delete from preferences where owner = :owner and name = :name

-- name: read_mark
select seq from read_marks where conversation = :num and owner = :owner

-- name: put_read_mark
insert into read_marks (conversation, owner, seq) values (:num, :owner, :seq)
on conflict (conversation, owner) do update set seq = excluded.seq where read_marks.seq < excluded.seq
returning seq

-- name: projects
select id, name, folder, instructions, model, created_at from projects where owner = :owner order by created_at, id

-- name: project
select id, name, folder, instructions, model, created_at from projects where owner = :owner and id = :id

-- name: put_project
insert into projects (owner, id, name, folder, instructions, model, created_at)
values (:owner, :id, :name, :folder, :instructions, :model, :created_at)
on conflict (owner, id) do update set name = excluded.name, folder = excluded.folder,
    instructions = excluded.instructions, model = excluded.model

-- name: drop_project
delete from projects where owner = :owner and id = :id returning id

-- chat apps ------------------------------------------------------------------------------------------------

-- name: owner_of
select owner, id from conversations where num = :num

-- name: current_route
select c.id, r.closed, s.name from routes r join conversations c on c.num = r.conversation
     join heads h on h.conversation = c.num left join stretches s on s.num = h.stretch
where r.account = :account and r.chat = :chat and r.thread = :thread and c.owner = :owner
order by r.at desc, r.conversation desc limit 1

-- name: routes_of
select r.account, r.chat, r.thread, k.ended, coalesce(t.title, '')
from conversations c join routes r on r.conversation = c.num
     join route_cursors k on k.conversation = c.num and k.account = r.account and k.chat = r.chat and k.thread = r.thread
     left join chats t on t.account = r.account and t.chat = r.chat and t.thread = r.thread
where c.owner = :owner and c.id = :id and r.closed = 0 order by r.at

-- name: route_news
select c.owner, c.id, k.conversation, k.chat, k.thread, k.seq, h.facts, h.run, coalesce(t.is_group, 0),
       exists (select 1 from routes r join routes n on n.account = r.account and n.chat = r.chat and n.thread = r.thread
                    join conversations o on o.num = n.conversation and o.owner = c.owner
               where r.conversation = k.conversation and r.account = k.account and r.chat = k.chat
                     and r.thread = k.thread and (n.at > r.at or (n.at = r.at and n.conversation > r.conversation)))
from route_cursors k join heads h on h.conversation = k.conversation join conversations c on c.num = k.conversation
     left join chats t on t.account = k.account and t.chat = k.chat and t.thread = k.thread
where k.account = :account and k.ended = 0 and h.facts > k.seq order by k.conversation limit :limit

-- name: route
select c.owner, c.id, k.conversation, k.chat, k.thread, k.seq, h.facts, h.run, coalesce(t.is_group, 0), 0
from route_cursors k join heads h on h.conversation = k.conversation join conversations c on c.num = k.conversation
     left join chats t on t.account = k.account and t.chat = k.chat and t.thread = k.thread
where k.conversation = :num and k.account = :account and k.chat = :chat and k.thread = :thread

-- name: move_route
update route_cursors set seq = :seq where conversation = :num and account = :account and chat = :chat
    and thread = :thread and seq < :seq

-- name: end_route
update route_cursors set ended = 1 where conversation = :num and account = :account and chat = :chat
    and thread = :thread and seq = :seq

-- name: route_facts
select place, kind, at, run, body, digest, 0 from events where place > :low and place <= :high
and kind in ('message.user', 'message.assistant', 'message.partial', 'approval.asked', 'approval.answered',
             'tool.finished', 'run.started', 'run.finished') and coalesce(dead, 0) = 0 order by place limit :limit

-- name: put_chat
insert into chats (account, chat, thread, title, is_group, seen_at)
values (:account, :chat, :thread, :title, :is_group, :at)
on conflict (account, chat, thread) do update set title = excluded.title, is_group = excluded.is_group,
    seen_at = excluded.seen_at

-- name: chat
select title, is_group from chats where account = :account and chat = :chat and thread = :thread

-- name: chats_of
select distinct t.account, t.chat, t.thread, t.title, t.is_group, t.seen_at
from chats t join routes r on r.account = t.account and r.chat = t.chat and r.thread = t.thread
     join conversations c on c.num = r.conversation
where c.owner = :owner order by t.seen_at desc limit :limit

-- name: channel_value
select value from channel_values where account = :account and name = :name

-- name: channel_values
select name, value from channel_values where account = :account order by name

-- name: put_channel_value
insert into channel_values (account, name, value) values (:account, :name, :value)
on conflict (account, name) do update set value = excluded.value

-- name: drop_channel_value
delete from channel_values where account = :account and name = :name

-- name: put_delivery
insert into deliveries (account, chat, thread, unit, piece, conversation, seq, state, key, message, text, repeated, tries,
                        retry_at, error, at)
values (:account, :chat, :thread, :unit, :piece, :conversation, :seq, :state, :key, :message, :text, :repeated, :tries,
        :retry_at, :error, :at)
on conflict (account, chat, thread, unit, piece) do nothing

-- name: change_delivery
update deliveries set state = :state, key = :key, message = :message, text = :text, repeated = :repeated, tries = :tries,
    retry_at = :retry_at, error = :error, seq = :seq
where account = :account and chat = :chat and thread = :thread and unit = :unit and piece = :piece

-- name: rename_deliveries
update deliveries set unit = :unit where account = :account and chat = :chat and thread = :thread and unit = :was

-- name: deliveries_of_unit
select account, chat, thread, unit, piece, conversation, seq, state, key, message, text, repeated, tries, retry_at, error, at
from deliveries where account = :account and chat = :chat and thread = :thread and unit = :unit order by piece

-- name: unfinished_deliveries
select account, chat, thread, unit, piece, conversation, seq, state, key, message, text, repeated, tries, retry_at, error, at
from deliveries where account = :account and state in ('waiting', 'sending', 'placed') order by at, unit, piece limit :limit

-- name: open_deliveries
select account, chat, thread, unit, piece, conversation, seq, state, key, message, text, repeated, tries, retry_at, error, at
from deliveries where account = :account and chat = :chat and thread = :thread and conversation = :num
    and state in ('waiting', 'sending', 'placed') order by at, unit, piece

-- name: delivery_of_message
select account, chat, thread, unit, piece, conversation, seq, state, key, message, text, repeated, tries, retry_at, error, at
from deliveries where account = :account and chat = :chat and message = :message order by at desc limit 1

-- name: delivery_of_question
select account, chat, thread, unit, piece, conversation, seq, state, key, message, text, repeated, tries, retry_at, error, at
from deliveries where account = :account and key = :key and substr(unit, 1, 2) = 'q:'

-- name: failed_deliveries
select account, chat, thread, unit, piece, conversation, seq, state, key, message, text, repeated, tries, retry_at, error, at
from deliveries where state in ('uncertain', 'dead') order by at desc limit :limit

-- name: count_deliveries
select state, count(*), coalesce(sum(repeated), 0) from deliveries where account = :account group by state

-- name: oldest_unsent
select min(at) from deliveries where account = :account and state in ('waiting', 'sending', 'placed')

-- name: drop_old_deliveries
delete from deliveries where state in ('delivered', 'discarded') and at < :before

-- name: put_person
insert into channel_people (account, person, owner, name, at) values (:account, :person, :owner, :name, :at)
on conflict (account, person) do update set owner = excluded.owner, name = excluded.name

-- name: person
select owner from channel_people where account = :account and person = :person

-- name: people
select account, person, owner, name, at from channel_people order by account, at, person

-- name: drop_person
delete from channel_people where account = :account and person = :person returning owner

-- name: put_pairing
insert into pairings (account, person, code, name, chat, at) values (:account, :person, :code, :name, :chat, :at)
on conflict (account, person) do update set code = excluded.code, name = excluded.name, chat = excluded.chat, at = excluded.at

-- name: pairing
select code, at from pairings where account = :account and person = :person

-- name: pairings
select account, person, code, name, chat, at from pairings where at > :since order by at desc

-- name: drop_pairing
delete from pairings where account = :account and person = :person

-- name: drop_old_pairings
delete from pairings where at <= :since

-- name: drop_old_observed
delete from observed where at < :before

-- name: put_observed
insert into observed (account, chat, thread, message, name, text, at)
values (:account, :chat, :thread, :message, :name, :text, :at) on conflict do nothing

-- name: observed
select message, name, text, at from observed where account = :account and chat = :chat and thread = :thread
order by at, message

-- name: drop_observed
delete from observed where account = :account and chat = :chat and thread = :thread and at < :before

-- name: change_observed
update observed set text = :text where account = :account and chat = :chat and message = :message

-- name: drop_observed_message
delete from observed where account = :account and chat = :chat and message = :message

-- name: received_message
select c.owner, c.id, r.place from received r join conversations c on c.num = r.place >> 32
where r.source = :source and r.id = :id

-- name: put_late_file
insert into late_files (account, id, conversation, file, tries, retry_at, at)
values (:account, :id, :num, :file, 0, :at, :at) on conflict do nothing

-- name: late_files
select f.account, f.id, c.owner, c.id, f.file, f.tries from late_files f join conversations c on c.num = f.conversation
where f.account = :account and f.retry_at <= :now order by f.at limit :limit

-- name: delay_late_file
update late_files set tries = tries + 1, retry_at = :retry_at where account = :account and id = :id

-- name: drop_late_file
delete from late_files where account = :account and id = :id

-- blobs ----------------------------------------------------------------------------------------------------

-- name: blob
select size from blobs where owner = :owner and hash = :hash

-- name: blob_bytes
select bytes from blob_chunks where owner = :owner and hash = :hash order by n

-- name: put_blob
insert into blobs (owner, hash, size, at) values (:owner, :hash, :size, :at) on conflict do nothing returning size

-- name: keep_blob
update blobs set at = :at where owner = :owner and hash = :hash and at < :before

-- name: unnamed_blobs
select owner, hash from blobs b where at < :before
    and not exists (select 1 from mentions m where m.owner = b.owner and m.hash = b.hash) limit :limit

-- name: collect_blob
delete from blobs where owner = :owner and hash = :hash and at < :before
    and not exists (select 1 from mentions m where m.owner = blobs.owner and m.hash = blobs.hash) returning hash

-- name: named_here
select place from mentions where owner = :owner and hash = :hash and place between :low and :high order by place

-- name: put_chunk
insert into blob_chunks (owner, hash, n, bytes) values (:owner, :hash, :n, :bytes)

-- name: mentioned
select 1 from mentions where owner = :owner and hash = :hash limit 1

-- name: drop_blob
delete from blobs where owner = :owner and hash = :hash

-- name: drop_chunks
delete from blob_chunks where owner = :owner and hash = :hash

-- erasing, deleting, pruning -------------------------------------------------------------------------------

-- name: body
select kind, body, salt, first from events where place = :place

-- name: derived
select place, kind, run, body from events where place between :low and :high and body is not null
and kind in ('approval.answered', 'approval.asked', 'context.summarised', 'conversation.titled', 'files.changed')

-- name: forks
select c.id, e.body from conversations c join events e on e.place = c.num * 4294967296 + 1 where c.origin = :num

-- name: mentions_at
select hash from mentions where place between :low and :high

-- name: put_tombstone
insert into tombstones (owner, id, num, head, digest, at)
select c.owner, c.id, c.num, h.head, h.digest, :at from conversations c join heads h on h.conversation = c.num
where c.num = :num

-- name: delete_events
delete from events where place between :low and :high

-- name: delete_partials
delete from partials where place between :low and :high

-- name: delete_mentions
delete from mentions where place between :low and :high

-- name: delete_runs
delete from runs where conversation = :num

-- name: delete_stretches
delete from stretches where conversation = :num

-- name: delete_cursors
delete from cursors where conversation = :num

-- name: delete_authors
delete from authors where conversation = :num

-- name: delete_letters
delete from letters where conversation = :num

-- name: delete_schedules
delete from schedules where conversation = :num

-- name: delete_routes
delete from routes where conversation = :num

-- name: delete_route_cursors
delete from route_cursors where conversation = :num

-- name: delete_deliveries
delete from deliveries where conversation = :num

-- name: delete_late_files
delete from late_files where conversation = :num

-- name: delete_read_marks
delete from read_marks where conversation = :num

-- name: delete_head
delete from heads where conversation = :num

-- name: delete_conversation
delete from conversations where num = :num

-- name: orphan_forks
update conversations set origin = null where origin = :num

-- name: partials_of
select place, code, body from partials where place between :low and :high order by place

-- name: replaced
select max(place) from events where place > :low and place <= :high and first = :first and role in (2, 5)

-- name: results_after
select place, body from events where place > :low and place <= :high and role = 8 order by place

-- name: drop_partial
delete from partials where place = :place

-- rebuilding an index --------------------------------------------------------------------------------------

-- name: set_row
update events set first = :first, role = :role, waiting = :waiting, dead = :dead where place = :place

-- name: put_stretch
insert into stretches (owner, name, conversation, parent, opened_at, opened_seq, covers_to, ended_at, ended_seq,
                       reason, messages)
values (:owner, :name, :num, :parent, :opened_at, :opened_seq, :covers_to, :ended_at, :ended_seq, :reason, :messages)
returning num

-- name: forget_runs
update runs set started_seq = null, finished_seq = null, outcome = null, late = 0, sealed_seq = null
where conversation = :num

-- name: put_run
insert into runs (conversation, run, started_seq, finished_seq, outcome, late, sealed_seq)
values (:num, :run, :started_seq, :finished_seq, :outcome, :late, :sealed_seq)
on conflict (conversation, run) do update set started_seq = excluded.started_seq,
    finished_seq = excluded.finished_seq, outcome = excluded.outcome, late = excluded.late,
    sealed_seq = excluded.sealed_seq

-- name: drop_empty_runs
delete from runs where conversation = :num and started_seq is null and sealed_seq is null and late = 0
and attempts = 0 and first_seen is null

-- name: set_list
update conversations set source = :source, title = :title, pinned = :pinned, archived = :archived,
    model = :model, mode = :mode, project = :project, opened_at = :opened_at, updated_at = :updated_at
where num = :num

-- name: follow_again
update cursors set behind = case when case follows when 'facts' then :facts when 'turns' then :turns else :due end > seq
    then 1 else 0 end
where conversation = :num

-- proving --------------------------------------------------------------------------------------------------

-- name: prove_size
select count(*), cast(coalesce(sum(head), 0) as bigint) from heads

-- name: prove_conversations
select num, owner, id from conversations where num > :after order by num limit :limit

-- name: prove_head
select h.head, h.facts, h.turns, h.due, h.revision, h.epoch, h.digest, h.run, h.stretch, h.context_from, h.unanswered,
       h.messages, h.stretch_messages, h.stretch_from, h.stretch_covers, h.listed_at, h.version, h.asks, h.failed,
       h.answered, c.source, c.origin, c.title, c.pinned, c.archived, c.model, c.mode, c.project, c.opened_at, c.updated_at
from conversations c left join heads h on h.conversation = c.num where c.num = :num

-- name: last_fact
select max(place) from events where place > :low and place <= :high

-- name: last_partial
select max(place) from partials where place > :low and place <= :high

-- name: prove_facts
select place, kind, at, run, first, waiting, append_id, salt, body_hash, digest, body from events
where place > :low and place <= :high order by place limit :limit

-- name: prove_partials
select place, code, append_id, body from partials where place > :low and place <= :high order by place limit :limit

-- name: prove_rows
select place, first, role, waiting, dead from events where place > :low and place <= :high
and (first is not null or role is not null or waiting is not null or dead is not null) order by place limit :limit

-- name: prove_stretches
select num, name, owner, parent, opened_at, opened_seq, covers_to, ended_at, ended_seq, reason, messages
from stretches where conversation = :num order by opened_seq, num

-- name: prove_runs
select run, started_seq, finished_seq, outcome, late, sealed_seq, attempts, first_seen from runs
where conversation = :num and run > :after order by run limit :limit

-- name: prove_mentions
select m.place, m.hash, m.owner, b.size from mentions m left join blobs b on b.owner = m.owner and b.hash = m.hash
where m.place > :low and m.place <= :high order by m.place, m.hash

-- name: prove_cursors
select r.name, r.follows, k.follows, k.seq, k.behind, h.head,
       case r.follows when 'facts' then h.facts when 'turns' then h.turns else h.due end
from heads h cross join readers r left join cursors k on k.conversation = h.conversation and k.reader = r.name
where h.conversation = :num
union all
select k.reader, null, k.follows, k.seq, k.behind, 0, 0 from cursors k
where k.conversation = :num and not exists (select 1 from readers r where r.name = k.reader)

-- name: prove_routes
select account, chat, thread, closed, at, seq from routes where conversation = :num order by account, chat, thread

-- name: prove_authors
select author from authors where conversation = :num order by author

-- name: prove_letters
select l.reader, l.seq, k.seq from letters l
left join cursors k on k.conversation = l.conversation and k.reader = l.reader
where l.conversation = :num order by l.reader, l.seq

-- name: prove_memory
select f.owner, f.id, f.version, f.state, p.version, f.place, c.owner, c.id, e.body is not null, f.scope, s.owner, m.revision
from facts f left join facts p on p.owner = f.owner and p.id = f.id and p.version = f.version - 1
     left join conversations c on c.num = f.place >> 32 left join events e on e.place = f.place
     left join conversations s on s.num = f.scope left join memories m on m.owner = f.owner
where (f.owner, f.id, f.version) > (:owner, :id, :version) order by f.owner, f.id, f.version limit :limit

-- name: prove_schedules
select s.owner, s.id, c.id from schedules s join conversations c on c.num = s.conversation
where (s.owner, s.id) > (:owner, :id) and (c.owner <> s.owner or s.place >> 32 <> s.conversation)
order by s.owner, s.id limit :limit

-- name: prove_read_marks
select m.conversation, m.owner, c.id, c.owner, m.seq, h.head from read_marks m
join conversations c on c.num = m.conversation join heads h on h.conversation = m.conversation
where (m.conversation, m.owner) > (:conversation, :owner) and (c.owner <> m.owner or m.seq > h.head or m.seq < 1)
order by m.conversation, m.owner limit :limit

-- name: prove_preferences
select owner, name, value from preferences where (owner, name) > (:owner, :name) order by owner, name limit :limit

-- name: prove_devices
select id from devices where id > :id order by id limit :limit

-- name: prove_no_orphans
select what, min(num) from (
    select 'events' as what, place >> 32 as num from events where place >= :low and place < :high
    union all select 'partials', place >> 32 from partials where place >= :low and place < :high
    union all select 'mentions', place >> 32 from mentions where place >= :low and place < :high
    union all select 'heads', conversation from heads where conversation > :after and conversation < :before
    union all select 'stretches', conversation from stretches where conversation > :after and conversation < :before
    union all select 'runs', conversation from runs where conversation > :after and conversation < :before
    union all select 'cursors', conversation from cursors where conversation > :after and conversation < :before
    union all select 'authors', conversation from authors where conversation > :after and conversation < :before
    union all select 'routes', conversation from routes where conversation > :after and conversation < :before
    union all select 'route_cursors', conversation from route_cursors where conversation > :after and conversation < :before
    union all select 'deliveries', conversation from deliveries where conversation > :after and conversation < :before
    union all select 'late_files', conversation from late_files where conversation > :after and conversation < :before
    union all select 'letters', conversation from letters where conversation > :after and conversation < :before
    union all select 'schedules', conversation from schedules where conversation > :after and conversation < :before
    union all select 'read_marks', conversation from read_marks where conversation > :after and conversation < :before) r
where not exists (select 1 from conversations c where c.num = r.num) group by what order by what

-- name: prove_tombstones
select t.owner, t.id, t.num, t.digest, c.num from tombstones t
left join conversations c on c.num = t.num or (c.owner = t.owner and c.id = t.id)
where (t.owner, t.id) > (:owner, :id) order by t.owner, t.id limit :limit

-- name: tombstone_of
select owner, id from tombstones where num = :num

-- name: prove_received
select r.owner, r.source, r.id, r.place, r.count, c.owner, c.id, e.place, p.place
from received r left join conversations c on c.num = r.place >> 32
     left join events e on e.place = r.place left join partials p on p.place = r.place
where (r.owner, r.source, r.id) > (:owner, :source, :id) order by r.owner, r.source, r.id limit :limit

-- name: prove_replaced
select 1 from events where place > :place and place <= :high and first < :seq and role in (2, 5) limit 1

-- name: prove_leases
select owner, name, holder, fence, seconds, token from leases
where (owner, name) > (:owner, :name) order by owner, name limit :limit

-- name: prove_blobs
select owner, hash, size from blobs where (owner, hash) > (:owner, :hash) order by owner, hash limit :limit

-- name: prove_chunk
select n, bytes from blob_chunks where owner = :owner and hash = :hash and n > :after order by n limit 1

-- name: prove_chunks
select distinct k.owner, k.hash from blob_chunks k
where not exists (select 1 from blobs b where b.owner = k.owner and b.hash = k.hash) limit :limit

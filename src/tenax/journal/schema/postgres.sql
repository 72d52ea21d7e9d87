-- What PostgreSQL says in its own way.
--
-- `NAME_changing` stands for NAME inside a write transaction: there, what is read must stay so until the commit.
-- `NAME_many` stands for NAME run with many rows at once, one array a column; with one row too, where there is no NAME.

-- the store ------------------------------------------------------------------------------------------------

-- name: tables
select to_regclass('store') is not null, current_schema()

-- name: lock_migrations
select pg_advisory_lock(cast(:key as bigint))

-- name: unlock_migrations
select pg_advisory_unlock(cast(:key as bigint))

-- name: lock_writers
lock table heads in access exclusive mode

-- name: lock_all
lock table heads in share row exclusive mode

-- name: life
select s.incarnation, s.life, p.name,
       d.oid || '.' || cast(extract(epoch from pg_postmaster_start_time()) * 1000000 as bigint) || '.' || coalesce(p.name, '')
from store s cross join pg_database d left join pulse p on true where d.datname = current_database()

-- name: standbys
select current_setting('synchronous_standby_names'), (select count(*) from pg_stat_replication)

-- name: lock_store
select 1 from store for update

-- name: put_pulse
insert into pulse (one, name, since) values (1, :name, clock_timestamp())

-- name: now
select cast(extract(epoch from clock_timestamp()) as double precision)

-- append: what a group has to know -------------------------------------------------------------------------

-- name: conversation_nums
select c.owner, c.id, c.num
from unnest(cast(:owners as text[]), cast(:ids as text[])) k(owner, id)
     join conversations c on c.owner = k.owner and c.id = k.id

-- name: heads
select (select schema from store), c.owner, c.id, h.conversation, h.head, h.facts, h.turns, h.due, h.revision, h.epoch,
       h.digest, h.run, h.stretch, h.context_from, h.unanswered, h.messages, h.stretch_messages, h.stretch_from,
       h.stretch_covers, h.listed_at, h.version, h.asks, h.failed, h.answered
from heads h join conversations c on c.num = h.conversation where h.conversation = any(cast(:nums as bigint[])) order by h.conversation for update of h

-- name: digests
select place, digest from events where place = any(cast(:places as bigint[]))

-- name: stretch_names
select num, name from stretches where num = any(cast(:nums as bigint[]))

-- name: fence_changing
select fence, token from leases where owner = :owner and name = :name for share

-- append: what it writes -----------------------------------------------------------------------------------

-- name: put_event_many
insert into events (place, kind, at, run, first, role, waiting, dead, append_id, salt, digest, body)
select * from unnest(cast(:place as bigint[]), cast(:kind as text[]), cast(:at as bigint[]), cast(:run as text[]),
    cast(:first as bigint[]), cast(:role as bigint[]), cast(:waiting as bigint[]), cast(:dead as bigint[]),
    cast(:append_id as bytea[]), cast(:salt as bytea[]), cast(:digest as bytea[]), cast(:body as bytea[]))

-- name: put_partial_many
insert into partials (place, code, at, append_id, body)
select * from unnest(cast(:place as bigint[]), cast(:code as bigint[]), cast(:at as bigint[]),
    cast(:append_id as bytea[]), cast(:body as bytea[]))

-- name: put_head_many
insert into heads (conversation, head, facts, turns, due, revision, epoch, digest, run, stretch, context_from,
                   unanswered, messages, stretch_messages, stretch_from, stretch_covers, listed_at, version, asks, failed,
                   answered)
select * from unnest(cast(:conversation as bigint[]), cast(:head as bigint[]), cast(:facts as bigint[]),
    cast(:turns as bigint[]), cast(:due as bigint[]), cast(:revision as bigint[]), cast(:epoch as bigint[]),
    cast(:digest as bytea[]), cast(:run as text[]), cast(:stretch as bigint[]), cast(:context_from as bigint[]),
    cast(:unanswered as bigint[]), cast(:messages as bigint[]), cast(:stretch_messages as bigint[]),
    cast(:stretch_from as bigint[]), cast(:stretch_covers as bigint[]), cast(:listed_at as bigint[]),
    cast(:version as bigint[]), cast(:asks as text[]), cast(:failed as bigint[]), cast(:answered as bigint[]))
on conflict (conversation) do update set head = excluded.head, facts = excluded.facts, turns = excluded.turns,
    due = excluded.due, revision = excluded.revision, epoch = excluded.epoch, digest = excluded.digest,
    run = excluded.run, stretch = excluded.stretch, context_from = excluded.context_from,
    unanswered = excluded.unanswered, messages = excluded.messages, stretch_messages = excluded.stretch_messages,
    stretch_from = excluded.stretch_from, stretch_covers = excluded.stretch_covers, listed_at = excluded.listed_at,
    version = excluded.version, asks = excluded.asks, failed = excluded.failed, answered = excluded.answered

-- name: set_head_seq_many
update heads set head = k.head from unnest(cast(:head as bigint[]), cast(:conversation as bigint[])) k(head, num)
where conversation = k.num

-- name: take_input_many
update events set waiting = 0 where place = any(cast(:place as bigint[])) and waiting = 1

-- name: drop_partial_many
delete from partials where place = any(cast(:place as bigint[]))

-- name: wake_readers
update cursors set behind = 1 where conversation = any(cast(:nums as bigint[])) and follows = :follows and behind = 0

-- reading --------------------------------------------------------------------------------------------------

-- Each side has its own limit: PostgreSQL would otherwise read and sort all of a conversation for every page of it.
-- name: read
select * from (
    (select place, kind, at, run, body, digest, 0 from events
     where place > :low and place <= :high order by place limit :limit)
    union all
    (select place, '', at, null, body, null, code from partials
     where place > :low and place <= :high order by place limit :limit)) e
order by place limit :limit

-- So that the server plans once and not for every page, which takes longer than the page: its size is written out (for any
-- size it would plan for a tenth of all conversations), and where it begins is kept from the planner, who guesses wrong.
-- name: list
select c.id, h.stretch, c.title, c.source, h.messages, c.opened_at, c.updated_at, c.pinned, c.archived, h.run, c.num, null,
       h.revision, h.asks, h.failed, h.answered, c.model, c.mode, c.project, m.seq,
       (select reads_since from personal where owner = :owner)
from (select * from conversations
      where owner = :owner and archived = :archived and source <> 'delegate'
            and (pinned, updated_at, num) < ((select :pinned), (select :updated_at), (select :num))
      order by pinned desc, updated_at desc, num desc limit {limit}) c
     join heads h on h.conversation = c.num
     left join read_marks m on m.conversation = c.num and m.owner = c.owner
order by c.pinned desc, c.updated_at desc, c.num desc

-- leases and instances -------------------------------------------------------------------------------------

-- name: lease_changing
select holder, fence, until, seconds, instance, life, token from leases where owner = :owner and name = :name for update

-- Whoever sees a lease for the first time has no row to lock. If another made it meanwhile, this insert meets it, and
-- the claim is tried again.
-- name: put_lease
with moved as (
    update leases set holder = :holder, fence = :fence, until = :until, seconds = :seconds, instance = :instance,
        life = :life, token = :token
    where owner = :owner and name = :name and fence = cast(:fence as bigint) - 1 returning 1)
insert into leases (owner, name, holder, fence, until, seconds, instance, life, token)
select :owner, :name, :holder, :fence, :until, :seconds, :instance, :life, :token
where not exists (select 1 from moved)

-- name: hold_instance
select pg_advisory_lock_shared(cast(:high as int), cast(:low as int))

-- name: put_instance
insert into instances (id, host, started_at, up) values (:id, :host, :at, :up)
on conflict (id) do update set up = excluded.up

-- An instance is alive while it holds its lock. After a restart of the server each needs a moment to take it again: so
-- long, one that held its lock before the restart and has not been back since counts as alive.
-- name: alive
select exists (
        select 1 from pg_locks l join pg_database d on d.oid = l.database
        where l.locktype = 'advisory' and l.objsubid = 2 and l.granted and d.datname = current_database()
              and l.classid = :high and l.objid = :low)
    or exists (
        select 1 from instances i cross join pulse p
        where i.id = :id and i.ended_at is null and i.up <> :up
              and clock_timestamp() < greatest(pg_postmaster_start_time(), p.since) + interval '15 seconds')

-- readers --------------------------------------------------------------------------------------------------

-- The head is locked first: an append that has yet to commit would otherwise leave `behind` as it found it, and this
-- would then say that there is nothing more to read.
-- name: advance
with h as (select facts, turns, due from heads where conversation = :num for share)
update cursors k set seq = :to, tries = 0, error = null, retry_at = null,
    behind = case when (case k.follows when 'facts' then h.facts when 'turns' then h.turns else h.due end) > :to
                  then 1 else 0 end
from h where k.conversation = :num and k.reader = :reader and k.seq = :was returning k.seq

-- memory ---------------------------------------------------------------------------------------------------

-- name: prompts_with
select c.id, m.place from mentions m join events e on e.place = m.place and e.kind = 'context.opened'
join blob_chunks k on k.owner = m.owner and k.hash = m.hash and position(:piece in k.bytes) > 0
join conversations c on c.num = m.place >> 32 where m.owner = :owner

-- erasing --------------------------------------------------------------------------------------------------

-- name: vacuum
vacuum events, partials, blob_chunks, conversations, cursors, deliveries, facts, letters, observed, preferences, projects, schedules, search_docs

-- rebuilding and proving -----------------------------------------------------------------------------------

-- name: set_row_many
update events set first = k.first, role = k.role, waiting = k.waiting, dead = k.dead
from unnest(cast(:first as bigint[]), cast(:role as bigint[]), cast(:waiting as bigint[]), cast(:dead as bigint[]),
    cast(:place as bigint[])) k(first, role, waiting, dead, place)
where events.place = k.place

-- name: engine_version
select current_setting('server_version')

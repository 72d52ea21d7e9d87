"""The rows of the chat apps: routes, deliveries, people, and the position of every account on its platform.

The journal holds what was said. These rows hold what concerns the platforms: up to where an account has received and
delivered, who may talk, and what became of every message that goes out. A change under a lease fails with `LeaseLost`
after another process has taken the account over.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from tenax.channels.base import Chat
from tenax.errors import InvalidInput
from tenax.journal import LOCAL_USER
from tenax.journal.aio import AsyncFacade, AsyncJournal, awaited
from tenax.journal.base import Lease, Recorded
from tenax.journal.journal import Journal
from tenax.journal.plan import check_id
from tenax.journal.row_key import ALL_SEQS, bounds
from tenax.journal.store import Tx, check_lease, recorded
from tenax.text import make_storable, to_one_line

__all__ = [
    "FAILED_STATES",
    "OPEN_STATES",
    "AsyncChannelRows",
    "ChannelRows",
    "ChatPerson",
    "DeliveryState",
    "KnownChat",
    "LateFile",
    "Observed",
    "Outgoing",
    "Pairing",
    "Route",
    "RouteNews",
]

DAY_US: Final = 86_400_000_000
_NEWS_MAX: Final = 500
_FACTS_MAX: Final = 200
_SHOWN_MAX: Final = 200
_ERROR_CHARS_MAX: Final = 500
_NAME_CHARS_MAX: Final = 100
_OBSERVED_MAX: Final = 50
_OBSERVED_CHARS_MAX: Final = 1000
_PAIRINGS_MAX: Final = 100
_CODE_LETTERS: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_CODE_CHARS: Final = 8
_LATE_FILE_SECONDS_MAX: Final = 3600.0
_KEPT_DAYS: Final = 90

DeliveryState = Literal[
    "waiting", "sending", "placed", "delivered", "uncertain", "dead", "discarded"
]
"""`sending`: the intent is stored, and the outcome is not known. `placed`: the message is there, with its first words.
`uncertain`: the message may be there, and no second try succeeded. `dead`: the platform refused the message.
`discarded`: a person decided against another try."""
OPEN_STATES: Final = frozenset({"waiting", "sending", "placed"})
FAILED_STATES: Final = frozenset({"uncertain", "dead"})


class Outgoing(msgspec.Struct, frozen=True):
    """A message that goes out, as the row of the table `deliveries`."""

    account: str
    chat: str
    thread: str
    unit: str
    """What is delivered: an answer, a question, a notice."""
    piece: int
    """The number of the message within the unit, from 0."""
    conversation: int | None
    """The number of the conversation in the store; `None` for a notice without one."""
    seq: int
    state: DeliveryState
    key: str
    """Identifies the message towards the platform."""
    message: str = ""
    """The platform's id of the message, once known."""
    text: str = ""
    """The text of a notice. The text of everything else comes from the journal."""
    repeated: int = 0
    """Whether the message may have come twice. A repeated message carries a mark."""
    tries: int = 0
    retry_at: int = 0
    error: str = ""
    at: int = 0


class Route(msgspec.Struct, frozen=True):
    """The connection of a conversation with a chat."""

    account: str
    chat: str
    thread: str
    ended: bool
    title: str


class RouteNews(msgspec.Struct, frozen=True):
    """A route with events that are not delivered yet."""

    user: str
    conversation: str
    num: int
    chat: str
    thread: str
    seq: int
    """Up to where events are delivered."""
    facts: int
    """The last event."""
    run: str | None
    is_group: bool
    superseded: bool
    """Whether the chat belongs to a newer conversation of the user."""


class KnownChat(msgspec.Struct, frozen=True):
    """A chat in which something was received."""

    account: str
    chat: str
    thread: str
    title: str
    is_group: bool
    seen_at: int


class ChatPerson(msgspec.Struct, frozen=True):
    """A person who may talk to an account, and the user of Tenax."""

    account: str
    person: str
    user: str
    name: str
    at: int


class Pairing(msgspec.Struct, frozen=True):
    """A stranger with a code."""

    account: str
    person: str
    code: str
    name: str
    chat: str
    at: int


class Observed(msgspec.Struct, frozen=True):
    """A message in a group that was not for the bot."""

    message: str
    name: str
    text: str
    at: int


class LateFile(msgspec.Struct, frozen=True):
    """A file of a stored message that still has to be fetched."""

    account: str
    id: str
    user: str
    conversation: str
    file: str
    tries: int


class ChannelRows:
    """The rows of all accounts. Every method is thread-safe."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal.of(LOCAL_USER)
        self._store = journal.store
        self._clock = journal.clock

    # -- accounts ----------------------------------------------------------------------

    def value(self, account: str, name: str) -> str:
        """Return a stored value of an account, or ""."""
        rows = self._store.query("channel_value", account=account, name=name)
        return str(rows[0][0]) if rows else ""

    def values(self, account: str) -> dict[str, str]:
        """Return all stored values of an account."""
        return dict(self._store.query("channel_values", account=account))

    def put_value(
        self, account: str, name: str, value: str, lease: Lease | None = None
    ) -> None:
        """Store a value of an account. An empty value removes it."""
        where = {"account": account, "name": name}

        def store_value(tx: Tx) -> None:
            self._check(tx, lease)
            if value:
                tx.run("put_channel_value", {**where, "value": value})
            else:
                tx.run("drop_channel_value", where)

        self._store.change(store_value)

    # -- routes ------------------------------------------------------------------------

    def conversation_of(self, num: int | None, user: str) -> str | None:
        """Return the conversation with a number, if it belongs to the user."""
        for owner, name in self._store.query("owner_of", num=num or 0):
            if owner == user:
                return str(name)
        return None

    def number(self, user: str, conversation: str) -> int:
        """Return the number of a conversation. Raises `NoSuchConversation` or `Gone`."""
        return self._journal.of(user).number(conversation)

    def current_route(
        self, account: str, chat: str, thread: str, user: str
    ) -> str | None:
        """Return the conversation of a user to which a chat belongs now, if the conversation still takes messages."""
        where = {"account": account, "chat": chat, "thread": thread, "owner": user}
        for name, closed, segment in self._store.query("current_route", **where):
            return None if closed or segment is None else str(name)
        return None

    def routes_of(self, user: str, conversation: str) -> list[Route]:
        """Return the chats of a conversation, oldest connection first."""
        rows = self._store.query("routes_of", owner=user, id=conversation)
        return [
            Route(account, chat, thread, bool(ended), title)
            for account, chat, thread, ended, title in rows
        ]

    def news(self, account: str) -> list[RouteNews]:
        """Return the routes of an account with events to deliver."""
        rows = self._store.query("route_news", account=account, limit=_NEWS_MAX)
        return [_to_news(row) for row in rows]

    def route(self, account: str, num: int, chat: str, thread: str) -> RouteNews | None:
        """Return a route, also without events to deliver."""
        where = {"num": num, "account": account, "chat": chat, "thread": thread}
        rows = self._store.query("route", **where)
        return _to_news(rows[0]) if rows else None

    def facts(self, news: RouteNews, after: int) -> list[Recorded]:
        """Return the next events that can lead to a delivery."""
        low, high = bounds(news.num)
        rows = self._store.query(
            "route_facts", low=low + after, high=high, limit=_FACTS_MAX
        )
        return [recorded(news.conversation, row) for row in rows]

    def move(self, account: str, news: RouteNews, seq: int, lease: Lease) -> None:
        """Note that the events up to a seq are delivered."""

        def move_route(tx: Tx) -> None:
            self._check(tx, lease)
            tx.run("move_route", {**_route_key(account, news), "seq": seq})

        self._store.change(move_route)

    def end(self, account: str, news: RouteNews, seq: int, lease: Lease) -> None:
        """End the deliveries of a superseded route that has reached a seq."""

        def end_route(tx: Tx) -> None:
            self._check(tx, lease)
            tx.run("end_route", {**_route_key(account, news), "seq": seq})

        self._store.change(end_route)

    # -- chats -------------------------------------------------------------------------

    def put_chat(
        self, account: str, chat: str, thread: str, title: str, *, is_group: bool
    ) -> None:
        """Note the title of a chat."""
        row = {
            "account": account,
            "chat": chat,
            "thread": thread,
            "title": to_one_line(make_storable(title))[:_NAME_CHARS_MAX],
            "is_group": int(is_group),
            "at": self._clock.now_us(),
        }
        self._store.change(lambda tx: tx.run("put_chat", row))

    def chat(self, account: str, chat: str, thread: str) -> Chat:
        """Return what is known about a chat."""
        where = {"account": account, "chat": chat, "thread": thread}
        for title, is_group in self._store.query("chat", **where):
            return Chat(chat, thread, str(title), bool(is_group))
        return Chat(chat, thread)

    def is_chat(self, account: str, chat: str, thread: str) -> bool:
        """Return whether somebody who may talk has used the chat."""
        where = {"account": account, "chat": chat, "thread": thread}
        return bool(self._store.query("chat", **where))

    def chats_of(self, user: str) -> list[KnownChat]:
        """Return the chats of a user, the last used first."""
        rows = self._store.query("chats_of", owner=user, limit=_SHOWN_MAX)
        return [
            KnownChat(account, chat, thread, title, bool(is_group), seen_at)
            for account, chat, thread, title, is_group, seen_at in rows
        ]

    # -- deliveries --------------------------------------------------------------------

    def put_delivery(self, delivery: Outgoing, lease: Lease | None = None) -> None:
        """Store a new delivery. An existing delivery of the same piece stays as it is."""
        row = msgspec.structs.asdict(delivery)
        row["at"] = row["at"] or self._clock.now_us()

        def insert(tx: Tx) -> None:
            self._check(tx, lease)
            tx.run("put_delivery", row)

        self._store.change(insert)

    def change_delivery(self, delivery: Outgoing, lease: Lease | None = None) -> None:
        """Store the changed fields of a delivery."""
        row = msgspec.structs.asdict(delivery)
        row["error"] = make_storable(delivery.error)[:_ERROR_CHARS_MAX]

        def update(tx: Tx) -> None:
            self._check(tx, lease)
            tx.run("change_delivery", row)

        self._store.change(update)

    def rename_unit(
        self, account: str, chat: str, thread: str, was: str, unit: str, lease: Lease
    ) -> None:
        """Let the messages of a unit continue as another unit."""
        row = {"account": account, "chat": chat, "thread": thread}

        def rename(tx: Tx) -> None:
            self._check(tx, lease)
            if not tx.run("deliveries_of_unit", {**row, "unit": unit}):
                tx.run("rename_deliveries", {**row, "was": was, "unit": unit})

        self._store.change(rename)

    def unit(self, account: str, chat: str, thread: str, unit: str) -> list[Outgoing]:
        """Return the messages of a unit."""
        where = {"account": account, "chat": chat, "thread": thread, "unit": unit}
        return self._outgoing("deliveries_of_unit", **where)

    def unfinished(self, account: str) -> list[Outgoing]:
        """Return the messages of an account without a final state, oldest first."""
        return self._outgoing("unfinished_deliveries", account=account, limit=_NEWS_MAX)

    def unfinished_in(self, account: str, news: RouteNews) -> list[Outgoing]:
        """Return the messages of a route without a final state, oldest first."""
        return self._outgoing("open_deliveries", **_route_key(account, news))

    def delivery_of(self, account: str, chat: str, message: str) -> Outgoing | None:
        """Return the delivery with the platform's id of a message."""
        where = {"account": account, "chat": chat, "message": message}
        return next(iter(self._outgoing("delivery_of_message", **where)), None)

    def delivery_of_question(self, account: str, key: str) -> Outgoing | None:
        """Return the delivery of a question with a key."""
        where = {"account": account, "key": key}
        return next(iter(self._outgoing("delivery_of_question", **where)), None)

    def failed(self) -> list[Outgoing]:
        """Return the messages that are uncertain or dead, newest first."""
        return self._outgoing("failed_deliveries", limit=_SHOWN_MAX)

    def is_served(self, account: str) -> bool:
        """Return whether a live process serves the account."""
        return self._journal.holder(f"gateway:{account}") is not None

    def retry(self, failed: Outgoing) -> bool:
        """Try an uncertain or dead message again. Return `False` if it is neither any more."""
        # The platform may have the message already, so a second one carries a mark.
        repeated = int(failed.state == "uncertain" or bool(failed.repeated))
        fields = {"state": "waiting", "repeated": repeated, "tries": 0, "message": ""}
        return self._resolve(failed, **fields)

    def discard(self, failed: Outgoing) -> bool:
        """Give up an uncertain or dead message. Return `False` if it is neither any more."""
        return self._resolve(failed, state="discarded")

    def _resolve(self, failed: Outgoing, **fields: object) -> bool:
        row = msgspec.structs.asdict(msgspec.structs.replace(failed, **fields))

        def resolve(tx: Tx) -> bool:
            where = {name: row[name] for name in ("account", "chat", "thread", "unit")}
            for columns in tx.run("deliveries_of_unit", where):
                kept = Outgoing(*columns)
                if kept.piece == failed.piece and kept.state in FAILED_STATES:
                    tx.run("change_delivery", row)
                    return True
            return False

        return self._store.change(resolve)

    def oldest_unsent(self, account: str) -> int:
        """Return when the oldest message without a final state was stored, in microseconds, or 0."""
        rows = self._store.query("oldest_unsent", account=account)
        return int(rows[0][0] or 0)

    def now_us(self) -> int:
        """Return the time of the clock of the store, in microseconds."""
        return self._clock.now_us()

    def counts(self, account: str) -> dict[str, int]:
        """Return the number of messages by state, and of `repeated` messages."""
        counts: dict[str, int] = {"repeated": 0}
        for state, count, repeated in self._store.query(
            "count_deliveries", account=account
        ):
            counts[state] = int(count)
            counts["repeated"] += int(repeated)
        return counts

    def drop_old(self) -> None:
        """Forget deliveries and pairings that nobody asks for any more."""
        now = self._clock.now_us()

        def drop(tx: Tx) -> None:
            tx.run("drop_old_deliveries", {"before": now - _KEPT_DAYS * DAY_US})
            tx.run("drop_old_pairings", {"since": now - 7 * DAY_US})
            tx.run("drop_old_observed", {"before": now - DAY_US})

        self._store.change(drop)

    def _outgoing(self, name: str, **where: Any) -> list[Outgoing]:  # noqa: ANN401
        return [Outgoing(*row) for row in self._store.query(name, **where)]

    # -- people ------------------------------------------------------------------------

    def person(self, account: str, person: str) -> str | None:
        """Return the user of a person, or `None` for a stranger."""
        rows = self._store.query("person", account=account, person=person)
        return str(rows[0][0]) if rows else None

    def people(self) -> list[ChatPerson]:
        """Return everybody who may talk."""
        return [ChatPerson(*row) for row in self._store.query("people")]

    def add_person(self, account: str, person: str, user: str, name: str) -> None:
        """Let a person talk to an account, as a user of Tenax."""
        row = {
            "account": account,
            "person": person,
            "owner": check_id("user", user),
            "name": to_one_line(make_storable(name))[:_NAME_CHARS_MAX],
            "at": self._clock.now_us(),
        }

        def put(tx: Tx) -> None:
            tx.run("put_person", row)
            tx.run("drop_pairing", {"account": account, "person": person})

        self._store.change(put)

    def remove_person(self, account: str, person: str) -> None:
        """Make a person a stranger again."""
        where = {"account": account, "person": person}
        self._store.change(lambda tx: tx.run("drop_person", where))

    def offer_pairing(
        self, account: str, person: str, name: str, chat: str
    ) -> str | None:
        """Return a new code for a stranger, at most once a day; otherwise `None`."""
        now = self._clock.now_us()
        where = {"account": account, "person": person}
        code = "".join(secrets.choice(_CODE_LETTERS) for _ in range(_CODE_CHARS))
        row = {
            **where,
            "code": code,
            "name": to_one_line(make_storable(name))[:_NAME_CHARS_MAX],
            "chat": chat,
            "at": now,
        }

        def offer(tx: Tx) -> str | None:
            for kept, at in tx.run("pairing", where):
                if at > now - DAY_US:
                    # A retried transaction finds its own row.
                    return code if kept == code else None
            since = {"since": now - DAY_US}
            if len(tx.run("pairings", since)) >= _PAIRINGS_MAX:
                return None
            tx.run("put_pairing", row)
            return code

        return self._store.change(offer)

    def pairings(self) -> list[Pairing]:
        """Return the strangers with a valid code, newest first."""
        since = self._clock.now_us() - DAY_US
        return [Pairing(*row) for row in self._store.query("pairings", since=since)]

    def pair(self, code: str, user: str) -> Pairing:
        """Let the stranger with a code talk, as a user of Tenax. Raises `InvalidInput` for an unknown code."""
        pairing = self.find_pairing(code)
        self.add_person(pairing.account, pairing.person, user, pairing.name)
        return pairing

    def find_pairing(self, code: str) -> Pairing:
        """Return the stranger with a code. Raises `InvalidInput` for an unknown code."""
        wanted = make_storable(code).strip().upper().replace("-", "").encode()
        for pairing in self.pairings():
            if secrets.compare_digest(pairing.code.encode(), wanted):
                return pairing
        raise InvalidInput(
            "No chat has this code.",
            hint="Write to the bot, and enter the code of its answer. A code is valid for a day.",
        )

    # -- groups ------------------------------------------------------------------------

    def observe(self, account: str, chat: str, thread: str, observed: Observed) -> None:
        """Keep a message of a group that was not for the bot. The last 50 messages of a day are kept."""
        key = {"account": account, "chat": chat, "thread": thread}
        text = make_storable(observed.text)[:_OBSERVED_CHARS_MAX]
        row = {**msgspec.structs.asdict(observed), "text": text}

        def keep(tx: Tx) -> None:
            tx.run("put_observed", {**key, **row})
            kept = tx.run("observed", key)
            before = self._clock.now_us() - DAY_US
            if len(kept) > _OBSERVED_MAX:
                before = max(before, kept[-_OBSERVED_MAX][3])
            tx.run("drop_observed", {**key, "before": before})

        self._store.change(keep)

    def observed(
        self, account: str, chat: str, thread: str, after: int
    ) -> list[Observed]:
        """Return the kept messages of a group after a time, oldest first."""
        key = {"account": account, "chat": chat, "thread": thread}
        found = [Observed(*row) for row in self._store.query("observed", **key)]
        return [observed for observed in found if observed.at > after]

    def change_observed(self, account: str, chat: str, message: str, text: str) -> None:
        """Change a kept message; an empty text removes it."""
        key = {"account": account, "chat": chat, "message": message}
        short = make_storable(text)[:_OBSERVED_CHARS_MAX]

        def change(tx: Tx) -> None:
            if short:
                tx.run("change_observed", {**key, "text": short})
            else:
                tx.run("drop_observed_message", key)

        self._store.change(change)

    # -- received messages ---------------------------------------------------------------

    def received(self, account: str, id: str) -> tuple[str, str, int] | None:  # noqa: A002  (the field's name)
        """Return user, conversation and seq of the event that was stored for an update."""
        rows = self._store.query("received_message", source=account, id=id)
        for user, conversation, row_key in rows:
            return user, conversation, row_key & ALL_SEQS
        return None

    def is_received(self, user: str, account: str, id: str) -> bool:  # noqa: A002
        """Return whether an update of an account was stored for a user, also in a conversation deleted since."""
        where = {"owner": user, "source": account, "id": id}
        return bool(self._store.query("received", **where))

    def put_late_file(
        self,
        account: str,
        id: str,  # noqa: A002
        num: int,
        file: str,
    ) -> None:
        """Remember a file that has to be fetched."""
        at = self._clock.now_us()
        row = {"account": account, "id": id, "num": num, "file": file, "at": at}
        self._store.change(lambda tx: tx.run("put_late_file", row))

    def late_files(self, account: str) -> list[LateFile]:
        """Return the files to fetch now."""
        now = self._clock.now_us()
        rows = self._store.query(
            "late_files", account=account, now=now, limit=_SHOWN_MAX
        )
        return [LateFile(*row) for row in rows]

    def delay_late_file(self, file: LateFile) -> None:
        """Try to fetch a file again later."""
        pause = min(10.0 * 2**file.tries, _LATE_FILE_SECONDS_MAX)
        retry_at = self._clock.now_us() + int(pause * 1e6)
        row = {"account": file.account, "id": file.id, "retry_at": retry_at}
        self._store.change(lambda tx: tx.run("delay_late_file", row))

    def drop_late_file(self, file: LateFile) -> None:
        row = {"account": file.account, "id": file.id}
        self._store.change(lambda tx: tx.run("drop_late_file", row))

    # -- all ---------------------------------------------------------------------------

    def _check(self, tx: Tx, lease: Lease | None) -> None:
        if lease is not None:
            check_lease(tx, self._journal.owner, lease)


def _to_news(row: Sequence[Any]) -> RouteNews:
    user, conversation, num, chat, thread, seq, facts, run, is_group, superseded = row
    return RouteNews(
        user,
        conversation,
        num,
        chat,
        thread,
        seq,
        facts,
        run,
        bool(is_group),
        bool(superseded),
    )


def _route_key(account: str, news: RouteNews) -> dict[str, Any]:
    return {
        "num": news.num,
        "account": account,
        "chat": news.chat,
        "thread": news.thread,
    }


class AsyncChannelRows(AsyncFacade[ChannelRows]):
    """The asyncio counterpart of `ChannelRows`."""

    def __init__(self, journal: AsyncJournal) -> None:
        super().__init__(ChannelRows(journal.journal), journal.threads)
        self._clock = journal.clock

    def now_us(self) -> int:
        """Return the time of the clock of the store, in microseconds."""
        return self._clock.now_us()

    value = awaited(ChannelRows.value)
    values = awaited(ChannelRows.values)
    put_value = awaited(ChannelRows.put_value)
    conversation_of = awaited(ChannelRows.conversation_of)
    number = awaited(ChannelRows.number)
    current_route = awaited(ChannelRows.current_route)
    routes_of = awaited(ChannelRows.routes_of)
    news = awaited(ChannelRows.news)
    route = awaited(ChannelRows.route)
    facts = awaited(ChannelRows.facts)
    move = awaited(ChannelRows.move)
    end = awaited(ChannelRows.end)
    put_chat = awaited(ChannelRows.put_chat)
    chat = awaited(ChannelRows.chat)
    is_chat = awaited(ChannelRows.is_chat)
    chats_of = awaited(ChannelRows.chats_of)
    put_delivery = awaited(ChannelRows.put_delivery)
    change_delivery = awaited(ChannelRows.change_delivery)
    rename_unit = awaited(ChannelRows.rename_unit)
    unit = awaited(ChannelRows.unit)
    unfinished = awaited(ChannelRows.unfinished)
    unfinished_in = awaited(ChannelRows.unfinished_in)
    delivery_of = awaited(ChannelRows.delivery_of)
    delivery_of_question = awaited(ChannelRows.delivery_of_question)
    failed = awaited(ChannelRows.failed)
    retry = awaited(ChannelRows.retry)
    discard = awaited(ChannelRows.discard)
    counts = awaited(ChannelRows.counts)
    drop_old = awaited(ChannelRows.drop_old)
    person = awaited(ChannelRows.person)
    people = awaited(ChannelRows.people)
    add_person = awaited(ChannelRows.add_person)
    remove_person = awaited(ChannelRows.remove_person)
    offer_pairing = awaited(ChannelRows.offer_pairing)
    pairings = awaited(ChannelRows.pairings)
    pair = awaited(ChannelRows.pair)
    observe = awaited(ChannelRows.observe)
    observed = awaited(ChannelRows.observed)
    change_observed = awaited(ChannelRows.change_observed)
    received = awaited(ChannelRows.received)
    is_received = awaited(ChannelRows.is_received)
    put_late_file = awaited(ChannelRows.put_late_file)
    late_files = awaited(ChannelRows.late_files)
    delay_late_file = awaited(ChannelRows.delay_late_file)
    drop_late_file = awaited(ChannelRows.drop_late_file)

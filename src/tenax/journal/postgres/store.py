"""The store in a PostgreSQL database, for many hosts: psycopg 3, a write connection and a pool of read connections.

A group of appends takes a single transaction and two round trips: begin, lock the heads and read; write and commit.
Heads are locked in the order of their numbers, so that processes do not deadlock. Facts are flushed before they are
acknowledged. The settings of the server (fsync, standbys) decide what a power loss can lose.

Reads run outside transactions, with a snapshot per statement, so no snapshot is held for longer than a page. A
connection must be a whole session: a pooler with a session per transaction breaks LISTEN and the instance's lock, and
is refused.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import platform
import re
import threading
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg_pool import ConnectionPool

from tenax.clock import Timing
from tenax.errors import (
    CannotOpen,
    StoreBusy,
    StoreUnavailable,
)
from tenax.journal.postgres.connection import Connection, Link, shut
from tenax.journal.postgres.notify import Listener, Notifier
from tenax.journal.row_index import HeadState
from tenax.journal.schema import SCHEMA_VERSION, migrations, statements
from tenax.journal.store import Store, Trouble, too_new
from tenax.journal.witness import Witness

if TYPE_CHECKING:
    from collections.abc import (
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    from tenax.clock import Clock, Ids
    from tenax.journal.plan import Append, Key, Loaded
    from tenax.journal.store import SqlRow, Tx

__all__ = ["PostgresStore", "PostgresTx", "store_exists", "translate"]

SERVER_MIN: Final = 13
READERS_MAX: Final = 8
CLOSE_SECONDS: Final = 3.0
LONG_SECONDS: Final = 600
"""Time limit for a migration or a vacuum."""
SLEPT_SECONDS: Final = 5.0
# An append looks rows up by key, so a generic plan always fits.
WRITING: Final = {"plan_cache_mode": "force_generic_plan"}
ROWS_AT_ONCE_MAX: Final = 1000
BYTES_AT_ONCE_MAX: Final = 16 * 1024 * 1024
_TOKEN = re.compile(
    r"""(?P<comment> --[^\n]* | /\*.*?\*/ )
      | (?P<kept> '(?:[^']|'')*' | "(?:[^"]|"")*" | :: )
      | :(?P<name> [A-Za-z_]\w* )
      | (?P<percent> % )""",
    re.VERBOSE | re.DOTALL,
)

_VERB = re.compile(r"\b(select|insert|update|delete)\b")
_CHANGED = re.compile(r"\b(?:insert into|update|delete from) (?!set\b)(\w+)")


def translate(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with `:name` parameters in psycopg's syntax, and the names in order."""
    names: list[str] = []

    def token(found: re.Match[str]) -> str:
        if found["name"]:
            names.append(found["name"])
            return "%s"
        return "" if found["comment"] else found[0].replace("%", "%%")

    return _TOKEN.sub(token, sql).strip(), tuple(names)


class _Statement(NamedTuple):
    text: bytes
    names: tuple[str, ...]
    answers: bool
    """Whether the statement returns rows. Tenax does not wait for statements without rows."""
    tables: frozenset[str]
    """The tables of a mergeable statement; empty for a statement that cannot be merged."""
    sized: bool
    """Whether the limit is part of the text."""


def _statements() -> tuple[dict[str, _Statement], dict[str, _Statement]]:
    """Return the statements by name: for reading, and for a write transaction."""
    found = {name: translate(sql) for name, sql in statements("postgres").items()}
    tables = {table for text, _ in found.values() for table in _CHANGED.findall(text)}
    reading: dict[str, _Statement] = {}
    for name, (text, names) in found.items():
        outer = _outer(text)
        verb = _VERB.search(outer)
        answers = verb is not None and (verb[0] == "select" or "returning" in outer)
        joins = not answers and text.startswith(("insert", "update", "delete"))
        touched = (
            frozenset(tables & set(re.findall(r"\w+", text)))
            if joins
            else frozenset[str]()
        )
        reading[name] = _Statement(
            text.encode(), names, answers, touched, "{limit}" in text
        )
    changing = {
        name.removesuffix("_changing"): statement
        for name, statement in reading.items()
        if name.endswith("_changing")
    }
    return reading, {**reading, **changing}


def _outer(text: str) -> str:
    """Return a statement without the text in brackets."""
    bare, count = text, 1
    while count:
        bare, count = re.subn(r"\([^()]*\)", "", bare)
    return bare


_READING, _CHANGING = _statements()


class PostgresTx:
    """Named statements on a connection.

    Statements without results are held back and sent with the next statement. Held statements with disjoint tables are
    merged into one. So a transaction takes two round trips, and the server wakes a few times instead of once per row.
    """

    __slots__ = ("_asked", "_connection", "_held", "_kept", "_sql", "_touched")

    def __init__(
        self,
        connection: psycopg.Connection[SqlRow],
        sql: dict[str, _Statement],
        kept: dict[bytes, psycopg.Cursor[SqlRow]] | None = None,
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._kept = kept
        self._asked: dict[str, dict[tuple[Any, ...], psycopg.Cursor[SqlRow]]] = {}
        self._held: list[tuple[str, tuple[Any, ...]]] = []
        self._touched: set[str] = set()

    def run(
        self, name: str, params: Mapping[str, Any] | tuple[Any, ...] = ()
    ) -> list[SqlRow]:
        statement = self._sql[name]
        values = (
            params
            if isinstance(params, tuple)
            else tuple([params[key] for key in statement.names])
        )
        if not statement.answers:
            self._buffer_statement(name, values)
            return []
        if (
            name in self._asked
            and (asked := self._asked[name].pop(values, None)) is not None
        ):
            return asked.fetchall()
        self.flush()
        text = statement.text
        if statement.sized and not isinstance(params, tuple):
            text = text.replace(b"{limit}", b"%d" % params["limit"])
        return self._send(text, values).fetchall()

    def many(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        together = f"{name}_many"
        if together not in self._sql or (len(rows) == 1 and name in self._sql):
            for row in rows:
                self._buffer_statement(name, row)
            return
        for some in _chunks(rows):
            self._buffer_statement(
                together, tuple([list(column) for column in zip(*some, strict=True)])
            )

    def ask(self, name: str, params: Mapping[str, Any]) -> None:
        """Send a query ahead. A later `run` with the same parameters gets the result without a further round trip."""
        statement = self._sql[name]
        values = tuple([params[key] for key in statement.names])
        asked = self._asked.setdefault(name, {})
        if values not in asked:
            asked[values] = self._connection.cursor(binary=True).execute(
                statement.text, values
            )

    def say(self, text: bytes) -> psycopg.Cursor[SqlRow]:
        """Send a transaction command without waiting."""
        return self._send(text, ())

    def flush(self) -> None:
        """Send the held statements."""
        if self._held:
            names, values = zip(*self._held, strict=True)
            self._held, self._touched = [], set()
            self._send(_as_one(names), tuple(chain.from_iterable(values)))

    def _buffer_statement(self, name: str, values: tuple[Any, ...]) -> None:
        tables = self._sql[name].tables
        if not tables or not self._touched.isdisjoint(tables):
            self.flush()
        self._held.append((name, values))
        self._touched |= tables
        if not tables:
            self.flush()

    def _send(self, text: bytes, values: tuple[Any, ...]) -> psycopg.Cursor[SqlRow]:
        """Execute a statement.

        A repeated statement keeps its cursor, because the cursor caches the encoding of the values.
        """
        cursor = None if self._kept is None else self._kept.get(text)
        if cursor is None:
            cursor = self._connection.cursor(binary=True)
            if self._kept is not None:
                self._kept[text] = cursor
        return cursor.execute(text, values)


def _chunks(rows: Sequence[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows in chunks of bounded count and size."""
    some: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        some.append(row)
        size += sum([len(value) for value in row if isinstance(value, bytes)])
        if len(some) >= ROWS_AT_ONCE_MAX or size >= BYTES_AT_ONCE_MAX:
            yield some
            some, size = [], 0
    if some:
        yield some


@functools.cache
def _as_one(names: tuple[str, ...]) -> bytes:
    *first, last = [_CHANGING[name].text for name in names]
    if not first:
        return last
    return b"with %b %b" % (
        b", ".join(b"w%d as (%b)" % pair for pair in enumerate(first)),
        last,
    )


class PostgresStore(Store):
    """A store in a database (or in a schema of a database), for many processes on many hosts."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        ids: Ids,
        *,
        patience: float = 30.0,
        witness: Path | None = None,
        timing: Timing = Timing(),
    ) -> None:
        super().__init__(clock, ids, patience, timing)
        self._witness_file = witness
        self._stored_incarnation = ""
        # This module reports a lost connection as a sentence. psycopg would log the loss again.
        logging.getLogger("psycopg").setLevel(logging.ERROR)
        self._link = Link(url, timing)
        self._write_lock = threading.Lock()
        self._aside_lock = threading.Lock()
        self._aside: Connection | None = None
        self._life_lock = threading.Lock()
        self.writer: Connection | None = None
        self._kept: dict[bytes, psycopg.Cursor[SqlRow]] = {}
        self._drift = 0.0
        self._own_instance = ids.instance()
        schema = self._open_store()
        channel = f"tenax_{hashlib.sha256(schema.encode()).hexdigest()[:16]}"
        self._notifier = Notifier(
            lambda: self._connect(synchronous_commit="off"), channel
        )
        self.listener = Listener(self._connect, channel, self.wakeups, self._notifier)
        self.wakeups.on_first = self._watch
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            connection_class=Connection,
            kwargs=self._link.parameters(),
            configure=self._set_up_reader,
            min_size=1,
            max_size=READERS_MAX,
            max_idle=60.0,
            timeout=timing.reader_seconds,
            # The pool gives up after this time until the next request, so an outage leaves no long pause behind.
            reconnect_timeout=1.0,
            num_workers=1,
            name="tenax-read",
            open=True,
        )

    # -- opening ---------------------------------------------------------------------------------------------

    def _open_store(self) -> str:
        """Create or migrate the store and return the schema. Concurrent openers wait."""
        try:
            connection = self._link.connect(**WRITING)
        except psycopg.Error as error:
            raise self._link.cannot_open(error) from error
        try:
            self._check_server(connection)
            connection.answer_seconds = LONG_SECONDS
            schema = self._migrate(connection)
            if self._witness_file is not None:
                # Without the folder there is no witness.
                with contextlib.suppress(OSError):
                    self._witness_file.parent.mkdir(
                        mode=0o700, parents=True, exist_ok=True
                    )
                name = f"{self._link.name(connection.info)}, {schema}"
                self.witness = Witness(self._witness_file, name, self, self.clock)
            connection.answer_seconds = self.timing.answer_seconds
            self._greet(connection)
            self._connected(connection)
        except psycopg.Error as error:
            connection.close()
            raise self._link.cannot_open(error) from error
        except BaseException:
            connection.close()
            raise
        self.writer = connection
        return schema

    def _check_server(self, connection: Connection) -> None:
        if connection.info.server_version < SERVER_MIN * 10_000:
            raise CannotOpen(
                f"{self._link.where} is version {connection.info.server_version // 10_000}, which is too old.",
                hint=f"use PostgreSQL {SERVER_MIN} or newer",
            )
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise CannotOpen(
                f"{self._link.where} stores text as {encoding}, not as UTF8.",
                hint="make a database with createdb --encoding=UTF8 --template=template0",
            )

    def _migrate(self, connection: Connection) -> str:
        ((there, schema),) = _ask(connection, "tables")
        if schema is None:
            raise CannotOpen(
                f"{self._link.where} has no schema to put the store in.",
                hint="correct its search_path",
            )
        have = int(_ask(connection, "store")[0][0]) if there else 0
        if have < SCHEMA_VERSION:
            have = self._make(connection, {"key": _key(f"migrate {schema}")})
        if have > SCHEMA_VERSION:
            raise too_new(have)
        return str(schema)

    def _make(self, connection: Connection, lock: dict[str, int]) -> int:
        """Run every missing migration in a separate transaction. Return the new version of the store."""
        for name in ("lock_timeout", "statement_timeout"):
            connection.execute(f"set {name} = '{LONG_SECONDS}s'".encode())
        # Lock outside a transaction: a transaction waiting for the lock would not see tables created meanwhile.
        _ask(connection, "lock_migrations", lock)
        have = (
            int(_ask(connection, "store")[0][0])
            if _ask(connection, "tables")[0][0]
            else 0
        )
        for number, script in enumerate(migrations("postgres")[have:], start=have + 1):
            with connection.transaction():
                if have:
                    _ask(connection, "lock_writers")
                connection.execute(script.encode(), prepare=False)
                if number == 1:
                    first = {
                        "schema": 1,
                        "incarnation": self.ids.append().hex(),
                        "life": "",
                    }
                    _ask(connection, "put_store", {**first, "at": self.clock.now_us()})
                _ask(connection, "set_schema", {"schema": number})
            have = number
        _ask(connection, "unlock_migrations", lock)
        self._link.set_up(connection, **WRITING)
        return have

    def _connect(self, **settings: str) -> Connection:
        """Open a connection and check the life of the store. Raises `psycopg.Error`."""
        connection = self._link.connect(**settings)
        try:
            self._greet(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up_reader(self, connection: Connection) -> None:
        self._link.set_up(connection, default_transaction_read_only="on")
        self._greet(connection)

    def _greet(self, connection: psycopg.Connection[SqlRow]) -> None:
        """Start a new incarnation if the server was down, because unflushed partials may be lost.

        Every new connection calls the method. After an outage old seqs may belong to new events, so the store gets a
        new incarnation, once for all processes.
        """
        with self._life_lock:
            ((incarnation, life, pulse, up),) = _ask(connection, "life")
            if pulse is None or life != up:
                with connection.transaction():
                    connection.execute(b"set transaction read write")
                    _ask(connection, "lock_store")
                    ((incarnation, life, pulse, up),) = _ask(connection, "life")
                    if pulse is None:
                        _ask(connection, "put_pulse", {"name": self.ids.append().hex()})
                        ((_, _, _, up),) = _ask(connection, "life")
                    if life != up:
                        incarnation = self.ids.append().hex()
                        where = {"incarnation": incarnation, "life": up}
                        _ask(connection, "set_incarnation", where)
            # The clock and the leases survive a restart of the server, so `life` is the id of the database.
            self.boot, self.life = up, up.split(".")[0]
            if incarnation != self._stored_incarnation:
                # After an outage the server may be a lagging standby, or an older copy.
                self.incarnation, _ = self._examine(
                    incarnation, lambda name, **params: _ask(connection, name, params)
                )
                self._stored_incarnation = incarnation

    def _connected(self, connection: Connection) -> None:
        self.connected_since = float(_ask(connection, "now")[0][0])
        self._drift = self.connected_since - self.clock.monotonic()

    # -- transactions ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[Tx]:
        self._check_use()
        with self._write_lock:
            connection = self._writing()
            committing = False
            try:
                with connection.pipeline():
                    tx = PostgresTx(connection, _CHANGING, self._kept)
                    tx.say(b"begin")
                    if not durable:
                        tx.say(b"set local synchronous_commit = off")
                    yield tx
                    tx.flush()
                    committing = True
                    done = tx.say(b"commit")
                _check_commit(done)
            except (psycopg.Error, UnicodeError) as error:
                raise self._link.judge(
                    error, committing=committing, lost=not self._undo()
                ) from error
            except Exception:
                self._undo()
                raise
            except BaseException:
                # An interrupted connection is in an unknown state.
                self._drop()
                raise

    @contextlib.contextmanager
    def aside(self, *, durable: bool = False, seconds: int = 0) -> Iterator[Tx]:
        """Open a transaction on a second connection, so that appends do not wait for it. Only one at a time.

        Only a `durable` transaction is flushed at once. `seconds` is the time limit of a statement.
        """
        self._check_use()
        with self._aside_lock:
            try:
                if self._aside is None or self._aside.closed:
                    self._aside = self._connect()
                connection = self._aside
                connection.answer_seconds = max(self.timing.answer_seconds, seconds)
                with connection.transaction():
                    if not durable:
                        connection.execute(b"set local synchronous_commit = off")
                    if seconds:
                        connection.execute(
                            f"set local statement_timeout = '{seconds}s'".encode()
                        )
                    tx = PostgresTx(connection, _CHANGING)
                    yield tx
                    tx.flush()
            except psycopg.Error as error:
                self._drop_aside()
                raise self._link.judge(error, committing=True, lost=True) from error
            except (KeyboardInterrupt, SystemExit):
                # An interrupted connection is in an unknown state.
                self._drop_aside()
                raise

    def interrupt_aside(self) -> None:
        """Ask the server to cancel the present statement of `aside`. Safe in any thread."""
        connection = self._aside
        if connection is not None and self._aside_lock.locked():
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=1.0)

    def _drop_aside(self) -> None:
        connection, self._aside = self._aside, None
        shut(connection)

    def _writing(self) -> Connection:
        if self.writer is None or self.writer.closed:
            try:
                self._kept.clear()
                self.writer = self._connect(**WRITING)
                self._connected(self.writer)
            except psycopg.Error as error:
                self._drop()
                raise Trouble(
                    StoreUnavailable(str(self._link.cannot_open(error)))
                ) from error
        return self.writer

    def _undo(self) -> bool:
        """Roll back. Return False if the connection is lost."""
        connection = self.writer
        if connection is None:
            return False
        try:
            connection.execute(b"rollback")
        except psycopg.Error:
            self._drop()
            return False
        return True

    def _drop(self) -> None:
        connection, self.writer = self.writer, None
        self._kept.clear()
        shut(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Tx]:
        self._check_use()
        try:
            connection = self._pool.getconn()
            try:
                tx = PostgresTx(connection, _READING)
                yield tx
                tx.flush()
            finally:
                self._pool.putconn(connection)
        except (psycopg.Error, UnicodeError) as error:
            raise self._link.judge(error) from error

    def recover(self, trouble: Trouble) -> None:
        """Reconnect once. If the server is still unavailable, the next attempt reports the error."""
        if isinstance(trouble.error, StoreBusy) or self._closed.is_set():
            return
        with self._write_lock:
            try:
                self._writing()
            except Trouble:
                return
        self._pool.drain()

    def lock_all(self, tx: Tx) -> None:
        """Wait for running appends and block new appends until the transaction ends."""
        tx.run("lock_all")

    # -- loading the state for a group -----------------------------------------------------------------------

    def _load(self, tx: Tx, appends: list[Append]) -> Loaded:
        """Load the state like every engine, but send all queries together with the first query."""
        assert isinstance(tx, PostgresTx)
        for append in appends:
            if append.lease is not None:
                tx.ask("fence", {"owner": append.user, "name": append.lease.name})
            for name in append.names:
                tx.ask("stretch_taken", {"owner": append.user, "name": name})
            if append.dedup is not None:
                tx.ask(
                    "received",
                    {
                        "owner": append.user,
                        "source": append.dedup.source,
                        "id": append.dedup.id,
                    },
                )
        return super()._load(tx, appends)

    def heads(self, tx: Tx, keys: Collection[Key]) -> dict[Key, HeadState]:
        nums = {key: num for key in keys if (num := self._nums.get(key)) is not None}
        unknown = [key for key in keys if key not in nums]
        if unknown:
            owners, names = zip(*unknown, strict=True)
            for owner, name, num in tx.run(
                "conversation_nums", {"owners": list(owners), "ids": list(names)}
            ):
                nums[owner, name] = self.know((owner, name), num)
        rows = tx.run("heads", {"nums": list(nums.values())}) if nums else []
        schema = rows[0][0] if rows else tx.run("store")[0][0]
        if schema != SCHEMA_VERSION:
            raise too_new(schema)
        found: dict[Key, HeadState] = {}
        for _, owner, name, num, *columns in rows:
            if (owner, name) in nums:
                found[owner, name] = HeadState(num, name, owner, *columns)
        for key in nums:
            if key not in found:
                self.unknow(key)
        # Read the names after the heads are locked: only then are they certainly current.
        self.segment_names(tx, {state.stretch for state in found.values()})
        for state in found.values():
            state.segment_name = self.segment_name(tx, state.stretch)
        return found

    def read_names(self, tx: Tx, nums: Sequence[int]) -> Iterable[SqlRow]:
        return tx.run("stretch_names", {"nums": list(nums)})

    def as_list(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    def now(self, tx: Tx) -> float:
        now = float(tx.run("now")[0][0])
        drift = now - self.clock.monotonic()
        if abs(drift - self._drift) > SLEPT_SECONDS:
            # This machine slept, or the server's clock was set. No lease may expire for such a reason.
            self.connected_since = now
        self._drift = drift
        return now

    def failover(self) -> str:
        ((names, standbys),) = self.query("standbys")
        if names:
            return f"A commit waits for a standby ({names}): a failover to one that it waited for loses nothing."
        if standbys:
            return (
                f"No commit waits for {'the standby' if standbys == 1 else f'any of the {standbys} standbys'}: a failover "
                "can lose the last messages although they were acknowledged. Set synchronous_standby_names on the server."
            )
        return "No standby is connected. A failover to a copy of the server loses what that copy lacks."

    # -- instances -------------------------------------------------------------------------------------------

    def live(self) -> str:
        self._check_use()
        self.instance = self._own_instance
        if not self.listener.hold(self._hold_instance, self.patience):
            raise StoreUnavailable(f"{self._link.where} does not answer.")
        return self._own_instance

    def _hold_instance(self, connection: Connection) -> None:
        """Take the lock that marks the process as alive. The server releases the lock with the connection."""
        high, low = _halves(self._own_instance)
        _ask(
            connection,
            "hold_instance",
            {"high": high - (high >> 31 << 32), "low": low - (low >> 31 << 32)},
        )
        row = {
            "id": self._own_instance,
            "host": platform.node(),
            "at": self.clock.now_us(),
            "up": self.boot,
        }
        _ask(connection, "put_instance", row)

    def alive(self, tx: Tx, instance: str) -> bool:
        high, low = _halves(instance)
        where = {"high": high, "low": low, "id": instance, "up": self.boot}
        return instance == self._own_instance or bool(tx.run("alive", where)[0][0])

    # -- other processes -------------------------------------------------------------------------------------

    def announce(self, nums: Sequence[int]) -> None:
        self._notifier.tell(nums)

    def _watch(self) -> None:
        self._check_use()
        self.listener.start()

    def scrub(self) -> bool:
        """Vacuum the tables with text, so that the server forgets deleted rows and reuses the space.

        The server does not overwrite the deleted bytes at once. Until then the bytes stay in the free space of the
        files, and longer in the log, on standbys and in dumps. No query finds the bytes.
        """
        self._check_use()
        warnings: list[str] = []
        try:
            connection = self._connect(statement_timeout=f"{LONG_SECONDS}s")
        except psycopg.Error:
            return False
        with connection:
            connection.answer_seconds = LONG_SECONDS
            connection.add_notice_handler(
                lambda notice: warnings.append(notice.severity_nonlocalized or "")
            )
            try:
                _ask(connection, "vacuum")
            except psycopg.Error:
                return False
        # A warning says that a table belongs to another user and was skipped.
        return "WARNING" not in warnings

    # -- closing ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        self.patience = min(self.patience, CLOSE_SECONDS)
        super().close()

    def close_engine(self) -> None:
        self._closed.set()
        self._notifier.close(CLOSE_SECONDS)
        self.listener.close(CLOSE_SECONDS)
        self._pool.close(CLOSE_SECONDS)
        if self._aside_lock.acquire(timeout=CLOSE_SECONDS):
            self._drop_aside()
            self._aside_lock.release()
        with self._write_lock:
            self._drop()


def store_exists(url: str) -> bool:
    """Return whether the database contains a store. Create nothing."""
    link = Link(url)
    try:
        with link.connect(default_transaction_read_only="on") as connection:
            return bool(_ask(connection, "tables")[0][0])
    except psycopg.Error as error:
        raise link.cannot_open(error) from error


def _ask(
    connection: psycopg.Connection[SqlRow],
    name: str,
    params: Mapping[str, Any] | None = None,
) -> list[SqlRow]:
    """Run a statement outside the journal's transactions."""
    statement = _CHANGING[name]
    values = [params[key] for key in statement.names] if params else None
    cursor = connection.execute(statement.text, values, prepare=False)
    return cursor.fetchall() if statement.answers else []


def _check_commit(done: psycopg.Cursor[SqlRow]) -> None:
    """Raise an error if the server answered COMMIT with ROLLBACK. The server does so for a failed transaction."""
    if done.statusmessage != "COMMIT":
        raise psycopg.errors.TransactionRollback(
            f"the commit was answered with {done.statusmessage}"
        )


def _halves(instance: str) -> tuple[int, int]:
    """Return the two 32-bit numbers of the advisory lock of an instance."""
    key = hashlib.sha256(instance.encode()).digest()
    return int.from_bytes(key[:4], "big"), int.from_bytes(key[4:8], "big")


def _key(name: str) -> int:
    """Return the 64-bit number of an advisory lock. The numbers never collide with the pairs of `_halves`."""
    return int.from_bytes(
        hashlib.sha256(f"tenax {name}".encode()).digest()[:8], "big", signed=True
    )

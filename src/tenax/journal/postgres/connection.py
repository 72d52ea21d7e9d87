"""Connect to PostgreSQL, bound every wait, and classify errors.

This module translates every psycopg error into a `Trouble` or a sentence. No sentence contains a password: a sentence
is built from host, user, database and the server's message.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import conninfo
from psycopg.abc import RV
from psycopg.adapt import AdaptersMap
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from tenax.clock import Timing
from tenax.errors import (
    CannotOpen,
    InvalidInput,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from tenax.journal.store import SqlRow, Trouble

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from psycopg.abc import PQGen

__all__ = ["Connection", "Link", "shut"]

CONNECT_SECONDS: Final = 5
PROBES: Final = 3
STATEMENTS_MAX: Final = 500
"""More than the number of statements: a connection prepares every statement once."""
SETTINGS: Final[Mapping[str, str]] = {
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "10s",
    "jit": "off",
    "lock_timeout": "10s",
    "max_parallel_workers_per_gather": "0",
    "statement_timeout": "30s",
    "synchronous_commit": "on",
}
TCP: Final[Mapping[str, str]] = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
_RACED = frozenset(
    {"conversations", "leases", "pulse", "readers", "received", "stretches"}
)
"""Tables with a risk of concurrent inserts of the same row by two processes. A retry finds the row."""


def _adapters() -> AdaptersMap:
    """Send every int as a bigint, so that a statement is prepared once and not once per size of the numbers.

    Both dumpers are needed: psycopg uses the text dumper inside lists.
    """
    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(int, Int8BinaryDumper)
    return adapters


class Connection(psycopg.Connection[SqlRow]):
    """A connection with a time limit for every wait."""

    answer_seconds: float = Timing.answer_seconds

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  (passed on to psycopg)
        super().__init__(*args, **kwargs)
        self.prepared_max = STATEMENTS_MAX

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:  # noqa: ANN401  (passed on to psycopg)
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: PQGen[RV]) -> Generator[Any, Any, RV]:
        deadline = time.monotonic() + self.answer_seconds
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    # The connection is in an unknown state: close it.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(
                        f"no answer for {self.answer_seconds:.0f} seconds"
                    )
                wanted = gen.send(ready)
        except StopIteration as done:
            answer: RV = done.value
            return answer
        except GeneratorExit:
            # The wait has failed. psycopg's generator would talk to the server again and print the failure on stderr.
            with contextlib.suppress(psycopg.Error, RuntimeError):
                gen.close()
            raise


_ADAPTERS = _adapters()


def shut(connection: Connection | None) -> None:
    """Close a connection in any state."""
    if connection is not None:
        with contextlib.suppress(psycopg.Error):
            connection.close()


class SharedSessions(psycopg.OperationalError):
    """A pooler shares a server session among several clients."""


class Link:
    """A database: the address, and the classification of errors."""

    def __init__(self, url: str, timing: Timing = Timing()) -> None:
        self._timing = timing
        try:
            self._address = {
                name: str(value)
                for name, value in conninfo.conninfo_to_dict(url).items()
            }
        except psycopg.Error:
            # psycopg's message quotes the URL with the password.
            raise CannotOpen(
                "The address of the PostgreSQL store cannot be read.",
                hint="write postgresql://USER@HOST/DATABASE; in a password, write % as %25, @ as %40 and / as %2F",
            ) from None
        given = self._address
        host = given.get("host") or given.get("hostaddr") or "the local socket"
        port = f":{given['port']}" if "port" in given else ""
        user = f" as {given['user']}" if "user" in given else ""
        self._whole_sessions = False
        """Whether a pooler assigns whole sessions."""
        self.where = f"PostgreSQL at {host}{port}/{given.get('dbname', '')}{user}"

    def name(self, info: psycopg.ConnectionInfo) -> str:
        """Return the name of the database in the witness: the same for every role and every host of an address.

        Missing parts of the address come from the environment, so the connection provides the actual values.
        """
        given = self._address
        host = given.get("host") or given.get("hostaddr") or info.host
        port = given.get("port") or info.port
        return f"PostgreSQL at {host}:{port}/{info.dbname}"

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of a connection. `set_up` sets the rest after connecting."""
        hosts = self._address.get("host") or self._address.get("hostaddr") or ""
        return {
            "application_name": "tenax",
            "connect_timeout": str(CONNECT_SECONDS),
            **TCP,
            # Choose the primary of several hosts. "read-write" would skip a server whose default is read-only.
            **({"target_session_attrs": "primary"} if "," in hosts else {}),
            **self._address,
            "client_encoding": "UTF8",
            "autocommit": True,
            "context": _ADAPTERS,
            "prepare_threshold": 0,
        }

    def connect(self, **settings: str) -> Connection:
        """Open a connection with the given server settings. Raises `psycopg.Error`."""
        connection = Connection.connect(**self.parameters())
        try:
            self.set_up(connection, **settings)
        except BaseException:
            connection.close()
            raise
        return connection

    def set_up(self, connection: Connection, **settings: str) -> None:
        """Set all time limits after connecting, because a pooler refuses unknown startup options.

        A pooler with shared sessions would pass the settings on to other clients, so such a pooler is refused first.
        Raises `psycopg.Error`.
        """
        connection.answer_seconds = self._timing.answer_seconds
        if (
            _session(connection) != connection.info.backend_pid
            and not self._whole_sessions
        ):
            self._check_pooler(connection)
        wanted = {**SETTINGS, **settings}
        calls = ", ".join(["set_config(%s, %s, false)"] * len(wanted))
        values = [text for setting in wanted.items() for text in setting]
        connection.execute(f"select {calls}".encode(), values, prepare=False)

    def _check_pooler(self, connection: psycopg.Connection[SqlRow]) -> None:
        """Check that a pooler gives two open connections separate sessions. Raises `SharedSessions`.

        The connections ask in turn and repeatedly, because a pooler may assign sessions in any order.
        """
        with Connection.connect(**self.parameters()) as other:
            asked = [
                (_session(connection), _session(connection), _session(other))
                for _ in range(PROBES)
            ]
        ours = {session for first, second, _ in asked for session in (first, second)}
        others = {session for _, _, session in asked}
        if len(ours) > 1 or len(others) > 1 or ours & others:
            raise SharedSessions(_SHARED)
        self._whole_sessions = True

    # -- errors ----------------------------------------------------------------------------------------------

    def judge(
        self,
        error: psycopg.Error | UnicodeError,
        *,
        committing: bool = False,
        lost: bool = False,
    ) -> Trouble:
        """Classify an error. `lost`: the connection is lost, so a sent commit may have happened."""
        if isinstance(error, UnicodeEncodeError):
            raise InvalidInput(
                "The text contains an unpaired surrogate, which cannot be stored."
            ) from error
        if isinstance(error, UnicodeError):
            damaged = StoreDamaged(
                f"{self.where} contains text that is not UTF-8.",
                hint="run: tenax doctor",
            )
            return Trouble(damaged, lasting=True)
        error = _root(error)
        if isinstance(error, psycopg.DataError) and error.sqlstate in {
            None,
            "22021",
            "22P05",
        }:
            raise InvalidInput(
                f"PostgreSQL cannot store this: {_message(error)}."
            ) from error
        found, lasting = self._meaning(error, error.sqlstate or "")
        return Trouble(found, unknown=committing and lost, lasting=lasting)

    def _meaning(self, error: psycopg.Error, state: str) -> tuple[StoreError, bool]:  # noqa: PLR0911  (a list of cases)
        where, words = self.where, _message(error)
        if isinstance(error, SharedSessions) or state in _NOT_OUR_SESSION:
            return StoreUnavailable(
                f"{where} is behind a {_SHARED}.", hint=_NO_POOLER
            ), True
        match state[:2], state:
            case "40", _:
                return StoreBusy(
                    f"{where}: another transaction interfered: {words}."
                ), False
            case _, "23505" if error.diag.table_name in _RACED:
                return StoreBusy(
                    f"{where}: another process stored the same row at the same time."
                ), False
            case _, "55P03" | "57014":
                return StoreBusy(f"{where} is busy: {words}."), False
            case _, "53100":
                return StoreFull(
                    f"There is no room left at {where}.",
                    hint="free some disk space there",
                ), True
            case _, "25006" | "42501":
                return StoreUnavailable(f"{where} cannot be written to: {words}."), True
            case (("53" | "57" | "58" | "08"), _):
                return StoreUnavailable(f"{where} does not answer: {words}."), False
            case "", _ if isinstance(
                error, psycopg.OperationalError | psycopg.InterfaceError
            ):
                return StoreUnavailable(f"{where} does not answer: {words}."), False
            case _:
                return StoreDamaged(
                    f"{where} was not as expected: {words}.", hint="run: tenax doctor"
                ), True

    def cannot_open(self, error: psycopg.Error) -> CannotOpen:
        """Return the reason why the store cannot be opened, as an error with a single sentence."""
        words = _SHARED if error.sqlstate in _NOT_OUR_SESSION else _message(error)
        for pattern, sentence, hint in _REASONS:
            if re.search(pattern, words):
                return CannotOpen(sentence.format(where=self.where), hint=hint)
        return CannotOpen(f"{self.where} cannot be opened: {words}.")


_SHARED: Final = "pooler that shares sessions among its clients"
_NO_POOLER: Final = (
    "connect to the server itself, or set pool_mode = session in the pooler"
)
_NOT_OUR_SESSION: Final = frozenset({"26000", "42P05"})
"""A prepared statement is missing or exists already: the session belongs to another client."""
_REASONS = (
    (_SHARED, "{where} is behind a " + _SHARED + ".", _NO_POOLER),
    ("refused|timeout|No such file|resolve host|could not translate|unreachable|No route|no answer",
     "There is no {where}.", "start the server, or correct the address"),
    ("password|authentication|pg_hba", "{where} did not accept the user or the password.",
     "correct them in the address, or set PGPASSWORD"),
    ('database ".*" does not exist', "{where} has no such database.", "make it with createdb, or correct the name"),
    ('role ".*" does not exist', "{where} has no such user.", "make it with createuser, or correct the name"),
    ("starting up|shutting down|recovery mode|not yet accepting", "{where} is starting or stopping.", "try again in a moment"),
    ("during recovery|hot standby", "{where} is a standby, which cannot be written to.", "name the server that it copies"),
    ("permission denied", "{where} may not make the tables of the store.",
     "give that user a database or a schema of its own"),
    ("already exists|does not exist", "{where} holds the tables of another program.",
     "give Tenax a database or a schema of its own"),
)  # fmt: skip


def _session(connection: psycopg.Connection[SqlRow]) -> int:
    """Return the server's process id for a connection. A pooler reports an invented id."""
    rows = connection.execute(b"select pg_backend_pid()", prepare=False).fetchall()
    return int(rows[0][0])


def _message(error: psycopg.Error) -> str:
    """Return the message of the server or the library, on a single line."""
    words = (
        error.diag.message_primary
        or str(error).strip().split("\n")[0]
        or type(error).__name__
    )
    words = re.sub(
        r"^(connection (failed|is bad): )?(connection to server at .*? failed: )?(FATAL:\s+)?",
        "",
        words,
    )
    return words.strip().rstrip(".")


def _root(error: psycopg.Error) -> psycopg.Error:
    """Return the first error of a pipeline. The last error may be only a consequence of the first."""
    while not error.sqlstate and isinstance(error.__context__, psycopg.Error):
        error = error.__context__
    return error

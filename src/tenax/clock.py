"""Clock, Timing and Ids: the only sources of time and chance.

Code takes the time, pauses, random numbers and new ids from this module. Tests pass a
simulated clock (`tenax.testing.SimClock`) and repeat a run exactly.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tenax.errors import InvalidInput

__all__ = [
    "Clock",
    "Ids",
    "SystemClock",
    "Timing",
    "is_append_id",
    "machine_zone",
    "rfc3339",
    "zone_of",
]

_CHANCE_BYTES = 16_384


class Clock(Protocol):
    """The time as needed by the journal."""

    def now_us(self) -> int:
        """Return the wall clock in microseconds since 1970 UTC. For display only; never
        compared to make a decision.
        """

    def monotonic(self) -> float:
        """Return seconds since boot. Monotonic, and equal in every process of the
        machine.
        """

    def boot_id(self) -> str:
        """Return the id of the current boot, the origin of `monotonic`."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The clock of the machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        except OSError:
            # On systems other than Linux (untested): the time of the boot, to the minute, identifies the boot.
            return f"booted-{round((time.time() - time.monotonic()) / 60)}"

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Periods and waits without a setting, in seconds. A test passes other values in `Config.timing` or to `tenax.open`."""

    upkeep_seconds: float = 10.0
    """How often a runtime looks for conversations without a live owner process."""
    close_seconds: float = 5.0
    """How long a closing runtime waits for background work."""
    quiet_seconds: float = 20.0
    """How long a conversation rests before the review."""
    recall_seconds: float = 0.25
    """How long the built-in memory has for a question, before a turn continues without an answer."""
    provider_recall_seconds: float = 0.25
    """How long the memory providers have for a question."""
    review_seconds: float = 30.0
    """How often the review looks for conversations left by other processes."""
    tool_stop_seconds: float = 5.0
    """How long the gate waits until a cancelled tool call has stopped."""
    process_end_seconds: float = 5.0
    """How long a stopped background process has to end while Tenax goes on."""
    find_seconds: float = 10.0
    """After this time `find_files` and `search_files` end, with the results found until then."""
    channel_retry_seconds: float = 1.0
    """The first pause before Tenax tries a failed request to a chat app again."""
    channel_lease_seconds: float = 10.0
    """How long a dead process keeps the accounts of chat apps from the other processes, if nothing shows its death."""
    backup_look_seconds: float = 300.0
    """How often a server looks whether a backup is due."""
    adopt_seconds: float = 16.0
    """How long `tenax restore --adopt` waits for processes of a PostgreSQL store that may come back."""
    channel_file_seconds: float = 10.0
    """How long the files of a message from a chat app may delay the message."""
    mcp_retry_seconds: float = 0.5
    """The first pause before Tenax connects to a lost MCP server again."""
    mcp_wait_seconds: float = 5.0
    """How long a tool call waits for the connection to a lost MCP server."""
    mcp_fresh_seconds: float = 10.0
    """Before a call, Tenax requests the list of tools again if the list is older."""
    scan_seconds: float = 5.0
    """How long a scan of the folder before a tool call may take."""
    interrupt_seconds: float = 1.0
    """How long an interrupted tool call may delay the end of the process to record changed files."""
    device_fresh_seconds: float = 0.5
    """The server reads a signed-in device from the store again after this time."""
    device_store_seconds: float = 0.5
    """How long a request of a known device waits for the store."""
    recovery_seconds: float = 0.5
    """How long a read of a conversation waits for the recovery of late output."""
    delegate_seconds: float = 3600.0
    """How long a sub-agent may work on a task. The time in which a person is asked does not count."""
    probe_seconds: float = 4.0
    """How long setup waits for a local model server to list its models."""
    drain_seconds: float = 0.1
    """How long Tenax reads after the end of an answer, to use the connection again."""
    settings_lock_seconds: float = 5.0
    """How long a change of the settings file waits for other changes."""
    flush_seconds: float = 0.75
    """The longest time between writing and flushing a partial. With the pause between two appends the sum is below a
    second."""
    output_seconds: float = 0.5
    """The pause between two looks at the output of a running tool. A quicker tool stores only its result."""
    read_seconds: float = 3.0
    """How long a failed read of the store is retried."""
    turn_seconds: float = 10.0
    """How long a write to a SQLite store waits for the writers of other processes."""
    checkpoint_idle_seconds: float = 5.0
    """The thread for checkpoints of a SQLite store ends after this time without work."""
    answer_seconds: float = 45.0
    """How long Tenax waits for PostgreSQL. Longer than the server's time limit for a statement, so only a hanging
    server reaches the limit."""
    reader_seconds: float = 3.0
    """How long a read waits for a free connection to PostgreSQL."""
    witness_seconds: float = 1.0
    """How often a process writes the witness of a store."""
    index_gather_seconds: float = 0.5
    """How long the search indexer waits for more messages. A short command ends earlier."""
    index_idle_seconds: float = 5.0
    """The search indexer ends after this time without work."""
    index_close_seconds: float = 2.0
    """How long a closing store waits for the search indexer."""
    stdin_seconds: float = 3.0
    """How long `tenax -p` waits for input on a pipe, before a note on stderr tells that the command waits."""
    verify_quiet_seconds: float = 1.0
    """`tenax doctor` shows the progress of a verification that takes longer."""
    verify_log_seconds: float = 10.0
    """How often `tenax doctor` writes the progress to a stderr that is not a terminal."""
    search_seconds: float = 1.0
    """How long a search checks the proposals of the index. The check takes long for a rare combination of common
    words. On SQLite the check may exceed the limit, to get past all messages with the same timestamp."""


class Ids:
    """Source of new ids. An id is a UUID version 7, so ids sort by creation time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._chance: list[bytes] = []
        self._tails: list[bytes] = []

    def conversation(self) -> str:
        return f"c_{self._uuid7()}"

    def segment(self) -> str:
        return f"s_{self._uuid7()}"

    def run(self) -> str:
        return f"r_{self._uuid7()}"

    def instance(self) -> str:
        return f"i_{self._uuid7()}"

    def append(self) -> bytes:
        """Return the bytes of a new UUID version 7. Fast, because every append needs an
        id.
        """
        try:
            tail = self._tails.pop()
        except IndexError:
            self._tails += [_tail(self.salt()) for _ in range(_CHANCE_BYTES // 16)]
            tail = _tail(self.salt())
        return (self._clock.now_us() // 1000).to_bytes(6, "big") + tail

    def salt(self) -> bytes:
        """Return 16 random bytes. Random bytes are read from the system in bulk,
        because every append needs two salts.
        """
        try:
            return self._chance.pop()
        except IndexError:
            more = os.urandom(_CHANCE_BYTES)
            self._chance += [
                more[start : start + 16] for start in range(16, _CHANCE_BYTES, 16)
            ]
            return more[:16]

    def _uuid7(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.append())


def _tail(chance: bytes) -> bytes:
    """Return the bytes after the timestamp in a UUID version 7."""
    return (
        bytes((0x70 | chance[0] & 0x0F, chance[1], 0x80 | chance[2] & 0x3F))
        + chance[3:10]
    )


def is_append_id(value: object) -> bool:
    """Return whether `Ids.append` could have made the bytes. The store reads the time
    from an append id.
    """
    return (
        isinstance(value, bytes)
        and len(value) == 16  # noqa: PLR2004
        and value[6] >> 4 == 7  # noqa: PLR2004
        and value[8] >> 6 == 2  # noqa: PLR2004
    )


def machine_zone() -> str:
    """Return the IANA name of the machine's time zone, or UTC if unknown."""
    names = [os.environ.get("TZ", "").removeprefix(":")]
    with contextlib.suppress(OSError, UnicodeDecodeError):
        names.append(str(Path("/etc/localtime").resolve()).partition("zoneinfo/")[2])
        names.append(Path("/etc/timezone").read_text("ascii").strip())
    for name in filter(None, names):
        with contextlib.suppress(InvalidInput):
            zone_of(name)
            return name
    return "UTC"


def rfc3339(at_us: int) -> str:
    """Format a time as RFC 3339 in UTC, to the microsecond."""
    return f"{datetime.fromtimestamp(at_us // 1_000_000, UTC):%Y-%m-%dT%H:%M:%S}.{at_us % 1_000_000:06d}Z"


def zone_of(name: str) -> tzinfo:
    """Return the time zone with an IANA name. Raises `InvalidInput` for an unknown
    name.
    """
    # UTC works even on a machine without a list of zones.
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInput(
            f"There is no time zone {name[:60]!r} on this machine.",
            hint="name one such as Europe/Berlin",
        ) from error

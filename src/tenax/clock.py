"""Clock and Ids: the only sources of time and chance.

Code takes the time, pauses, random numbers and new ids from this module. Tests pass a
simulated clock (`tenax.testing.SimClock`) and repeat a run exactly.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tenax.errors import InvalidInput

__all__ = [
    "Clock",
    "Ids",
    "SystemClock",
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
            # Elsewhere than on Linux (not tried): the moment of the boot, to the minute, names it well enough.
            return f"booted-{round((time.time() - time.monotonic()) / 60)}"

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Ids:
    """Source of new ids. An id is a UUID version 7, so ids sort by creation time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._chance: list[bytes] = []
        self._tails: list[bytes] = []

    def conversation(self) -> str:
        return f"c_{self._uuid7()}"

    def stretch(self) -> str:
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
    if name == "UTC":  # also where the machine has no list of zones
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInput(
            f"There is no time zone {name[:60]!r} on this machine.",
            hint="name one such as Europe/Berlin",
        ) from error

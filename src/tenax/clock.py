"""Clock and Ids: the only sources of time and chance.

Everything that needs the time, a wait, a random number or a new id takes it from here, so that a test can
hand in a simulated one (`tenax.testing.SimClock`) and get the same run twice.
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
    """Time as the journal needs it."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970 UTC. For people; never compared to decide anything."""

    def monotonic(self) -> float:
        """Seconds that only grow within one boot of the machine and are the same for all its processes."""

    def boot_id(self) -> str:
        """Names the boot that `monotonic` counts from."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's own clock."""

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
    """New ids: UUID version 7, so that they sort by the time they were made."""

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
        """The bytes of a version 7 UUID, made the short way: every append needs one."""
        try:
            tail = self._tails.pop()
        except IndexError:
            self._tails += [_tail(self.salt()) for _ in range(_CHANCE_BYTES // 16)]
            tail = _tail(self.salt())
        return (self._clock.now_us() // 1000).to_bytes(6, "big") + tail

    def salt(self) -> bytes:
        """16 bytes of chance. The system is asked for many at once, because every append needs two."""
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
    """What follows the time in a version 7 UUID."""
    return (
        bytes((0x70 | chance[0] & 0x0F, chance[1], 0x80 | chance[2] & 0x3F))
        + chance[3:10]
    )


def is_append_id(value: object) -> bool:
    """Whether these are bytes that `Ids.append` could have made: the store reads the time from them."""
    return (
        isinstance(value, bytes)
        and len(value) == 16  # noqa: PLR2004
        and value[6] >> 4 == 7  # noqa: PLR2004
        and value[8] >> 6 == 2  # noqa: PLR2004
    )


def machine_zone() -> str:
    """The IANA name of the zone that this machine lives in; UTC where it does not say."""
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
    """UTC, to the microsecond, for machines."""
    return f"{datetime.fromtimestamp(at_us // 1_000_000, UTC):%Y-%m-%dT%H:%M:%S}.{at_us % 1_000_000:06d}Z"


def zone_of(name: str) -> tzinfo:
    """The zone of this IANA name."""
    if name == "UTC":  # also where the machine has no list of zones
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInput(
            f"There is no time zone {name[:60]!r} on this machine.",
            hint="name one such as Europe/Berlin",
        ) from error

"""The result of the last verification on this host, a file in the state folder. The page and `tenax doctor` write it."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Final

import msgspec

from tenax.clock import rfc3339
from tenax.concurrency import write_atomically
from tenax.config import Config
from tenax.journal.verify.store import Report

__all__ = ["Verified", "describe_report", "read_verified", "write_verified"]

PROBLEMS_KEPT_MAX: Final = 100


class Verified(msgspec.Struct, frozen=True):
    """The result of a verification."""

    ok: bool
    conversations: int
    events: int
    seconds: float
    at: str
    """The time of the end of the verification."""
    problems: list[str]
    """The first problems, in words."""


def describe_report(report: Report, seconds: float, at_us: int) -> Verified:
    return Verified(
        ok=report.ok,
        conversations=report.conversations,
        events=report.facts + report.partials,
        seconds=round(seconds, 3),
        at=rfc3339(at_us),
        problems=[str(problem) for problem in report.problems[:PROBLEMS_KEPT_MAX]],
    )


def read_verified(config: Config, user: str) -> Verified | None:
    """Return the last result for a user. The owner verifies the whole store; a user verifies the own conversations."""
    try:
        return msgspec.json.decode(_file(config, user).read_bytes(), type=Verified)
    except (OSError, msgspec.MsgspecError):
        return None


def write_verified(config: Config, user: str, found: Verified) -> None:
    """Store a result. A failure is ignored, because the caller shows the result anyway."""
    file = _file(config, user)
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(file, msgspec.json.encode(found))


def _file(config: Config, user: str) -> Path:
    name = hashlib.sha256(user.encode()).hexdigest()
    return config.directories.state / "verified" / f"{name}.json"

"""Test doubles for tests of Tenax and of programs built on Tenax. No mock library is needed.

`memory()` opens a journal without a file. `SimClock` is a clock moved by the test. `FaultyJournal` fails, hangs or
kills the process at named failure points. `Provider` plays a script over real HTTP; `tenax.models.ScriptedModel` plays
a script without HTTP.
"""

from typing import TYPE_CHECKING

from tenax.testing.clock import SimClock
from tenax.testing.faults import Faults, FaultyJournal, Hold
from tenax.testing.memory import memory

if TYPE_CHECKING:
    from tenax.testing.provider import Provider

__all__ = [
    "Faults",
    "FaultyJournal",
    "Hold",
    "Provider",
    "SimClock",
    "memory",
]


def __getattr__(name: str) -> object:
    """Import `Provider` at first use, because the module is also a program (`python -m tenax.testing.provider`)."""
    if name != "Provider":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tenax.testing.provider import Provider  # noqa: PLC0415

    return Provider

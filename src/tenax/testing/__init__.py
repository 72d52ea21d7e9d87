"""What a test of Tenax, or of something built on it, is made of. No mock library is needed.

`memory()` is a journal without a file. `SimClock` is time that passes when the test says so. `FaultyJournal` has named
points at which it fails, hangs or dies.
`Provider` is a model's provider that plays a script over real HTTP; a model without a wire is `tenax.models.ScriptedModel`.
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
    """`Provider` is also a program (`python -m tenax.testing.provider`), so it is imported when it is asked for."""
    if name != "Provider":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tenax.testing.provider import Provider  # noqa: PLC0415

    return Provider

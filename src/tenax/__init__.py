"""Tenax: a self-hosted AI agent that never loses the thread.

    async with tenax.Runtime(tenax.load(os.environ)) as runtime: ...     the agent
    journal = tenax.open("sqlite:///tenax.db")                           the journal; or postgresql://...

The names here are the public ones; everything else is reached through them. Each is imported
when it is first used: the command has to answer to Ctrl-C before all of it is there.
"""

from importlib import import_module as _module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenax.compat.sessions import AsyncSessionDB, SessionDB
    from tenax.config import load
    from tenax.journal import Journal, open  # noqa: A004  (the verb of this library is `tenax.open`)
    from tenax.journal.aio import AsyncJournal
    from tenax.runtime.runtime import Runtime
else:
    _PLACES = {
        "AsyncJournal": "tenax.journal.aio",
        "AsyncSessionDB": "tenax.sessions",
        "Journal": "tenax.journal",
        "Runtime": "tenax.runtime.runtime",
        "SessionDB": "tenax.sessions",
        "load": "tenax.config",
        "open": "tenax.journal",
    }

    def __getattr__(name: str) -> object:
        if name in _PLACES:
            found = globals()[name] = getattr(_module(_PLACES[name]), name)
            return found
        try:
            return _module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}"
            ) from None

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "AsyncJournal",
    "AsyncSessionDB",
    "Journal",
    "Runtime",
    "SessionDB",
    "load",
    "open",
]

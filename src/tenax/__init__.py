"""Tenax: a self-hosted AI agent that never loses the thread.

    async with tenax.Runtime(tenax.load(os.environ)) as runtime: ...     the agent
    journal = tenax.open("sqlite:///tenax.db")                           the journal; or postgresql://...

The names listed here are public; they give access to everything else. A name is imported on first use, so that the
command reacts to Ctrl-C before the whole package is loaded.
"""

from importlib import import_module as _module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenax.assembly import Runtime
    from tenax.compat.sessions import AsyncSessionDB, SessionDB
    from tenax.config import load
    from tenax.journal import Journal, open  # noqa: A004  (the verb of this library is `tenax.open`)
    from tenax.journal.aio import AsyncJournal
else:
    _MODULES = {
        "AsyncJournal": "tenax.journal.aio",
        "AsyncSessionDB": "tenax.sessions",
        "Journal": "tenax.journal",
        "Runtime": "tenax.assembly",
        "SessionDB": "tenax.sessions",
        "load": "tenax.config",
        "open": "tenax.journal",
    }

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            found = globals()[name] = getattr(_module(_MODULES[name]), name)
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

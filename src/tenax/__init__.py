"""Tenax: a self-hosted AI agent that never loses the thread.

    async with tenax.Runtime(tenax.load(os.environ)) as runtime: ...     the agent
    journal = tenax.open("sqlite:///tenax.db")                           the journal; or postgresql://...

The names here are the public ones; everything else is reached through them.
"""

from tenax.config import load
from tenax.journal import Journal, open  # noqa: A004  (the verb of this library is `tenax.open`)
from tenax.journal.aio import AsyncJournal
from tenax.runtime import Runtime
from tenax.sessions import AsyncSessionDB, SessionDB

__all__ = ["AsyncJournal", "AsyncSessionDB", "Journal", "Runtime", "SessionDB", "load", "open"]

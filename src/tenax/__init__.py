"""Tenax: a self-hosted AI agent that never loses the thread.

    journal = tenax.open("sqlite:///tenax.db")     or postgresql://...

The names here are the public ones; everything else is reached through them.
"""

from tenax.journal import Journal, open  # noqa: A004  (the verb of this library is `tenax.open`)
from tenax.journal.aio import AsyncJournal
from tenax.sessions import AsyncSessionDB, SessionDB

__all__ = ["AsyncJournal", "AsyncSessionDB", "Journal", "SessionDB", "open"]

"""The journal and its engines. `open` is the only difference a user sees between them."""

from __future__ import annotations

from pathlib import Path

from tenax.clock import Clock, Ids, SystemClock
from tenax.errors import CannotOpen
from tenax.journal.ephemeral import EphemeralStore
from tenax.journal.journal import Journal
from tenax.journal.search import NoSearch
from tenax.journal.sqlite import SqliteStore

__all__ = ["LOCAL_USER", "Journal", "open"]

LOCAL_USER = "local"
"""The user of a store that one person has to themselves."""


def open(url: str, *, user: str | None = LOCAL_USER, clock: Clock | None = None, patience: float = 30.0) -> Journal:  # noqa: A001
    """Open a store: `sqlite:///path`, `postgresql://...` or `memory:`. It is made if it is not there."""
    clock = clock or SystemClock()
    ids = Ids(clock)
    if url.startswith("sqlite:///"):
        store = SqliteStore(Path(url.removeprefix("sqlite:///")), clock, ids, patience=patience)
        return Journal(store, user, NoSearch())
    if url == "memory:":
        return Journal(EphemeralStore(clock, ids), user, NoSearch())
    raise CannotOpen(f"A store is named by sqlite:///PATH or postgresql://..., not by {url.split('@')[-1]!r}.")

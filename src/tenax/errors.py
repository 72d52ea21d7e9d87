"""Every error that Tenax raises on purpose, drawn once.

    TenaxError
    ├── ConfigError              the configuration does not say what is needed
    ├── InvalidInput             what was given cannot be stored; nothing was
    │   ├── TooLarge
    │   └── UnknownKind
    ├── Refused                  the store stands, and says no; nothing was stored
    │   ├── NoSuchConversation
    │   ├── ConversationExists
    │   ├── Gone                 deleted; only its tombstone is left
    │   ├── SessionEnded
    │   ├── HeadMoved            something that `expect` named is no longer true
    │   │   └── StretchMoved     a compaction came first: go on in `by`
    │   ├── LeaseLost            somebody else took the lease, or it was released
    │   ├── CursorMoved          another process advanced this reader
    │   ├── FactChanged          what is remembered was changed meanwhile
    │   ├── DedupReused          the same id came before with another body
    │   └── RunConflict          a second run, or none where one is needed
    ├── ToolFailed               a tool could not do it; the sentence is for the model and the person
    └── StoreError               the store itself
        ├── CannotOpen           wrong file, folder, library, file system or address
        │   └── SchemaTooNew     written by a newer Tenax; seen at open or at append
        ├── StoreUnavailable     away, busy or broken for now; nothing was stored
        │   ├── StoreBusy
        │   ├── StoreFull
        │   └── StoreIncomplete  lacks events that it had stored; read-only until that is accepted
        ├── OutcomeUnknown       it may be stored; a retry with `append_id` stores it once
        ├── StoreMisused         closed, used after fork, or opened by a second SQLite library
        └── StoreDamaged         what was read back is not what was written

A message is a sentence for a person. `hint`, where there is one, says what to do.
"""

from __future__ import annotations

import errno


class TenaxError(Exception):
    """Something Tenax can explain. `str(error)` is the sentence, `error.hint` the way on."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(TenaxError):
    """The configuration does not say what is needed."""


class InvalidInput(TenaxError):
    """What was given cannot be stored. Nothing was stored."""


class TooLarge(InvalidInput):
    """Larger than the store takes in one piece."""


class UnknownKind(InvalidInput):
    """An event of a kind that this version does not know."""


class Refused(TenaxError):
    """The store says no. Nothing was stored."""


class NoSuchConversation(Refused):
    """There is no such conversation, or none of this user's."""


class ConversationExists(Refused):
    """A conversation was opened under an id that is taken."""


class Gone(Refused):
    """The conversation was deleted."""


class SessionEnded(Refused):
    """The stretch was ended by a person, not by a compaction; it takes no more messages."""


class HeadMoved(Refused):
    """Something that `expect` named is no longer true."""


class StretchMoved(HeadMoved):
    """Another stretch is the head now: the one named in `by`."""

    def __init__(self, message: str, *, by: str | None) -> None:
        super().__init__(message)
        self.by = by


class LeaseLost(Refused):
    """The lease was taken over or released. Its old holder must stop."""


class CursorMoved(Refused):
    """The cursor does not stand where the caller thought."""


class FactChanged(Refused):
    """The fact is no longer what the caller saw."""


class DedupReused(Refused):
    """A source used the same id twice for different things."""


class RunConflict(Refused):
    """One run at a time per conversation."""


class ToolFailed(TenaxError):
    """A tool could not do it. The sentence is for the model and the person."""


class StoreError(TenaxError):
    """The store itself."""


class CannotOpen(StoreError):
    """The store cannot be opened here."""


class SchemaTooNew(CannotOpen):
    """A newer Tenax has changed the store; this process has to be restarted with it."""


class StoreUnavailable(StoreError):
    """The store is away for now. Nothing was stored."""


class StoreBusy(StoreUnavailable):
    """Others kept the store busy past the bound. Nothing was stored."""


class StoreFull(StoreUnavailable):
    """The disk is full. Nothing was stored."""


class StoreIncomplete(StoreUnavailable):
    """The store lacks events that it had stored: an older copy was put back, or it is damaged. Nothing was stored."""


class OutcomeUnknown(StoreError):
    """The store went away during the commit and stayed away past the bound.

    Append again with this `append_id`: it is stored once, whether or not it was stored now. A person looks first.
    """

    def __init__(self, message: str, *, append_id: bytes) -> None:
        super().__init__(
            message, hint="look whether it is there before you do it again"
        )
        self.append_id = append_id


class StoreMisused(StoreError):
    """The store was used in a way that would harm it; it was not."""


class StoreDamaged(StoreError):
    """What was read back is not what was written. Run `tenax doctor`."""


def unusable(
    said: str, error: OSError, *, hint: str = "set TENAX_HOME to a folder of yours"
) -> CannotOpen:
    """For a file or folder of Tenax's own: on a full disk another one would help nobody."""
    full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    return CannotOpen(
        f"{said}: {error.strerror}.", hint="free some disk space" if full else hint
    )

"""Every error that Tenax raises on purpose.

    TenaxError
    ├── ConfigError              the configuration is invalid or incomplete
    ├── InvalidInput             the input cannot be stored; nothing was stored
    │   ├── TooLarge
    │   └── UnknownKind
    ├── Refused                  the store works and refuses; nothing was stored
    │   ├── NoSuchConversation
    │   ├── ConversationExists
    │   ├── Gone                 deleted; only a tombstone is left
    │   ├── SessionEnded
    │   ├── HeadMoved            a condition in `expect` is no longer true
    │   │   └── SegmentMoved     a compaction came first: continue in `by`
    │   ├── LeaseLost            the lease was taken over or released
    │   ├── CursorMoved          another process advanced the cursor
    │   ├── MemoryChanged        the memory changed in the meantime
    │   ├── DedupReused          the same id was used before with another body
    │   └── RunConflict          a second run, or a missing run
    ├── ChannelError             a chat app; raised by the packages of `tenax.channels`
    │   ├── ChannelAway          not reached, or out of order; nothing happened there
    │   ├── SendUncertain        the chat app may have done what was asked
    │   ├── FloodWait            the chat app asks to wait; nothing happened there
    │   ├── ChannelRefused       refused for good
    │   ├── NotAuthorized        the token is refused
    │   └── ReceivedElsewhere    another program receives the updates of the account
    ├── ToolFailed               a tool failed; the message is for model and person
    │   ├── NoSuchFile           the folder of the tools has no such file
    │   └── TooBusy              no thread for the call; nothing was started
    └── StoreError               the store itself
        ├── CannotOpen           wrong file, folder, library, file system or address
        │   └── SchemaTooNew     written by a newer Tenax; found at open or append
        ├── StoreUnavailable     away, busy or broken for now; nothing was stored
        │   ├── StoreBusy
        │   ├── StoreFull
        │   └── StoreIncomplete  stored events are missing; read-only until accepted
        ├── OutcomeUnknown       possibly stored; a retry with `append_id` stores once
        ├── StoreMisused         closed, used after fork, or opened by a second SQLite
        └── StoreDamaged         the data read differs from the data written

An error message is a sentence for a person. The attribute `hint` says how to continue.
"""

from __future__ import annotations

import errno


class TenaxError(Exception):
    """Base class. `str(error)` is a sentence for a person; `error.hint` says how to
    continue.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(TenaxError):
    """The configuration is invalid or incomplete."""


class InvalidInput(TenaxError):
    """The input cannot be stored. Nothing was stored."""


class TooLarge(InvalidInput):
    """The data is larger than the limit of the store."""


class UnknownKind(InvalidInput):
    """The event has a kind unknown to this version."""


class Refused(TenaxError):
    """The store refuses. Nothing was stored."""


class NoSuchConversation(Refused):
    """The conversation does not exist, or belongs to another user."""


class ConversationExists(Refused):
    """A conversation was opened under an existing id."""


class Gone(Refused):
    """The conversation was deleted."""


class SessionEnded(Refused):
    """A person ended the segment (not a compaction). The segment accepts no messages."""


class HeadMoved(Refused):
    """A condition in `expect` is no longer true."""


class SegmentMoved(HeadMoved):
    """The head segment has changed to `by`."""

    def __init__(self, message: str, *, by: str | None) -> None:
        super().__init__(message)
        self.by = by


class LeaseLost(Refused):
    """The lease was taken over or released. The former holder must stop."""


class CursorMoved(Refused):
    """The cursor is not at the expected position."""


class MemoryChanged(Refused):
    """The memory has changed since the caller read the memory."""


class DedupReused(Refused):
    """A source used the same id for two different messages."""


class RunConflict(Refused):
    """A conversation has at most one open run."""


class ChannelError(TenaxError):
    """A chat app did not do what was asked."""


class ChannelAway(ChannelError):
    """The chat app cannot be reached, or is out of order. The request had no effect."""


class SendUncertain(ChannelError):
    """The request may have had its effect: the connection was lost, or the chat app
    answered with a server error.
    """


class FloodWait(ChannelError):
    """The chat app asks to wait for `seconds`. The request had no effect."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class ChannelRefused(ChannelError):
    """The chat app refuses the request for good: the chat is gone, the bot was blocked,
    or the message is invalid.
    """


class NotAuthorized(ChannelError):
    """The chat app refuses the token."""


class ReceivedElsewhere(ChannelError):
    """Another program receives the updates of the account."""


class SpeechFailed(TenaxError):
    """The words of a sound are not known. The sound itself is kept."""


class ToolFailed(TenaxError):
    """A tool failed. The message is for the model and the person."""


class NoSuchFile(ToolFailed):
    """The folder of the tools has no such file."""


class TooBusy(ToolFailed):
    """The process has no thread for the call. Nothing was started."""


class StoreError(TenaxError):
    """The store failed."""


class CannotOpen(StoreError):
    """The store cannot be opened here."""


class SchemaTooNew(CannotOpen):
    """A newer Tenax changed the store. Restart the process with the newer version."""


class StoreUnavailable(StoreError):
    """The store is unavailable for now. Nothing was stored."""


class StoreBusy(StoreUnavailable):
    """The store was busy for longer than the limit. Nothing was stored."""


class StoreFull(StoreUnavailable):
    """The disk is full. Nothing was stored."""


class StoreIncomplete(StoreUnavailable):
    """Stored events are missing: an older copy was restored, or the store is damaged.
    Nothing was stored.
    """


class OutcomeUnknown(StoreError):
    """The store went away during the commit and stayed away past the limit.

    Append again with the same `append_id`: the append is stored exactly once. A person
    checks first.
    """

    def __init__(self, message: str, *, append_id: bytes) -> None:
        super().__init__(
            message, hint="look whether it is there before you do it again"
        )
        self.append_id = append_id


class StoreMisused(StoreError):
    """The call would harm the store and was refused."""


class StoreDamaged(StoreError):
    """The data read differs from the data written. Run `tenax doctor`."""


def unusable(
    said: str, error: OSError, *, hint: str = "set TENAX_HOME to a folder of yours"
) -> CannotOpen:
    """Return the error for an unusable file or folder of Tenax. On a full disk,
    choosing another folder is no help.
    """
    full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    return CannotOpen(
        f"{said}: {error.strerror}.", hint="free some disk space" if full else hint
    )

"""The witness: a small file outside the store with the last event of every conversation.

A store cannot prove that nothing is missing at its end: a restored copy, a log cut by a flipped bit and a lagging
standby are all consistent. So every process remembers the seq and the digest of the last synced event of a conversation
after a commit, and writes both to the witness at most once a second. A process opening the store compares. The file
contains no text of conversations.

A witness never moves backwards. Processes take turns with a lock on the folder, read the file again, and keep the
larger seq per conversation. A larger seq replaces a smaller seq only if the store still has the event of the smaller
seq, because a store restored under a running process grows past the lost events. Only `accept` starts the witness
again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import stat
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tenax.concurrency import locked, start_thread, write_atomically
from tenax.errors import CannotOpen, StoreError
from tenax.journal.row_key import ALL_SEQS, SEQ_BITS, bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from tenax.clock import Clock
    from tenax.journal.row_index import HeadState
    from tenax.journal.store import SqlRow, Store

__all__ = ["CONVERSATIONS_MAX", "Missing", "Witness"]

log = logging.getLogger(__name__)

CONVERSATIONS_MAX: Final = 1000
"""The witness keeps the conversations with the latest changes.

A restored copy or a cut log lacks the latest changes first.
"""
_IDLE_SAVES: Final = 5
"""The thread ends after this number of rounds without news."""
_TURN_SECONDS: Final = 2.0
_COPIED_SECONDS: Final = 10.0
_VERSION: Final = 1


class Missing(msgspec.Struct, frozen=True):
    """A conversation without the events after `have` up to `upto`.

    If `have` equals `upto`, the store has a different event with the seq `upto`.
    """

    user: str
    conversation: str
    have: int
    upto: int
    messages: int
    """The number of missing messages."""

    def __str__(self) -> str:
        if self.have >= self.upto:
            return f"{self.conversation}: event {self.upto} is not the event that was stored."
        first = self.have + 1
        if first == self.upto:
            return f"{self.conversation}: event {first} was stored, and is missing."
        return f"{self.conversation}: events {first} to {self.upto} were stored, and are missing."


class _Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last synced event of a conversation."""

    user: str
    conversation: str
    facts: int
    digest: str
    messages: int
    at: int
    """The time of the note, in microseconds."""


class _Testimony(msgspec.Struct):
    """The record of a store."""

    generation: int = 0
    """The number of accepted losses. Notes from an earlier generation no longer count."""
    file: int = 0
    """The inode of a SQLite file. A restored copy has another inode."""
    heads: dict[int, _Head] = {}


class _File(msgspec.Struct):
    """The whole file: a testimony per store."""

    version: int
    stores: dict[str, _Testimony]
    written: float = 0.0
    """The time of writing in seconds, by the clock of the file system. 0 if an earlier version wrote the file."""


class Examined(NamedTuple):
    """The result of comparing a store with the witness."""

    missing: list[Missing]
    file: int
    """The inode of the recorded file, or 0."""
    facts: dict[int, int]
    """The seq of the last fact, by the number of the conversation."""


class Witness:
    """The notes of a process about a store, and the file shared by all processes."""

    def __init__(self, path: Path, name: str, store: Store, clock: Clock) -> None:
        self._path = path
        self._name = name
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._noted: dict[int, _Head] = {}
        self._deleted: set[int] = set()
        self._generation = 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._failed = False
        """Whether an error was logged."""
        self._looked_at: tuple[int, ...] = ()
        self._compared = False

    # -- noting ----------------------------------------------------------------------------------------------

    def note(self, states: Iterable[HeadState]) -> None:
        """Remember the heads. The events of the heads must be committed and flushed."""
        at = self._clock.now_us()
        with self._lock:
            for state in states:
                known = self._noted.get(state.num)
                if known is None or known.facts <= state.facts:
                    # Keep the dict in the order of changes: the last changed conversation is last.
                    self._noted.pop(state.num, None)
                    self._noted[state.num] = _Head(
                        state.user,
                        state.id,
                        state.facts,
                        state.digest.hex(),
                        state.messages,
                        at,
                    )
            if self._thread is None and not self._closed.is_set():
                self._thread = start_thread(self._save_often, "tenax-witness")

    def forget(self, num: int) -> None:
        """Forget a deleted conversation."""
        with self._lock:
            self._noted.pop(num, None)
            self._deleted.add(num)

    def _save_often(self) -> None:
        idle = 0
        while not self._closed.wait(self._store.timing.witness_seconds):
            idle = 0 if self._try_save() else idle + 1
            with self._lock:
                if idle >= _IDLE_SAVES and not self._noted:
                    self._thread = None
                    return

    def close(self) -> None:
        """Save the notes and stop."""
        self._closed.set()
        self._try_save()
        # The first attempt may have found that a loss was accepted.
        self._try_save()

    def _try_save(self) -> bool:
        """Save the notes. Return `False` if there were none. Log an unexpected error once, and keep the notes."""
        try:
            return self.save()
        except (OSError, StoreError):
            # The notes are kept and saved later.
            return True
        except Exception:
            if not self._failed:
                log.exception(
                    "Cannot write the witness of the store. Tenax continues and retries."
                )
            self._failed = True
            return True

    # -- the file --------------------------------------------------------------------------------------------

    def save(self) -> bool:
        """Write the notes since the last call. Return `False` if there were none.

        Raises `OSError`, or `StoreError` if the store cannot be read. The notes are kept then.
        """
        with self._lock:
            noted, self._noted = self._noted, {}
            deleted, self._deleted = self._deleted, set()
        if not noted and not deleted:
            return False
        lost: set[int] = set()
        still_there: dict[int, _Head] = {}
        try:
            with self._turn() as file:
                known = file.stores.setdefault(self._name, _Testimony(self._generation))
                accepted = known.generation != self._generation
                if accepted:
                    still_there = self._held(noted)
                else:
                    older = {
                        num: head for num, head in known.heads.items() if num in noted
                    }
                    lost = older.keys() - self._held(older).keys()
                    sound = {
                        num: head for num, head in noted.items() if num not in lost
                    }
                    known.heads = _merged(known.heads, sound, deleted)
                    self._write_file(file)
        except BaseException:
            with self._lock:
                self._noted = _merged(self._noted, noted, ())
                self._deleted |= deleted
            raise
        if accepted or not lost <= deleted:
            self._store.look_again()
        # Another process accepted a loss unnoticed by this process. Save the notes next time.
        if accepted:
            with self._lock:
                self._noted = _merged(self._noted, still_there, ())
                self._deleted |= deleted
        return True

    def _held(self, heads: Mapping[int, _Head]) -> dict[int, _Head]:
        """Return the heads whose event is in the store. Raises `StoreError`."""
        row_keys = {num << SEQ_BITS | head.facts: num for num, head in heads.items()}
        if not row_keys:
            return {}
        rows = self._store.read_digests(list(row_keys))
        there = {row_keys[row_key]: bytes(digest).hex() for row_key, digest in rows}
        return {
            num: head for num, head in heads.items() if there.get(num) == head.digest
        }

    def begin(self, file: int) -> None:
        """Record the inode of the store's file."""
        # A read-only folder has no witness.
        with contextlib.suppress(OSError), self._turn() as found:
            found.stores.setdefault(
                self._name, _Testimony(self._generation)
            ).file = file
            self._write_file(found)

    def accept(self, heads: Mapping[int, _Head], file: int) -> None:
        """Start again from the present content of the store. Raises OSError."""
        with self._turn() as found:
            known = found.stores.setdefault(self._name, _Testimony())
            generation = known.generation + 1
            found.stores[self._name] = _Testimony(generation, file, dict(heads))
            self._write_file(found)
            with self._lock:
                self._generation, self._noted = generation, {}

    def accepted(self) -> bool:
        """Return whether another process has accepted the loss found by this process."""
        seen = self._stamp()
        if seen == self._looked_at:
            return False
        try:
            known = self._read_file().stores.get(self._name)
        except OSError:
            return False
        if known is not None and known.generation != self._generation:
            return True
        self._looked_at = seen
        return False

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ino, found.st_size

    @contextlib.contextmanager
    def _turn(self) -> Iterator[_File]:
        """Lock the folder and read the file. Raises OSError, also on timeout."""
        with locked(self._path.parent, _TURN_SECONDS):
            yield self._read_file()

    def _read_file(self) -> _File:
        """Return the content of the file. A missing or damaged file counts as empty. Raises OSError."""
        try:
            # Reading from a pipe would block.
            if not stat.S_ISREG(self._path.stat().st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            checksum, _, text = self._path.read_bytes().partition(b"\n")
            if checksum == _checksum(text):
                found = msgspec.json.decode(text, type=_File)
                if found.version == _VERSION:
                    return found
        except (
            FileNotFoundError,
            NotADirectoryError,
            msgspec.DecodeError,
            UnicodeDecodeError,
        ):
            pass
        return _File(_VERSION, {})

    def _read_to_compare(self) -> _File:
        """Return the content of the file.

        While the store is being opened, an unreadable file raises `CannotOpen`. Later only the notes of the process are
        used.
        """
        try:
            return self._read_file()
        except OSError as error:
            if self._compared:
                return _File(_VERSION, {})
            raise CannotOpen(
                f"Cannot read {self._path}, which records what the store contains: {error.strerror}.",
                hint="give yourself the right to read it; or remove it, and a loss is not noticed",
            ) from error
        finally:
            self._compared = True

    def _was_copied(self, file: _File) -> bool:
        """Return whether the file was copied after it was written, as when the whole folder is restored."""
        try:
            changed = self._path.stat().st_ctime
        except OSError:
            return False
        return file.written > 0 and abs(changed - file.written) > _COPIED_SECONDS

    def _write_file(self, file: _File) -> None:
        file.written = time.time()
        text = msgspec.json.encode(file)
        write_atomically(self._path, _checksum(text) + b"\n" + text)

    # -- comparing -------------------------------------------------------------------------------------------

    def examine(
        self,
        ask: Callable[..., list[SqlRow]],
        digests: Callable[[list[int]], list[SqlRow]],
    ) -> Examined:
        """Compare the store with the witness.

        `digests` returns row key and digest of the events at some row keys. `ask` runs a statement by name.
        """
        file = self._read_to_compare()
        known = file.stores.get(self._name, _Testimony(self._generation))
        with self._lock:
            # Notes from before an accepted loss no longer count.
            if known.generation != self._generation:
                self._generation, self._noted = known.generation, {}
            # Compare both: a note may be about an event in place of a saved event, after the store was restored.
            heads = [*known.heads.items(), *self._noted.items()]
            heads = [(num, head) for num, head in heads if num not in self._deleted]
        row_keys = [num << SEQ_BITS | head.facts for num, head in heads]
        there = (
            {row_key: bytes(digest).hex() for row_key, digest in digests(row_keys)}
            if row_keys
            else {}
        )
        lost: dict[int, _Head] = {}
        for row_key, (num, head) in zip(row_keys, heads, strict=True):
            is_larger = num not in lost or lost[num].facts < head.facts
            if (
                there.get(row_key) != head.digest
                and is_larger
                and not ask("tombstone_of", num=num)
            ):
                lost[num] = head
        missing = [
            _missing(num, head, num << SEQ_BITS | head.facts in there, ask)
            for num, head in lost.items()
        ]
        missing.sort(key=lambda loss: (loss.user, loss.conversation))
        self._looked_at = self._stamp() if missing else ()
        facts: dict[int, int] = {}
        for num, head in heads:
            facts[num] = max(head.facts, facts.get(num, 0))
        return Examined(missing, 0 if self._was_copied(file) else known.file, facts)

    def heads_of(self, rows: Iterable[SqlRow]) -> dict[int, _Head]:
        """Return the rows of `witness_heads` as heads. The rows start with the last changed conversation."""
        at = self._clock.now_us()
        return {
            num: _Head(user, name, facts, bytes(digest).hex(), messages, at)
            for num, user, name, facts, digest, messages in reversed(list(rows))
        }


def _missing(
    num: int, head: _Head, replaced: bool, ask: Callable[..., list[SqlRow]]
) -> Missing:
    low, high = bounds(num)
    found = ask("conversation_of", num=num)
    if not found or found[0][0] != head.conversation:
        return Missing(head.user, head.conversation, 0, head.facts, head.messages)
    have = int(ask("last_fact", low=low, high=high)[0][0] or 0) & ALL_SEQS
    rows = ask("head", num=num)
    messages = max(0, head.messages - int(rows[0][-1])) if rows else head.messages
    have = head.facts if replaced else min(have, head.facts)
    return Missing(head.user, head.conversation, have, head.facts, messages)


def _merged(
    heads: Mapping[int, _Head], noted: Mapping[int, _Head], deleted: Iterable[int]
) -> dict[int, _Head]:
    """Return the larger seq per conversation, for the last changed conversations, in the order of changes.

    Times are not compared, because a clock may have been set back.
    """
    merged = dict(heads)
    for num, head in noted.items():
        known = merged.pop(num, head)
        merged[num] = head if known.facts <= head.facts else known
    for num in deleted:
        merged.pop(num, None)
    return dict(list(merged.items())[-CONVERSATIONS_MAX:])


def _checksum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()

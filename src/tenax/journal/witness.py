"""The witness: a small file outside the store that says how far each conversation had come.

A store cannot prove that nothing is missing at its end: a copy that was put back, a log cut by one flipped bit and a
standby that lagged behind are each whole in themselves. So every process notes, after a commit, the number and the digest
of each conversation's last synced event, and writes them to the witness at most once a second. Whoever opens the store
compares. The file holds no text of anybody.

A witness never moves backwards: processes take turns (a lock on the folder), read it again, and keep the larger number of
each conversation. A larger number replaces another one only if the store still has the event that the other one names: a
store that was put back under a process grows past it again. Only `accept` begins it anew.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import stat
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tenax.concurrency import started
from tenax.errors import CannotOpen, StoreError
from tenax.journal.place import ALL_SEQS, SEQ_BITS, bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from tenax.clock import Clock
    from tenax.journal.row_index import HeadState
    from tenax.journal.store import Row, Store

__all__ = ["CONVERSATIONS_MAX", "SAVE_SECONDS", "Missing", "Witness"]

log = logging.getLogger(__name__)

CONVERSATIONS_MAX: Final = 1000
"""The conversations that moved last are remembered; what was put back or cut off lacks those first."""
SAVE_SECONDS: Final = 1.0
_IDLE_SAVES: Final = 5
"""The thread ends after so many looks that found nothing new."""
_TURN_SECONDS: Final = 2.0
_COPIED_SECONDS: Final = 10.0
_VERSION: Final = 1


class Missing(msgspec.Struct, frozen=True):
    """A conversation that lacks events which were stored: those after `have`, up to `upto`.

    Where `have` equals `upto`, the event with that number is there and is another one.
    """

    user: str
    conversation: str
    have: int
    upto: int
    messages: int
    """The number of missing messages."""

    def __str__(self) -> str:
        if self.have >= self.upto:
            return f"{self.conversation}: event {self.upto} is not the one that was stored."
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
    """When it was noted, in microseconds."""


class _Testimony(msgspec.Struct):
    """What is known of one store."""

    generation: int = 0
    """How often a loss was accepted. What a process noted in an earlier one no longer counts."""
    file: int = 0
    """The inode of a SQLite file: a copy that is put back has another."""
    heads: dict[int, _Head] = {}


class _File(msgspec.Struct):
    """The whole file: a testimony for each store."""

    version: int
    stores: dict[str, _Testimony]
    written: float = 0.0
    """When it was written, in seconds, by the clock that also dates files. 0: by an earlier version."""


class Examined(NamedTuple):
    """How a store compares with its witness."""

    missing: list[Missing]
    file: int
    """The inode of the file that was witnessed; 0 if none was."""
    facts: dict[int, int]
    """The number of the last event of each conversation, by the number of the conversation."""


class Witness:
    """What one process knows of one store, and the file that it shares with others."""

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
        """Whether the log names an error already."""
        self._looked_at: tuple[int, ...] = ()
        self._compared = False

    # -- noting ----------------------------------------------------------------------------------------------

    def note(self, states: Iterable[HeadState]) -> None:
        """Remember these heads: their events were committed and flushed."""
        at = self._clock.now_us()
        with self._lock:
            for state in states:
                known = self._noted.get(state.num)
                if known is None or known.facts <= state.facts:
                    # the one that moved last stands last
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
                self._thread = started(self._save_often, "tenax-witness")

    def forget(self, num: int) -> None:
        """The conversation was deleted."""
        with self._lock:
            self._noted.pop(num, None)
            self._deleted.add(num)

    def _save_often(self) -> None:
        idle = 0
        while not self._closed.wait(SAVE_SECONDS):
            idle = 0 if self._tried() else idle + 1
            with self._lock:
                if idle >= _IDLE_SAVES and not self._noted:
                    self._thread = None
                    return

    def close(self) -> None:
        """Save what was noted, and end."""
        self._closed.set()
        self._tried()
        self._tried()  # the first time may have found that a loss was accepted

    def _tried(self) -> bool:
        """Save the notes. An error is logged once, and the notes are kept: the witness serves every conversation."""
        try:
            return self.save()
        except (OSError, StoreError):  # saved later
            return True
        except Exception:
            if not self._failed:
                log.exception(
                    "The witness of the store cannot be written. Tenax goes on and tries again."
                )
            self._failed = True
            return True

    # -- the file --------------------------------------------------------------------------------------------

    def save(self) -> bool:
        """Write what was noted since the last time. False if there was nothing.

        Raises OSError, or StoreError if the store cannot be asked; then it is kept.
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
                    self._write(file)
        except BaseException:
            with self._lock:
                self._noted = _merged(self._noted, noted, ())
                self._deleted |= deleted
            raise
        if accepted or not lost <= deleted:
            self._store.look_again()
        if (
            accepted
            # by another process, and this one had not even noticed the loss: the next time it is saved
        ):
            with self._lock:
                self._noted = _merged(self._noted, still_there, ())
                self._deleted |= deleted
        return True

    def _held(self, heads: Mapping[int, _Head]) -> dict[int, _Head]:
        """Return the heads whose event is in the store. Raises StoreError."""
        places = {num << SEQ_BITS | head.facts: num for num, head in heads.items()}
        if not places:
            return {}
        rows = self._store.read_digests(list(places))
        there = {places[place]: bytes(digest).hex() for place, digest in rows}
        return {
            num: head for num, head in heads.items() if there.get(num) == head.digest
        }

    def begin(self, file: int) -> None:
        """Remember which file the store is in."""
        # A folder that cannot be written to has no witness.
        with contextlib.suppress(OSError), self._turn() as found:
            found.stores.setdefault(
                self._name, _Testimony(self._generation)
            ).file = file
            self._write(found)

    def accept(self, heads: Mapping[int, _Head], file: int) -> None:
        """Begin anew with what the store holds now. Raises OSError."""
        with self._turn() as found:
            known = found.stores.setdefault(self._name, _Testimony())
            generation = known.generation + 1
            found.stores[self._name] = _Testimony(generation, file, dict(heads))
            self._write(found)
            with self._lock:
                self._generation, self._noted = generation, {}

    def accepted(self) -> bool:
        """Whether another process has accepted the loss that was found here."""
        seen = self._stamp()
        if seen == self._looked_at:
            return False
        try:
            known = self._read().stores.get(self._name)
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
        """Have the file for oneself. Raises OSError, also where others keep it for long."""
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            deadline = time.monotonic() + _TURN_SECONDS
            while True:
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.005)
            yield self._read()
        finally:
            os.close(folder)

    def _read(self) -> _File:
        """The file. One that is missing or damaged says nothing. Raises OSError if it cannot be read."""
        try:
            # reading from a pipe would wait
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
        """The file. Who opens the store is refused if it cannot be read; later on what this process has noted is compared."""
        try:
            return self._read()
        except OSError as error:
            if self._compared:
                return _File(_VERSION, {})
            raise CannotOpen(
                f"{self._path}, which tells whether the store lacks anything, cannot be read: {error.strerror}.",
                hint="give yourself the right to read it; or remove it, and a loss is not noticed",
            ) from error
        finally:
            self._compared = True

    def _was_copied(self, file: _File) -> bool:
        """Whether the file came here later than it was written: the store was put back together with it."""
        try:
            changed = self._path.stat().st_ctime
        except OSError:
            return False
        return file.written > 0 and abs(changed - file.written) > _COPIED_SECONDS

    def _write(self, file: _File) -> None:
        file.written = time.time()
        text = msgspec.json.encode(file)
        new = self._path.with_name(f"{self._path.name}.new")
        descriptor = os.open(
            new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        with open(descriptor, "wb") as output:  # noqa: PTH123  (a descriptor)
            output.write(_checksum(text) + b"\n" + text)
            output.flush()
            os.fdatasync(descriptor)
        new.replace(self._path)

    # -- comparing -------------------------------------------------------------------------------------------

    def examine(
        self, ask: Callable[..., list[Row]], digests: Callable[[list[int]], list[Row]]
    ) -> Examined:
        """What the store lacks of what was witnessed.

        `digests` gives place and digest of the events at these places; `ask` runs a statement by name.
        """
        file = self._read_to_compare()
        known = file.stores.get(self._name, _Testimony(self._generation))
        with self._lock:
            if (
                known.generation != self._generation
            ):  # what was noted before a loss was accepted no longer counts
                self._generation, self._noted = known.generation, {}
            # Both: what was noted may have been stored after the store was put back, in the place of what was saved.
            heads = [*known.heads.items(), *self._noted.items()]
            heads = [(num, head) for num, head in heads if num not in self._deleted]
        places = [num << SEQ_BITS | head.facts for num, head in heads]
        there = (
            {place: bytes(digest).hex() for place, digest in digests(places)}
            if places
            else {}
        )
        lost: dict[int, _Head] = {}
        for place, (num, head) in zip(places, heads, strict=True):
            is_larger = num not in lost or lost[num].facts < head.facts
            if (
                there.get(place) != head.digest
                and is_larger
                and not ask("tombstone_of", num=num)
            ):
                lost[num] = head
        missing = [
            _missing(num, head, num << SEQ_BITS | head.facts in there, ask)
            for num, head in lost.items()
        ]
        missing.sort(key=lambda each: (each.user, each.conversation))
        self._looked_at = self._stamp() if missing else ()
        facts: dict[int, int] = {}
        for num, head in heads:
            facts[num] = max(head.facts, facts.get(num, 0))
        return Examined(missing, 0 if self._was_copied(file) else known.file, facts)

    def heads_of(self, rows: Iterable[Row]) -> dict[int, _Head]:
        """Rows of `witness_heads`, which begin with the one that moved last, as they are kept."""
        at = self._clock.now_us()
        return {
            num: _Head(user, name, facts, bytes(digest).hex(), messages, at)
            for num, user, name, facts, digest, messages in reversed(list(rows))
        }


def _missing(
    num: int, head: _Head, replaced: bool, ask: Callable[..., list[Row]]
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
    """The larger number of each conversation, of those that moved last.

    They stand in the order in which they moved. Their times tell nothing: a clock may have been set back since.
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

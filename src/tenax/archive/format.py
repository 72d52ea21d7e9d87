"""The files of a backup folder.

    DIR/backups/2026-11-19T174005Z.json    a backup: a manifest with the names of objects
    DIR/objects/3f/3f9a...                 an object, named by the SHA-256 of the content

A manifest lists the whole content of a backup. Backups share objects: a further backup writes new objects only, and the
deletion of a backup does not harm the others. An object is a file, an attachment, or rows. Rows are compressed JSON
lines: a line with the table and the columns, and then a line for a row. Bytes in a row are `{"utf8": TEXT}`, or
`{"hex": DIGITS}` for bytes in another encoding.

The events of a conversation are in segments. The next backup adds a segment with the new events. After an erasure the
next backup writes the segments of the conversation anew, without the erased text.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tenax.concurrency import sync_directory, write_atomically
from tenax.errors import InvalidInput, StoreDamaged, StoreFull

__all__ = [
    "OBJECT_BYTES",
    "VERSION",
    "BackupFolder",
    "Conversation",
    "DamagedBackup",
    "File",
    "Manifest",
    "RowsWriter",
    "read_rows",
]

VERSION: Final = 1
OBJECT_BYTES: Final = 4 * 1024 * 1024
"""The size of an object of rows, before compression, after which a new object begins."""
_PIECE_BYTES: Final = 1024 * 1024
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z(?:-\d+)?")
_STEM_CHARS: Final = len("2026-11-19T174005Z")
_GZIP: Final = 31
_LEVEL: Final = 6

Row = tuple[Any, ...]
Rows = tuple[str, tuple[str, ...], list[Row]]
"""A table, its columns, and rows."""


def _order(name: str) -> tuple[str, int]:
    """Return the key for sorting. Several backups of one second have a number."""
    return name[:_STEM_CHARS], int(name[_STEM_CHARS + 1 :] or 1)


class DamagedBackup(StoreDamaged):
    """An object of a backup is missing or damaged."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(
            message,
            hint="Delete the file if it is there, and make another backup: it writes the file anew.",
        )
        self.name = name


class Conversation(msgspec.Struct, frozen=True, array_like=True):
    """A conversation in a backup. `digest` is the digest of the event `facts`, and proves the events up to there."""

    num: int
    owner: str
    id: str
    head: int
    facts: int
    digest: str
    segments: tuple[str, ...]


class File(msgspec.Struct, frozen=True, array_like=True):
    """A file beside the store. The path begins with `data/` or `config/`."""

    path: str
    mode: int
    object: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A backup."""

    format: str = "tenax-backup"
    version: int = VERSION
    created_at: str
    """RFC 3339, in UTC."""
    tenax: str
    """The version of the program."""
    engine: str
    schema: int
    incarnation: str
    has_secrets: bool = False
    conversations: tuple[Conversation, ...] = ()
    states: tuple[str, ...] = ()
    """Objects with the other rows of the conversations."""
    tables: dict[str, tuple[str, ...]] = {}
    """Objects with the rows of the tables without a conversation."""
    files: tuple[File, ...] = ()
    blobs: tuple[str, ...] = ()
    """Attachments: the names of their objects."""
    counts: dict[str, int] = {}
    """The number of rows of each table."""
    root: str = ""
    """The SHA-256 of the manifest as JSON with an empty `root`. It proves the manifest, and so all objects."""

    def sealed(self) -> Manifest:
        """Return the manifest with the root hash."""
        return msgspec.structs.replace(self, root=self._hash())

    def is_sealed(self) -> bool:
        return self.root == self._hash()

    def _hash(self) -> str:
        plain = msgspec.json.encode(msgspec.structs.replace(self, root=""))
        return hashlib.sha256(plain).hexdigest()

    def objects(self) -> set[str]:
        """Return the names of the objects of the backup."""
        found = {name for one in self.conversations for name in one.segments}
        found.update(self.states, self.blobs, *self.tables.values())
        found.update(file.object for file in self.files)
        return found


class BackupFolder:
    """A folder with backups."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._backups = path / "backups"
        self._objects = path / "objects"
        self.written = 0
        """The bytes written to objects."""
        self._touched: set[Path] = set()

    def create(self) -> None:
        """Create the folder, private to the user. Raises `InvalidInput` for a folder with foreign files."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            known = {"backups", "objects", "scratch", "lock"}
            if (
                not self._backups.is_dir()
                and {file.name for file in self.path.iterdir()} - known
            ):
                raise InvalidInput(
                    f"{self.path} has other files in it.",
                    hint="Name an empty folder, or a folder with backups.",
                )
            for folder in (self._backups, self._objects):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"{self.path} cannot be written: {error.strerror}.",
                hint="Name another folder.",
            ) from error

    # -- objects ---------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        return self._file(name).exists()

    def write_rows(self, data: bytes) -> str:
        """Store rows, compressed. Return the name of the object."""
        name = hashlib.sha256(data).hexdigest()
        if not self.has(name):
            packer = zlib.compressobj(_LEVEL, wbits=_GZIP)
            self._put(name, packer.compress(data) + packer.flush())
        return name

    def write_bytes(self, pieces: Iterable[bytes]) -> str:
        """Store bytes without a change. Return the name of the object."""
        digest = hashlib.sha256()
        scratch = self._objects / f".writing-{os.getpid()}"
        with self._explained():
            with scratch.open("wb") as file:
                scratch.chmod(0o600)
                for piece in pieces:
                    digest.update(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            name = digest.hexdigest()
            if self.has(name):
                scratch.unlink()
            else:
                self._make_place(name)
                scratch.rename(self._file(name))
                self.written += size
        return name

    def read_bytes(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in pieces. Raises `DamagedBackup` at the end if the content is wrong."""
        digest = hashlib.sha256()
        with self._reading(name), self._file(name).open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                yield piece
        if digest.hexdigest() != name:
            raise self._damaged(name)

    def read_object(self, name: str) -> bytes:
        """Return the content of an object of rows. Raises `DamagedBackup`."""
        with self._reading(name):
            packed = self._file(name).read_bytes()
        try:
            data = zlib.decompress(packed, wbits=_GZIP)
        except zlib.error as error:
            raise self._damaged(name) from error
        if hashlib.sha256(data).hexdigest() != name:
            raise self._damaged(name)
        return data

    def forget(self, name: str) -> None:
        """Delete an object. The next backup writes the object anew."""
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self._objects / name[:2] / name

    def _make_place(self, name: str) -> None:
        folder = self._file(name).parent
        folder.mkdir(mode=0o700, exist_ok=True)
        self._touched.add(folder)

    def _put(self, name: str, data: bytes) -> None:
        with self._explained():
            self._make_place(name)
            scratch = self._objects / f".writing-{os.getpid()}"
            with scratch.open("wb") as file:
                scratch.chmod(0o600)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            scratch.rename(self._file(name))
        self.written += len(data)

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise DamagedBackup(
                f"A part of the backup is missing: {self._file(name)}.", name
            ) from None
        except OSError as error:
            raise StoreDamaged(
                f"{self._file(name)} cannot be read: {error.strerror}."
            ) from error

    def _damaged(self, name: str) -> DamagedBackup:
        return DamagedBackup(
            f"A part of the backup is damaged: {self._file(name)}.", name
        )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreFull(
                f"The backup cannot be written to {self.path}: {error.strerror}.",
                hint="Free some disk space, or name another folder.",
            ) from error

    # -- backups ---------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of the backups, the oldest first."""
        try:
            found = [file.stem for file in self._backups.iterdir()]
        except OSError:
            return []
        return sorted(filter(_NAME.fullmatch, found), key=_order)

    def read(self, name: str) -> Manifest:
        """Return a backup. Raises `StoreDamaged` or `InvalidInput`."""
        file = self._backups / f"{name}.json"
        try:
            manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
        except FileNotFoundError:
            raise InvalidInput(
                f"{self.path} has no backup {name!r:.60}.",
                hint=f"List the backups with: tenax backup {self.path} --list",
            ) from None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreDamaged(f"{file} cannot be read: {error}.") from error
        if manifest.format != "tenax-backup" or manifest.version != VERSION:
            raise InvalidInput(
                f"{file} has the format {manifest.format!r:.40}, version {manifest.version}, which this Tenax does not read.",
                hint="Use a newer Tenax.",
            )
        if not manifest.is_sealed():
            raise StoreDamaged(
                f"{file} is damaged: its root hash is wrong.",
                hint="Use another backup.",
            )
        return manifest

    def latest(self) -> Manifest | None:
        """Return the newest readable backup."""
        for name in reversed(self.names()):
            with contextlib.suppress(StoreDamaged, InvalidInput):
                return self.read(name)
        return None

    def commit(self, manifest: Manifest) -> str:
        """Store a backup with complete objects. Return the name of the backup."""
        with self._explained():
            for folder in self._touched:
                sync_directory(folder)
            sync_directory(self._objects)
            stem = re.sub(r"\.\d+|:", "", manifest.created_at).replace("+0000", "Z")
            name, count = stem, 1
            while (self._backups / f"{name}.json").exists():
                count += 1
                name = f"{stem}-{count}"
            write_atomically(
                self._backups / f"{name}.json", msgspec.json.encode(manifest)
            )
        return name

    def prune(self, keep: int) -> tuple[int, int]:
        """Keep the newest backups. Return the number of deleted backups, and the bytes of the deleted objects."""
        old = self.names()[:-keep]
        for name in old:
            (self._backups / f"{name}.json").unlink()
        sync_directory(self._backups)
        needed = {name for kept in self.names() for name in self.read(kept).objects()}
        freed = 0
        for folder in self._objects.iterdir():
            if folder.name.startswith(".writing-"):
                folder.unlink()
                continue
            for file in folder.iterdir():
                if file.name not in needed:
                    freed += file.stat().st_size
                    file.unlink()
        return len(old), freed


# -- rows ------------------------------------------------------------------------------------


class RowsWriter:
    """Collects rows for objects."""

    def __init__(self, folder: BackupFolder) -> None:
        self._folder = folder
        self._lines: list[bytes] = []
        self._size = 0
        self._table = ""
        self.objects: list[str] = []

    def add(self, table: str, columns: tuple[str, ...], row: Row) -> None:
        if table != self._table:
            self._append({"table": table, "columns": columns})
            self._table = table
        self._append([_to_json(value) for value in row])
        if self._size >= OBJECT_BYTES:
            self.cut()

    def cut(self) -> None:
        """End the object. The next row begins a new object."""
        if self._lines:
            data = b"\n".join([*self._lines, b""])
            self.objects.append(self._folder.write_rows(data))
        self._lines, self._size, self._table = [], 0, ""

    def _append(self, value: object) -> None:
        line = msgspec.json.encode(value)
        self._lines.append(line)
        self._size += len(line) + 1


def read_rows(data: bytes) -> Iterator[Rows]:
    """Yield the rows of an object, table by table."""
    table, columns, rows = "", tuple[str, ...](), list[Row]()
    for line in data.splitlines():
        value = msgspec.json.decode(line)
        if isinstance(value, dict):
            if rows:
                yield table, columns, rows
            table, columns, rows = value["table"], tuple(value["columns"]), []
        else:
            rows.append(tuple(map(_from_json, value)))
    if rows:
        yield table, columns, rows


def _to_json(value: object) -> object:
    if not isinstance(value, bytes | bytearray | memoryview):
        return value
    data = bytes(value)
    try:
        return {"utf8": data.decode()}
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def _from_json(value: Any) -> Any:  # noqa: ANN401  (a value of a column)
    if not isinstance(value, dict):
        return value
    text = value.get("utf8")
    return bytes.fromhex(value["hex"]) if text is None else text.encode()

"""What a failing disk does to a store."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import psycopg

SQL = "update events set body = {} where kind = '{}' and place >> 32 = (select num from conversations where id = '{}')"


def break_events(url: str, conversation: str, kind: str) -> None:
    """The events of this kind in this conversation can no longer be read. The store may be open, also here."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute(SQL.format("x'00'", kind, conversation))
        connection.close()
        return
    with psycopg.connect(url) as database:
        database.execute(SQL.format(r"'\x00'", kind, conversation).encode())


def copy_store(path: Path, folder: Path) -> None:
    """Copy a SQLite store as a backup does. Its witness is not copied."""
    folder.mkdir()
    source, target = apsw.Connection(str(path)), apsw.Connection(str(folder / path.name))
    with target.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step()
    target.close()
    source.close()


def put_back(folder: Path, path: Path) -> None:
    """Put a copy in the place of a store. Its witness stays."""
    for name in (f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    shutil.copy(folder / path.name, path)

"""What a failing disk does to a store."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import psycopg

FILES = ("tenax.db", "tenax.db-wal", "tenax.db-witness")
PAGE = 4096
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


def damage(path: Path, statement: str) -> None:
    """Run a statement in the file of a SQLite store, which may be open, also here."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(60_000)
    connection.execute(statement)
    connection.close()


def copy_store(path: Path, folder: Path) -> None:
    """Copy a SQLite store as a backup does. Its witness is not copied."""
    folder.mkdir()
    source, target = (
        apsw.Connection(str(path)),
        apsw.Connection(str(folder / path.name)),
    )
    with target.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step()
    target.close()
    source.close()


SAVE = """
do $$ declare each text; begin
    create schema saved;
    for each in select tablename from pg_tables where schemaname = 'public' loop
        execute format('create table saved.%1$I as table public.%1$I', each);
    end loop;
    create table saved.sequences as select sequencename, last_value from pg_sequences where schemaname = 'public';
end $$
"""
RESTORE = """
do $$ declare each text; begin
    set local session_replication_role = replica;
    for each in select tablename from pg_tables where schemaname = 'public' loop
        execute format('delete from public.%1$I', each);
        execute format('insert into public.%1$I overriding system value select * from saved.%1$I', each);
    end loop;
    perform setval(sequencename::regclass, coalesce(last_value, 1), last_value is not null) from saved.sequences;
    drop schema saved cascade;
end $$
"""


@contextmanager
def put_back_in_place(url: str, folder: Path) -> Iterator[None]:
    """Copy a store, and put the copy back when the block ends: into the same file or database, which stays in use."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        copy_store(path, folder)
        yield
        source, target = (
            apsw.Connection(str(folder / path.name)),
            apsw.Connection(str(path)),
        )
        target.set_busy_timeout(30_000)
        with target.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step()
        target.close()
        source.close()
        return
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(SAVE)
        yield
        database.execute(RESTORE)


def put_back(folder: Path, path: Path) -> None:
    """Put a copy in the place of a store. Its witness stays."""
    for name in (f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    # Copy before the old file goes: the file system could give the inode of a deleted file to the copy.
    copy = path.with_name(f"{path.name}-copy")
    shutil.copy(folder / path.name, copy)
    copy.replace(path)


class Snapshots:
    """Files of stores as a crash leaves them, log and all, to damage them in many ways."""

    def __init__(self, now: Path, before: Path, other: Path) -> None:
        self.now = now
        self.before = before
        """The same store, some time ago."""
        self.other = other
        """Another store."""

    def damage(self, seed: int, home: Path) -> str:
        """Put a damaged store there. What was done to it."""
        chance = random.Random(seed)
        for name in FILES:
            shutil.copy(self.now / name, home)
        ways = (
            _flip_bit, _flip_bits, _cut, _zero_page, _zero_page, _fill_page,
            self._of_other, self._of_before, _exchange, _remove,
        )  # fmt: skip
        way = ways[seed % len(ways)]
        # A longer file is hit more often by a real fault; here each gets its share.
        name = chance.choice(FILES[:2]) if seed % 20 < 18 else chance.choice(FILES)
        way(home, name, chance)
        return f"{way.__name__} {name}, seed {seed}"

    def _of_other(self, home: Path, name: str, _: random.Random) -> None:
        shutil.copy(self.other / name, home)

    def _of_before(self, home: Path, name: str, _: random.Random) -> None:
        shutil.copy(self.before / name, home)


def snapshot(path: Path, folder: Path) -> None:
    """Copy the files of a store that is open. Another process does it: closing them here would drop its locks."""
    folder.mkdir()
    subprocess.run(
        ["cp", *(path.with_name(name) for name in FILES), folder], check=True
    )


def _change(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as out:
        out.seek(at)
        out.write(data)


def _flip_bit(home: Path, name: str, chance: random.Random) -> None:
    data = (home / name).read_bytes()
    at = chance.randrange(len(data))
    _change(home / name, at, bytes([data[at] ^ 1 << chance.randrange(8)]))


def _flip_bits(home: Path, name: str, chance: random.Random) -> None:
    for _ in range(20):
        _flip_bit(home, name, chance)


def _cut(home: Path, name: str, chance: random.Random) -> None:
    os.truncate(home / name, chance.randrange((home / name).stat().st_size))


def _zero_page(home: Path, name: str, chance: random.Random) -> None:
    pages = max(1, (home / name).stat().st_size // PAGE)
    _change(home / name, chance.randrange(pages) * PAGE, bytes(PAGE))


def _fill_page(home: Path, name: str, chance: random.Random) -> None:
    pages = max(1, (home / name).stat().st_size // PAGE)
    _change(home / name, chance.randrange(pages) * PAGE, chance.randbytes(PAGE))


def _exchange(home: Path, _name: str, _chance: random.Random) -> None:
    one, other = home / FILES[0], home / FILES[1]
    one.rename(home / "kept")
    other.rename(one)
    (home / "kept").rename(other)


def _remove(home: Path, name: str, _: random.Random) -> None:
    (home / name).unlink()

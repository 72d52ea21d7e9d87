"""Wrote the small stores in `schemas`: one for each version of the schema, with the code of the last commit of that version.

The commits: 1 a72dcce, 2 643c887, 3 49fbe2c, 4 6d228b9, 5 e85803f, 6 b49ff6f, 7 fa57496. A stored file is never written anew.
A commit that adds a migration first writes the store of the version before it. In a checkout of that commit:

    PYTHONPATH=CHECKOUT/src:CHECKOUT python tests/golden/write_schemas.py tests/golden/schemas

The content is what `tests/support/world.py` of the checkout builds, and a row of each later kind.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apsw

import tenax
from tenax.events import MessageUser
from tenax.journal import Journal
from tenax.journal.schema import SCHEMA_VERSION
from tenax.parts import Text
from tests.support.postgres import PostgresServer, find_programs
from tests.support.world import World, build

# A server need not have the extension pg_trgm; opening the store makes its index where there is one.
LEFT_OUT = re.compile(r"^$|^--|^\\|pg_trgm|gin_trgm_ops")


def add_later_rows(journal: Journal, world: World) -> None:
    """Add what the events of the world do not bring, as far as this version has it."""
    if SCHEMA_VERSION >= 4:
        from tenax.journal.devices import Devices

        Devices(journal, days=36_500).add("ada", "A browser", 80)
    if SCHEMA_VERSION >= 5:
        from tenax.journal.preferences import Preferences, ReadMarks
        from tenax.journal.projects import Project, Projects

        Preferences(journal).change({"theme": "dark"})
        Projects(journal).add(Project("p_1", "Boat"))
        ReadMarks(journal).mark(world.talk, 3)
    if SCHEMA_VERSION >= 6:
        from tenax.events import MessageWithdrawn

        waiting = MessageUser([Text("withdrawn")], author="ada", ask=True)
        seq = journal.append(world.talk, [waiting])[-1].seq
        journal.append(world.talk, [MessageWithdrawn(seq)])
    if SCHEMA_VERSION >= 7:
        from tenax.events import ConversationRouted

        journal.append(world.talk, [ConversationRouted("telegram:1", "7")])


def describe(journal: Journal, names: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Heads and events of conversations (user and id): what a later version must read from the store."""
    return {
        name: {
            "user": user,
            "head": journal.of(user).head(name).head,
            "digest": journal.of(user).head(name).digest.hex(),
            "events": [
                f"{event.seq} {event.kind} {event.at} {_hash(event.body)} {event.digest.hex()[:32]}"
                for event in journal.of(user).read(name, limit=10_000)
            ],
        }
        for user, name in names
    }


def _hash(body: bytes | None) -> str:
    return "erased" if body is None else hashlib.sha256(body).hexdigest()[:12]


def write(url: str) -> dict[str, Any]:
    with tenax.open(url, user="ada") as journal:
        world = build(journal)
        add_later_rows(journal, world)
        return describe(journal, world.all())


def packed_sqlite(path: Path) -> bytes:
    connection = apsw.Connection(str(path))
    connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    connection.close()
    return gzip.compress(path.read_bytes(), mtime=0)


def packed_postgresql(url: str) -> bytes:
    options = ("--inserts", "--no-owner", "--no-privileges")
    command = [str(find_programs() / "pg_dump"), *options, url]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kept = [line for line in text.splitlines() if not LEFT_OUT.search(line)]
    return gzip.compress("\n".join(kept).encode(), mtime=0)


def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with PostgresServer() as server, tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "tenax.db"
        database = server.create_database()
        for engine, url in (
            ("sqlite", f"sqlite:///{path}"),
            ("postgresql", database),
        ):
            expected = json.dumps(write(url), indent=1) + "\n"
            (folder / f"{SCHEMA_VERSION}.{engine}.json").write_text(expected)
        (folder / f"{SCHEMA_VERSION}.db.gz").write_bytes(packed_sqlite(path))
        (folder / f"{SCHEMA_VERSION}.sql.gz").write_bytes(packed_postgresql(database))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

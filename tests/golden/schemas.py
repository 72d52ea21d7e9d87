"""The small stores in `schemas`: a store of each version of the schema, and what it says. `write_schemas.py` wrote them."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg

from tenax.journal import Journal
from tests.golden.write_schemas import describe

FOLDER: Final = Path(__file__).with_name("schemas")
SUFFIXES: Final = {"sqlite": "db.gz", "postgresql": "sql.gz"}


def versions(engine: str) -> list[int]:
    """Return the versions of which there is a store, in order."""
    suffix = SUFFIXES[engine]
    return sorted(
        int(file.name.removesuffix(f".{suffix}")) for file in FOLDER.glob(f"*.{suffix}")
    )


def put_store(engine: str, version: int, url: str) -> None:
    """Put a copy of a store at this address: a file that does not exist, or an empty database."""
    packed = FOLDER / f"{version}.{SUFFIXES[engine]}"
    content = gzip.decompress(packed.read_bytes())
    if engine == "sqlite":
        Path(url.removeprefix("sqlite:///")).write_bytes(content)
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(content)


def expected(engine: str, version: int) -> dict[str, Any]:
    """Return what the code that wrote the store said about its conversations."""
    file = FOLDER / f"{version}.{engine}.json"
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])


def found(journal: Journal, conversations: dict[str, Any]) -> dict[str, Any]:
    """Return what this code says about the same conversations."""
    names: Iterable[tuple[str, str]] = [
        (said["user"], name) for name, said in conversations.items()
    ]
    return describe(journal, names)

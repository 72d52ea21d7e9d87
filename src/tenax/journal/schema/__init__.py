"""The store's SQL: migrations by number, statements by name.

`queries.sql` and `search.sql` hold what both engines say alike; an engine's own files add to them and win. Parameters
are `:named`.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Literal

__all__ = ["SCHEMA_VERSION", "migrations", "named", "statements"]

Dialect = Literal["sqlite", "postgres"]
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_HERE = resources.files(__package__)


def migrations(dialect: Dialect) -> list[str]:
    """The scripts that make the schema, in order. The version of a store is how many of them it has had."""
    folder = _HERE / dialect
    return [
        each.read_text("utf-8")
        for each in sorted(folder.iterdir(), key=lambda f: f.name)
        if each.name.endswith(".sql")
    ]


SCHEMA_VERSION = 4
"""How many migrations there are. A test holds it to the files."""


def statements(dialect: Dialect) -> dict[str, str]:
    """Every statement of this engine by its name."""
    found: dict[str, str] = {}
    for name in (
        "queries.sql",
        "search.sql",
        f"search_{dialect}.sql",
        f"{dialect}.sql",
    ):
        found.update(named(name))
    return found


def named(file: str) -> dict[str, str]:
    """The statements of one file by their names."""
    pieces = _NAME.split((_HERE / file).read_text("utf-8"))
    return {
        key: text.strip().rstrip(";")
        for key, text in zip(pieces[1::2], pieces[2::2], strict=True)
    }

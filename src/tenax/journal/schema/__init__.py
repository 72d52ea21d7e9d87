"""The store's SQL: migrations by number, statements by name.

`queries.sql` and `search.sql` hold the statements of both engines. The files of an engine add statements and override
shared statements. Parameters are `:named`.
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
    """Return the scripts of the schema, in order. The version of a store is the number of executed scripts."""
    folder = _HERE / dialect
    return [
        script.read_text("utf-8")
        for script in sorted(folder.iterdir(), key=lambda file: file.name)
        if script.name.endswith(".sql")
    ]


SCHEMA_VERSION = 7
"""The number of migrations. A test compares the number with the files."""


def statements(dialect: Dialect) -> dict[str, str]:
    """Return all statements of an engine by name."""
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
    """Return the statements of a file by name."""
    pieces = _NAME.split((_HERE / file).read_text("utf-8"))
    return {
        key: text.strip().rstrip(";")
        for key, text in zip(pieces[1::2], pieces[2::2], strict=True)
    }

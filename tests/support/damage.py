"""What a failing disk does to a store."""

from __future__ import annotations

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

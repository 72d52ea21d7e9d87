"""Stores that the code of commit 6e95d48 wrote are opened by this one, and say what they said then.

What may change, and how: a commit that only rewords prompts or tool descriptions runs `python -m tests.golden.refresh`.
Nothing else is ever written anew: people have such stores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import psycopg
import pytest

from tenax.errors import StoreDamaged
from tenax.journal.verify.store import verify
from tenax.views import context
from tests.golden.stores import (
    ENGINES,
    Expected,
    Place,
    Requests,
    copy_of,
    describe,
    differences,
    digests,
    next_requests,
    on_the_same_host,
    read_expected,
    read_requests,
    repaired,
    seen_requests,
)
from tests.support.postgres import PostgresServer

SPOOLED = "The tide comes at noon, and the boat leaves at ten."


@pytest.fixture(autouse=True)
def same_host() -> Iterator[None]:
    with on_the_same_host():
        yield


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(engine: str, tmp_path: Path, postgres_server: PostgresServer) -> Place:
    """A copy of the golden store."""
    return copy_of(
        engine,
        tmp_path,
        postgres_server.create_database() if engine == "postgresql" else "",
    )


@pytest.fixture
def expected(engine: str) -> Expected:
    return read_expected(engine)


@pytest.fixture
def requests(engine: str) -> Requests:
    return read_requests(engine)


async def test_a_golden_store_is_whole_and_says_what_it_said(
    place: Place, expected: Expected
) -> None:
    """What `verify` finds, heads, digests, transcripts, contexts, facts, schedules, cursors, search."""
    found = await describe(place, expected.now_us, expected.names)
    assert differences(found, expected.facts) == []
    assert found["verify"]["problems"] == []


async def test_opening_repairs_it_as_ever_and_hands_in_the_spool(
    place: Place, expected: Expected
) -> None:
    """The words that only the spool held stand in the transcript, once; and the store is whole after it."""
    before = list((place.home / "spool").glob("*/spool"))
    assert len(before) == 1
    found = await repaired(place, expected.now_us, expected.names)
    assert differences(found, expected.opened) == []
    texts = [
        row.get("text")
        for row in found["spooled"]["rows"]
        if row["kind"] == "assistant"
    ]
    assert texts == [SPOOLED]
    assert found["verify"] == []
    assert list((place.home / "spool").glob("*/spool")) == []


async def test_the_journal_names_every_request_that_was_sent(
    place: Place, expected: Expected, requests: Requests
) -> None:
    """The stored bodies are, byte for byte, what the model got: the journal has their digests."""
    assert await digests(place, expected.now_us, expected.names) == set(requests.sent)
    for name in requests.bodies:
        assert hashlib.sha256(requests.body(name)).hexdigest() == name


async def test_past_requests_are_rendered_byte_for_byte(
    place: Place, expected: Expected, requests: Requests
) -> None:
    """`Runtime.seen` says what it said. Reword on purpose, and `python -m tests.golden.refresh` writes it down."""
    found = await seen_requests(place, expected.now_us, expected.names)
    wanted = {
        name: {seq: requests.body(at) for seq, at in of.items()}
        for name, of in requests.seen.items()
    }
    assert differences(found, wanted) == []


async def test_going_on_sends_the_model_the_same_bytes(
    place: Place, expected: Expected, requests: Requests
) -> None:
    """In every conversation, after its repair, and in a new one. Reworded on purpose: see above."""
    found = await next_requests(place, expected.now_us, expected.names)
    wanted = {
        name: [requests.body(at) for at in of] for name, of in requests.next.items()
    }
    assert differences(found, wanted) == []


async def test_one_byte_of_one_body_is_noticed(
    engine: str, place: Place, expected: Expected
) -> None:
    """A text that was changed in the file has another digest: `verify` names its place, and nobody is shown it."""
    change_a_letter(engine, place)
    journal = place.open(expected.now_us, user=None)
    try:
        problems = verify(journal).problems
    finally:
        journal.close()
    assert [each.what for each in problems]
    with pytest.raises(StoreDamaged, match="is not what was written"):
        await describe(place, expected.now_us, expected.names)


def change_a_letter(engine: str, place: Place) -> None:
    """Change one letter of an answer, past Tenax."""
    if engine == "sqlite":
        connection = apsw.Connection(place.url.removeprefix("sqlite:///"))
        sql = "update events set body = cast(replace(cast(body as text), ?, ?) as blob) where kind = ?"
        connection.execute(sql, ("boat leaves", "boat leavez", "message.assistant"))
        assert connection.changes()
        connection.close()
        return
    with psycopg.connect(place.url, autocommit=True) as server:
        sql = (
            "update events set body = convert_to(replace(convert_from(body, 'UTF8'), %s, %s), 'UTF8') "
            "where kind = %s and body is not null"
        )
        assert server.execute(
            sql, ("boat leaves", "boat leavez", "message.assistant")
        ).rowcount


async def test_another_rendering_is_noticed(
    place: Place,
    expected: Expected,
    requests: Requests,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A summary that is fenced with other words changes what was seen."""
    fenced = context.quote_summary
    monkeypatch.setattr(
        "tenax.views.context.quote_summary", lambda summary: f"{fenced(summary)} "
    )
    found = await seen_requests(place, expected.now_us, expected.names)
    wanted = {
        name: {seq: requests.body(at) for seq, at in of.items()}
        for name, of in requests.seen.items()
    }
    changed = {line.split("/")[1] for line in differences(found, wanted)}
    assert changed == {"compacted"}

"""The one event stream: live and reconnect are the same path, without a repeat and without a hole."""

from __future__ import annotations

import socket
from urllib.parse import quote

import pytest

import tenax
from tenax.events import MessageUser
from tenax.parts import Text
from tenax.recovery import repair
from tenax.sessions import SessionDB
from tests.support.damage import break_events
from tests.support.served import Pace, Page, Served, is_done
from tests.web.conftest import BOTH, SLOW, SQLITE


def test_an_answer_streams_and_a_reconnect_goes_on_where_it_was(
    slow: Served, pace: Pace
) -> None:
    """Cut again and again in mid-answer: the rows are those of one who never left, and no snapshot was needed."""
    page = slow.browser()
    name = page.new()
    pace.say(1)
    page.say(name, "Talk.")
    with page.stream(f"-~{name}:") as stream:
        stream.until("rows")
    cursor, rows = stream.cursor, stream.rows
    cuts = 0
    while not is_done(rows.get(name, {})):
        with page.stream(cursor) as stream:
            stream.rows = rows
            pace.say(5 * cuts + 5)  # further than anybody has read
            for _ in range(5):
                stream.next()
                if len(stream.text(name)) >= 5 * len("word ") * (cuts + 1) or is_done(
                    rows.get(name, {})
                ):
                    break
            assert stream.snapshots == 0
        cursor, cuts = stream.cursor, cuts + 1
    assert cuts > 3
    assert stream.text(name) == SLOW


@SQLITE
def test_two_watch_and_both_see_everything(slow: Served) -> None:
    """One comes at the start and one in the middle."""
    page, other = slow.browser(), slow.browser(slow.tenax("link").stdout.strip())
    name = page.new()
    page.say(name, "Talk.")
    with page.stream(f"-~{name}:") as first:
        first.read_until(name, lambda _rows: len(first.text(name)) > 50)
        with other.stream(f"-~{name}:") as second:
            first.read_until(name, is_done)
            second.read_until(name, is_done)
    assert first.text(name) == second.text(name) == SLOW


@BOTH
@pytest.mark.parametrize(
    "claim",
    ["{incarnation}~{name}:999999", "elsewhere~{name}:3", "-~{name}:2", "-~{name}:"],
)
def test_a_cursor_that_is_ahead_or_from_elsewhere_gets_a_snapshot(
    page: Page, claim: str
) -> None:
    """Never a silent skip."""
    name = page.new()
    page.say(name, "What is it?")
    with page.stream(f"-~{name}:") as stream:
        incarnation = stream.until("hello")["incarnation"]
        stream.read_until(name, is_done)
        whole = stream.rows[name]
    with page.stream(claim.format(incarnation=incarnation, name=name)) as stream:
        assert {row["id"]: row for row in stream.until("rows")["rows"]} == whole


def test_a_cursor_from_elsewhere_gets_a_snapshot_of_all_that_it_watches(
    page: Page,
) -> None:
    """A number of one life of the store says nothing in another, also beside one that was made good already."""
    names = [page.new(), page.new()]
    with page.stream("-" + "".join(f"~{each}:" for each in names)) as watching:
        for name in names:
            page.say(name, "What is it?")
            watching.read_until(name, is_done)
        with page.stream(
            "elsewhere" + "".join(f"~{each}:1" for each in names)
        ) as stream:
            told: dict[str, str] = {}
            while len(told) < len(names):
                kind, data = stream.next()
                if kind in {"rows", "changes"}:
                    told[data["conversation"]] = kind
    assert told == dict.fromkeys(names, "rows")


def test_a_cursor_from_before_the_start_of_the_server_is_good(slow: Served) -> None:
    """The number belongs to the store, not to the process; where its changes are not held any more, a snapshot comes."""
    page = slow.browser()
    name = page.new()
    page.say(name, "Talk.")
    with page.stream(f"-~{name}:") as stream:
        stream.read_until(name, is_done)
    cursor = stream.cursor
    assert slow.stop()[0] == 0
    slow.start()
    with page.stream(cursor) as again:
        again.rows = stream.rows
        page.say(name, "More.")
        again.read_until(
            name,
            lambda rows: sum(row["kind"] == "assistant" for row in rows.values()) == 2,
        )
        again.read_until(name, is_done)
        assert [
            row["text"] for row in again.rows[name].values() if row["kind"] == "user"
        ] == [
            "Talk.",
            "More.",
        ]


@pytest.mark.parametrize(
    "cursor",
    [
        "-~",
        "-~c_1",
        "-~c_1:x",
        "-~c 1:2",
        "-~c_1:99999999999",
        "~" * 40,
        "-" + "~c:1" * 3 + "~" * 2,
    ],
)
def test_what_is_no_cursor_is_refused(page: Page, cursor: str) -> None:
    """With a sentence."""
    answer = page.http.get("/api/events", params={"at": cursor})
    assert answer.status_code == 400
    assert answer.json()["detail"].endswith(".")


@BOTH
def test_an_edit_of_the_past_sends_a_snapshot(page: Page) -> None:
    """Undo, clear and restore change rows that a page may have far above."""
    name = page.new()
    page.say(name, "What is it?")
    with page.stream(f"-~{name}:") as stream:
        stream.read_until(name, is_done)
        before = dict(stream.rows[name])
        seq = page.post(f"/conversations/{name}/clear", {})["seq"]
        stream.read_until(name, lambda rows: not rows)
        page.post(f"/conversations/{name}/restore", {"of": seq}, status=204)
        stream.read_until(name, lambda rows: rows == before)


@SQLITE
def test_late_output_of_a_run_far_above_does_not_stand_at_the_end(
    slow: Served, store_url: str
) -> None:
    """It stands with its own run, on the page of that; who watches the last rows sees what is said there."""
    page = slow.browser()
    with SessionDB(url=store_url) as db:
        db.create_session("s-1", source="web")
        db.append_message("s-1", role="user", content="q")
        repair(db, "s-1", "r-1")
        db.append_messages(
            "s-1", [{"role": "user", "content": f"n{n}"} for n in range(80)]
        )
        (name,) = [session.conversation for session in db.list_sessions()]
        with page.stream(f"-~{name}:") as stream:
            stream.until("rows")
            db.append_run_event("s-1", "r-1", "token", {"text": "late"})
            db.append_message("s-1", role="user", content="last")
            stream.read_until(
                name, lambda rows: any(row["text"] == "last" for row in rows.values())
            )
            assert not any(row["text"] == "late" for row in stream.rows[name].values())
    rows = page.get(f"/conversations/{name}/rows", before="10.-1.0")["rows"]
    assert [row["text"] for row in rows][:2] == ["q", "late"]


@BOTH
def test_a_deleted_conversation_is_gone_for_who_watches_it(page: Page) -> None:
    """The stream goes on for the rest."""
    name, other = page.new(), page.new()
    with page.stream(f"-~{name}:~{other}:") as stream:
        stream.until("rows")
        page.http.delete(f"/api/conversations/{name}")
        assert stream.until("gone")["conversation"] == name
        page.say(other, "Still here?")
        stream.read_until(other, is_done)
        assert name not in stream.cursor


@SQLITE
def test_a_conversation_that_cannot_be_read_holds_up_no_other(
    slow: Served, store_url: str
) -> None:
    """One browser has one stream. What is wrong with one tab is not the others' business."""
    page = slow.browser()
    broken, whole = page.new(), page.new()
    with tenax.open(store_url) as journal:
        journal.append(broken, [MessageUser([Text("Hello.")])])
    break_events(store_url, broken, MessageUser.kind)
    with page.stream(f"-~{broken}:~{whole}:") as stream:
        page.say(whole, "Talk.")
        stream.read_until(whole, is_done)
        assert {broken, whole} <= stream.list.keys()


@BOTH
def test_the_list_moves_as_conversations_do(page: Page) -> None:
    """New ones, titles, what is running, and what is gone."""
    with page.stream("-") as stream:
        stream.until("list")
        name = page.new()
        while name not in stream.list:
            stream.until("list")
        page.http.patch(f"/api/conversations/{name}", json={"title": "Renamed"})
        while stream.list[name]["title"] != "Renamed":
            stream.until("list")
        page.http.delete(f"/api/conversations/{name}")
        while name in stream.list:
            stream.until("list")


@SQLITE
def test_one_who_does_not_read_holds_up_nobody(slow: Served) -> None:
    """A stream that is opened and never read costs nothing; others get every word, and the server ends in time."""
    page = slow.browser()
    name = page.new()
    (cookie,) = [f"{each.name}={each.value}" for each in page.http.cookies.jar]
    proof = f"Cookie: {cookie}\r\nTenax-Key: {page.http.headers['Tenax-Key']}\r\n"
    host, port = slow.url.removeprefix("http://").split(":")
    lazy = socket.create_connection((host, int(port)))
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    at = quote(f"-~{name}:")
    lazy.sendall(
        f"GET /api/events?at={at} HTTP/1.1\r\nHost: {host}:{port}\r\n{proof}\r\n".encode()
    )
    page.say(name, "Talk.")
    with page.stream(f"-~{name}:") as stream:
        stream.read_until(name, is_done)
        assert stream.text(name) == SLOW
    code, _, _ = slow.stop()
    lazy.close()
    assert code == 0

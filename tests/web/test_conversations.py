"""What the page can do with a conversation, over HTTP, against the real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tenax.models import Reply
from tests.support.served import Pace, Page, Served, is_done
from tests.support.turns import set_up
from tests.web.conftest import BOTH, SQLITE


def answered(page: Page, conversation: str) -> list[dict[str, object]]:
    """Wait for the answer; the rows."""
    with page.stream(f"-~{conversation}:") as stream:
        stream.read_until(conversation, is_done)
    return page.rows(conversation)


def test_a_message_is_accepted_with_its_number_and_answered(page: Page) -> None:
    """202 and the seq; the answer comes by the stream and stands in the rows."""
    name = page.new()
    seq = page.say(name, "What is it?")
    rows = answered(page, name)
    assert [(row["kind"], row.get("text")) for row in rows] == [
        ("user", "What is it?"),
        ("assistant", "Forty-two, I think."),
    ]
    assert rows[0]["id"] == str(seq)
    assert rows[1]["model"] == "script"


@BOTH
def test_the_same_key_is_the_same_message(page: Page) -> None:
    """A page that did not hear the 202 sends again; another message under the same key is refused."""
    name, key = page.new(), str(uuid4())
    assert page.say(name, "once", key=key) == page.say(name, "once", key=key)
    answered(page, name)
    assert [row["kind"] for row in page.rows(name)] == ["user", "assistant"]
    other = page.http.post(
        f"/api/conversations/{name}/messages",
        json={"text": "other"},
        headers={"Idempotency-Key": key},
    )
    assert other.status_code == 409


def test_a_new_conversation_names_the_one_that_is_left(page: Page) -> None:
    """Leaving is a boundary: an id that is nobody's is refused, and nothing is made."""
    first = page.new()
    assert page.post("/conversations", {"leaving": first}, status=201)["id"] != first
    before = page.get("/conversations", limit=1)
    page.post("/conversations", {"leaving": "c_nobody"}, status=404)
    assert page.get("/conversations", limit=1) == before


def test_one_that_was_deleted_can_be_left(page: Page) -> None:
    """A page may name it a moment after: a message is not refused for that."""
    gone = page.new()
    assert page.http.delete(f"/api/conversations/{gone}").status_code == 204
    assert page.post("/conversations", {"leaving": gone}, status=201)["id"] != gone
    page.post(f"/conversations/{gone}/left", None, status=202)


@BOTH
def test_what_a_person_does_with_it(page: Page) -> None:
    """Rename, pin, archive, fork, undo, clear, restore, delete: each is seen in what follows."""
    name = page.new()
    page.say(name, "What is it?")
    answered(page, name)
    path = f"/conversations/{name}"
    change = page.http.patch(
        f"/api{path}", json={"title": " Two \n words ", "pinned": True}
    ).json()
    assert (change["title"], change["pinned"]) == ("Two words", True)
    fork = page.post(f"{path}/fork", {}, status=201)["id"]
    assert [row["kind"] for row in page.rows(fork)] == ["user", "assistant"]
    undone = page.post(f"{path}/undo", {})["seq"]
    assert page.rows(name) == []
    page.post(f"{path}/restore", {"of": undone}, status=204)
    assert len(page.rows(name)) == 2
    cleared = page.post(f"{path}/clear", {})["seq"]
    assert page.rows(name) == []
    page.post(f"{path}/restore", {"of": cleared}, status=204)
    assert len(page.rows(name)) == 2
    page.http.patch(f"/api{path}", json={"archived": True, "pinned": False})
    listed = [
        conversation["id"]
        for conversation in page.get("/conversations")["conversations"]
    ]
    assert name not in listed
    assert name in [
        conversation["id"]
        for conversation in page.get("/conversations", archived=True)["conversations"]
    ]
    assert page.http.delete(f"/api{path}").status_code == 204
    assert page.http.get(f"/api{path}").status_code == 410


@BOTH
def test_a_message_is_edited_and_answered_again_and_no_version_is_lost(
    page: Page,
) -> None:
    """The same edit sent twice is stored once, and every version can be chosen."""
    name = page.new()
    page.say(name, "What is it?")
    answered(page, name)
    path = f"/conversations/{name}/messages"
    first = int(page.rows(name)[0]["id"])
    bodies: list[dict[str, str]] = [{"text": "What is it now?"}, {}]
    seqs = [first]
    for n, body in enumerate(bodies):
        address = f"{path}/{seqs[-1]}/replace"
        once: Any = {"Idempotency-Key": f"edit-{name}-{n}"}
        stored = page.post(address, body, status=202, **once)["seq"]
        assert page.post(address, body, status=202, **once)["seq"] == stored
        seqs.append(stored)
        answered(page, name)
    assert [row["text"] for row in page.rows(name)] == [
        "What is it now?",
        "Forty-two, I think.",
    ]
    assert page.rows(name)[0]["versions"] == seqs
    page.post(f"{path}/{first}/choose", None, status=204)
    assert page.rows(name)[0]["text"] == "What is it?"
    assert page.rows(name)[0]["versions"] == seqs
    assert page.http.post(f"/api{path}/1/choose").status_code == 400


def test_a_queued_message_is_edited_and_cancelled(slow: Served, pace: Pace) -> None:
    """The same request sent twice is one change. A message whose answer has begun is refused with a sentence."""
    page = slow.browser()
    pace.say(20)
    name = page.new()
    path = f"/conversations/{name}/messages"
    first = page.say(name, "Talk.")
    with page.stream(f"-~{name}:") as stream:
        stream.read_until(name, lambda _rows: len(stream.text(name)) > 20)
        queued = [page.say(name, text) for text in ("Second.", "Third.")]
        once: Any = {"Idempotency-Key": f"edit-{name}"}
        address = f"{path}/{queued[0]}/replace"
        edited = page.post(address, {"text": "Better."}, status=202, **once)["seq"]
        again = page.post(address, {"text": "Better."}, status=202, **once)["seq"]
        assert again == edited
        other: Any = {"Idempotency-Key": f"other-{name}"}
        page.post(address, {"text": "Late."}, status=409, **other)
        for _ in range(2):
            page.post(f"{path}/{queued[1]}/withdraw", status=204)
        stream.read_until(name, lambda rows: str(queued[1]) not in rows)
        waiting = [row["text"] for row in page.rows(name) if row.get("state")][1:]
        assert waiting == ["Better."]
        answer = page.http.post(f"/api{path}/{first}/withdraw")
        assert (answer.status_code, answer.json()["detail"]) == (
            409,
            "This message no longer waits: its answer has begun, or it was removed.",
        )
        assert page.http.post(f"/api{path}/1/withdraw").status_code == 400
        pace.say()
        stream.read_until(name, is_done)
    words = [row["text"] for row in page.rows(name) if row["kind"] == "user"]
    assert words == ["Talk.", "Better."]


def test_words_that_were_taken_back_leave_the_list(page: Page) -> None:
    """The list shows the first words that stand, not those that once stood."""
    name = page.new()
    page.say(name, "Not these words.")
    answered(page, name)
    assert page.get(f"/conversations/{name}")["words"] == "Not these words."
    page.post(f"/conversations/{name}/undo", {})
    assert page.get(f"/conversations/{name}")["words"] is None


def test_what_it_took_is_told(page: Page) -> None:
    """Tokens in and out; money is unknown where nobody set a price."""
    name = page.new()
    page.say(name, "What is it?")
    answered(page, name)
    usage = page.get(f"/conversations/{name}")["usage"]
    assert usage["tokens_in"] > 0
    assert usage["tokens_out"] > 0
    assert usage["cost"] is None


@BOTH
def test_the_list_goes_on_page_by_page(page: Page) -> None:
    """`next` leads on; a place that is none is refused with a sentence."""
    names = [page.new() for _ in range(5)]
    first = page.get("/conversations", limit=3)
    second = page.get("/conversations", limit=3, after=first["next"])
    found = [
        conversation["id"]
        for conversation in first["conversations"] + second["conversations"]
    ]
    assert [each for each in found if each in names] == names[::-1]
    assert page.http.get("/api/conversations", params={"after": "x"}).status_code == 400


def test_an_approval_is_answered_once(asking: Served) -> None:
    """With the exact arguments before the eyes; the second answer is refused."""
    page = asking.browser()
    name = page.new()
    page.say(name, "Write it down.")
    with page.stream(f"-~{name}:") as stream:
        stream.read_until(
            name, lambda rows: any(row.get("state") == "asks" for row in rows.values())
        )
        tool = next(row for row in stream.rows[name].values() if row["kind"] == "tool")
        assert tool["touches"] == "a/note.txt"
        assert '"content":"held"' in tool["arguments"]
        assert not (asking.home / "work" / "a").exists()
        message, _, call = tool["id"].partition(":")
        answer = {"message": int(message), "call": call, "answer": "once"}
        page.post(f"/conversations/{name}/approvals", answer, status=202)
        stream.read_until(
            name,
            lambda rows: any(row.get("text") == "Thank you." for row in rows.values()),
        )
    assert (asking.home / "work" / "a" / "note.txt").read_text() == "held"
    page.post(f"/conversations/{name}/approvals", answer, status=409)


@SQLITE
def test_stop_ends_the_answer_and_keeps_its_words(slow: Served, pace: Pace) -> None:
    """What was said stands; a marker says that it was stopped."""
    page = slow.browser()
    pace.say(20)  # so that the stop is not too late
    name = page.new()
    page.say(name, "Talk.")
    with page.stream(f"-~{name}:") as stream:
        stream.read_until(name, lambda _rows: len(stream.text(name)) > 20)
        shown = stream.text(name)
        page.post(f"/conversations/{name}/stop", status=202)
        stream.read_until(
            name, lambda rows: any(row["kind"] == "marker" for row in rows.values())
        )
        assert stream.text(name).startswith(shown)
    assert page.rows(name)[-1]["state"] == "stopped"


@BOTH
def test_search_finds_the_message_and_its_conversation(page: Page) -> None:
    """A hit names conversation, seq and title."""
    word = f"zebra{uuid4().hex[:8]}"
    name = page.new()
    seq = page.say(name, f"The {word} sleeps.")
    answered(page, name)
    (hit,) = page.get("/search", q=word)["hits"]
    assert (hit["conversation"], hit["seq"]) == (name, seq)
    assert word in hit["title"]
    assert word in hit["text"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/conversations/c_none/messages", {"text": "x"}, 404),
        ("GET", "/conversations/c_none", None, 404),
        ("GET", "/conversations/c_none/rows", None, 404),
        ("POST", "/conversations/c_none/stop", {}, 404),
        ("POST", "/conversations/c_none/resume", {}, 404),
        ("GET", "/search", None, 400),
        ("GET", "/conversations?limit=0", None, 400),
        ("GET", "/conversations?nonsense=1", None, 400),
        ("POST", "/conversations", {"leaving": 7}, 400),
        ("POST", "/conversations", {"other": "x"}, 400),
        ("POST", "/setup/use", {"offer": "nothing"}, 400),
        ("POST", "/tour/plug", {}, 409),
        ("GET", "/nowhere", None, 404),
        ("PUT", "/conversations", {}, 405),
    ],
)
def test_bad_input_gets_a_sentence(
    page: Page, method: str, path: str, body: object, status: int
) -> None:
    """A problem with a title, a detail that is a sentence, and never a traceback."""
    headers = {"Idempotency-Key": str(uuid4())}
    answer = page.http.request(method, f"/api{path}", json=body, headers=headers)
    assert answer.status_code == status
    problem = answer.json()
    assert problem["status"] == status
    assert problem["detail"].endswith(".")
    assert answer.headers["content-type"] == "application/problem+json"


def test_an_empty_message_and_one_without_a_key_are_refused(page: Page) -> None:
    """Nothing is stored."""
    name = page.new()
    path = f"/api/conversations/{name}/messages"
    assert page.http.post(path, json={"text": "x"}).status_code == 400
    assert (
        page.http.post(
            path, json={"text": " "}, headers={"Idempotency-Key": "k"}
        ).status_code
        == 400
    )
    broken = b'{"text": "\xff\xfe"}'
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    assert page.http.post(path, content=broken, headers=headers).status_code == 400
    assert page.rows(name) == []


def test_ten_megabytes_are_refused_and_harm_nothing(page: Page) -> None:
    """413, with what to do; the server goes on."""
    name = page.new()
    path = f"/api/conversations/{name}/messages"
    answer = page.http.post(
        path, json={"text": "x" * 10_000_000}, headers={"Idempotency-Key": "big"}
    )
    assert answer.status_code == 413
    assert answer.json()["hint"]
    answer = page.http.post(
        path, json={"text": "x" * 5_000_000}, headers={"Idempotency-Key": "big2"}
    )
    assert answer.status_code == 413
    # anybody may send this
    answer = page.http.post("/api/sign-in", json={"code": "x" * 5000})
    assert (answer.status_code, answer.json()["detail"]) == (
        413,
        "The request is too large. The limit is 4,096 bytes.",
    )
    assert page.rows(name) == []
    assert page.get("/health")["ok"] is True


def test_what_the_model_saw_can_be_seen(page: Page) -> None:
    """The body that was sent, for the request of an answer."""
    name = page.new()
    page.say(name, "What is it?")
    rows = answered(page, name)
    seen = page.http.get(f"/api/conversations/{name}/seen/{rows[1]['id']}")
    assert seen.status_code == 200
    assert "What is it?" in seen.text
    assert page.http.get(f"/api/conversations/{name}/seen/1").status_code == 400


@BOTH
def test_the_store_proves_itself_in_the_page(page: Page) -> None:
    """What `tenax doctor` says, line by line."""
    found = page.get("/doctor")
    assert found["ok"] is True
    assert found["lines"][-1].endswith(": ok")


def test_settings_that_are_changed_elsewhere_take_effect(tmp_path: Path) -> None:
    """`tenax setup` or an editor writes the file; a file that is wrong changes nothing."""
    with Served(tmp_path) as served:
        page = served.browser()
        assert page.get("/setup")["model"] is None
        name = page.new()
        refused = page.http.post(
            f"/api/conversations/{name}/messages",
            json={"text": "x"},
            headers={"Idempotency-Key": "1"},
        )
        assert refused.status_code == 409
        assert "tenax setup" in refused.json()["hint"]
        set_up(tmp_path, [Reply("Here I am.")])
        page.say(name, "Who answers?")
        assert answered(page, name)[-1]["text"] == "Here I am."
        (tmp_path / "config.toml").write_text("nonsense = 1")
        assert page.get("/setup")["model"]["label"] == "main"

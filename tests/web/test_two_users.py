"""Two people on one server: nothing of one is reachable for the other, at any endpoint."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest

from tenax.web.app import endpoints
from tests.support.served import Page, Served, is_done
from tests.web.conftest import BOTH
from tests.web.test_conversations import answered

pytestmark = BOTH

SECRET = "aardvark"
BODIES: dict[str, object] = {
    "send_message": {"text": "x"},
    "change_conversation": {"title": "mine now"},
    "undo": {},
    "restore": {"of": 1},
    "mark_read": {"seq": 1},
    "change_project": {"name": "mine now"},
    "fork": {},
    "answer_approval": {"message": 1, "call": "c", "answer": "once"},
    "answer_all_approvals": {"message": 1, "answer": "once"},
    "open_conversation": {"leaving": "{id}"},
    "change_memory": {"was": 1, "text": "mine now"},
    "undo_memory": {"was": 1},
    "add_route": {"account": "telegram:1", "chat": "1"},
}
WITH_ID = [
    endpoint
    for endpoint in endpoints()
    if "{id}" in endpoint.path or endpoint.name == "open_conversation"
]


@pytest.fixture(scope="module")
def others(shared: Served, page: Page) -> tuple[Page, str]:
    """Another person's page, and a conversation of the first one's."""
    name = page.new()
    page.say(name, f"My word is {SECRET}.")
    answered(page, name)
    return shared.browser(shared.tenax("link", "--user", "berta").stdout.strip()), name


@pytest.mark.parametrize("each", WITH_ID, ids=lambda each: each.name)
def test_no_endpoint_shows_or_changes_anothers_conversation(
    page: Page, others: tuple[Page, str], each: object
) -> None:
    """It is as if it did not exist."""
    berta, name = others
    before = page.rows(name)
    path = re.sub(
        r"{seq}",
        "1",
        each.path.replace("{id}", name).replace("{blob}", "0" * 64),  # type: ignore[attr-defined]
    )
    body = BODIES.get(each.name, {} if each.body else None)  # type: ignore[attr-defined]
    if each.name == "open_conversation":  # type: ignore[attr-defined]
        body = {"leaving": name}
    if "was" in each.in_query:  # type: ignore[attr-defined]
        path += "?was=1"
    if "path" in each.in_query:  # type: ignore[attr-defined]
        path += "?path=a.txt"
    if "chat" in each.in_query:  # type: ignore[attr-defined]
        path += "?account=telegram:1&chat=1"
    answer = berta.http.request(
        each.method,  # type: ignore[attr-defined]
        path,
        json=body,
        headers={"Idempotency-Key": str(uuid4())},
    )
    assert answer.status_code == 404, answer.text
    assert SECRET not in answer.text
    assert page.rows(name) == before


def test_list_and_search_are_of_ones_own(page: Page, others: tuple[Page, str]) -> None:
    """Neither shows a word of the other's."""
    berta, name = others
    assert page.get("/search", q=SECRET)["hits"]
    assert berta.get("/search", q=SECRET)["hits"] == []
    assert (
        berta.http.get(
            "/api/search", params={"q": SECRET, "conversation": name}
        ).status_code
        == 404
    )
    assert name not in [
        conversation["id"]
        for conversation in berta.get("/conversations", limit=200)["conversations"]
    ]


def test_the_stream_shows_only_ones_own(page: Page, others: tuple[Page, str]) -> None:
    """Another's conversation is gone, whatever number is claimed; its moves are not told."""
    berta, name = others
    incarnation = ""
    with page.stream("-") as stream:
        incarnation = stream.until("hello")["incarnation"]
    for at in (f"-~{name}:", f"{incarnation}~{name}:1"):
        with berta.stream(at) as stream:
            assert stream.until("gone")["conversation"] == name
    mine = berta.new()
    with berta.stream(f"-~{mine}:") as stream:
        stream.until("rows")
        page.say(name, "Something moves.")
        berta.say(mine, "And here.")
        stream.read_until(mine, is_done)
        assert name not in stream.list
    # what others compare does not move any more
    with page.stream(f"-~{name}:") as stream:
        stream.read_until(
            name, lambda rows: sum(row["kind"] == "user" for row in rows.values()) == 2
        )
        stream.read_until(name, lambda rows: len(rows) == 4 and is_done(rows))


def test_one_who_does_not_run_it_changes_no_settings(others: tuple[Page, str]) -> None:
    """Models, keys, the plug and the proof of the whole store are the owner's."""
    berta, _ = others
    place = {"api": "openai", "url": "http://127.0.0.1:1/v1"}
    for path, body in [
        ("/setup/use", {"offer": "practice"}),
        ("/setup/models", place),
        ("/setup/connect", {**place, "name": "x"}),
        ("/setup/choose", {"label": "main"}),
        ("/tour/plug", {}),
        ("/rules", {"verdict": "allow", "tool": "*"}),
    ]:
        assert berta.http.post(f"/api{path}", json=body).status_code == 409
    assert berta.http.get("/api/doctor").status_code == 409
    assert berta.http.get("/api/rules").status_code == 409
    assert (
        berta.http.delete(
            "/api/rules", params={"verdict": "deny", "tool": "x"}
        ).status_code
        == 409
    )
    setup = berta.get("/setup")
    assert (setup["user"], setup["offers"], setup["file"]) == ("berta", [], "")
    assert setup["terminal"] == "", "it names the owner's folders"

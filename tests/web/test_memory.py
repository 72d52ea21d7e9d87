"""What is remembered, over HTTP, against the real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenax.models import Reply, ScriptedCall
from tests.support.served import Page, Served
from tests.support.turns import set_up
from tests.web.conftest import BOTH

DOG = "Has a dog called Berta."
REMEMBER = ScriptedCall("memory", {"action": "add", "text": DOG})


@pytest.fixture
def remembering(tmp_path: Path) -> Iterator[Served]:
    """A server whose model remembers something, and answers."""
    set_up(tmp_path, [Reply("", calls=[REMEMBER]), Reply("Noted.")])
    with Served(tmp_path) as served:
        yield served


def added(page: Page, text: str, about: str = "note") -> Any:
    """A fact that is remembered from here on."""
    return page.post("/memory", {"text": text, "about": about})["fact"]


def noted(
    page: Page, text: str = "My dog is called Berta.", **how: bool
) -> tuple[str, int]:
    """A conversation in which this was said and answered: its id, and the seq of the message."""
    name = page.post("/conversations", how)["id"]
    seq = page.say(name, text)
    with page.stream(f"-~{name}:") as stream:
        stream.read_until(
            name, lambda rows: any(row.get("text") == "Noted." for row in rows.values())
        )
    return name, seq


def texts(page: Page, **query: str) -> list[str]:
    return [fact["text"] for fact in page.get("/memory", **query)["facts"]]


@BOTH
def test_what_is_told_is_remembered_once_and_found(page: Page) -> None:
    """Newest first; what is known already is said, and not kept twice."""
    first = added(page, "Drinks tea in the morning.", "profile")
    assert (first["version"], first["state"], first["about"], first["by"]) == (
        1,
        "standing",
        "profile",
        "person",
    )
    assert (first["conversation"], first["seq"], first["title"], first["scope"]) == (
        None,
        None,
        None,
        None,
    )
    again = page.post("/memory", {"text": "Drinks tea in the morning."})
    assert (again["fact"]["id"], again["known"]) == (first["id"], True)
    added(page, "Rows on the lake on Saturdays.")
    assert texts(page)[:2] == [
        "Rows on the lake on Saturdays.",
        "Drinks tea in the morning.",
    ]
    assert texts(page, words="tea morning")[0] == "Drinks tea in the morning."
    assert texts(page, words="zeppelin") == []


@BOTH
def test_it_is_changed_forgotten_and_brought_back(page: Page) -> None:
    """Each change names the version that was seen, and each can be undone; all versions are told."""
    fact = added(page, "Plays the cello.")
    path = f"/api/memory/{fact['id']}"
    changed = page.http.patch(
        path, json={"was": 1, "text": "Plays the viola.", "about": "profile"}
    ).json()
    assert (changed["version"], changed["text"], changed["about"]) == (
        2,
        "Plays the viola.",
        "profile",
    )
    gone = page.http.delete(path, params={"was": 2}).json()
    assert (gone["version"], gone["state"]) == (3, "removed")
    assert "Plays the viola." not in texts(page)
    back = page.http.post(f"{path}/undo", json={"was": 3}).json()
    assert (back["version"], back["state"], back["text"]) == (
        4,
        "standing",
        "Plays the viola.",
    )
    versions = page.http.get(path).json()["facts"]
    assert [
        (version["version"], version["text"], version["state"]) for version in versions
    ] == [
        (1, "Plays the cello.", "standing"),
        (2, "Plays the viola.", "standing"),
        (3, "Plays the viola.", "removed"),
        (4, "Plays the viola.", "standing"),
    ]


def test_a_version_that_is_not_the_one_seen_is_refused(page: Page) -> None:
    """With a sentence, and nothing is changed."""
    fact = added(page, "Lives in Bern.")
    path = f"/api/memory/{fact['id']}"
    page.http.patch(path, json={"was": 1, "text": "Lives in Thun."})
    for answer in (
        page.http.patch(path, json={"was": 1, "text": "Lives in Basel."}),
        page.http.delete(path, params={"was": 1}),
        page.http.post(f"{path}/undo", json={"was": 1}),
    ):
        assert answer.status_code == 409
        assert (
            "was changed meanwhile: it is at version 2, not 1."
            in answer.json()["detail"]
        )
    assert page.http.get(path).json()["facts"][-1]["text"] == "Lives in Thun."


@pytest.mark.parametrize("text", ["", " \n ", "x" * 1001])
def test_what_cannot_be_remembered_is_refused_with_a_sentence(
    page: Page, text: str
) -> None:
    """Too little, and too much."""
    answer = page.http.post("/api/memory", json={"text": text})
    assert answer.status_code in {400, 413}
    assert answer.json()["detail"]


def test_what_was_exported_is_read_back(page: Page) -> None:
    """As Markdown to download; what it says already is known, a bullet that is new is added, a changed one changed."""
    fact = added(page, "Reads Musil.")
    export = page.http.get("/api/memory/export")
    assert export.headers["content-type"].startswith("text/markdown")
    assert 'filename="tenax-memory.md"' in export.headers["content-disposition"]
    same = page.post("/memory/import", {"markdown": export.text})
    assert (same["added"], same["changed"], same["refused"]) == (0, 0, [])
    other = (
        export.text.replace("Reads Musil.", "Reads Musil and Frisch.")
        + "\n- Writes with a pencil.\n"
    )
    loaded = page.post("/memory/import", {"markdown": other})
    assert (loaded["added"], loaded["changed"], loaded["refused"]) == (1, 1, [])
    assert (
        page.get(f"/memory/{fact['id']}")["facts"][-1]["text"]
        == "Reads Musil and Frisch."
    )
    assert "Writes with a pencil." in texts(page)


def test_what_a_model_remembers_is_a_line_that_can_be_undone(
    remembering: Served,
) -> None:
    """The fact names the message it comes from and what that conversation is called; the line says when it is undone."""
    page = remembering.browser()
    name, seq = noted(page)
    (line,) = [row for row in page.rows(name) if row["kind"] == "memory"]
    assert (line["text"], line["action"], line["by"], line.get("state", "")) == (
        DOG,
        "added",
        "model",
        "",
    )
    (fact,) = page.get("/memory")["facts"]
    assert (fact["id"], fact["version"]) == (line["fact"], line["version"])
    assert (fact["conversation"], fact["seq"], fact["title"]) == (
        name,
        seq,
        "My dog is called Berta.",
    )
    page.post(f"/memory/{line['fact']}/undo", {"was": line["version"]})
    (line,) = [row for row in page.rows(name) if row["kind"] == "memory"]
    assert line["state"] == "undone"
    assert texts(page) == []


def test_facts_go_with_the_conversation_that_they_come_from(
    remembering: Served,
) -> None:
    """Deleted is deleted, also from the memory."""
    page = remembering.browser()
    name, _ = noted(page)
    assert texts(page) == [DOG]
    page.http.delete(f"/api/conversations/{name}")
    assert texts(page) == []


def test_nothing_is_remembered_of_a_temporary_conversation(remembering: Served) -> None:
    """The list says that it is one, and the model has no memory there."""
    page = remembering.browser()
    name, _ = noted(page, temporary=True)
    assert page.get(f"/conversations/{name}")["temporary"] is True
    assert [row["kind"] for row in page.rows(name) if row["kind"] == "memory"] == []
    assert texts(page) == []


def test_the_status_of_a_provider_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    """One that is named and is not there; a retry of one that nobody knows is refused."""
    set_up(tmp_path, [Reply("Yes.")])
    config = tmp_path / "config.toml"
    config.write_text(f'{config.read_text()}\n[memory]\nproviders = ["elephant"]\n')
    with Served(tmp_path) as served:
        page = served.browser()
        (elephant,) = page.get("/memory/status")["providers"]
        assert elephant["provider"] == "elephant"
        assert elephant["problem"].startswith("There is no folder elephant in ")
        assert page.http.post("/api/memory/providers/nobody/retry").status_code in {
            400,
            404,
        }


def test_nobody_sees_or_changes_what_is_remembered_of_another(
    shared: Served, page: Page
) -> None:
    """It is as if it did not exist."""
    fact = added(page, "Keeps aardvarks.")
    berta = shared.browser(shared.tenax("link", "--user", "berta").stdout.strip())
    path = f"/api/memory/{fact['id']}"
    for answer in (
        berta.http.get(path),
        berta.http.patch(path, json={"was": 1, "text": "x"}),
        berta.http.delete(path, params={"was": 1}),
        berta.http.post(f"{path}/undo", json={"was": 1}),
    ):
        assert answer.status_code == 404
        assert "aardvark" not in answer.text
    assert "Keeps aardvarks." not in texts(berta) + texts(berta, words="aardvarks")
    assert "aardvark" not in berta.http.get("/api/memory/export").text
    assert added(berta, "Keeps aardvarks.")["id"] != fact["id"]
    assert page.http.get(path).json()["facts"] == [
        page.get("/memory", words="Keeps aardvarks")["facts"][0]
    ]

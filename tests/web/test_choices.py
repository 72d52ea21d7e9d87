"""Choices of the person in the API: model, mode and project, read marks, preferences, projects, usage; and live in every tab."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import tenax
from tenax.events import (
    ConversationConfigured,
    MessageAssistant,
    ModelRequested,
    Usage,
)
from tenax.journal import LOCAL_USER
from tenax.journal.preferences import Preferences
from tenax.journal.projects import Project, Projects
from tenax.models import Reply
from tenax.models.scripted import Trouble
from tenax.parts import Text
from tests.contract.engine.base import begin, turn
from tests.support.served import Page, Served, Stream
from tests.support.turns import SECONDS, set_up
from tests.web.conftest import BOTH
from tests.web.test_conversations import answered


def change(page: Page, path: str, body: object, status: int = 200) -> Any:
    answer = page.http.patch(f"/api{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def add_project(page: Page, body: dict[str, str], status: int = 201) -> Any:
    headers: Any = {"Idempotency-Key": str(uuid4())}
    return page.post("/projects", body, status=status, **headers)


def until(stream: Stream, frame: str, done: Any) -> Any:
    """Read frames until one of this kind is as it should be."""
    while True:
        data = stream.until(frame)
        if done(data):
            return data


@BOTH
def test_a_conversation_has_a_model_a_mode_and_a_project(page: Page) -> None:
    """From the beginning or later; what does not exist is refused, and then nothing is changed."""
    label = page.get("/setup")["labels"][0]
    project = add_project(page, {"name": "Garden"})["id"]
    body = {"model": label, "mode": "plan", "project": project}
    made = page.post("/conversations", body)
    assert {name: made[name] for name in body} == body
    path = f"/conversations/{made['id']}"
    shown = change(page, path, {"mode": "edits", "model": ""})
    assert (shown["model"], shown["mode"], shown["project"]) == ("", "edits", project)
    for wrong in ({"model": "huge"}, {"project": "p_none"}, {"mode": "wild"}):
        change(page, path, {"title": "never", **wrong}, 400)
        page.post("/conversations", wrong, status=400)
    assert page.get(path)["title"] is None
    assert change(page, path, {"project": ""})["project"] == ""
    assert page.http.delete(f"/api/projects/{project}").status_code == 204


@BOTH
def test_preferences_are_live_in_every_browser(shared: Served, page: Page) -> None:
    """Of the same user, also when another process changes them."""
    other = shared.browser(shared.tenax("link").stdout.strip())
    berta = shared.browser(shared.tenax("link", "--user", "berta").stdout.strip())
    with other.stream("-") as stream:
        stream.until("preferences")
        theme = {"test theme": {"dark": True}}
        assert own(change(page, "/preferences", theme)) == theme
        until(stream, "preferences", lambda data: own(data) == theme)
        size = {"test size": 2}
        with store_of(shared) as journal:
            Preferences(journal).change({"test theme": None, **size})
        until(stream, "preferences", lambda data: own(data) == size)
    assert own(page.get("/preferences")) == size
    assert own(berta.get("/preferences")) == {}
    with page.stream("-") as stream:
        assert own(stream.until("preferences")) == size
    assert own(change(page, "/preferences", {"test size": None})) == {}
    change(page, "/preferences", {"big": "x" * 17_000}, 413)
    change(page, "/preferences", [1], 400)


def own(data: Any) -> dict[str, Any]:
    """The preferences of this test: others share the server."""
    values = data["preferences"]
    return {
        name: values[name] for name in ("test theme", "test size") if name in values
    }


def store_of(shared: Served) -> tenax.Journal:
    """The store of a server, opened by this process."""
    url = shared.env.get("TENAX_STORE") or f"sqlite:///{shared.home / 'tenax.db'}"
    return tenax.open(url, user=LOCAL_USER)


@BOTH
def test_projects_are_live_in_every_browser(
    shared: Served, page: Page, tmp_path: Path
) -> None:
    """Added, changed and removed; and added once for a key."""
    folder = tmp_path / "garden"
    folder.mkdir()
    other = shared.browser(shared.tenax("link").stdout.strip())
    with other.stream("-") as stream:
        stream.until("projects")
        headers: Any = {"Idempotency-Key": "one"}
        for _ in range(2):
            made = page.post(
                "/projects", {"name": "One", "folder": str(folder)}, **headers
            )
        assert (made["name"], made["folder"]) == ("One", str(folder))
        until(stream, "projects", lambda data: made in data["projects"])
        path = f"/projects/{made['id']}"
        changed = change(page, path, {"name": "Two", "folder": ""})
        assert changed == {**made, "name": "Two", "folder": ""}
        until(stream, "projects", lambda data: changed in data["projects"])
        with store_of(shared) as journal:
            Projects(journal).add(Project("p_there", "Three"))
        until(stream, "projects", lambda data: "p_there" in str(data["projects"]))
        for gone in (made["id"], "p_there"):
            assert page.http.delete(f"/api/projects/{gone}").status_code == 204
        until(stream, "projects", lambda data: made["id"] not in str(data))
    assert made["id"] not in str(page.get("/projects"))
    assert page.http.delete(f"/api{path}").status_code == 404
    change(page, path, {"name": "x"}, 404)
    add_project(page, {"name": "x", "folder": str(tmp_path / "none")}, 400)
    berta = shared.browser(shared.tenax("link", "--user", "berta").stdout.strip())
    add_project(berta, {"name": "x", "folder": str(tmp_path)}, 409)


@BOTH
def test_a_read_mark_shows_in_the_list(shared: Served, page: Page) -> None:
    """Live in another browser; an answer after it is unread."""
    first = page.new()
    page.post(f"/conversations/{first}/read", {"seq": 1}, status=204)
    name = page.new()
    page.say(name, "Hello?")
    answered(page, name)
    path = f"/conversations/{name}"
    page.post(f"{path}/read", {"seq": 1}, status=204)
    other = shared.browser(shared.tenax("link").stdout.strip())
    with other.stream("-") as stream:
        until(stream, "list", lambda _: stream.list.get(name, {}).get("unread"))
        page.post(f"{path}/read", {"seq": 4_000_000_000}, status=204)
        until(stream, "list", lambda _: not stream.list[name]["unread"])
    shown = page.get(path)
    assert (shown["unread"], shown["state"]) == (False, "")
    assert shown["read"] > 1
    page.post(f"{path}/read", {"seq": 0}, status=400)
    page.post("/conversations/c_none/read", {"seq": 1}, status=404)


def test_the_list_says_that_a_conversation_asks(asking: Served) -> None:
    """At once, in every browser; and when it was answered."""
    page = asking.browser()
    name = page.new()
    with page.stream("-") as stream:
        page.say(name, "Write it.")
        until(stream, "list", lambda _: state_of(stream, name) == "asks")
        (question,) = page.get(f"/conversations/{name}/approvals")["questions"]
        answer = {key: question[key] for key in ("message", "call")}
        page.post(f"/conversations/{name}/approvals", {**answer, "answer": "once"})
        until(stream, "list", lambda _: state_of(stream, name) == "")
        assert stream.list[name]["running"] is False


def test_the_list_says_that_a_run_failed(tmp_path: Path) -> None:
    """And no longer when it is undone."""
    set_up(tmp_path, [Reply(trouble=Trouble("key"))])
    with Served(tmp_path) as served:
        page = served.browser()
        name = page.new()
        with page.stream("-") as stream:
            page.say(name, "Hello?")
            until(
                stream,
                "list",
                lambda _: state_of(stream, name) == "failed",
            )
            page.post(f"/conversations/{name}/undo")
            until(stream, "list", lambda _: state_of(stream, name) == "")


@BOTH
def test_the_list_shows_what_another_process_stored(shared: Served, page: Page) -> None:
    """A failure and a choice, without a request to this server."""
    with page.stream("-") as stream, store_of(shared) as journal:
        stream.until("list")
        name = begin(journal)
        turn(journal, name, "r-1", "failed")
        until(stream, "list", lambda _: state_of(stream, name) == "failed")
        journal.append(name, [ConversationConfigured(mode="plan")])
        until(stream, "list", lambda _: stream.list[name]["mode"] == "plan")
        turn(journal, name, "r-2", "completed")
        until(stream, "list", lambda _: state_of(stream, name) == "")


def state_of(stream: Stream, conversation: str) -> str | None:
    return stream.list.get(conversation, {}).get("state")


@BOTH
def test_usage_is_shown_by_day_model_and_conversation(
    shared: Served, page: Page
) -> None:
    """The sums fit together; the most expensive conversation comes first, with its title."""
    with store_of(shared) as journal:
        used = [
            MessageAssistant([Text("a")], model="large", usage=Usage(1000, 10, cost=9)),
            MessageAssistant([Text("b")], model="other", usage=Usage(1, 1)),
        ]
        name = begin(journal, *used)
    change(page, f"/conversations/{name}", {"title": "Dear"})
    found = page.get("/usage", days=2)
    (large,) = [row for row in found["days"] if row["model"] == "large"]
    assert (large["input"], large["output"], large["cost"]) == (1000, 10, 9.0)
    first = found["conversations"][0]
    assert (first["conversation"], first["title"]) == (name, "Dear")
    assert (first["cost"], first["unpriced"]) == (9.0, 1)
    for field in ("input", "output", "unpriced"):
        assert sum(row[field] for row in found["days"]) == found["total"][field]
    assert page.http.get("/api/usage", params={"days": 0}).status_code == 400
    berta = shared.browser(shared.tenax("link", "--user", "berta").stdout.strip())
    assert name not in str(berta.get("/usage"))


def test_a_message_is_answered_again_by_another_model(tmp_path: Path) -> None:
    """Which the conversation has from then on; a removed model is told with the conversation."""
    set_up(tmp_path, [Reply("Hi.")])
    config = tmp_path / "config.toml"
    first = config.read_text()
    other = f'[models.other]\napi = "script"\nurl = "{tmp_path}/script.json"\nname = "second"\n'
    config.write_text(first + other)
    with Served(tmp_path) as served:
        page = served.browser()
        name = page.new()
        page.say(name, "Hello?")
        answered(page, name)
        path = f"/conversations/{name}"
        rows = page.get(f"{path}/rows")["rows"]
        seq = next(row["id"] for row in rows if row["kind"] == "user")
        key: Any = {"Idempotency-Key": str(uuid4())}
        for wrong, status in (({"model": "huge"}, 400), ({"model": 1}, 400)):
            page.post(f"{path}/messages/{seq}/replace", wrong, status=status, **key)
        for _ in range(2):
            page.post(
                f"{path}/messages/{seq}/replace", {"model": "other"}, status=202, **key
            )
        answered(page, name)
        shown = page.get(path)
        assert (shown["model"], shown["note"]) == ("other", "")
        with store_of(served) as journal:
            asked = [
                recorded.event.model
                for recorded in journal.read(name)
                if isinstance(recorded.event, ModelRequested)
            ]
        assert asked == ["script", "second"]
        config.write_text(first)
        deadline = time.monotonic() + SECONDS
        while "no longer in the settings" not in page.get(path)["note"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_files_of_a_conversation_are_those_of_its_project(
    shared: Served, page: Page, tmp_path: Path
) -> None:
    """At once after a change; a folder that is gone has no files, and is not made."""
    folder = tmp_path / "garden"
    folder.mkdir()
    (folder / "pears.txt").write_text("three")
    project = add_project(page, {"name": "Garden", "folder": str(folder)})
    name = page.post("/conversations", {"project": project["id"]})["id"]

    def names() -> list[str]:
        found = page.get(f"/conversations/{name}/files")
        return [entry["name"] for entry in found["entries"]]

    assert names() == ["pears.txt"]
    (folder / "pears.txt").unlink()
    folder.rmdir()
    found = page.http.get(f"/api/conversations/{name}/files")
    assert found.status_code in {200, 404}
    assert not folder.exists()
    change(page, f"/conversations/{name}", {"project": ""})
    assert "pears.txt" not in names()
    assert page.http.delete(f"/api/projects/{project['id']}").status_code == 204

"""`/api/import`: a file is uploaded, looked through and imported in a process of its own, for its user only."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenax.models import Reply
from tests.support.exports import (
    ImportPace,
    chatgpt_conversation,
    chatgpt_zip,
    many_chatgpt,
)
from tests.support.served import SECONDS, Page, Served
from tests.support.turns import set_up
from tests.web.conftest import BOTH


def upload(page: Page, data: bytes, name: str = "export.zip") -> Any:
    answer = page.http.post("/api/import", params={"name": name}, content=data)
    assert answer.status_code == 202, answer.text
    return answer.json()


def until(page: Page, *phases: str) -> dict[str, Any]:
    """Wait until the import is in one of these phases."""

    def found() -> dict[str, Any] | None:
        state: dict[str, Any] = page.get("/import")
        return state if state["phase"] in phases else None

    state: dict[str, Any] = waited(found)
    return state


def waited(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def confirm(page: Page, state: dict[str, Any], *, remember: bool = False) -> None:
    body = {"id": state["id"], "remember": remember}
    page.post("/import/confirm", body, status=202)


def imported(page: Page) -> list[str]:
    """The titles of the conversations of the user."""
    found = page.get("/conversations")["conversations"]
    return sorted(one["title"] for one in found)


@BOTH
def test_a_file_is_imported_once_and_only_for_its_user(
    shared: Served, page: Page
) -> None:
    """A dry run stores nothing; the import does; a second one finds nothing new, and a longer export what is new."""
    # The server belongs to other tests as well, so the user belongs to this test.
    berta = shared.browser(shared.tenax("link", "--user", "importer").stdout.strip())
    first = chatgpt_conversation(1, "Where is the lamp?", "On the roof.")
    upload(berta, chatgpt_zip(first, {"id": "x", "title": "Broken", "mapping": 5}))
    state = until(berta, "ready", "failed")
    assert (state["name"], state["found"]["program"]) == ("export.zip", "ChatGPT")
    assert (state["found"]["new"], state["found"]["skipped"]) == (1, 1)
    [reason] = state["found"]["reasons"]
    assert reason.startswith("Broken: ")
    assert state["total"] == 2
    assert imported(berta) == []
    assert page.get("/import")["phase"] == "none"
    wrong = page.http.post("/api/import/confirm", json={"id": state["id"]})
    assert wrong.status_code == 409
    confirm(berta, state)
    state = until(berta, "done", "failed")
    [name] = state["found"]["conversations"]
    assert state["found"]["messages"] == 2
    assert [row["text"] for row in berta.rows(name)] == [
        "Where is the lamp?",
        "On the roof.",
    ]
    assert page.http.get(f"/api/conversations/{name}/rows").status_code == 404
    longer = chatgpt_conversation(
        1, "Where is the lamp?", "On the roof.", "Why?", "Light."
    )
    upload(berta, chatgpt_zip(longer, chatgpt_conversation(2, "Hello", "Hi!")))
    found = until(berta, "ready", "failed")["found"]
    assert (found["new"], found["grown"], found["unchanged"]) == (1, 1, 0)
    assert berta.http.delete("/api/import").json()["phase"] == "none"
    assert imported(berta) == ["Talk 1"]


def test_what_is_no_export_is_refused_with_a_sentence(
    shared: Served, page: Page
) -> None:
    """The sentence names the file, and not its folder on the server. Nothing of the file stays."""
    answer = page.http.post("/api/import", params={"name": "empty.zip"}, content=b"")
    assert (answer.status_code, answer.json()["detail"]) == (400, "The file is empty.")
    assert page.get("/import")["phase"] == "none"
    for name, data, words in (
        ("../../notes.json", b"[1, 2, 3]", "notes.json has nothing that can be"),
        ("cut.zip", many_chatgpt(3)[:-40], "cut.zip is a damaged zip file"),
    ):
        upload(page, data, name)
        error = until(page, "failed", "ready")["error"]
        assert error.startswith(words)
        assert str(shared.home) not in error
    own = hashlib.sha256(b"local").hexdigest()
    kept = (shared.home / "imports" / own).rglob("*")
    assert {path.name for path in kept if path.is_file()} == {"state.json"}
    page.http.delete("/api/import")


def test_a_browser_that_is_signed_out_during_the_upload_imports_nothing(
    shared: Served,
) -> None:
    """The upload may last for minutes. What came of the file is deleted."""
    link = ["link", "--user", "carla"]
    carla = shared.browser(shared.tenax(*link).stdout.strip())
    other = shared.browser(shared.tenax(*link).stdout.strip())

    def slowly() -> Iterator[bytes]:
        yield b"[" * 100_000
        [this] = [
            one["id"] for one in other.get("/devices")["devices"] if not one["current"]
        ]
        assert other.http.delete(f"/api/devices/{this}").is_success
        yield b"["

    answer = carla.http.post("/api/import", content=slowly())
    assert answer.status_code == 409
    assert "signed out during the upload" in answer.json()["detail"]
    assert other.get("/import")["phase"] == "none"
    assert not list((shared.home / "imports").rglob("unnamed"))


@pytest.fixture
def pace(tmp_path: Path) -> ImportPace:
    return ImportPace(tmp_path)


@pytest.fixture
def served(tmp_path: Path, pace: ImportPace) -> Iterator[Served]:
    set_up(tmp_path, [Reply("Done.")])
    with Served(tmp_path, env=pace.env) as served:
        yield served


def worker_of(served: Served) -> int:
    """The process of the import, when it runs."""
    threads = Path(f"/proc/{served.server()}/task")

    def found() -> int | None:
        for thread in threads.iterdir():
            for child in (thread / "children").read_text().split():
                command = Path(f"/proc/{child}/cmdline").read_bytes()
                if b"tenax.importers.worker" in command:
                    return int(child)
        return None

    pid: int = waited(found)
    return pid


def test_a_killed_import_leaves_whole_conversations_and_can_be_repeated(
    served: Served, pace: ImportPace
) -> None:
    """In the dry run, in the import, and with the server: each phase has a kill, and the second import takes the rest."""
    page = served.browser()
    kills = 0
    data = many_chatgpt(5)
    pace.allow(0)
    upload(page, data)
    busy = page.http.post("/api/import", content=data)
    assert (busy.status_code, busy.json()["detail"]) == (
        409,
        "Another import is under way.",
    )
    os.kill(worker_of(served), signal.SIGKILL)
    kills += 1
    error = until(page, "failed")["error"]
    assert error.startswith("The file was not looked through: its process ended too")
    assert "(signal 9)" in error
    assert imported(page) == []

    pace.allow()
    upload(page, data)
    state = until(page, "ready")
    pace.allow(2)
    confirm(page, state)
    waited(lambda: len(imported(page)) == 2)
    os.kill(worker_of(served), signal.SIGKILL)
    kills += 1
    error = until(page, "failed")["error"]
    assert error.startswith("The import stopped: its process ended too early")
    assert error.endswith("an import takes only what is new.")
    assert imported(page) == ["Talk 0", "Talk 1"]
    assert page.post("/verify")["ok"] is True

    pace.allow()
    upload(page, data)
    state = until(page, "ready")
    assert (state["found"]["new"], state["found"]["unchanged"]) == (3, 2)
    pace.allow(3)
    confirm(page, state)
    waited(lambda: len(imported(page)) == 3)
    worker = worker_of(served)
    served.kill_server()
    kills += 1
    waited(lambda: not Path(f"/proc/{worker}").exists())
    waited(lambda: answers(page))
    assert "Tenax was restarted" in until(page, "failed")["error"]
    assert not list((served.home / "imports").rglob("export.zip"))
    assert imported(page) == ["Talk 0", "Talk 1", "Talk 2"]

    pace.allow()
    upload(page, data)
    confirm(page, until(page, "ready"))
    found = until(page, "done")["found"]
    assert (found["new"], found["unchanged"]) == (2, 3)
    assert page.post("/verify")["ok"] is True
    assert kills == 3


def answers(page: Page) -> bool:
    try:
        return page.http.get("/api/health").is_success
    except OSError:
        return False


def test_a_stopped_import_says_how_far_it_came_and_the_server_stops_too(
    served: Served, pace: ImportPace
) -> None:
    """Stop in the page ends the process; Ctrl-C on the server does too."""
    page = served.browser()
    upload(page, many_chatgpt(4))
    state = until(page, "ready")
    pace.allow(1)
    confirm(page, state)
    waited(lambda: len(imported(page)) == 1)
    worker = worker_of(served)
    state = page.http.delete("/api/import").json()
    assert state["error"].startswith("You stopped the import after ")
    assert "of 4 conversations" in state["error"]
    assert not Path(f"/proc/{worker}").exists()
    assert page.http.delete("/api/import").json()["phase"] == "none"
    pace.allow(0)
    upload(page, many_chatgpt(4))
    worker = worker_of(served)
    assert served.stop()[0] == 0
    assert not Path(f"/proc/{worker}").exists()

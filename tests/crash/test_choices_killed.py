"""`kill -9` in the middle of a turn: the next process goes on with the same model, in the same mode and folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tenax.assembly import Runtime
from tenax.events import (
    FilesChanged,
    ModelRequested,
    RunFinished,
    RunStarted,
    ToolFinished,
)
from tenax.models import Reply, ScriptedCall
from tests.support.children import Child
from tests.support.runs import config_of
from tests.support.turns import ask, go_on, journal_of, set_up

pytestmark = pytest.mark.crash

WRITE = ScriptedCall("write_file", {"path": "notes.txt", "content": "milk\n"})


def prepared(url: str, home: Path, folder: Path, mode: str) -> str:
    """Two models that play the same script, and a conversation with the second one in a project."""
    set_up(home, [Reply(calls=[WRITE]), Reply("So be it.")])
    with (home / "config.toml").open("a") as file:
        file.write(
            f'[models.other]\napi = "script"\nurl = "{home}/script.json"\nname = "second"\n'
        )

    async def begin() -> str:
        async with Runtime(config_of(url, home), serves=False) as runtime:
            project = await runtime.projects.add("Garden", folder=str(folder))
            return await runtime.new(
                model="other",
                mode=mode,  # type: ignore[arg-type]
                project=project.id,
            )

    return asyncio.run(begin())


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("plan", "run.started"),
        ("plan", "message.assistant"),
        ("edits", "run.started"),
        ("edits", "message.assistant"),
        ("edits", "tool.started"),
    ],
)
def test_a_killed_turn_goes_on_as_it_was_chosen(
    store_url: str, tmp_path: Path, kind: str, mode: str
) -> None:
    """Plan mode changes nothing, accepted edits are made once, and what they changed is told."""
    home, folder = tmp_path / "home", tmp_path / "garden"
    home.mkdir()
    folder.mkdir()
    name = prepared(store_url, home, folder, mode)
    child = Child(ask, store_url, str(home), ["-p", "go", "-c", name], kind)
    while child.read():
        pass
    child.process.join()
    assert child.process.exitcode == -9
    again = Child(go_on, store_url, str(home), name)
    while again.read():
        pass
    assert again.lines == [["done"]]
    events = [event.event for event in journal_of(store_url, name)]
    models = {event.model for event in events if isinstance(event, ModelRequested)}
    assert models == {"second"}
    places = {event.folder for event in events if isinstance(event, RunStarted)}
    assert places == {str(folder)}
    ended = [event.outcome for event in events if isinstance(event, RunFinished)]
    assert ended == ["interrupted", "completed"]
    results = [event.outcome for event in events if isinstance(event, ToolFinished)]
    files = [file.path for event in events if isinstance(event, FilesChanged)
             for file in event.files]  # fmt: skip
    if mode == "plan":
        assert (results, files) == (["denied"], [])
        assert list(folder.iterdir()) == []
    else:
        assert results[-1] == "done"
        assert files == ["notes.txt"]
        assert (folder / "notes.txt").read_text() == "milk\n"

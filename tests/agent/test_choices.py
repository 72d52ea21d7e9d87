"""What a person chooses: model, mode and project of a conversation, projects, preferences, read marks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenax.assembly import Runtime
from tenax.config import Config
from tenax.errors import InvalidInput, NoSuchConversation, Refused
from tenax.journal import open as open_journal
from tenax.journal.base import UsageRow
from tenax.journal.preferences import Preferences
from tenax.journal.projects import Project, Projects
from tenax.models import Reply, ScriptedModel
from tests.support.runs import asked, config_of

SECONDS = 60.0


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(
        store_url,
        tmp_path / "home",
        OPENAI_BASE_URL="http://127.0.0.1:9/v1",
        TENAX_MODEL="small",
    )


@pytest.fixture
async def runtime(config: Config) -> AsyncIterator[Runtime]:
    async with Runtime(config, models=[ScriptedModel([Reply("Hi.")])]) as runtime:
        yield runtime


async def choices(runtime: Runtime, name: str) -> tuple[str, str, str]:
    found = await runtime.journal.summary(name)
    return found.model, found.mode, found.project


async def test_a_conversation_is_configured(runtime: Runtime) -> None:
    """From the beginning or later; what it has already stores nothing, and what does not exist is refused."""
    (label,) = runtime.config.models
    project = await runtime.projects.add("Garden")
    name = await runtime.new(model=label, mode="plan", project=project.id)
    assert await choices(runtime, name) == (label, "plan", project.id)
    head = (await runtime.journal.head(name)).head
    await runtime.choices.configure(name, model=label, project=project.id)
    assert (await runtime.journal.head(name)).head == head
    await runtime.choices.configure(name, model="", mode="edits")
    assert await choices(runtime, name) == ("", "edits", project.id)
    with pytest.raises(InvalidInput, match="There is no model huge") as refused:
        await runtime.choices.configure(name, model="huge")
    assert label in refused.value.hint
    with pytest.raises(InvalidInput, match="There is no project p_none"):
        await runtime.choices.configure(name, project="p_none")
    with pytest.raises(InvalidInput, match="There is no project p_none"):
        await runtime.new(project="p_none")
    with pytest.raises(NoSuchConversation):
        await runtime.choices.configure("c_none", mode="plan")
    fork = await runtime.fork(name)
    assert await choices(runtime, fork) == ("", "edits", project.id)
    await runtime.projects.remove(project.id)
    assert await choices(runtime, name) == ("", "edits", project.id)


async def test_a_plain_conversation_begins_with_one_event(runtime: Runtime) -> None:
    """Defaults are not stored."""
    assert (await runtime.journal.head(await runtime.new())).head == 1


async def test_a_project_has_a_folder_that_exists(
    runtime: Runtime, tmp_path: Path
) -> None:
    """An absolute one, by its real path, and not one with files of Tenax."""
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "link").symlink_to(work)
    project = await runtime.projects.add(
        "One", folder=str(tmp_path / "link"), instructions="Be kind.", key="once"
    )
    assert project.folder == str(work)
    assert await runtime.projects.add("Two", key="once") == project
    (tmp_path / "file").touch()
    private = runtime.config.directories.data
    private.mkdir(parents=True, exist_ok=True)
    for folder, why in {
        "work": "absolute path",
        str(tmp_path / "none"): "is not a folder",
        str(tmp_path / "file"): "is not a folder",
        str(private): "files of Tenax itself",
        str(tmp_path): "files of Tenax itself",
        "/": "files of Tenax itself",
        f"{work}\n": "absolute path",
    }.items():
        with pytest.raises(InvalidInput, match=why):
            await runtime.projects.change(project.id, folder=folder)
    with pytest.raises(InvalidInput, match="There is no model huge"):
        await runtime.projects.change(project.id, model="huge")
    work.rmdir()
    changed = await runtime.projects.change(project.id, name="New", instructions="")
    assert changed == Project(project.id, "New", str(work), "", "", project.created_at)
    assert (await runtime.projects.change(project.id, folder="")).folder == ""


async def test_another_user_stays_in_their_own_folder(
    config: Config, tmp_path: Path
) -> None:
    """And does not learn which other folders exist."""
    with open_journal(config.store_url, user="berta") as journal:
        async with Runtime(
            config, user="berta", journal=journal, models=[ScriptedModel([])]
        ) as runtime:
            own = runtime.agents.folder / "garden"
            own.mkdir(parents=True)
            project = await runtime.projects.add("Garden", folder=str(own))
            assert project.folder.endswith("/garden")
            for folder in (tmp_path, tmp_path / "none", own / ".." / ".." / ".."):
                with pytest.raises(Refused, match="Only the person who runs"):
                    await runtime.projects.add("Other", folder=str(folder))


async def test_preferences_and_projects_of_another_process_arrive(
    runtime: Runtime, config: Config
) -> None:
    """While somebody watches the list; a read mark arrives with the list."""
    name = await runtime.new()
    hint = asyncio.Event()
    await runtime.list.enter(hint)
    rows = runtime.personal
    assert (rows.preferences, rows.projects) == ({}, [])
    number = runtime.list.number

    def change() -> Project:
        with open_journal(config.store_url, user="local") as other:
            Preferences(other).change({"theme": "dark"})
            return Projects(other).add(Project("p_1", "One"))

    project = await asyncio.to_thread(change)
    async with asyncio.timeout(SECONDS):
        while (rows.preferences, rows.projects) != ({"theme": "dark"}, [project]):
            await hint.wait()
            hint.clear()
    assert runtime.list.number == number
    await runtime.choices.change_preferences({"theme": None})
    async with asyncio.timeout(SECONDS):
        while rows.preferences:
            await hint.wait()
            hint.clear()
    await runtime.choices.mark_read(name, 1)
    async with asyncio.timeout(SECONDS):
        while not any(
            b'"read":1' in bytes(move) for move in runtime.list.since(number)
        ):
            await hint.wait()
            hint.clear()
    runtime.list.leave(hint)


async def test_an_answer_is_unread_until_it_is_read(runtime: Runtime) -> None:
    """The list says so."""
    first, name = await runtime.new(), await runtime.new()
    await runtime.choices.mark_read(first, 1)
    await asked(runtime, name, "Hello?")
    head = await runtime.journal.head(name)
    await runtime.choices.mark_read(name, 1)
    assert (await runtime.journal.summary(name)).unread
    await runtime.choices.mark_read(name, head.head)
    found = await runtime.journal.summary(name)
    assert (found.unread, found.read) == (False, head.head)


async def test_usage_of_the_last_days(runtime: Runtime) -> None:
    """Today is one of them."""
    name = await runtime.new()
    await asked(runtime, name, "Hello?")
    rows = await runtime.usage_by_day(1)
    assert {row.conversation for row in rows} <= {name}
    assert all(isinstance(row, UsageRow) for row in rows)
    with pytest.raises(InvalidInput, match="at least 1"):
        await runtime.usage_by_day(0)

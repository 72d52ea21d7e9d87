"""The agent uses what a person chose for a conversation: the model, the mode, and the project with its folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenax.assembly import Runtime
from tenax.config import Config
from tenax.config.rules import Rule
from tenax.config.write import add_rule
from tenax.errors import InvalidInput, Refused
from tenax.events import (
    ApprovalAsked,
    ContextOpened,
    MessageAssistant,
    ModelRequested,
    RunFinished,
    RunStarted,
    ToolFinished,
)
from tenax.journal import open as open_journal
from tenax.models import Reply, Script, ScriptedCall, ScriptedModel
from tenax.workspace.snapshots import About, Snapshots
from tests.support.bubblewrap import need_bwrap
from tests.support.runs import (
    Hands,
    Note,
    asked,
    config_of,
    lines,
    settled,
    told,
    until,
)

SETTINGS = """
model = "main"
fallback = ["spare"]
[models.main]
api = "script"
url = "/none"
name = "first"
[models.other]
api = "script"
url = "/none"
name = "second"
context = 5000
[models.spare]
api = "script"
url = "/none"
name = "third"
"""
WRITE = ScriptedCall("write_file", {"path": "notes.txt", "content": "milk\n"})
MODES = ("plan mode", "without being asked")


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(SETTINGS)
    return config_of(store_url, home)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder of a project, outside of everything that Tenax has."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def models(*replies: Reply, repeat: bool = True) -> list[ScriptedModel]:
    """The three models of the settings. Each plays the same replies."""
    return [
        ScriptedModel(Script(list(replies), repeat=repeat), name=name)
        for name in ("first", "second", "third")
    ]


@pytest.fixture
async def runtime(config: Config) -> AsyncIterator[Runtime]:
    async with Runtime(config, models=models(Reply("Hi."))) as runtime:
        yield runtime


def remove(path: Path) -> None:
    path.unlink() if path.is_symlink() else path.rmdir()


def make(folder: Path) -> None:
    folder.mkdir()


def link(path: Path, to: Path) -> None:
    path.symlink_to(to)


def exists(path: Path) -> bool:
    return path.exists()


def entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def asked_models(runtime: Runtime, name: str) -> list[str]:
    return [event.model for event in await told(runtime, name, ModelRequested)]


async def prompts(runtime: Runtime, name: str) -> list[str]:
    """The prompts of the epochs."""
    found = []
    for opened in await told(runtime, name, ContextOpened):
        data = await runtime.journal.get_blob(opened.prompt.blob)
        found.append((data or b"").decode())
    return found


async def results(runtime: Runtime, name: str) -> list[tuple[str, str]]:
    return [
        (event.outcome, event.text) for event in await told(runtime, name, ToolFinished)
    ]


# -- the model ---------------------------------------------------------------------------------------------------


async def test_a_conversation_is_answered_by_its_model(runtime: Runtime) -> None:
    """From the next run on; conversations with the same choice share an agent, and "" is the default again."""
    plain = await runtime.new()
    name = await runtime.new(model="other")
    await asked(runtime, plain, "hello")
    await asked(runtime, name, "hello")
    await runtime.choices.configure(name, model="")
    await asked(runtime, name, "and now?")
    assert await asked_models(runtime, plain) == ["first"]
    assert await asked_models(runtime, name) == ["second", "first"]
    others = [await runtime.new(model="other", source="cli") for _ in range(2)]
    agents = [await runtime.agents.of(other) for other in others]
    assert agents[0] is agents[1]
    assert agents[0] is not await runtime.agents.of(plain)


async def test_a_model_of_the_settings_is_connected_once_with_the_fallbacks(
    config: Config,
) -> None:
    """The chosen one first, and none twice; the room is the one of the chosen model."""
    config.file.write_text(SETTINGS.replace('"/none"', f'"{config.file.parent}/s"'))
    (config.file.parent / "s").write_bytes(msgspec.json.encode(Script([Reply("Hi.")])))
    loaded = config_of(config.store_url, config.file.parent)
    async with Runtime(loaded) as runtime:
        names = {}
        for label in ("", "main", "other", "spare"):
            agent = await runtime.agents.of(await runtime.new(model=label))
            names[label] = [model.name for model in agent.models]
        assert names == {
            "": ["first", "third"],
            "main": ["first", "third"],
            "other": ["second", "third"],
            "spare": ["third"],
        }
        name = await runtime.new(model="other")
        assert (await runtime.usage(name)).context == 5000
        await asked(runtime, name, "hello")
        await runtime.choices.configure(name, model="main")
        (request,) = [
            event
            for event in await runtime.journal.read(name)
            if event.kind == ModelRequested.kind
        ]
        assert b"hello" in await runtime.seen(name, request.seq)


async def test_a_run_keeps_its_model_to_the_end(config: Config, tmp_path: Path) -> None:
    """A change during a run counts for the next run."""
    go, begun = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await go.wait()

    script = [Reply(calls=[ScriptedCall("note")]), Reply("Noted.")]
    note = Note(tmp_path / "notes.txt", wait=wait)
    hands = Hands(config, models=models(*script)).with_tools(note)
    async with hands as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "note it")).seq
        await begun.wait()
        await runtime.choices.configure(name, model="other")
        go.set()
        await settled(runtime, name, seq)
        await asked(runtime, name, "and again")
        assert await asked_models(runtime, name) == ["first"] * 2 + ["second"]


async def test_a_model_that_was_removed_falls_back_and_the_person_is_told(
    config: Config, runtime: Runtime
) -> None:
    """To the model of the project, or to the default."""
    project = await runtime.projects.add("Garden", model="spare")
    name = await runtime.new(model="other")
    inside = await runtime.new(model="other", project=project.id)
    assert runtime.agents.explain_model(await runtime.agents.setting(name)) == ""
    section = SETTINGS[SETTINGS.index("[models.other]") : SETTINGS.index("[models.sp")]
    config.file.write_text(SETTINGS.replace(section, ""))
    await runtime.configure(config_of(config.store_url, config.file.parent))
    for each, label, model in ((name, "main", "first"), (inside, "spare", "third")):
        await asked(runtime, each, "hello")
        assert await asked_models(runtime, each) == [model]
        said = runtime.agents.explain_model(await runtime.agents.setting(each))
        assert said == (
            f"The model other is no longer in the settings. {label} answers instead."
        )


async def test_a_project_has_a_default_model(runtime: Runtime) -> None:
    """A choice for the conversation comes first."""
    project = await runtime.projects.add("Garden", model="spare")
    name = await runtime.new(project=project.id)
    await asked(runtime, name, "hello")
    await runtime.choices.configure(name, model="other")
    await asked(runtime, name, "and now?")
    await runtime.choices.configure(name, model="")
    await runtime.projects.change(project.id, model="")
    await asked(runtime, name, "and now?")
    assert await asked_models(runtime, name) == ["third", "second", "first"]


async def test_a_message_is_answered_again_by_another_model(runtime: Runtime) -> None:
    """The choice, the undo and the message are one append; an unknown model stores nothing."""
    name = await runtime.new()
    seq = await asked(runtime, name, "hello")
    head = (await runtime.journal.head(name)).head
    with pytest.raises(InvalidInput, match="There is no model huge"):
        await runtime.replace(name, seq, model="huge")
    assert (await runtime.journal.head(name)).head == head
    stored = await runtime.replace(name, seq, model="other")
    await settled(runtime, name, stored.seq)
    kinds = [
        event.kind
        for event in await runtime.journal.read(name, after=head, upto=stored.seq)
    ]
    assert kinds == [
        "conversation.configured",
        "conversation.rewound",
        "message.user",
    ]
    assert await asked_models(runtime, name) == ["first", "second"]
    answers = await told(runtime, name, MessageAssistant)
    assert answers[-1].model == "second"


# -- the mode ----------------------------------------------------------------------------------------------------


async def test_in_plan_mode_nothing_is_changed_whatever_allows_it(
    config: Config,
) -> None:
    """Neither by a rule; the model is told, and a switch of the mode counts at once."""
    add_rule(config, Rule("allow", "*", "*"))
    script = [Reply(calls=[WRITE]), Reply("So be it.")] * 2
    async with Runtime(config, models=models(*script)) as runtime:
        name = await runtime.new(mode="plan")
        await asked(runtime, name, "write it down")
        ((outcome, text),) = await results(runtime, name)
        assert (outcome, "plan mode: describe the change" in text) == ("denied", True)
        assert not (runtime.agents.folder / "notes.txt").exists()
        await runtime.choices.configure(name, mode="ask")
        await asked(runtime, name, "now do it")
        assert (runtime.agents.folder / "notes.txt").read_text() == "milk\n"
        assert [
            mode in text for text in await prompts(runtime, name) for mode in MODES
        ] == [
            True,
            False,
            False,
            False,
        ]


async def test_an_approval_from_before_does_not_count_in_plan_mode(
    config: Config,
) -> None:
    """The person is asked, switches to plan mode, and then allows the call."""
    script = [Reply(calls=[WRITE]), Reply("So be it.")]
    async with Runtime(config, models=models(*script)) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "write it down")).seq
        await until(runtime, name, ApprovalAsked.kind)
        (question,) = await runtime.questions(name)
        await runtime.choices.configure(name, mode="plan")
        await runtime.answer(name, question.message, question.call, "conversation")
        await settled(runtime, name, seq)
        ((outcome, text),) = await results(runtime, name)
        assert (outcome, "plan mode" in text) == ("denied", True)
        assert not (runtime.agents.folder / "notes.txt").exists()


async def test_a_switch_of_the_mode_counts_for_the_next_call_of_the_same_answer(
    config: Config, tmp_path: Path
) -> None:
    """The first of two calls runs while the person switches to plan mode; the second one is refused."""
    go, begun = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await go.wait()

    calls = [ScriptedCall("note", {"text": text}) for text in ("one", "two")]
    note = Note(tmp_path / "notes.txt", wait=wait)
    script = models(Reply(calls=calls), Reply("Noted."))
    hands = Hands(config, models=script).with_tools(note)
    async with hands as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "note it")).seq
        await begun.wait()
        await runtime.choices.configure(name, mode="plan")
        go.set()
        await settled(runtime, name, seq)
        outcomes = [outcome for outcome, _ in await results(runtime, name)]
        assert outcomes == ["done", "denied"]
        assert len(lines(tmp_path / "notes.txt")) == 1
        # The next request of the same run says so too.
        assert [MODES[0] in text for text in await prompts(runtime, name)] == [
            False,
            True,
        ]


async def test_accepted_edits_stay_in_the_folder(config: Config) -> None:
    """A file is written without asking; `..`, a link out of it and a deny rule are refused, and a command asks."""
    add_rule(config, Rule("deny", "write_file", "secret.txt"))
    outside = config.file.parent / "outside"
    outside.mkdir()
    paths = ["notes.txt", "../up.txt", "link/in.txt", "secret.txt", "/etc/x"]
    calls = [
        ScriptedCall("write_file", {"path": path, "content": "milk\n"})
        for path in paths
    ]
    edit = {"path": "notes.txt", "old": "milk", "new": "tea"}
    calls.append(ScriptedCall("edit_file", edit))
    calls.append(ScriptedCall("shell", {"command": "true"}))
    async with Runtime(config, models=models(Reply(calls=calls))) as runtime:
        folder = runtime.agents.folder
        folder.mkdir(parents=True)
        (folder / "link").symlink_to(outside)
        name = await runtime.new(mode="edits")
        await runtime.submit(name, "write it down")
        asks = await until(runtime, name, ApprovalAsked.kind)
        assert isinstance(asks.event, ApprovalAsked)
        assert asks.event.name == "shell"
        await runtime.workers.idle(name)
        outcomes = [outcome for outcome, _ in await results(runtime, name)]
        assert sorted(outcomes) == ["denied", "done", "done", *["failed"] * 3]
        assert (folder / "notes.txt").read_text() == "tea\n"
        assert entries(outside) == []
        assert not (folder.parent / "up.txt").exists()
        assert MODES[1] in (await prompts(runtime, name))[0]


async def test_a_sub_agent_has_the_choices_of_its_parent(
    config: Config, work: Path
) -> None:
    """And is at least as restricted, also after a switch of the parent's mode."""
    project = {"task": "write it down"}
    script = [Reply(calls=[ScriptedCall("delegate", project)]), Reply("Done.")]
    first, second, third = models(*script)
    second.script = Script(
        [Reply(calls=[ScriptedCall("delegate", project)]), Reply("Done.")], repeat=True
    )
    async with Runtime(config, models=[first, second, third]) as runtime:
        garden = await runtime.projects.add("Garden", folder=str(work))
        name = await runtime.new(model="other", mode="edits", project=garden.id)
        seq = (await runtime.submit(name, "have it written")).seq
        await settled(runtime, name, seq)
        (child,) = await runtime.journal.delegated(name)
        chosen = await runtime.journal.choice(child)
        assert (chosen.model, chosen.mode, chosen.project) == (
            "other",
            "edits",
            garden.id,
        )
        assert set(await asked_models(runtime, child)) == {"second"}
        (started, *_) = await told(runtime, child, RunStarted)
        assert started.folder == str(work)
        modes = {}
        for mode in ("plan", "ask", "edits"):
            await runtime.choices.configure(name, mode=mode)
            modes[mode] = await runtime.workers.mode(child)
        assert modes == {"plan": "plan", "ask": "ask", "edits": "edits"}
        await runtime.choices.configure(child, mode="plan")
        assert await runtime.workers.mode(child) == "plan"
        assert await runtime.workers.mode(name) == "edits"


# -- the project -------------------------------------------------------------------------------------------------


async def write_in(runtime: Runtime, name: str) -> str:
    """Have the file written, and return the name of the turn."""
    await asked(runtime, name, "write it down")
    turns = await runtime.changes(name)
    return turns[-1].turn if turns else ""


def writer() -> Sequence[ScriptedModel]:
    return models(Reply(calls=[WRITE]), Reply("Written."))


async def test_a_conversation_works_in_the_folder_of_its_project(
    config: Config, work: Path
) -> None:
    """With the instructions, files and skills of the project; from the next run on after a change."""
    (work / "AGENTS.md").write_text("Plant pears.")
    skill = work / ".tenax" / "skills" / "prune"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: prune\ndescription: cut\n---\nSnip.")
    calls = [WRITE, ScriptedCall("read_skill", {"name": "prune"})]
    script = [Reply(calls=calls), Reply("Written.")] * 3
    async with Runtime(config, models=models(*script)) as runtime:
        project = await runtime.projects.add(
            "Garden", folder=str(work), instructions="Write short lines."
        )
        name = await runtime.new(mode="edits", project=project.id)
        assert await runtime.folder(name) == work
        await write_in(runtime, name)
        assert (work / "notes.txt").read_text() == "milk\n"
        assert "Snip." in (await results(runtime, name))[1][1]
        (started,) = await told(runtime, name, RunStarted)
        assert started.folder == str(work)
        (prompt,) = await prompts(runtime, name)
        for words in ("Plant pears.", "Write short lines.", "prune: cut"):
            assert words in prompt
        await runtime.projects.change(project.id, instructions="Write in verse.")
        await asked(runtime, name, "again")
        assert "Write in verse." in (await prompts(runtime, name))[-1]
        await runtime.choices.configure(name, project="")
        assert await runtime.folder(name) == runtime.agents.folder
        await asked(runtime, name, "again")
        assert "Plant pears." not in (await prompts(runtime, name))[-1]
        assert (runtime.agents.folder / "notes.txt").exists()


async def test_the_changes_of_a_turn_are_put_back_in_the_folder_of_the_turn(
    config: Config, work: Path, tmp_path: Path
) -> None:
    """Also after the conversation moved to another project; not after the folder of the project is none any more."""
    other = tmp_path / "other"
    other.mkdir()
    (work / "notes.txt").write_text("bread\n")
    async with Runtime(config, models=writer()) as runtime:
        garden = await runtime.projects.add("Garden", folder=str(work))
        house = await runtime.projects.add("House", folder=str(other))
        name = await runtime.new(mode="edits", project=garden.id)
        turn = await write_in(runtime, name)
        (changes,) = await runtime.changes(name)
        assert [(file.path, file.what) for file in changes.files] == [
            ("notes.txt", "changed")
        ]
        await runtime.choices.configure(name, project=house.id)
        back = await runtime.put_back(name, turn)
        assert (back.done, back.left) == (["notes.txt"], {})
        assert (work / "notes.txt").read_text() == "bread\n"
        assert not (other / "notes.txt").exists()
        # An undo of the undo works in the same folder.
        (*_, undone) = await runtime.changes(name)
        await runtime.put_back(name, undone.turn)
        assert (work / "notes.txt").read_text() == "milk\n"
        await runtime.projects.change(garden.id, folder="")
        with pytest.raises(Refused, match="another folder"):
            await runtime.put_back(name, turn)


async def test_a_project_without_its_folder_answers_nothing_and_makes_none(
    config: Config, work: Path
) -> None:
    """The run says so in a sentence; with the folder back the next message is answered."""
    async with Runtime(config, models=writer()) as runtime:
        project = await runtime.projects.add("Garden", folder=str(work))
        name = await runtime.new(mode="edits", project=project.id)
        remove(work)
        await asked(runtime, name, "write it down")
        (ended,) = await told(runtime, name, RunFinished)
        assert ended.outcome == "failed"
        assert ended.why == (
            f"The project Garden cannot be used: {work} is not a folder. "
            "Create the folder first."
        )
        assert not exists(work)
        assert await asked_models(runtime, name) == []
        link(work, runtime.agents.folder.parent)
        await asked(runtime, name, "write it down")
        assert (await told(runtime, name, RunFinished))[-1].outcome == "failed"
        remove(work)
        make(work)
        await asked(runtime, name, "write it down")
        assert (work / "notes.txt").exists()


async def test_a_folder_that_vanishes_in_mid_run_is_not_made_again(
    config: Config, work: Path
) -> None:
    """The person is asked about a call, and the folder is gone when the person answers."""
    async with Runtime(config, models=writer()) as runtime:
        project = await runtime.projects.add("Garden", folder=str(work))
        name = await runtime.new(project=project.id)
        seq = (await runtime.submit(name, "write it down")).seq
        await until(runtime, name, ApprovalAsked.kind)
        (question,) = await runtime.questions(name)
        remove(work)
        await runtime.answer(name, question.message, question.call, "once")
        await settled(runtime, name, seq)
        ((outcome, text),) = await results(runtime, name)
        assert (outcome, "is not a folder" in text) == ("failed", True)
        assert (await told(runtime, name, RunFinished))[-1].outcome == "failed"
        assert not exists(work)


async def test_a_folder_that_came_to_hold_files_of_tenax_is_not_used(
    config: Config, work: Path
) -> None:
    """The store was moved into the folder of the project after the project was made."""
    async with Runtime(config, models=writer()) as runtime:
        project = await runtime.projects.add("Garden", folder=str(work))
        name = await runtime.new(mode="edits", project=project.id)
        moved = config_of(f"sqlite:///{work}/tenax.db", config.file.parent)
        runtime.agents.use(moved)
        await asked(runtime, name, "write it down")
        (ended,) = await told(runtime, name, RunFinished)
        assert "files of Tenax itself" in ended.why
        assert entries(work) == []


async def test_a_removed_project_is_no_project(config: Config, work: Path) -> None:
    """Its conversations work in the folder of the user again."""
    async with Runtime(config, models=writer()) as runtime:
        project = await runtime.projects.add("Garden", folder=str(work), model="other")
        name = await runtime.new(mode="edits", project=project.id)
        await runtime.projects.remove(project.id)
        await write_in(runtime, name)
        assert (runtime.agents.folder / "notes.txt").exists()
        assert not (work / "notes.txt").exists()
        assert set(await asked_models(runtime, name)) == {"first"}


async def test_two_users_with_projects_see_nothing_of_each_other(
    config: Config, work: Path
) -> None:
    """Another user has projects in their own folder; their changes are shown and put back there."""
    async with Runtime(config, models=writer()) as owner:
        await owner.projects.add("Garden", folder=str(work))
        with open_journal(config.store_url, user="berta") as journal:
            own: dict[str, Any] = {"user": "berta", "journal": journal}
            async with Runtime(config, models=writer(), **own) as runtime:
                folder = runtime.agents.folder / "garden"
                make(folder)
                with pytest.raises(Refused, match="outside their own"):
                    await runtime.projects.add("Theirs", folder=str(work))
                project = await runtime.projects.add("Mine", folder=str(folder))
                name = await runtime.new(mode="edits", project=project.id)
                turn = await write_in(runtime, name)
                assert (folder / "notes.txt").read_text() == "milk\n"
                (changes,) = await runtime.changes(name)
                assert [file.path for file in changes.files] == ["notes.txt"]
                back = await runtime.put_back(name, turn)
                assert back.done == ["notes.txt"]
                assert not (folder / "notes.txt").exists()
    assert entries(work) == []


async def test_changes_of_a_dead_process_in_a_project_are_told(
    config: Config, work: Path
) -> None:
    """By the next process, also after the project got another folder; the snapshot of another user stays."""
    place = config.directories.snapshots
    fill(work, "milk")
    async with Runtime(config, models=models(Reply("Hi."))) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "hello")
        started = await until(runtime, name, RunStarted.kind)
        about = About("local", name, started.run, 1, "call_1", folder=str(work))
        theirs = msgspec.structs.replace(about, user="berta", conversation="c_1")
        for each in (about, theirs):
            Snapshots(work, place, []).take(each).release()
        fill(work, "bread")
        (changes,) = await runtime.changes(name)
        assert [(file.path, file.what) for file in changes.files] == [
            ("notes.txt", "changed")
        ]
        (kept,) = snapshots_in(place)
        assert b"berta" in kept


def fill(folder: Path, words: str) -> None:
    (folder / "notes.txt").write_text(words)


def snapshots_in(place: Path) -> list[bytes]:
    return [file.read_bytes() for file in place.glob("*/call-*")]


async def test_a_command_runs_in_the_folder_of_the_project_and_sees_no_other(
    config: Config, work: Path
) -> None:
    """In the foreground and in the background; the settings and the folder of the user are not there."""
    need_bwrap()
    add_rule(config, Rule("allow", "shell*", "*"))
    look = f"pwd; touch made; ls {config.file} {config.tools_folder} || true"
    calls = [
        ScriptedCall("shell", {"command": look}),
        ScriptedCall("shell_start", {"command": "touch behind"}),
    ]
    async with Runtime(
        config, models=models(Reply(calls=calls), Reply("Ok."))
    ) as runtime:
        fill_folder(config.tools_folder)
        project = await runtime.projects.add("Garden", folder=str(work))
        name = await runtime.new(project=project.id)
        await asked(runtime, name, "look around")
        (shell, *_) = await results(runtime, name)
        assert shell[0] == "done"
        assert shell[1].startswith(f"{work}\n")
        assert shell[1].count("No such file") == 2
        # The end of the background process is told as a message.
        await until(runtime, name, RunFinished.kind, 2)
        assert sorted(file.name for file in entries(work)) == ["behind", "made"]


def fill_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.txt").write_text("mine")

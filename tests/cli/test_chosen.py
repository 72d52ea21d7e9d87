"""What a person chooses in the terminal: the model and mode of a conversation, the current folder, a conversation."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenax.assembly import Runtime
from tenax.events import (
    ConversationConfigured,
    ConversationTitled,
    MessageUser,
    RunStarted,
)
from tenax.journal.projects import Project, Projects
from tenax.models import Reply, ScriptedCall
from tenax.parts import Text
from tests.cli.conftest import tenax
from tests.cli.test_talk import CTRL_D, Terminal, conversation_in, url_of
from tests.support.runs import config_of
from tests.support.turns import journal_of, new_conversation, set_up

WRITE = ScriptedCall("write_file", {"path": "notes.txt", "content": "milk"})
DOWN, ESCAPE = "\x1b[B", "\x1b"
Start = Callable[..., Terminal]


@pytest.fixture
def home(home: Path) -> Path:
    """A person's home, with two models that answer differently."""
    set_up(home, [Reply(words="From the first.")])
    (home / "other.json").write_text(
        '{"replies": [{"words": "From the other."}], "repeat": true}'
    )
    with (home / "config.toml").open("a") as file:
        file.write(
            f'[models.other]\napi = "script"\nurl = "{home}/other.json"\nname = "second"\n'
        )
    return home


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has nothing of Tenax."""
    return tmp_path_factory.mktemp("garden")


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `tenax`, in a folder if one is given, and wait for the words."""
    begun: list[Terminal] = []

    def begin(
        *args: str, until: str = "script", folder: Path | None = None
    ) -> Terminal:
        command = [sys.executable, "-m", "tenax"]
        if folder is not None:
            inside = f'cd {folder} && exec "$@"'
            command = ["/bin/sh", "-c", inside, "sh", *command]
        begun.append(Terminal(*args, command=command))
        begun[-1].until(until)
        return begun[-1]

    yield begin
    for terminal in begun:
        terminal.close()


def choose(home: Path, conversation: str, **choices: str) -> None:
    """Choose as the page does: in another process, in the journal."""

    async def configure() -> None:
        async with Runtime(config_of(url_of(home), home), serves=False) as runtime:
            await runtime.choices.configure(conversation, **choices)  # type: ignore[arg-type]

    asyncio.run(configure())


def choices_of(home: Path, conversation: str) -> list[ConversationConfigured]:
    events = [event.event for event in journal_of(url_of(home), conversation)]
    return [event for event in events if isinstance(event, ConversationConfigured)]


def test_the_model_belongs_to_the_conversation_and_follows_the_page(
    home: Path, start: Start
) -> None:
    """/model chooses it here, before and after the first message; --default chooses it for all of them."""
    talk = start()
    talk.send("/model other")
    talk.until("Now using other.")
    talk.send("who is it?")
    talk.until("From the other.")
    talk.at_rest()
    name = conversation_in(home)
    assert choices_of(home, name) == [ConversationConfigured("other", "ask", "")]
    assert 'model = "main"' in (home / "config.toml").read_text()
    talk.send("/model")
    listed = talk.until("other second (in use)")
    assert "main  script  (default)" in listed
    choose(home, name, model="main")
    talk.until("· script ·")
    talk.send("and now?")
    talk.until("From the first.")
    talk.at_rest()
    talk.send("/retry other")
    talk.until("From the other.")
    talk.at_rest()
    assert choices_of(home, name)[-1] == ConversationConfigured("other")
    talk.send("/model main")
    talk.until("Now using main.")
    talk.send("/model other --default")
    talk.until("Now using other, also in other conversations.")
    assert 'model = "other"' in (home / "config.toml").read_text()
    talk.send("/model other --all")
    talk.until("Unknown option '--all'.")
    talk.send("/new")
    talk.until("New conversation.")
    talk.send("who is it?")
    talk.until("From the other.")


def test_a_model_that_was_removed_is_told(
    home: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """The conversation opens with a sentence, and the default answers."""
    name = new_conversation(url_of(home), MessageUser([Text("hello")]))
    choose(home, name, model="other")
    set_up(home, [Reply(words="From the first.")])
    talk = start("-c", name)
    said = "The model other is no longer in the settings. main answers instead."
    talk.until(said)
    code, out, err = tenax(capsys, "-p", "hello", "-c", name)
    assert (code, out, said in err) == (0, "From the first.\n", True)


def test_a_model_that_has_no_key_here_does_not_end_the_talk(
    home: Path, start: Start
) -> None:
    """The page chose it; the terminal says so, and goes on with the next choice."""
    with (home / "config.toml").open("a") as file:
        file.write(
            '[models.locked]\napi = "openai"\nurl = "http://127.0.0.1:9/v1"\nname = "l"\n'
            'key = "env:NOBODY_HAS_THIS_KEY"\n'
        )
    talk = start()
    talk.send("hello")
    talk.until("From the first.")
    talk.at_rest()
    name = conversation_in(home)
    choose(home, name, model="locked")
    talk.until("the model cannot be used here")
    talk.send("still there?")
    talk.until("NOBODY_HAS_THIS_KEY")
    choose(home, name, model="other")
    talk.until("· second ·")
    talk.send("\x15and now?")
    talk.until("From the other.")


def test_the_mode_is_switched_and_shown(home: Path, start: Start) -> None:
    """In the status line, also when the page switches it; a name that is none is refused."""
    set_up(home, [Reply(calls=[WRITE]), Reply(words="So be it.")])
    talk = start()
    talk.send("/mode plan")
    talk.until("Plan mode: no tool that changes something runs.")
    talk.until("plan mode · script")
    talk.send("write it down")
    assert "write_file notes.txt milk … denied" in talk.until("So be it.")
    talk.at_rest()
    assert not (home / "work" / "notes.txt").exists()
    name = conversation_in(home)
    choose(home, name, mode="edits")
    talk.until("edits accepted · script")
    talk.send("/mode")
    talk.until("still ask (in use)")
    talk.send("/mode yolo")
    talk.until("No mode is called yolo. Modes: ask, edits, plan.")
    talk.send("/mode ask")
    talk.until("Tenax asks before a call that changes something.")
    assert (choices_of(home, name)[-1].mode) == "ask"


def test_here_is_a_new_conversation_in_the_project_of_the_folder(
    home: Path, folder: Path, start: Start
) -> None:
    """The second time in the same project; the folder is named at the start."""
    set_up(home, [Reply(words="Hi.")])
    for count in (1, 2):
        talk = start("--here", until="New conversation in the project", folder=folder)
        talk.send("hello")
        talk.until("Hi.")
        assert f"· script · {folder.name}" in talk.at_rest()
        talk.type(CTRL_D)
        assert talk.ended() == 0
        asyncio.run(_in_one_project(home, folder, count))


async def _in_one_project(home: Path, folder: Path, count: int) -> None:
    async with Runtime(config_of(url_of(home), home), serves=False) as runtime:
        (project,) = await runtime.projects.all()
        assert (project.name, project.folder) == (folder.name, str(folder))
        found = await runtime.conversations()
        assert [summary.project for summary in found] == [project.id] * count


def test_one_question_works_here_and_in_a_mode(
    home: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`tenax -p --here --mode`: accepted edits write here, plan mode writes nothing and names no rule."""
    set_up(home, [Reply(calls=[WRITE]), Reply(words="So be it.")])
    monkeypatch.chdir(folder)
    code, _, err = tenax(capsys, "--here", "--mode", "plan", "-p", "Go")
    assert code == 0
    assert "[write_file denied]" in err
    assert "No rule allows this" not in err
    assert list(folder.iterdir()) == []
    code, _, err = tenax(capsys, "--here", "--mode", "edits", "-p", "Go")
    assert (code, "[write_file done]" in err) == (0, True)
    assert [file.name for file in folder.iterdir()] == ["notes.txt"]
    name = err.split()[1]
    starts = [event.event for event in journal_of(url_of(home), name)]
    (started,) = [event for event in starts if isinstance(event, RunStarted)]
    assert started.folder == str(folder)
    assert tenax(capsys, "-p", "Go", "-c", name, "--mode", "plan")[0] == 0
    assert choices_of(home, name)[-1].mode == "plan"


@pytest.mark.parametrize("place", ["", "work/../.."])
def test_here_refuses_a_folder_with_files_of_tenax(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """The home of Tenax, and a folder that holds it. No conversation is made."""
    (home / "work").mkdir()
    monkeypatch.chdir(home / place)
    code, out, err = tenax(capsys, "--here", "-p", "Go")
    assert (code, out) == (1, "")
    assert "files of Tenax itself" in err
    assert "No conversations yet." in tenax(capsys, "list")[2]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--here", "-c", "c_1"], "--here and -c cannot be used together."),
        (["--mode", "plan"], "--mode needs -p."),
        (["--here", "list"], "--here cannot be used with a command."),
        (["--mode", "yolo", "-p", "x"], "'yolo' is not one of"),
    ],
)
def test_options_without_effect_are_refused(
    home: Path, capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    """In a sentence, with the exit code for wrong use."""
    code, _, err = tenax(capsys, *args)
    assert (code, says in err) == (2, True)


@pytest.fixture
def conversations(home: Path) -> dict[str, str]:
    """Three conversations by title; one is in a project."""
    import tenax as package

    with package.open(url_of(home)) as journal:
        project = Projects(journal).add(Project("p_1", "Garden"))
    found = {}
    for title, chosen in (("Pears", "p_1"), ("Bread", ""), ("Cats", "")):
        events = [
            MessageUser([Text("hello")]),
            ConversationTitled(title),
            ConversationConfigured(None, None, chosen),
        ]
        found[title] = new_conversation(url_of(home), *events)
    assert project.id == "p_1"
    return found


def test_the_list_of_a_project(
    conversations: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """By its name in any case; a name that is none is told with those that are."""
    code, out, _ = tenax(capsys, "list", "--project", "garden")
    assert (code, out.split()[0]) == (0, conversations["Pears"])
    assert len(out.splitlines()) == 1
    code, out, err = tenax(capsys, "list", "--project", "House")
    assert (code, out) == (1, "")
    assert "There is no project House." in err
    assert "Projects: Garden." in err


def test_the_conversations_to_resume_are_listed_without_a_terminal(
    home: Path, conversations: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With numbers, ids, titles and projects, the newest first."""
    code, out, err = tenax(capsys, "resume")
    assert (code, "tenax -c ID" in err) == (0, True)
    first, second, third = [line.split() for line in out.splitlines()]
    assert (first[0], first[1], first[-1]) == ("1", conversations["Cats"], "Cats")
    assert second[-1] == "Bread"
    assert third[-2:] == ["Pears", "Garden"]


def test_a_conversation_is_chosen_with_the_arrow_keys_and_by_typing(
    conversations: dict[str, str], start: Start
) -> None:
    """Enter opens it in the terminal; Escape leaves."""
    for keys, title in ((DOWN, "Bread"), ("gard", "Pears"), ("pear GARDEN", "Pears")):
        talk = start("resume", until="Cats")
        talk.until("\n>")
        talk.type(keys)
        if keys != DOWN:
            talk.until(f"> {keys}")
        talk.type("\r")
        talk.until(f"{title} ({conversations[title]})")
        talk.until("script")
        talk.type(CTRL_D)
        assert talk.ended() == 0
    talk = start("resume", until="Cats")
    talk.until("\n>")
    talk.type("xyz")
    talk.until("No conversation matches.")
    talk.type("\r", ESCAPE)
    assert talk.ended() == 0


def test_nothing_to_resume_is_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a new machine there is no store, and looking makes none."""
    assert tenax(capsys, "resume") == (0, "", "No conversations yet.\n")
    assert not (home / "tenax.db").exists()

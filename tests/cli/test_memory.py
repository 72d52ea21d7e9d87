"""`tenax memory`: what a person and a program see of what is remembered, and change of it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenax
from tenax.cli import tenax as command
from tenax.cli.frame import run
from tenax.cli.talk.screen import Screen
from tenax.events import ConversationOpened, MemoryNoted, MessageUser
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.base import Reader
from tenax.memory.entries import MemoryEntries
from tenax.parts import Text
from tenax.views.transcript import Put, Row
from tests.cli.conftest import Told
from tests.cli.conftest import tenax as run_tenax
from tests.support.remembering import turn


@pytest.fixture(autouse=True)
def home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place that is not there yet."""
    monkeypatch.setenv("TENAX_HOME", str(home / "home"))
    return home / "home"


@pytest.fixture
def journal(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    """The store that the commands use, on each engine."""
    monkeypatch.setenv("TENAX_STORE", store_url)
    with tenax.open(store_url, user=LOCAL_USER) as journal:
        yield journal


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs `tenax memory` with these words: the exit code, what was printed and what was said beside it."""
    return partial(run_tenax, capsys, "memory")


def names(told: Told) -> list[str]:
    """The ids of what is remembered, newest first."""
    return [each["id"] for each in msgspec.json.decode(told("--json")[1])]


def test_nothing_is_said_kindly_and_nothing_is_made(home: Path, told: Told) -> None:
    """On a new machine there is no store, and looking makes none."""
    assert told() == (0, "", "Nothing remembered yet.\n")
    assert told("search", "tea") == (0, "", "No results.\n")
    assert told("--json") == (0, "[]\n", "")
    assert not home.exists()


@pytest.mark.usefixtures("journal")
def test_what_is_added_is_listed_in_two_groups_and_found(told: Told) -> None:
    """The profile first; a search takes words; what is known is not kept twice."""
    assert told("add", "Drinks", "tea", "in the morning.")[1].startswith(
        "Remembered: Drinks tea in the morning. (f_"
    )
    assert told("add", "--profile", "Is called Ada.")[0] == 0
    _, out, err = told()
    lines = out.splitlines()
    assert (lines[0], lines[2], err) == ("Profile", "Notes", "")
    assert "Is called Ada." in lines[1]
    assert "Drinks tea in the morning.  you, " in lines[3]
    assert told("add", "Drinks tea in the morning.")[1].startswith(
        "Already remembered: "
    )
    found: list[dict[str, Any]] = msgspec.json.decode(
        told("search", "--json", "tea")[1]
    )
    assert [(each["text"], each["about"], each["by"]) for each in found] == [
        ("Drinks tea in the morning.", "note", "person")
    ]


@pytest.mark.usefixtures("journal")
def test_the_list_shows_as_much_of_an_id_as_tells_it_from_others(told: Told) -> None:
    """And that much is enough to name it; less is refused with a sentence."""
    for n in range(3):
        told("add", f"Fact number {n} of the three.")
    shown = [line.split()[0] for line in told()[1].splitlines()[1:]]
    assert [name for name in shown if len(name) < len(names(told)[0])] == shown
    assert told("edit", shown[1], "Another", "one.")[:2] == (
        0,
        f"Changed: Another one. ({names(told)[0]})\n",
    )
    code, out, err = told("forget", "f_")
    assert (code, out) == (1, "")
    assert err.startswith("tenax: 3 memories have an id that begins with f_.\n")


@pytest.mark.usefixtures("journal")
def test_the_only_fact_is_not_meant_by_nothing(told: Told) -> None:
    """A variable of a shell that is not set forgets nothing."""
    told("add", "Has a dog.")
    for did in ("forget", "undo", "show"):
        code, out, err = told(did, "")
        assert (code, out, err.splitlines()[0]) == (
            1,
            "",
            "tenax: There is no memory .",
        )
    assert len(names(told)) == 1


@pytest.mark.usefixtures("journal")
def test_what_was_done_last_can_be_undone(told: Told) -> None:
    """A change, a forgetting, and the adding itself."""
    told("add", "Has a dog.")
    (name,) = names(told)
    told("edit", name, "Has a cat.")
    assert told("undo", name)[1] == f"Restored: Has a dog. ({name})\n"
    assert told("forget", name) == (
        0,
        "Forgotten: Has a dog.\n",
        f"To undo: tenax memory undo {name}\n",
    )
    assert names(told) == []
    assert told("undo", name)[1] == f"Restored: Has a dog. ({name})\n"
    told("add", "Has a garden.")
    garden = next(each for each in names(told) if each != name)
    assert told("undo", garden)[1] == "No longer remembered: Has a garden.\n"
    assert names(told) == [name]


@pytest.mark.usefixtures("journal")
def test_a_failure_is_a_sentence(told: Told, tmp_path: Path) -> None:
    """Whatever cannot be done: a code, and words for a person on stderr."""
    told("add", "Has a dog.")
    (name,) = names(told)
    told("forget", name)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "latin").write_bytes("Caf\xe9".encode("latin-1"))
    for args, said in {
        ("edit", "f_nothing", "x"): "There is no memory f_nothing.",
        ("edit", name, "x"): f"Memory {name} was forgotten.",
        ("forget", name): f"Memory {name} was forgotten.",
        ("show", "f_nothing"): "There is no memory f_nothing.",
        ("undo", "\udcff\x00"): "There is no memory \ufffd\ufffd.",
        ("add", " "): "There is nothing to remember in this.",
        ("add", "x" * 1001): "A memory has at most 1,000 characters, not 1,001.",
        (
            "import",
            str(folder / "none.md"),
        ): f"{folder / 'none.md'} cannot be read: No such file or directory.",
        ("import", str(folder)): f"{folder} cannot be read: Is a directory.",
        ("import", str(folder / "latin")): f"{folder / 'latin'} is not UTF-8 text.",
        (
            "export",
            str(folder / "latin"),
        ): f"{folder / 'latin'} already exists.",
        (
            "export",
            str(folder / "none" / "x"),
        ): f"{folder / 'none' / 'x'} cannot be written: No such file or directory.",
        ("retry", "nobody"): "There is no memory provider nobody.",
    }.items():
        code, out, err = told(*args)
        assert (code, out, err.splitlines()[0]) == (1, "", f"tenax: {said}")
        assert "Traceback" not in err


def test_where_a_fact_comes_from_and_what_it_has_been(
    journal: Journal, told: Told
) -> None:
    """Each version with who, when and from which message."""
    journal.append(
        "c_1",
        [ConversationOpened(LOCAL_USER, "s_1"), MessageUser([Text("I have a dog.")])],
    )
    fact = MemoryEntries(journal).add(
        "Has a dog.", by="model", conversation="c_1", seq=2
    )
    told("edit", fact.id, "Has two dogs.")
    code, out, _ = told("show", fact.id)
    lines = out.splitlines()
    assert (code, lines[0]) == (0, f"{fact.id}, notes: Has two dogs.")
    assert lines[1].startswith("  version 1, ")
    assert lines[1].endswith(", added by the model: Has a dog.")
    assert lines[2] == "    from message 2 of c_1: tenax show c_1"
    assert lines[3].endswith(", changed by you: Has two dogs.")
    versions = msgspec.json.decode(told("show", fact.id, "--json")[1])
    assert [(version["version"], version["seq"]) for version in versions] == [
        (1, 2),
        (2, None),
    ]


def test_nothing_in_a_fact_is_obeyed_by_the_terminal(
    journal: Journal, told: Told
) -> None:
    """Whoever wrote it: it is shown as characters."""
    fact = MemoryEntries(journal).add("Red \x1b[31m and a bell \x07.")
    for args in ((), ("show", fact.id), ("search", "bell"), ("forget", fact.id)):
        assert "\x1b" not in told(*args)[1]
    assert "\x07" not in told("undo", fact.id)[1]


@pytest.mark.usefixtures("journal")
def test_an_export_is_read_back(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into another store all of it is new; into its own nothing is."""
    told("add", "--profile", "Is called Ada.")
    told("add", "Has a dog.")
    file = tmp_path / "memory.md"
    assert told("export", str(file)) == (0, "", "")
    assert told("export")[1] == file.read_text()
    assert told("import", str(file)) == (
        0,
        "0 added, 0 changed, 2 already known.\n",
        "",
    )
    monkeypatch.setenv("TENAX_STORE", f"sqlite:///{tmp_path / 'other.db'}")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert told("import", "-") == (0, "2 added, 0 changed, 0 already known.\n", "")
    assert {
        (each["text"], each["by"]) for each in msgspec.json.decode(told("--json")[1])
    } == {
        ("Is called Ada.", "import"),
        ("Has a dog.", "import"),
    }


@pytest.mark.usefixtures("journal")
def test_the_status_says_what_there_is_beside_the_built_in_memory(
    told: Told, home: Path
) -> None:
    """Nothing; or a provider that is named and cannot be used, and why."""
    assert told("status") == (
        0,
        "",
        "No memory providers besides the built-in memory.\n",
    )
    assert told("status", "--json")[1] == "[]\n"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('[memory]\nproviders = ["elephant"]\n')
    code, out, _ = told("status")
    assert code == 0
    assert out.startswith("elephant: not used. There is no folder elephant in ")


ELEPHANT = """
from pathlib import Path
from agent.memory_provider import MemoryProvider

class Elephant(MemoryProvider):
    name = "elephant"
    def is_available(self): return True
    def initialize(self, session_id, **kwargs): pass
    def get_tool_schemas(self): return []
    def sync_turn(self, user_content, assistant_content, *, session_id="", messages=None):
        if not Path(__file__).with_name("open").exists():
            raise OSError("The trunk is full.")
"""


def test_what_a_provider_could_not_take_is_told_of_and_given_once_more(
    journal: Journal, told: Told, home: Path
) -> None:
    """By its sentence; a retry that fails says none were taken, and one that succeeds leaves nothing."""
    folder = home / "plugins" / "elephant"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(ELEPHANT)
    (home / "config.toml").write_text('[memory]\nproviders = ["elephant"]\n')
    journal.append("c_1", [ConversationOpened(LOCAL_USER, "s_1")])
    reader = Reader("memory:elephant:sync", "turns", "now")
    seq = turn(journal, "c_1", "Something large")
    lease = journal.claim("memory:elephant", journal.instance, 60.0)
    assert lease is not None
    was = journal.cursor(reader, "c_1")
    journal.bury(reader, "c_1", seq, was=was, error="It is too large.", lease=lease)
    journal.release(lease)
    assert told("status")[1].splitlines() == [
        "elephant: up to date",
        f"  not delivered: c_1 at {seq}: It is too large.",
        "  To retry: tenax memory retry elephant",
    ]
    assert told("retry", "elephant")[:2] == (0, "Delivered: 0\n")
    (folder / "open").touch()
    assert told("retry", "elephant")[:2] == (0, "Delivered: 1\n")
    assert told("status")[:2] == (0, "elephant: up to date\n")


NOTED = [
    MemoryNoted("f_1", 1, "added", "Has a dog."),
    MemoryNoted("f_1", 2, "replaced", "Has\ntwo dogs."),
    MemoryNoted("f_1", 3, "removed", "Has two dogs.", by="review"),
    MemoryNoted("f_1", 4, "undone", of=4),
]
LINES = [
    "-- Remembered: Has a dog.",
    "-- Updated memory: Has two dogs.",
    "-- Forgot: Has two dogs. Undone.",
]


def test_a_conversation_shows_what_was_remembered_in_it(
    journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a line a fact, in `tenax show`."""
    journal.append("c_1", [ConversationOpened(LOCAL_USER, "s_1"), *NOTED])
    assert run(command, ["show", "c_1"]) == 0
    assert capsys.readouterr().out.strip().split("\n\n") == LINES


def test_the_talk_prints_what_was_remembered_and_what_was_undone() -> None:
    """Each once, as it happens."""
    screen = Screen(lambda: 80)
    row = Row(
        "4",
        (4, 0, 0),
        "memory",
        0,
        text="Has a dog.",
        action="added",
        by="model",
        fact="f_1",
        version=1,
    )
    assert "-- Remembered: Has a dog." in screen.changed([Put(row)])
    assert screen.changed([Put(row)]) == ""
    undone = msgspec.structs.replace(row, state="undone")
    assert "-- Remembered: Has a dog. Undone." in screen.changed([Put(undone)])

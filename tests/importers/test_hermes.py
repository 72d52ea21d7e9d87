"""Chains of sessions of Hermes Agent become conversations; its memories and skills are found."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from tenax.errors import InvalidInput
from tenax.importers import hermes
from tenax.importers.draft import Attached, Draft, Node, Skipped, Source
from tenax.importers.place import Place
from tenax.parts import Reasoning, Text, ToolCall
from tests.importers.damage import ODD, damage
from tests.support.hermes import (
    PRIOR,
    PRIOR_END,
    SUMMARY,
    SUMMARY_END,
    HermesHome,
    Schema,
    call,
    fill,
)

SCHEMAS: tuple[Schema, ...] = (22, 30)
ROUNDS = 60
COLUMNS = {
    "sessions": ("id", "parent_session_id", "end_reason", "model_config", "started_at", "title", "archived", "session_key"),
    "messages": ("role", "content", "tool_calls", "tool_call_id", "timestamp", "reasoning_details", "_compressed_summary", "active"),
}  # fmt: skip

NewHome = Callable[..., HermesHome]


@pytest.fixture
def new_home(tmp_path: Path) -> Iterator[NewHome]:
    """Make a home folder of Hermes Agent."""
    with contextlib.ExitStack() as stack:

        def new(
            name: str = ".hermes", schema: Schema = 30, *, log: bool = False
        ) -> HermesHome:
            home = HermesHome(tmp_path / name, schema, log=log)
            stack.callback(home.close)
            return home

        yield new


def source_of(path: Path) -> Source:
    source = hermes.open_source(Place(path))
    assert source is not None
    return source


def drafts_of(path: Path) -> dict[str, Draft]:
    source = source_of(path)
    with contextlib.closing(source):
        drafts = list(source.drafts())
    assert not [draft for draft in drafts if isinstance(draft, Skipped)]
    return {draft.id: draft for draft in drafts if isinstance(draft, Draft)}


def texts(node: Node) -> str:
    return "".join(part.text for part in node.parts if isinstance(part, Text))


def spoken(draft: Draft) -> list[tuple[str, str]]:
    """Return the roles and texts of the path."""
    for before, node in zip(draft.nodes, draft.nodes[1:], strict=False):
        assert node.parent == before.id
    return [(node.role, texts(node)) for node in draft.nodes]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_chat_keeps_its_calls_reasoning_and_files(
    new_home: NewHome, schema: Schema
) -> None:
    """Tool calls stay calls with their results, and reasoning keeps the signature of the provider."""
    home = new_home(schema=schema)
    ids = fill(home)["chat"]
    draft = drafts_of(home.folder)["20250615_chat"]
    nodes = {node.id: node for node in draft.nodes}
    answer = nodes[str(ids[2])]
    assert answer.parts == (
        Reasoning("A recipe.", "c2ln"),
        Text("I look it up."),
        ToolCall("call_1", "read_file", '{"path": "bread.md"}'),
        ToolCall("call_2", "web_search", '{"query": "dough"}'),
    )
    assert (answer.model, answer.finish) == ("hermes-4", "tool_calls")
    result = nodes[str(ids[3])]
    assert (result.role, result.call, result.name, result.parent) == (
        "tool",
        "call_1",
        "read_file",
        answer.id,
    )
    assert nodes[str(ids[4])].parent == result.id
    question = nodes[str(ids[8])]
    here, away = question.parts[1:]
    assert isinstance(here, Attached)
    assert isinstance(away, Attached)
    assert (here.read() or b"").startswith(b"GIF89a")
    assert (away.name, away.read()) == ("https://bread.example/a.jpg", None)
    assert (draft.title, draft.archived, draft.pinned) == ("Bread 🍞", True, False)
    assert draft.at == 1750000060000000
    assert draft.extra == {"source": "cli", "cwd": "/home/ada"}


def test_undone_messages_and_reviews_are_left_out(new_home: NewHome) -> None:
    """What was undone, and what the program asked and answered itself, is counted and left out."""
    home = new_home()
    ids = fill(home)["chat"]
    source = source_of(home.folder)
    [draft, *_] = [draft for draft in source.drafts() if isinstance(draft, Draft)]
    left = {str(id_) for id_ in (ids[0], *ids[6:8], *ids[10:14])}
    assert [node.id for node in draft.nodes] == [
        str(id_) for id_ in ids if str(id_) not in left
    ]
    assert source.left_out["undone messages"] == 2
    assert source.left_out["reviews of the program"] == 4
    source.close()


def test_hidden_rows_are_left_out(new_home: NewHome) -> None:
    """A row that Hermes hides is scaffolding."""
    home = new_home()
    session = home.session("s")
    home.say(session, "user", "Hello.")
    home.say(session, "user", "[System: go on]", display_kind="hidden")
    assert spoken(drafts_of(home.folder)["s"]) == [("user", "Hello.")]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_branches_and_sub_agents_name_their_conversation(
    new_home: NewHome, schema: Schema
) -> None:
    """A branch begins with the messages of its parent, and a sub-agent belongs to the conversation that asked it."""
    home = new_home(schema=schema)
    fill(home)
    drafts = drafts_of(home.folder)
    assert list(drafts) == ["20250615_chat", "20250615_branch", "20250615_helper"]
    branch, helper = drafts["20250615_branch"], drafts["20250615_helper"]
    assert (branch.parent, branch.relation) == ("20250615_chat", "branch")
    assert len(branch.nodes) == 6
    assert (helper.parent, helper.relation) == ("20250615_chat", "delegate")


def test_sessions_without_marks_are_understood(new_home: NewHome) -> None:
    """Before there were marks, the end of the parent said what a child is. A reset begins a new conversation."""
    home = new_home(schema=22)
    for reason in ("branched", "idle", ""):
        parent = home.session(f"parent {reason}", session_key="telegram:1")
        home.say(parent, "user", "Hello.")
        home.end(parent, reason)
        key = "telegram:1" if reason == "idle" else None
        home.say(
            home.session(f"child {reason}", parent_session_id=parent, session_key=key),
            "user",
            "Hello again.",
        )
    drafts = drafts_of(home.folder)
    found = {
        id_: draft.relation for id_, draft in drafts.items() if id_.startswith("child")
    }
    assert found == {"child branched": "branch", "child idle": "", "child ": "delegate"}
    assert drafts["child idle"].parent is None


def rotate(
    home: HermesHome, summary: str, role: str = "user", **values: object
) -> list[int]:
    """Write a session that a compaction continues in a child. Returns the ids of the messages."""
    home.session(
        "first", title="Garden", _branched_from="gone", parent_session_id="gone"
    )
    ids = [
        home.say("first", "user", "Plan the garden."),
        home.say("first", "assistant", "With roses?"),
        home.say("first", "user", "Yes."),
        home.say("first", "assistant", "", tool_calls=[call("call_0", "todo")]),
        home.say(
            "first", "tool", "a long list", tool_call_id="call_0", tool_name="todo"
        ),
        home.say("first", "user", "And the pond?"),
    ]
    home.end("first", "compression")
    # A continuation inherits the marks of its parent.
    home.session(
        "second",
        title="Garden #2",
        parent_session_id="first",
        _branched_from="gone",
        pinned=1,
    )
    ids.append(home.say("second", "user", "Plan the garden."))
    ids.append(home.say("second", role, summary, **values))
    ids.append(home.say("second", "assistant", "", tool_calls=[call("call_0", "todo")]))
    ids.append(
        home.say("second", "tool", "[cleared]", tool_call_id="call_0", tool_name="todo")
    )
    ids.append(home.copy(ids[5], "second"))
    ids.append(home.say("second", "assistant", "A small one."))
    return ids


@pytest.mark.parametrize(
    "summary",
    [
        SUMMARY + "Roses are wanted." + SUMMARY_END,
        SUMMARY + "Roses are wanted.",
        "[CONTEXT SUMMARY]: Roses are wanted.",
        PRIOR + "Yes." + PRIOR_END + SUMMARY + "Roses are wanted." + SUMMARY_END,
        SUMMARY + "Roses are wanted." + SUMMARY_END + "\n\nAnd the pond?",
    ],
)
def test_a_chain_of_compactions_is_one_conversation(
    new_home: NewHome, summary: str
) -> None:
    """A session that a compaction continues in a child is one conversation with a summary, and each message once."""
    home = new_home()
    ids = rotate(home, summary)
    drafts = drafts_of(home.folder)
    assert list(drafts) == ["first"]
    draft = drafts["first"]
    assert spoken(draft) == [
        ("user", "Plan the garden."),
        ("assistant", "With roses?"),
        ("user", "Yes."),
        ("assistant", ""),
        ("tool", "a long list"),
        ("user", "And the pond?"),
        ("summary", "Roses are wanted."),
        ("assistant", "A small one."),
    ]
    assert [node.id for node in draft.nodes] == [
        str(id_) for id_ in (*ids[:6], ids[7], ids[11])
    ]
    assert draft.nodes[6].extra == {"kept_from": str(ids[3])}
    assert (draft.title, draft.pinned) == ("Garden", True)
    assert (draft.parent, draft.relation) == ("gone", "branch")


def test_a_summary_with_a_flag_only_is_recognised(new_home: NewHome) -> None:
    """Newer versions mark the row of a summary, and hide it."""
    home = new_home()
    rotate(
        home,
        "Roses are wanted.",
        "assistant",
        _compressed_summary=1,
        display_kind="hidden",
    )
    assert spoken(drafts_of(home.folder)["first"])[6] == (
        "summary",
        "Roses are wanted.",
    )


@pytest.mark.parametrize("schema", SCHEMAS)
def test_compactions_in_place_keep_each_message_once(
    new_home: NewHome, schema: Schema
) -> None:
    """A compaction in place archives the rows and writes copies of the first and the last messages."""
    home = new_home(schema=schema)
    session = home.session("s")
    ids = [
        home.say(session, "user" if n % 2 else "assistant", f"{n}") for n in range(1, 7)
    ]
    live = ids
    for round_ in (1, 2):
        home.archive(session)
        first = home.say(session, "user", "1")
        summary = home.say(session, "assistant", f"{SUMMARY}Summary {round_}")
        kept = [home.copy(id_) for id_ in live[-2:]]
        new = home.say(session, "user", "continue")
        live = [first, summary, *kept, new]
    draft = drafts_of(home.folder)["s"]
    assert spoken(draft) == [
        *((("user" if n % 2 else "assistant"), f"{n}") for n in range(1, 7)),
        ("summary", "Summary 1"),
        ("user", "continue"),
        ("summary", "Summary 2"),
        ("user", "continue"),
    ]
    kept_from = [
        node.extra["kept_from"] for node in draft.nodes if node.role == "summary"
    ]
    assert kept_from == ["5", "6"]


def test_a_chain_keeps_its_ids_when_it_grows(new_home: NewHome) -> None:
    """A later compaction adds nodes to the end and changes no earlier one, so a second import takes only what is new."""
    home = new_home()
    session = home.session("first")
    ids = [home.say(session, "user", "Hello."), home.say(session, "assistant", "Hi.")]
    before = drafts_of(home.folder)["first"].nodes
    home.end(session, "compression")
    home.session("second", parent_session_id="first")
    home.say("second", "user", SUMMARY + "They greeted.")
    home.copy(ids[1], "second")
    home.say("second", "user", "How are you?")
    after = drafts_of(home.folder)["first"].nodes
    assert after[: len(before)] == before
    assert [node.role for node in after[len(before) :]] == ["summary", "user"]


def test_the_log_of_a_running_hermes_is_read(new_home: NewHome) -> None:
    """Rows that are only in the log of the database are read, and the files of Hermes stay as they are."""
    home = new_home(log=True)
    fill(home)
    files = sorted(
        path for path in home.folder.iterdir() if not path.name.endswith("-shm")
    )
    before = [path.read_bytes() for path in files]
    assert files[1].name == "state.db-wal"
    assert len(drafts_of(home.folder)) == len(drafts_of(home.database)) == 3
    assert [path.read_bytes() for path in files] == before


@pytest.mark.parametrize("form", ["lines", "one", "list", "lineage"])
def test_an_export_gives_the_same_conversations(
    new_home: NewHome, tmp_path: Path, form: str
) -> None:
    """The file of `hermes sessions export` and the database give the same ids, so both imports know each other."""
    home = new_home()
    rotate(home, SUMMARY + "Roses are wanted.")
    first, second = home.export("first"), home.export("second")
    lineage = second | {
        "segments": [first, second],
        "lineage_session_ids": ["first", "second"],
    }
    path = tmp_path / "export.json"
    path.write_text(
        {
            "lines": f"{json.dumps(second)}\n{json.dumps(first)}\n",
            "one": json.dumps(lineage, indent=2),
            "list": json.dumps([first, second]),
            "lineage": json.dumps(lineage) + "\n",
        }[form]
    )
    assert drafts_of(path) == drafts_of(home.folder)


def test_a_broken_line_of_an_export_is_skipped(
    new_home: NewHome, tmp_path: Path
) -> None:
    """One broken session does not cost the others."""
    home = new_home()
    fill(home)
    path = tmp_path / "export.jsonl"
    path.write_text(
        f'{json.dumps(home.export("20250615_chat"))}\n{{"id": "x", "source": \n'
    )
    draft, skipped = source_of(path).drafts()
    assert isinstance(draft, Draft)
    assert isinstance(skipped, Skipped)
    assert skipped.why


def test_memories_have_stable_ids(new_home: NewHome) -> None:
    """Every entry of both files is a memory. Its id depends on its text only."""
    home = new_home()
    folder = home.folder / "memories"
    folder.mkdir()
    (folder / "MEMORY.md").write_text(
        "The garden is in the north.\n§\nThe pond\nis small.\n§\n"
    )
    (folder / "USER.md").write_text("Likes roses.\n§\nThe garden is in the north.\n")
    with contextlib.closing(source_of(home.folder)) as source:
        memories = list(source.memories())
    expected = ["The garden is in the north.", "The pond\nis small.", "Likes roses."]
    assert [memory.text for memory in memories] == expected
    assert [memory.id for memory in memories] == [
        hashlib.sha256(text.encode()).hexdigest() for text in expected
    ]


@pytest.mark.parametrize("zipped", [False, True])
def test_skills_and_what_is_not_read(
    new_home: NewHome, tmp_path: Path, zipped: bool
) -> None:
    """Each folder with a SKILL.md is a skill. Settings, keys and scheduled jobs are listed and not read."""
    home = new_home()
    for name in ("skills/garden/prune/SKILL.md", "skills/garden/prune/scripts/cut.py", "skills/water/SKILL.md", "skills/.archive/old/SKILL.md",
                 "cron/jobs.json", "config.yaml", ".env", "profiles/work/state.db"):  # fmt: skip
        path = home.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text of " + name)
    home.close()
    path = home.folder
    if zipped:
        path = Path(
            shutil.make_archive(str(tmp_path / "home"), "zip", tmp_path, ".hermes")
        )
    with contextlib.closing(source_of(path)) as source:
        skills = {skill.name: skill.folder for skill in source.skills()}
        assert sorted(skills) == ["prune", "water"]
        assert (skills["prune"] / "scripts" / "cut.py").read_text().endswith("cut.py")
        assert set(source.left_out) == {
            "scheduled jobs (cron/jobs.json)",
            "settings (config.yaml)",
            "keys (.env)",
            "profile work (import its folder separately)",
        }
        unpacked = skills["prune"]
    assert unpacked.exists() is not zipped


def test_an_empty_store_has_no_conversation(new_home: NewHome) -> None:
    """A home folder that was never used is recognised."""
    assert drafts_of(new_home().folder) == {}


def test_other_databases_are_refused(tmp_path: Path, new_home: NewHome) -> None:
    """A database of another program is not read, and a damaged one says so."""
    home = new_home()
    home.connection.execute("DROP TABLE messages; CREATE TABLE messages (id, body)")
    assert hermes.open_source(Place(home.database)) is None
    (tmp_path / "notes.db").write_text("SQLite is a library.")
    assert hermes.open_source(Place(tmp_path / "notes.db")) is None
    (tmp_path / "state.db").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)
    with pytest.raises(InvalidInput, match=r"cannot be read|not a readable database"):
        hermes.open_source(Place(tmp_path / "state.db"))


def test_chains_in_a_circle_are_read(new_home: NewHome) -> None:
    """Sessions that are each other's parents are read once."""
    home = new_home()
    for id_, parent in (("a", "c"), ("b", "a"), ("c", "b"), ("d", "d")):
        home.say(
            home.session(id_, parent_session_id=parent, end_reason="compression"),
            "user",
            id_,
        )
    drafts = drafts_of(home.folder)
    assert sorted(text for draft in drafts.values() for _, text in spoken(draft)) == [
        "a",
        "b",
        "c",
        "d",
    ]


def read_all(path: Path) -> int:
    """Read a damaged file to its end. Returns the number of nodes."""
    source = hermes.open_source(Place(path))
    if source is None:
        return 0
    read = 0
    with contextlib.closing(source):
        for draft in source.drafts():
            assert isinstance(draft, Draft | Skipped)
            if isinstance(draft, Draft):
                spoken(draft)
                read += len(draft.nodes)
                files = [
                    part
                    for node in draft.nodes
                    for part in node.parts
                    if isinstance(part, Attached)
                ]
                assert all(isinstance(file.read(), bytes | None) for file in files)
    return read


def test_damaged_databases_never_fail(new_home: NewHome, tmp_path: Path) -> None:
    """Whatever the columns hold, and whichever pages are damaged, the result is conversations, skipped ones or an error."""
    chance = random.Random(16)
    home = new_home()
    fill(home)
    rotate(home, SUMMARY + "Roses are wanted." + SUMMARY_END)
    home.close()
    whole = home.database.read_bytes()
    path = tmp_path / "state.db"
    read = 0
    for _ in range(ROUNDS):
        data = bytearray(whole)
        if chance.random() < 0.5:
            for _ in range(chance.choice([1, 10, 100])):
                data[chance.randrange(100, len(data))] = chance.randrange(256)
        path.write_bytes(
            data[: chance.randrange(len(data))] if chance.random() < 0.1 else data
        )
        odd = [value for value in ODD if not isinstance(value, list | dict | int)]
        with contextlib.suppress(Exception):
            change(
                path,
                chance,
                [
                    *odd,
                    b"\xff\0",
                    2**62,
                    -1,
                    "\0json:{",
                    "\0json:[3]",
                    "[[",
                    float("inf"),
                ],
            )
        with contextlib.suppress(InvalidInput):
            read += read_all(path)
    assert read > ROUNDS


def change(path: Path, chance: random.Random, values: list[object]) -> None:
    """Put odd values into some columns of a database."""
    connection = apsw.Connection(str(path))
    with contextlib.closing(connection):
        for _ in range(chance.choice([1, 5, 30])):
            table = chance.choice(list(COLUMNS))
            value = chance.choice(values)
            connection.execute(
                f"UPDATE OR IGNORE {table} SET {chance.choice(COLUMNS[table])} = ? WHERE rowid = ?",
                (value.replace("\ud800", "?") if isinstance(value, str) else value, chance.randrange(1, 40)),
            )  # fmt: skip


def test_damaged_exports_never_fail(new_home: NewHome, tmp_path: Path) -> None:
    """Whatever the values of an export are, the result is conversations, skipped ones or an error."""
    home = new_home()
    fill(home)
    rotate(home, SUMMARY + "Roses are wanted.")
    first = home.export("first")
    sessions = [
        home.export("20250615_chat"),
        first,
        first | {"segments": [first, home.export("second")]},
    ]
    chance = random.Random(16)
    path = tmp_path / "export.jsonl"
    read = 0
    for _ in range(ROUNDS):
        share = chance.choice([0.002, 0.02, 0.2])
        text = "".join(
            json.dumps(damage(session, chance, share)) + "\n" for session in sessions
        )
        path.write_text(
            text[: chance.randrange(len(text))] if chance.random() < 0.2 else text
        )
        with contextlib.suppress(InvalidInput):
            read += read_all(path)
    assert read > ROUNDS

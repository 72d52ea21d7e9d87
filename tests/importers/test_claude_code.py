"""The sessions of Claude Code become conversations with their forks, sub-agents, tool calls and compactions."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenax.errors import InvalidInput
from tenax.importers import claude_code
from tenax.importers.draft import Attached, Draft, Node, Skipped, Source
from tenax.importers.place import Place
from tenax.parts import Reasoning, Text, ToolCall
from tests.importers.damage import damage

FIXTURES = Path(__file__).parent / "fixtures" / "claude_code"
OLD, NEW = FIXTURES / "old", FIXTURES / "new"
SESSION = "1b0f6f0e-000{}-4a00-8a00-00000000000{}"
TOMATOES, HERBS, BROKEN, WATERING, EVENING = (
    SESSION.format(number, number) for number in (1, 2, 3, 5, 6)
)
ROUNDS = 80

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write lines to a file and return its path."""

    def write_lines(*lines: Any, name: str = "session.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return write_lines


def source_of(path: Path) -> Source:
    source = claude_code.open_source(Place(path))
    assert source is not None
    return source


def drafts_of(path: Path) -> dict[str, Draft]:
    drafts = list(source_of(path).drafts())
    found = {draft.id: draft for draft in drafts if isinstance(draft, Draft)}
    assert len(found) == sum(isinstance(draft, Draft) for draft in drafts)
    return found


def only(path: Path) -> Draft:
    [draft] = source_of(path).drafts()
    assert isinstance(draft, Draft)
    return draft


def texts(node: Node) -> str:
    return "".join(part.text for part in node.parts if isinstance(part, Text))


def shown(draft: Draft) -> list[str]:
    """Return the ids of the shown path."""
    nodes = {node.id: node for node in draft.nodes}
    path = []
    id_ = draft.current
    while id_ is not None:
        path.append(id_)
        id_ = nodes[id_].parent
    return path[::-1]


def line(kind: str, uuid: str, parent: str | None, content: Any, **more: Any) -> Any:
    message = {"role": kind, "content": content} | more.pop("message", {})
    return {
        "type": kind or "system",
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": "s-1",
        "timestamp": "2025-06-01T10:00:00.000Z",
        "message": message,
    } | more


def test_the_lines_of_a_message_are_joined_and_its_calls_stay_calls() -> None:
    """A message of the model is one node with its reasoning, text and calls, and the results follow each other."""
    nodes = {node.id: node for node in drafts_of(OLD)[TOMATOES].nodes}
    assert nodes["a5"].parts == (
        Reasoning("Small sorts.", "c2lnbmVk"),
        Text("Let me look."),
        ToolCall("toolu_1", "Read", '{"file_path": "/home/ada/garden/sorts.md"}'),
        ToolCall("toolu_2", "Grep", '{"pattern": "balcony"}'),
    )
    assert (nodes["a5"].model, nodes["a5"].finish) == (
        "claude-sonnet-4-20250514",
        "tool_use",
    )
    first, second = nodes["a9"], nodes["a10"]
    assert (first.role, first.call, first.name, first.parent) == (
        "tool",
        "toolu_1",
        "Read",
        "a5",
    )
    assert (second.call, second.parent) == ("toolu_2", "a9")
    assert nodes["a11"].parent == "a10"
    picture = second.parts[1]
    assert isinstance(picture, Attached)
    assert picture.name == "image.png"
    assert (picture.read() or b"").startswith(b"\x89PNG")


def test_a_rewind_is_a_fork_and_the_last_line_is_shown() -> None:
    """After a rewind both versions are there, and the shown path has the newer one."""
    draft = drafts_of(OLD)[TOMATOES]
    assert shown(draft) == ["a4", "a5", "a9", "a10", "a11", "a12", "a13", "a18", "a19"]
    parents = {node.id: node.parent for node in draft.nodes}
    assert parents["a14"] == parents["a18"] == "a13"
    refused = next(node for node in draft.nodes if node.id == "a16")
    assert (refused.role, refused.outcome) == ("tool", "denied")


def test_a_sidechain_in_the_file_of_a_session_is_a_delegate() -> None:
    """Older versions write the lines of a sub-agent into the file of the session."""
    drafts = drafts_of(OLD)
    delegate = drafts[f"{TOMATOES}/s1"]
    assert (delegate.parent, delegate.relation) == (TOMATOES, "delegate")
    assert delegate.title == "Compare both sorts."
    assert [node.id for node in delegate.nodes] == ["s1", "s2"]
    assert list(drafts).index(TOMATOES) < list(drafts).index(delegate.id)


def test_a_sub_agent_with_a_file_of_its_own_is_a_delegate() -> None:
    """Newer versions write each sub-agent to a file in the folder of the session."""
    delegate = drafts_of(NEW)[f"{WATERING}/agent-a52c8d1"]
    assert (delegate.parent, delegate.relation) == (WATERING, "delegate")
    assert delegate.title == "Look at the weather"
    assert delegate.extra["toolUseId"] == "toolu_11"
    assert [node.outcome for node in delegate.nodes if node.role == "tool"] == [
        "failed"
    ]


def test_a_compaction_is_a_summary_on_the_path() -> None:
    """The path goes on after a compaction, and the summary knows from where the messages were kept."""
    draft = drafts_of(NEW)[WATERING]
    assert shown(draft) == ["c1", "c3", "c5", "c6", "c7", "c10", "c11", "c12"]
    summary = next(node for node in draft.nodes if node.role == "summary")
    assert texts(summary).endswith("Both are watered at seven.")
    assert summary.extra == {"trigger": "manual", "preTokens": 4200, "kept_from": "c6"}


@pytest.mark.parametrize("side", [False, True])
def test_a_summary_without_a_parent_continues_the_path(
    write: Write, side: bool
) -> None:
    """Older versions begin again behind a compaction, and the message before it may be in another file."""
    more = {"isSidechain": side, "agentId": "a1"}
    boundary = {"type": "system", "subtype": "compact_boundary", "logicalParentUuid": "away"}  # fmt: skip
    path = write(
        line("user", "u", None, "Hello.", **more),
        line("user", "v", None, "They greeted.", isCompactSummary=True, **more),
        line("user", "w", "v", "Again.", **more),
        line("", "x", None, "", **boundary, **more),
        line("user", "y", "x", "They greeted twice.", isCompactSummary=True, **more),
        name="agent-a1.jsonl" if side else "session.jsonl",
    )
    draft = only(path)
    assert shown(draft) == ["u", "v", "w", "y"]
    roles = [node.role for node in draft.nodes]
    assert roles == ["user", "summary", "user", "summary"]


def test_a_prompt_that_was_queued_is_a_message() -> None:
    """A prompt that was typed while the model worked stands between the result and the answer."""
    nodes = {node.id: node for node in drafts_of(NEW)[WATERING].nodes}
    assert (nodes["c6"].role, texts(nodes["c6"]), nodes["c6"].parent) == (
        "user",
        "and the herbs",
        "c5",
    )


def test_a_forked_session_is_a_branch() -> None:
    """A session that was forked into a new file begins with the messages of the old one."""
    draft = drafts_of(NEW)[EVENING]
    assert (draft.parent, draft.relation) == (WATERING, "branch")
    assert shown(draft) == ["c1", "c3", "c5", "c6", "c7", "e1", "e2"]


def test_a_session_continued_in_a_copy_is_a_branch(tmp_path: Path) -> None:
    """Older versions copied all lines of a session to continue it in a new file."""
    folder = tmp_path / "projects"
    shutil.copytree(OLD / "projects", folder)
    [path] = folder.glob(f"*/{TOMATOES}.jsonl")
    copied = path.with_name("f0000000-0000-4a00-8a00-000000000009.jsonl")
    copied.write_text(path.read_text().replace(TOMATOES, copied.stem))
    draft = drafts_of(folder)[copied.stem]
    assert (draft.parent, draft.relation) == (TOMATOES, "branch")


@pytest.mark.parametrize(
    ("lines", "title"),
    [
        ([("custom-title", "customTitle"), ("ai-title", "aiTitle")], "custom-title"),
        ([("ai-title", "aiTitle"), ("agent-name", "agentName")], "agent-name"),
        ([("ai-title", "aiTitle")], "ai-title"),
        ([], "summary"),
    ],
)
def test_the_best_title_is_taken(
    write: Write, lines: list[tuple[str, str]], title: str
) -> None:
    """The title of a person is better than one of an agent, of the model, and of a summary."""
    titles = [{"type": kind, field: kind, "sessionId": "s-1"} for kind, field in lines]
    summary = {"type": "summary", "summary": "summary", "leafUuid": "u"}
    assert (
        only(write(summary, *titles, line("user", "u", None, "first line"))).title
        == title
    )


def test_the_title_of_an_older_session_may_be_in_another_file() -> None:
    """A line with a summary names the last message of any session, and the first line is the title without one."""
    drafts = drafts_of(OLD)
    assert drafts[TOMATOES].title == "Tomatoes for a balcony"
    assert drafts[HERBS].title == "Plan a bed for herbs."


def test_what_the_program_wrote_is_left_out() -> None:
    """Commands, notes and errors of the program are no messages, and they are counted."""
    source = source_of(OLD)
    drafts = [draft for draft in source.drafts() if isinstance(draft, Draft)]
    written = " ".join(texts(node) for draft in drafts for node in draft.nodes)
    assert "<command-name>" not in written
    assert "Caveat" not in written
    assert "API Error" not in written
    assert "interrupted" not in written
    assert source.left_out["commands and notes of the program"] == 2
    assert source.left_out["errors shown by the program"] == 1


def test_text_with_a_tag_of_the_program_inside_is_kept(write: Write) -> None:
    """Only a text that is wholly written by the program is left out."""
    text = "Why does it print <system-reminder>x</system-reminder> here?"
    assert texts(only(write(line("user", "u", None, text))).nodes[0]) == text


def test_unknown_lines_and_content_are_counted(write: Write) -> None:
    """Lines and blocks of later versions are counted, and small blocks are kept."""
    block = {"type": "hologram", "data": 1}
    source = source_of(
        write(
            line("user", "u", None, ["hi", block, {"type": "text", "text": "hi"}]),
            line("telepathy", "v", "u", ""),
        )
    )
    [draft] = source.drafts()
    assert isinstance(draft, Draft)
    assert source.left_out["unknown lines (telepathy)"] == 1
    assert source.left_out["unknown content (hologram)"] == 1
    assert block in draft.nodes[0].extra["content"]


def test_a_file_named_in_a_message_is_counted(write: Write) -> None:
    """Claude Code adds the content of a file behind a message. It is not taken, and that is said."""
    attached = {"type": "file", "filename": "plan.md", "content": {"type": "text"}}
    source = source_of(
        write(
            line("user", "u", None, "See @plan.md"),
            line("attachment", "v", "u", "", attachment=attached),
        )
    )
    assert len(list(source.drafts())) == 1
    assert source.left_out == {"files named in a message with @": 1}


def test_a_broken_file_is_skipped_and_the_others_are_read() -> None:
    """A file without a readable line is skipped. A half line at the end does not cost the session."""
    drafts = list(source_of(OLD).drafts())
    [skipped] = [draft for draft in drafts if isinstance(draft, Skipped)]
    assert skipped.id == BROKEN
    assert skipped.why
    assert len(drafts) == 4


def test_facts_of_the_session_are_kept() -> None:
    """The folder, the branch and the version of the beginning are kept, and the time is the time of the first message."""
    draft = drafts_of(NEW)[WATERING]
    assert draft.extra == {
        "cwd": "/home/ada/garden",
        "gitBranch": "water",
        "version": "2.1.90",
    }
    assert draft.at == 1777802401000000


@pytest.mark.parametrize("form", ["file", "project", "zip"])
def test_a_file_a_folder_and_a_zip_file_are_read(tmp_path: Path, form: str) -> None:
    """A session is found by its content, wherever it is."""
    project = NEW / "projects" / "-home-ada-garden"
    path = project
    if form == "file":
        path = project / f"{WATERING}.jsonl"
    if form == "zip":
        path = Path(shutil.make_archive(str(tmp_path / "claude"), "zip", NEW))
    drafts = drafts_of(path)
    assert shown(drafts[WATERING])[-1] == "c12"
    assert len(drafts) == (1 if form == "file" else 3)


def test_a_lone_sub_agent_is_read(write: Write) -> None:
    """The file of a sub-agent without its session is a delegate of an unknown conversation."""
    more = {"isSidechain": True, "agentId": "a1"}
    path = write(line("user", "u", None, "Look.", **more), name="agent-a1.jsonl")
    draft = only(path)
    assert (draft.id, draft.parent, draft.relation) == (
        "s-1/agent-a1",
        "s-1",
        "delegate",
    )


@pytest.mark.parametrize(
    "content",
    ['{"messages": []}', '[{"mapping": {}}]', "hello", "", '{"type": "session_meta", "payload": {}}', '{"kind": "message.sent", "seq": 1}', "\0\1"],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    """Another format is no session of Claude Code."""
    path = tmp_path / "session.jsonl"
    path.write_text(content)
    assert claude_code.open_source(Place(path)) is None


def test_a_first_line_longer_than_the_head_is_recognised(write: Write) -> None:
    """A session may begin with a large picture."""
    data = base64.b64encode(bytes(100_000)).decode()
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    }
    first = {"parentUuid": None, "isSidechain": False} | line(
        "user", "u", None, [image]
    )
    [part] = only(write(first)).nodes[0].parts
    assert isinstance(part, Attached)
    assert part.read() == bytes(100_000)


def test_cycles_and_lone_surrogates_are_read(write: Write) -> None:
    """A line that is its own ancestor begins the conversation, and damaged text is no reason to stop."""
    draft = only(
        write(
            line("user", "u", "v", "a \ud83c"),
            line("assistant", "v", "u", [{"type": "text", "text": "b"}]),
        )
    )
    assert [(node.id, node.parent) for node in draft.nodes] == [("u", None), ("v", "u")]


def test_damaged_sessions_never_fail(tmp_path: Path) -> None:
    """Whatever the values of the lines are, the result is conversations, skipped ones or an error with a reason."""
    lines = [
        json.loads(text)
        for path in sorted(FIXTURES.rglob("*.jsonl"))
        for text in path.read_text().splitlines()
        if text.endswith("}")
    ]
    chance = random.Random(16)
    path = tmp_path / "session.jsonl"
    read = 0
    for _ in range(ROUNDS):
        share = chance.choice([0.002, 0.02, 0.2])
        damaged = [json.dumps(damage(value, chance, share)) for value in lines]
        text = "\n".join(damaged)
        path.write_text(
            text[: chance.randrange(len(text))] if chance.random() < 0.3 else text
        )
        with contextlib.suppress(InvalidInput):
            source = claude_code.open_source(Place(path))
            for draft in source.drafts() if source is not None else ():
                assert isinstance(draft, Draft | Skipped)
                if isinstance(draft, Draft):
                    read += len(draft.nodes)
                    assert len({node.id for node in draft.nodes}) == len(draft.nodes)
                    assert shown(draft)
    assert read > ROUNDS

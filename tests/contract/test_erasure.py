"""Erased and deleted text is nowhere: not in a row, not in a file, not in search; and the chain still verifies."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import tenax
from tenax.clock import Timing
from tenax.errors import InvalidInput
from tenax.events import (
    Blob,
    ContextCompacted,
    ContextOpened,
    ContextSummarised,
    ConversationOpened,
    ConversationTitled,
    MemoryNoted,
    MemoryRecalled,
    MessageAssistant,
    MessageUser,
    ModelRequested,
    ReplyDelta,
    ReplyThought,
    RunFinished,
    RunStarted,
    ToolFinished,
    ToolOutput,
)
from tenax.journal import Journal, open_snapshot
from tenax.journal.verify.store import verify
from tenax.memory.entries import MemoryEntries
from tenax.parts import File, Text, ToolCall
from tenax.testing import memory
from tenax.text import quote

SECRET = "hunter2-correct-horse-battery"


def everywhere(url: str, tmp_path: Path) -> list[str]:
    """Where the secret can be read: files of a SQLite store, columns of a PostgreSQL one."""
    if url.startswith("sqlite"):
        # Another process greps: in this one the store itself would refuse to let its -shm be opened.
        done = subprocess.run(
            ["grep", "-rlaF", SECRET, tmp_path],
            capture_output=True,
            text=True,
            check=False,
        )
        return [Path(line).name for line in done.stdout.splitlines()]
    found = []
    with psycopg.connect(url) as connection:
        columns = connection.execute(
            "select table_name, column_name from information_schema.columns"
            " where table_schema = 'public' and data_type in ('text', 'bytea', 'tsvector')"
        ).fetchall()
        for table, column in columns:
            ((count,),) = connection.execute(
                f"select count(*) from {table} where position(%s in encode(convert_to({column}::text, 'UTF8'), 'escape')) > 0"
                if column not in ("body", "bytes")
                else f"select count(*) from {table} where position(%s::bytea in {column}) > 0",
                (SECRET,),
            ).fetchall()
            if count:
                found.append(f"{table}.{column}")
    return found


def tell(journal: Journal) -> tuple[str, list[int]]:
    """A conversation whose secret has spread: into an answer, its partials, a summary, a title, a blob, a fork, the memory."""
    talk = journal.ids.conversation()
    journal.append(talk, [ConversationOpened(journal.user or "", "first")])
    blob = journal.put_blob(f"file with {SECRET} in it".encode() * 1000)
    asked = journal.append(
        talk,
        [MessageUser([Text(f"my password is {SECRET}"), File(blob, "text/plain")])],
    )[0].seq
    for offset in range(0, 60, 20):
        journal.append(talk, [ReplyDelta(asked, offset, f"{SECRET} ")])
    journal.append(talk, [ReplyThought(asked, 0, f"hm, {SECRET}")])
    call = ToolCall("k", "shell", "{}")
    answered = journal.append(
        talk, [MessageAssistant([Text(f"so it is {SECRET}"), call], request=asked)]
    )[0].seq
    journal.append(talk, [ToolOutput(answered, "k", 0, f"it says {SECRET}")])
    finished = journal.append(
        talk, [ToolFinished(answered, "k", "done", f"it said {SECRET}")]
    )[0].seq
    journal.append(talk, [MessageUser([Text("something harmless")])])
    remember(journal, talk, asked)
    journal.append(talk, [ConversationTitled(f"About {SECRET}", derived=True)])
    journal.fork(talk)
    head = journal.head(talk).head
    summary = ContextSummarised([Text(f"the password is {SECRET}")], head)
    journal.append(
        talk, [summary, ContextCompacted("first", "second", head + 1, head, head)]
    )
    journal.fork(talk)
    return talk, [asked, answered, finished]


def remember(journal: Journal, talk: str, asked: int) -> None:
    """It was learned, changed and forgotten, and recalled into another conversation and its prompt."""
    facts, other = MemoryEntries(journal), journal.ids.conversation()
    fact = facts.add(f"has the password {SECRET}", conversation=talk, seq=asked)
    facts.change(fact.id, was=1, text=f"had the password {SECRET}")
    facts.remove(fact.id, was=2)
    journal.append(talk, [MemoryNoted(fact.id, 1, "added", fact.text)])
    memory, tools = (
        Blob(journal.put_blob(each))
        for each in (f"- had the password {SECRET}".encode(), b"[]")
    )
    opened = ContextOpened("start", "m", memory, tools, memory=memory)
    recalled = MemoryRecalled({"built in": fact.text}, facts=[fact.id])
    journal.append(other, [ConversationOpened(journal.user or "", "other"), opened])
    journal.append(
        other, [RunStarted(), recalled, RunFinished("completed")], run="r_other"
    )


def erase(journal: Journal, talk: str, seqs: list[int]) -> None:
    assert journal.erase(talk, seqs, by="me", why="a mistake").scrubbed


def delete(journal: Journal, talk: str, seqs: list[int]) -> None:
    for summary in journal.conversations():
        if summary.conversation != talk:
            journal.delete(summary.conversation)
    journal.delete(talk)


@pytest.mark.parametrize("act", [erase, delete])
@pytest.mark.parametrize("indexed", [True, False])
def test_what_was_erased_or_deleted_is_nowhere(
    bare_url: str,
    tmp_path: Path,
    act: Callable[[Journal, str, list[int]], None],
    indexed: bool,
) -> None:
    """Whether or not it was indexed by then: no file, no row, no hit has it, and the store still proves itself."""
    with tenax.open(bare_url) as journal:
        talk, seqs = tell(journal)
        if indexed:
            assert journal.words.catch_up(30)
        assert journal.search(SECRET).hits
        assert everywhere(bare_url, tmp_path)
        act(journal, talk, seqs)
        assert journal.search(SECRET).hits == []
        assert everywhere(bare_url, tmp_path) == []
        assert verify(journal).ok
    assert everywhere(bare_url, tmp_path) == []


@pytest.mark.parametrize(
    "text", ["<>", "x<y", "hi <tenax-recalled and much that a fence takes out> you"]
)
def test_an_erasure_reaches_the_prompts_that_hold_the_words_and_no_others(
    store_url: str, text: str
) -> None:
    """A prompt says them inside of a fence, which takes out what looks like its own tags."""
    with tenax.open(store_url, user="ada") as journal:
        asked, holds, other = (f"c-{n}" for n in range(3))
        for name in (asked, holds, other):
            journal.append(
                name,
                [ConversationOpened("ada", f"s-{name}"), MessageUser([Text("hello")])],
            )
        MemoryEntries(journal).add(text, conversation=asked, seq=2)
        for name, words in {
            holds: quote(f"Notes\n- {text}\n"),
            other: "A fox, in its box.",
        }.items():
            blob = Blob(journal.put_blob(words.encode()))
            journal.append(name, [ContextOpened("start", "", blob, blob)])
        assert journal.erase(asked, [2], by="ada").conversations == {
            asked: [2],
            holds: [3],
        }
        assert verify(journal).problems == []


def test_what_says_that_an_input_was_taken_is_not_erased() -> None:
    """A request of a model holds no text of anybody's; without it a steered message would seem to wait."""
    with memory() as journal:
        journal.append(
            "c_1",
            [
                ConversationOpened(journal.user or "", "s_1"),
                MessageUser([Text("x")], ask=True),
            ],
        )
        journal.append("c_1", [RunStarted([])], run="r")
        (request,) = journal.append(
            "c_1", [ModelRequested(2, "", "m", 1.0, [2])], run="r"
        )
        with pytest.raises(InvalidInput, match="holds no text"):
            journal.erase("c_1", [request.seq], by="ada")
        assert journal.waiting("c_1") == []


def test_an_erasure_during_a_backup_stops_no_writer(tmp_path: Path) -> None:
    """A reader holds the old pages. Writers go on at once, and the log is emptied when the reader is gone."""
    url = f"sqlite:///{tmp_path}/tenax.db"
    # The erasure would wait this long for the reader, and every writer with it.
    timing = Timing(turn_seconds=3600.0, checkpoint_idle_seconds=0.05)
    with tenax.open(url, timing=timing) as journal:
        talk, seqs = tell(journal)
        assert journal.words.catch_up(30)
        with contextlib.closing(open_snapshot(url)):
            assert not journal.erase(talk, seqs, by="me").scrubbed
            journal.append(talk, [MessageUser([Text("I go on.")])])
        while everywhere(url, tmp_path):
            time.sleep(0.01)

"""Search finds what is stored, from the moment it is stored, on every engine, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw
import psycopg
import pytest

import tenax
from tenax.clock import SystemClock, Timing
from tenax.errors import InvalidInput, StoreUnavailable
from tenax.events import (
    ContentErased,
    ContextCompacted,
    ContextSummarised,
    ConversationArchived,
    ConversationCleared,
    ConversationRewound,
    ConversationTitled,
    MessageAssistant,
    MessagePartial,
    MessageSystem,
    MessageTool,
    MessageUser,
    MessageWithdrawn,
    RunFinished,
    RunLate,
    RunStarted,
)
from tenax.journal import Journal
from tenax.journal.base import Hit, Hits
from tenax.journal.search import search
from tenax.journal.search import sqlite as search_sqlite
from tenax.journal.search.index import Move
from tenax.journal.search.query import parse
from tenax.journal.store import Tx
from tenax.parts import File, Reasoning, Text, ToolCall, ToolResult
from tenax.testing import SimClock
from tests.contract.engine.base import begin, say
from tests.support.no_search import NoSearch

SECRET = "the-key-is-hunter2-zq9"


@pytest.fixture
def journal(engine_url: str) -> Iterator[Journal]:
    with tenax.open(engine_url, user="ada") as journal:
        yield journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tenax.db"


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def words_file(path: Path) -> Path:
    return Path(f"{path}-search")


def settle(journal: Journal) -> None:
    assert journal.words.catch_up(30)


def found(journal: Journal, words: str) -> list[str]:
    """The snippets of everything these words find, newest first, page by page; none comes twice."""
    hits = every_hit(journal, words)
    places = [(hit.conversation, hit.seq) for hit in hits]
    assert len(places) == len(set(places)), "a message was found twice"
    return [hit.snippet for hit in hits]


def every_hit(journal: Journal, words: str, limit: int = 3) -> list[Hit]:
    page = journal.search(words, limit=limit)
    hits = page.hits
    while page.before is not None:
        assert len(page.hits) <= limit
        page = journal.search(words, before=page.before, limit=limit)
        hits = hits + page.hits
    return hits


def wait_until_indexed(journal: Journal) -> None:
    deadline = time.monotonic() + 60
    while journal.search("whatever").unindexed:
        assert time.monotonic() < deadline, "nothing was indexed"
        time.sleep(0.05)


def files_with(folder: Path, text: str) -> list[str]:
    """Looked for from another process: this one may not open the files of a store that it has open."""
    grep = subprocess.run(
        ["grep", "-rlaiF", text, folder], capture_output=True, text=True, check=False
    )
    return [Path(line).name for line in grep.stdout.splitlines()]


# -- what is found -----------------------------------------------------------------------------------------

ODD = [
    "We deployed final_v2 to Zürich on Monday",
    "google says it is a go; go on, C# and F# too",
    "我的猫喜欢鱼。我喜欢编程",
    "ガ and カ are not the same, 서울에서 만나요 🙂",
    "ทำงานหนัก every day — naïve Straße ﬁne",
    "100% sure: sel_ect * from \"t\" where a='b' -- c:\\temp",
    "x",
    "",
    "a b c d e f g",
    "AND OR NOT NEAR(deploy go) ^col: {x}",
    "ends with a star* and a \\ and a %",
]
ASKED = [
    "deploy", "eploy", "nal_v2", "zurich", "go", "goo", "c#", "猫", "喜欢", "喜欢鱼", "的猫喜欢鱼", "カ", "ガ", "서울",
    "🙂", "งาน", "naive", "strasse", "fine", "100%", "sel_ect", "%", "100_", "c:\\temp", '"go on"', '"it is a"', "x",
    "a", '"d e f"', "AND", "near(", "^col:", "{x}", "monday deploy", "go deploy", "喜欢 的", "star*", "sta*", "--", "\\",
    "'b'", "nothing-has-this",
]  # fmt: skip


def test_what_is_read_and_what_is_looked_up_are_the_same(journal: Journal) -> None:
    """Whatever is asked, a message is found or not found alike before it was indexed and after."""
    begin(journal, *map(say, ODD), name="c")
    asked = [words for words in ASKED if not refused(journal, words)]
    before = {words: found(journal, words) for words in asked}
    settle(journal)
    after = {words: found(journal, words) for words in asked}
    assert after == before
    assert {words for words, hits in after.items() if not hits} == {
        "100_",
        "nothing-has-this",
    }


def refused(journal: Journal, words: str) -> bool:
    try:
        journal.search(words)
    except InvalidInput:
        return True
    return False


@pytest.mark.parametrize("indexed", [False, True])
def test_every_kind_of_text_is_found_with_its_role(
    journal: Journal, indexed: bool
) -> None:
    """Messages of every role, what a tool was asked and answered, names of files, summaries, late output, titles."""
    conversation = begin(
        journal,
        MessageUser([Text("aaa user"), File("0" * 64, "text/plain", "aaa-report.txt")]),
        MessageAssistant(
            [
                Reasoning("aaa thought"),
                ToolCall("1", "aaa_tool", '{"path": "/aaa/\\u732b", "n": [4711]}'),
            ]
        ),
        MessageTool([ToolResult("1", "aaa result")]),
        MessageSystem([Text("aaa system")]),
        MessagePartial([Text("aaa partial")], 0),
        ContextSummarised([Text("aaa summary")], 2),
        ConversationTitled("aaa title"),
    )
    journal.append(conversation, [RunStarted()], run="r")
    journal.append(conversation, [RunFinished("failed")], run="r")
    journal.append(conversation, [RunLate(0, "token", {"text": "aaa late"})], run="r")
    if indexed:
        settle(journal)
    roles = {hit.role for hit in every_hit(journal, "aaa")}
    assert roles == {
        "user",
        "assistant",
        "tool",
        "system",
        "partial",
        "summary",
        "title",
        "late",
    }
    assert [hit.role for hit in every_hit(journal, "aaa-report 猫")] == []
    assert [hit.role for hit in every_hit(journal, "/aaa/猫 4711 aaa_tool")] == [
        "assistant"
    ]
    assert [hit.role for hit in every_hit(journal, "aaa-report")] == ["user"]
    assert found(journal, "thought") == []


@pytest.mark.parametrize("indexed", [False, True])
def test_what_is_nested_too_deep_to_read_hides_nothing_else(
    journal: Journal, indexed: bool
) -> None:
    """It was stored with room to spare on the stack, and is looked for with less."""
    name = begin(journal, say("needle"))
    deep: object = "needle"
    for _ in range(900):
        deep = [deep]
    journal.append(name, [RunStarted([])], run="r-1")
    journal.append(name, [RunFinished("interrupted")], run="r-1")
    storing = threading.Thread(  # with a stack of its own, which is nearly empty
        target=journal.append,
        args=(name, [RunLate(0, "token", {"deep": deep})]),
        kwargs={"run": "r-1"},
    )
    storing.start()
    storing.join()
    assert journal.head(name).head == 5

    def look(depth: int) -> list[str]:
        return (
            look(depth - 1)
            if depth
            else [hit.snippet for hit in journal.search("needle").hits]
        )

    if indexed:
        settle(journal)
    assert "needle" in look(100)


@pytest.mark.parametrize("indexed", [False, True])
def test_what_left_the_transcript_is_still_found(
    journal: Journal, indexed: bool
) -> None:
    """Compacted, undone, cleared, withdrawn and archived messages are found; the hit says whether they stand."""
    undone = begin(journal, say("needle stays"), say("needle undone"))
    journal.append(undone, [ConversationRewound(2)])
    cleared = begin(journal, say("needle cleared"))
    journal.append(cleared, [ConversationCleared()])
    archived = begin(
        journal, say("needle archived"), ConversationArchived(archived=True)
    )
    compacted = begin(journal, say("needle compacted"))
    segment = journal.head(compacted).segment or ""
    journal.append(
        compacted,
        [
            ContextSummarised([Text("words")], 2),
            ContextCompacted(segment, "s2", 3, 2, 2),
        ],
    )
    withdrawn = begin(journal, MessageUser([Text("needle withdrawn")], ask=True))
    journal.append(withdrawn, [MessageWithdrawn(2)])
    if indexed:
        settle(journal)
    standing = {hit.snippet: hit.standing for hit in every_hit(journal, "needle")}
    assert standing == {
        "needle stays": True,
        "needle undone": False,
        "needle cleared": False,
        "needle archived": True,
        "needle compacted": True,
        "needle withdrawn": False,
    }
    assert {hit.conversation for hit in every_hit(journal, "needle")} == {
        undone,
        cleared,
        archived,
        compacted,
        withdrawn,
    }


def test_an_old_title_is_found_but_no_longer_stands(journal: Journal) -> None:
    """The last title is the one that stands."""
    begin(journal, ConversationTitled("needle one"), ConversationTitled("needle two"))
    assert [(hit.snippet, hit.standing) for hit in every_hit(journal, "needle")] == [
        ("needle two", True),
        ("needle one", False),
    ]


def test_a_message_is_found_while_it_is_being_indexed(journal: Journal) -> None:
    """At no moment between being stored and being indexed is a message missing or there twice."""
    conversation = begin(journal)
    stop = threading.Event()

    def index() -> None:
        while not stop.is_set():
            journal.words.catch_up(5)

    thread = threading.Thread(target=index)
    thread.start()
    try:
        for n in range(60):
            journal.append(conversation, [say(f"needle {n}")])
            assert len(found(journal, "needle")) == n + 1
    finally:
        stop.set()
        thread.join()


# -- order, pages and scope --------------------------------------------------------------------------------


@pytest.mark.parametrize("indexed", [0, 7, 20])
def test_pages_are_newest_first_and_leave_nothing_out(
    engine_url: str, indexed: int
) -> None:
    """Many messages of one instant, in several conversations, some of them indexed: each comes once, in order."""
    clock = SimClock()
    with tenax.open(engine_url, user="ada", clock=clock) as journal:
        names = [begin(journal) for _ in range(3)]
        for n in range(20):
            if n == indexed:
                settle(journal)
            if n % 5 == 0:
                clock.advance(0.001)
            journal.append(names[n % 3], [say(f"needle {n}")])
        if indexed == 20:
            settle(journal)
        hits = every_hit(journal, "needle", limit=3)
    assert len(hits) == 20
    assert [hit.at for hit in hits] == sorted((hit.at for hit in hits), reverse=True)
    assert {hit.snippet for hit in hits} == {f"needle {n}" for n in range(20)}


def test_a_page_goes_on_where_it_ended_whatever_happens_meanwhile(
    journal: Journal,
) -> None:
    """Indexing, new messages and an erasure between two pages neither repeat nor skip an older message."""
    conversation = begin(journal, *[say(f"needle {n}") for n in range(10)])
    page = journal.search("needle", limit=4)
    assert [hit.snippet for hit in page.hits] == [f"needle {n}" for n in (9, 8, 7, 6)]
    settle(journal)
    journal.append(conversation, [say("needle new")])
    journal.erase(conversation, [page.hits[-1].seq], by="ada")
    page = journal.search("needle", limit=10, before=page.before)
    assert [hit.snippet for hit in page.hits] == [
        f"needle {n}" for n in (5, 4, 3, 2, 1, 0)
    ]
    assert page.before is None


@pytest.mark.parametrize("indexed", [False, True])
def test_one_conversation_can_be_searched_alone(
    journal: Journal, indexed: bool
) -> None:
    """Nothing of the user's other conversations is among the hits."""
    for n in range(3):
        begin(journal, say(f"needle {n}"), say("猫 go"), name=f"c{n}")
    if indexed:
        settle(journal)
    for words in ("needle", "猫", "go needl*"):
        hits = journal.search(words, conversation="c1").hits
        assert {hit.conversation for hit in hits} == (
            {"c1"} if words != "go needl*" else set()
        )


@pytest.mark.parametrize("indexed", [False, True])
def test_nothing_of_another_user_is_found(journal: Journal, indexed: bool) -> None:
    """Neither by words, nor by a page of the other's, nor by the other's conversation."""
    ben = journal.of("ben")
    begin(journal, say("needle of ada"), say("needle of ada again"), name="c")
    begin(ben, say("needle of ben"), ConversationTitled("needle title"), name="c")
    if indexed:
        settle(journal)
    assert sorted(found(journal, "needle")) == ["needle of ada", "needle of ada again"]
    assert sorted(found(ben, "needle")) == ["needle of ben", "needle title"]
    assert found(journal.of("cy"), "needle") == []
    page = journal.search("needle", limit=1)
    assert all(
        "ben" in hit.snippet or "title" in hit.snippet
        for hit in ben.search("needle", before=page.before).hits
    )
    assert [hit.snippet for hit in ben.search("needle", conversation="c").hits] == [
        "needle title",
        "needle of ben",
    ]


@pytest.mark.parametrize(
    "words",
    [
        "",
        " ",
        "*",
        '"',
        "\x00",
        "\ud800",
        "ab*",
        "?" * 2,
        "w " * 50,
        "x" * 5000,
        'a"*',
        None,
    ],
)
def test_bad_words_are_refused_with_a_sentence(journal: Journal, words: str) -> None:
    """A named error; nothing breaks, and the next search works."""
    begin(journal, say("a needle"))
    if words == 'a"*':
        assert journal.search(words).hits
        return
    with pytest.raises(InvalidInput, match=r"\.$"):
        journal.search(words)
    assert found(journal, "needle") == ["a needle"]


@pytest.mark.parametrize("before", [5, "x", (1,), (1, 2, 3), (1, "2"), (2**70, 1)])
def test_a_bad_page_is_refused_with_a_sentence(
    journal: Journal, before: tuple[int, int]
) -> None:
    """`before` is what a page gave, and nothing else."""
    with pytest.raises(InvalidInput, match=r"\.$"):
        journal.search("needle", before=before)


def test_what_stands_below_a_backlog_is_indexed_and_found(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that could not read all and found too little lets the index come after, and finds it."""
    monkeypatch.setattr(search, "FRESH_FACTS_MAX", 200)
    begin(journal, say("needle"), *[say(f"hay {n}") for n in range(500)])
    hits = journal.search("needle")
    assert ([hit.snippet for hit in hits.hits], hits.complete) == (["needle"], True)


def test_a_backlog_that_is_too_large_to_read_is_told(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest are found at once, the answer says that older ones may be missing, and after indexing it is whole."""
    monkeypatch.setattr(search, "FRESH_FACTS_MAX", 200)
    conversation = begin(journal, *[say(f"needle {n}") for n in range(500)])
    hits = journal.search("needle", limit=10)
    assert not hits.complete
    assert hits.unindexed == 1
    assert hits.hits[0].snippet == "needle 499"
    settle(journal)
    hits = journal.search("needle", limit=10)
    assert (hits.complete, hits.unindexed) == (True, 0)
    assert len(every_hit(journal, "needle", limit=100)) == 500
    journal.append(conversation, [say("needle 500")])
    assert journal.search("needle", limit=1) == Hits(
        [every_hit(journal, "500")[0]], hits_key(journal), 1
    )


def hits_key(journal: Journal) -> tuple[int, int] | None:
    return journal.search("needle", limit=1).before


# -- erasing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indexed", [False, True])
def test_what_was_erased_or_deleted_is_never_found(
    journal: Journal, indexed: bool
) -> None:
    """Neither at once nor after the index has caught up."""
    kept = begin(journal, say("needle kept"), say(f"needle {SECRET}"))
    gone = begin(journal, say(f"needle deleted {SECRET}"))
    if indexed:
        settle(journal)
    journal.erase(kept, [3], by="ada")
    journal.delete(gone)
    for _ in range(2):
        assert found(journal, "needle") == ["needle kept"]
        assert found(journal, SECRET) == []
        settle(journal)


@pytest.mark.parametrize("indexed", [False, True])
def test_erased_text_is_in_no_file(path: Path, indexed: bool) -> None:
    """The search file, its log and the rest hold neither the text nor the trigrams that were only in it."""
    with tenax.open(url_of(path)) as journal:
        kept = begin(journal, say("needle kept"), say(f"needle {SECRET}"))
        gone = begin(
            journal, *[say(f"needle deleted {SECRET} {n}") for n in range(600)]
        )
        if indexed:
            settle(journal)
            assert files_with(path.parent, SECRET)
        assert journal.erase(kept, [3], by="ada").scrubbed
        journal.delete(gone)
        assert files_with(path.parent, SECRET) == []
        settle(journal)
        assert files_with(path.parent, SECRET) == []
        assert files_with(path.parent, "zq9") == []
        assert found(journal, "needle") == ["needle kept"]


def test_an_erasure_that_died_before_it_reached_the_index_is_finished(
    path: Path,
) -> None:
    """The reader sees it in the journal, and the tombstone of a deletion, and forgets the text."""
    with tenax.open(url_of(path)) as journal:
        kept = begin(journal, say("needle kept"), say(f"needle {SECRET}"))
        gone = begin(journal, say(f"deleted {SECRET}"))
        settle(journal)
    with tenax.open(url_of(path)) as journal:
        blind = Journal(journal.store, journal.user, NoSearch())
        blind.append(kept, [ContentErased([3], "ada")])
        blind.delete(gone)
        assert all(
            name.startswith("tenax.db-search")
            for name in files_with(path.parent, SECRET)
        )
        assert files_with(path.parent, SECRET)
        settle(journal)
        assert files_with(path.parent, SECRET) == []
        assert found(journal, "needle") == ["needle kept"]


def test_an_erasure_beats_the_indexing_that_is_under_way(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read for the index before it was erased is not put in after."""
    index = journal.words.index
    apply, erased = index.apply, threading.Event()

    def erase_first(moves: Sequence[Move], hold: Callable[[Tx], None]) -> None:
        if len(moves[0].docs) > 1:
            journal.erase("c-1", [3], by="ada")
            erased.set()
        apply(moves, hold)

    monkeypatch.setattr(index, "apply", erase_first)
    begin(journal, say("needle kept"), say(f"needle {SECRET}"), name="c-1")
    settle(journal)
    assert erased.is_set()
    # Ask the index itself, because the journal corrects the proposals.
    proposed = index.propose("ada", parse("needle"), num=None, before=None, limit=10)
    assert len(proposed.keys) == 1
    assert found(journal, "needle") == ["needle kept"]


# -- the reader --------------------------------------------------------------------------------------------


def test_messages_are_indexed_without_being_asked(journal: Journal) -> None:
    """Storing wakes the reader; a moment later nothing has to be read any more."""
    begin(journal, say("needle"))
    wait_until_indexed(journal)
    assert found(journal, "needle") == ["needle"]


def test_indexing_goes_on_by_itself_after_an_error(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store goes away for a while, search does not."""
    index = journal.words.index
    apply, failed = index.apply, threading.Event()

    def fail_once(*args: object) -> None:
        if not failed.is_set():
            failed.set()
            raise StoreUnavailable("The store was away.")
        apply(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(index, "apply", fail_once)
    begin(journal, say("needle"))
    wait_until_indexed(journal)
    assert failed.is_set()


def test_the_indexer_ends_without_work_and_starts_again(engine_url: str) -> None:
    """No thread stays behind. The next message starts the indexer again."""
    timing = Timing(index_gather_seconds=0.01, index_idle_seconds=0.05)
    with tenax.open(engine_url, user="ada", timing=timing) as journal:
        for n in range(3):
            begin(journal, say(f"needle {n}"))
            wait_until_indexed(journal)
            for thread in threading.enumerate():
                if thread.name == "tenax-search":
                    thread.join(30)
                    assert not thread.is_alive()
            assert journal.search("needle").unindexed == 0


def test_a_thread_that_could_not_be_started_is_started_the_next_time(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may have no room for one more at that moment. Nothing is refused for it, and it is no state."""
    start, refused = threading.Thread.start, threading.Event()

    def full(thread: threading.Thread) -> None:
        if thread.name == "tenax-search" and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", full)
    begin(journal, say("needle one"))
    assert refused.is_set()
    begin(journal, say("needle two"))
    wait_until_indexed(journal)


def test_a_command_that_ends_at_once_is_not_held_up(path: Path) -> None:
    """A process that stores something and ends pays nothing for the index."""
    program = f"""
import tenax
from tenax.clock import Timing
from tests.contract.engine.base import begin, say
# The indexer starts later than the process may end.
timing = Timing(index_gather_seconds=600.0, index_close_seconds=600.0)
journal = tenax.open({url_of(path)!r}, timing=timing)
begin(journal, say("needle"))
journal.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert not words_file(path).exists()
    with tenax.open(url_of(path)) as journal:
        assert found(journal, "needle") == ["needle"]


def test_two_journals_index_one_store(store_url: str) -> None:
    """Whoever has the lease does it, for both, once."""
    with (
        tenax.open(store_url, user="ada") as one,
        tenax.open(store_url, user="ada") as two,
    ):
        for n in range(30):
            begin(one if n % 2 else two, say(f"needle {n}"))
        threads = [
            threading.Thread(target=each.words.catch_up, args=(30,))
            for each in (one, two)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each in (one, two):
            assert Counter(found(each, "needle")) == Counter(
                f"needle {n}" for n in range(30)
            )
            assert each.search("needle").unindexed == 0


def test_a_search_does_not_wait_for_who_indexes(path: Path) -> None:
    """The indexing waits for another process that writes to the file; what is asked meanwhile is answered at once."""
    with tenax.open(url_of(path)) as journal:
        begin(journal, say("needle one"))
        settle(journal)
        other = apsw.Connection(str(words_file(path)))
        other.execute("begin immediate")
        begin(journal, say("needle two"))
        indexing = threading.Thread(target=journal.words.catch_up, args=(100,))
        indexing.start()
        for _ in range(5):
            assert found(journal, "needle") == ["needle two", "needle one"]
        assert indexing.is_alive(), "it did not wait"
        other.execute("rollback")
        other.close()
        indexing.join()
        assert journal.search("needle").unindexed == 0


def test_a_search_waits_for_a_slow_index_no_longer_than_it_says(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of the index may take minutes: to build the index again, or to wait for the store."""
    index, goes_on, busy = journal.words.index, threading.Event(), threading.Event()
    prepare = index.prepare

    def slow(hold: object) -> None:
        busy.set()
        goes_on.wait()
        prepare(hold)  # type: ignore[arg-type]

    monkeypatch.setattr(index, "prepare", slow)
    begin(journal, say("needle"))
    assert busy.wait(60)
    try:
        assert not journal.words.catch_up(0.2)
    finally:
        goes_on.set()


# -- the file of a SQLite store ----------------------------------------------------------------------------


def fill(path: Path, count: int = 50) -> None:
    with tenax.open(url_of(path)) as journal:
        for n in range(count):
            begin(journal, say(f"needle {n} " + "hay " * 50))
        settle(journal)
        assert journal.search("needle").unindexed == 0


def check_rebuilt(journal: Journal, count: int = 50) -> None:
    """Everything is found, before the file is there again and after."""
    assert len(found(journal, "needle")) == count
    settle(journal)
    page = journal.search("needle", limit=100)
    assert (len(page.hits), page.unindexed, page.complete) == (count, 0, True)


def test_a_file_that_is_missing_is_made_anew(path: Path) -> None:
    """Deleted between two runs, or under a process that has it open."""
    fill(path)
    for each in path.parent.glob("tenax.db-search*"):
        each.unlink()
    with tenax.open(url_of(path)) as journal:
        check_rebuilt(journal)
        for each in path.parent.glob("tenax.db-search*"):
            each.unlink()
        check_rebuilt(journal)
        begin(journal, say("needle more"))
        check_rebuilt(journal, 51)


@pytest.mark.parametrize(
    "damage",
    ["no database", "first page", "a page within", "cut off", "empty", "other tables"],
)
def test_a_file_that_is_damaged_is_made_anew(path: Path, damage: str) -> None:
    """Whatever stands there, everything is found, and the journal is as it was."""
    fill(path)
    file = words_file(path)
    whole = apsw.Connection(str(file))
    whole.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    whole.close()
    data = bytearray(file.read_bytes())
    match damage:
        case "no database":
            file.write_bytes(b"not at all" * 1000)
        case "first page":
            file.write_bytes(data[:100] + b"\xff" * 3996 + data[4096:])
        case "a page within":
            file.write_bytes(data[: 4096 * 4] + b"\xff" * (len(data) - 4096 * 4))
        case "cut off":
            file.write_bytes(data[: len(data) // 8192 * 4096])
        case "empty":
            file.write_bytes(b"")
        case _:
            file.unlink()
            other = apsw.Connection(str(file))
            other.execute("create table t (x)")
            other.close()
    with tenax.open(url_of(path)) as journal:
        assert len(found(journal, "needle")) <= 50
        settle_even_if_damaged(journal)
        check_rebuilt(journal)


def settle_even_if_damaged(journal: Journal) -> None:
    """A round that meets the damage fails; the next one makes the file anew. The reader's thread does the same."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found(journal, "needle hay")
        wait_until_indexed(journal)
        if journal.search("needle", limit=100).complete:
            return


def test_a_file_of_an_older_version_is_made_anew_and_a_newer_one_left_alone(
    path: Path,
) -> None:
    """An older Tenax beside a newer one reads the journal instead, and does not take the newer one's file away."""
    fill(path)
    for version, left_alone in ((0, False), (99, True)):
        other = apsw.Connection(str(words_file(path)))
        other.pragma("user_version", version)
        generation = other.execute("select generation from meta").fetchall()
        other.close()
        with tenax.open(url_of(path)) as journal:
            assert len(found(journal, "needle")) == 50
            if left_alone:
                begin(journal, say("needle more"))
                assert len(found(journal, "needle")) == 51
            else:
                check_rebuilt(journal)
        other = apsw.Connection(str(words_file(path)))
        assert (
            other.execute("select generation from meta").fetchall() == generation
        ) is left_alone
        other.close()


def test_a_place_where_no_file_can_be_made_stops_nothing(path: Path) -> None:
    """Messages are stored, and found by reading them."""
    words_file(path).mkdir()
    with tenax.open(url_of(path)) as journal:
        conversation = begin(journal, say("needle"), say(SECRET))
        time.sleep(0.7)
        assert found(journal, "needle") == ["needle"]
        journal.erase(conversation, [3], by="ada")
        assert found(journal, SECRET) == []


class _Boot(SystemClock):
    """The machine after another boot."""

    def __init__(self, boot: str) -> None:
        self._boot = boot

    def boot_id(self) -> str:
        return self._boot


def test_a_file_that_a_power_loss_threw_back_is_brought_up_to_date(
    path: Path, tmp_path: Path
) -> None:
    """The journal's cursor may be ahead of the file then; nothing is missing."""
    with tenax.open(url_of(path), clock=_Boot("one")) as journal:
        conversation = begin(journal, say("needle 0"))
        settle(journal)
    old = {
        name: (tmp_path / name).read_bytes()
        for name in ("tenax.db-search", "tenax.db-search-wal")
    }
    with tenax.open(url_of(path), clock=_Boot("one")) as journal:
        journal.append(conversation, [say("needle 1")])
        settle(journal)
    for name, data in old.items():
        (tmp_path / name).write_bytes(data)
    with tenax.open(url_of(path), clock=_Boot("two")) as journal:
        assert found(journal, "needle") == ["needle 1", "needle 0"]
        settle(journal)
        assert found(journal, "needle") == ["needle 1", "needle 0"]
        assert journal.search("needle").unindexed == 0


def test_a_journal_that_was_put_back_is_indexed_as_it_is_now(
    path: Path, tmp_path: Path
) -> None:
    """A file that knows messages which a restored journal does not have does not hide those that came instead."""
    with tenax.open(url_of(path), clock=_Boot("one")) as journal:
        conversation = begin(journal, say("needle 0"))
        settle(journal)
    backup = tmp_path / "backup"
    backup.mkdir()
    for name in ("tenax.db", "tenax.db-wal"):
        shutil.copy(tmp_path / name, backup)
    with tenax.open(url_of(path), clock=_Boot("one")) as journal:
        journal.append(conversation, [say("needle lost"), say("needle lost as well")])
        settle(journal)
    for name in ("tenax.db", "tenax.db-wal"):
        shutil.copy(backup / name, tmp_path)
    Path(f"{path}-shm").unlink(missing_ok=True)
    with tenax.open(url_of(path), clock=_Boot("two")) as journal:
        journal.store.accept_loss()
        journal.append(conversation, [say("needle new"), say("needle newer")])
        for _ in range(2):
            assert found(journal, "needle") == [
                "needle newer",
                "needle new",
                "needle 0",
            ]
            settle(journal)


def test_the_file_does_not_stay_larger_than_its_words(path: Path) -> None:
    """What is forgotten gives its room back."""
    with tenax.open(url_of(path)) as journal:
        conversation = begin(
            journal, *[say(f"{os.urandom(400).hex()}") for _ in range(300)]
        )
        settle(journal)
        begin(journal, say("needle"))
        journal.delete(conversation)
        settle(journal)
        assert found(journal, "needle") == ["needle"]
        assert words_file(path).stat().st_size < 200_000


# -- PostgreSQL --------------------------------------------------------------------------------------------


def test_without_pg_trgm_the_answers_are_the_same(postgres_url: str) -> None:
    """A server that lacks the extension, or a user who may not add it: slower, and `doctor` can say so."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("create role plain login")
        admin.execute("create schema plain authorization plain")
    try:
        url = (
            postgres_url.replace("postgres@", "plain@")
            + "?options=-csearch_path%3Dplain"
        )
        with tenax.open(url, user="ada") as journal:
            begin(journal, *map(say, ODD), name="c")
            begin(journal, *[say(f"hay {n}") for n in range(6000)])
            settle(journal)
            assert [note for note in journal.words.notes if "pg_trgm" in note]
            assert found(journal, "nal_v2") == [ODD[0]]
            assert found(journal, "喜欢鱼") == [ODD[2]]
            assert found(journal, "nothing-has-this") == []
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute("drop owned by plain cascade")
            admin.execute("drop role plain")


def test_a_postgresql_search_opens_no_sqlite(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words are looked up where the journal is."""
    monkeypatch.setattr(apsw, "Connection", None)
    with tenax.open(postgres_url, user="ada") as journal:
        begin(journal, say("needle"))
        settle(journal)
        assert found(journal, "needle") == ["needle"]
        assert journal.words.notes == []
        journal.delete(journal.search("needle").hits[0].conversation)


def test_a_phrase_is_found_behind_many_that_only_have_its_words(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an index proposes and the text does not bear out takes no place on the page."""
    monkeypatch.setattr("tenax.journal.search.postgres.WINDOWS", (5, 10))
    monkeypatch.setattr("tenax.journal.search.postgres.LOOKED_UP", 20)
    begin(journal, *[say(f"a blue whale {n} 猫 喜") for n in range(8)], name="c")
    for _ in range(2):
        begin(
            journal,
            *[say(f"blue, not a whale {n} 喜 of 猫 whaleblue") for n in range(60)],
        )
    settle(journal)
    for words in ('"blue whale"', '"猫 喜"', 'blue* "a blue"', '"blue whale 0" blue'):
        for limit in (2, 5, 100):
            hits = every_hit(journal, words, limit)
            assert [hit.conversation for hit in hits] == ["c"] * (
                1 if "0" in words else 8
            ), words
    assert len(journal.search('"blue whale"', conversation="c", limit=5).hits) == 5


def test_rare_words_are_found_behind_many_newer_messages(journal: Journal) -> None:
    """Past what is walked one by one, the index is asked: words, pieces, short words and other scripts."""
    begin(journal, say("the Needle of go 猫 喜欢"))
    for _ in range(12):
        begin(journal, *[say(f"hay {n} of it") for n in range(400)])
    settle(journal)
    for words in (
        "needle",
        "eedle",
        "go",
        "猫",
        "喜欢",
        "needle of",
        "go needle",
        '"needle of go"',
        "of 猫",
    ):
        assert found(journal, words) == ["the Needle of go 猫 喜欢"], words
    assert found(journal, "needle hay") == []
    assert len(journal.search("hay", limit=50).hits) == 50


@pytest.mark.parametrize("gap", [1, 267, 351, 1000])
@pytest.mark.parametrize("words", ["hay", '"it hay"', '"of it"'])
def test_a_search_whose_time_is_over_gets_on_all_the_same(
    path: Path, words: str, gap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that came in one instant stand far from their time in the index; what they hide is not passed over."""
    monkeypatch.setattr(search_sqlite, "LOOK_AT_ONCE", 10)
    clock, timing = SimClock(), Timing(search_seconds=-1.0)
    with tenax.open(url_of(path), user="ada", clock=clock, timing=timing) as journal:
        for part in range(4):
            begin(journal, *[say(f"hay {part} {n} of it") for n in range(300)])
            clock.set_wall(clock.now_us() + 64 * gap)
        settle(journal)
        page = journal.search(words, limit=50)
        seen = len(page.hits)
        while (before := page.before) is not None:
            page = journal.search(words, before=before, limit=50)
            seen += len(page.hits)
            assert page.before != before
        assert seen == (0 if "it hay" in words else 1200)


def test_a_search_whose_time_is_over_begins_below_where_it_began(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few ids it has passed."""
    monkeypatch.setattr(search_sqlite, "LOOK_AT_ONCE", 10)
    clock, timing = SimClock(), Timing(search_seconds=-1.0)
    with tenax.open(url_of(path), user="ada", clock=clock, timing=timing) as journal:
        name = begin(journal)
        for n in range(40):
            clock.set_wall(clock.now_us() + 64)
            journal.append(name, [say(f"hay {n}")])
        clock.set_wall(clock.now_us() + 64)
        journal.append(name, [say(f"hay {n}") for n in range(9)])
        settle(journal)
        page = journal.search("hay", limit=100)
        seen = len(page.hits)
        while (before := page.before) is not None:
            page = journal.search("hay", before=before, limit=100)
            seen += len(page.hits)
            assert page.before != before
        assert seen == 49

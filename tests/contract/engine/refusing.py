"""What cannot be stored: a named error with a sentence, nothing stored, nothing lost."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, cast

import pytest

from tenax.errors import (
    ConversationExists,
    InvalidInput,
    NoSuchConversation,
    SegmentMoved,
    SessionEnded,
    StoreMisused,
    TooLarge,
    UnknownKind,
)
from tenax.events import (
    BODY_BYTES_MAX,
    ContentErased,
    ContextCompacted,
    ConversationOpened,
    ConversationTitled,
    Event,
    MessageAssistant,
    MessageTool,
    MessageUser,
    ReplyDelta,
    RunFinished,
    RunLate,
    RunStarted,
    SegmentEnded,
    Unknown,
)
from tenax.journal import Journal
from tenax.journal.base import Dedup, RawEvent, Reader
from tenax.parts import Text, ToolResult
from tests.contract.engine.base import (
    Engine,
    answer,
    begin,
    every_call,
    refused,
    said,
    say,
    take,
)

BAD_TEXTS = ("a\x00b", "\x00", "half \ud83d", "\udc00", "\ud800\ud800")


class _Text(str):
    """Text that is not exactly `str`, as of numpy."""

    __slots__ = ()


BAD_IDS: tuple[Any, ...] = (
    "",
    " \x00",
    "a\nb",
    "a\tb",
    "\x7f",
    "\u200b",
    "x" * 201,
    "\ud800",
    None,
    7,
    b"c",
    _Text("c"),
)


class _Strange(Event, frozen=True):
    """An event of a version to come."""

    kind: ClassVar[str] = "strange.thing"
    text: str = ""


class _Impostor(Event, frozen=True):
    """Calls itself a known kind."""

    kind: ClassVar[str] = "message.user"
    text: str = ""


class RefuseContract(Engine):
    """Refusing."""

    @pytest.mark.parametrize(
        "event",
        [_Strange("x"), _Impostor("x"), Unknown("message.user", b"{}"), {}, None],
    )
    def test_an_unknown_kind_is_refused(self, journal: Journal, event: Event) -> None:
        """An event that this version does not know is not appended, alone or after a known one."""
        name = begin(journal)
        for events in ([event], [say("fine"), event]):
            with refused(journal, name, UnknownKind):
                journal.append(name, events)

    @pytest.mark.parametrize(
        "event",
        [
            MessageUser("not a list"),  # type: ignore[arg-type]
            MessageUser([Text(7)]),  # type: ignore[arg-type]
            MessageUser([{"type": "nonsense"}]),  # type: ignore[list-item]
            MessageAssistant([Text("x")], request="first"),  # type: ignore[arg-type]
            ConversationTitled(7),  # type: ignore[arg-type]
            RunFinished("exploded"),  # type: ignore[arg-type]
            ReplyDelta("x", 0, "text"),  # type: ignore[arg-type]
            RunLate(0, "nonsense", {}),  # type: ignore[arg-type]
            MessageUser([Text("x")], extra={"it": object()}),
        ],
        ids=lambda event: event.kind,
    )
    def test_an_event_that_does_not_fit_its_schema_is_refused(
        self, journal: Journal, event: Event
    ) -> None:
        """A wrong type, an unknown part or a thing that is no JSON is refused before it is stored."""
        name = begin(journal)
        with refused(journal, name, InvalidInput):
            journal.append(name, [event], run="r-1")

    def test_an_empty_append_is_refused(self, journal: Journal) -> None:
        """There is nothing to store in it."""
        name = begin(journal)
        with refused(journal, name, InvalidInput):
            journal.append(name, [])

    @pytest.mark.parametrize("text", BAD_TEXTS, ids=ascii)
    def test_a_persons_text_that_is_no_text_is_refused(
        self, journal: Journal, text: str
    ) -> None:
        """NUL and lone surrogates from people are refused, wherever they stand in the event."""
        name = begin(journal)
        events: list[Event] = [
            say(text),
            MessageUser([Text("x")], author=text),
            MessageUser([ToolResult("c", text)]),
            MessageUser([Text("x")], extra={"deep": [{"er": text}]}),
            MessageUser([Text("x")], extra={text: 1}),
            ConversationTitled(text),
            SegmentEnded(f"s-{name}", text),
            ContentErased([1], by=text),
        ]
        for event in events:
            with refused(journal, name, InvalidInput):
                journal.append(name, [event])

    @pytest.mark.parametrize("text", BAD_TEXTS, ids=ascii)
    def test_a_models_text_that_is_no_text_is_repaired_and_marked(
        self, journal: Journal, text: str
    ) -> None:
        """Output of models and tools is never lost for its characters: they become U+FFFD, and the event says so."""
        name = begin(journal)
        stored = journal.append(
            name,
            [
                MessageAssistant([Text(text)], extra={"note": text}),
                MessageTool([ToolResult("c", f"before {text} after")]),
                ReplyDelta(1, 0, text),
            ],
        )
        spoken, tool, piece = (each.event for each in stored)
        assert isinstance(spoken, MessageAssistant)
        assert isinstance(tool, MessageTool)
        assert isinstance(piece, ReplyDelta)
        fixed = "".join(
            "\ufffd" if char == "\x00" or "\ud800" <= char <= "\udfff" else char
            for char in text
        )
        assert (spoken.parts, spoken.extra, spoken.repaired) == (
            [Text(fixed)],
            {"note": fixed},
            True,
        )
        assert (tool.parts, tool.repaired) == (
            [ToolResult("c", f"before {fixed} after")],
            True,
        )
        assert piece.text == fixed

    def test_good_text_is_not_marked_as_repaired(self, journal: Journal) -> None:
        """A backslash, a written-out escape and a whole pair of surrogates are text."""
        text = "\\u0000 \\ud800 \U0001f600 \x01"
        name = begin(journal, say(text), answer(text))
        assert said(journal, name) == [text, text]
        spoken = journal.read(name)[-1].event
        assert isinstance(spoken, MessageAssistant)
        assert not spoken.repaired

    def test_an_event_that_is_too_large_is_refused(self, journal: Journal) -> None:
        """One event holds four mebibytes; larger things are blobs."""
        name = begin(journal)
        room = BODY_BYTES_MAX - len('{"parts":[{"type":"text","text":""}]}')
        with refused(journal, name, TooLarge):
            journal.append(name, [say("x" * (room + 1))])
        journal.append(name, [say("x" * room)])
        assert len(journal.read(name, after=1)[0].body or b"") == BODY_BYTES_MAX

    @pytest.mark.parametrize("bad", BAD_IDS, ids=ascii)
    def test_a_name_that_can_be_none_finds_nothing(
        self,
        journal: Journal,
        bad: Any,
    ) -> None:
        """Looking for a segment, its children, a run, a blob or the holder of a lease by such a name is no error."""
        name = begin(journal)
        assert journal.segment(bad) is None
        assert journal.children(bad) == []
        assert journal.run(name, bad) is None
        assert journal.get_blob(bad) is None
        assert journal.holder(bad) is None

    @pytest.mark.parametrize("bad", BAD_IDS, ids=ascii)
    def test_an_id_that_is_no_id_is_refused(self, journal: Journal, bad: Any) -> None:
        """Ids are short and printable: conversation, segment, run, source, dedup id, lease, holder, reader, user."""
        name = begin(journal)
        opening = ConversationOpened("ada", "s-fine")
        calls: list[Callable[[], object]] = [
            lambda: journal.append(bad, [opening]),
            lambda: journal.append("c-fine", [ConversationOpened("ada", bad)]),
            lambda: journal.append(name, [ContextCompacted(f"s-{name}", bad, 1, 1, 1)]),
            lambda: journal.append(name, [say("x")], dedup=Dedup(bad, "id")),
            lambda: journal.append(name, [say("x")], dedup=Dedup("source", bad)),
            lambda: journal.load(bad, opening, []),
            lambda: journal.claim(bad, "holder", 60),
            lambda: journal.claim("lease", bad, 60),
            lambda: journal.read(bad),
            lambda: journal.head(bad),
            lambda: journal.messages(bad),
            lambda: journal.delete(bad),
            lambda: journal.fork(bad),
            lambda: journal.behind(Reader(bad)),
        ]
        if bad is not None:  # no run, and no user but the process itself, are allowed
            calls += [
                lambda: journal.append(name, [RunStarted()], run=bad),
                lambda: journal.of(bad),
            ]
        for call in calls:
            with refused(journal, name, InvalidInput):
                call()

    def test_a_number_that_is_no_number_is_refused(self, journal: Journal) -> None:
        """Seqs are whole numbers from 0 on, and a page has at least one row and at most ten thousand."""
        name = begin(journal, say("a"))
        reader = Reader("r")
        lease = take(journal, "reader:r")
        bad: Any
        for bad in (-1, 1.5, "1", None, 1 << 40, True):
            calls: list[Callable[[], object]] = [
                lambda bad=bad: journal.read(name, after=bad),
                lambda bad=bad: journal.messages(name, after=bad),
                lambda bad=bad: journal.fact(name, bad),
                lambda bad=bad: journal.erase(name, [bad], by="me"),
                lambda bad=bad: journal.advance(reader, name, bad, was=0, lease=lease),
                lambda bad=bad: journal.advance(reader, name, 1, was=bad, lease=lease),
            ]
            if bad is not None:
                calls += [
                    lambda bad=bad: journal.messages(name, upto=bad),
                    lambda bad=bad: journal.rows(name, before=bad),
                    lambda bad=bad: journal.open(name, before=bad),
                    lambda bad=bad: journal.fork(name, upto=bad),
                ]
            for call in calls:
                with refused(journal, name, InvalidInput):
                    call()
        for bad in (0, -1, 10_001, "1", None, 2.5):
            for call in (
                lambda bad=bad: journal.read(name, limit=bad),
                lambda bad=bad: journal.rows(name, limit=bad),
                lambda bad=bad: journal.open(name, limit=bad),
                lambda bad=bad: journal.conversations(limit=bad),
                lambda bad=bad: journal.behind(reader, limit=bad),
            ):
                with refused(journal, name, InvalidInput):
                    call()

    @pytest.mark.parametrize(
        "bad", [b"", b"x" * 16, b"\xff" * 16, "text", bytes(16), 7], ids=repr
    )
    def test_an_append_id_that_the_store_cannot_have_made_is_refused(
        self, journal: Journal, bad: bytes
    ) -> None:
        """An append id is one that the journal made."""
        name = begin(journal)
        with refused(journal, name, InvalidInput):
            journal.append(name, [say("x")], append_id=bad)

    def test_an_unknown_conversation_is_refused(self, journal: Journal) -> None:
        """Nothing is written to, read from or done with a conversation that is not there."""
        begin(journal)
        for call in every_call(journal, "c-none"):
            with refused(journal, None, NoSuchConversation):
                call()

    def test_an_id_that_is_taken_is_refused(self, journal: Journal) -> None:
        """A conversation is opened once, and a segment's name is used once."""
        name = begin(journal, say("a"))
        with refused(journal, name, ConversationExists):
            journal.append(name, [ConversationOpened("ada", "s-2")])
        with refused(journal, name, ConversationExists):
            journal.load(name, ConversationOpened("ada", "s-3"), [])
        with refused(journal, None, ConversationExists):
            journal.append("c-other", [ConversationOpened("ada", f"s-{name}")])
        with refused(journal, name, InvalidInput):
            journal.append(name, [say("b"), ConversationOpened("ada", "s-4")])

    def test_a_conversation_is_opened_for_its_own_user(self, journal: Journal) -> None:
        """A handle opens conversations of its user only."""
        with refused(journal, None, InvalidInput):
            journal.append("c-theirs", [ConversationOpened("bob", "s-theirs")])

    def test_an_ended_segment_takes_no_messages(self, journal: Journal) -> None:
        """After its end a conversation takes titles, but no message, until it is forked."""
        name = begin(journal, say("a"))
        journal.append(name, [SegmentEnded(f"s-{name}", "done")])
        for event in (say("b"), answer("c")):
            with refused(journal, name, SessionEnded):
                journal.append(name, [event])
        with refused(journal, name, SegmentMoved) as moved:
            journal.append(name, [SegmentEnded(f"s-{name}", "again")])
        assert moved.value.by is None
        journal.append(name, [ConversationTitled("still here")])
        assert said(journal, name) == ["a"]

    def test_only_the_open_segment_ends(self, journal: Journal) -> None:
        """A segment that is not the head cannot be ended."""
        name = begin(journal)
        with refused(journal, name, SegmentMoved) as moved:
            journal.append(name, [SegmentEnded("s-other", "done")])
        assert moved.value.by == f"s-{name}"

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 8 * 86400])
    def test_a_lease_of_no_sensible_length_is_refused(
        self, journal: Journal, seconds: float
    ) -> None:
        """A lease lasts for more than nothing and at most a week."""
        with refused(journal, None, InvalidInput):
            journal.claim("x", "me", seconds)
        lease = take(journal, "x")
        with refused(journal, None, InvalidInput):
            journal.renew(lease, seconds=seconds)

    def test_an_import_is_checked_too(self, journal: Journal) -> None:
        """What is loaded carries unknown kinds, but a known kind has to be what it says."""
        opened = ConversationOpened("ada", "s-in")
        for entry in (
            RawEvent("message.user", 5, None, b'{"parts": 7}'),
            RawEvent("message.user", 5, None, b"not json"),
            RawEvent("", 5, None, b"{}"),
            RawEvent("x" * 201, 5, None, b"{}"),
            RawEvent("message.user", 5, "a\nb", b'{"parts":[]}'),
            RawEvent("message.user", -5, None, b'{"parts":[]}'),
            RawEvent("message.user", 1 << 63, None, b'{"parts":[]}'),
            RawEvent("later.kind", 5, None, b'no json, but "blob"'),
            RawEvent("conversation.rewound", 5, None, b'{"to":7}'),
            RawEvent("message.user", True, None, b'{"parts":[]}'),
            RawEvent("message.user", 5, cast("Any", 0), b'{"parts":[]}'),
            RawEvent("message.user", 5, cast("Any", False), b'{"parts":[]}'),
            RawEvent("message.user", 5, None, cast("Any", '{"parts":[]}')),
            RawEvent(cast("Any", []), 5, None, b"{}"),
            RawEvent(
                "message.user",
                5,
                None,
                b'{"parts":[{"type":"text","text":"a\\u0000b"}]}',
            ),
        ):
            with refused(journal, None, InvalidInput):
                journal.load("c-in", opened, [entry])
        later = RawEvent("later.kind", 5, None, b'{"any": "thing"}')
        journal.load(
            "c-in", opened, [later, RawEvent("message.user", 6, None, b'{"parts":[]}')]
        )
        first = journal.read("c-in", after=1)[0]
        assert (first.kind, first.at, first.body) == (
            "later.kind",
            5,
            b'{"any": "thing"}',
        )

    def test_a_handle_of_no_user_reaches_no_conversation(
        self, journal: Journal
    ) -> None:
        """The process's own handle sees what readers owe, and the contents of nobody."""
        name = begin(journal, say("a"))
        nobody = journal.of(None)
        for call in (
            lambda: nobody.read(name),
            lambda: nobody.append(name, [say("b")]),
            nobody.conversations,
            lambda: nobody.claim("x", "me", 60),
            lambda: nobody.put_blob(b"x"),
            lambda: nobody.search("a"),
        ):
            with refused(journal, name, InvalidInput):
                call()

    def test_after_closing_every_call_is_refused(self, journal: Journal) -> None:
        """A closed journal says that it is closed; closing it twice is fine."""
        name = begin(journal, say("a"))
        lease = take(journal, "x")
        journal.close()
        for call in (
            lambda: journal.append(name, [say("b")]),
            lambda: journal.read(name),
            lambda: journal.claim("y", "me", 60),
            lambda: journal.renew(lease),
            journal.conversations,
            lambda: journal.put_blob(b"x"),
            lambda: journal.behind(Reader("r")),
            lambda: journal.of("bob").conversations(),
        ):
            with pytest.raises(StoreMisused, match="closed"):
                call()
        journal.close()

    def test_after_a_fork_of_the_process_the_copy_is_refused(
        self, journal: Journal
    ) -> None:
        """A child process may not use the journal that its parent opened, and the parent's goes on."""
        name = begin(journal, say("a"))
        with warnings.catch_warnings():
            # that fork with threads is unwise is the point
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            told = []
            try:
                for call in (
                    lambda: journal.append(name, [say("b")]),
                    lambda: journal.read(name),
                ):
                    with pytest.raises(StoreMisused, match="fork") as caught:
                        call()
                    told.append(caught)
            finally:
                os._exit(0 if len(told) == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        journal.append(name, [say("c")])
        assert said(journal, name) == ["a", "c"]

"""Random operations on an engine beside the journal in plain Python: after every step the two agree."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import tenax
from tenax.errors import TenaxError
from tenax.events import (
    ContextCompacted,
    ContextSummarised,
    ConversationArchived,
    ConversationCleared,
    ConversationOpened,
    ConversationPinned,
    ConversationRestored,
    ConversationRewound,
    ConversationTitled,
    Event,
    MemoryDue,
    MessageAssistant,
    MessagePartial,
    MessageSystem,
    MessageTool,
    MessageUser,
    MessageWithdrawn,
    RunFinished,
    RunLate,
    RunSealed,
    RunStarted,
    SegmentEnded,
)
from tenax.journal import Journal
from tenax.journal.base import Dedup, Expect, Lease, Reader, Recorded
from tenax.journal.verify.store import verify
from tenax.parts import Text
from tenax.testing import SimClock, memory
from tests.contract.engine.base import delta, say, words
from tests.support.model import Conversation, Model

USERS = st.sampled_from(["ada", "ada", "ada", "bob"])
NAMES = st.sampled_from(["c-1", "c-1", "c-1", "c-2", "c-3"])
"""Most of it happens in one place, so that much happens there."""
SEQS = st.integers(0, 30)
BACK = st.integers(0, 6)
"""Counted from the end, because that is where things happen."""
WORDS = st.sampled_from(["yes", "no", "perhaps"])
READERS = [
    Reader("index", "facts", "beginning"),
    Reader("sender", "facts", "now"),
    Reader("memory", "turns", "now"),
    Reader("commit", "due", "now"),
]


class Beside(RuleBasedStateMachine):
    """The journal and its model."""

    make: ClassVar[Callable[..., Journal]]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tenax-stateful-"))
        self.clock = SimClock()
        self.journal = type(self).make(self.folder, self.clock)
        self.users = {user: self.journal.of(user) for user in ("ada", "bob")}
        self.model = Model()
        self.names = 0
        self.seen: dict[tuple[str, str], int] = {}
        self.touched: set[str] = set()
        self.repeats: list[tuple[str, str, bytes, list[Event], list[int]]] = []
        self.leases: dict[tuple[str, str], tuple[Lease, float]] = {}
        self.terms: dict[tuple[str, str], int] = {}
        self.since = self.clock.monotonic()

    def teardown(self) -> None:
        problems = [str(problem) for problem in verify(self.journal).problems]
        self.journal.close()
        shutil.rmtree(self.folder)
        assert problems == []

    # -- both at once ----------------------------------------------------------------------------------------

    def both(self, real: Callable[[], Any], model: Callable[[], Any]) -> Any:
        """Do it on both sides. They agree on the error, or on there being none. What the journal returned."""
        try:
            expected: Any = model()
        except TenaxError as error:
            with pytest.raises(type(error)) as caught:
                real()
            told = caught.value
            assert (type(told), getattr(told, "by", None)) == (  # noqa: PT017
                type(error),
                getattr(error, "by", None),
            )
            return None
        result = real()
        if expected is not None:
            assert result == expected
        return result

    def append(
        self,
        user: str,
        name: str,
        event: Event,
        kind: str,
        run: str | None = None,
        **fields: Any,
    ) -> None:
        """One event, on both sides."""
        append_id = self.journal.ids.append()

        def real() -> list[int]:
            stored = self.users[user].append(
                name, [event], run=run, append_id=append_id
            )
            return [each.seq for each in stored]

        def model() -> list[int]:
            return [self.model.get(user, name).append(kind, run, **fields).seq]

        seqs = self.both(real, model)
        if seqs is not None and kind != "delta":
            self.repeats.append((user, name, append_id, [event], seqs))

    def conversation(self, user: str, name: str) -> Conversation | None:
        return self.model.conversations.get((user, name))

    def head(self, user: str, name: str) -> int:
        found = self.conversation(user, name)
        return found.head if found else 3

    def fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}-{self.names}"

    # -- what people and runs do -----------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        for user, name in (("ada", "c-1"), ("ada", "c-2"), ("bob", "c-1")):
            self.open(user, name, again=False)

    @rule(user=USERS, name=NAMES, again=st.booleans())
    def open(self, user: str, name: str, again: bool) -> None:
        segment = "s-same" if again else self.fresh("s")
        self.both(
            lambda: (
                self.users[user].append(name, [ConversationOpened(user, segment)])
                and None
            ),
            lambda: self.model.open(user, name, segment) and None,
        )

    @rule(
        user=USERS,
        name=NAMES,
        text=WORDS,
        ask=st.booleans(),
        author=st.sampled_from(["", "ada", "eve"]),
    )
    def say(self, user: str, name: str, text: str, ask: bool, author: str) -> None:
        event = MessageUser([Text(text)], author=author, ask=ask)
        self.append(user, name, event, "user", text=text, ask=ask, author=author)

    @rule(
        user=USERS,
        name=NAMES,
        text=WORDS,
        back=st.none() | BACK,
        run=st.sampled_from([None, "r-1", "r-2"]),
    )
    def answer(
        self, user: str, name: str, text: str, back: int | None, run: str | None
    ) -> None:
        request = 0 if back is None else max(0, self.head(user, name) - back)
        event = MessageAssistant([Text(text)], request=request)
        self.append(user, name, event, "assistant", run, text=text, request=request)

    @rule(user=USERS, name=NAMES, back=BACK)
    def seal_partial(self, user: str, name: str, back: int) -> None:
        request = max(1, self.head(user, name) - back)
        self.append(
            user,
            name,
            MessagePartial([Text("cut")], request),
            "part",
            text="cut",
            request=request,
        )

    @rule(user=USERS, name=NAMES, back=BACK)
    def stream(self, user: str, name: str, back: int) -> None:
        request = max(0, self.head(user, name) - back)
        event = delta(request, 0, "piece")
        self.both(
            lambda: [each.seq for each in self.users[user].append(name, [event])],
            lambda: [self._stream(user, name, request)],
        )

    def _stream(self, user: str, name: str, request: int) -> int:
        conversation = self.model.get(user, name)
        conversation.head += 1
        conversation.entries.append(_partial(conversation.head, request))
        return conversation.head

    @rule(user=USERS, name=NAMES, tool=st.booleans())
    def others_speak(self, user: str, name: str, tool: bool) -> None:
        event = MessageTool([Text("out")]) if tool else MessageSystem([Text("out")])
        self.append(user, name, event, "tool" if tool else "system", text="out")

    @rule(user=USERS, name=NAMES, title=st.none() | WORDS, derived=st.booleans())
    def title(self, user: str, name: str, title: str | None, derived: bool) -> None:
        self.append(
            user,
            name,
            ConversationTitled(title, derived=derived),
            "titled",
            title=title,
            derived=derived,
        )

    @rule(user=USERS, name=NAMES, on=st.booleans(), pin=st.booleans())
    def flag(self, user: str, name: str, on: bool, pin: bool) -> None:
        event = ConversationPinned(on) if pin else ConversationArchived(on)
        self.append(user, name, event, "pinned" if pin else "archived", on=on)

    @rule(
        user=USERS,
        name=NAMES,
        run=st.sampled_from(["r-1", "r-2"]),
        inputs=st.lists(st.integers(0, 9), max_size=3),
    )
    def start(self, user: str, name: str, run: str, inputs: list[int]) -> None:
        self.append(user, name, RunStarted(inputs), "started", run, inputs=inputs)

    @rule(user=USERS, name=NAMES, run=st.sampled_from(["r-1", "r-2"]))
    def finish(self, user: str, name: str, run: str) -> None:
        self.append(user, name, RunFinished("completed"), "finished", run)

    @rule(user=USERS, name=NAMES, back=st.integers(-1, 6))
    def boundary(self, user: str, name: str, back: int) -> None:
        upto = max(0, self.head(user, name) - back)
        self.append(user, name, MemoryDue("s", upto, "switch"), "due", upto=upto)

    @rule(user=USERS, name=NAMES, sealed=st.booleans())
    def late(self, user: str, name: str, sealed: bool) -> None:
        event = RunSealed() if sealed else RunLate(0, "token", {"text": "late"})
        self.append(user, name, event, "sealed" if sealed else "late", "r-0")

    # -- edits -----------------------------------------------------------------------------------------------

    @rule(user=USERS, name=NAMES, back=BACK)
    def rewind(self, user: str, name: str, back: int) -> None:
        to = max(0, self.head(user, name) - back)
        self.append(user, name, ConversationRewound(to), "rewound", to=to)

    @rule(user=USERS, name=NAMES)
    def clear(self, user: str, name: str) -> None:
        self.append(user, name, ConversationCleared(), "cleared")

    @rule(user=USERS, name=NAMES, back=BACK)
    def restore(self, user: str, name: str, back: int) -> None:
        found = self.conversation(user, name)
        edits = (
            [fact.seq for fact in found.facts() if fact.kind in {"rewound", "cleared"}]
            if found
            else []
        )
        of = (
            edits[-1 - back % len(edits)]
            if edits and back < 5
            else self.head(user, name) - back
        )
        self.append(
            user, name, ConversationRestored(max(0, of)), "restored", of=max(0, of)
        )

    @rule(user=USERS, name=NAMES, right=st.booleans(), number=st.integers(0, 9))
    def withdraw(self, user: str, name: str, right: bool, number: int) -> None:
        found = self.conversation(user, name)
        waiting = found.waiting() if found and right else []
        of = waiting[number % len(waiting)] if waiting else number
        self.append(user, name, MessageWithdrawn(of), "withdrawn", of=of)

    @rule(user=USERS, name=NAMES, right=st.integers(0, 4))
    def end(self, user: str, name: str, right: int) -> None:
        found = self.conversation(user, name)
        segment = (found.segment() if found and right == 0 else None) or "s-none"
        self.append(
            user,
            name,
            SegmentEnded(segment, "done"),
            "ended",
            segment=segment,
            reason="done",
        )

    @rule(user=USERS, name=NAMES, back=BACK, since=BACK, wrong=st.integers(0, 8))
    def compact(self, user: str, name: str, back: int, since: int, wrong: int) -> None:
        found = self.conversation(user, name)
        head = self.head(user, name)
        parent = (found.segment() if found and wrong else None) or "s-none"
        child = "s-same" if wrong == 1 else self.fresh("s")
        covers_to, folded_to = max(0, head - back), max(0, head - since)
        events: list[Event] = [
            ContextSummarised([Text("summary")], covers_to),
            ContextCompacted(parent, child, head + 1, covers_to, folded_to),
        ]
        self.both(
            lambda: self.users[user].append(name, events) and None,
            lambda: self.model.compact(user, name, child, parent, covers_to, folded_to),
        )

    # -- things that are sent twice --------------------------------------------------------------------------

    @rule(user=USERS, name=NAMES, ident=st.sampled_from(["1", "2", "3"]), text=WORDS)
    def receive(self, user: str, name: str, ident: str, text: str) -> None:
        def real() -> tuple[str, int]:
            (stored,) = self.users[user].append(
                name, [say(text)], dedup=Dedup("web", ident)
            )
            return stored.conversation, stored.seq

        self.both(real, lambda: self.model.receive(user, name, ident, text))

    @precondition(lambda self: self.repeats)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        user, name, append_id, events, seqs = data.draw(st.sampled_from(self.repeats))
        run = (
            None
            if not (found := self.conversation(user, name))
            else _run_of(found, seqs[0])
        )

        def real() -> list[int]:
            stored = self.users[user].append(name, events, append_id=append_id, run=run)
            return [each.seq for each in stored]

        self.both(real, lambda: self.model.get(user, name) and seqs)

    @rule(user=USERS, name=NAMES, off=st.integers(-1, 1))
    def expect(self, user: str, name: str, off: int) -> None:
        head = self.head(user, name)

        def real() -> list[int]:
            stored = self.users[user].append(
                name, [ConversationTitled("x")], expect=Expect(head=head + off)
            )
            return [each.seq for each in stored]

        def model() -> list[int]:
            from tenax.errors import HeadMoved

            conversation = self.model.get(user, name)
            if off:
                raise HeadMoved("head")
            return [conversation.append("titled", None, title="x", derived=False).seq]

        self.both(real, model)

    # -- copies and removal ----------------------------------------------------------------------------------

    @rule(user=USERS, name=NAMES, back=BACK)
    def fork(self, user: str, name: str, back: int) -> None:
        upto = max(0, self.head(user, name) - back)
        if len(self.model.of(user)) > 5:
            return
        segment = self.fresh("s")

        def real() -> str:
            return self.users[user].fork(name, upto=upto, segment=segment)

        def model() -> None:
            self.model.get(user, name)

        made = self.both(real, model)
        if made is not None:
            second = self.users[user].head(made).segment or ""
            self.model.fork(user, name, upto, made, segment, second)

    @rule(
        user=USERS,
        data=st.data(),
        seqs=st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True),
    )
    def erase(self, user: str, data: st.DataObject, seqs: list[int]) -> None:
        name = data.draw(
            st.sampled_from([*(each.name for each in self.model.of(user)), "c-none"])
        )
        self.both(
            lambda: self.users[user].erase(name, seqs, by="me").conversations,
            lambda: self.model.erase(user, name, seqs),
        )

    @rule(user=USERS, data=st.data(), sure=st.integers(0, 3))
    def delete(self, user: str, data: st.DataObject, sure: int) -> None:
        if sure:
            return
        name = data.draw(
            st.sampled_from([*(each.name for each in self.model.of(user)), "c-1"])
        )
        self.both(
            lambda: self.users[user].delete(name), lambda: self.model.delete(user, name)
        )

    @rule(user=USERS, name=NAMES)
    def prune(self, user: str, name: str) -> None:
        self.touched.add(name)
        self.both(
            lambda: self.users[user].prune(name),
            lambda: self.model.get(user, name).prune(),
        )

    # -- readers and leases ----------------------------------------------------------------------------------

    @rule(user=USERS, data=st.data(), reader=st.sampled_from(READERS), back=BACK)
    def advance(
        self, user: str, data: st.DataObject, reader: Reader, back: int
    ) -> None:
        journal = self.users[user]
        journal.behind(reader)
        self.model.meet(reader.name, reader.follows, reader.start)
        found = self.model.of(user)
        if not found:
            return
        conversation = data.draw(st.sampled_from(found))
        at = self.model.cursors[reader.name, user, conversation.name]
        to = max(at, conversation.head - back)
        lease = journal.claim(f"reader:{reader.name}", "me", 60, take_over=True)
        assert lease is not None
        journal.advance(reader, conversation.name, to, was=at, lease=lease)
        self.model.cursors[reader.name, user, conversation.name] = to

    @rule(
        user=USERS,
        name=st.sampled_from(["run:1", "run:2"]),
        seconds=st.sampled_from([1, 50]),
        force=st.booleans(),
    )
    def claim(self, user: str, name: str, seconds: float, force: bool) -> None:
        now = self.clock.monotonic()
        held = self.leases.get((user, name))
        free = (
            held is None
            or force
            or (now > held[1] and now - self.since >= held[0].seconds)
        )
        lease = self.users[user].claim(name, "me", seconds, take_over=force)
        assert (lease is not None) == free
        if lease is not None:
            assert lease.term > self.terms.get((user, name), 0)
            self.terms[user, name] = lease.term
            self.leases[user, name] = (lease, now + seconds)

    @rule(user=USERS, name=st.sampled_from(["run:1", "run:2"]))
    def release(self, user: str, name: str) -> None:
        held = self.leases.pop((user, name), None)
        if held is not None:
            assert self.users[user].release(held[0])
            assert not self.users[user].release(held[0])

    @rule(seconds=st.sampled_from([0.5, 3, 60]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # -- and then --------------------------------------------------------------------------------------------

    @invariant()
    def they_agree(self) -> None:
        for user, journal in self.users.items():
            conversations = self.model.of(user)
            listed = {
                summary.conversation: summary
                for archived in (False, True)
                for summary in journal.conversations(archived=archived)
            }
            assert set(listed) == {conversation.name for conversation in conversations}
            for conversation in conversations:
                if (
                    conversation.head != self.seen.get((user, conversation.name))
                    or conversation.name in self.touched
                ):
                    self.agree(journal, conversation, listed[conversation.name])
                    self.seen[user, conversation.name] = conversation.head
            for reader in self.model.readers:
                known = next(each for each in READERS if each.name == reader)
                owed = {
                    (each.conversation, each.at, each.to)
                    for each in journal.behind(known)
                }
                assert owed == self.model.behind(reader, user)
                for conversation in conversations:
                    assert (
                        journal.cursor(known, conversation.name)
                        == self.model.cursors[reader, user, conversation.name]
                    )
        self.touched.clear()

    def agree(self, journal: Journal, model: Conversation, listed: Any) -> None:
        head = journal.head(model.name)
        expected = model.summary()
        shown = {
            field: getattr(listed, field) for field in ("title", "pinned", "archived")
        }
        fields = (
            "head",
            "facts",
            "turns",
            "due",
            "revision",
            "epoch",
            "run",
            "segment",
            "unanswered",
            "messages",
        )
        assert {
            **{field: getattr(head, field) for field in fields},
            **shown,
        } == expected
        assert (listed.messages, listed.running) == (
            expected["messages"],
            expected["run"] is not None,
        )
        assert (journal.owed(model.name), journal.shared(model.name)) == (
            model.owed(),
            model.shared(),
        )
        rows = model.rows()
        assert [
            (row.first, row.last, row.role)
            for row in journal.rows(model.name, limit=1000)
        ] == rows
        read = journal.read(model.name, limit=10_000)
        assert [each.seq for each in read] == [entry.seq for entry in model.entries]
        assert [each.erased for each in read] == [
            entry.erased for entry in model.entries
        ]
        assert [_text(message) for message in journal.messages(model.name)] == [
            None if message.erased else message.fields["text"]
            for message in model.messages()
        ]
        last = model.segments()[-1]
        live = [seq for _, seq, _ in rows if seq > last.covers_to]
        assert last.covers_to < head.context_from <= min([*live, head.head + 1])
        for segment in model.segments():
            found = journal.segment(segment.name)
            assert found is not None
            assert (found.conversation, found.parent, found.opened_seq, found.ended_seq, found.reason, found.covers_to) == (
                model.name, segment.parent, segment.opened, segment.ended, segment.reason, segment.covers_to,
            )  # fmt: skip
            assert found.messages == model.messages_in(segment)


def _partial(seq: int, request: int) -> Any:
    from tests.support.model import Entry

    return Entry(seq, "delta", None, {"request": request})


def _run_of(conversation: Conversation, seq: int) -> str | None:
    found = conversation.at(seq)
    return found.run if found else None


def _text(recorded: Recorded) -> str | None:
    return None if recorded.erased else words(recorded.event)


class MemoryBeside(Beside):
    make = staticmethod(lambda folder, clock: memory(clock=clock))


class SqliteBeside(Beside):
    make = staticmethod(
        lambda folder, clock: tenax.open(f"sqlite:///{folder}/tenax.db", clock=clock)
    )


@pytest.mark.parametrize(
    ("machine", "examples"),
    [(MemoryBeside, 60), (SqliteBeside, 15)],
    ids=["memory", "sqlite"],
)
def test_an_engine_and_its_model_agree_after_every_step(
    machine: type[Beside], examples: int
) -> None:
    """Transcript, counts, heads, list, segments and cursors, for two users, and a store that proves itself."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            # it traces every line
            phases=[phase for phase in Phase if phase is not Phase.explain],
            suppress_health_check=list(HealthCheck),
        ),
    )

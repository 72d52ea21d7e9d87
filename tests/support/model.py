"""The journal in plain Python, as one would explain it: lists that are walked from the beginning each time.

It shares no code with the engines. What they keep in rows and columns is worked out here from all the events, again for
every question. A call raises the error that the journal has to raise, and changes nothing then.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tenax.errors import (
    ConversationExists,
    DedupReused,
    Gone,
    HeadMoved,
    InvalidInput,
    NoSuchConversation,
    Refused,
    RunConflict,
    SegmentMoved,
    SessionEnded,
)

ROLES = {"user", "assistant", "system", "tool"}
STRUCTURE = {
    "opened",
    "pinned",
    "archived",
    "rewound",
    "cleared",
    "restored",
    "withdrawn",
    "ended",
    "compacted",
    "erased",
    "started",
    "finished",
    "sealed",
    "due",
}


@dataclasses.dataclass
class Entry:
    """An event. `kind` is the last word of the journal's own."""

    seq: int
    kind: str
    run: str | None
    fields: dict[str, Any]
    erased: bool = False

    @property
    def partial(self) -> bool:
        return self.kind == "delta"

    @property
    def role(self) -> str | None:
        if self.kind in ROLES or self.kind == "late":
            return self.kind
        return {"part": "partial", "summarised": "summary"}.get(self.kind)


@dataclasses.dataclass
class Segment:
    name: str
    parent: str | None
    opened: int
    covers_to: int
    ended: int | None = None
    reason: str | None = None


class Conversation:
    """One journal."""

    def __init__(self, user: str, name: str, segment: str) -> None:
        self.user = user
        self.name = name
        self.first_segment = segment
        self.entries: list[Entry] = []
        self.head = 0
        self.origin: tuple[str, dict[int, int]] | None = None
        """From which conversation it was forked, and where its events stand here."""

    # -- what the events say ---------------------------------------------------------------------------------

    def facts(self) -> list[Entry]:
        return [entry for entry in self.entries if not entry.partial]

    def at(self, seq: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.seq == seq), None)

    def killed(self) -> dict[int, int]:
        """Which row was taken away by which edit."""
        dead: dict[int, int] = {}
        for fact in self.facts():
            if fact.kind in {"rewound", "cleared"}:
                after = fact.fields.get("to", 0)
                for row in self.facts():
                    if row.role and after < row.seq < fact.seq and row.seq not in dead:
                        dead[row.seq] = fact.seq
            elif fact.kind == "withdrawn":
                dead[fact.fields["of"]] = fact.seq
            elif fact.kind == "restored":
                dead = {seq: by for seq, by in dead.items() if by != fact.fields["of"]}
        return dead

    def standing(self) -> list[Entry]:
        dead = self.killed()
        return [fact for fact in self.facts() if fact.role and fact.seq not in dead]

    def rows(self) -> list[tuple[int, int, str]]:
        return [
            (each.fields.get("request") or each.seq, each.seq, str(each.role))
            for each in self.standing()
        ]

    def messages(self) -> list[Entry]:
        return [each for each in self.standing() if each.role in ROLES]

    def run(self) -> str | None:
        last = [fact for fact in self.facts() if fact.kind in {"started", "finished"}][
            -1:
        ]
        return last[0].run if last and last[0].kind == "started" else None

    def unanswered(self) -> int:
        return min(self.waiting(), default=0)

    def waiting(self) -> list[int]:
        taken = {
            seq
            for fact in self.facts()
            if fact.kind == "started"
            for seq in fact.fields["inputs"]
        }
        return [
            message.seq
            for message in self.messages()
            if message.fields.get("ask") and message.seq not in taken
        ]

    def segments(self) -> list[Segment]:
        found = [Segment(self.first_segment, None, 1, 0)]
        for fact in self.facts():
            if fact.kind == "ended":
                found[-1].ended, found[-1].reason = fact.seq, fact.fields["reason"]
            elif fact.kind == "compacted":
                found[-1].ended, found[-1].reason = fact.seq, "compression"
                found.append(
                    Segment(
                        fact.fields["child"],
                        fact.fields["parent"],
                        fact.seq,
                        fact.fields["covers_to"],
                    )
                )
        return found

    def segment(self) -> str | None:
        last = self.segments()[-1]
        return last.name if last.ended is None else None

    def messages_in(self, segment: Segment) -> int:
        return sum(
            segment.opened <= message.seq
            and (segment.ended is None or message.seq <= segment.ended)
            for message in self.messages()
        )

    def last(self, *kinds: str) -> int:
        return max((fact.seq for fact in self.facts() if fact.kind in kinds), default=0)

    def title(self) -> str | None:
        titles = [fact for fact in self.facts() if fact.kind == "titled"]
        return None if not titles or titles[-1].erased else titles[-1].fields["title"]

    def flag(self, kind: str) -> bool:
        values = [fact.fields["on"] for fact in self.facts() if fact.kind == kind]
        return bool(values and values[-1])

    def summary(self) -> dict[str, Any]:
        """What the head and the list say."""
        changing = [
            fact.seq
            for fact in self.facts()
            if fact.role
            or fact.kind
            in {"rewound", "cleared", "restored", "compacted", "erased", "withdrawn"}
        ]
        return {
            "head": self.head,
            "facts": self.facts()[-1].seq,
            "turns": self.last("finished", "rewound", "cleared", "restored"),
            "due": self.last("due"),
            "revision": max(changing, default=0),
            "epoch": self.last("compacted", "rewound", "cleared", "restored", "erased"),
            "run": self.run(),
            "segment": self.segment(),
            "unanswered": self.unanswered(),
            "messages": len(self.messages()),
            "title": self.title(),
            "pinned": self.flag("pinned"),
            "archived": self.flag("archived"),
        }

    # -- what may be appended --------------------------------------------------------------------------------

    def append(self, kind: str, run: str | None, **fields: Any) -> Entry:
        """Add one event, or raise what refuses it."""
        seq = self.head + 1
        if (check := getattr(self, f"check_{kind}", None)) is not None:
            check(seq, run, **fields)
        if kind in ROLES and self.segment() is None:
            raise SessionEnded("ended")
        if fields.get("request", 0) >= seq:
            raise InvalidInput("request")
        entry = Entry(seq, kind, run, fields)
        self.entries.append(entry)
        self.head = seq
        return entry

    def owed(self) -> int:
        """The last finished turn after the last boundary that no undo has taken back."""
        upto = [
            0,
            *(fact.fields["upto"] for fact in self.facts() if fact.kind == "due"),
        ][-1]
        undone: dict[int, Entry] = {}
        for fact in self.facts():
            if fact.kind in {"rewound", "cleared"}:
                for turn in self.facts():
                    if (
                        turn.kind == "finished"
                        and fact.fields.get("to", 0) < turn.seq < fact.seq
                    ):
                        undone.setdefault(turn.seq, fact)
            elif fact.kind == "restored":
                undone = {
                    seq: by for seq, by in undone.items() if by.seq != fact.fields["of"]
                }
        turns = [
            fact.seq
            for fact in self.facts()
            if fact.kind == "finished" and fact.seq > upto
        ]
        return max(
            (
                seq
                for seq in turns
                if seq not in undone or undone[seq].kind == "cleared"
            ),
            default=0,
        )

    def shared(self) -> bool:
        return any(
            fact.fields.get("author", "") not in {"", self.user}
            for fact in self.facts()
        )

    def check_due(self, seq: int, run: str | None, upto: int) -> None:
        if upto >= seq:
            raise InvalidInput("due")

    def refuse_running(self) -> None:
        if self.run() is not None:
            raise RunConflict("run")

    def check_rewound(self, seq: int, run: str | None, to: int) -> None:
        self.refuse_running()
        if not self.segments()[-1].opened <= to < seq or not any(
            each.seq > to for each in self.standing()
        ):
            raise InvalidInput("rewind")

    def check_withdrawn(self, seq: int, run: str | None, of: int) -> None:
        if of not in self.waiting():
            raise Refused("withdrawn")

    def check_cleared(self, seq: int, run: str | None) -> None:
        self.refuse_running()

    def check_restored(self, seq: int, run: str | None, of: int) -> None:
        self.refuse_running()
        edit = self.at(of)
        if (
            edit is None
            or edit.kind not in {"rewound", "cleared"}
            or of not in self.killed().values()
        ):
            raise InvalidInput("restore")
        if edit.kind == "rewound" and any(each.seq > of for each in self.standing()):
            raise InvalidInput("gone on")

    def check_ended(self, seq: int, run: str | None, segment: str, reason: str) -> None:
        if self.segment() != segment:
            raise SegmentMoved("ended", by=self.segment())

    def check_compacted(
        self,
        seq: int,
        run: str | None,
        parent: str,
        child: str,
        covers_to: int,
        folded_to: int,
    ) -> None:
        if self.segment() != parent:
            raise SegmentMoved("compacted", by=self.segment())
        if not self.segments()[-1].covers_to <= covers_to < seq:
            raise InvalidInput("covers")
        for each in self.facts():
            if each.seq <= folded_to:
                continue
            touched = {
                "rewound": lambda each=each: each.fields["to"] < covers_to,
                "withdrawn": lambda each=each: each.fields["of"] <= covers_to,
                "erased": lambda each=each: min(each.fields["seqs"]) <= covers_to,
                "cleared": lambda: True,
                "restored": lambda: True,
            }.get(each.kind)
            if touched is not None and touched():
                raise HeadMoved("edited")

    def check_started(self, seq: int, run: str | None, inputs: list[int]) -> None:
        self.refuse_running()
        if not all(0 < each < seq for each in inputs):
            raise InvalidInput("inputs")
        removers = [self.at(self.killed().get(each, 0)) for each in inputs]
        if any(remover and remover.kind == "withdrawn" for remover in removers):
            raise HeadMoved("withdrawn")

    def check_finished(self, seq: int, run: str | None) -> None:
        if self.run() is None or self.run() != run:
            raise RunConflict("finish")

    def check_erased(self, seq: int, run: str | None, seqs: list[int]) -> None:
        for each in seqs:
            found = self.at(each)
            if (
                found is None
                or found.partial
                or found.erased
                or found.kind in STRUCTURE
            ):
                raise InvalidInput("erase")

    def erase(self, seqs: list[int]) -> None:
        self.append("erased", None, seqs=seqs)
        for seq in seqs:
            found = self.at(seq)
            assert found is not None
            found.erased = True
            request = found.fields.get("request")
            if request:
                self.entries = [
                    entry
                    for entry in self.entries
                    if not (
                        entry.partial
                        and entry.fields["request"] == request
                        and entry.seq < seq
                    )
                ]

    def prune(self) -> int:
        answers = [
            fact
            for fact in self.facts()
            if fact.kind in {"assistant", "part"} and fact.fields.get("request")
        ]
        before = len(self.entries)
        self.entries = [
            entry
            for entry in self.entries
            if not entry.partial
            or not any(
                entry.seq < one.seq and entry.fields["request"] == one.fields["request"]
                for one in answers
            )
        ]
        return before - len(self.entries)


class Model:
    """A store of several users."""

    def __init__(self) -> None:
        self.conversations: dict[tuple[str, str], Conversation] = {}
        self.gone: set[tuple[str, str]] = set()
        self.received: dict[tuple[str, str], tuple[str, int, str, str]] = {}
        """By user and id: where it was stored, its kind and its text."""
        self.readers: dict[str, tuple[str, str]] = {}
        self.cursors: dict[tuple[str, str, str], int] = {}

    def get(self, user: str, name: str) -> Conversation:
        if (user, name) in self.gone:
            raise Gone(name)
        if (user, name) not in self.conversations:
            raise NoSuchConversation(name)
        return self.conversations[user, name]

    def of(self, user: str) -> list[Conversation]:
        return [
            each for (owner, _), each in self.conversations.items() if owner == user
        ]

    def open(self, user: str, name: str, segment: str) -> Conversation:
        if (user, name) in self.gone:
            raise Gone(name)
        if (user, name) in self.conversations or self.taken(user, segment):
            raise ConversationExists(name)
        made = self.conversations[user, name] = Conversation(user, name, segment)
        made.append("opened", None)
        self._place_cursors(made, imported=False)
        return made

    def taken(self, user: str, segment: str) -> bool:
        return any(
            segment == each.name for own in self.of(user) for each in own.segments()
        )

    def receive(self, user: str, name: str, ident: str, text: str) -> tuple[str, int]:
        """A message that its source may send more than once. Where it stands."""
        before = self.received.get((user, ident))
        if before is not None:
            where, seq, _, old = before
            if (user, where) in self.gone:
                raise Gone(where)
            entry = self.conversations[user, where].at(seq)
            if text != old and not (entry is not None and entry.erased):
                raise DedupReused(ident)
            return where, seq
        entry = self.get(user, name).append("user", None, text=text)
        self.received[user, ident] = (name, entry.seq, "user", text)
        return name, entry.seq

    def compact(
        self,
        user: str,
        name: str,
        child: str,
        parent: str,
        covers_to: int,
        folded_to: int,
    ) -> None:
        conversation = self.get(user, name)
        if self.taken(user, child):
            raise ConversationExists(child)
        saved = list(conversation.entries), conversation.head
        try:
            conversation.append("summarised", None, covers_to=covers_to)
            conversation.append(
                "compacted",
                None,
                parent=parent,
                child=child,
                covers_to=covers_to,
                folded_to=folded_to,
            )
        except Exception:
            conversation.entries, conversation.head = saved
            raise

    def fork(
        self, user: str, name: str, upto: int, fork: str, segment: str, second: str
    ) -> None:
        """The standing messages up to a seq, as a conversation of its own."""
        origin = self.get(user, name)
        rows = [each for each in origin.standing() if each.seq <= upto]
        copies = [
            row
            for row in rows
            if row.role in {*ROLES, "partial"}
            and not row.erased
            and (row.run is None or row.run != origin.run())
        ]
        summaries = [row for row in rows if row.role == "summary"]
        made = self.conversations[user, fork] = Conversation(user, fork, segment)
        made.append("opened", None)
        where: dict[int, int] = {}
        for copy in copies:
            fields = {
                key: value
                for key, value in copy.fields.items()
                if key not in {"ask", "request"}
            }
            where[copy.seq] = made.append(copy.kind, None, **fields).seq
        if summaries and not summaries[-1].erased:
            covered = 1 + sum(seq <= summaries[-1].fields["covers_to"] for seq in where)
            made.append("summarised", None, covers_to=covered)
            made.append(
                "compacted",
                None,
                parent=segment,
                child=second,
                covers_to=covered,
                folded_to=made.head,
            )
        made.origin = (name, where)
        self._place_cursors(made, imported=True)

    def erase(self, user: str, name: str, seqs: list[int]) -> dict[str, list[int]]:
        """What is reached: the events, what was derived from them, and their copies in forks."""
        reached: dict[str, list[int]] = {}
        self._reach(user, name, set(seqs), reached)
        for each, found in reached.items():
            if found:
                self.conversations[user, each].check_erased(0, None, found)
        for each, found in reached.items():
            if found:
                self.conversations[user, each].erase(found)
        return {each: found for each, found in reached.items() if found}

    def _reach(
        self, user: str, name: str, seqs: set[int], reached: dict[str, list[int]]
    ) -> None:
        conversation = self.get(user, name)
        facts = {fact.seq: fact for fact in conversation.facts()}
        wanted = set(seqs)
        for fact in facts.values():
            summary = fact.kind == "summarised" and any(
                seq <= fact.fields["covers_to"] for seq in seqs
            )
            title = (
                fact.kind == "titled"
                and fact.fields["derived"]
                and any(seq < fact.seq for seq in seqs)
            )
            if summary or title:
                wanted.add(fact.seq)
        if not seqs & set(facts) and not any(
            not facts[seq].erased for seq in wanted & set(facts)
        ):
            raise InvalidInput("erase")
        reached[name] = sorted(
            seq for seq in wanted if seq in facts and not facts[seq].erased
        )
        for other in self.of(user):
            if other.origin is not None and other.origin[0] == name:
                copied = {
                    other.origin[1][seq] for seq in seqs if seq in other.origin[1]
                }
                if copied:
                    self._reach(user, other.name, copied, reached)

    def delete(self, user: str, name: str) -> None:
        conversation = self.get(user, name)
        conversation.refuse_running()
        del self.conversations[user, name]
        self.gone.add((user, name))
        for other in self.of(user):
            if other.origin is not None and other.origin[0] == name:
                other.origin = None
        self.cursors = {
            key: seq for key, seq in self.cursors.items() if key[1:] != (user, name)
        }

    # -- readers ---------------------------------------------------------------------------------------------

    def meet(self, reader: str, follows: str, start: str) -> None:
        if reader in self.readers:
            return
        self.readers[reader] = (follows, start)
        for (user, name), conversation in self.conversations.items():
            self.cursors[reader, user, name] = (
                conversation.head if start == "now" else 0
            )

    def _place_cursors(self, made: Conversation, *, imported: bool) -> None:
        for reader, (_, start) in self.readers.items():
            at = made.head if imported and start == "now" else 0
            self.cursors[reader, made.user, made.name] = at

    def behind(self, reader: str, user: str) -> set[tuple[str, int, int]]:
        follows, _ = self.readers[reader]
        found = set()
        for each in self.of(user):
            at, to = self.cursors[reader, user, each.name], each.summary()[follows]
            if to > at:
                found.add((each.name, at, to))
        return found

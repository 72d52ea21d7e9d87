"""Erase the text of events, delete conversations, and drop replaced partials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenax.errors import InvalidInput, RunConflict
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ContentErased,
    ContextSummarised,
    ConversationOpened,
    ConversationTitled,
    Event,
    FilesChanged,
    ModelRequested,
    ToolFinished,
    ToolLate,
    Unknown,
    decode,
)
from tenax.journal.base import Erased, Recorded
from tenax.journal.learned import mentions_of
from tenax.journal.row_index import STRUCTURE
from tenax.journal.row_key import ALL_SEQS, bounds
from tenax.journal.store import drop_mentions, drop_replaced_partials, forget_learned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenax.journal.journal import Journal
    from tenax.journal.store import Tx

__all__ = ["delete", "erase", "prune"]

_SCRUB_SECONDS = 2.0
# The rows of a deleted conversation, apart from events and partials. The head goes last.
_INDEX_TABLES = (
    "runs",
    "stretches",
    "cursors",
    "authors",
    "letters",
    "schedules",
    "read_marks",
    "routes",
    "route_cursors",
    "deliveries",
    "late_files",
    "head",
)


def erase(
    journal: Journal, conversation: str, seqs: set[int], *, by: str, why: str
) -> Erased:
    """Erase the text of events and all text derived from it, in this conversation, in others and in forks."""
    reached: dict[str, set[int]] = {}
    _reach(journal, conversation, seqs, reached)
    erased = {name: sorted(found) for name, found in reached.items()}
    # The source comes last, so that an interrupted erasure can be repeated.
    for name, found in reversed(erased.items()):
        if found:
            journal.append(name, [ContentErased(found, by, why)])
    forgotten = [
        journal.words.forget(journal.number(name), found)
        for name, found in erased.items()
    ]
    index_scrubbed = journal.words.scrub(_SCRUB_SECONDS)
    store_scrubbed = journal.store.scrub()
    return Erased(
        {name: found for name, found in erased.items() if found},
        scrubbed=all((*forgotten, index_scrubbed, store_scrubbed)),
    )


def _reach(
    journal: Journal, conversation: str, seqs: set[int], reached: dict[str, set[int]]
) -> None:
    """Add the events, the derived events and the copies in forks to `reached`."""
    num = journal.number(conversation)
    low, _ = bounds(num)
    here = _erasable(journal, conversation, seqs)
    reached.setdefault(conversation, set()).update(here)
    mentions = {
        mention
        for seq in here
        for mention in mentions_of(journal.store, journal.owner, low + seq)
    }
    for name, seq in mentions:
        event = journal.fact(name, seq)
        if event is not None and not event.erased:
            reached.setdefault(name, set()).add(seq)
    for fork, body in journal.store.query("forks", num=num):
        opened = decode("conversation.opened", body)
        if isinstance(opened, ConversationOpened):
            copies = _copies(opened, seqs)
            if copies:
                _reach(journal, fork, copies, reached)


def _copies(opened: ConversationOpened, seqs: set[int]) -> set[int]:
    """Return the seqs of the copies of the events in a fork."""
    return {
        copied.at + seq - copied.first
        for copied in opened.copied
        for seq in seqs
        if copied.first <= seq < copied.first + copied.count
    }


def _erasable(journal: Journal, conversation: str, seqs: set[int]) -> list[int]:
    """Return the events with text left, among the given events and the events derived from them here."""
    low, high = bounds(journal.number(conversation))
    open_run = journal.head(conversation).run
    named = _facts(journal, conversation, seqs)
    if not named:
        raise InvalidInput(f"{conversation} has no event at {sorted(seqs)[:5]}.")
    results: set[tuple[int, str]] = set()
    for fact in named:
        event = fact.event
        if isinstance(event, ToolFinished | ToolLate):
            results.add((event.message, event.call))
    wanted = set(seqs)
    rows = journal.store.query("derived", low=low, high=high)
    for row_key, kind, run, body in rows:
        seq = row_key & ALL_SEQS
        run_over = run is None or run != open_run
        if _is_made_from(decode(kind, body), seq, seqs, results, run_over=run_over):
            wanted.add(seq)
    facts = [fact for fact in _facts(journal, conversation, wanted) if not fact.erased]
    # `model.requested` records the inputs of a run, so the event stays. An older version may have erased such an event.
    for fact in facts:
        if fact.kind in STRUCTURE or fact.kind == ModelRequested.kind:
            raise InvalidInput(f"Seq {fact.seq} holds no text that could be erased.")
    return [fact.seq for fact in facts]


def _facts(journal: Journal, conversation: str, seqs: Iterable[int]) -> list[Recorded]:
    facts = [journal.fact(conversation, seq) for seq in sorted(seqs)]
    return [fact for fact in facts if fact is not None]


def _is_made_from(
    event: Event | Unknown,
    seq: int,
    seqs: set[int],
    results: set[tuple[int, str]],
    *,
    run_over: bool,
) -> bool:
    """Return whether the event at `seq` repeats text of the events `seqs`.

    An approval stays while the run is open, because the run still needs the approval.
    """
    match event:
        case ApprovalAsked(message=message):
            return run_over and message in seqs
        case ApprovalAnswered(message, call, why=why, pattern=pattern, words=words):
            allowed = pattern != "" and run_over and message in seqs
            is_said = words != "" or why != ""
            return allowed or (is_said and (message, call) in results)
        case ContextSummarised(covers_to=covers_to):
            return any(erased <= covers_to for erased in seqs)
        case ConversationTitled(derived=True):
            return any(erased < seq for erased in seqs)
        case FilesChanged(message=message):
            return message in seqs
        case _:
            return False


def delete(journal: Journal, conversation: str) -> None:
    """Remove a conversation and the memories from it. Leave a tombstone."""
    num = journal.number(conversation)
    owner = journal.owner
    key = (owner, conversation)
    low, high = bounds(num)

    def delete_rows(tx: Tx) -> None:
        state = journal.store.heads(tx, [key]).get(key)
        if state is None:
            return
        if state.run is not None:
            raise RunConflict(
                "A run is open in this conversation.",
                hint="stop it, then delete the conversation",
            )
        tx.run("put_tombstone", {"num": num, "at": journal.clock.now_us()})
        drop_mentions(tx, owner, low, high)
        tx.run("delete_events", {"low": low, "high": high})
        tx.run("delete_partials", {"low": low, "high": high})
        forget_learned(tx, owner, low, high)
        tx.run("unplace_facts", {"owner": owner, "low": low, "high": high})
        for table in _INDEX_TABLES:
            tx.run(f"delete_{table}", {"num": num})
        tx.run("orphan_forks", {"num": num})
        tx.run("delete_conversation", {"num": num})

    journal.store.change(delete_rows)
    journal.store.forget(key)
    journal.store.wakeups.notify([num])
    journal.words.forget(num, None)
    # The text can no longer be read. Background work removes the remaining traces from the files.
    journal.words.scrub(_SCRUB_SECONDS / 10)
    journal.store.scrub()


def prune(journal: Journal, conversation: str) -> int:
    """Drop the partials replaced by a later fact. Return the number of dropped partials."""
    num = journal.number(conversation)
    return journal.store.change(lambda tx: drop_replaced_partials(tx, num))

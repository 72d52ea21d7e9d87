"""Copy the standing events of a conversation into a new conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenax.events import (
    ContextCompacted,
    ContextSummarised,
    ConversationConfigured,
    ConversationOpened,
    Copied,
    Event,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    Origin,
    ToolFinished,
    ToolLate,
    Unknown,
    encode,
)
from tenax.journal.base import Head, RawEvent, Recorded
from tenax.journal.row_index import ROLES
from tenax.journal.row_key import bounds
from tenax.journal.store import recorded

if TYPE_CHECKING:
    from tenax.journal.journal import Journal

__all__ = ["fork"]

# The first event of a fork is its own `conversation.opened`. The copies follow.
_FIRST_COPY = 2


def fork(journal: Journal, head: Head, upto: int, segment: str | None) -> str:
    """Store the standing events up to `upto` as a new conversation. Return the id of the new conversation.

    Leases, approvals, receipts and the open run are not copied. The fork has the present model, mode and project of the
    original.
    """
    conversation = head.conversation
    low, _ = bounds(journal.number(conversation))
    last_seq = 1
    copies: list[Recorded] = []
    summaries: list[Recorded] = []
    for role, _, *columns in journal.store.query(
        "standing_facts", low=low, high=low + upto
    ):
        event = recorded(conversation, tuple(columns))
        last_seq = event.seq
        if ROLES[role] == "summary":
            summaries.append(event)
        elif (
            ROLES[role] != "late" and not event.erased and not _is_open(event, head.run)
        ):
            copies.append(event)
    name = segment or journal.ids.segment()
    new_conversation = journal.ids.conversation()
    last = journal.fact(conversation, last_seq)
    digest = last.digest.hex() if last else ""
    opened = ConversationOpened(
        journal.owner,
        name,
        source="fork",
        origin=Origin(conversation, last_seq if last else 1, digest),
        copied=_copied_ranges([event.seq for event in copies]),
    )
    new_seqs = {event.seq: seq for seq, event in enumerate(copies, _FIRST_COPY)}
    entries = [
        RawEvent(event.kind, event.at, None, _detached_body(event, new_seqs))
        for event in copies
    ]
    if summaries:
        entries += _summary_entries(journal, copies, summaries[-1], name)
    entries += _choices(journal, conversation)
    journal.load(new_conversation, opened, entries)
    return new_conversation


def _choices(journal: Journal, conversation: str) -> list[RawEvent]:
    """Return the choices of the person as an event of the fork, after the copies."""
    chosen = journal.summary(conversation)
    event = ConversationConfigured(chosen.model, chosen.mode, chosen.project)
    if event == ConversationConfigured("", "ask", ""):
        return []
    return [RawEvent(event.kind, journal.clock.now_us(), None, encode(event))]


def _is_open(event: Recorded, open_run: str | None) -> bool:
    return event.run is not None and event.run == open_run


def _summary_entries(
    journal: Journal, copies: list[Recorded], summary: Recorded, segment: str
) -> list[RawEvent]:
    """Return the summary of a compacted conversation, with the seqs of the fork."""
    original = summary.event
    if not isinstance(original, ContextSummarised):
        return []
    covered = sum(event.seq <= original.covers_to for event in copies)
    covers_to = covered + 1
    kept = [
        seq
        for seq, event in enumerate(copies, _FIRST_COPY)
        if event.seq in original.kept
    ]
    summary_seq = len(copies) + _FIRST_COPY
    summarised = msgspec.structs.replace(original, covers_to=covers_to, kept=kept)
    compacted = ContextCompacted(
        segment, journal.ids.segment(), summary_seq, covers_to, summary_seq
    )
    now = journal.clock.now_us()
    return [
        RawEvent(event.kind, now, None, encode(event))
        for event in (summarised, compacted)
    ]


def _copied_ranges(seqs: list[int]) -> list[Copied]:
    """Return the ranges of copied events, with the seqs in the origin and in the fork."""
    ranges: list[Copied] = []
    for new_seq, seq in enumerate(seqs, _FIRST_COPY):
        last = ranges[-1] if ranges else None
        if last is not None and last.first + last.count == seq:
            ranges[-1] = Copied(last.first, last.count + 1, last.at)
        else:
            ranges.append(Copied(seq, 1, new_seq))
    return ranges


def _detached_body(original: Recorded, new_seqs: dict[int, int]) -> bytes:
    """Return the body of a copy.

    A copied message asks for no run and belongs to no request. A copied tool result names the copy of the calling
    answer.
    """
    event: Event | Unknown = original.event
    if isinstance(event, MessageUser) and event.ask:
        return encode(msgspec.structs.replace(event, ask=False))
    if isinstance(event, MessageAssistant | MessagePartial) and event.request:
        return encode(msgspec.structs.replace(event, request=0))
    if isinstance(event, ToolFinished | ToolLate):
        message = new_seqs.get(event.message, 0)
        return encode(msgspec.structs.replace(event, message=message))
    return original.body or b""

"""Rebuilds the index of one conversation from the events.

A head row carries the version of the function behind the index (`INDEX_VERSION`). After a change of this function, the next
append to a conversation rebuilds the index in the transaction of the append. So a new release never reads the whole store.

The rebuild keeps the facts known to the old index alone: whether an erased input asked for an answer, the author of the
erased input, the request of an erased answer, and the number of attempts of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenax.errors import SchemaTooNew, StoreDamaged, TenaxError
from tenax.events import ConversationOpened, decode
from tenax.journal.plan import NO_ROW, named_in
from tenax.journal.row_index import INDEX_VERSION, HeadState, PutRoute
from tenax.journal.row_key import ALL_SEQS, bounds
from tenax.journal.verify.derive import Derived, FactRow, stand_in

if TYPE_CHECKING:
    from tenax.journal.store import Tx

__all__ = ["rebuild"]

_PAGE = 500


def rebuild(tx: Tx, state: HeadState) -> HeadState:
    """Write the rows, segments, runs, authors, routes, list columns, mentions and head of a conversation. Return the new head."""
    if state.version > INDEX_VERSION:
        raise SchemaTooNew(
            f"A newer Tenax has indexed conversation {state.id} (version {state.version}; this one has {INDEX_VERSION}).",
            hint="restart with the newer version",
        )
    folded = _Folded(tx, state)
    new = folded.derived.settle()
    new.head = max(state.head, new.facts)
    new.digest = folded.digest
    new.listed_at = folded.at
    _put_rows(tx, folded.derived)
    _put_segments(tx, folded.derived)
    _put_runs(tx, folded.derived)
    _put_authors(tx, folded)
    _put_routes(tx, folded.derived)
    _put_mentions(tx, new, folded.mentions)
    times = {"opened_at": folded.opened_at, "updated_at": folded.at}
    listed = {"source": folded.source, **folded.derived.list, **times}
    tx.run("set_list", {"num": new.num, **listed})
    tx.run("put_head", {"conversation": new.num, **msgspec.structs.asdict(new)})
    follows = {"facts": new.facts, "turns": new.turns, "due": new.due}
    tx.run("follow_again", {"num": new.num, **follows})
    return new


class _Folded:
    """A conversation, folded from the first event to the last."""

    def __init__(self, tx: Tx, state: HeadState) -> None:
        self.derived = Derived(state.user, state.id)
        self.derived.state.num = state.num
        self.mentions: list[tuple[int, str]] = []
        self.digest = bytes(32)
        self.opened_at = 0
        self.at = 0
        self.source = ""
        self.erased_inputs = False
        low, high = bounds(state.num)
        while page := tx.run("prove_facts", {"low": low, "high": high, "limit": _PAGE}):
            for row in page:
                fact = FactRow(*row)
                self._fold(fact)
                low = fact.row_key

    def _fold(self, fact: FactRow) -> None:
        seq = fact.row_key & ALL_SEQS
        self.digest = fact.digest
        self.at = fact.at
        if fact.body is None:
            event = stand_in(fact.kind, seq, fact.first, fact.waiting)
            self.erased_inputs = self.erased_inputs or fact.kind == "message.user"
        else:
            event = decode(fact.kind, fact.body)
            names = named_in(fact.kind, fact.body)
            self.mentions += [(fact.row_key, name) for name in names]
        if isinstance(event, ConversationOpened):
            self.opened_at = fact.at
            self.source = event.source
        try:
            self.derived.fold(seq, fact.at, fact.run, fact.kind, event)
        except TenaxError as error:
            raise StoreDamaged(
                f"Conversation {self.derived.state.id} cannot be indexed again, because of seq {seq}: {error}",
                hint="run: tenax doctor",
            ) from error


def _put_rows(tx: Tx, derived: Derived) -> None:
    """Write the wrong rows only, because writing the columns of a row writes the whole event."""
    low, high = bounds(derived.state.num)
    wanted = {
        low + seq: (row.first, row.role, row.waiting, row.dead)
        for seq, row in derived.rows.items()
    }
    kept: dict[int, tuple[int | None, ...]] = {}
    while page := tx.run("prove_rows", {"low": low, "high": high, "limit": _PAGE}):
        kept.update((row_key, tuple(columns)) for row_key, *columns in page)
        low = page[-1][0]
    rows = [
        (*wanted.get(row_key, NO_ROW), row_key)
        for row_key in sorted(wanted.keys() | kept.keys())
        if wanted.get(row_key) != kept.get(row_key)
    ]
    if rows:
        tx.many("set_row", rows)


def _put_segments(tx: Tx, derived: Derived) -> None:
    state = derived.state
    tx.run("delete_stretches", {"num": state.num})
    state.stretch = 0
    for name, segment in derived.segments.items():
        where = {"owner": state.user, "num": state.num, "name": name}
        num = tx.run("put_stretch", {**where, **msgspec.structs.asdict(segment)})[0][0]
        if name == state.segment_name:
            state.stretch = num


def _put_runs(tx: Tx, derived: Derived) -> None:
    num = derived.state.num
    tx.run("forget_runs", {"num": num})
    for name, run in derived.runs.items():
        tx.run("put_run", {"num": num, "run": name, **msgspec.structs.asdict(run)})
    tx.run("drop_empty_runs", {"num": num})


def _put_authors(tx: Tx, folded: _Folded) -> None:
    num = folded.derived.state.num
    if not folded.erased_inputs:
        tx.run("delete_authors", {"num": num})
    for author in sorted(folded.derived.authors):
        tx.run("put_author", {"num": num, "author": author})


def _put_routes(tx: Tx, derived: Derived) -> None:
    num = derived.state.num
    tx.run("delete_routes", {"num": num})
    for (account, chat, thread), (closed, at, seq) in derived.routes.items():
        route = PutRoute(account, chat, thread, closed, at, seq)
        tx.run("put_route", {"num": num, **route._asdict()})


def _put_mentions(tx: Tx, state: HeadState, mentions: list[tuple[int, str]]) -> None:
    low, high = bounds(state.num)
    tx.run("delete_mentions", {"low": low, "high": high})
    for row_key, blob in mentions:
        tx.run("put_mention", {"owner": state.user, "hash": blob, "place": row_key})

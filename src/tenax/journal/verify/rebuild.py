"""The index of one conversation, made anew from its events.

An index row carries the version of the function that derived it. When that function changes (`INDEX_VERSION`), a
conversation is folded again in the transaction of the next append to it, so a release never walks the whole store.

What only the old index still says is kept: whether an erased input asked and who wrote it, which request an erased
answer belonged to, and how often a run was tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenax.errors import SchemaTooNew, StoreDamaged, TenaxError
from tenax.events import ConversationOpened, decode
from tenax.journal.place import ALL_SEQS, bounds
from tenax.journal.plan import NO_ROW, named_in
from tenax.journal.row_index import INDEX_VERSION, HeadState
from tenax.journal.verify.derive import Derived, stand_in

if TYPE_CHECKING:
    from tenax.journal.store import Tx

__all__ = ["rebuild"]

_PAGE = 500


def rebuild(tx: Tx, state: HeadState) -> HeadState:
    """Fold the conversation and write its rows, stretches, runs, authors, list columns, mentions and head: the new one."""
    if state.version > INDEX_VERSION:
        raise SchemaTooNew(
            f"A newer Tenax has indexed conversation {state.id} (version {state.version}; this one has {INDEX_VERSION}).",
            hint="restart with the newer version",
        )
    folded = _Folded(tx, state)
    new = folded.derived.settle()
    new.head, new.digest, new.listed_at = (
        max(state.head, new.facts),
        folded.digest,
        folded.at,
    )
    _put_rows(tx, folded.derived)
    _put_stretches(tx, folded.derived)
    _put_runs(tx, folded.derived)
    _put_authors(tx, folded)
    _put_mentions(tx, new, folded.mentions)
    tx.run("set_list", {"num": new.num, "source": folded.source, **folded.derived.list,
                        "opened_at": folded.opened_at, "updated_at": folded.at})  # fmt: skip
    tx.run("put_head", {"conversation": new.num, **msgspec.structs.asdict(new)})
    tx.run(
        "follow_again",
        {"num": new.num, "facts": new.facts, "turns": new.turns, "due": new.due},
    )
    return new


class _Folded:
    """A conversation, read from its first event to its last."""

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
            for place, kind, at, run, first, waiting, _, _, _, digest, body in page:
                self._take(place, kind, at, run, body, first, waiting)
                low, self.digest, self.at = place, digest, at

    def _take(self, place: int, kind: str, at: int, run: str | None, body: bytes | None,
              first: int | None, waiting: int | None) -> None:  # fmt: skip
        seq = place & ALL_SEQS
        if body is None:
            event = stand_in(kind, seq, first, waiting)
            self.erased_inputs = self.erased_inputs or kind == "message.user"
        else:
            event = decode(kind, body)
            self.mentions += [(place, each) for each in named_in(kind, body)]
        if isinstance(event, ConversationOpened):
            self.opened_at, self.source = at, event.source
        try:
            self.derived.fold(seq, at, run, kind, event)
        except TenaxError as error:
            raise StoreDamaged(
                f"Conversation {self.derived.state.id} cannot be indexed again, because of seq {seq}: {error}",
                hint="run: tenax doctor",
            ) from error


def _put_rows(tx: Tx, derived: Derived) -> None:
    """Only those that are wrong: writing a row is writing its event."""
    low, high = bounds(derived.state.num)
    wanted = {
        low + seq: (row.first, row.role, row.waiting, row.dead)
        for seq, row in derived.rows.items()
    }
    kept: dict[int, tuple[int | None, ...]] = {}
    while page := tx.run("prove_rows", {"low": low, "high": high, "limit": _PAGE}):
        kept.update((place, tuple(columns)) for place, *columns in page)
        low = page[-1][0]
    rows = [
        (*wanted.get(place, NO_ROW), place)
        for place in sorted(wanted.keys() | kept.keys())
        if wanted.get(place) != kept.get(place)
    ]
    if rows:
        tx.many("set_row", rows)


def _put_stretches(tx: Tx, derived: Derived) -> None:
    state = derived.state
    tx.run("delete_stretches", {"num": state.num})
    state.stretch = 0
    for name, stretch in derived.stretches.items():
        where = {"owner": state.user, "num": state.num, "name": name}
        num = tx.run("put_stretch", {**where, **msgspec.structs.asdict(stretch)})[0][0]
        if name == state.stretch_name:
            state.stretch = num


def _put_runs(tx: Tx, derived: Derived) -> None:
    num = derived.state.num
    tx.run("forget_runs", {"num": num})
    for run, each in derived.runs.items():
        tx.run("put_run", {"num": num, "run": run, **msgspec.structs.asdict(each)})
    tx.run("drop_empty_runs", {"num": num})


def _put_authors(tx: Tx, folded: _Folded) -> None:
    num = folded.derived.state.num
    if not folded.erased_inputs:
        tx.run("delete_authors", {"num": num})
    for author in sorted(folded.derived.authors):
        tx.run("put_author", {"num": num, "author": author})


def _put_mentions(tx: Tx, state: HeadState, mentions: list[tuple[int, str]]) -> None:
    low, high = bounds(state.num)
    tx.run("delete_mentions", {"low": low, "high": high})
    for place, blob in mentions:
        tx.run("put_mention", {"owner": state.user, "hash": blob, "place": place})

"""MemoryLedger: the ends of sessions owed to memory providers.

The journal is the ledger, so a killed process leaves the same debts behind. With a completed run, the end of a turn is
owed. A `memory.due` event records a boundary: the turns up to `upto` are due to the providers of `owner`. `delivery`
gives the turns and the boundaries to every provider in order, and keeps two cursors per provider. Recording is quick,
because the ledger calls no provider.

The cursor `memory:idle` finds boundaries missing in the journal: a conversation was idle for an hour, or its process
ended without recording a boundary.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from typing import NamedTuple

from tenax.errors import Gone, NoSuchConversation, StoreDamaged, TenaxError
from tenax.events import MemoryDue, Reason, RunFinished, RunStarted
from tenax.journal import Journal
from tenax.journal.base import Behind, Lease, Reader

__all__ = ["MemoryLedger", "Owed"]

log = logging.getLogger(__name__)

IDLE_SECONDS = 3600.0
_LEASE_SECONDS = 300.0
_IDLE = Reader("memory:idle", "turns", "now")


class Owed(NamedTuple):
    """The conversation of a session, and its last completed turn not covered by a boundary."""

    conversation: str
    upto: int


class MemoryLedger:
    """The owed ends of a user's conversations. Safe to use from any thread.

    `owner` names the owner of the providers. Conversations from a source in `leave_out` owe nothing.
    """

    def __init__(
        self, journal: Journal, *, owner: str = "", leave_out: Collection[str] = ()
    ) -> None:
        self._journal = journal
        self._owner = owner
        self._leave_out = frozenset(leave_out)
        # With the lock, two boundaries at the same moment record a single end.
        self._recording = threading.Lock()

    def register(self) -> None:
        """Owe the end of every turn completed from now on."""
        self._journal.behind(_IDLE, limit=1)

    def find_owed(self, session: str) -> Owed | None:
        """Return the debt of a session, or `None` if the session owes nothing or is not in the store."""
        segment = self._journal.segment(session)
        if segment is None:
            return None
        upto = self._journal.owed(segment.conversation)
        return Owed(segment.conversation, upto) if upto else None

    def record_turn(self, session: str) -> int:
        """Record a turn run outside of Tenax. Return the seq of the turn, or 0 if the session is not in the store."""
        segment = self._journal.segment(session)
        if segment is None:
            return 0
        run = [RunStarted(instance=self._journal.instance), RunFinished("completed")]
        stored = self._journal.append(
            segment.conversation, run, run=self._journal.ids.run()
        )
        return stored[-1].seq

    def record_due(
        self, session: str, owed: Owed, reason: Reason, owner: str = ""
    ) -> None:
        """Record a boundary: the debt of a session is due."""
        due = MemoryDue(session, owed.upto, reason, owner)
        self._journal.append(owed.conversation, [due])

    # -- boundaries of the product ---------------------------------------------------------------------------

    def end_conversation(self, conversation: str, reason: Reason) -> None:
        """Record a boundary in the open session of a conversation, if the session owes anything. See `end_session`."""
        session = self._journal.head(conversation).segment
        if session is not None:
            self.end_session(session, reason)

    def end_session(self, session: str, reason: Reason) -> None:
        """Record a boundary, if the session owes anything. A failure is logged, and the end stays owed."""
        segment = self._journal.segment(session)
        if segment is None or not self._is_remembered(segment.conversation):
            return
        try:
            self._end_session(session, reason)
        except TenaxError as error:
            log.warning(
                "The end of session %s was not recorded and stays owed. %s",
                session,
                error,
                extra={"action": "memory_commit_failed"},
            )

    def _end_session(self, session: str, reason: Reason) -> None:
        with self._recording:
            owed = self.find_owed(session)
            if owed is not None:
                self.record_due(session, owed, reason, self._owner)

    def _is_remembered(self, conversation: str) -> bool:
        return self._journal.summary(conversation).source not in self._leave_out

    def end_abandoned(self) -> None:
        """Record the boundaries missing in the journal. A single process at a time looks for missing boundaries."""
        rows = self._journal.behind(_IDLE)
        if not rows:
            return
        lease = self._journal.claim(_IDLE.name, self._journal.instance, _LEASE_SECONDS)
        if lease is None:
            return
        try:
            instances = self._journal.instances()
            alive = {instance.id for instance in instances if instance.alive}
            for row in rows:
                try:
                    self._end_if_abandoned(row, alive, lease)
                except (Gone, NoSuchConversation, StoreDamaged) as error:
                    # An unreadable conversation must not stop the work for the next conversations.
                    log.info("What %s owes is unknown: %s", row.conversation, error)
        finally:
            self._journal.release(lease)

    def _end_if_abandoned(self, row: Behind, alive: set[str], lease: Lease) -> None:
        conversation = row.conversation
        if self._journal.holder(f"run:{conversation}") is not None:
            return
        summary = self._journal.summary(conversation)
        age_us = self._journal.clock.now_us() - summary.updated_at
        is_idle = age_us > IDLE_SECONDS * 1e6
        owed = self._journal.owed(conversation)
        if owed and not is_idle:
            instance = self._find_instance(conversation, owed)
            if instance is None or instance in alive:
                return
        session = self._journal.head(conversation).segment
        if session is not None and summary.source not in self._leave_out:
            self._end_session(session, "idle" if is_idle else "shutdown")
        self._journal.advance(_IDLE, conversation, row.to, was=row.at, lease=lease)

    def _find_instance(self, conversation: str, seq: int) -> str | None:
        """Return the process of the run finished at a seq, or `None` if the process is unknown."""
        finished = self._journal.fact(conversation, seq)
        if finished is None or not finished.run:
            return None
        run = self._journal.run(conversation, finished.run)
        if run is None or not run.started:
            return None
        started = self._journal.fact(conversation, run.started)
        if started is None or not isinstance(started.event, RunStarted):
            return None
        return started.event.instance

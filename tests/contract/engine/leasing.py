"""Leases: who may act. And instances: who is there."""

from __future__ import annotations

from collections.abc import Callable

from tenax.errors import LeaseLost
from tenax.journal import Journal
from tenax.journal.base import Lease
from tenax.sessions import SessionDB
from tests.contract.engine.base import Engine, at_once, begin, refused, said, say, take

RIVALS = 6
SHORT = 10.0
"""Seconds. Longer than a test takes, so that only `pass_time` makes a lease run out."""


class LeaseContract(Engine):
    """Leases."""

    def test_a_lease_is_held_by_one(self, journal: Journal) -> None:
        """While somebody holds a lease nobody else gets it, not even under the same name of holder."""
        lease = take(journal, "run:x")
        assert (lease.name, lease.holder, lease.term) == ("run:x", "me", 1)
        assert journal.claim("run:x", "you", 60) is None
        assert journal.claim("run:x", "me", 60) is None
        assert journal.holder("run:x") == "me"
        assert journal.claim("run:y", "you", 60) is not None

    def test_of_many_that_claim_one_gets_it(self, journal: Journal) -> None:
        """Claims at the same moment: one wins."""

        def work(n: int) -> Lease | None:
            return journal.claim("run:x", f"holder-{n}", 60)

        (won,) = [lease for lease in at_once(work, range(RIVALS)) if lease is not None]
        assert journal.holder("run:x") == won.holder

    def test_a_released_lease_is_free_and_its_fence_stays(
        self, journal: Journal
    ) -> None:
        """The next holder's term is higher, so an old holder never passes for a new one."""
        old = take(journal, "run:x")
        assert journal.release(old)
        assert not journal.release(old)
        assert journal.holder("run:x") is None
        new = take(journal, "run:x")
        assert new.term > old.term
        assert not journal.release(old)
        assert journal.holder("run:x") == "me"

    def test_a_lease_can_be_taken_over(self, journal: Journal) -> None:
        """Taking over asks nobody; the old holder learns of it when it acts."""
        old = take(journal, "run:x", "old")
        new = take(journal, "run:x", "new", take_over=True)
        assert new.term > old.term
        with refused(journal, None, LeaseLost):
            journal.renew(old)
        assert not journal.release(old)
        assert journal.holder("run:x") == "new"

    def test_a_renewed_lease_lasts_from_now(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """Renewing keeps the term and starts the time anew, for another length if one is given."""
        lease = take(journal, "run:x", seconds=SHORT)
        longer = journal.renew(lease, seconds=60)
        assert (longer.term, longer.seconds) == (lease.term, 60)
        pass_time(SHORT * 2)
        assert journal.holder("run:x") == "me"
        assert journal.claim("run:x", "you", 60) is None
        assert journal.renew(lease).seconds == SHORT

    def test_a_lease_that_ran_out_is_free_for_one_who_was_there(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """After its time another may take it, and then the old holder has lost it."""
        old = take(journal, "run:x", "old", SHORT)
        pass_time(SHORT * 2)
        assert journal.holder("run:x") is None
        new = take(journal, "run:x", "new")
        assert new.term > old.term
        with refused(journal, None, LeaseLost):
            journal.renew(old)

    def test_a_process_that_was_away_takes_nothing_for_having_run_out(
        self,
        journal: Journal,
        pass_time: Callable[[float], None],
        reconnect: Callable[[], None],
    ) -> None:
        """Nobody is reaped by one who has not been connected, without a break, for the length of the lease."""
        assert journal.claim("run:x", "alive", SHORT) is not None
        pass_time(SHORT * 2)
        reconnect()
        assert journal.claim("run:x", "back again", SHORT) is None
        pass_time(SHORT * 1.2)
        assert journal.claim("run:x", "patient", SHORT) is not None

    def test_a_compression_lock_that_ran_out_is_free_for_a_process_that_has_just_come(
        self,
        journal: Journal,
        pass_time: Callable[[float], None],
        reconnect: Callable[[], None],
    ) -> None:
        """The lock guards no commit, so nobody waits for it: who asks who holds it and who takes it are told the same."""
        db = SessionDB(journal=journal)
        assert db.try_acquire_compression_lock("p", "slow", ttl_seconds=SHORT)
        reconnect()
        assert not db.try_acquire_compression_lock("p", "quick", ttl_seconds=SHORT)
        assert db.get_compression_lock_holder("p") == "slow"
        pass_time(SHORT * 2)
        reconnect()
        assert db.get_compression_lock_holder("p") is None
        assert db.try_acquire_compression_lock("p", "quick", ttl_seconds=SHORT)
        assert db.get_compression_lock_holder("p") == "quick"

    def test_running_out_takes_nothing_away(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """A lease that ran out and that nobody took still opens the door, and can be renewed."""
        name = begin(journal)
        lease = take(journal, "run:x", seconds=SHORT)
        pass_time(SHORT * 2)
        journal.append(name, [say("a")], lease=lease)
        assert said(journal, name) == ["a"]
        journal.renew(lease, seconds=60)
        assert journal.claim("run:x", "you", 60) is None

    def test_the_lease_of_a_dead_process_is_free_at_once(
        self, journal: Journal, leave_behind: Callable[[str], Lease]
    ) -> None:
        """Nobody waits for the hour that a dead process had left."""
        left = leave_behind("run:x")
        assert journal.holder("run:x") is None
        lease = take(journal, "run:x")
        assert lease.term > left.term

    def test_a_lease_that_is_not_there_cannot_be_kept(self, journal: Journal) -> None:
        """Renewing or releasing what nobody claimed does nothing."""
        made_up = Lease("run:none", "me", 1, 60, bytes(16))
        with refused(journal, None, LeaseLost):
            journal.renew(made_up)
        assert not journal.release(made_up)
        assert journal.holder("run:none") is None

    def test_this_process_is_an_instance(self, journal: Journal) -> None:
        """The store knows this process and that it lives."""
        own = journal.instance
        (found,) = [instance for instance in journal.instances() if instance.id == own]
        assert found.alive
        assert (found.ended_at, found.swept_at) == (None, None)

    def test_a_dead_instance_is_swept_once(
        self, journal: Journal, leave_behind: Callable[[str], Lease]
    ) -> None:
        """Whoever has brought in what a dead instance left says so, once."""
        own = journal.instance
        leave_behind("run:x")
        (dead,) = [instance for instance in journal.instances() if instance.id != own]
        assert not dead.alive
        assert journal.swept(dead.id)
        assert not journal.swept(dead.id)
        (dead,) = [instance for instance in journal.instances() if instance.id != own]
        assert dead.swept_at is not None
        assert dead.ended_at is not None

    def test_an_instance_that_was_swept_long_ago_is_forgotten(
        self,
        journal: Journal,
        leave_behind: Callable[[str], Lease],
        pass_time: Callable[[float], None],
    ) -> None:
        """A store that commands use every minute would know half a million of them after a year."""
        own = journal.instance
        leave_behind("run:x")
        (first,) = [
            instance.id for instance in journal.instances() if instance.id != own
        ]
        journal.swept(first)
        pass_time(8 * 86_400)
        leave_behind("run:y")
        (second,) = [
            instance.id
            for instance in journal.instances()
            if instance.id not in {own, first}
        ]
        journal.swept(second)
        assert {instance.id for instance in journal.instances()} == {own, second}

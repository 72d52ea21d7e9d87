"""An older copy is put back into the file or database of a store that is in use: by `.restore`, by `pg_restore --clean`.

No process is told of it. Every number that it had learned may mean something else from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import tenax
from tenax.errors import NoSuchConversation, StoreIncomplete
from tenax.journal import Journal
from tests.contract.engine.base import begin, said, say
from tests.support.damage import put_back_in_place

pytestmark = pytest.mark.crash


def opened(url: str, tmp_path: Path) -> Journal:
    return tenax.open(url, user=None, witness=tmp_path / "witness")


def lose(journal: Journal, url: str, tmp_path: Path) -> tuple[str, str]:
    """A conversation of ada's that lacks its last message, and one that is lost as a whole."""
    ada = journal.of("ada")
    kept = begin(ada, say("first"))
    with put_back_in_place(url, tmp_path / "copy"):
        ada.append(kept, [say("second")])
        lost = begin(ada, say("a secret of ada's"))
        assert said(ada, lost) == ["a secret of ada's"]
        assert journal.store.witness is not None
        journal.store.witness.save()
    return kept, lost


def wait_until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1200):
        if holds():
            return
        pause.wait(0.05)
    raise AssertionError("It did not happen in time.")


def read_all(journal: Journal, conversation: str) -> None:
    """Every way to read a lost conversation says that there is none."""
    for read in (
        lambda: journal.read(conversation),
        lambda: journal.messages(conversation),
        lambda: journal.messages(conversation, upto=5),
        lambda: journal.open(conversation),
        lambda: journal.fact(conversation, 2),
        lambda: journal.waiting(conversation),
        lambda: journal.head(conversation),
        lambda: journal.summary(conversation),
        lambda: journal.spent(conversation),
        lambda: journal.append(conversation, [say("into it")]),
    ):
        with pytest.raises(NoSuchConversation):
            read()


def test_a_new_conversation_never_gets_the_number_of_a_lost_one(
    store_url: str, tmp_path: Path
) -> None:
    with opened(store_url, tmp_path) as journal:
        _, lost = lose(journal, store_url, tmp_path)
        with pytest.raises(StoreIncomplete):
            begin(journal.of("bob"), say("a secret of bob's"))
        assert lost in {missing.conversation for missing in journal.missing}
        with pytest.raises(NoSuchConversation):
            said(journal.of("ada"), lost)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_lost_conversation_is_not_another_users_once_the_loss_is_accepted(
    store_url: str, tmp_path: Path, noticed: bool
) -> None:
    """Its number is given again then: to a conversation of another process, and to one of this process."""
    with opened(store_url, tmp_path) as journal:
        kept, lost = lose(journal, store_url, tmp_path)
        ada, bob = journal.of("ada"), journal.of("bob")
        if noticed:
            with pytest.raises(StoreIncomplete):
                ada.append(kept, [say("third")])
        with opened(store_url, tmp_path) as doctor:
            doctor.store.accept_loss()
            theirs = begin(doctor.of("bob"), say("a secret of bob's"))
        read_all(ada, lost)
        assert said(bob, theirs) == ["a secret of bob's"]
        own = begin(bob, say("another secret of bob's"))
        read_all(ada, lost)
        ada.append(kept, [say("third")])
        assert said(ada, kept) == ["first", "third"]
        assert said(bob, own) == ["another secret of bob's"]
        assert journal.missing == []


def test_a_process_that_had_only_read_notices_it(
    store_url: str, tmp_path: Path
) -> None:
    """What it knows of the conversation comes from the witness."""
    with opened(store_url, tmp_path) as journal:
        ada = journal.of("ada")
        kept = begin(ada, say("first"))
        with put_back_in_place(store_url, tmp_path / "copy"):
            ada.append(kept, [say("second")])
            journal.close()
            server = opened(store_url, tmp_path)
            assert said(server.of("ada"), kept) == ["first", "second"]
    with server:
        with pytest.raises(StoreIncomplete):
            server.of("ada").append(kept, [say("third")])
        assert [(missing.have, missing.upto) for missing in server.missing] == [(2, 3)]


def test_a_witness_keeps_what_the_store_has_lost_although_it_has_grown_past_it(
    store_url: str, tmp_path: Path
) -> None:
    """A process that knows nothing of the lost events goes on in their place: it notices when it saves the witness."""
    with opened(store_url, tmp_path) as server, opened(store_url, tmp_path) as other:
        ada = server.of("ada")
        kept = begin(ada, say("first"))
        assert server.store.witness is not None
        # Without notes to save, the process does not look at the witness before its next append.
        server.store.witness.save()
        with put_back_in_place(store_url, tmp_path / "copy"):
            other.of("ada").append(kept, [say("second")])
            other.close()
        ada.append(kept, [say("instead of it"), say("and more")])
        server.store.witness.save()
        # its own thread may have been quicker, and is looking now
        wait_until(lambda: bool(server.missing))
        assert [str(missing) for missing in server.missing] == [
            f"{kept}: event 3 is not the event that was stored."
        ]
        with pytest.raises(StoreIncomplete):
            ada.append(kept, [say("third")])
    with opened(store_url, tmp_path) as journal:
        assert len(journal.missing) == 1


def test_a_process_goes_on_after_another_accepted_a_loss_that_it_had_not_noticed(
    store_url: str, tmp_path: Path
) -> None:
    """It reads the store's new incarnation, and what it stores is witnessed again."""
    with opened(store_url, tmp_path) as server:
        ada = server.of("ada")
        kept, other = begin(ada, say("first")), begin(ada, say("first of the other"))
        with put_back_in_place(store_url, tmp_path / "copy"):
            ada.append(kept, [say("second")])
            assert server.store.witness is not None
            server.store.witness.save()
        with opened(store_url, tmp_path) as doctor:
            doctor.store.accept_loss()
            incarnation = doctor.incarnation
        # a conversation that has lost nothing
        ada.append(other, [say("second of the other")])
        server.store.witness.save()
        wait_until(lambda: server.incarnation == incarnation)
        with put_back_in_place(store_url, tmp_path / "next copy"):
            ada.append(other, [say("third of the other")])
            server.close()
    with opened(store_url, tmp_path) as journal:
        assert journal.incarnation != incarnation
        assert [
            (missing.conversation, missing.upto) for missing in journal.missing
        ] == [(other, 4)]

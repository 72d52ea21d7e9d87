"""A store that lacks events which it had acknowledged: the witness notices, nothing is added to it, nobody is misled."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import apsw
import msgspec
import pytest

import tenax
from tenax.clock import Timing
from tenax.errors import CannotOpen, StoreDamaged, StoreIncomplete
from tenax.journal import Journal, witness
from tenax.journal.postgres.connection import Link
from tenax.testing.clock import SimClock
from tests.contract.engine.base import begin, said, say
from tests.support.damage import copy_store, put_back, snapshot

pytestmark = pytest.mark.crash

WAIT_SECONDS = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "tenax.db"


@pytest.fixture(autouse=True)
def folder(path: Path) -> None:
    path.parent.mkdir()


def tell(journal: Journal, conversation: str, text: str) -> None:
    journal.append(conversation, [say(text)])


def opened(path: Path, timing: Timing = Timing()) -> Journal:
    return tenax.open(f"sqlite:///{path}", timing=timing)


def grown(path: Path, copy: Path) -> tuple[str, str, str]:
    """A store with two messages in its copy and two more since. The conversations, and the incarnation it had."""
    with opened(path) as journal:
        one, other = begin(journal), begin(journal)
        tell(journal, one, "first")
        tell(journal, other, "second")
        incarnation = journal.incarnation
    copy_store(path, copy)
    shutil.copy(path.with_name("tenax.db-witness"), copy)
    with opened(path) as journal:
        tell(journal, one, "third")
        tell(journal, one, "fourth")
    return one, other, incarnation


def test_a_copy_that_is_put_back_is_read_only_and_says_what_is_missing(
    path: Path, tmp_path: Path
) -> None:
    """It has another incarnation, and everything that it holds can be read."""
    one, other, incarnation = grown(path, tmp_path / "copy")
    put_back(tmp_path / "copy", path)
    with opened(path) as journal:
        assert journal.incarnation != incarnation
        assert [
            (each.conversation, each.have, each.upto, each.messages)
            for each in journal.missing
        ] == [(one, 2, 4, 2)]
        assert said(journal, one) == ["first"]
        for write in _writes(journal, one, other):
            with pytest.raises(StoreIncomplete, match="1 conversation") as caught:
                write()
            assert "tenax doctor --accept" in caught.value.hint
        again = journal.incarnation
    # as often as it is opened, until somebody has decided
    with opened(path) as journal:
        assert journal.incarnation == again
        assert len(journal.missing) == 1
        assert said(journal, one) == ["first"]


def _writes(journal: Journal, one: str, other: str) -> list[Callable[[], object]]:
    return [
        lambda: tell(journal, one, "new"),
        lambda: tell(journal, other, "new"),
        lambda: begin(journal),
        lambda: journal.claim("run:x", "me", 5.0),
        lambda: journal.delete(other),
    ]


def test_it_goes_on_once_the_loss_is_accepted_also_where_it_is_open(
    path: Path, tmp_path: Path
) -> None:
    """A server that runs meanwhile takes messages again, without a restart and under the same incarnation."""
    one, _, before = grown(path, tmp_path / "copy")
    put_back(tmp_path / "copy", path)
    with opened(path) as server:
        with opened(path) as doctor:
            doctor.store.accept_loss()
            assert doctor.missing == []
            incarnation = doctor.incarnation
        assert server.missing == []
        tell(server, one, "new")
        assert server.incarnation == incarnation != before
    with opened(path) as journal:
        assert journal.missing == []
        assert journal.incarnation == incarnation
        assert said(journal, one) == ["first", "new"]


def test_it_goes_on_once_a_store_with_everything_is_put_back(
    path: Path, tmp_path: Path
) -> None:
    one, _, _ = grown(path, tmp_path / "old")
    copy_store(path, tmp_path / "new")
    put_back(tmp_path / "old", path)
    with opened(path) as journal:
        assert journal.missing
        incarnation = journal.incarnation
    put_back(tmp_path / "new", path)
    with opened(path) as journal:
        assert journal.missing == []
        assert journal.incarnation != incarnation
        tell(journal, one, "fifth")
        assert said(journal, one) == ["first", "third", "fourth", "fifth"]


@pytest.mark.parametrize("witness", ["its own", "none"])
def test_a_copy_that_is_put_back_with_its_own_witness_has_another_incarnation(
    path: Path, tmp_path: Path, witness: str
) -> None:
    """Nothing tells that events are missing. A new incarnation keeps readers from confusing old and new seqs."""
    _, _, incarnation = grown(path, tmp_path / "copy")
    copied = tmp_path / "copy"
    # Keep the old files: the file system could give the inode of a deleted file to the copy.
    path.parent.rename(tmp_path / "old")
    path.parent.mkdir()
    put_back(copied, path)
    if witness == "its own":
        shutil.copy(copied / "tenax.db-witness", path.parent)
    with opened(path) as journal:
        assert journal.missing == []
        assert journal.incarnation != incarnation
        incarnation = journal.incarnation
    with opened(path) as journal:
        assert journal.incarnation == incarnation


def test_a_store_that_is_deleted_or_emptied_is_missed(
    path: Path, tmp_path: Path
) -> None:
    one, other, _ = grown(path, tmp_path / "copy")
    for each in path.parent.glob("tenax.db*"):
        if each.is_file() and not each.name.endswith("-witness"):
            each.unlink()
    with opened(path) as journal:
        assert {
            each.conversation: (each.have, each.upto) for each in journal.missing
        } == {
            one: (0, 4),
            other: (0, 2),
        }


def test_another_history_of_the_same_length_is_noticed(
    path: Path, tmp_path: Path
) -> None:
    """The number is there, and the event is another one."""
    one, _, _ = grown(path, tmp_path / "copy")
    elsewhere = tmp_path / "elsewhere" / "tenax.db"
    elsewhere.parent.mkdir()
    put_back(tmp_path / "copy", elsewhere)
    with opened(elsewhere) as journal:
        for words in ("otherwise", "entirely", "and longer"):
            tell(journal, one, words)
    copy_store(elsewhere, tmp_path / "other")
    put_back(tmp_path / "other", path)
    with opened(path) as journal:
        assert [str(each) for each in journal.missing] == [
            f"{one}: event 4 is not the event that was stored."
        ]


def test_a_store_ahead_of_its_witness_or_without_one_is_in_order(
    path: Path, tmp_path: Path
) -> None:
    """The first start after an update has none; a crash leaves one that is a second old."""
    witness = path.with_name("tenax.db-witness")
    one, _, _ = grown(path, tmp_path / "copy")
    old = witness.read_bytes()
    with opened(path) as journal:
        tell(journal, one, "fifth")
    for kept in (old, b"", b"not a witness", None):
        if kept is None:
            witness.unlink()
        else:
            witness.write_bytes(kept)
        with opened(path) as journal:
            assert journal.missing == []
            tell(journal, one, "more")


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to itself"])
def test_a_witness_that_cannot_be_read_is_not_taken_for_none(
    path: Path, tmp_path: Path, kind: str
) -> None:
    """An older copy would be taken for the whole store. Who opens it is told what to do, and nothing waits for ever."""
    grown(path, tmp_path / "copy")
    put_back(tmp_path / "copy", path)
    witness = path.with_name("tenax.db-witness")
    kept = witness.rename(tmp_path / "kept")
    match kind:
        case "folder":
            witness.mkdir()
        case "pipe":
            os.mkfifo(witness)
        case _:
            witness.symlink_to(witness)
    with pytest.raises(CannotOpen, match="-witness, which records what") as caught:
        opened(path)
    assert "remove it" in caught.value.hint
    if kind == "folder":
        witness.rmdir()
    else:
        witness.unlink()
    kept.rename(witness)
    with opened(path) as journal:
        assert len(journal.missing) == 1


def test_a_clock_that_was_set_back_hides_no_conversation(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that moved last are remembered, whatever time it was."""
    monkeypatch.setattr("tenax.journal.witness.CONVERSATIONS_MAX", 2)
    clock = SimClock(2_000_000_000_000_000)
    with tenax.open(f"sqlite:///{path}", clock=clock) as journal:
        for _ in range(2):
            begin(journal)
    clock = SimClock(1_900_000_000_000_000)
    with tenax.open(f"sqlite:///{path}", clock=clock) as journal:
        copy_store(path, tmp_path / "copy")
        begin(journal)
        late = begin(journal)
    put_back(tmp_path / "copy", path)
    with opened(path) as journal:
        assert late in {missing.conversation for missing in journal.missing}


@pytest.mark.parametrize("size", [0, 1])
def test_a_store_that_was_cut_to_nothing_is_not_made_anew_over_its_log(
    path: Path, tmp_path: Path, size: int
) -> None:
    """SQLite takes a file of one byte for an empty one, too."""
    with opened(path) as journal:
        tell(journal, begin(journal), "in the log")
        snapshot(path, tmp_path / "crashed")
    crashed = tmp_path / "crashed" / path.name
    os.truncate(crashed, size)
    log = crashed.with_name("tenax.db-wal")
    before = log.read_bytes()
    assert before
    with pytest.raises(CannotOpen, match="its log is there"):
        opened(crashed)
    assert log.read_bytes() == before


def test_a_deleted_conversation_is_not_missed(path: Path) -> None:
    with opened(path) as journal:
        kept, deleted = begin(journal), begin(journal)
        tell(journal, deleted, "away")
    witness = path.with_name("tenax.db-witness")
    before = witness.read_bytes()
    with opened(path) as journal:
        journal.delete(deleted)
    assert deleted.encode() not in witness.read_bytes()
    witness.write_bytes(before)  # of a process that had not heard of it
    with opened(path) as journal:
        assert journal.missing == []
        tell(journal, kept, "on")


def test_the_witness_holds_no_words_and_only_the_owner_reads_it(path: Path) -> None:
    with opened(path) as journal:
        tell(journal, begin(journal), "a secret of mine")
    witness = path.with_name("tenax.db-witness")
    assert b"secret" not in witness.read_bytes()
    assert witness.stat().st_mode & 0o077 == 0


def test_a_running_store_is_witnessed_within_a_second(
    path: Path, tmp_path: Path
) -> None:
    """Nobody has to close it: a process that is killed later leaves a witness."""
    with opened(path) as journal:
        one = begin(journal)
        tell(journal, one, "first")
        copy_store(path, tmp_path / "copy")
        for words in ("second", "third"):
            tell(journal, one, words)
        _wait_until(lambda: _witnessed(path, one) == 4)
    put_back(tmp_path / "copy", path)
    with opened(path) as journal:
        assert [(each.have, each.upto) for each in journal.missing] == [(2, 4)]


def _witnessed(path: Path, conversation: str) -> int:
    _, _, text = path.with_name("tenax.db-witness").read_bytes().partition(b"\n")
    heads = msgspec.json.decode(text)["stores"][""]["heads"].values()
    return max(
        (facts for _, name, facts, *_ in heads if name == conversation), default=0
    )


def _wait_until(holds: Callable[[], bool]) -> None:
    for _ in _ticks():
        if holds():
            return
    raise AssertionError("It did not happen in time.")


def _ticks() -> Iterator[None]:
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.05)):
        yield
        pause.wait(0.05)


def test_an_error_ends_the_witness_of_nobody(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread goes on, the log says it once, and the store can be closed."""
    failed, broken = threading.Semaphore(0), threading.Event()
    broken.set()
    save = witness.Witness.save

    def fail(self: witness.Witness) -> bool:
        if not broken.is_set():
            return save(self)
        failed.release()
        raise TypeError("cannot encode this")

    with opened(path, Timing(witness_seconds=0.01)) as journal:
        monkeypatch.setattr(witness.Witness, "save", fail)
        conversation = begin(journal)
        assert failed.acquire(timeout=WAIT_SECONDS)
        assert failed.acquire(timeout=WAIT_SECONDS)
        broken.clear()
        tell(journal, conversation, "first")
    assert conversation.encode() in path.with_name("tenax.db-witness").read_bytes()
    assert caplog.text.count("Cannot write the witness of the store") == 1


def test_two_processes_never_move_it_backwards(path: Path) -> None:
    """Each writes what it knows; the larger number stays, whoever is last."""
    with opened(path) as one, opened(path) as other:
        name = begin(one)
        tell(one, name, "by one")
        tell(other, name, "by the other")
        tell(other, name, "and again")
        other.close()
        assert _witnessed(path, name) == 4
        one.close()
        assert _witnessed(path, name) == 4


def test_a_conversation_is_proved_before_it_is_read(path: Path) -> None:
    """One changed letter in its last events: every way to read it says which event is not what was written."""
    with opened(path) as journal:
        broken, whole = begin(journal), begin(journal)
        for each in (broken, whole):
            tell(journal, each, "words as they were")
            tell(journal, each, "and more")
    connection = apsw.Connection(str(path))
    connection.execute(
        "update events set body = cast(replace(body, 'were', 'are!') as blob) where place >> 32 = "
        "(select num from conversations where id = ?)",
        (broken,),
    )
    connection.close()
    reads: list[Callable[[Journal], object]] = [
        lambda journal: journal.open(broken),
        lambda journal: journal.read(broken),
        lambda journal: journal.messages(broken),
    ]
    for read in reads:
        with opened(path) as journal:
            for _ in range(2):
                with pytest.raises(
                    StoreDamaged,
                    match=f"Event 2 of conversation {broken} is not what was written",
                ):
                    read(journal)
            assert said(journal, whole) == ["words as they were", "and more"]


def test_what_is_read_is_proved_however_far_back_it_stands(path: Path) -> None:
    """Every way to reach a changed event says so, also a fork, whose own chain would prove it."""
    with opened(path) as journal:
        name = begin(journal)
        journal.append(name, [say(f"words as they were {n}") for n in range(300)])
    connection = apsw.Connection(str(path))
    connection.execute(
        "update events set body = cast(replace(body, 'were', 'are!') as blob) where place & 0xffffffff = 52"
    )
    connection.close()
    reads: list[Callable[[Journal], object]] = [
        lambda journal: journal.read(name),
        lambda journal: journal.read(name, after=50, limit=2),
        lambda journal: journal.open(name, before=80),
        lambda journal: journal.messages(name),
        lambda journal: journal.messages(name, upto=60),
        lambda journal: journal.fact(name, 52),
        lambda journal: journal.fork(name),
        lambda journal: journal.fork(name, upto=60),
    ]
    for read in reads:
        with opened(path) as journal:
            assert len(journal.open(name, limit=40)) == 40
            assert journal.fact(name, 53)
            for _ in range(2):
                with pytest.raises(StoreDamaged, match="Event 52 of conversation"):
                    read(journal)
            assert len(journal.read(name, after=53, limit=200)) == 200
            assert len(journal.conversations()) == 1


def test_a_store_and_its_witness_that_are_overwritten_in_place_have_another_incarnation(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inode stays; but the witness came into its place later than it was written."""
    witness = path.with_name("tenax.db-witness")
    with monkeypatch.context() as patch:
        patch.setattr("tenax.journal.witness.time.time", lambda: 1_000_000.0)
        _, _, first = grown(path, tmp_path / "copy")
    with opened(path) as journal:
        incarnation = journal.incarnation
    with opened(path) as journal:
        assert journal.incarnation == incarnation
    Path(f"{path}-wal").unlink()
    for file in (path, witness):
        file.write_bytes((tmp_path / "copy" / file.name).read_bytes())
    with opened(path) as journal:
        assert journal.missing == []
        assert journal.incarnation not in {first, incarnation}
        incarnation = journal.incarnation
    with opened(path) as journal:
        assert journal.incarnation == incarnation


def test_a_store_that_is_put_back_under_a_running_process_takes_nothing_new(
    path: Path, tmp_path: Path
) -> None:
    """`.restore` of the sqlite3 shell keeps the file, and every process that has it open."""
    with opened(path) as journal:
        name = begin(journal)
        tell(journal, name, "first")
        copy_store(path, tmp_path / "copy")
        tell(journal, name, "second")
        tell(journal, name, "third")
        incarnation = journal.incarnation
        source, target = (
            apsw.Connection(str(tmp_path / "copy" / path.name)),
            apsw.Connection(str(path)),
        )
        with target.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step()
        target.close()
        source.close()
        with pytest.raises(StoreIncomplete):
            tell(journal, name, "new")
        assert [(each.have, each.upto) for each in journal.missing] == [(2, 4)]
        assert journal.incarnation != incarnation
        journal.store.accept_loss()
        tell(journal, name, "new")
        assert said(journal, name) == ["first", "new"]


def test_an_address_without_a_host_is_witnessed_by_the_server_it_reached() -> None:
    """PGHOST and PGPORT may name another server next time. The role does not matter."""
    one, other = (
        SimpleNamespace(host="127.0.0.1", port=port, dbname="tenax")
        for port in (5432, 5433)
    )
    ada, bob = (Link(f"postgresql://{role}@/tenax") for role in ("ada", "bob"))
    assert ada.name(one) == bob.name(one)  # type: ignore[arg-type]
    assert ada.name(one) != ada.name(other)  # type: ignore[arg-type]
    several = Link("postgresql://ada@first,second/tenax?port=5432,5433")
    one.host, other.host = "first", "second"
    assert several.name(one) == several.name(other)  # type: ignore[arg-type]

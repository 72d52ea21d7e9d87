"""The spool: what a run says while the store is away is on disk, once, in order, and reaches who ships it."""

from __future__ import annotations

import os
import resource
import struct
import threading
import zlib
from pathlib import Path

import pytest

from tenax.errors import StoreError, StoreFull, StoreMisused
from tenax.journal import spool as module
from tenax.journal.spool import ROOM_BYTES, HeldEvent, Spool, left
from tests.support.children import Child, Teller


def entry(text: str = "words", run: str = "r_1", index: int = 0) -> HeldEvent:
    return HeldEvent("ada", "c_1", run, "reply.delta", text.encode(), 1_000_000, index)


def texts(spool: Spool) -> list[str]:
    return [event.body.decode() for event in spool.read()]


def records(file: Path) -> bytes:
    """The bytes of all records: each begins with its length and a checksum."""
    data, at = file.read_bytes(), 0
    while length := struct.unpack_from("<I", data, at)[0]:
        at += 8 + length
    return data[:at]


def dead(_: str) -> bool:
    return False


def test_entries_come_back_as_written_numbered_in_each_run(tmp_path: Path) -> None:
    """In the order in which they were written; the spool gives the numbers."""
    spool = Spool(tmp_path / "spool", "i_1")
    for run in ("r_1", "r_2", "r_1", "r_1", "r_2"):
        spool.write(entry(f"of {run}", run, index=99))
    assert spool.read() == [
        entry("of r_1", "r_1", 0),
        entry("of r_2", "r_2", 0),
        entry("of r_1", "r_1", 1),
        entry("of r_1", "r_1", 2),
        entry("of r_2", "r_2", 1),
    ]
    spool.close(remove=False)


def test_its_room_is_taken_when_it_is_made(tmp_path: Path) -> None:
    """Really taken, not only promised, readable by its owner alone, and still taken when it was emptied."""
    spool = Spool(tmp_path / "spool", "i_1")
    file = tmp_path / "spool" / "i_1" / "spool"
    for _ in range(2):
        found = file.stat()
        assert (found.st_size, found.st_mode & 0o777) == (ROOM_BYTES, 0o600)
        assert found.st_blocks * 512 >= ROOM_BYTES
        spool.write(entry("x" * 1000))
        assert spool.read()
        assert spool.clear()
    spool.close(remove=True)


def test_nobody_else_may_put_a_spool_among_ours(tmp_path: Path) -> None:
    """Whatever new folders are like for this person: what lies there is handed in as what a run said."""
    before = os.umask(0)
    try:
        Spool(tmp_path / "spool", "i_1").close(remove=False)
    finally:
        os.umask(before)
    for each in (tmp_path / "spool", *(tmp_path / "spool").rglob("*")):
        assert each.stat().st_mode & 0o077 == 0, each


def fill(teller: Teller, folder: str) -> None:
    """Write until the file may not grow: what is past its room cannot be had."""
    spool = Spool(Path(folder), "i_1")
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES, ROOM_BYTES))
    written = 0
    try:
        while True:
            spool.write(entry("x" * 1_000_000))
            written += 1
    except StoreFull as error:
        teller.tell("full", written, str(error))
    spool.write(entry("small"))
    teller.tell("small", len(spool.read()), texts(spool)[-1])


def test_a_full_disk_leaves_it_its_room_and_is_then_told(tmp_path: Path) -> None:
    """What fits the room is written; what does not is refused with a sentence, and something smaller still fits."""
    child = Child(fill, str(tmp_path))
    assert child.finish() == 0
    full, small = child.lines
    assert full[:2] == ["full", "8"]
    assert "There is no room left for the spool" in " ".join(full)
    assert small == ["small", "9", "small"]


def test_it_grows_past_its_room_up_to_a_bound(tmp_path: Path) -> None:
    """The spool shrinks to its room after `clear`."""
    spool = Spool(tmp_path, "i_1", bytes_max=10_500_000)
    for n in range(10):
        spool.write(entry(str(n) * 1_000_000))
    assert [text[0] for text in texts(spool)] == list("0123456789")
    with pytest.raises(StoreFull, match="has reached its 10,500,000 bytes"):
        spool.write(entry("x" * 1_000_000))
    assert len(spool.read()) == 10
    assert spool.clear()
    assert (tmp_path / "i_1" / "spool").stat().st_size == ROOM_BYTES
    assert spool.read() == []
    spool.close(remove=True)


def test_numbers_go_on_after_it_was_emptied(tmp_path: Path) -> None:
    """A number is the identity of late output in its run: none is given twice. Nothing old comes back."""
    spool = Spool(tmp_path, "i_1")
    for text in ("one", "two", "six"):
        spool.write(entry(text))
    spool.read()
    assert spool.clear()
    assert spool.read() == []
    spool.write(entry("ten"))  # as long as what stood here before
    assert spool.read() == [entry("ten", index=3)]
    spool.close(remove=True)


def test_only_what_was_read_is_emptied(tmp_path: Path) -> None:
    """What was written after the last read is not in the store yet, so everything stays."""
    spool = Spool(tmp_path, "i_1")
    spool.write(entry("shipped"))
    assert not spool.clear()
    spool.read()
    spool.write(entry("new"))
    assert not spool.clear()
    assert texts(spool) == ["shipped", "new"]
    assert spool.clear()
    spool.close(remove=True)


def test_a_record_that_was_not_finished_ends_it_wherever_it_was_cut(
    tmp_path: Path,
) -> None:
    """Every way to lose the end of the last record leaves the ones before it, and one can be written after them."""
    spool = Spool(tmp_path, "i_1")
    file = tmp_path / "i_1" / "spool"
    spool.write(entry("first"))
    start = records(file)
    spool.write(entry("second"))
    whole = records(file)
    spool.close(remove=False)
    for size in range(len(start), len(whole)):
        for rest in (b"", bytes(64), b"\xff" * 64):
            file.write_bytes(whole[:size] + rest)
            (found,) = left(tmp_path, dead)
            assert texts(found) == ["first"]
            found.close(remove=False)
    again = Spool(tmp_path, "i_1")
    again.write(entry("third"))
    assert again.read() == [entry("first"), entry("third", index=1)]
    again.close(remove=True)


def test_what_is_left_of_a_failed_write_is_never_taken_for_a_record(
    tmp_path: Path,
) -> None:
    """Not even where it holds the bytes of one."""
    spool = Spool(tmp_path, "i_1")
    file = tmp_path / "i_1" / "spool"
    spool.write(entry("real"))
    real = records(file)
    spool.read()
    assert spool.clear()
    for shift in range(len(real)):
        with file.open("r+b") as torn:
            torn.write(struct.pack("<II", 5000, 1) + bytes(shift) + real * 3)
        spool.write(entry("next"))
        assert texts(spool) == ["next"]
        assert spool.clear()
    spool.close(remove=True)


def test_a_flush_that_fails_is_told_and_the_entry_can_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it is not there, so its number goes to no other; then it is there once."""
    spool = Spool(tmp_path, "i_1")
    spool.write(entry("first"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, "flush", full)
        with pytest.raises(StoreFull):
            spool.write(entry("second"))
    assert texts(spool) == ["first"]
    spool.write(entry("second"))
    assert spool.read() == [entry("first"), entry("second", index=1)]
    spool.close(remove=True)


def test_several_threads_may_write(tmp_path: Path) -> None:
    """Each run's entries stay in order."""
    spool = Spool(tmp_path, "i_1")

    def talk(run: str) -> None:
        for n in range(50):
            spool.write(entry(str(n), run))

    threads = [threading.Thread(target=talk, args=(f"r_{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = spool.read()
    for n in range(4):
        of_run = [each for each in entries if each.run == f"r_{n}"]
        assert [(each.index, each.body) for each in of_run] == [
            (i, str(i).encode()) for i in range(50)
        ]
    spool.close(remove=True)


def test_a_closed_spool_is_not_used_and_a_removed_one_is_gone(tmp_path: Path) -> None:
    """Closing it twice does nothing."""
    spool = Spool(tmp_path, "i_1")
    spool.close(remove=True)
    spool.close(remove=True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreMisused, match="was closed"):
        spool.write(entry())


def test_what_is_left_of_the_dead_is_found_and_the_living_are_left_alone(
    tmp_path: Path,
) -> None:
    """By the lock of the writer too: a store that is away may think that an instance is dead."""
    mine, other = Spool(tmp_path, "i_mine"), Spool(tmp_path, "i_other")
    other.write(entry("of the dead"))
    other.close(remove=False)
    assert left(tmp_path, lambda _: True) == []
    (found,) = left(tmp_path, dead)
    assert (found.instance, texts(found)) == ("i_other", ["of the dead"])
    assert left(tmp_path, dead) == []  # it is being shipped
    assert found.clear()
    found.close(remove=True)
    assert left(tmp_path, dead) == []
    assert [path.name for path in tmp_path.iterdir()] == ["i_mine"]
    mine.close(remove=True)
    assert left(tmp_path / "none", dead) == []


def test_a_sweep_that_cannot_ask_who_is_alive_keeps_nothing(tmp_path: Path) -> None:
    """The next one finds everything."""
    for name in ("i_1", "i_2"):
        Spool(tmp_path, name).close(remove=False)

    def ask(name: str) -> bool:
        if name == "i_2":
            raise ConnectionError
        return False

    with pytest.raises(ConnectionError):
        left(tmp_path, ask)
    found = left(tmp_path, dead)
    assert [each.instance for each in found] == ["i_1", "i_2"]
    for each in found:
        each.close(remove=True)


def test_a_spool_that_cannot_be_read_stays_and_does_not_hold_up_the_others(
    tmp_path: Path,
) -> None:
    """A record that is whole and means nothing to this version is not thrown away."""
    for name in ("i_1", "i_2"):
        Spool(tmp_path, name).close(remove=False)
    with (tmp_path / "i_1" / "spool").open("r+b") as file:
        file.write(struct.pack("<II", 3, zlib.crc32(b"???", 3)) + b"???")
    (found,) = left(tmp_path, dead)
    assert found.instance == "i_2"
    found.close(remove=True)
    assert (tmp_path / "i_1" / "spool").exists()


def test_a_folder_without_a_spool_is_tidied_and_one_without_a_lock_is_found(
    tmp_path: Path,
) -> None:
    """Somebody died while making the one or removing the other."""
    (tmp_path / "i_1").mkdir()
    (tmp_path / "i_2").mkdir()
    (tmp_path / "i_2" / "lock").touch()
    spool = Spool(tmp_path, "i_3")
    spool.write(entry())
    spool.close(remove=False)
    (tmp_path / "i_3" / "lock").unlink()
    (found,) = left(tmp_path, dead)
    assert texts(found) == ["words"]
    found.close(remove=True)
    assert list(tmp_path.iterdir()) == []


def fork(teller: Teller, folder: str) -> None:
    """Write to a spool from a child that was forked after it was made."""
    spool = Spool(Path(folder), "i_1")
    child = os.fork()
    if child == 0:
        try:
            spool.write(entry())
        except StoreMisused:
            os._exit(7)
        os._exit(0)
    teller.tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(spool.read()))


def test_a_forked_child_does_not_use_its_parents_spool(tmp_path: Path) -> None:
    """It would write over what the parent writes."""
    parent = Child(fork, str(tmp_path))
    assert parent.finish() == 0
    assert parent.lines == [["7", "0"]]


def test_a_folder_that_a_sweep_takes_away_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there, and is not any more when Python looks whether it is a folder."""
    is_dir = Path.is_dir
    taken: list[Path] = []

    def swept(self: Path) -> bool:
        if self.name == "i_1.1" and not taken:
            taken.append(self)
            self.rmdir()
        return is_dir(self)

    (tmp_path / "i_1.1").mkdir()
    monkeypatch.setattr(Path, "is_dir", swept)
    spool = Spool(tmp_path, "i_1.1")
    assert (taken, spool.read()) == ([tmp_path / "i_1.1"], [])
    spool.close(remove=True)
    (tmp_path / "i_2.1").write_text("a file of somebody's")
    with pytest.raises(StoreError, match="i_2"):
        Spool(tmp_path, "i_2.1")

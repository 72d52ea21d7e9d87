"""Opening a store that cannot be opened, and a store that goes away: one clear sentence, nothing lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

import tenax
from tenax.errors import (
    CannotOpen,
    OutcomeUnknown,
    SchemaTooNew,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreMisused,
    StoreUnavailable,
)
from tenax.journal import Journal, exists
from tenax.journal.verify.store import verify
from tenax.testing import memory
from tests.contract.engine.base import begin, said, say
from tests.contract.failing_vfs import Fault, FaultVfs
from tests.support import raw
from tests.support.children import Child, Teller, finish_all

pytestmark = pytest.mark.crash

OPENERS = 6
NOBODY = 65534


def refusal(path: Path, error: type[StoreError] = CannotOpen) -> str:
    """What is said when this cannot be opened: one sentence, with the place in it, and something to do."""
    with pytest.raises(error) as caught:
        tenax.open(f"sqlite:///{path}")
    said = str(caught.value)
    assert said.endswith(".")
    assert "\n" not in said
    assert "Traceback" not in said
    assert caught.value.hint
    return said


# -- places ------------------------------------------------------------------------------------------------------


def test_nobody_else_can_read_a_store(tmp_path: Path) -> None:
    """Whatever the umask, and whoever may look into its folder."""
    tmp_path.chmod(0o755)
    before = os.umask(0)
    try:
        with tenax.open(f"sqlite:///{tmp_path}/tenax.db") as journal:
            begin(journal, say("for my eyes"))
            assert journal.instance
            assert journal.search("eyes").hits
            modes = {
                path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()
            }
    finally:
        os.umask(before)
    assert {
        "tenax.db",
        "tenax.db-wal",
        "tenax.db-lock",
        "tenax.db-instances",
    } <= modes.keys()
    assert not any(modes.values()), modes


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The sentence says which folder there is not, and nothing is made."""
    assert "missing" in refusal(tmp_path / "missing" / "tenax.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    """A store is a file."""
    (tmp_path / "tenax.db").mkdir()
    assert "folder" in refusal(tmp_path / "tenax.db")


def open_as_nobody(teller: Teller, path: str) -> None:
    if os.geteuid() == 0:
        # Python itself may lie where nobody can read, so everything is imported first
        memory().close()
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        tenax.open(f"sqlite:///{path}").close()
    except CannotOpen as error:
        teller.tell("refused", str(error).endswith("."), bool(error.hint))
    except BaseException as error:  # noqa: BLE001  (whatever else it is, it is told)
        teller.tell(repr(error))
    else:
        teller.tell("opened")


@pytest.mark.parametrize("made", [False, True], ids=["new", "made"])
def test_a_folder_that_cannot_be_written_to_is_refused(made: bool) -> None:
    """Read-only folder or file: a sentence, and the store is as it was."""
    folder = Path(tempfile.mkdtemp(prefix="tenax-readonly-", dir="/tmp"))
    try:
        path = folder / "tenax.db"
        if made:
            with tenax.open(f"sqlite:///{path}") as journal:
                begin(journal, say("here"), name="c-1")
        folder.chmod(0o555)
        child = Child(open_as_nobody, str(path))
        assert child.finish() == 0
        assert child.lines == [["refused", "True", "True"]]
        folder.chmod(0o755)
        if made:
            assert list(raw.stored(path)["c-1"].values()) == ["here"]
        else:
            assert list(folder.iterdir()) == []
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount nearest to the store decides."""
    point = str(tmp_path).replace(" ", "\\040")
    mounts = f"/dev/sda1 / ext4 rw 0 0\nserver:/x {point} {kind} rw 0 0\n/dev/sdb1 {point}/local ext4 rw 0 0\n"
    read_text = Path.read_text

    def read(path: Path, *args: str) -> str:
        return mounts if str(path) == "/proc/self/mounts" else read_text(path, *args)

    monkeypatch.setattr(Path, "read_text", read)
    assert kind in refusal(tmp_path / "tenax.db")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "local").mkdir()
    tenax.open(f"sqlite:///{tmp_path}/local/tenax.db").close()


@pytest.mark.parametrize(
    "url", ["", "tenax.db", "mysql://x", "sqlite://x", "postgresql:", "file:///x"]
)
def test_an_address_of_no_store_is_refused(url: str) -> None:
    """The sentence says how a store is named."""
    with pytest.raises(CannotOpen, match=r"sqlite:///PATH or postgresql://"):
        tenax.open(url)


# -- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"some notes\n" * 500, b"SQLite format 3\x00" + b"\xff" * 5000, b"xy"]
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    """Somebody's notes are not overwritten."""
    path = tmp_path / "tenax.db"
    path.write_bytes(content)
    refusal(path)
    assert path.read_bytes() == content


def test_the_database_of_another_program_is_refused_and_left_alone(
    tmp_path: Path,
) -> None:
    """No table is added to it."""
    path = tmp_path / "tenax.db"
    with apsw.Connection(str(path)) as other:
        other.execute("create table notes (text); insert into notes values ('mine')")
    other.close()
    before = path.read_bytes()
    assert "another program" in refusal(path)
    assert path.read_bytes() == before


def test_a_damaged_store_says_so(tmp_path: Path) -> None:
    """Rubbish in the middle of the file is no traceback, and names the tool that finds out more."""
    path = tmp_path / "tenax.db"
    with tenax.open(f"sqlite:///{path}") as journal:
        begin(journal, *(say("x" * 3000) for _ in range(50)), name="c-1")
        journal.store.scrub()
    with path.open("r+b") as file:
        for page in range(2, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\x5a" * 4096)
    try:
        with (
            tenax.open(f"sqlite:///{path}") as journal,
            pytest.raises(StoreDamaged, match=r"\.$") as caught,
        ):
            journal.read("c-1")
        assert "doctor" in caught.value.hint
    except CannotOpen as error:
        assert str(error).endswith(".")  # noqa: PT017  (it may be seen as early as that)


def bump(path: Path) -> None:
    """A newer Tenax comes by."""
    with apsw.Connection(str(path)) as other:
        other.execute("update store set schema = schema + 1")
    other.close()


def test_a_newer_schema_is_refused_at_open(tmp_path: Path) -> None:
    """An older Tenax does not touch what a newer one has changed."""
    path = tmp_path / "tenax.db"
    tenax.open(f"sqlite:///{path}").close()
    bump(path)
    assert "newer" in refusal(path, SchemaTooNew)


def test_a_newer_schema_is_refused_at_append(tmp_path: Path) -> None:
    """A process that runs while the store is upgraded stops writing, says `restart`, and loses nothing."""
    path = tmp_path / "tenax.db"
    with tenax.open(f"sqlite:///{path}") as journal:
        name = begin(journal, say("before"))
        bump(path)
        for _ in range(2):
            with pytest.raises(SchemaTooNew, match="newer") as caught:
                journal.append(name, [say("after")])
            assert "restart" in caught.value.hint
        with pytest.raises(SchemaTooNew):
            begin(journal)
        assert said(journal, name) == ["before"]


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_store_that_vanishes_under_a_process_is_noticed(
    tmp_path: Path, how: str
) -> None:
    """No append is acknowledged that would go into a file nobody will find again."""
    path = tmp_path / "tenax.db"
    journal = tenax.open(f"sqlite:///{path}")
    name = begin(journal, say("before"))
    if how == "replaced":
        other = tmp_path / "other" / "tenax.db"
        other.parent.mkdir()
        tenax.open(f"sqlite:///{other}").close()
        shutil.move(other, path)
    else:
        path.rename(tmp_path / "elsewhere.db")
        if how == "deleted":
            (tmp_path / "elsewhere.db").unlink()
    with pytest.raises(StoreUnavailable, match=r"moved, replaced or deleted") as caught:
        journal.append(name, [say("after")])
    assert caught.value.hint
    journal.close()


def test_a_store_that_was_away_for_a_moment_has_lost_nothing(tmp_path: Path) -> None:
    """An empty file in its place would make SQLite take the log for a leftover, and delete it with all that is in it."""
    path, elsewhere, copy = (
        tmp_path / "tenax.db",
        tmp_path / "elsewhere.db",
        tmp_path / "copy",
    )
    with tenax.open(f"sqlite:///{path}") as journal:
        name = begin(journal, say("before"))
        path.rename(elsewhere)
        with pytest.raises(StoreUnavailable, match=r"moved, replaced or deleted"):
            journal.read(name)
        with (
            journal.store.wakeups.listening(1, lambda: None),
            pytest.raises(StoreUnavailable),
        ):
            journal.append(name, [say("after")])
        assert "put it back" in refusal_hint(path)
        assert not path.exists()
        elsewhere.rename(path)
        copy.mkdir()
        # what is left when every process is killed
        for each in (path, Path(f"{path}-wal")):
            shutil.copy(each, copy)
        assert said(journal, name) == ["before"]
        journal.append(name, [say("back again")])
    with tenax.open(f"sqlite:///{copy}/tenax.db") as journal:
        assert said(journal, name) == ["before"]


def test_a_log_without_its_store_is_not_taken_for_nothing(tmp_path: Path) -> None:
    """Who only looks, as `tenax list` does, is not told that there is no store yet: opening it says what is wrong."""
    path = tmp_path / "tenax.db"
    assert not exists(f"sqlite:///{path}")
    with tenax.open(f"sqlite:///{path}") as journal:
        begin(journal, say("before"))
        path.rename(tmp_path / "elsewhere.db")
        assert exists(f"sqlite:///{path}")
        (tmp_path / "elsewhere.db").rename(path)


def refusal_hint(path: Path) -> str:
    """What to do where this cannot be opened."""
    with pytest.raises(CannotOpen) as caught:
        tenax.open(f"sqlite:///{path}")
    return caught.value.hint


# -- room --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two mebibytes. Without the right to mount one, a disk that says it is full."""
    point = tmp_path / "small"
    point.mkdir()
    mounted = not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", point],
        check=False,
        capture_output=True,
    ).returncode
    yield point
    if mounted:
        subprocess.run(["umount", "-l", point], check=True)


def test_a_full_disk_is_said_and_nothing_acknowledged_is_lost(small_disk: Path) -> None:
    """Appends are refused with a sentence until there is room again, and then go on by themselves."""
    path = small_disk / "tenax.db"
    stored: list[str] = []
    with FaultVfs() as disk:
        journal = disk.open(path, patience=0.5)
        name = begin(journal)
        if not os.path.ismount(small_disk):
            disk.fail("write", Fault.FULL, nth=200, times=None)
        refused = fill(journal, name, stored)
        assert isinstance(refused, StoreFull | OutcomeUnknown)
        assert "room" in str(refused)
        assert said(journal, name)[: len(stored)] == stored
        (small_disk / "ballast").unlink(missing_ok=True)
        disk.heal()
        if isinstance(refused, OutcomeUnknown):
            text = f"{len(stored)} " + "x" * 20_000
            journal.append(name, [say(text)], append_id=refused.append_id)
            stored.append(text)
        journal.append(name, [say("room again")])
        assert said(journal, name) == [*stored, "room again"]
        assert verify(journal).problems == []
        journal.close()


def fill(journal: Journal, name: str, stored: list[str]) -> StoreFull | OutcomeUnknown:
    """Append until there is no room."""
    ballast = journal.store.path.parent / "ballast"  # type: ignore[attr-defined]
    ballast.write_bytes(bytes(400_000))
    while True:
        text = f"{len(stored)} " + "x" * 20_000
        try:
            journal.append(name, [say(text)])
        except (StoreFull, OutcomeUnknown) as error:
            return error
        stored.append(text)


# -- together ----------------------------------------------------------------------------------------------------


def open_and_say(teller: Teller, url: str, me: int) -> None:
    with tenax.open(url) as journal:
        begin(journal, say(f"{me}"), name=f"c-{me}")
        teller.tell("opened", journal.incarnation)


def test_processes_that_make_the_same_store_at_once_share_it(bare_url: str) -> None:
    """One of them makes it, the others find it made; all of them can write."""
    children = [Child(open_and_say, bare_url, me) for me in range(OPENERS)]
    assert finish_all(children) == [0] * OPENERS
    assert len({line[1] for child in children for line in child.lines}) == 1
    with tenax.open(bare_url) as journal:
        assert {summary.conversation for summary in journal.conversations()} == {
            f"c-{me}" for me in range(OPENERS)
        }
        assert verify(journal).problems == []


def test_threads_that_make_the_same_store_at_once_share_it(tmp_path: Path) -> None:
    """The same inside one process."""
    start = threading.Barrier(OPENERS)

    def work(me: int) -> str:
        start.wait()
        with tenax.open(f"sqlite:///{tmp_path}/tenax.db") as journal:
            begin(journal, say(f"{me}"), name=f"c-{me}")
            return journal.incarnation

    with ThreadPoolExecutor(OPENERS) as pool:
        assert len(set(pool.map(work, range(OPENERS)))) == 1
    with tenax.open(f"sqlite:///{tmp_path}/tenax.db") as journal:
        assert len(journal.conversations()) == OPENERS


@pytest.mark.parametrize(
    "call", [lambda journal: journal.close(), lambda journal: journal.of("bob").close()]
)
def test_appends_that_wait_are_answered_when_the_store_is_closed(
    tmp_path: Path, call: Callable[[Journal], None]
) -> None:
    """Closing while others append: each of them is told that it is stored, or that the store was closed."""
    journal = tenax.open(f"sqlite:///{tmp_path}/tenax.db")
    name = begin(journal)
    start = threading.Barrier(OPENERS + 1)
    told: list[str] = []

    def work(me: int) -> None:
        start.wait()
        for n in range(200):
            try:
                journal.append(name, [say(f"{me}.{n}")])
            except StoreMisused:
                return
            told.append(f"{me}.{n}")

    with ThreadPoolExecutor(OPENERS) as pool:
        workers = [pool.submit(work, me) for me in range(OPENERS)]
        start.wait()
        while len(told) < OPENERS:
            threading.Event().wait(0.001)
        call(journal)
        for worker in workers:
            worker.result()
    with tenax.open(f"sqlite:///{tmp_path}/tenax.db") as journal:
        assert sorted(said(journal, name)) == sorted(told)

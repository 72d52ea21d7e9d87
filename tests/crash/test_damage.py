"""Damaged files: each is named or harmless, none is served as true, and `doctor` never ends in a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import apsw
import pytest

import tenax
from tenax.cli import tenax as command
from tenax.cli.frame import run
from tenax.errors import StoreDamaged, StoreError, StoreIncomplete, TenaxError
from tenax.journal import Journal, exists, sqlite
from tests.contract.engine.base import answer, begin, say, turn
from tests.support.damage import FILES, Snapshots, snapshot
from tests.support.world import build

pytestmark = pytest.mark.crash

CASES = 40
CASES_AT_NIGHT = 200
USERS = ("ada", "local")
Shown = dict[str, list[tuple[int, bytes]]]
"""By conversation: the numbers and bodies of the messages that stand."""


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Snapshots:
    """A store whose file and log both hold something, some time before, and another one."""
    folder = tmp_path_factory.mktemp("stores")
    for name in ("store", "else"):
        (folder / name).mkdir()
    _make(
        folder / "else" / "tenax.db",
        folder / "unused",
        folder / "other",
        "Other words.",
    )
    _make(
        folder / "store" / "tenax.db", folder / "before", folder / "now", "These words."
    )
    return Snapshots(folder / "now", folder / "before", folder / "other")


def _make(path: Path, before: Path, now: Path, words: str) -> None:
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        build(journal)
        names = [begin(journal, say(f"{words} {n}" * 40)) for n in range(20)]
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        assert journal.store.witness is not None
        journal.append(names[0], [say(words)])
        journal.store.witness.save()
        snapshot(path, before)
        for n, name in enumerate(names):
            journal.append(
                name, [say(f"{words} {n}"), answer(f"Answer to {words} {n}" * 50)]
            )
            turn(journal, name, "r-1")
        journal.store.witness.save()
        snapshot(path, now)


def _shown(journal: Journal) -> Shown:
    found: Shown = {}
    for user in USERS:
        of = journal.of(user)
        for summary in of.conversations(limit=1000):
            name = summary.conversation
            of.open(name)
            found[name] = [
                (message.seq, message.body or b"") for message in of.messages(name)
            ]
    return found


@pytest.fixture(scope="module")
def truth(snapshots: Snapshots, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    home = tmp_path_factory.mktemp("truth")
    for file in snapshots.now.iterdir():
        (home / file.name).write_bytes(file.read_bytes())
    with tenax.open(f"sqlite:///{home}/tenax.db", user="ada") as journal:
        assert journal.missing == []
        return _shown(journal)


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("TENAX_STORE", "TENAX_CONFIG", "TENAX_LOG", "TENAX_MODEL"):
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as patch:
        patch.setenv("TENAX_HOME", str(tmp_path / "home"))
        yield tmp_path


def check(snapshots: Snapshots, truth: Shown, folder: Path, seed: int) -> str:
    """One damaged store: what became of it."""
    home = folder / "home"
    home.mkdir()
    what = snapshots.damage(seed, home)
    served = _serve(home / "tenax.db", truth, what)
    code, words = _doctor()
    assert "Traceback" not in words, what
    assert code in {0, 1}, f"{what}: {words}"
    if code == 0:
        assert served == "as it was", (
            f"{what}: {served}, and doctor says it is in order"
        )
    home.rename(folder / f"done-{seed}")
    return f"{served}, {code}"


def _serve(path: Path, truth: Shown, what: str) -> str:
    """Open it as a server does, read everything, and try to go on."""
    try:
        with tenax.open(f"sqlite:///{path}", user="ada") as journal:
            try:
                shown = _shown(journal)
            except StoreDamaged:
                return "damage was named"
            if journal.missing:
                with pytest.raises(StoreIncomplete):
                    begin(journal)
                return "incomplete"
            for name, messages in shown.items():
                assert set(messages) <= set(truth.get(name, [])), (
                    f"{what}: {name} shows what nobody wrote"
                )
            return "as it was" if shown == truth else "other than it was"
    except TenaxError:
        return "refused"


def _doctor() -> tuple[int, str]:
    words = io.StringIO()
    with redirect_stdout(words), redirect_stderr(words):
        code = run(command, ["doctor"])
    return code, words.getvalue()


def test_damaged_files_are_named_or_harmless(
    snapshots: Snapshots, truth: Shown, homes: Path
) -> None:
    """The log of another store, cut files, flipped bits, emptied pages, exchanged files."""
    outcomes = [check(snapshots, truth, homes, seed) for seed in range(CASES)]
    assert len(set(outcomes)) > 2, outcomes


@pytest.mark.nightly
def test_two_hundred_damaged_files_are_named_or_harmless(
    snapshots: Snapshots, truth: Shown, homes: Path
) -> None:
    for seed in range(CASES, CASES_AT_NIGHT):
        check(snapshots, truth, homes, seed)


def test_a_file_that_was_cut_short_takes_no_message(tmp_path: Path) -> None:
    """Whatever is cut off: the last page or nearly everything."""
    path = tmp_path / "tenax.db"
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        build(journal)
    # the log still holds what was copied from it
    for name in ("tenax.db-wal", "tenax.db-shm"):
        path.with_name(name).unlink(missing_ok=True)
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) - 4096, len(whole) // 2, 2 * 4096):
        path.write_bytes(whole[:length])
        with pytest.raises(
            StoreError, match=r"was cut short: .* pages are missing|is malformed"
        ) as caught:
            tenax.open(f"sqlite:///{path}", user="ada")
        assert caught.value.hint
        path.with_name("tenax.db-wal").unlink(missing_ok=True)
    path.write_bytes(whole)
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        begin(journal)


def test_the_log_of_another_store_harms_nothing(
    tmp_path: Path, snapshots: Snapshots
) -> None:
    """SQLite takes it for this store's. The file stays as it is, and without that log everything is there again."""
    path = tmp_path / "tenax.db"
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        build(journal)
        name = begin(journal, say("Mine."))
    before = path.read_bytes()
    log, index = path.with_name("tenax.db-wal"), path.with_name("tenax.db-shm")
    index.unlink(missing_ok=True)
    log.write_bytes((snapshots.other / "tenax.db-wal").read_bytes())
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        assert name in {each.conversation for each in journal.missing}
        with pytest.raises(StoreIncomplete):
            begin(journal)
    assert path.read_bytes() == before
    log.unlink()
    index.unlink(missing_ok=True)
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        assert journal.missing == []
        begin(journal)


def test_a_file_that_shrinks_while_it_is_opened_was_not_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process gives the pages of a deleted conversation back, between two looks at the file."""
    path = tmp_path / "tenax.db"
    logged_pages = sqlite.logged_pages

    def shrink_first(log: Path) -> set[int]:
        other = apsw.Connection(str(path))
        with contextlib.suppress(apsw.BusyError):
            other.execute("pragma incremental_vacuum").fetchall()
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        other.close()
        shrunk.append(log)
        return logged_pages(log)

    shrunk: list[Path] = []
    monkeypatch.setattr(sqlite, "logged_pages", shrink_first)
    with tenax.open(f"sqlite:///{path}") as journal:
        with monkeypatch.context() as patch:
            patch.setattr(journal.store, "scrub", lambda: False)
            journal.delete(begin(journal, say("x" * 400_000)))
        with tenax.open(f"sqlite:///{path}") as another:
            assert another.missing == []
    assert shrunk


def test_a_store_behind_a_link_is_in_order(tmp_path: Path) -> None:
    """All its files lie beside the target, whichever way it is opened."""
    target, link = tmp_path / "disk" / "real.db", tmp_path / "home" / "tenax.db"
    for folder in (target.parent, link.parent):
        folder.mkdir()
    link.symlink_to(target)
    with tenax.open(f"sqlite:///{link}") as journal:
        name = begin(journal, say("x" * 400_000))
        # the pages are in the log, not in the file
        with tenax.open(f"sqlite:///{link}") as another:
            assert another.missing == []
    assert list(link.parent.iterdir()) == [link]
    for suffix in ("", "-wal", "-shm"):
        Path(f"{target}{suffix}").unlink()
    assert exists(f"sqlite:///{link}")  # its witness is there
    # where an earlier version kept it
    Path(f"{target}-witness").rename(f"{link}-witness")
    with tenax.open(f"sqlite:///{link}") as journal:
        assert [missing.conversation for missing in journal.missing] == [name]


def test_text_that_is_not_utf_8_is_damage_in_every_column(
    tmp_path: Path, homes: Path, snapshots: Snapshots
) -> None:
    """Whatever column holds it: `doctor` ends well, and whoever reads it gets an error of Tenax or nothing wrong."""
    home = homes / "home"
    home.mkdir()
    path = home / "tenax.db"
    shutil.copy(snapshots.now / "tenax.db", path)
    shutil.copy(snapshots.now / "tenax.db-wal", home)
    with tenax.open(f"sqlite:///{path}", user="ada"):  # closing it copies the log back
        pass
    Path(f"{path}-wal").unlink()
    whole = path.read_bytes()
    columns = _text_columns(path)
    assert len(columns) > 40
    named = 0
    for table, column in columns:
        path.write_bytes(whole)
        for suffix in ("-wal", "-shm", "-witness"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        damaged = apsw.Connection(str(path))
        damaged.execute("pragma synchronous = off; pragma foreign_keys = off")
        damaged.execute(
            f"update {table} set {column} = cast(x'61e4' as text) where {column} = "
            f"(select {column} from {table} where {column} is not null limit 1)"
        )
        damaged.close()
        with (
            contextlib.suppress(TenaxError),
            tenax.open(f"sqlite:///{path}", user="ada") as journal,
        ):
            _shown(journal)
        code, words = _doctor()
        assert code in {0, 1}, (table, column, words)
        assert "Traceback" not in words
        named += code
    # doctor does not read every column, of leases for example
    assert named > len(columns) // 2


def _text_columns(path: Path) -> list[tuple[str, str]]:
    """Every column of text that holds something."""
    connection = apsw.Connection(str(path))
    tables = connection.execute(
        "select name from sqlite_schema where type = 'table' and name not like 'sqlite_%'"
    ).fetchall()
    columns = [
        (str(table), str(column))
        for (table,) in tables
        for _, column, kind, *_ in connection.execute(
            f"pragma table_info({table})"
        ).fetchall()
        if str(kind).lower() == "text"
        and connection.execute(
            f"select 1 from {table} where {column} is not null limit 1"
        ).fetchall()
    ]
    connection.close()
    return columns


def test_a_store_that_is_refused_keeps_its_files_as_they_are(
    tmp_path: Path, snapshots: Snapshots
) -> None:
    """The log is not copied into a file that was cut short: what can be rescued stays in both."""
    for name in FILES:
        shutil.copy(snapshots.now / name, tmp_path)
    path, log = tmp_path / "tenax.db", tmp_path / "tenax.db-wal"
    os.truncate(path, path.stat().st_size // 2)
    before = path.read_bytes(), log.read_bytes()
    with pytest.raises(StoreDamaged, match="was cut short"):
        tenax.open(f"sqlite:///{path}", user="ada")
    assert (path.read_bytes(), log.read_bytes()) == before

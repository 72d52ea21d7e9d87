"""`kill -9` of a backup, a restore, an adoption, a move, an export and an import at every step: nothing is left half done."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import tenax
from tenax.archive.format import BackupFolder
from tenax.archive.service import back_up, restore
from tenax.config import load
from tenax.events import MessageUser
from tenax.journal import exists
from tenax.journal.verify.store import verify
from tenax.parts import File
from tests.archive.conftest import count_rows, read_tables
from tests.cli.test_import import chat, write
from tests.contract.engine.base import answer, begin, say
from tests.support.counts import repeat
from tests.support.postgres import PostgresServer
from tests.support.served import ROOT, environment
from tests.support.world import build

pytestmark = pytest.mark.crash

KILLED: Final = -9
ROUNDS: Final = repeat(1, 10)


class Step(NamedTuple):
    """The call at which the process dies: before or after the n-th call of a function."""

    name: str
    function: str
    when: str = "before"
    call: int = 1


BACKUP: Final = (
    Step("while objects are written", "tenax.archive.format:BackupFolder._put", call=3),
    Step("before the test", "tenax.archive.service:_test"),
    Step("while the scratch store is filled", "tenax.archive.restore:_insert", call=3),
    Step("while the scratch store is verified", "tenax.archive.service:prove"),
    Step("before the manifest is stored", "tenax.archive.format:BackupFolder.commit"),
    Step("after the manifest is stored", "tenax.archive.format:BackupFolder.commit", "after"),
    Step("while old backups are deleted", "pathlib:Path.unlink", "after"),
)  # fmt: skip
RESTORE: Final = (
    Step("before the tables exist", "tenax.journal:NewStore.begin"),
    Step("while the store is filled", "tenax.archive.restore:_insert", call=4),
    Step("after the store is filled", "tenax.archive.service:finish_index"),
    Step("after the store is verified", "tenax.archive.service:prove", "after"),
    Step("before the store is published", "tenax.journal:NewStore.publish"),
    Step("after the store is published", "tenax.journal:NewStore.publish", "after"),
)
MOVE: Final = (
    Step("before the tables exist", "tenax.journal:NewStore.begin"),
    Step("while the tables are copied", "tenax.archive.service:_copy", "after"),
    Step("after the copy is verified", "tenax.archive.service:prove", "after"),
    Step("before the copy is published", "tenax.journal:NewStore.publish"),
    Step("before the settings change", "tenax.cli.backup:change_settings"),
    Step("after the settings change", "tenax.cli.backup:change_settings", "after"),
)

EXPORT: Final = (
    Step("before the first line", "tenax.export.lossless:write"),
    Step(
        "between two conversations", "tenax.export.lossless:_Writer.read_next", call=2
    ),
)
IMPORT: Final = (
    Step("before the first conversation", "tenax.journal.journal:Journal.carry"),
    Step("after an attachment", "tenax.journal.journal:Journal.put_blob", "after"),
    Step("after the first conversation", "tenax.journal.journal:Journal.carry", "after"),
    Step("before the last conversation", "tenax.journal.journal:Journal.carry", call=3),
    Step("after the last conversation", "tenax.journal.journal:Journal.carry", "after", 3),
)  # fmt: skip
FOREIGN: Final = (
    Step("before the first conversation", "tenax.journal.journal:Journal.load"),
    Step("between two conversations", "tenax.journal.journal:Journal.load", "after"),
    Step("before more messages", "tenax.journal.journal:Journal.extend"),
    Step("after more messages", "tenax.journal.journal:Journal.extend", "after"),
)
ADOPT: Final = (
    Step("before the verification", "tenax.archive.service:verify"),
    Step("after the verification", "tenax.archive.service:verify", "after"),
    Step("while leases and instances go", "tenax.archive.service:settle_in"),
    Step("before the commit", "tenax.archive.service:settle_in", "after"),
    Step("after the commit", "tenax.journal.store:Store.accept_loss"),
    Step("at the end", "tenax.journal.store:Store.accept_loss", "after"),
)

# Python runs this when the command starts.
_KILL: Final = """
import sys
if "tenax" in " ".join(sys.orig_argv):
    import importlib, os, signal
    module, _, path = {function!r}.partition(":")
    owner = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    real, calls = getattr(owner, name), 0
    def dies(*args, **kwargs):
        global calls
        calls += 1
        if calls == {call} and {when!r} == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if calls == {call}:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, dies)
"""


class Place:
    """An installation, and what its commands do."""

    def __init__(self, home: Path, url: str) -> None:
        self.home = home
        home.mkdir()
        (home / "config.toml").write_text(f'[store]\nurl = "{url}"\n')

    @property
    def url(self) -> str:
        return load({"TENAX_HOME": str(self.home)}).store_url

    def run(self, *arguments: str, step: Step | None = None) -> int:
        """Run a command. With a step, the process dies there."""
        patches = self.home / "patches"
        patches.mkdir(exist_ok=True)
        file = patches / "sitecustomize.py"
        file.unlink(missing_ok=True)
        if step is not None:
            file.write_text(
                _KILL.format(function=step.function, call=step.call, when=step.when)
            )
        env = environment(self.home, PYTHONPATH=f"{patches}:{ROOT}")
        env.pop("TENAX_STORE", None)
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tenax", *arguments],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in {0, KILLED}, done.stderr
        return done.returncode


class Stores:
    """New places for stores on an engine."""

    def __init__(self, engine: str, folder: Path, server: PostgresServer) -> None:
        self._engine = engine
        self._folder = folder
        self._server = server
        self._count = 0

    def new(self) -> str:
        self._count += 1
        if self._engine == "postgresql":
            return self._server.create_database()
        folder = self._folder / f"store{self._count}"
        folder.mkdir()
        return f"sqlite:///{folder}/tenax.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_server: PostgresServer
) -> Stores:
    return Stores(request.param, tmp_path, postgres_server)


@pytest.fixture
def place(stores: Stores, tmp_path: Path) -> Place:
    """An installation with a store that has every kind of event."""
    url = stores.new()
    with tenax.open(url, user="ada") as journal:
        build(journal)
    return Place(tmp_path / "home", url)


def check_whole(url: str) -> None:
    with tenax.open(url, user="ada") as journal:
        assert verify(journal).problems == []


@pytest.mark.timeout(repeat(300, 3600))
def test_a_killed_backup_leaves_the_store_and_earlier_backups(
    place: Place, tmp_path: Path
) -> None:
    before = read_tables(place.url)
    config = load({"TENAX_HOME": str(place.home)})
    kills: Counter[str] = Counter()
    for number in range(ROUNDS * len(BACKUP)):
        step = BACKUP[number % len(BACKUP)]
        folder = tmp_path / f"backups{number}"
        if step.name == "while old backups are deleted":
            for _ in range(2):
                back_up(config, folder, keep=None, version="test")
        code = place.run("backup", str(folder), "--keep", "1", step=step)
        kills[step.name] += code == KILLED
        assert read_tables(place.url) == before
        for name in BackupFolder(folder).names():
            # The engine of the copy does not matter: a restore to each engine has a test of its own.
            copy = f"sqlite:///{tmp_path}/copy{number}-{name}.db"
            restore(
                load({"TENAX_HOME": str(tmp_path / "copy"), "TENAX_STORE": copy}),
                folder,
                name=name,
            )
            assert read_tables(copy) == before
        assert place.run("backup", str(folder), "--keep", "1") == 0
        assert len(BackupFolder(folder).names()) == 1
        # The command has restored and verified the backup.
        assert not (folder / "scratch").exists()
    check_counts(kills, BACKUP)


@pytest.mark.timeout(repeat(300, 3600))
def test_a_killed_restore_leaves_an_empty_place_or_the_whole_store(
    place: Place, stores: Stores, tmp_path: Path
) -> None:
    before = read_tables(place.url)
    folder = tmp_path / "backups"
    back_up(load({"TENAX_HOME": str(place.home)}), folder, keep=None, version="test")
    kills: Counter[str] = Counter()
    for number in range(ROUNDS * len(RESTORE)):
        step = RESTORE[number % len(RESTORE)]
        new = Place(tmp_path / f"new{number}", stores.new())
        kills[step.name] += new.run("restore", str(folder), step=step) == KILLED
        assert exists(new.url) == (step.name == "after the store is published")
        if not exists(new.url):
            assert new.run("restore", str(folder)) == 0
        assert read_tables(new.url) == before
        check_whole(new.url)
    check_counts(kills, RESTORE)


@pytest.mark.timeout(repeat(300, 3600))
def test_after_a_killed_move_the_settings_name_a_whole_store(
    place: Place, stores: Stores, tmp_path: Path
) -> None:
    """The old store stays as it is. It is the truth until the settings name the new one."""
    before = read_tables(place.url)
    old = place.url
    kills: Counter[str] = Counter()
    for number in range(ROUNDS * len(MOVE)):
        step = MOVE[number % len(MOVE)]
        (place.home / "config.toml").write_text(f'[store]\nurl = "{old}"\n')
        new = stores.new()
        kills[step.name] += place.run("move", new, step=step) == KILLED
        assert (place.url == new) == (step.name == "after the settings change")
        assert read_tables(old) == before
        assert read_tables(place.url) == before
        check_whole(place.url)
        if not exists(new):
            assert place.run("move", new) == 0
            assert place.url == new
            assert read_tables(new) == before
    check_counts(kills, MOVE)


@pytest.mark.timeout(repeat(300, 3600))
def test_a_killed_export_or_import_is_repeated(stores: Stores, tmp_path: Path) -> None:
    """An export that was cut is refused. After an import that was cut, every conversation is whole or not there."""
    place = Place(tmp_path / "home", stores.new())
    with tenax.open(place.url, user="local") as journal:
        blob = journal.put_blob(b"a picture")
        names = [begin(journal, say(f"Talk {number}")) for number in range(3)]
        picture = MessageUser([File(blob, "image/png", "a.png")])
        journal.append(names[1], [picture, answer("Seen")])
        digests = {name: journal.head(name).digest for name in names}
    kills: Counter[str] = Counter()
    arguments = ("export", *names, "--format", "tenax", "-o")
    for number in range(ROUNDS * len(EXPORT)):
        step = EXPORT[number % len(EXPORT)]
        file = tmp_path / f"cut{number}.jsonl"
        kills[step.name] += place.run(*arguments, str(file), step=step) == KILLED
        assert not file.exists() or b'"type":"end"' not in file.read_bytes()
    check_counts(kills, EXPORT)
    file = tmp_path / "all.jsonl"
    assert place.run(*arguments, str(file)) == 0
    for number in range(ROUNDS * len(IMPORT)):
        step = IMPORT[number % len(IMPORT)]
        new = Place(tmp_path / f"new{number}", stores.new())
        kills[f"import {step.name}"] += (
            new.run("import", str(file), step=step) == KILLED
        )
        check_whole(new.url)
        assert new.run("import", str(file)) == 0
        check_whole(new.url)
        with tenax.open(new.url, user="local") as journal:
            assert {name: journal.head(name).digest for name in names} == digests
            assert journal.get_blob(blob) == b"a picture"
    wanted = tuple(step._replace(name=f"import {step.name}") for step in IMPORT)
    check_counts(kills, wanted)


@pytest.mark.parametrize(
    "stores",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)],
    indirect=True,
)
@pytest.mark.timeout(repeat(300, 3600))
def test_a_killed_import_of_another_program_is_repeated(
    stores: Stores, tmp_path: Path
) -> None:
    """Afterwards each conversation is there once, with all messages."""
    file = tmp_path / "conversations.json"
    kills: Counter[str] = Counter()
    for number in range(ROUNDS * len(FOREIGN)):
        step = FOREIGN[number % len(FOREIGN)]
        place = Place(tmp_path / f"home{number}", stores.new())
        if "messages" in step.name:
            write(file, chat(1), chat(2))
            assert place.run("import", str(file)) == 0
        write(file, chat(1, more=1), chat(2, more=1))
        kills[step.name] += place.run("import", str(file), step=step) == KILLED
        check_whole(place.url)
        assert place.run("import", str(file)) == 0
        with tenax.open(place.url, user="local") as journal:
            found = journal.conversations()
            assert [summary.messages for summary in found] == [3, 3]
    check_counts(kills, FOREIGN)


@pytest.mark.timeout(repeat(300, 3600))
def test_a_killed_adoption_changes_everything_or_nothing(place: Place) -> None:
    """The store opens, has every row, and can be adopted again."""
    before = read_tables(place.url)
    kills: Counter[str] = Counter()
    for number in range(ROUNDS * len(ADOPT)):
        step = ADOPT[number % len(ADOPT)]
        with tenax.open(place.url, user="ada") as journal:
            assert journal.claim("gateway:x", "holder", 3600.0) is not None
            incarnation = journal.incarnation
        kills[step.name] += place.run("restore", "--adopt", step=step) == KILLED
        is_done = step.function.endswith("accept_loss")
        for table in ("leases", "instances"):
            assert (count_rows(place.url, table) == 0) == is_done
        with tenax.open(place.url, user="ada") as journal:
            assert (journal.incarnation != incarnation) == is_done
            assert verify(journal).problems == []
        assert place.run("restore", "--adopt") == 0
        assert read_tables(place.url) == before
    check_counts(kills, ADOPT)


def check_counts(kills: Counter[str], steps: tuple[Step, ...]) -> None:
    print(dict(kills))  # noqa: T201  (shown by `pytest -rP`)
    assert all(kills[step.name] == ROUNDS for step in steps), kills

"""A second SQLite library in the process would drop the store's locks: it is refused before it can."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import tenax
from tenax.errors import StoreMisused
from tests.contract.engine.base import begin, said, say
from tests.support.children import Child, Teller

pytestmark = pytest.mark.crash


def ways_in(path: Path) -> dict[str, Callable[[], object]]:
    """How somebody might open the files of the store."""
    link = path.parent / "link.db"
    link.symlink_to(path)
    os.chdir(path.parent)
    shm = f"{path}-shm"
    return {
        "str": lambda: sqlite3.connect(str(path)),
        "path": lambda: sqlite3.connect(path),
        "bytes": lambda: sqlite3.connect(os.fsencode(path)),
        "uri": lambda: sqlite3.connect(f"file:{path}?mode=ro", uri=True),
        "relative": lambda: sqlite3.connect("tenax.db"),
        "relative uri": lambda: sqlite3.connect("file:tenax.db", uri=True),
        "roundabout": lambda: sqlite3.connect(
            f"{path.parent}/../{path.parent.name}/tenax.db"
        ),
        "link": lambda: sqlite3.connect(link),
        "shm": lambda: Path(shm).read_bytes(),
        "shm by bytes": lambda: os.open(os.fsencode(shm), os.O_RDONLY),
        "shm by path": lambda: os.open(Path(shm), os.O_RDONLY),
        "relative shm": lambda: os.open("tenax.db-shm", os.O_RDONLY),
    }


def intrude(teller: Teller, path: str) -> None:
    """Open the store, hold a write, and try to open it with the standard library as well."""
    with tenax.open(f"sqlite:///{path}") as journal:
        begin(journal, say("ours"), name="c-ours")
        with journal.store.transaction() as tx:
            tx.run("store")
            for name, way in ways_in(Path(path)).items():
                try:
                    way()
                except StoreMisused as error:
                    sentence = str(error).endswith(".") and bool(error.hint)
                    teller.tell(
                        "refused" if sentence else "mumbled", name.replace(" ", "-")
                    )
                else:
                    teller.tell("let-in", name.replace(" ", "-"))
            teller.tell("holding")
            input_line(Path(path).parent / "go-on")
        with sqlite3.connect(":memory:") as other:
            other.execute("select 1")
        sqlite3.connect(Path(path).parent / "other.db").close()
        journal.append("c-ours", [say("still ours")])
        teller.tell("done")


def input_line(pipe: Path) -> None:
    """Wait until somebody opens the other end of a named pipe."""
    with pipe.open("rb") as file:
        file.read()


def write_from_outside(teller: Teller, path: str) -> None:
    teller.tell("trying")
    with tenax.open(f"sqlite:///{path}") as journal:
        begin(journal, say("theirs"), name="c-theirs")
        teller.tell("stored")


def test_the_standard_librarys_sqlite3_is_refused_with_a_sentence(
    tmp_path: Path,
) -> None:
    """By whatever name the store is opened, the lock stands, and another process's rows are not lost."""
    path = tmp_path / "tenax.db"
    os.mkfifo(tmp_path / "go-on")
    intruder = Child(intrude, str(path))
    while not intruder.lines or intruder.lines[-1] != ["holding"]:
        assert intruder.read(), intruder.lines
    assert [line for line in intruder.lines if line[0] != "refused"] == [["holding"]]
    outsider = Child(write_from_outside, str(path))
    outsider.read_until(1)
    with pytest.raises(TimeoutError):
        outsider.read(0.3)  # it waits for the lock, which still stands
    (tmp_path / "go-on").write_bytes(b"")
    assert (intruder.finish(), outsider.finish()) == (0, 0)
    assert (intruder.lines[-1], outsider.lines[-1]) == (["done"], ["stored"])
    with tenax.open(f"sqlite:///{path}") as journal:
        assert said(journal, "c-ours") == ["ours", "still ours"]
        assert said(journal, "c-theirs") == ["theirs"]


def come_second(teller: Teller, path: str) -> None:
    other = sqlite3.connect(path)
    other.execute("select count(*) from events").fetchall()
    try:
        tenax.open(f"sqlite:///{path}")
    except StoreMisused as error:
        teller.tell("refused", str(error).endswith("."))
    other.close()
    with tenax.open(f"sqlite:///{path}") as journal:
        teller.tell(*said(journal, "c-1"))


def test_a_store_that_sqlite3_has_open_is_not_opened_beside_it(tmp_path: Path) -> None:
    """Whoever came first has to close it first."""
    path = tmp_path / "tenax.db"
    with tenax.open(f"sqlite:///{path}") as journal:
        begin(journal, say("here"), name="c-1")
    child = Child(come_second, str(path))
    assert child.finish() == 0
    assert child.lines == [["refused", "True"], ["here"]]

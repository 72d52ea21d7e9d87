"""Uploaded files have limits, and are deleted when nobody confirms the import."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import tenax
from tenax.concurrency import ThreadPool
from tenax.errors import CannotOpen, InvalidInput, StoreFull, TooLarge
from tenax.importers.place import Place
from tenax.importers.uploads import Imports
from tests.support.exports import many_chatgpt, zipped
from tests.support.hermes import HermesHome

Start = Callable[..., Imports]
_REFUSED = r"more than 16 GB|disk is almost full"


@pytest.fixture
async def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Start]:
    """Build the imports of a server with other limits."""
    # The process of an import reads the same settings.
    monkeypatch.setenv("TENAX_HOME", str(tmp_path))
    config = tenax.load({"TENAX_HOME": str(tmp_path)})
    pool = ThreadPool(2, "test-imports")
    started: list[Imports] = []

    def build(**limits: Any) -> Imports:
        folder = tmp_path / "imports"
        started.append(Imports(folder, lambda: config, pool, **limits))
        return started[-1]

    yield build
    for imports in started:
        await imports.close()
    pool.stop()


async def pieces(*found: bytes) -> AsyncIterator[bytes]:
    for piece in found:
        yield piece


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110  (nothing reports it)
            await asyncio.sleep(0.01)


def files(imports: Imports) -> list[Path]:
    return [path for path in imports.folder.rglob("*.zip") if path.is_file()]


async def test_a_file_that_is_too_large_is_refused_and_deleted(start: Start) -> None:
    """By the announced size before anything is stored, and otherwise by the bytes that arrive."""
    own = await start(bytes_max=1000).of("ada")
    with pytest.raises(TooLarge, match="larger than 1,000 bytes") as refused:
        await own.upload("a.zip", 2000, pieces(b"x"))
    assert "tenax import FILE" in refused.value.hint
    with pytest.raises(TooLarge):
        await own.upload("a.zip", None, pieces(b"x" * 600, b"x" * 600))
    assert own.state.phase == "none"


async def test_an_upload_leaves_room_on_the_disk(start: Start) -> None:
    """The store may be on the same disk. What came of the file is deleted."""
    imports = start(free_bytes_min=2**60)
    own = await imports.of("ada")
    with pytest.raises(CannotOpen, match="the disk is almost full") as refused:
        await own.upload("a.zip", None, pieces(b"x"))
    assert "Free some disk space" in refused.value.hint
    assert (files(imports), own.state.phase) == ([], "none")


async def test_a_cancelled_upload_leaves_nothing(start: Start) -> None:
    """The browser goes away in the middle; a file of an earlier server is deleted at the start."""
    imports = start()
    own = await imports.of("ada")
    arrived = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        arrived.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(own.upload("a.zip", None, endless()))
    await arrived.wait()
    [file] = files(imports)
    assert (file.stat().st_mode & 0o777, file.stat().st_size) == (0o600, 2_000_000)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    task.cancel()
    await asyncio.wait([task])
    assert (files(imports), own.state.phase) == ([], "none")
    file.parent.mkdir()
    file.write_bytes(b"left")
    await start().start()
    assert files(imports) == []


async def test_an_import_that_nobody_confirms_ends(start: Start) -> None:
    """The dry run is done in a process of its own. After the time the file is deleted, and the person is told."""
    imports = start(wait_seconds=0.05)
    own = await imports.of("ada")
    await own.upload("a.zip", None, pieces(many_chatgpt(1)))
    await until(lambda: own.state.phase == "failed")
    await until(lambda: not files(imports))
    assert own.state.error.startswith("The import was not confirmed in time.")


async def test_the_page_imports_no_skills(start: Start, tmp_path: Path) -> None:
    """The result has their number, so that the page can name the command."""
    home = HermesHome(tmp_path / "other")
    home.say(home.session("talk"), "user", "How long does the dough rest?")
    home.close()
    files = {"state.db": (home.folder / "state.db").read_bytes()}
    files |= {"skills/bake/SKILL.md": b"Bake.", "memories/USER.md": b"Bakes bread."}
    own = await start().of("ada")
    await own.upload("hermes.zip", None, pieces(zipped(files)))
    await until(lambda: own.state.phase in {"ready", "failed"})
    await own.confirm(own.state.id, remember=False)
    await until(lambda: own.state.phase in {"done", "failed"})
    found = own.state.found
    assert found is not None, own.state.error
    assert (found.new, found.memories, found.skills) == (1, 1, 0)
    assert found.left_skills == 1
    assert not (tmp_path / "skills").exists()


def test_a_zip_file_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    """The declared sizes of all files count, and a file that is larger than it says is not unpacked."""
    names = [f"conversations-{number:03}.json" for number in range(6)]
    large = bytearray(zipped(dict.fromkeys(names, b"[]")))
    declare(large, 0xF000_0000)
    bomb = tmp_path / "bomb.zip"
    bomb.write_bytes(large)
    place = Place(bomb)
    with pytest.raises((InvalidInput, StoreFull), match=_REFUSED):
        list(map(place.file, names))
    place.close()
    lying = bytearray(zipped({"conversations.json": b" " * 1_000_000}))
    declare(lying, 10)
    bomb.write_bytes(lying)
    place = Place(bomb)
    with pytest.raises(InvalidInput, match="cannot be read"):
        place.file("conversations.json")
    place.close()


def declare(data: bytearray, size: int) -> None:
    """Let every entry of the directory of a zip file say this size."""
    at = data.find(b"PK\1\2")
    while at >= 0:
        struct.pack_into("<I", data, at + 24, size)
        at = data.find(b"PK\1\2", at + 1)


def test_names_in_a_zip_file_lead_nowhere(tmp_path: Path) -> None:
    """A file is unpacked under a name of our own, whatever its name in the zip file is."""
    source = tmp_path / "names.zip"
    names = ["../up.json", "/etc/top.json", "a\\..\\b.json"]
    source.write_bytes(zipped(dict.fromkeys(names, b"[]")))
    place = Place(source)
    paths = [place.file(name) for name in place.names()]
    assert {path.parent for path in paths} == {paths[0].parent}
    assert all(path.name.isdecimal() and not path.is_symlink() for path in paths)
    place.close()
    assert not paths[0].parent.exists()
    assert list(tmp_path.iterdir()) == [source]

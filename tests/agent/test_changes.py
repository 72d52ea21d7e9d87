"""What a turn changed in the folder: shown as a diff, put back where it is still what the turn left, and bounded."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tenax.agent import Limits
from tenax.assembly import Runtime
from tenax.concurrency import OWN_THREAD
from tenax.config import Config
from tenax.config.rules import Rule
from tenax.errors import InvalidInput, Refused
from tenax.events import FilesChanged
from tenax.journal.verify.store import verify
from tenax.models import Reply, ScriptedCall, ScriptedModel
from tenax.tools.base import Call as Made
from tenax.tools.base import Tool
from tenax.tools.files import walk as seek
from tenax.tools.files.edit import EditFile, ReadFile, WriteFile
from tenax.views.transcript import Row
from tenax.workspace import changes as tracking
from tenax.workspace import snapshots as snapshot
from tenax.workspace.changes import Changes, TurnChanges
from tests.support.runs import (
    Hands,
    asked,
    config_of,
    events_of,
    outcomes,
    told,
    with_timing,
)

OPEN = Path("/proc/self/fd")


class ActArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which of the things it can do."""

    what: str


class Act(Tool[ActArgs]):
    """Does something in the folder that nobody foretold, as a shell does."""

    name, description, args, effect, seconds, asks = (
        "act",
        "Acts.",
        ActArgs,
        "once",
        30.0,
        False,
    )

    def __init__(self, **deeds: Callable[[Path], Any]) -> None:
        self._deeds = deeds

    def touches(self, args: ActArgs, call: Made) -> str:
        return args.what

    async def run(self, args: ActArgs, call: Made) -> str:
        self._deeds[args.what](call.folder)
        return "done"


def acting(
    config: Config, *calls: str | ScriptedCall, **deeds: Callable[[Path], Any]
) -> Hands:
    """A runtime whose model makes these calls in one turn, and again in the next."""
    made = [
        ScriptedCall("act", {"what": call}) if isinstance(call, str) else call
        for call in calls
    ]
    model = ScriptedModel([*(Reply(calls=[each]) for each in made), "Done."] * 2)
    runtime = Hands(config, models=[model], limits=Limits(pause=0.01))
    return runtime.with_tools(Act(**deeds), ReadFile(), WriteFile(), EditFile())


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


@pytest.fixture
def light(tmp_path: Path) -> Config:
    """For what is the same in every store."""
    return config_of(f"sqlite:///{tmp_path / 'light.db'}", tmp_path)


def fill(folder: Path, files: dict[str, str]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.encode())


def held(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file, with what it holds and its mode."""
    files = (
        path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    )
    return {
        str(file.relative_to(folder)): (file.read_bytes(), file.stat().st_mode & 0o777)
        for file in files
    }


async def shown(runtime: Runtime, name: str) -> list[Row]:
    return [row for row in await runtime.transcript(name) if row.kind == "files"]


async def only(runtime: Runtime, name: str) -> TurnChanges:
    (turn,) = await runtime.changes(name)
    return turn


def deed(folder: Path) -> None:
    (folder / "a.txt").write_text("one\nTWO\nthree\n")
    (folder / "gone.txt").unlink()
    (folder / "run.sh").chmod(0o755)
    fill(folder, {"deep/new.bin": "\0\1", "build/out": "y", "deep/same.txt": "x"})
    (folder / "deep" / "same.txt").unlink()
    (folder / "link").symlink_to("a.txt")


async def test_what_a_turn_changed_is_shown_and_put_back_and_that_is_put_back(
    config: Config,
) -> None:
    """By a file tool and by one that says nothing of what it does; what is ignored is left alone, unless a call names it."""
    folder = config.tools_folder
    files = {
        "a.txt": "one\ntwo\nthree\n",
        "gone.txt": "gone",
        "run.sh": "true",
        "build/out": "x",
        "build/in": "x",
    }
    fill(folder, {**files, ".gitignore": "build\n"})
    before = held(folder)
    write = ScriptedCall("write_file", {"path": "build/in", "content": "z"})
    edit = ScriptedCall("edit_file", {"path": "a.txt", "old": "TWO", "new": "2"})
    async with acting(
        config,
        "deed",
        edit,
        write,
        ScriptedCall("read_file", {"path": "a.txt"}),
        deed=deed,
    ) as runtime:
        await runtime.add_rule(Rule("allow", "*_file"))
        name = await runtime.new()
        await asked(runtime, name, "Do it.")
        after = held(folder)
        turn = await only(runtime, name)
        assert {file.path: file.what for file in turn.files} == {
            "a.txt": "changed", "build/in": "changed", "deep/new.bin": "added", "gone.txt": "removed",
            "run.sh": "changed",
        }  # fmt: skip
        found = {file.path: file for file in turn.files}
        assert (
            found["a.txt"].diff
            == "--- a.txt\n+++ a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
        )
        assert found["gone.txt"].diff.endswith("-gone\n\\ No newline at end of file")
        assert found["run.sh"].note == "Its mode was 644 and is 755."
        assert "no text" in found["deep/new.bin"].note
        kinds = [
            each.kind
            for each in await events_of(runtime, name)
            if each.kind.endswith(("ed", "changed"))
        ]
        assert kinds.count("files.changed") == 3, (
            "one for each call that changed something"
        )
        for n in [n for n, kind in enumerate(kinds) if kind == "files.changed"]:
            assert kinds[n + 1] == "tool.finished", "with the outcome of its call"
        rows = await runtime.transcript(name)
        assert [(rows[-1].kind, rows[-1].text), rows[-2].text] == [
            ("files", "Changed 5 files."),
            "Done.",
        ]

        back = await runtime.put_back(name, rows[-1].of)
        assert (sorted(back.done), back.left) == (sorted(found), {})
        assert held(folder) == before | {"build/out": (b"y", 0o644)}
        assert [(each.text, each.state) for each in await shown(runtime, name)] == [
            ("Changed 5 files.", "undone"), ("Put back 5 files.", ""),
        ]  # fmt: skip
        (again,) = [change for change in await runtime.changes(name) if change.undoes]
        assert {file.path: file.what for file in again.files}["gone.txt"] == "added"
        assert sorted((await runtime.put_back(name, again.turn)).done) == sorted(found)
        assert held(folder) == after
        assert [each.state for each in await shown(runtime, name)] == ["", "undone", ""]
        assert [change.undone for change in await runtime.changes(name)] == [
            False,
            True,
            False,
        ]
        assert (await asyncio.to_thread(verify, runtime.journal.journal)).problems == []


async def test_only_what_is_still_as_the_turn_left_it_is_put_back(
    light: Config, tmp_path: Path
) -> None:
    """Not what a person changed since, not what was too large to keep, and never through a link out of the folder."""
    folder, outside = light.tools_folder, tmp_path / "outside"
    names = ["edited", "linked", "made", "moved/in", "fine", "large"]
    fill(folder, {**dict.fromkeys(names, "before"), "large": "x" * 1_000_001})
    fill(outside, {"linked": "after", "in": "after"})

    def change(where: Path) -> None:
        for each in names:
            (where / each).write_text("after")
        (where / "made").unlink()
        fill(where, {".env": "a", "new": "b"})

    async with acting(light, "change", change=change) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "Do it.")
        (folder / "edited").write_text("by hand")
        (folder / "made").write_text("by hand")
        (folder / "new").write_text("by hand")
        (folder / "linked").unlink()
        (folder / "linked").symlink_to(outside / "linked")
        (folder / "moved").rename(tmp_path / "away")
        (folder / "moved").symlink_to(outside)
        back = await runtime.put_back(name, (await only(runtime, name)).turn)
        assert sorted(back.done) == [".env", "fine"]
        assert (folder / "fine").read_text() == "before"
        assert not (folder / ".env").exists()
        stale = "It is no longer what the turn left."
        assert back.left == {
            "edited": stale, "made": stale, "new": stale, "linked": "linked is a link, and links are not followed.",
            "moved/in": "moved is a link, and links are not followed.", "large": "What it held before was not kept.",
        }  # fmt: skip
        assert held(outside) == {"linked": (b"after", 0o644), "in": (b"after", 0o644)}
        with pytest.raises(InvalidInput, match="changed no files"):
            await runtime.put_back(name, "r_nobody")


async def test_a_change_that_hides_is_found_and_what_only_seems_one_is_not(
    light: Config,
) -> None:
    """The same size at the same time is another content; what an ignore file hides or shows was neither removed nor added."""
    folder = light.tools_folder
    fill(folder, {"a": "aaa", "src/b": "b", "old/c": "c", ".gitignore": "old\n"})

    def sly(where: Path) -> None:
        was = (where / "a").stat()
        (where / "a").write_text("bbb")
        os.utime(where / "a", ns=(was.st_atime_ns, was.st_mtime_ns))

    def ignore(where: Path) -> None:
        (where / ".gitignore").write_text("src\n")

    def nothing(where: Path) -> None:
        (where / "a").write_text((where / "a").read_text())

    os.utime(folder / "a", ns=(1, 1))
    await asyncio.sleep(0.15)  # what is older than this was there before
    async with acting(
        light, "sly", "nothing", "ignore", sly=sly, ignore=ignore, nothing=nothing
    ) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "Do it.")
        assert [file.path for file in (await only(runtime, name)).files] == [
            ".gitignore",
            "a",
        ]
        assert len(await told(runtime, name, FilesChanged)) == 2


async def test_what_is_too_much_is_said_once_and_holds_no_turn(
    light: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More files than are looked at, a folder on a disk that hangs; the answer comes all the same."""
    fill(light.tools_folder, {f"d{n}/x": "x" for n in range(9)})
    write = partial_write("d0/x")
    monkeypatch.setattr(snapshot, "ENTRIES_MAX", 12)
    async with acting(
        light, "write", "again", write=write, again=partial_write("d8/x")
    ) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "Do it.")
        (event,) = await told(runtime, name, FilesChanged)
        assert event.missed.startswith("The folder has more than 12 files and folders")
    hangs = threading.Event()
    monkeypatch.setattr(snapshot.Snapshots, "take", lambda *_: hangs.wait(100) and None)
    brief = with_timing(light, scan_seconds=0.05)
    async with acting(
        brief, "write", "again", write=write, again=partial_write("d8/x")
    ) as runtime:
        async with asyncio.timeout(60):
            await asked(runtime, name, "Again.")
        with pytest.raises(Refused, match="could not be looked at"):
            await runtime.put_back(name, (await runtime.changes(name))[0].turn)
        hangs.set()
        first, second = await shown(runtime, name)
        assert first.text.startswith("Changed 1 file. The folder has more than")
        assert (
            second.text
            == "The folder could not be looked at in time, so what was changed in it is not known."
        )


async def test_a_long_ignore_file_keeps_no_look_from_its_end(light: Config) -> None:
    """Its lines were one expression, which took seconds per file and let no other thread run meanwhile."""
    fill(light.tools_folder, {f"f{n}": "x" for n in range(300)})
    fill(light.tools_folder, {".gitignore": "x*y\n" * 50_000})
    patient = with_timing(light, scan_seconds=60.0)
    async with acting(patient, "write", write=partial_write("a")) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "Do it.")
        (event,) = await told(runtime, name, FilesChanged)
        assert ([file.path for file in event.files], event.missed) == (["a"], "")


@pytest.mark.parametrize(
    "entries", [{"a": "1", "b": "2"}, {".gitignore": "*\n"}, {"late": "3"}]
)
def test_a_look_ends_when_nobody_waits_for_it_any_more(
    tmp_path: Path, entries: dict[str, str]
) -> None:
    """In the middle of the walk, at what is ignored, and at what is looked at besides; nothing of it is kept."""
    looks = snapshot.Snapshots(tmp_path / "folder", tmp_path / "kept", [])
    taken = looks.take(snapshot.About("ada", "c_1", "r_1", 1, "1", ["late"]))
    fill(tmp_path / "folder", entries)
    deserted = threading.Event()
    deserted.set()
    with pytest.raises(seek.Abandoned):
        looks.find_changes(taken, deserted)
    with pytest.raises(seek.Abandoned):
        looks.take(taken.about, deserted)
    assert list((tmp_path / "kept").rglob("call-*")) == [taken.file]
    taken.discard()


async def test_a_diff_that_takes_long_does_not_hold_the_loop(
    light: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All users of a server share the loop."""
    fill(light.tools_folder, {"a": "x"})
    began, done = asyncio.Event(), threading.Event()
    async with acting(light, "write", write=partial_write("a")) as runtime:
        loop = asyncio.get_running_loop()

        def slow(*_: str) -> str:
            loop.call_soon_threadsafe(began.set)
            return "made" if done.wait(30) else "the loop was held"

        name = await runtime.new()
        await asked(runtime, name, "Do it.")
        monkeypatch.setattr(tracking, "diff", slow)
        showing = asyncio.create_task(runtime.changes(name))
        async with asyncio.timeout(60):
            await began.wait()
        done.set()
        ((file,),) = [turn.files for turn in await showing]
        assert file.diff == "made"


async def test_paths_that_no_event_can_hold_fail_no_turn(light: Config) -> None:
    """They are left out, and that is said; the call has its outcome."""

    def deed(folder: Path) -> None:
        deep = "/".join(["\1" * 250] * 3)
        fill(folder, {f"{deep}/{nth}": "x" for nth in range(1000)})

    async with acting(light, "deed", deed=deed) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "go")
        assert await outcomes(runtime, name) == ["completed"]
        turn = await only(runtime, name)
        assert 400 < len(turn.files) < 1000
        assert "more files were changed than are kept" in turn.missed


async def test_what_a_person_does_after_a_stop_in_the_middle_of_a_call_is_theirs(
    light: Config,
) -> None:
    """Tenax ended in good order: what the call had changed was looked for then, and not at the next start."""
    # A busy machine may need more than a second.
    light = with_timing(light, interrupt_seconds=3.0)
    begun = asyncio.Event()

    class Slow(Act):
        async def run(self, args: ActArgs, call: Made) -> str:
            fill(call.folder, {"a.txt": "two"})
            begun.set()
            await asyncio.sleep(60)
            return "never"

    fill(light.tools_folder, {"a.txt": "one", "mine.txt": "old"})
    async with acting(light, "slow").with_tools(Slow()) as runtime:
        name = await runtime.new()
        await runtime.submit(name, "go")
        await begun.wait()
    fill(light.tools_folder, {"mine.txt": "two days of work"})
    async with acting(light, "slow").with_tools(Slow()) as runtime:
        (first, *_) = await runtime.changes(name)
        assert [file.path for file in first.files] == ["a.txt"]


def partial_write(path: str) -> Callable[[Path], Any]:
    return lambda where: (where / path).write_text("y")


async def test_what_files_held_is_erased_with_the_words_that_asked_for_it(
    config: Config,
) -> None:
    """The bytes are gone from the store and from beside it, and nothing can be put back."""
    fill(config.tools_folder, {"a": "secret before"})
    async with acting(config, "write", write=partial_write("a")) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "Do it.")
        turn = await only(runtime, name)
        (event,) = await told(runtime, name, FilesChanged)
        blobs = [event.files[0].before.blob, event.files[0].after.blob]
        assert [await runtime.journal.get_blob(blob) for blob in blobs] == [
            b"secret before",
            b"y",
        ]
        kept = config.directories.data / "files"
        assert any(
            b"secret before" in path.read_bytes() for path in kept.rglob("pack-*")
        )
        await runtime.erase(name, [event.message])
        assert [await runtime.journal.get_blob(blob) for blob in blobs] == [None, None]
        assert await shown(runtime, name) == []
        assert all(
            b"secret before" not in path.read_bytes()
            for path in kept.rglob("*")
            if path.is_file()
        )
        assert await runtime.changes(name) == []
        with pytest.raises(InvalidInput, match="erased"):
            await runtime.put_back(name, turn.turn)


async def test_what_is_erased_is_not_kept_of_a_folder_that_tools_worked_in_before(
    light: Config,
) -> None:
    """Nor where a call of another user was cut off in it, as long as all users had one folder."""
    fill(light.tools_folder, {"a": "secret"})
    place = light.directories.snapshots
    looks = snapshot.Snapshots(light.tools_folder, place, [])
    # of a process that is gone
    looks.take(snapshot.About("bob", "c_1", None, 1, "1")).release()
    (light.tools_folder / "a").unlink()

    def kept() -> list[str]:
        return [
            file.name
            for file in place.rglob("*")
            if file.is_file() and b"secret" in file.read_bytes()
        ]

    assert len(kept()) == 1
    async with acting(light):  # the folder is the owner's
        async with asyncio.timeout(60):
            while list(place.rglob("call-*")):  # noqa: ASYNC110  (a start reports it in the background)
                await asyncio.sleep(0.01)
    moved = replace(light, tools_folder=light.directories.data / "elsewhere")
    async with acting(moved) as runtime:
        await runtime.delete(await runtime.new())
    assert kept() == []


def opened(place: Path) -> list[str]:
    """What this process has open below a place. What threads of others open and close meanwhile lies elsewhere."""
    found = []
    for path in OPEN.iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found.append(str(path.readlink()))
    return [each for each in found if each.startswith(f"{place}/")]


def test_a_full_disk_leaves_nothing_of_a_call_that_was_not_made(tmp_path: Path) -> None:
    """Neither an open file nor a note that stays locked as long as the process lives: with it no old pack ever went."""
    looks = snapshot.Snapshots(tmp_path / "folder", tmp_path / "kept", [])
    size, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, most))
    try:
        with pytest.raises(OSError, match="too large"):
            looks.take(snapshot.About("ada", "c_1", "r_1", 1, "1"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    assert opened(tmp_path) == []
    assert list((tmp_path / "kept").rglob("call-*")) == []


def test_a_process_that_may_open_no_more_files_takes_none_for_changed(
    tmp_path: Path,
) -> None:
    """The n-th file that a look needs is refused, for every n: then nothing is known, and nothing is told of it yet."""
    looks = snapshot.Snapshots(tmp_path / "folder", tmp_path / "kept", [])
    fill(
        tmp_path / "folder",
        {"a": "1", "deep/er/b": "2", ".gitignore": "build", "build/c": "3"},
    )
    taken = looks.take(snapshot.About("ada", "c_1", "r_1", 1, "1"))
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    moved, n = None, 0
    while moved is None:
        used = {int(path.name) for path in OPEN.iterdir()}
        free = (number for number in itertools.count() if number not in used)
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (next(itertools.islice(free, n, None)), hard)
        )
        with contextlib.suppress(OSError):
            _, moved = looks.find_changes(taken)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        n += 1
    taken.discard()
    assert (moved, n > 5) == ([], True)


@pytest.mark.parametrize("work", ["take", "claim_orphans"])
async def test_what_a_look_holds_is_let_go_where_nobody_waits_for_it_any_more(
    light: Config, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """Who waits may go in the very moment in which the look ends. What is erased later is kept nowhere for that."""
    fill(light.tools_folder, {"a": "secret"})
    async with acting(light) as runtime:
        name, place = await runtime.new(), light.directories.data / "files"
        changes = Changes(runtime.journal, light.tools_folder, place)
        looks, loop = changes.snapshots, asyncio.get_running_loop()
        if work == "claim_orphans":
            # of a process that is gone
            looks.take(snapshot.About("local", name, None, 1, "1")).release()
        found = getattr(looks, work)

        gone = threading.Event()

        def late(*given: Any) -> Any:
            held = found(*given)
            loop.call_soon_threadsafe(looking.cancel)
            assert gone.wait(60)
            return held

        async def look() -> None:
            async with changes.watch(name, None, 1, "2"):
                pytest.fail("it was cancelled")

        monkeypatch.setattr(looks, work, late)
        looking = asyncio.create_task(look())
        looking.add_done_callback(lambda _: gone.set())
        with pytest.raises(asyncio.CancelledError):
            await looking
        monkeypatch.undo()
        async with asyncio.timeout(60):
            while any(place.rglob("call-*")):
                await asyncio.sleep(0.01)
                await changes.report_orphans()
        await changes.forget()
        assert [
            path
            for path in place.rglob("*")
            if path.is_file() and b"secret" in path.read_bytes()
        ] == []
        assert await told(runtime, name, FilesChanged) == []


async def test_a_system_that_gives_no_more_threads_fails_no_turn(
    light: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is made, and what it changed is said not to be known."""
    start = threading.Thread.start

    def none_left(thread: threading.Thread) -> None:
        if thread.name.startswith(OWN_THREAD):
            raise RuntimeError("can't start new thread")
        start(thread)

    async with acting(light, "write", write=partial_write("a")) as runtime:
        name = await runtime.new()
        monkeypatch.setattr(threading.Thread, "start", none_left)
        await asked(runtime, name, "Do it.")
        monkeypatch.undo()
        assert await outcomes(runtime, name) == ["completed"]
        assert "could not be looked at" in (await only(runtime, name)).missed


class Coarse:
    """A file system whose clock goes on every two seconds."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def stat(self, *args: Any, **named: Any) -> Any:
        found = os.stat(*args, **named)
        names = [name for name in dir(found) if name.startswith("st_")]
        fields = {name: getattr(found, name) for name in names}
        times = {
            name: fields[name] // 2_000_000_000 * 2_000_000_000
            for name in ("st_mtime_ns", "st_ctime_ns")
        }
        return SimpleNamespace(**fields | times)


def test_a_file_that_is_written_twice_in_a_tick_of_its_clock_is_seen_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is known of it, whatever its time and size say, is what it holds."""
    monkeypatch.setattr(snapshot, "os", Coarse())
    file, looks = (
        tmp_path / "folder" / "a",
        snapshot.Snapshots(tmp_path / "folder", tmp_path / "kept", []),
    )
    fill(tmp_path / "folder", {"a": "0"})
    for n in range(1, 9):
        taken = looks.take(snapshot.About("ada", "c_1", "r_1", 1, str(n)))
        assert taken is not None
        file.write_text(str(n))
        now, moved = looks.find_changes(taken)
        taken.discard()
        ((path, before, after),) = moved
        assert before is not None
        assert after is not None
        found = (path, looks.content(taken.before, before), looks.content(now, after))
        assert found == ("a", str(n - 1).encode(), str(n).encode())


async def test_a_store_settings_and_keys_in_the_folder_are_neither_shown_nor_put_back(
    tmp_path: Path,
) -> None:
    """Also where the way to the folder is a link."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    fill(
        folder,
        {"own.toml": '[tools]\nfolder = "../link"', "secrets.toml": 'A = "hunter2"'},
    )
    (folder / "secrets.toml").chmod(0o600)
    store = folder / "own.db"
    config = config_of(
        f"sqlite:///{store}", tmp_path / "home", TENAX_CONFIG=str(folder / "own.toml")
    )

    def act(at: Path) -> None:
        (at / "a.txt").write_text("new")
        for name in ("own.toml", "secrets.toml"):
            (at / name).write_text((at / name).read_text() + "\n")
        store.chmod(0o640)  # another than before, and as good

    async with acting(config, "act", act=act) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "go")
        turn = await only(runtime, name)
        assert [file.path for file in turn.files] == ["a.txt"]
        assert (await runtime.put_back(name, turn.turn)).done == ["a.txt"]
        assert store.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(("own", "kept"), [("own", {"a", "owner"}), ("", set())])
def test_files_of_tenax_that_lie_below_the_folder_are_not_kept(
    tmp_path: Path, own: str, kept: set[str]
) -> None:
    """Its store would keep itself, again and again."""
    fill(tmp_path, {"a": "a", "owner": "b", "own/tenax.db": "c"})
    looks = snapshot.Snapshots(tmp_path, tmp_path / "own" / "kept", [tmp_path / own])
    taken = looks.take(snapshot.About("ada", "c_1", "r_1", 1, "c"))
    assert taken is not None
    taken.release()
    assert taken.before.files.keys() == kept

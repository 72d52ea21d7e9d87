"""The file tools: they read and write in the conversation's folder, and there is no way out of it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest

from tenax.concurrency import OWN_THREAD, OWN_THREADS_MAX, run_in_own_thread
from tenax.config.rules import Rule
from tenax.errors import ToolFailed
from tenax.tools.base import Call
from tenax.tools.files.edit import (
    READ_BYTES_MAX,
    EditFile,
    EditFileArgs,
    ReadFile,
    WriteFile,
    WriteFileArgs,
)
from tenax.tools.gate import Allowed, Done, Gate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The conversation's folder; beside it stands a secret."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret")
    inside = tmp_path / "inside"
    inside.mkdir()
    return inside


async def use(folder: Path, name: str, **arguments: object) -> Done:
    """A call as the loop makes it: through the gate."""
    gate = Gate([ReadFile(), WriteFile(), EditFile()])
    call = Call("ada", "c_1", 3, "call", folder)
    asked = msgspec.json.encode(arguments).decode()
    weighed = gate.weigh(name, asked, call, allowed=[Rule("allow", "*_file")])
    if isinstance(weighed, Done):
        return weighed
    assert isinstance(weighed, Allowed)
    return await gate.perform(weighed, approved_arguments=None)


async def every(folder: Path, path: str) -> list[Done]:
    return [
        await use(folder, "read_file", path=path),
        await use(folder, "write_file", path=path, content="mine"),
        await use(folder, "edit_file", path=path, old="secret", new="mine"),
    ]


def outside(folder: Path) -> dict[str, str]:
    """Every file beside the folder, with what it holds."""
    return {
        str(path.relative_to(folder.parent)): path.read_text()
        for path in folder.parent.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.is_relative_to(folder)
    }


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


UNTOUCHED = {"secret": "secret", "outside/file": "secret"}


async def test_what_was_written_is_read(folder: Path) -> None:
    """Folders on the way are made, the folder of the conversation too, and nothing else is left there."""
    new = folder / "of" / "c_1"
    wrote = await use(new, "write_file", path="a/./b//notes.md", content="häuser\n")
    assert wrote == Done("done", "a/b/notes.md was written: 8 bytes.")
    assert await use(new, "read_file", path="a/b/notes.md") == Done("done", "häuser\n")
    assert names(new / "a" / "b") == ["notes.md"]


async def test_a_file_is_replaced_whole_and_keeps_its_rights(folder: Path) -> None:
    """A script stays one."""
    script = folder / "run.sh"
    script.write_text("echo a long line that is gone afterwards")
    script.chmod(0o750)
    await use(folder, "write_file", path="run.sh", content="echo")
    assert script.read_text() == "echo"
    assert script.stat().st_mode & 0o777 == 0o750


async def test_lines_are_read_from_where_the_model_says(folder: Path) -> None:
    """A part says which part it is, and of how many."""
    (folder / "long").write_text("".join(f"line {n}\n" for n in range(1, 3001)))
    (folder / "empty").touch()
    part = await use(folder, "read_file", path="long", first_line=10, lines=2)
    assert part.text == "Lines 10 to 11 of 3,000:\nline 10\nline 11"
    start = await use(folder, "read_file", path="long")
    assert start.text.startswith("Lines 1 to 2,000 of 3,000:\nline 1\n")
    end = await use(folder, "read_file", path="long", first_line=2999)
    assert end.text == "Lines 2,999 to 3,000 of 3,000:\nline 2999\nline 3000"
    past = await use(folder, "read_file", path="long", first_line=4000)
    assert past == Done("done", "long has no line 4,000; its last one is 3,000.")
    assert (await use(folder, "read_file", path="empty")).text == "empty is empty."
    assert (
        await use(folder, "read_file", path="long", first_line=0)
    ).outcome == "failed"


async def test_what_is_no_text_or_too_large_is_described(folder: Path) -> None:
    """Its bytes do not reach the model."""
    (folder / "picture").write_bytes(b"\x89PNG\xff\xfe")
    (folder / "zeros").write_bytes(b"text\0text")
    with (folder / "huge").open("wb") as file:
        file.truncate(READ_BYTES_MAX + 1)
    assert await use(folder, "read_file", path="picture") == Done(
        "done", "picture is not UTF-8 text. It has 6 bytes."
    )
    assert (
        await use(folder, "read_file", path="zeros")
    ).text == "zeros is not UTF-8 text. It has 9 bytes."
    huge = await use(folder, "read_file", path="huge")
    assert (
        huge.text
        == "huge has 10,485,761 bytes. Files of more than 10,485,760 bytes are not read."
    )


async def test_what_is_not_there_or_may_not_be_used_is_a_sentence(folder: Path) -> None:
    """As is a name that the system does not take."""
    (folder / "file").touch()
    assert await use(folder, "read_file", path="a/b") == Done(
        "failed", "There is no file a/b."
    )
    assert await use(folder / "none", "read_file", path="a") == Done(
        "failed", "There is no file a."
    )
    for done in await every(folder, "n" * 300):
        assert done.outcome == "failed"
        assert "cannot be used: File name too long." in done.text
    for done in await every(folder, "file/below"):
        assert done == Done("failed", "file is a file, not a folder.")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("{folder}/file", "may not begin with a slash"),
        ("/etc/passwd", "may not begin with a slash"),
        ("//etc/passwd", "may not begin with a slash"),
        ("../secret", "'..'"),
        ("a/../../secret", "'..'"),
        ("a/..", "'..'"),
        ("..", "'..'"),
        ("", "names no file"),
        (".", "names no file"),
        ("./", "names no file"),
        ("file\0.txt", "cannot be seen"),
        ("\0", "cannot be seen"),
        ("a\nb", "cannot be seen"),
        ("a\x1b[2Kb", "cannot be seen"),
        ("a/" * 3000, "characters"),
    ],
)
async def test_a_path_that_leads_out_or_cannot_be_seen_is_refused(
    folder: Path, path: str, says: str
) -> None:
    """By what it says, before anybody is asked and anything is touched."""
    for done in await every(folder, path.format(folder=folder)):
        assert done.outcome == "failed"
        assert says in done.text
    assert outside(folder) == UNTOUCHED
    assert names(folder) == []


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("link", "../secret", "link"),
        ("link", "{outside}/file", "link"),
        ("link", "../outside", "link/file"),
        ("link", "{outside}", "link/file"),
        ("link", "../outside", "link/new/file"),
        ("link", "..", "link/secret"),
        ("link", "/", "link/etc/passwd"),
        ("link", "../outside/new", "link"),
        ("link", "link", "link"),
        ("link", "real", "link/file"),
        ("link", "/proc/self/cwd", "link/file"),
        ("real/link", "../../outside", "real/link/file"),
        ("real/link", "../../outside/file", "real/link"),
    ],
)
async def test_links_are_not_followed(
    folder: Path, link: str, target: str, path: str
) -> None:
    """Not at the end of a path and not on the way, not even to another place inside."""
    (folder / "real").mkdir()
    (folder / link).symlink_to(target.format(outside=folder.parent / "outside"))
    for done in await every(folder, path):
        assert done == Done("failed", f"{link} is a link, and links are not followed.")
    assert outside(folder) == UNTOUCHED


async def test_folders_pipes_sockets_and_devices_are_not_files(folder: Path) -> None:
    """They are named for what they are, at once: a pipe without a writer holds nobody up."""
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(folder, os.O_RDONLY)
        # the path itself may be too long for a socket
        listener.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        for name in ("folder", "pipe", "socket"):
            for done in await every(folder, name):
                assert done == Done("failed", f"{name} is a {name}.")
    for done in await every(Path("/dev"), "null"):
        assert done == Done("failed", "null is a device.")


async def test_writing_over_a_hard_link_leaves_the_other_name_alone(
    folder: Path,
) -> None:
    """The new file takes the place of the name, not of what it shares."""
    os.link(folder.parent / "secret", folder / "shared")
    assert (
        await use(folder, "write_file", path="shared", content="mine")
    ).outcome == "done"
    assert (folder / "shared").read_text() == "mine"
    assert outside(folder) == UNTOUCHED


async def edit(
    folder: Path, before: str | bytes, old: str, new: str, **more: object
) -> tuple[Done, str | bytes]:
    """Edit a file that holds this; what came of it, and what it holds then."""
    file = folder / "file"
    file.write_bytes(before if isinstance(before, bytes) else before.encode())
    done = await use(folder, "edit_file", path="file", old=old, new=new, **more)
    after = file.read_bytes()
    assert names(folder) == ["file"]
    return done, after if isinstance(before, bytes) else after.decode()


async def test_a_text_that_occurs_once_is_replaced_and_the_diff_is_told(
    folder: Path,
) -> None:
    """The rest of the file is as it was, its rights too."""
    (folder / "file").touch(mode=0o640)
    (folder / "file").chmod(0o750)
    done, after = await edit(folder, "a\nb\nc\nd\ne\nf\n", "c\nd", "C")
    assert after == "a\nb\nC\ne\nf\n"
    assert done == Done(
        "done", "--- file\n+++ file\n@@ -1,6 +1,5 @@\n a\n b\n-c\n-d\n+C\n e\n f"
    )
    assert (folder / "file").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize(
    ("before", "old", "says"),
    [
        ("one two", "three", "does not occur in file. (read the file"),
        ("one two", "One", "does not occur"),
        ("one one", "one", "occurs more than once in file. (give more"),
        ("aaa", "aa", "occurs more than once"),
        ("", "a", "does not occur"),
        ("one", "", "is empty. (write_file"),
        ("one", "new", "nothing would change"),
        (b"one\0", "one", "is not UTF-8 text"),
        (b"one\xff", "one", "is not UTF-8 text"),
        ("one" + " " * READ_BYTES_MAX, "one", "at most 10,485,760 bytes"),
        (
            "one" + " " * (READ_BYTES_MAX - 3),
            "one",
            "would have more than 10,485,760 bytes",
        ),
    ],
)
async def test_an_edit_that_is_not_clear_changes_nothing(
    folder: Path, before: str | bytes, old: str, says: str
) -> None:
    """The sentence says what to do instead."""
    done, after = await edit(folder, before, old, "new" if old != "one" else "new!")
    assert done.outcome == "failed"
    assert says in done.text
    assert after == before


async def test_all_replaces_every_place_within_bounds(folder: Path) -> None:
    """In order, not overlapping; neither what it makes nor how often has no end."""
    assert (await edit(folder, "aaaaa b a", "aa", "a", all=True))[1] == "aaa b a"
    done, after = await edit(folder, "a" * 1000, "a", "b" * 20_000, all=True)
    assert "would have more than 10,485,760 bytes" in done.text
    assert after == "a" * 1000
    done, _ = await edit(folder, "a" * 100_001, "a", "b", all=True)
    assert done == Done(
        "failed", "The old text occurs more than 100,000 times in file."
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("\ufeffa\r\nb\r\nc\r\nd\r\n", "\ufeffa\r\nB\r\nC\r\nd\r\n"),
        ("\ufeffa\nb\nc\nd", "\ufeffa\nB\nC\nd"),
        ("a\nb\r\nc\nd\n", "a\nB\r\nC\nd\n"),
        ("a\r\nb\nc\r\nd\r\n", "a\r\nB\nC\r\nd\r\n"),
    ],
)
async def test_line_ends_and_the_mark_at_the_beginning_stay_those_of_the_file(
    folder: Path, before: str, after: str
) -> None:
    """Whichever the model writes: it is shown only one kind of line end."""
    for end in ("\n", "\r\n"):
        done, holds = await edit(folder, before.encode(), f"b{end}c", f"B{end}C")
        assert (done.outcome, holds) == ("done", after.encode())


async def test_a_line_that_an_edit_adds_ends_as_the_others_do(folder: Path) -> None:
    """Also where the text that was replaced held no line end."""
    assert (await edit(folder, b"a\r\nb\r\nc\n", "b", "b\nB"))[
        1
    ] == b"a\r\nb\r\nB\r\nc\n"
    assert (await edit(folder, b"a\nb\r\nc\n", "b", "b\r\nB"))[1] == b"a\nb\nB\r\nc\n"


async def test_an_edit_is_never_repeated_unasked(folder: Path) -> None:
    """It is of the class `once`, for made twice it does something else than made once."""
    assert EditFile.effect == "once"
    (folder / "file").write_text("log(x)")
    for _ in range(2):
        await use(folder, "edit_file", path="file", old="x", new="x, x", all=True)
    assert (folder / "file").read_text() == "log(x, x, x, x)"


async def test_a_file_that_changed_while_it_was_edited_keeps_the_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody else wrote meanwhile is not lost."""
    (folder / "file").write_text("old")

    def late(descriptor: int) -> None:
        (folder / "file").write_text("old, and more")

    monkeypatch.setattr(os, "fsync", late)
    done = await use(folder, "edit_file", path="file", old="old", new="new")
    assert done == Done(
        "failed", "file was changed meanwhile, so it was not edited. (read it again)"
    )
    assert (folder / "file").read_text() == "old, and more"
    assert names(folder) == ["file"]


async def test_what_was_written_over_is_shown_as_a_diff(folder: Path) -> None:
    """If there was a text, and it changed; no longer than 200 lines."""
    assert (
        await use(folder, "write_file", path="f", content="a\nb\n")
    ).text == "f was written: 4 bytes."
    changed = await use(folder, "write_file", path="f", content="a\nc")
    assert changed.text == (
        "f was written: 3 bytes.\n--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file"
    )
    assert (
        await use(folder, "write_file", path="f", content="a\nc")
    ).text == "f was written: 3 bytes."
    (folder / "f").write_text("a\n")
    long = await use(folder, "write_file", path="f", content="b\n" * 100_000)
    assert len(long.text.split("\n")) == 204
    assert long.text.endswith(
        "\n+b\n[... 99,802 more lines of the diff are not shown ...]"
    )
    (folder / "f").write_bytes(b"\0")
    assert (
        await use(folder, "write_file", path="f", content="a")
    ).text == "f was written: 1 bytes."


@pytest.mark.parametrize(
    "path",
    [
        ".git/hooks/pre-commit",
        "a/.git/config",
        ".GIT/config",
        ".Git",
        ".g\u200cit/config",
        "GIT~1/config",
    ],
)
async def test_nothing_is_written_where_git_looks_for_programs(
    folder: Path, path: str
) -> None:
    """Nor under a name that some file systems take for the same."""
    _, wrote, edited = await every(folder, path)
    assert "Nothing is written inside of .git" in wrote.text
    assert edited == wrote
    assert names(folder) == []


async def test_another_spelling_of_a_name_is_refused_where_the_file_system_takes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule against `Secret/*` is not got around by `secret/plan` on a disk that does not tell them apart."""
    (folder / "Secret").mkdir()
    (folder / "Secret" / "Plan").write_text("secret")
    real_stat, real_open, real_mkdir = os.stat, os.open, os.mkdir

    def stored(name: str, dir_fd: int | None) -> str:
        there = [] if dir_fd is None else os.listdir(f"/proc/self/fd/{dir_fd}")  # noqa: PTH208  (one may be O_PATH)
        return next((each for each in there if each.lower() == name.lower()), name)

    def any_stat(
        path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> os.stat_result:
        return real_stat(
            stored(path, dir_fd), dir_fd=dir_fd, follow_symlinks=follow_symlinks
        )

    def any_open(
        path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        return real_open(stored(path, dir_fd), flags, mode, dir_fd=dir_fd)

    def any_mkdir(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real_mkdir(stored(path, dir_fd), mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "stat", any_stat)
    monkeypatch.setattr(os, "mkdir", any_mkdir)
    monkeypatch.setattr(os, "open", any_open)
    assert (await use(folder, "read_file", path="Secret/Plan")).text == "secret"
    for path, wrong in (
        ("secret/Plan", "secret"),
        ("SECRET/Plan", "SECRET"),
        ("Secret/plan", "Secret/plan"),
    ):
        for done in await every(folder, path):
            assert done == Done(
                "failed",
                f"{wrong} is spelled otherwise there. (use the name as it is listed)",
            )
    assert (folder / "Secret" / "Plan").read_text() == "secret"


@contextmanager
def swapping(place: Path, target: Path) -> Iterator[None]:
    """Exchange what stands at a place with a link to the target, again and again, while the block lasts.

    Now and then each of them stands for a while: where all threads share a processor, the others come up only then.
    """
    done = threading.Event()

    def swap() -> None:
        for n in count():
            if done.is_set():
                return
            away = place.with_name(f"away{n}")
            with suppress(OSError):
                place.rename(away)
            with suppress(OSError):  # the tool made a folder in between
                place.symlink_to(target)
                done.wait(0.002 * (n % 16 == 0))
                place.unlink()
            with suppress(OSError):
                away.rename(place)
            done.wait(0.002 * (n % 16 == 0))

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("at", ["a", "a/b", "a/b/file"])
async def test_what_is_swapped_for_a_link_meanwhile_leads_nowhere_else(
    folder: Path, at: str
) -> None:
    """Read between two swaps: either what is inside, or a refusal; both come up, the secret never does."""
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("inside")
    beyond = folder.parent / "beyond"
    (beyond / "b").mkdir(parents=True)
    for each in (beyond / "file", beyond / "b" / "file"):
        each.write_text("secret")
    target = {"a": beyond, "a/b": beyond, "a/b/file": beyond / "file"}[at]
    seen: set[str] = set()
    call = Call("ada", "c_1", 3, "call", folder)
    tool = ReadFile()
    args = tool.args("a/b/file")
    with swapping(folder / at, target):
        for tries in count():
            try:
                seen.add(await tool.run(args, call))
            except ToolFailed:
                seen.add("refused")
            if tries > 500 and len(seen) > 1:
                break
    assert seen == {"inside", "refused"}


async def test_a_folder_swapped_for_a_link_meanwhile_is_not_written_through(
    folder: Path,
) -> None:
    """Whatever is written or edited while a folder and a link change places, nothing outside changes."""
    (folder / "a").mkdir()
    (folder / "a" / "file").write_text("secret")
    call = Call("ada", "c_1", 3, "call", folder)
    write, edit = WriteFile(), EditFile()
    outcomes: set[bool] = set()
    with swapping(folder / "a", folder.parent / "outside"):
        for n in count():
            for doing in (
                write.run(write.args(f"a/{n % 7}/file", "mine"), call),
                edit.run(edit.args("a/file", "secret", "secret" + "!" * (n % 2)), call),
            ):
                try:
                    await doing
                    outcomes.add(True)
                except ToolFailed:
                    outcomes.add(False)
            if n > 300 and len(outcomes) > 1:
                break
    assert outcomes == {True, False}
    assert outside(folder) == UNTOUCHED


async def test_a_write_that_nobody_waits_for_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was stopped before the new file took its place leaves the old one, and no other."""
    (folder / "file").write_text("old")
    reached, released = threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        reached.set()
        released.wait(60)

    monkeypatch.setattr(os, "fsync", slow)
    tool = WriteFile()
    writing = asyncio.create_task(
        tool.run(tool.args("file", "new"), Call("ada", "c_1", 3, "call", folder))
    )
    await asyncio.to_thread(reached.wait, 60)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    threads = [
        each for each in threading.enumerate() if each.name.startswith(OWN_THREAD)
    ]
    released.set()
    for thread in threads:
        thread.join(60)
    assert (folder / "file").read_text() == "old"
    assert names(folder) == ["file"]


async def test_blocking_work_knows_when_nobody_waits_and_is_bounded() -> None:
    """A cancelled caller is told to the thread; more threads than the bound are not begun."""
    release, seen = threading.Event(), threading.Semaphore(0)
    # one whose work is done and told may not be gone yet
    for thread in threading.enumerate():
        if thread.name.startswith(OWN_THREAD):
            thread.join(60)

    def hang(abandoned: threading.Event) -> None:
        release.wait(60)
        assert abandoned.wait(60)
        seen.release()

    waiting = []
    for _ in range(OWN_THREADS_MAX):
        abandoned = threading.Event()
        work = run_in_own_thread(partial(hang, abandoned), abandoned=abandoned)
        waiting.append(asyncio.create_task(work))
    await asyncio.sleep(0)
    with pytest.raises(ToolFailed, match="wait for the disk already"):
        await run_in_own_thread(lambda: None)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    release.set()
    for _ in waiting:
        assert seen.acquire(timeout=60)


def test_a_hung_disk_does_not_keep_the_process_from_ending(
    run_python: Callable[[str], int],
) -> None:
    """The thread is left behind, and the process goes."""
    code = run_python("""
        import asyncio, threading
        from tenax.concurrency import run_in_own_thread

        async def main():
            try:
                await asyncio.wait_for(run_in_own_thread(threading.Event().wait), 0.05)
            except TimeoutError:
                raise SystemExit(7)

        asyncio.run(main())
    """)
    assert code == 7


@pytest.fixture
def run_python() -> Callable[[str], int]:
    """Run a script in a process of its own; its exit code."""

    def run(script: str) -> int:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)], timeout=60, check=False
        ).returncode

    return run


async def test_a_file_that_may_not_be_read_is_not_shown_by_a_change_either(
    folder: Path,
) -> None:
    """The diff of a write or an edit would show what a rule keeps from `read_file`."""
    (folder / "keys").write_text("one\nhunter2\n")
    rules = (Rule("deny", "read_file", "keys"),)
    call = Call("ada", "c_1", 3, "call", folder)
    answers = [
        await EditFile(lambda: rules).run(EditFileArgs("keys", "one", "two"), call),
        await WriteFile(lambda: rules).run(WriteFileArgs("keys", "three"), call),
    ]
    assert "hunter2" not in "".join(answers)
    assert all("a rule forbids to read" in answer for answer in answers)
    assert (folder / "keys").read_text() == "three"
    shown = await WriteFile(lambda: ()).run(WriteFileArgs("keys", "four"), call)
    assert "-three" in shown

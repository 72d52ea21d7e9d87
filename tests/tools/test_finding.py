"""Finding files and lines: what is ignored is left out, nothing outside is seen, and every search has an end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
from itertools import count
from pathlib import Path

import msgspec
import pytest

from tenax.clock import Timing
from tenax.config.rules import Rule
from tenax.tools.base import Call
from tenax.tools.files import walk as seek
from tenax.tools.files.find import FindFiles, SearchFiles
from tenax.tools.gate import Allowed, Done, Gate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The conversation's folder; beside it stands a secret."""
    fill(
        tmp_path,
        {
            "secret": "secret",
            "outside/secret": "secret",
            "outside/deep/secret": "secret",
        },
    )
    (tmp_path / "inside").mkdir()
    return tmp_path / "inside"


def fill(folder: Path, files: dict[str, str]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.encode())


async def use(folder: Path, name: str, **arguments: object) -> Done:
    """Call a tool with the timing of the product."""
    return await use_with(Timing(), folder, name, arguments)


async def use_with(
    timing: Timing, folder: Path, name: str, arguments: dict[str, object]
) -> Done:
    """Call a tool as the loop does: through the gate, without approval."""
    gate = Gate([FindFiles(timing=timing), SearchFiles(timing=timing)])
    call = Call("ada", "c_1", 3, "call", folder)
    weighed = gate.weigh(
        name, msgspec.json.encode(arguments).decode(), call, allowed=()
    )
    if isinstance(weighed, Done):
        return weighed
    assert isinstance(weighed, Allowed)
    return await gate.perform(weighed, approved_arguments=None)


async def find(folder: Path, pattern: str = "*", **more: object) -> list[str]:
    done = await use(folder, "find_files", pattern=pattern, **more)
    assert done.outcome == "done"
    return done.text.split("\n")


async def search(folder: Path, pattern: str, **more: object) -> list[str]:
    done = await use(folder, "search_files", pattern=pattern, **more)
    assert done.outcome == "done"
    return done.text.split("\n")


NOTHING = ["Nothing was found."]


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("*.py", ["a.py", "src/b.py", "src/deep/test_c.py"]),
        (
            "*",
            ["a.py", "src/b.py", "src/deep/test_c.py", "src/deep/x.ts", "src/é [1].md"],
        ),
        (
            "**",
            ["a.py", "src/b.py", "src/deep/test_c.py", "src/deep/x.ts", "src/é [1].md"],
        ),
        ("./src/*.py", ["src/b.py"]),
        ("src/**/*.py", ["src/b.py", "src/deep/test_c.py"]),
        ("src/**", ["src/b.py", "src/deep/test_c.py", "src/deep/x.ts", "src/é [1].md"]),
        ("**/deep/*", ["src/deep/test_c.py", "src/deep/x.ts"]),
        ("test_?.{py,ts}", ["src/deep/test_c.py"]),
        ("{src/deep/*.ts,a.*}", ["a.py", "src/deep/x.ts"]),
        ("[a-b].py", ["a.py", "src/b.py"]),
        ("[!a].py", ["src/b.py"]),
        ("? \\[1].md", ["src/é [1].md"]),
        ("A.PY", NOTHING),
        ("src", NOTHING),
        ("[", NOTHING),
    ],
)
async def test_files_are_found_by_a_glob(
    folder: Path, pattern: str, fits: list[str]
) -> None:
    """One without a slash is for a name in any folder, one with a slash for the whole path."""
    fill(
        folder,
        dict.fromkeys(
            ["a.py", "src/b.py", "src/deep/test_c.py", "src/deep/x.ts", "src/é [1].md"],
            "",
        ),
    )
    assert await find(folder, pattern) == fits


async def test_a_folder_to_look_in_narrows_the_search(folder: Path) -> None:
    """Patterns are relative to it, paths in the result are not. One that was not made yet is empty."""
    fill(folder, {"a": "x", "src/a": "x", "src/deep/a": "x"})
    assert await find(folder, "deep/*", **{"in": "src/"}) == ["src/deep/a"]
    assert await search(folder, "x", **{"in": "src/deep"}) == ["src/deep/a:1: x"]
    assert await find(folder / "new") == NOTHING
    for path, says in (
        ("none", "There is no folder none."),
        ("a", "a cannot be looked into: Not a directory."),
    ):
        assert await use(folder, "find_files", pattern="*", **{"in": path}) == Done(
            "failed", says
        )


async def test_lines_are_found_by_an_expression_or_by_plain_words(folder: Path) -> None:
    """With the path and the number of the line; only in files that fit the glob."""
    fill(
        folder,
        {
            "a.py": "def one():\r\n    x(1)\r\n",
            "b.md": "\ufeffx(1) or\tXX\n\nx(2)",
            "c.py": "",
            "d": "\n",
        },
    )
    assert await search(folder, r"^x\(\d\)$") == ["b.md:3: x(2)"]
    assert await search(folder, "^x") == ["b.md:1: x(1) or\tXX", "b.md:3: x(2)"]
    assert await search(folder, "(?i)xx$") == ["b.md:1: x(1) or\tXX"]
    assert await search(folder, "x(1)", plain=True) == [
        "a.py:2:     x(1)",
        "b.md:1: x(1) or\tXX",
    ]
    assert await search(folder, "x.1", glob="*.py") == ["a.py:2:     x(1)"]
    assert await search(folder, "^$") == ["b.md:2: ", "d:1: "]
    wrong = await use(folder, "search_files", pattern="x(")
    assert wrong.outcome == "failed"
    assert wrong.text.startswith(
        "This is no regular expression: missing ), unterminated subpattern"
    )


async def test_what_an_ignore_file_names_is_left_out(folder: Path) -> None:
    """Nested ones are heard first, what was excluded can be taken back, and `.git` is never looked into."""
    fill(
        folder,
        {
            ".gitignore": "*.log\n!keep.log\n/build/\n# no comment\nout/\n\\#odd\ntrailing  \ndoc/**/*.pdf\n",
            ".git/config": "",
            "sub/.git": "",
            "doc/.GIT/config": "",
            "a.log": "",
            "keep.log": "",
            "build/x": "",
            "sub/build/x": "",
            "sub/out/keep.log": "",
            "out": "a file, not a folder",
            "#odd": "",
            "trailing": "",
            "doc/a.pdf": "",
            "doc/b/c.pdf": "",
            "sub/.gitignore": "\ufeff*\r\n!*.log\r\n!/*/\r\n/no.log",
            "sub/b.log": "",
            "sub/no.log": "",
            "sub/deep/no.log": "",
            "sub/other": "",
        },
    )
    below = ["sub/b.log", "sub/deep/no.log", "sub/out/keep.log"]
    assert await find(folder) == [".gitignore", "keep.log", "out", *below]
    assert await find(folder, **{"in": "sub"}) == below
    assert await find(folder, **{"in": "build"}) == ["build/x"]


@pytest.mark.parametrize(
    ("line", "path", "ignored"),
    [
        ("a", "a", True),
        ("a", "x/a", True),
        ("/a", "x/a", False),
        ("x/a", "y/x/a", False),
        ("**/x/a", "y/x/a", True),
        ("x/**", "x/y/a", True),
        ("x/**/a", "x/a", True),
        ("x/**/a", "x/y/z/a", True),
        ("a*b", "a/b", False),
        ("a?b", "a/b", False),
        ("a[!x]b", "a/b", False),
        ("a[+-9]b", "a/b", False),
        ("[]-]", "]", True),
        ("[a-]", "-", True),
        ("[[:digit:]]x", "1x", True),
        (r"[\]]", "]", True),
        ("[^a]", "a", False),
        ("[a", "[a", False),
        ("a\\", "a\\", False),
        (r"\!a", "!a", True),
        (r"a\ ", "a ", True),
        ("a ", "a ", False),
        ("**", "x/a", True),
        ("*/", "a", False),
        ("*/", "x/a", True),
    ],
)
async def test_a_line_of_an_ignore_file_means_what_it_means_to_git(
    folder: Path, line: str, path: str, ignored: bool
) -> None:
    """These were all put to Git itself."""
    fill(folder, {f"f/{path}": "", "f/.gitignore": f"{line}\n!.gitignore\n"})
    assert await find(folder) == ["f/.gitignore", *([] if ignored else [f"f/{path}"])]


async def test_an_ignore_file_has_an_end(folder: Path) -> None:
    """Of two equal lines the last one counts, and only so many different lines are read."""
    lines = [f"*{n}" for n in range(seek.IGNORE_LINES_MAX - 2)]
    text = "\n".join([*(["x*y"] * 40_000), *lines, "!x*y", "x*y", "too-late"])
    fill(
        folder, {".gitignore": text, "xy": "", "too-late": "", "name-7": "", "name": ""}
    )
    assert await find(folder) == [".gitignore", "name", "too-late"]


async def test_patterns_that_backtrack_without_end_elsewhere_take_no_time(
    folder: Path,
) -> None:
    """Neither one that a model wrote nor one in a repository's ignore file."""
    name = "a" * 200
    slow = "*a" * 90 + "*b"
    fill(
        folder,
        {
            "/".join(["a" * 9] * 12 + [name]): "",
            ".gitignore": f"{slow}\n{'**/a*/' * 60}b\n",
        },
    )
    assert await find(folder, slow) == NOTHING
    assert await find(folder, "**/a*/" * 60 + "b") == NOTHING
    assert (await find(folder, "**/a*/*a*a*a"))[0].endswith(name)


async def test_an_expression_that_explodes_is_ended_and_what_was_found_is_told(
    folder: Path,
) -> None:
    """By an alarm of its process; the loop goes on meanwhile."""
    fill(folder, {"a": "aaaa\n", "b": "a" * 100 + "!\n", "c": "aaaa\n"})
    timing = Timing(find_seconds=1.0)
    searching = asyncio.create_task(
        use_with(timing, folder, "search_files", {"pattern": "^(a|aa)+$"})
    )
    turns = 0
    while not searching.done():
        await asyncio.sleep(0.01)
        turns += 1
    done = await searching
    assert done.outcome == "done"
    assert done.text.split("\n") == [
        "a:1: aaaa",
        "[Stopped after 1 seconds: this is not all of it. Look in a smaller folder.]",
    ]
    # A search on the loop itself would leave one turn, after its end.
    assert turns > 2


async def test_a_search_that_nobody_waits_for_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is gone when the caller is told."""
    fill(folder, {"b": "a" * 100 + "!\n"})
    started: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()
    real = asyncio.create_subprocess_exec

    async def start(*args: str, **more: int) -> asyncio.subprocess.Process:
        process = await real(*args, **more)  # type: ignore[arg-type]
        started.put_nowait(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    searching = asyncio.create_task(search(folder, "^(a|aa)+$"))
    process = await started.get()
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert process.returncode == -signal.SIGKILL


async def test_an_expression_that_takes_all_memory_is_refused(folder: Path) -> None:
    """The process has a limit of its own."""
    fill(folder, {"a": "a" * 1_900_000})
    done = await use(
        folder, "search_files", pattern="^(?:(a)(b)?(c)?(d)?(e)?(f)?(g)?)*h"
    )
    assert done == Done("failed", "The pattern needs too much memory.")


async def test_what_is_found_has_an_end(folder: Path) -> None:
    """In matches, in characters, and in the length of a line, of which the part around the match is shown."""
    fill(folder, {f"{n:03}": "x\n" * 2 for n in range(150)})
    found = await search(folder, "x")
    assert (found[0], found[-2:]) == (
        "000:1: x",
        ["099:2: x", "[There is more than these 200.]"],
    )
    assert len(await find(folder)) == 150
    fill(folder, {"000": "-" * 1000 + "x" + "+" * 1000 + "\n"})
    line = (await search(folder, "x"))[0]
    assert line == f"000:1: [...]{'-' * 100}x{'+' * 199}[...]"
    fill(folder, {f"{n:03}": "x" * 299 + "\n" for n in range(150)})
    found = await search(folder, "x")
    assert len(found) < 100
    assert found[-1] == f"[There is more than these {len(found) - 1}.]"


async def test_large_and_binary_files_are_not_searched(folder: Path) -> None:
    """A large one is counted, and found by its name all the same."""
    fill(
        folder,
        {
            "binary": "x\0",
            "large": "x" * (seek.BYTES_MAX + 1),
            "most": "x" + "\n" * (seek.BYTES_MAX - 1),
        },
    )
    (folder / "latin").write_bytes(b"x \xe9")
    assert await search(folder, "x") == [
        "latin:1: x \ufffd",
        "most:1: x",
        "[Larger than 2,000,000 bytes and not searched: 1.]",
    ]
    assert await find(folder) == ["binary", "large", "latin", "most"]


async def test_only_so_many_files_are_looked_at(folder: Path) -> None:
    """The result says that it is not all."""
    for n in range(5):
        (folder / f"{n}").mkdir()
    (folder / "0" / "first").touch()
    for n in range(seek.ENTRIES_MAX):
        os.link(folder / "0" / "first", folder / f"{n // 12_000}" / f"file{n}")
    assert await find(folder, "first") == [
        "0/first",
        "[Stopped after 50,000 files and folders: this is not all of it.]",
    ]


async def test_folders_in_folders_have_an_end(folder: Path) -> None:
    """What lies deeper than 100 is counted as not read."""
    deep = folder
    for _ in range(120):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    assert await find(folder) == [*NOTHING, "[Could not be read: 1.]"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"pattern": "*", "in": "/etc"}, "may not begin with a slash"),
        ({"pattern": "*", "in": "/proc/self"}, "may not begin with a slash"),
        ({"pattern": "*", "in": ".."}, "'..'"),
        ({"pattern": "*", "in": "a/../.."}, "'..'"),
        ({"pattern": "*", "in": "a\nb"}, "cannot be seen"),
        ({"pattern": "*", "in": "a\0b"}, "cannot be seen"),
        ({"pattern": "*", "in": "a/" * 2500}, "characters"),
        ({"pattern": "*", "in": "a" * 300}, "File name too long"),
        ({"pattern": "../*"}, "'..'"),
        ({"pattern": "src/../../*"}, "'..'"),
        ({"pattern": "/etc/*"}, "begin with a slash"),
        ({"pattern": ""}, "1 to 1,000 characters"),
        ({"pattern": "*" * 5000}, "1 to 1,000 characters"),
        ({"pattern": "{a,b}" * 7}, "more than 64 others"),
    ],
)
async def test_a_place_outside_is_refused(
    folder: Path, arguments: dict[str, str], says: str
) -> None:
    """By what it says, and so is what has no end."""
    found = await use(folder, "find_files", **arguments)
    asked = {
        "pattern": "x",
        "in": arguments.get("in", ""),
        "glob": arguments["pattern"],
    }
    for done in (found, await use(folder, "search_files", **asked)):
        assert done.outcome == "failed"
        assert says in done.text


async def test_a_pattern_that_could_find_nothing_is_refused(folder: Path) -> None:
    """Nobody looks for an empty one, or for one that holds a line break."""
    for pattern, says in (
        ("", "1 to 1,000"),
        ("x" * 1001, "1 to 1,000"),
        ("a\nb", "one line is searched at a time"),
    ):
        done = await use(folder, "search_files", pattern=pattern)
        assert done.outcome == "failed"
        assert says in done.text


async def test_links_are_not_followed(folder: Path) -> None:
    """Neither to files nor to folders, on the way or at its end, nor where an ignore file should be."""
    fill(folder, {"real/file": "secret?", "real/secret": "none"})
    fill(folder.parent, {"ignore": "file\n"})
    for name, target in {
        "file": "../secret",
        "folder": "../outside",
        "self": "/proc/self",
        "root": "/",
        "loop": ".",
        "real/up": "..",
        ".gitignore": "../ignore",
    }.items():
        (folder / name).symlink_to(target)
    assert await find(folder) == ["real/file", "real/secret"]
    assert await search(folder, "secret") == ["real/file:1: secret?"]
    for path, link in (
        ("folder", "folder"),
        ("folder/deep", "folder"),
        ("self/root", "self"),
        ("real/up", "real/up"),
    ):
        done = await use(folder, "search_files", pattern="secret", **{"in": path})
        assert done == Done("failed", f"{link} is a link, and links are not followed.")


async def test_pipes_sockets_and_devices_are_passed_by(folder: Path) -> None:
    """They hold nobody up."""
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / ".gitignore")
    fill(folder, {"file": "x"})
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(folder, os.O_RDONLY)
        # the path itself may be too long for a socket
        listener.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        assert await find(folder) == ["file"]
        assert await search(folder, "x") == ["file:1: x"]
    assert (await find(Path("/dev"), "null"))[0] == "Nothing was found."


async def test_names_that_cannot_be_seen_are_shown_escaped(folder: Path) -> None:
    """A name or a line cannot pretend to be another result."""
    for name in ("a\nb:1: x", "\x1b[2K", "\u202etxt", '"quoted"'):
        fill(folder, {name: "x\rfake:1: x\u2028fake\n"})
    fill(folder, {os.fsdecode(b"\xff"): ""})
    assert await find(folder) == [
        r'"\u001b[2K"',
        r'"\"quoted\""',
        r'"a\nb:1: x"',
        r'"\u202etxt"',
        r'"\udcff"',
    ]
    assert (await search(folder, "x"))[
        2
    ] == '"a\\nb:1: x":1: x\ufffdfake:1: x\ufffdfake'


async def test_what_may_not_be_read_is_counted(folder: Path) -> None:
    """The rest is found."""
    fill(folder, {"a": "x", "closed/b": "x", "z": "x"})
    (folder / "closed").chmod(0)
    try:
        found = await search(folder, "x")
    finally:
        (folder / "closed").chmod(0o700)
    if os.geteuid():
        assert found == ["a:1: x", "z:1: x", "[Could not be read: 1.]"]
    else:  # nothing is closed to root
        assert found == ["a:1: x", "closed/b:1: x", "z:1: x"]


@pytest.mark.parametrize(
    "place", ["a", "a/file", "a/deep", "a/deep/file", "a/deep/.gitignore"]
)
@pytest.mark.parametrize("becomes", ["link", "nothing", "folder", "pipe", "file"])
def test_what_is_swapped_between_the_look_and_the_use_leads_nowhere_else(
    folder: Path,
    place: str,
    becomes: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each place at the last instant, just before it is opened: what stands beside it is found all the same."""
    fill(
        folder,
        {
            "a/file": "inside",
            "a/deep/file": "inside",
            "a/deep/.gitignore": "#",
            "z": "inside",
        },
    )
    fill(
        folder.parent,
        {
            "beyond/file": "secret",
            "beyond/deep/file": "secret",
            "beyond/.gitignore": "*",
        },
    )
    beyond = {"a": "beyond", "a/deep": "beyond/deep"}.get(
        place, f"beyond/{Path(place).name}"
    )
    real, inode = os.open, (folder / place).parent.stat().st_ino
    swapped: list[Path] = []

    def late(
        path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        if (
            path == Path(place).name
            and dir_fd
            and not swapped
            and os.fstat(dir_fd).st_ino == inode
        ):
            swapped.append((folder / place).rename(folder.parent / "away"))
            match becomes:
                case "link":
                    (folder / place).symlink_to(folder.parent / beyond)
                case "folder":
                    (folder / place).mkdir()
                case "pipe":
                    os.mkfifo(folder / place)
                case "file":
                    (folder / place).write_text("-")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", late)
    seek.Search(re.compile(".*"), re.compile("inside|secret")).run(str(folder), [])
    assert len(swapped) == 1
    found = capsys.readouterr().out.split("\n")
    assert "z:1: inside" in found
    assert set(found) <= {
        "z:1: inside",
        "a/file:1: inside",
        "a/deep/file:1: inside",
        "",
    }


async def test_a_folder_that_changes_while_it_is_walked_is_walked_to_its_end(
    folder: Path,
) -> None:
    """Whatever comes and goes meanwhile."""
    fill(folder, {"a/b/file": "inside", "stays": "inside"})
    done = threading.Event()

    def change() -> None:
        for n in count():
            if done.is_set():
                return
            (folder / "a").rename(folder / f"a{n}")
            fill(folder / f"a{n}", {f"new{n % 50}/file": "inside"})
            (folder / f"a{n}").rename(folder / "a")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(10):
            assert (await search(folder, "inside"))[-1] == "stays:1: inside"
    finally:
        done.set()
        thread.join()


async def test_what_a_rule_forbids_to_read_is_not_found(folder: Path) -> None:
    """Neither its name nor a line of it, by a pattern of any shape; a rule of this tool's own counts too, an allow rule not."""
    fill(
        folder,
        {
            "a.txt": "word",
            "secret/b.txt": "word",
            "deep/.env": "word",
            "deep/c": "word",
        },
    )
    rules: list[Rule] = []
    gate = Gate([FindFiles(lambda: rules), SearchFiles(lambda: rules)], lambda: rules)

    async def found(name: str, **arguments: object) -> list[str]:
        call = Call("ada", "c_1", 3, "call", folder)
        weighed = gate.weigh(
            name, msgspec.json.encode(arguments).decode(), call, allowed=()
        )
        assert isinstance(weighed, Allowed)
        done = await gate.perform(weighed, approved_arguments=None)
        return [line.partition(":")[0] for line in done.text.split("\n")]

    rules += [
        Rule("allow", "*"),
        Rule("deny", "read_*", "secret/*"),
        Rule("deny", "*_file", "*.env"),
    ]
    for name, pattern in (("find_files", "**"), ("search_files", "word")):
        assert await found(name, pattern=pattern) == ["a.txt", "deep/c"]
        assert await found(name, pattern=pattern, **{"in": "secret"}) == NOTHING
    rules.append(Rule("deny", "search_files", "a.txt"))
    assert await found("search_files", pattern="word") == ["deep/c"]
    assert await found("find_files", pattern="*.txt") == ["a.txt"]

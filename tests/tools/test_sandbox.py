"""The sandbox: what a command inside it tries against the rest of the machine, and what it gets. As root and as nobody."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import platform
import pwd
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tenax.errors import ConfigError, ToolFailed
from tenax.tools.base import Call
from tenax.tools.files.edit import (
    EditFile,
    EditFileArgs,
    ReadFile,
    ReadFileArgs,
    WriteFile,
    WriteFileArgs,
)
from tenax.tools.files.find import SearchFiles, SearchFilesArgs
from tenax.tools.gate import Done
from tenax.tools.shell import repositories, sandbox
from tenax.tools.shell.sandbox import Running, Sandbox, start_bare
from tests.support.bubblewrap import ORDINARY, ROOT, inside, need_bwrap, try_all
from tests.support.races import Report, race
from tests.support.remembering import until

USERS = (
    {"root": 0, "ordinary": ORDINARY}
    if os.getuid() == 0
    else {"ourselves": os.getuid()}
)
PTRACE, KEYCTL = {"x86_64": (101, 250), "aarch64": (117, 219)}[platform.machine()]

HOME = Path.home()
PLACE = "/var/tmp"  # where the sandbox has nothing of its own

# What is tried, and what the answer must hold. Nothing here would do harm where it is let through.
ESCAPES = {
    "keys of the person": ("cat {home}/.ssh/id_rsa; wc -c /root/.ssh/* /home/*/.ssh/*; ls {home}", r"(?:No such file.*\n.*){3}\n?.*folder\n\["),
    "the store": ("cat {home}/tenax.db", "No such file"),
    "programs of the machine": ("cat /proc/1/comm; chmod 755 /proc/1/exe", r"sh\n.*Read-only"),
    "another conversation": ("ls {home}/other", "No such file"),
    "homes and services": ("ls -d /root /home /run /var/lib /sys /boot /opt", "(?:.*No such file.*\n){7}"),
    "passwords": ("wc -c /etc/shadow /etc/ssh/* /etc/ssl/private/*", "(?:.*No such file.*\n){3}"),
    "our environment": ("cat /proc/*/environ | tr '\\0' '\\n'; env", r"\A(?!(?s:.*)hunter2)(?s:.*)HOME=/tmp/home"),
    "our process": ("ls -d /proc/{pid}; ls /proc | grep -c '^[0-9]'", r"No such file.*\n\d\n"),
    "signals": ("kill -0 {pid}; kill -9 {victim}", r"(?:No such process(?s:.*)){2}"),
    "ptrace": ("perl -e 'syscall({ptrace}, 16, {victim}, 0, 0); print $!'", "No such process|not permitted"),
    "absolute paths": ("for f in {home}/file /usr/x /etc/x /x /var/x; do echo x > $f; done", "(?:.*Read-only.*\n){5}"),
    "above the folder": ("echo x > ../file; mkdir ../outside; echo x > ../../file", "(?:.*Read-only.*\n){3}"),
    "a link": ("ln -s {home}/file out; echo x >> out; cat out; rm out", r"Read-only(?s:.*)No such file"),
    "a hard link": ("ln {home}/file hard; ln /etc/hosts hard", r"No such file(?s:.*)(?:cross-device|not permitted)"),
    "mount": ("mount -t tmpfs none /tmp; mount --bind /usr .; umount {home}/folder", "(?:denied|not permitted|superuser)"),
    "remount": ("mount -o remount,rw /usr; mount -o remount,rw,bind /usr; touch /usr/x", "Read-only file system"),
    "namespaces": ("unshare -Ur true; unshare -m true; unshare -n true", r"(?:not permitted(?s:.*)){3}"),
    "a sandbox in it": ("bwrap --ro-bind / / id", "(?:namespace|not permitted|No permissions)"),
    "settings of the kernel": (": >> /proc/sys/kernel/core_pattern", "Read-only|denied"),
    "the kernel's log": ("dmesg; cat /proc/keys /proc/timer_list | wc -c", r"not permitted\n(?:.*denied\n)*0\n"),
    "this machine's network": ("exec 3<>/dev/tcp/127.0.0.1/{port}", "refused"),
    "the world's network": ("exec 3<>/dev/tcp/192.0.2.1/80", "unreachable"),
    "names": ("getent hosts example.com; echo $?", r"\A2\n"),
    "an abstract socket": (
        "perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); connect(S, pack(\"Sa*\", 1, \"\\0{abstract}\")); print $!'",
        "refused",
    ),
    "a socket of the hypervisor": ("perl -e 'socket(S, 40, 1, 0); print $!'", "not permitted"),
    "memory": ("head -c1 /dev/mem; head -c1 /dev/kmem; mknod m c 1 1; ls /dev/vda /dev/sda", r"not permitted|denied"),
    "a copy of a mount": ("perl -e 'print syscall(467, -100, 0, 0, 0, 0), $!'", "-1.*not permitted"),
    "keyrings": ("perl -e 'print syscall({keyctl}, 0, -3, 0), $!'", "-1.*not permitted"),
    "privileges": ("grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status", r"CapEff:\s0+\nCapBnd:\s0+\nNoNewPrivs:\s1"),
    "setuid programs": ("su -c id; mount; id -u", r"1000\n"),
    "a setuid file": (
        "cp /usr/bin/id own; chmod u+s own; stat -c %a own; "  # noqa: ISC004  (one command)
        "perl -MFcntl -e 'sysopen(F, \"new\", O_CREAT|O_WRONLY, 04755); print $!'; ls new",
        r"not permitted\n755\n.*not permitted.*No such file",
    ),
    "devices of all": ("chmod 666 /dev/null /dev/zero /dev/urandom", r"\A(?:.*Operation not permitted\n){3}"),
    "our terminal": ("perl -e 'open(T, \"+<\", \"/dev/tty\") or print $!; $c = 120; print ioctl(STDIN, 0x5412, $c) ? 1 : $!'",
                     "No such device.*(?:Inappropriate|not permitted)"),
    "messages between processes": ("ipcs -m | grep -c '^0x'", r"\A0\n"),
}  # fmt: skip


class Tried(NamedTuple):
    done: dict[str, Done]
    """Each escape and what became of it."""
    harm: list[str]
    """What was changed outside."""


@pytest.fixture(scope="module", params=USERS)
def tried(request: pytest.FixtureRequest) -> Tried:
    """All escapes, tried by one user; beside them stand a process, servers and files to be reached."""
    need_bwrap(of_the_system=True)  # one escape starts bubblewrap in the sandbox
    user = USERS[request.param]
    home = Path(tempfile.mkdtemp(prefix="tenax-sandbox-", dir=PLACE))
    for name in (
        ".ssh/id_rsa",
        "tenax.db",
        "other/file",
        "outside/file",
        "file",
        "folder/mine",
    ):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text("hunter2")
    for each in (home, *home.rglob("*")):
        os.chown(each, user, user if os.getuid() == 0 else -1)
    before, devices = _beside(home), _devices()
    abstract = f"tenax-{os.getpid()}-{user}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as local,
    ):
        server.setblocking(False)
        local.bind(f"\0{abstract}")
        local.listen()
        local.setblocking(False)
        with subprocess.Popen(["sleep", "300"]) as victim, _shared_memory():
            said = {
                "home": home, "pid": os.getpid(), "victim": victim.pid, "port": server.getsockname()[1],
                "abstract": abstract, "ptrace": PTRACE, "keyctl": KEYCTL,
            }  # fmt: skip
            commands = [_filled(command, said) for command, _ in ESCAPES.values()]
            done = try_all(home / "folder", user, commands, [home / "tenax.db"])
            harm = [] if victim.poll() is None else ["the process was ended"]
            victim.kill()
        for listening in (server, local):
            try:
                listening.accept()[0].close()
                harm.append(f"{listening.family} was reached")
            except BlockingIOError:
                pass
    if _beside(home) != before:
        harm.append(f"files: {_beside(home)}")
    if _devices() != devices:
        harm.append("a device")
    shutil.rmtree(home)
    return Tried(dict(zip(ESCAPES, done, strict=True)), harm)


def _filled(command: str, said: dict[str, object]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: str(said[found[1]]), command)


@contextmanager
def _shared_memory() -> Iterator[None]:
    made = subprocess.run(
        ["ipcmk", "-M", "64"], capture_output=True, text=True, check=True
    ).stdout
    yield
    subprocess.run(["ipcrm", "-m", made.split()[-1]], check=True)


def _devices() -> list[int]:
    """When they were changed last, in any way."""
    return [Path("/dev", each).stat().st_ctime_ns for each in ("null", "zero")]


def _beside(home: Path) -> dict[str, str]:
    return {
        str(path): path.read_text()
        for path in home.rglob("*")
        if path.is_file() and not path.is_relative_to(home / "folder")
    }


@pytest.mark.parametrize("name", ESCAPES)
def test_there_is_no_way_out(tried: Tried, name: str) -> None:
    """Each escape is really tried in the sandbox, and is refused by the system."""
    done = tried.done[name]
    assert done.outcome == "done"
    assert re.search(ESCAPES[name][1], done.text), done.text
    assert "hunter2" not in done.text


def test_nothing_outside_was_touched(tried: Tried) -> None:
    """After all of the escapes: no file, no process, no server and no device."""
    assert tried.harm == []


def _raced(user: int, runs: int) -> Report:
    need_bwrap(of_the_system=True)
    with tempfile.TemporaryDirectory(prefix="tenax-race-", dir=PLACE) as made:
        folder = Path(made) / "folder"
        folder.mkdir()
        for place in (folder.parent, folder):
            os.chown(place, user, user if os.getuid() == 0 else -1)
        return race(folder, user, runs)


@pytest.mark.parametrize("user", USERS)
def test_a_command_that_swaps_a_repository_for_a_link_gets_another_one_nowhere(
    user: str,
) -> None:
    """The repository, its hooks, its settings or a folder on the way: nothing outside is reached, nothing protected is written."""
    report = _raced(USERS[user], 24)
    assert (report.escaped, report.lost, report.errors) == ([], [], [])
    # no command begins while a repository is being moved, so that some are refused
    assert report.ran


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("user", USERS)
def test_a_thousand_swaps_get_nowhere(user: str) -> None:
    """The same race, a thousand times for each user."""
    report = _raced(USERS[user], 1020)
    assert (report.escaped, report.lost, report.errors) == ([], [], [])
    # no command begins while a repository is being moved, so that some are refused
    assert report.ran


@pytest.fixture
def folder() -> Iterator[Path]:
    need_bwrap()
    with tempfile.TemporaryDirectory(prefix="tenax-sandbox-", dir=PLACE) as made:
        yield Path(made) / "folder"


async def said(running: Running, seconds: float = 60) -> tuple[str, object]:
    finish = asyncio.create_task(running.finish(seconds))
    output = await running.output.read(-1)
    ending = await finish
    return output.decode(), ending.why or ending.code


async def test_a_command_works_in_its_folder(folder: Path) -> None:
    """The folder is made, is writable under its own path, and is where the command begins; /tmp and the home are new."""
    sandbox = Sandbox()
    assert sandbox.why_not() == ""
    command = "pwd; ls -A /tmp ~; echo kept > file; echo gone > /tmp/file; echo gone > ~/file; exit 7"
    output, code = await said(await sandbox.start(command, folder))
    assert output == f"{folder}\n/tmp:\nhome\n\n/tmp/home:\n"
    assert code == 7
    assert (folder / "file").read_text() == "kept\n"
    assert (await said(await sandbox.start("cat /tmp/file ~/file", folder)))[1] == 1


@pytest.mark.parametrize("hooks", [True, False])
async def test_what_git_runs_for_the_person_later_is_not_written(
    folder: Path, *, hooks: bool
) -> None:
    """Neither a hook nor a setting that names one, also by moving the repository away; and a commit still works."""
    await said(
        await Sandbox().start(
            "git init -q . --template=" + "; mkdir .git/hooks" * hooks, folder
        )
    )
    config = (folder / ".git/config").read_text()
    tries = (
        "echo evil > .git/hooks/pre-commit",
        "git config core.hooksPath /tmp",
        "mv .git away",
        "mv .git/hooks .git/old",
        "echo evil > c && mv c .git/config",
        "rm -rf .git/hooks .git/config",
    )
    output, _ = await said(
        await Sandbox().start(
            "; ".join(f"({each}) && echo DONE" for each in tries), folder
        )
    )
    assert "DONE" not in output
    assert (folder / ".git/config").read_text() == config
    assert [
        path for path in (folder / ".git/hooks").iterdir() if "evil" in path.read_text()
    ] == []
    commit = "echo x > x && git add x && git -c user.name=a -c user.email=a@b commit -qm x && git log --oneline"
    output, code = await said(await Sandbox().start(commit, folder))
    assert code == 0, output


PLANT = (
    "cp -r {git} evil; git config -f evil/config core.fsmonitor 'touch {mark}; false'; "
)


@pytest.mark.parametrize("repository", [".", "deep/er", "sub"])
@pytest.mark.parametrize("file", ["commondir", "config.worktree"])
async def test_no_command_leads_git_to_other_settings(
    folder: Path, repository: str, file: str
) -> None:
    """Git looks for its settings where `commondir` says, and in a file for each folder: neither is there afterwards."""
    (folder / repository).mkdir(parents=True)
    git, mark = folder / repository / ".git", folder / "ran"
    _git(folder / repository, "init", "-q")
    _git(folder / repository, "config", "extensions.worktreeConfig", "true")
    if repository == "sub":  # as git keeps a repository in another one
        _git(folder, "init", "-q")
        (folder / ".git" / "modules").mkdir()
        git = git.rename(folder / ".git" / "modules" / "sub")
        (folder / "sub" / ".git").write_text("gitdir: ../.git/modules/sub\n")
    plant = PLANT.format(git=git, mark=mark)
    plant += (
        f"(echo {folder}/evil > {git}/{file})"
        if file == "commondir"
        else f"cp evil/config {git}/{file}"
    )
    _, code = await said(await Sandbox().start(f"{plant}; true", folder))
    assert f"it wrote {file}" in str(code)
    assert not (git / file).exists()
    # The command is ended because of the file, and neither by itself nor by the timeout.
    _, code = await said(await Sandbox().start(f"{plant}; sleep 300", folder), 60)
    assert f"it wrote {file}" in str(code)
    assert not (git / file).exists()
    _git(folder / repository, "status")
    assert not mark.exists()


async def test_repositories_in_the_folder_and_what_stands_for_one_stay(
    folder: Path,
) -> None:
    """A repository further down, and the file that says where that of a worktree is."""
    for name in ("nested", "tree"):
        (folder / name).mkdir(parents=True)
    _git(folder / "nested", "init", "-q")
    (folder / ".git").write_text("gitdir: /nowhere\n")
    (folder / "tree" / ".git").write_text("gitdir: /nowhere\n")
    tries = (
        "git -C nested config core.fsmonitor evil",
        "echo evil > nested/.git/hooks/pre-commit",
        "mv nested/.git nested/away",
        "echo gitdir: evil > .git",
        "echo gitdir: evil > tree/.git",
        "rm .git",
        "mv tree/.git away",
    )
    output, _ = await said(
        await Sandbox().start(
            "; ".join(f"({each}) && echo DONE" for each in tries), folder
        )
    )
    assert "DONE" not in output


NAMED = {
    "a bare repository": (
        "git init -q --bare store.git",
        ["store.git/config", "store.git/hooks/evil"],
    ),
    "the folder itself": ("git init -q --bare .", ["config", "hooks/evil"]),
    "core.hooksPath": (
        "git init -q r; mkdir r/.husky; git -C r config core.hooksPath .husky",
        ["r/.husky/evil", "r/.git/config"],
    ),
    "core.hooksPath after a byte order mark": (
        "git init -q r; mkdir 'r/a#b'; printf '\\xef\\xbb\\xbf[core]\\nhooksPath = \"a#b\"\\n' > c; cat r/.git/config >> c; mv c r/.git/config",
        ["r/a#b/evil"],
    ),
    "core.hooksPath of a bare repository": (
        "git init -q --bare s; mkdir s/own; git -C s config core.hooksPath own",
        ["s/own/evil"],
    ),
    "an absolute core.hooksPath": (
        "git init -q r; mkdir tools; git -C r config core.hooksPath $PWD/tools",
        ["tools/evil"],
    ),
    "core.hooksPath in a worktree": (
        "git init -q r; git -C r commit -q --allow-empty -m x; git -C r worktree add -q ../w; mkdir w/h; git -C r config core.hooksPath h",
        ["w/h/evil"],
    ),
    "include.path": (
        "git init -q r; touch r/shared; git -C r config include.path ../shared",
        ["r/shared"],
    ),
    "include.path in an included file": (
        "git init -q r; git -C r config include.path ../one; git config -f r/one include.path two; touch r/two",
        ["r/one", "r/two"],
    ),
    "includeIf": (
        "git init -q r; touch 'r/a b'; git -C r config includeIf.gitdir:/nowhere/.path '../a b'",
        ["r/a b"],
    ),
    "core.hooksPath in an included file": (
        "git init -q r; mkdir r/h; git -C r config include.path ../one; git config -f r/one core.hooksPath h",
        ["r/h/evil"],
    ),
}


def _prepare(folder: Path, setup: str) -> None:
    folder.mkdir()
    identity = {
        f"GIT_{who}_{what}": "a@b"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    subprocess.run(
        ["bash", "-ec", setup], cwd=folder, env={**os.environ, **identity}, check=True
    )


@pytest.mark.parametrize("name", NAMED)
async def test_hooks_and_settings_that_git_finds_elsewhere_are_not_written(
    folder: Path, name: str
) -> None:
    """Bare repositories, and what the settings name: neither written, nor moved away, nor is a folder on the way."""
    setup, paths = NAMED[name]
    _prepare(folder, setup)
    tries = [
        tried
        for path in paths
        for tried in (
            f"echo evil >> '{path}'",
            f"mv '{Path(path).parent}' away",
            f"rm -rf '{path}' && test -e '{path}'",
        )
    ]
    command = "; ".join(f"({tried}) && echo DONE" for tried in tries)
    output, code = await said(await Sandbox().start(f"{command}; true", folder))
    assert ("DONE" in output, code) == (False, 0), output


@pytest.mark.parametrize("kind", ["hooks", "include"])
async def test_what_the_settings_name_and_is_missing_is_not_made(
    folder: Path, kind: str
) -> None:
    """A command that makes it is ended, and it is gone afterwards."""
    (folder / "r").mkdir(parents=True)
    _git(folder / "r", "init", "-q")
    _git(
        folder / "r",
        "config",
        "core.hooksPath" if kind == "hooks" else "include.path",
        f"{folder}/r/new",
    )
    _, why = await said(
        await Sandbox().start("echo evil > r/new; sleep 60", folder), 60
    )
    assert "it wrote new in a repository" in str(why)
    assert not (folder / "r" / "new").exists()


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_command_does_not_learn_which_files_there_are_outside(
    folder: Path, tmp_path: Path, is_there: bool
) -> None:
    """A link on the way to what the settings name ends a command, whatever it leads to: else that would tell."""
    outside = tmp_path / "outside"
    outside.mkdir()
    if is_there:
        (outside / "secret").touch()
    (folder / "r").mkdir(parents=True)
    _git(folder / "r", "init", "-q")
    _git(folder / "r", "config", "include.path", "../../a/secret")
    _, why = await said(
        await Sandbox().start(f"ln -s {outside} a; sleep 60", folder), 60
    )
    assert str(why).startswith("it put a link on the way to secret in a repository")
    assert not (folder / "a").is_symlink()


async def test_settings_that_name_very_many_hooks_are_refused(folder: Path) -> None:
    """Looking for each of them would hold everybody up."""
    (folder / "r").mkdir(parents=True)
    _git(folder / "r", "init", "-q")
    with (folder / "r" / ".git" / "config").open("a") as file:
        file.write("[core]\n" + "".join(f"hooksPath = {n}/x\n" for n in range(48_000)))
    with pytest.raises(ToolFailed, match="name more than 200 folders of hooks"):
        await Sandbox().start("true", folder)


async def test_a_clone_is_protected_from_a_command_that_ran_before(
    folder: Path,
) -> None:
    """As soon as the command that made it has ended."""
    before = await Sandbox().start(
        "until [ -e go ]; do sleep 0.02; done; (echo evil > r/.git/hooks/evil) && echo DONE; (mv r away) && echo DONE",
        folder,
    )
    finish = asyncio.create_task(before.finish(60))
    clone = "git init -q r && cd r && echo x > x && git add x"
    assert (await said(await Sandbox().start(clone, folder), 60))[1] == 0
    (folder / "go").touch()
    output = await before.output.read(-1)
    await finish
    assert b"DONE" not in output
    assert b"Read-only" in output


async def test_a_folder_with_a_repository_stays_where_it_is(folder: Path) -> None:
    """Nor do the folders on the way to it go: a command cannot put another repository where a person looks for theirs."""
    (folder / "way" / "repo").mkdir(parents=True)
    _git(folder / "way" / "repo", "init", "-q")
    tries = (
        "mv way away",
        "mv way/repo away",
        "mv way/repo/.git way/repo/away",
        "rm -rf way/repo/.git/hooks",
        "echo evil > way/repo/.git/config",
        "rmdir way/repo",
    )
    command = "; ".join(f"({each}) && echo DONE" for each in tries)
    output, _ = await said(
        await Sandbox().start(
            f"{command}; echo x > way/repo/x; mv way/repo/x .", folder
        )
    )
    assert "DONE" not in output
    assert (folder / "way" / "repo" / ".git" / "config").exists()
    assert (folder / "x").read_text() == "x\n"


@pytest.mark.parametrize("name", [".git", ".git/config", ".git/hooks"])
async def test_a_link_in_the_place_of_a_repository_is_refused(
    folder: Path, name: str
) -> None:
    """A command could put another there, also further down."""
    (folder / "deep").mkdir(parents=True)
    _git(folder / "deep", "init", "-q")
    (folder / "deep" / name).rename(folder.parent / "elsewhere")
    (folder / "deep" / name).symlink_to(folder.parent / "elsewhere")
    with pytest.raises(ToolFailed, match=f"deep/{name} is a link"):
        await Sandbox().start("true", folder)
    with pytest.raises(ToolFailed, match=f" {name} is a link"):
        await Sandbox().start("true", folder / "deep")


@pytest.mark.parametrize("name", ["config", "hooks/pre-commit"])
async def test_settings_with_a_second_name_are_refused(folder: Path, name: str) -> None:
    """A command could write them by that one. Once there is only one name, commands run."""
    _prepare(
        folder,
        f"git init -q r; echo true > r/.git/hooks/pre-commit; ln r/.git/{name} stash",
    )
    with pytest.raises(ToolFailed, match=f"r/.git/{name} has another name"):
        await Sandbox().start("true", folder)
    (folder / "stash").unlink()
    assert (await said(await Sandbox().start("true", folder)))[1] == 0


async def test_hooks_of_the_person_behind_a_link_are_refused_for_what_they_are(
    folder: Path,
) -> None:
    """It is not said that another command moves them."""
    _prepare(
        folder,
        "git init -q .; mkdir tools; ln -s tools .husky; git config core.hooksPath .husky",
    )
    with pytest.raises(ToolFailed, match=r"\.husky is a link"):
        await Sandbox().start("true", folder)


async def test_a_path_of_hooks_in_the_settings_of_the_person_counts_in_each_repository(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder.parent / "home"))
    _prepare(
        folder,
        "git init -q r; mkdir r/own ../home; git config --global core.hooksPath own",
    )
    output, _ = await said(
        await Sandbox().start("echo evil > r/own/pre-commit", folder)
    )
    assert "Read-only" in output


@pytest.mark.parametrize(
    "path", ["s/config", "s/hooks/evil", "r/shared", "r/h/evil", "r/new", "r/HEAD"]
)
async def test_the_other_tools_do_not_write_what_git_runs_either(
    folder: Path, path: str
) -> None:
    _prepare(
        folder,
        "git init -q --bare s; git init -q r; cd r; mkdir h; echo x > shared; git config core.hooksPath h; "
        "git config include.path ../shared; git config --add include.path ../new",
    )
    call = Call("local", "c_1", 3, "call", folder)
    with pytest.raises(
        ToolFailed, match=f"{path} is not written: git finds there what to run"
    ):
        await WriteFile().run(WriteFileArgs(path, "evil"), call)
    if path == "r/shared":
        with pytest.raises(ToolFailed, match="is not written"):
            await EditFile().run(EditFileArgs(path, "x", "evil"), call)
    assert "r/readme was written" in await WriteFile().run(
        WriteFileArgs("r/readme", "x"), call
    )


MOVED = {
    "HEAD of a repository": (
        "git init -q r",
        "mv r/.git/HEAD r/.git/H",
        ["r/.git/hooks/evil", "r/.git/config"],
    ),
    "HEAD of a bare repository": (
        "git init -q --bare s",
        "mv s/HEAD s/H",
        ["s/hooks/evil", "s/config"],
    ),
    "objects of a bare repository": (
        "git init -q --bare s",
        "mv s/objects s/o; ln -s o s/objects",
        ["s/hooks/evil", "s/config"],
    ),
    "all marks of a bare repository": (
        "git init -q --bare s",
        "mkdir s/k; mv s/HEAD s/objects s/refs s/k",
        ["s/hooks/evil", "s/config"],
    ),
    "all marks of a submodule": (
        "git init -q r; mkdir -p r/.git/modules/lib; git init -q --bare r/.git/modules/lib/sub",
        "cd r/.git/modules/lib/sub; mkdir k; mv HEAD objects refs k; cd ..; mv sub away",
        ["r/.git/modules/lib/sub/hooks/evil", "r/.git/modules/lib/sub/config"],
    ),
    "HEAD of a worktree": (
        "git init -q r; git -C r commit -q --allow-empty -m x; git -C r worktree add -q ../w; git -C r config extensions.worktreeConfig true",
        "mv r/.git/worktrees/w/HEAD r/.git/worktrees/w/H",
        ["r/.git/worktrees/w/config.worktree", "r/.git/worktrees/w/commondir"],
    ),
}


@pytest.mark.parametrize("name", MOVED)
async def test_a_repository_is_one_whatever_a_command_moved_out_of_it(
    folder: Path, name: str
) -> None:
    """The next command cannot write its hooks and settings either."""
    setup, move, paths = MOVED[name]
    _prepare(folder, setup)
    before = {
        path: (folder / path).read_text() for path in paths if (folder / path).exists()
    }
    await said(await Sandbox().start(move, folder))
    for path in paths:
        await said(await Sandbox().start(f"echo evil > {path}; sleep 0.2", folder))
    assert before == {
        path: (folder / path).read_text() for path in paths if (folder / path).exists()
    }


@pytest.mark.parametrize("nested", [True, False])
async def test_many_folders_hide_no_repository(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, nested: bool
) -> None:
    """Repositories come first: those that were seen before, and those in the folder that is looked at."""
    monkeypatch.setattr(repositories, "FOLDERS_MAX", 20)
    repository = "p/app" if nested else "."
    _prepare(folder, f"git init -q {repository}")
    await said(await Sandbox().start("mkdir d{1..200}", folder))
    output, _ = await said(
        await Sandbox().start(
            f"(echo evil > {repository}/.git/hooks/evil) || echo no", folder
        )
    )
    assert "Read-only" in output
    output, _ = await said(
        await Sandbox().start("git commit 2>&1; git worktree list", folder / repository)
    )
    assert "[" in output  # it is still a repository that git can use


async def test_more_repositories_than_can_be_protected_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not left open in silence."""
    monkeypatch.setattr(repositories, "REPOSITORIES_MAX", 5)
    _prepare(folder, "git init -q p/app")
    await said(
        await Sandbox().start(
            "for i in {1..5}; do mkdir -p d$i/objects d$i/refs; touch d$i/HEAD; done",
            folder,
        )
    )
    with pytest.raises(ToolFailed, match="more than 5 git repositories"):
        await Sandbox().start("true", folder)


@pytest.mark.parametrize(
    ("name", "mode"),
    [("r/.git", 0), ("r/.git", 0o600), ("r/.git", 0o500), ("r", 0o400), ("r", 0)],
)
def test_a_repository_that_its_owner_closed_is_refused(
    folder: Path, name: str, mode: int
) -> None:
    """A command could open it again, and then write there. What belongs to somebody else it cannot open."""
    need_bwrap()
    user = list(USERS.values())[-1]
    _prepare(folder, "git init -q r; rm -r r/.git/hooks; mkdir other")
    if os.getuid() == 0:  # so that it belongs to somebody else
        (folder / "other").chmod(0)
    for path in (folder.parent, folder, folder / "r", *(folder / "r").rglob("*")):
        os.chown(path, user, -1)
    (folder / name).chmod(mode)
    (done,) = try_all(folder, user, ["true"])
    (folder / name).chmod(0o700)
    assert f"{name} may hold a git repository" in done.text
    shutil.rmtree(folder / "r")
    if os.getuid() == 0:
        assert try_all(folder, user, ["echo ran"])[0].text.startswith("ran")


FORBIDDEN = {
    "a folder commondir": ("r/.git/commondir", "mkdir -p r/.git/commondir/x"),
    "a folder config.worktree": (
        "r/.git/config.worktree",
        "mkdir r/.git/config.worktree",
    ),
    "a folder of hooks": ("r/h", "mkdir new; echo evil > new/pre-commit; mv new r/h"),
    "a link to hooks": ("r/h", "mkdir new; ln -s ../new r/h"),
    "a closed folder": (
        "r/.git/commondir",
        "echo evil > r/.git/commondir; chmod 0 r/.git",
    ),
    "HEAD beside a repository": (
        "r/HEAD",
        "cd r; rm .git/HEAD; ln -s .git/objects .git/refs .; echo ref: refs/heads/master > HEAD",
    ),
    "objects beside a repository": ("s/objects", "cd s; mkdir refs objects"),
    "a link on the way": ("r/gone", "mkdir -p r/e/h; ln -s e r/gone"),
}


@pytest.mark.parametrize("name", FORBIDDEN)
async def test_what_no_command_may_make_is_removed_whatever_it_is(
    folder: Path, name: str
) -> None:
    """A folder with all that is in it, a link but not what it leads to."""
    path, command = FORBIDDEN[name]
    hooks = "gone/h" if name == "a link on the way" else "h"
    _prepare(
        folder,
        f"git init -q r; mkdir r/way; git -C r config core.hooksPath {hooks}; git init -q s; touch s/HEAD",
    )
    _, why = await said(await Sandbox().start(f"{command}; true", folder), 60)
    assert "where git finds what to run" in str(why)
    assert not any(_left(folder, each) for each in (path, "**/.tenax-*"))


async def test_a_command_that_is_given_up_leaves_nothing_that_it_may_not_make(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody looked while it ran."""
    watching = asyncio.Event()

    async def watch_nothing(_running: Running) -> None:
        watching.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Running, "watch", watch_nothing)
    _prepare(folder, "git init -q .")
    running = await Sandbox().start("mkdir .git/commondir; sleep 60", folder)
    finish = asyncio.create_task(running.finish(60))
    # A task that is cancelled before its first step does nothing at all. The command may be so fast that the folder
    # exists before `finish` begins, so the test waits for both.
    await until(watching.is_set)
    await until((folder / ".git/commondir").exists)
    finish.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finish
    running.close()
    assert not (folder / ".git/commondir").exists()


async def test_a_command_that_is_given_up_while_it_ends_leaves_nothing_either(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller waits until it is removed."""
    began, end = asyncio.Event(), Running.end

    async def slow(running: Running) -> None:
        began.set()
        await asyncio.sleep(0.05)
        await end(running)

    monkeypatch.setattr(Running, "end", slow)
    _prepare(folder, "git init -q .")
    running = await Sandbox().start("mkdir .git/commondir", folder)
    finish = asyncio.create_task(running.finish(60))
    await asyncio.wait_for(began.wait(), 60)
    finish.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finish
    running.close()
    assert not (folder / ".git/commondir").exists()


async def test_a_file_where_none_may_be_is_renamed_and_not_deleted(
    folder: Path,
) -> None:
    """The person may have made it while a command runs. The ending says its new name."""
    await said(await Sandbox().start("git init -q .", folder))
    running = await Sandbox().start("sleep 60", folder)
    (folder / "HEAD").write_text("mine")
    _, why = await said(running, 60)
    name = str(why).rpartition("; what was there is now ")[2]
    assert name.startswith("HEAD.set-aside-")
    assert (folder / name).read_text() == "mine"


async def test_a_link_on_the_way_to_missing_settings_is_seen(folder: Path) -> None:
    """Git would read what it leads to, also outside of the folder."""
    command = "git init -q .; git config include.path ../conf/local"
    await said(await Sandbox().start(command, folder))
    _, why = await said(
        await Sandbox().start(
            f"mkdir evil; ln -s {folder}/evil conf; sleep 60", folder
        ),
        60,
    )
    assert str(why).startswith("it put a link on the way to local in a repository")
    assert not (folder / "conf").is_symlink()


async def test_settings_that_the_person_changes_again_and_again_are_protected(
    folder: Path,
) -> None:
    """Git writes a new file each time, and a later one may get the inode of an earlier one."""
    await said(await Sandbox().start("git init -q .; touch x; git add x", folder))
    wait = "while [ ! -e go ]; do sleep 0.02; done; "
    running = await Sandbox().start(
        wait + "echo evil >> .git/config && echo DONE", folder
    )
    for number in range(4):
        _git(folder, "config", "x.y", str(number))
        await said(await Sandbox().start("true", folder))
    (folder / "go").touch()
    output, _ = await said(running, 60)
    assert "DONE" not in output


async def test_commands_that_end_at_the_same_time_keep_their_results(
    folder: Path,
) -> None:
    """Each end protects the repositories from the others, which may end in that moment."""
    await said(await Sandbox().start("git init -q .; touch x; git add x", folder))
    for _ in range(5):
        commands = [
            await Sandbox().start(
                "while [ ! -e go ]; do sleep 0.01; done; echo ran", folder
            )
            for _ in range(6)
        ]
        ended = asyncio.gather(*(said(command, 60) for command in commands))
        (folder / "go").touch()
        assert await ended == [("ran\n", 0)] * 6
        (folder / "go").unlink()


async def test_a_folder_in_the_place_of_settings_keeps_nothing_from_being_protected(
    folder: Path,
) -> None:
    """Nor does it cost a descriptor."""
    _prepare(
        folder,
        "git init -q .; mkdir -p .git/config.worktree .git/modules; git init -q --bare .git/modules/sub",
    )
    await said(await Sandbox().start("true", folder))
    before = _open_files()
    output, _ = await said(
        await Sandbox().start("echo evil > .git/modules/sub/hooks/evil", folder)
    )
    assert "Read-only" in output
    assert len(_open_files()) <= len(before)


def _left(folder: Path, pattern: str) -> list[Path]:
    """What there is, a link that leads nowhere included."""
    return (
        list(folder.glob(pattern))
        + [folder / pattern] * (folder / pattern).is_symlink()
    )


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-C", folder, *arguments], check=False, capture_output=True, timeout=60
    )


OURS = """
import sys, uvloop
from pathlib import Path
from tenax.tools.shell.sandbox import Sandbox

async def tried():
    running = await Sandbox().start(f"echo x >&{sys.argv[2]}", Path(sys.argv[1]))
    print((await running.output.read(-1)).decode())
    await running.finish(60)

uvloop.run(tried())
"""


def test_a_command_gets_no_descriptor_of_ours(folder: Path) -> None:
    """Not even one that this process was itself given, under the loop that the server uses, which closes none."""
    need_bwrap(of_the_system=True)
    read, write = os.pipe()
    command = [sys.executable, "-c", OURS, str(folder), str(write)]
    done = subprocess.run(
        command, pass_fds=[write], capture_output=True, text=True, check=False
    )
    os.close(write)
    assert "Bad file descriptor" in done.stdout, done.stderr
    assert os.read(read, 1) == b""
    os.close(read)


async def test_a_process_that_may_open_no_more_files_says_so_and_loses_none(
    folder: Path,
) -> None:
    """The n-th file that is needed is refused, for every n, until the command is run."""
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said: list[str] = []
    while not said or said[-1] != "ran":
        before = _open_files()
        free = (number for number in count() if number not in before)
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (next(islice(free, len(said), None)), hard)
        )
        try:
            running = await Sandbox().start("true", folder)
        except ToolFailed as error:
            said.append(str(error))
        else:
            said.append("ran")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if said[-1] == "ran":
            assert (await running.finish(60)).code == 0
            running.close()
        # what is closed is so when the loop comes to it
        await until(lambda before=before: _open_files() <= before)
    assert all("Too many open files" in each for each in said[:-1]), said
    assert len(said) > 5


def _open_files() -> set[int]:
    found = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    # not the one of this look
    return {each for each in found if Path(f"/proc/self/fd/{each}").exists()}


@pytest.mark.parametrize("kind", ["scandir", "listdir"])
async def test_a_repository_that_could_not_be_looked_at_is_not_taken_for_none(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hooks would be open to the command; and so would be a home that was not listed."""
    (folder / "work" / ".git" / "hooks").mkdir(parents=True)
    lists = {"scandir": os.scandir, "listdir": os.listdir}

    def full(name: str, place: Any) -> Any:
        path = f"/proc/self/fd/{place}" if isinstance(place, int) else place
        if os.path.realpath(path).endswith(("/.git", "/home")):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return lists[name](place)

    monkeypatch.setattr(os, kind, functools.partial(full, kind))
    with pytest.raises(ToolFailed, match="Too many open files"):
        await Sandbox().start("echo x > work/.git/hooks/pre-commit", folder)


async def test_network_is_there_when_the_call_says_so(folder: Path) -> None:
    """The same server that is out of reach otherwise."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = (
            f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo reached"
        )
        assert (await said(await Sandbox().start(command, folder, network=True)))[
            0
        ] == "reached\n"
        assert (await said(await Sandbox().start(command, folder)))[1] == 1


@pytest.mark.parametrize(
    "place",
    [
        "/",
        "/usr",
        "/usr/local",
        "/tmp",
        "/etc",
        "/proc/self",
        "/dev/shm/x",
        "/run/x",
        "~",
        "~/..",
    ],
)
async def test_a_folder_that_holds_more_is_refused(place: str, folder: Path) -> None:
    """The system, the home folder with its keys, and whatever is a part of the machine."""
    with pytest.raises(ToolFailed, match="No command is run in"):
        await Sandbox().start("true", Path(place.replace("~", str(HOME))))
    assert not (place.endswith("/x") and _is_there(place))


async def test_a_home_is_one_whatever_the_environment_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another HOME does not open that of the user that we are, with its keys."""
    real = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    monkeypatch.setenv("HOME", str(folder))
    with pytest.raises(ToolFailed, match="No command is run in"):
        await Sandbox().start("true", real)


async def test_a_folder_that_holds_our_own_data_is_refused(folder: Path) -> None:
    """Also by way of a link; but a folder inside of ours, such as that of a conversation, is fine."""
    sandbox = Sandbox([folder / "data"])
    (folder / "data").mkdir(parents=True)
    (folder.parent / "link").symlink_to(folder)
    for place in (folder, folder / "data", folder.parent / "link"):
        with pytest.raises(ToolFailed, match="Tenax's own data"):
            await sandbox.start("true", place)
    assert (await said(await sandbox.start("ls ..; true", folder / "data" / "c_1")))[
        0
    ] == "c_1\n"


@pytest.mark.parametrize("way", ["", "on/the/way"])
async def test_a_folder_that_becomes_a_link_is_refused(folder: Path, way: str) -> None:
    """The folder of another Tenax may hold ours: its command puts a link to the person's keys there, or on the way."""
    work, keys = folder / way / "app", folder.parent / "keys"
    (keys / "app").mkdir(parents=True)
    for file in (keys / "id", keys / "app" / "id"):
        file.write_text("hunter2")
    assert (await said(await Sandbox().start("echo mine > mine", work)))[1] == 0
    swapped = folder / way.partition("/")[0] if way else work
    swap = f"mv {swapped.name} before; ln -s {keys} {swapped.name}"
    assert (await said(await Sandbox().start(swap, folder)))[1] == 0
    call = Call("local", "c_1", 3, "call", work)
    for refused in (
        Sandbox().start("cat id", work),
        start_bare("cat id", work),
        ReadFile().run(ReadFileArgs("id"), call),
        SearchFiles().run(SearchFilesArgs("hunter2"), call),
    ):
        with pytest.raises(ToolFailed, match="cannot be"):
            await refused
    assert sorted(file.name for file in keys.rglob("*")) == ["app", "id", "id"], (
        "nothing was made there"
    )
    assert (
        await said(
            await Sandbox().start(
                f"rm {swapped.name}; mv before {swapped.name}", folder
            )
        )
    )[1] == 0
    assert (await said(await Sandbox().start("cat mine", work)))[0] == "mine\n"


@pytest.mark.parametrize("place", ["prefix", "base_prefix", "path", "link"])
async def test_a_folder_that_holds_our_own_program_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Python, its environment, and what is imported; also where only a link to it is there. A mere copy is fine."""
    (folder / "clone" / "src" / "tenax").mkdir(parents=True)
    (folder / "clone" / "src" / "tenax" / "__init__.py").touch()
    assert (await said(await Sandbox().start("true", folder)))[1] == 0
    (folder.parent / "elsewhere").mkdir()
    (folder / "link").symlink_to(folder.parent / "elsewhere")
    used = str(folder / ("link" if place == "link" else "clone"))
    if place in {"path", "link"}:
        monkeypatch.setattr(sys, "path", [*sys.path, used])
    else:
        monkeypatch.setattr(sys, place, used)
    with pytest.raises(ToolFailed, match="own program is in it"):
        await Sandbox().start("true", folder)
    assert (await said(await Sandbox().start("true", folder / "inside")))[1] == 0


async def test_a_folder_that_python_takes_for_tenax_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PYTHONPATH with an empty entry imports from where Tenax was started; in a home folder, `tenax` is the tools'."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder.parent)])
    assert (await said(await Sandbox().start("true", folder)))[1] == 0
    with pytest.raises(ToolFailed, match="own program is in it"):
        await Sandbox().start("true", folder.parent / "tenax")


async def test_the_package_that_runs_is_not_in_the_folder_of_a_command() -> None:
    """As in an editable installation."""
    with pytest.raises(ToolFailed, match="own program is in it"):
        await Sandbox().start("true", ROOT / "src")


async def test_our_own_files_in_the_system_are_covered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store under /usr, which every command sees otherwise: for the test, another folder is of the system."""
    system = folder.parent / "usr"
    for name in ("ours/tenax.db", "ours/work/mine", "other"):
        (system / name).parent.mkdir(parents=True, exist_ok=True)
        (system / name).write_text("hunter2")
    monkeypatch.setattr(
        sandbox, "SYSTEM_FOLDERS", (*sandbox.SYSTEM_FOLDERS, str(system))
    )
    for hidden in (system / "ours", system / "ours" / "tenax.db"):
        running = await Sandbox([hidden]).start(
            f"cd {system}; find . -type f", system / "ours" / "work"
        )
        assert sorted((await said(running))[0].split()) == [
            "./other",
            "./ours/work/mine",
        ]


async def test_a_sandbox_that_could_not_be_tried_is_not_taken_for_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be so for as long as the process lives, and commands would run without one. It is tried again."""
    (tmp_path / "bwrap").symlink_to(need_bwrap())  # a program that was not tried yet
    path = f"{tmp_path}:{sandbox.SYSTEM_PATH}"
    monkeypatch.setattr(sandbox, "SYSTEM_PATH", path)

    def full(*_given: object, **_named: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as limited:
        limited.setattr(subprocess, "run", full)
        with pytest.raises(ConfigError, match="Too many open files"):
            Sandbox().why_not()
    assert Sandbox().why_not() == ""
    assert (await said(await Sandbox().start("true", folder)))[1] == 0


async def test_bubblewrap_is_not_looked_for_in_the_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PATH may begin with a folder in which commands write, such as the programs of a virtual environment there."""
    plant = "mkdir bin; printf '#!/bin/sh\\ntouch %s\\n' $PWD/ran > bin/bwrap; chmod 755 bin/bwrap"
    assert (await said(await Sandbox().start(plant, folder)))[1] == 0
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    assert (await said(await Sandbox().start("test -x bin/bwrap", folder)))[1] == 0
    assert not (folder / "ran").exists()


async def test_without_bubblewrap_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not installed, not allowed, or broken: each a sentence; and nothing is run then."""
    monkeypatch.setattr(sandbox, "SYSTEM_PATH", str(tmp_path))
    assert "bubblewrap is not installed" in Sandbox().why_not()
    with pytest.raises(ToolFailed, match="not installed"):
        await Sandbox().start("true", tmp_path)
    for number, (words, told) in enumerate(
        (
            (
                "No permissions to create new namespace",
                "this system forbids user namespaces",
            ),
            (
                "setting up uid map: Permission denied",
                "this system forbids user namespaces",
            ),
            (
                "Unknown option --size",
                "bubblewrap does not work here. It said: bwrap: Unknown option",
            ),
            ("", "cannot be run"),
        )
    ):
        fake = tmp_path / str(number) / "bwrap"  # each is tried once
        fake.parent.mkdir()
        fake.write_text(
            f"#!/bin/sh\necho 'bwrap: {words}' >&2\nexit 1\n" if words else "no program"
        )
        fake.chmod(0o755)
        monkeypatch.setattr(sandbox, "SYSTEM_PATH", str(fake.parent))
        assert told in Sandbox().why_not()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (
            "for i in $(seq 300); do sleep 60 & done; wait",
            "it had more than 100 processes",
        ),
        ("dd if=/dev/zero of=big bs=1M seek=1020", 128 + signal.SIGXFSZ),
        (
            "setsid sleep 60 & (setsid setsid sleep 60 &) ; sleep 60",
            "it took more than 1 seconds",
        ),
    ],
)
async def test_what_takes_too_much_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, why: object
) -> None:
    """Processes without end, a file without end, time without end; and nothing of it is left."""
    monkeypatch.setattr("tenax.tools.shell.sandbox.PROCESSES_MAX", 100)
    seconds = 1 if "seconds" in str(why) else 30
    running = await Sandbox().start(command, folder)
    assert (await said(running, seconds))[1] == why
    assert inside(folder) == []


async def test_memory_has_a_bound(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that wants more than its share gets none, and says so itself."""
    monkeypatch.setattr(
        "tenax.tools.shell.sandbox.memory_max", lambda: 200 * 1024 * 1024
    )
    output, code = await said(
        await Sandbox().start("perl -e '$a = \"x\" x 4e8; print 1'", folder)
    )
    assert output.startswith("Out of memory")
    assert code not in {0, ""}
    # Many small ones are counted together.
    many = "for i in 1 2 3 4 5; do perl -e '$n = 6e7; $a = \"x\" x $n; sleep 30' & done; wait"
    assert "MB of memory" in str((await said(await Sandbox().start(many, folder)))[1])


async def test_a_command_that_is_ended_at_once_never_ran(folder: Path) -> None:
    """A caller that goes away while the sandbox is being made leaves nothing behind."""
    sandbox = Sandbox()
    assert sandbox.why_not() == ""
    for n in range(20):
        task = asyncio.create_task(sandbox.start("sleep 300", folder))
        await asyncio.sleep(n / 1000)
        task.cancel()
        try:
            running = await task
        except asyncio.CancelledError:
            continue
        await running.end()
        running.close()
    assert inside(folder) == []


def test_commands_end_with_the_process_that_started_them(folder: Path) -> None:
    """`kill -9` of Tenax ends what runs in the sandbox, also what left its group; and without a sandbox the group."""
    need_bwrap(of_the_system=True)
    for start in ("Sandbox().start", "start_bare"):
        script = textwrap.dedent(f"""
            import asyncio, pathlib
            from tenax.tools.shell.sandbox import Sandbox, start_bare
            async def main():
                running = await {start}("(setsid sleep 300 &) 2>/dev/null; echo on; sleep 300", pathlib.Path({str(folder)!r}))
                print(await running.output.readline(), flush=True)
                await running.finish()
            asyncio.run(main())
        """).replace(
            "(setsid sleep 300 &) 2>/dev/null;",
            "(setsid sleep 300 &);" if "S" in start else "",
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT
        ) as tenax:
            assert tenax.stdout is not None
            assert tenax.stdout.readline() == b"b'on\\n'\n"
            assert len(inside(folder)) >= 1
            tenax.kill()
        _until_none(folder)


async def test_without_a_sandbox_its_group_ends_too(folder: Path) -> None:
    """Also what the command left behind when it ended."""
    running = await start_bare(
        "sleep 300 & (sleep 300 &) ; echo $0 $#; env; sleep 300", folder
    )
    output, why = await said(running, 1)
    assert why == "it took more than 1 seconds"
    assert set(re.findall(r"^(\w+)=", output, re.MULTILINE)) <= {
        "PATH", "HOME", "LANG", "TERM", "PWD", "OLDPWD", "SHLVL", "_",
    }  # fmt: skip
    # all of it was sent its end; one whom no processor takes up is still there
    _until_none(folder)
    assert (await said(await start_bare("sleep 300 & read x; echo $?", folder)))[1] == 0
    _until_none(folder)


async def test_the_filter_stands_for_both_processors(folder: Path) -> None:
    """Programs of other machines and other ways to number calls are refused: here, 32-bit numbers on a 64-bit machine."""
    command = f"perl -e 'print syscall(0x40000000 + {KEYCTL}, 0, -3, 0), \" $!\"'"
    assert (await said(await Sandbox().start(command, folder)))[
        0
    ] == "-1 Operation not permitted"


def _is_there(place: str) -> bool:
    return os.path.lexists(place)


def _until_none(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while left := inside(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)

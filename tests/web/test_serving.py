"""`tenax serve`: it starts, says where, starts again after a kill, and ends in good order."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import apsw
import httpx
import pytest

from tenax.models import Reply
from tests.support.served import SECONDS, Pace, Served, environment, free_port, is_done
from tests.support.turns import set_up
from tests.web.conftest import SLOW

pytestmark = pytest.mark.crash


def test_ctrl_c_with_a_page_open_ends_in_time_and_parks_the_answer(
    slow: Served, pace: Pace
) -> None:
    """Exit code 0, pages are told, and the next start goes on with what was being written."""
    page = slow.browser()
    pace.say(20)  # so that it is still written when the server ends
    name = page.new()
    page.say(name, "Talk.")
    with page.stream(f"-~{name}:") as stream:
        stream.read_until(name, lambda _rows: len(stream.text(name)) > 20)
        shown = stream.text(name)
        slow.process.send_signal(signal.SIGINT)
        while stream.next()[0] != "bye":
            shown = stream.text(name)
    code, said, _ = slow.stop()
    assert code == 0
    assert "Traceback" not in said
    pace.say()
    slow.start()
    with page.stream(f"-~{name}:") as stream:
        stream.read_until(name, is_done)
    rows = page.rows(name)
    assert [row.get("state", "") for row in rows if row["kind"] == "marker"] == [
        "resumed"
    ]
    texts = [row["text"] for row in rows if row["kind"] == "assistant"]
    assert texts[0].startswith(shown)
    assert texts[-1] == SLOW


def test_a_killed_server_is_started_again_and_every_word_shown_is_there(
    slow: Served,
) -> None:
    """`kill -9` in mid-answer, three times: the socket stays, what was shown stands, the answer comes."""
    page = slow.browser()
    for _ in range(3):
        name = page.new()
        page.say(name, "Talk.")
        with page.stream(f"-~{name}:") as stream:
            stream.read_until(
                name,
                lambda _rows, stream=stream, name=name: len(stream.text(name)) > 30,
            )
            slow.kill_server()
            try:
                while True:
                    stream.next()
            except (httpx.HTTPError, EOFError):
                shown = stream.text(name)
        with page.stream(stream.cursor) as again:
            again.rows = stream.rows
            again.read_until(name, is_done)
        rows = page.rows(name)
        texts = [row["text"] for row in rows if row["kind"] == "assistant"]
        assert texts[0].startswith(shown), "a word that was shown is missing"
        assert texts[-1] == SLOW


def test_a_second_one_says_where_the_first_is(shared: Served) -> None:
    """And prints a link to it, exit code 0."""
    done = shared.tenax("serve")
    assert done.returncode == 0
    assert f"already running at {shared.url}" in done.stderr
    assert done.stdout.startswith(f"{shared.url}/link#code=")


def test_a_port_that_is_taken_leads_to_the_next(tmp_path: Path) -> None:
    """It says so."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Served(tmp_path, env={"TENAX_PORT": str(port)}) as served:
            assert served.url != f"http://127.0.0.1:{port}"
            code, said, _ = served.stop()
            assert code == 0
            assert (
                f"Port {port} is in use. Using {served.url.rpartition(':')[2]} instead."
                in said
            )


def test_the_last_port_has_no_next(tmp_path: Path) -> None:
    """The sentence names only ports that there are."""
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # somebody else has it
            taken.bind(("127.0.0.1", 65_535))
            taken.listen()
        done = Served(tmp_path).tenax("serve", "--port", "65535")
    assert done.returncode == 1
    assert "Port 65535 is in use." in done.stderr


def test_the_server_imports_nothing_from_where_it_is_started(tmp_path: Path) -> None:
    """In a home folder, `tenax` is the folder in which commands write: neither a start nor a restart runs code there."""
    planted = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\nraise ImportError\n"
    for name in ("tenax/__init__.py", "msgspec.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(planted)
    with Served(tmp_path / "own", cwd=tmp_path) as served:
        served.kill_server()
        served.browser()  # the next server answers
    assert list(tmp_path.rglob("ran")) == []


def test_host_and_port_are_taken_from_the_command_line(tmp_path: Path) -> None:
    """Before whatever the settings say, even if that is wrong, also for what the server lets in by name."""
    port = free_port()
    with Served(
        tmp_path,
        "serve",
        "--host",
        "0.0.0.0",
        "--port",
        str(port),
        env={"TENAX_HOST": "no host", "TENAX_PORT": "0"},
    ) as served:
        assert served.url == f"http://0.0.0.0:{port}"
        answer = httpx.get(
            f"http://127.0.0.1:{port}/api/health", timeout=SECONDS, trust_env=False
        )
        assert answer.json()["ok"]
    with Served(tmp_path, "serve", "--port", str(port)) as served:
        assert served.url == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--port", "0", "1<=x<=65535"),
        ("--port", "http", "not a valid integer"),
        ("--host", "my host", "is not a host"),
    ],
)
def test_an_address_that_is_none_is_refused(
    tmp_path: Path, option: str, value: str, said: str
) -> None:
    """With exit code 2 and what is wrong, before anything is started."""
    command = [sys.executable, "-m", "tenax", "serve", option, value]
    done = subprocess.run(
        command,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def refused(home: Path, **env: str) -> tuple[int, str]:
    """Exit code and sentence of a start that does not work."""
    done = subprocess.run(
        [sys.executable, "-m", "tenax", "serve"],
        env=environment(home, **env),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_store_from_a_newer_version_is_told(tmp_path: Path) -> None:
    """One sentence, and nothing is changed."""
    set_up(tmp_path, [Reply("x")])
    with Served(tmp_path) as served:
        served.browser().new()
        assert served.stop()[0] == 0
    with apsw.Connection(str(tmp_path / "tenax.db")) as database:
        database.execute("update store set schema = schema + 1")
    database.close()
    code, said = refused(tmp_path)
    assert code == 1
    assert "newer" in said


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Each with its sentence."""
    place = tmp_path / "file"
    place.write_text("")
    code, said = refused(place / "home")
    assert code == 3
    assert f"{place}/home/config.toml cannot be read: Not a directory." in said
    place.unlink()
    (tmp_path / "run").write_text("")
    code, said = refused(tmp_path)
    assert code == 1
    assert "TENAX_HOME" in said


def test_a_store_that_is_away_is_told(tmp_path: Path) -> None:
    """PostgreSQL that is not there: a sentence."""
    code, said = refused(
        tmp_path, TENAX_STORE=f"postgresql://me@127.0.0.1:{free_port()}/none"
    )
    assert code == 1
    assert re.search(r"PostgreSQL at 127.0.0.1:\d+/none", said)


def test_a_log_that_cannot_be_written_is_no_matter(tmp_path: Path) -> None:
    """On a full disk nothing is logged; the page is served, and the terminal stays as it is."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "tenax.log").symlink_to("/dev/full")
    with Served(tmp_path, env={"TENAX_LOG": "debug"}) as served:
        served.browser().new()
        code, said, _ = served.stop()
    assert code == 0
    assert "Logging error" not in said


def test_a_link_that_no_disk_takes_is_told(tmp_path: Path) -> None:
    """No file takes a byte: a sentence and a way on, and no trace of our insides."""
    with Served(tmp_path) as served:
        done = subprocess.run(
            [sys.executable, "-m", "tenax", "link"],
            env=served.env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        r"tenax: .+: File too large\.\nfree some disk space\n", done.stderr
    )


def test_over_ssh_the_way_to_it_is_printed(tmp_path: Path) -> None:
    """The line to type on the person's own machine."""
    with Served(tmp_path, env={"SSH_CONNECTION": "1 2 3 4", "USER": "anna"}) as served:
        port = served.url.rpartition(":")[2]
        _, said, _ = served.stop()
        assert f"ssh -L {port}:127.0.0.1:{port} anna@" in said


def test_a_link_without_a_server_says_how_to_start_one(tmp_path: Path) -> None:
    """Exit code 1."""
    done = subprocess.run([sys.executable, "-m", "tenax", "link"], env=environment(tmp_path), capture_output=True,
                          text=True, timeout=SECONDS, check=False)  # fmt: skip
    assert done.returncode == 1
    assert "tenax serve" in done.stderr


def test_what_is_written_is_for_nobody_else(tmp_path: Path) -> None:
    """Log, lock, key and codes are the person's own."""
    with Served(tmp_path) as served:
        served.browser()
        for folder in ("log", "run", "web"):
            for each in [tmp_path / folder, *(tmp_path / folder).rglob("*")]:
                assert stat.S_IMODE(each.stat().st_mode) & 0o077 == 0, each


def test_the_tour_is_one_command_away(tmp_path: Path) -> None:
    """`tenax demo`: without any model, the link leads to a conversation that talks."""
    with Served(tmp_path, "demo") as served:
        page = served.browser()
        name = page.post("/tour", status=201)["id"]
        with page.stream(f"-~{name}:") as stream:
            stream.read_until(
                name,
                lambda rows: any(row.get("state") == "asks" for row in rows.values()),
            )
        assert served.link.endswith("&to=/tour")


def test_the_plug_is_pulled_on_a_tour_and_the_answer_goes_on(tmp_path: Path) -> None:
    """The approval is not asked again, the file is written once, the words before the kill stay."""
    with Served(tmp_path) as served:
        page = served.browser()
        name = page.post("/tour", status=201)["id"]
        with page.stream(f"-~{name}:") as stream:
            stream.read_until(
                name,
                lambda rows: any(row.get("state") == "asks" for row in rows.values()),
            )
            tool = next(
                row for row in stream.rows[name].values() if row["kind"] == "tool"
            )
            message, _, call = tool["id"].partition(":")
            page.post(
                f"/conversations/{name}/approvals",
                {"message": int(message), "call": call, "answer": "once"},
            )
            stream.read_until(name, lambda _rows: "One journal" in stream.text(name))
            before = served.server()
            page.post("/tour/plug", status=202)
            try:
                while True:
                    stream.next()
            except (httpx.HTTPError, EOFError):
                shown = stream.text(name)
        assert (tmp_path / "work" / "tour" / "hello.md").exists()
        with page.stream(stream.cursor) as again:
            again.rows = stream.rows
            again.read_until(
                name,
                lambda rows: any(
                    row.get("state") == "resumed" for row in rows.values()
                ),
            )
        assert served.server() != before
        rows = page.rows(name)
        texts = [row["text"] for row in rows if row["kind"] == "assistant"]
        assert shown.startswith(texts[0])
        assert texts[1].startswith(shown[len(texts[0]) :])
        assert sum(row["kind"] == "tool" for row in rows) == 1


def test_a_server_is_started_again_also_where_nobody_can_be_told(
    tmp_path: Path,
) -> None:
    """The terminal was closed, or the disk is full to which it writes: the parent goes on, and ends when it is told to."""
    with Served(tmp_path) as served:
        before = served.server()
        assert served.process.stderr is not None
        served.process.stderr.close()
        served.kill_server()
        answer = httpx.get(f"{served.url}/api/health", timeout=SECONDS, trust_env=False)
        assert answer.json()["ok"]
        assert served.server() != before
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(SECONDS) == 0


def test_a_server_that_cannot_be_started_for_now_is_started_later(
    tmp_path: Path,
) -> None:
    """Nothing more can be opened, as while a new version is being installed: it says so, and tries again."""
    with Served(tmp_path) as served:
        assert served.process.stderr is not None
        usual = resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
        served.kill_server()
        while "Trying again." not in (line := served.process.stderr.readline()):
            assert line, "it ended"
        assert (
            line
            == "tenax: The server cannot be started: Too many open files. Trying again.\n"
        )
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, usual)
        answer = httpx.get(f"{served.url}/api/health", timeout=SECONDS, trust_env=False)
        assert answer.json()["ok"]


def test_the_server_goes_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Nobody is left behind who holds the store."""
    with Served(tmp_path) as served:
        child = os.pidfd_open(served.server())
        served.process.kill()
        served.process.wait()
        try:
            assert select.select([child], [], [], 25)[0], "it is still there"
        finally:
            os.close(child)


def test_a_browser_is_opened_without_the_code_in_its_command_line(
    tmp_path: Path,
) -> None:
    """Every user of the machine can read command lines. The file that leads to the link is ours alone, and goes."""
    program, told = tmp_path / "browser", tmp_path / "told"
    program.write_text(
        f'#!/bin/sh\necho "$*" > {told}.new\nstat -c %a "${{1#file://}}" >> {told}.new\n'
        f'cat "${{1#file://}}" >> {told}.new\nmv {told}.new {told}\n'
    )
    program.chmod(0o700)
    env = environment(tmp_path / "home", DISPLAY=":0", BROWSER=f"{program} %s")
    terminal, inside = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "tenax", "serve"], env=env, stdout=inside, stderr=inside
    ) as process:
        try:
            until = time.monotonic() + 60
            while not told.exists() and time.monotonic() < until:
                time.sleep(0.05)
            command, mode, page = told.read_text().split("\n", 2)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
            os.close(inside)
            os.close(terminal)
    assert "code" not in command
    assert (mode, "/link#code=" in page) == ("600", True)
    assert list(tmp_path.rglob("open.html")) == []

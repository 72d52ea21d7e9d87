"""Somebody clones the repository and types `make run`: no root, no Node, an empty home, and nothing else to know."""

from __future__ import annotations

import os
import pty
import pwd
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_tour import pull_the_plug
from tests.support.browser import Window, expect

ROOT = Path(__file__).parents[2]
USER = "tenax-newcomer"
MINUTES = 6
NODE = {"node", "nodejs", "npm", "npx", "corepack"}
# A machine that reaches its registries by a mirror or a proxy says so in these.
REGISTRIES = re.compile(
    r"PIP_|NPM_|npm_config_|(?:https?|no|all)_proxy$|SSL_CERT_|NODE_EXTRA",
    re.IGNORECASE,
)

pytestmark = pytest.mark.crash


@pytest.fixture
def person() -> Iterator[dict[str, Any]]:
    """Who does it: somebody made for this where we are root, else ourselves."""
    if os.getuid() != 0:
        yield {}
        return
    subprocess.run(
        ["useradd", "--no-create-home", "--shell", "/bin/sh", USER],
        check=False,
        capture_output=True,
    )
    found = pwd.getpwnam(USER)
    yield {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    subprocess.run(["userdel", USER], check=False, capture_output=True)


@pytest.fixture
def place(person: dict[str, Any]) -> Iterator[Path]:
    """A folder of this person's, with what a clone would hold, an empty home, and programs without Node."""
    place = Path(tempfile.mkdtemp(prefix="tenax-newcomer-"))
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True,
                            text=True, check=True).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (place / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / "clone" / name)
    for folder in ("home", "bin"):
        (place / folder).mkdir()
    for program in (*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()):
        link = place / "bin" / program.name
        if program.name not in NODE and not link.is_symlink():
            link.symlink_to(program)
    python = place / "bin" / "python3"
    if not python.is_symlink():  # the system has none: ours
        python.symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    if person:
        subprocess.run(
            ["chown", "-R", f"{person['user']}:{person['group']}", place], check=True
        )
    yield place
    subprocess.run(["rm", "-rf", place], check=False)  # tens of thousands of files


class Typed:
    """`make run`, typed into a terminal."""

    def __init__(self, place: Path, person: dict[str, Any]) -> None:
        kept = {
            name: value for name, value in os.environ.items() if REGISTRIES.match(name)
        }
        env = {
            **kept,
            "PATH": str(place / "bin"),
            "HOME": str(place / "home"),
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "PIP_NO_CACHE_DIR": "1",  # nobody comes back for it
        }
        self.master, slave = pty.openpty()
        if person:
            os.chown(os.ttyname(slave), person["user"], person["group"])
        command = ["setsid", "--ctty", "--wait", "make", "run"]
        self.process = subprocess.Popen(
            command,
            cwd=place / "clone",
            env=env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            **person,
        )
        os.close(slave)
        self.text = ""

    def until(self, pattern: str, seconds: float) -> str:
        """Read until this is there; what it is."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < deadline, f"{pattern} did not come:\n{self.text}"
            if select.select([self.master], [], [], 1.0)[0]:
                try:
                    self.text += (
                        os.read(self.master, 65536)
                        .decode(errors="replace")
                        .replace("\r", "")
                    )
                except OSError:  # it has ended
                    raise AssertionError(
                        f"it ended with {self.process.wait()}:\n{self.text}"
                    ) from None
        return found[0]

    def close(self) -> None:
        if self.process.poll() is None:
            os.write(self.master, b"\x03")
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self.master)


@pytest.mark.timeout(MINUTES * 60 + 240)
def test_a_newcomer_is_led_from_one_command_to_an_answer(
    window: Window, place: Path, person: dict[str, Any]
) -> None:
    """Four lines and a link; the tour with the plug pulled; the practice model; Ctrl-C, and it has ended in good order."""
    window.expects(r"net::ERR_")
    typed = Typed(place, person)
    try:
        link = typed.until(r"http://\S+/link#code=\S+(?=\n)", MINUTES * 60)
        steps = re.findall(r"^\d/\d .*$", typed.text, re.MULTILINE)
        assert steps == [
            "1/4 environment",
            "2/4 page",
            "3/4 practice model",
            "4/4 start",
        ]
        assert "Traceback" not in typed.text
        tab = window.tab(link)
        pull_the_plug(tab)  # to its end: test_tour.py
        tab.page.get_by_role("link", name="Settings", exact=True).first.click()
        tab.page.get_by_role("button", name="Use the practice model").click()
        expect(tab.box).to_be_visible(timeout=90_000)
        tab.say("What is the capital of France?")
        expect(
            tab.answer_whole_or_cut(timeout=90_000).locator(".label")
        ).to_contain_text("Practice model")
        os.write(typed.master, b"\x03")
        typed.until("Stopped.", 60)
        assert typed.process.wait(60) == 0, typed.text
    finally:
        typed.close()
    assert "Traceback" not in typed.text

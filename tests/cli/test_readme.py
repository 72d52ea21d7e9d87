"""What the README says happens."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tenax.testing import Provider
from tests.support.served import Page, environment
from tools import numbers
from tools.picture import TARGET, picture

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


COMMANDS = [
    line.split(" #")[0].strip()
    for block in blocks("sh")
    for line in block.splitlines()
    if line.strip()
]


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if "=" not in each and each != "make run"]
)
def test_every_command_of_the_readme_works(command: str, tmp_path: Path) -> None:
    """As it stands, in a shell that has done what stands before it, on a machine without a store. `make test` is this
    very run, so it is only looked at.
    """
    before = (
        []
        if command.startswith("make")
        else [each for each in COMMANDS if each.startswith(". ")]
    )
    line = " && ".join([*before, command.replace("make test", "make --dry-run test")])
    env = {**os.environ, "TENAX_HOME": str(tmp_path), "HOME": str(tmp_path)}
    shell = ["sh", "-c", line]
    done = subprocess.run(
        shell,
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_make_run_prints_a_link_that_works(tmp_path: Path) -> None:
    """Four numbered lines, then the link; who ends it gets the exit code 0."""
    env = environment(tmp_path, HOME=str(tmp_path))
    with subprocess.Popen(
        ["make", "run"],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as made:
        assert made.stdout is not None
        link = made.stdout.readline().strip()
        assert link, made.communicate()[1]
        try:
            assert (
                Page(link.partition("/link")[0]).sign_in(link).json()["user"] == "local"
            )
        finally:
            os.kill(
                msgspec.json.decode((tmp_path / "run" / "serve").read_bytes())["pid"],
                signal.SIGINT,
            )
            said = made.communicate(timeout=60)[1]
    assert made.returncode == 0
    assert re.findall(r"^\d/4 .*$", said, re.MULTILINE) == [
        "1/4 environment", "2/4 page", "3/4 practice model", "4/4 start"
    ]  # fmt: skip


async def test_the_command_with_a_model_prints_its_answer(tmp_path: Path) -> None:
    """The address is that of a server that speaks the same protocol; the rest is run as it stands."""
    (command,) = (each for each in COMMANDS if each.startswith("OPENAI_BASE_URL="))
    url, model, _, *words = shlex.split(command)
    async with Provider(["I hold on to every word."]) as provider:
        env = {
            **os.environ,
            "TENAX_HOME": str(tmp_path),
            **dict(each.split("=", 1) for each in (url, model)),
        }
        env["OPENAI_BASE_URL"] = f"{provider.url}/v1"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tenax",
            *words,
            env=env,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert said.decode() == "I hold on to every word.\n"


def test_the_ten_lines_do_what_they_say(tmp_path: Path) -> None:
    """They ask, wait for the answer, and print what was said."""
    (code,) = blocks("python")
    env = {**os.environ, "TENAX_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "['Hold on to this.', 'I hold on to every word.']"
    assert len([line for line in code.splitlines() if line]) <= 12


def test_the_readme_is_short_and_its_picture_and_numbers_are_current() -> None:
    """At most 150 lines; the drawing is what the script draws, and the numbers are those of the last run."""
    assert numbers.page() == README
    assert len(README.splitlines()) <= 150
    assert TARGET.read_text("utf-8") == picture()

"""What the README says happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.picture import TARGET, picture

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


COMMANDS = [
    line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines() if line.strip()
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_readme_works(command: str, tmp_path: Path) -> None:
    """On a machine without a store, each ends well. `make test` is this very run, so it is only looked at."""
    words = command.split()
    if words == ["make", "test"]:
        words = ["make", "--dry-run", "test"]
    elif words[0] == "tenax":
        words = [sys.executable, "-m", "tenax", *words[1:]]
    env = {**os.environ, "TENAX_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_the_ten_lines_do_what_they_say(tmp_path: Path) -> None:
    """They store a message, print where it stands, and find it."""
    (code,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    seq, found = done.stdout.splitlines()
    assert seq.startswith("2 ")
    assert found == "['Hold on to this.']"
    assert len(code.splitlines()) <= 12


def test_the_readme_is_short_and_its_picture_is_current() -> None:
    """At most 150 lines, and the drawing is what the script draws."""
    assert len(README.splitlines()) <= 150
    assert TARGET.read_text("utf-8") == picture()

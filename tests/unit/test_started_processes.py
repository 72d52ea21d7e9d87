"""Another process of our own interpreter imports nothing from the folder in which it starts: commands may write there.

Ruff holds that the source starts its interpreter in no other way: `sys.executable` is banned there.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tenax.concurrency import python_file, python_module

PLANTED = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\n"
PROGRAM = "import json; print(json.dumps('whole'))\n"


@pytest.mark.parametrize("start", ["a module", "a file"])
def test_nothing_is_imported_from_the_current_folder(
    tmp_path: Path, start: str
) -> None:
    """A file that has the name of a module of the standard library is not run."""
    file = tmp_path / "own" / "program.py"
    file.parent.mkdir()
    file.write_text(PROGRAM)
    (tmp_path / "json.py").write_text(PLANTED)
    command = python_module("json.tool", "--help")
    env = dict(os.environ)
    if start == "a file":
        command = python_file(str(file))
        env["PYTHONPATH"] = str(tmp_path)
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()

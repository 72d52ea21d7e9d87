"""`make run` on a machine that lacks something: one sentence with the command to type, and nothing half made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """As much of the repository as `make run` looks at before it has installed anything."""
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    return tmp_path


def make_run(
    copy: Path, *, python: str = sys.executable, user: int | None = None, **env: str
) -> str:
    """What is said; it does not work."""
    done = subprocess.run(
        ["make", "run", f"PYTHON={python}"],
        cwd=copy,
        env={**os.environ, **env},
        user=user,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr


def a_python(copy: Path, refuses: str) -> str:
    """A Python that fails at whatever names this."""
    file = copy / "python"
    file.write_text(
        f'#!/bin/sh\ncase "$*" in *{refuses}*) exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    file.chmod(0o755)
    return str(file)


def test_a_python_that_is_too_old_is_told(copy: Path) -> None:
    """With the way to name another."""
    said = make_run(copy, python=a_python(copy, "version_info"))
    assert "Tenax needs Python 3.11 or newer" in said
    assert "make PYTHON=python3.12 run" in said


def test_a_python_without_venv_is_told(copy: Path) -> None:
    """Debian's needs a package more."""
    assert "sudo apt install python3-venv" in make_run(
        copy, python=a_python(copy, "ensurepip")
    )


def test_a_first_run_without_a_network_is_told(copy: Path) -> None:
    """And to run it again."""
    nowhere: Any = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "",
               "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}  # fmt: skip
    assert "run make again" in make_run(copy, **nowhere)


def test_a_folder_that_cannot_be_written_is_told(copy: Path) -> None:
    """With what to do instead. Root may write everywhere, so then somebody else tries."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        place = Path(folder) / "tenax"
        shutil.copytree(copy, place)
        Path(folder).chmod(0o755)
        place.chmod(0o555)
        said = make_run(place, user=65534 if os.geteuid() == 0 else None)
        place.chmod(0o755)
    assert "This folder cannot be written" in said
    assert "make run" in said

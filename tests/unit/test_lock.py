"""The lock files in `requirements/` pin what pyproject.toml asks for, with hashes. `make lock` writes them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tenax.models.practice.practice import PACKAGES
from tools.lock import BUILD, PYTHON_MIN

ROOT = Path(__file__).parents[2]
NAMES = ("run", "dev", "docs", "build", "postgres", "practice")
PIN = re.compile(r"^([a-z0-9-]+)(\[[a-z0-9,-]+\])?==(\S+)( ; .+)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def lines(name: str) -> list[str]:
    return (
        (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    )


def pins(name: str) -> dict[str, set[str]]:
    """The versions of each package: several where platforms differ."""
    found: dict[str, set[str]] = {}
    for line in lines(name):
        if pin := PIN.match(line):
            found.setdefault(pin[1], set()).add(pin[3])
    return found


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def asked(name: str) -> list[str]:
    """What a lock file has to cover."""
    found = project()
    needs, extras = (
        found["project"]["dependencies"],
        found["project"]["optional-dependencies"],
    )
    return {
        "run": [*needs, *extras["mcp"]],
        "dev": [*needs, *extras["mcp"], *extras["postgres"], *extras["dev"]],
        "docs": [*needs, *extras["docs"]],
        "build": [*found["build-system"]["requires"], *BUILD],
        "postgres": [*extras["postgres"]],
        "practice": list(PACKAGES),
    }[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_a_pin_or_its_hash(name: str) -> None:
    """No address of a registry, no option, and no package without a hash."""
    before = "hash"
    for line in lines(name):
        kind = "pin" if PIN.match(line) else "hash" if HASH.match(line) else ""
        assert kind, line
        assert (before, kind) != ("pin", "pin"), line
        before = kind
    assert before == "hash"
    assert pins(name)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_asked_for_is_pinned(name: str) -> None:
    """To a version that fits. Run `make lock` after a change in pyproject.toml."""
    found = pins(name)
    for need in map(Requirement, asked(name)):
        if need.name == "tenax":
            continue
        versions = found.get(canonicalize_name(need.name), set())
        assert versions, need
        assert all(
            need.specifier.contains(version, prereleases=True) for version in versions
        ), need


def test_the_files_agree() -> None:
    """Installed one after the other, none takes back what another brought; and what is tested is what is run."""
    dev = pins("dev")
    for name in ("run", "build", "postgres", "practice"):
        for package, versions in pins(name).items():
            assert versions <= dev.get(package, versions), package


def test_they_are_for_every_python_that_is_supported() -> None:
    """The oldest one is where the lock begins."""
    assert project()["project"]["requires-python"] == f">={PYTHON_MIN}"

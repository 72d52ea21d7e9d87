"""docs/DEPENDENCIES.md names every package that pyproject.toml, make, or the page asks for."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from tenax.models.practice.practice import PACKAGES
from tools.lock import BUILD, UV
from tools.page import WHEEL

ROOT = Path(__file__).parents[2]


def test_every_dependency_is_explained() -> None:
    """A package without a row (name, licence, why) fails here."""
    page_packages = json.loads((ROOT / "ui/package.json").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(
            one
            for extra in project["project"]["optional-dependencies"].values()
            for one in extra
        ),
        *(
            line
            for wheel in (ROOT / "tests/support").glob("*-wheel.txt")
            for line in wheel.read_text().splitlines()
            if "==" in line
        ),
        *PACKAGES,
        *BUILD,
        UV,
        WHEEL,
        *page_packages["dependencies"],
        *page_packages["devDependencies"],
    ]
    names = {re.split(r"[\[<>=~! ;]", one)[0] for one in asked} - {"tenax", "build"}
    page = (ROOT / "docs/DEPENDENCIES.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([^`]+)` \| (\S.* \| \S.*) \|$", page, re.MULTILINE))
    assert set(rows) == names

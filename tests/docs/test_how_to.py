"""Every command and every program on a how-to page is run, in the order of the page.

A block with a title is a file of that name. A block of `sh` or `python` without one is run. A block of `text` is what the
block before it prints; `...` stands for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "how-to").glob("*.md"))
BLOCK = re.compile(
    r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL
)
FENCES = re.compile(r"^```", re.MULTILINE)
RUNNERS = {"sh": ["/bin/sh", "-eu", "-c"], "python": [sys.executable, "-c"]}


class Block(NamedTuple):
    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    found = [Block(*match) for match in BLOCK.findall(text)]
    assert len(FENCES.findall(text)) == 2 * len(found), "a block that is not recognized"
    return found


def run_page(page: Path, folder: Path, **env: str) -> None:
    """Run the blocks of a page in an empty folder, which is also the home of Tenax."""
    programs = Path(sys.executable).parent
    env = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "TENAX_HOME": str(folder),
        **env,
    }
    output = None
    for block in blocks(page):
        if block.title:
            file = folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.language == "text":
            assert output is not None, f"nothing prints this:\n{block.text}"
            assert matches(block.text, output), f"{block.text}\n-- is not --\n{output}"
            output = None
        else:
            command = [*RUNNERS[block.language], block.text]
            done = subprocess.run(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
            output = done.stdout


def matches(pattern: str, output: str) -> bool:
    """Whether the output is as the page says. `...` stands for anything, also for several lines."""
    parts = [re.escape(part) for part in pattern.strip().split("...")]
    return re.fullmatch(".*".join(parts), output.strip(), re.DOTALL) is not None


def needs_postgres(page: Path) -> bool:
    return "$DATABASE_URL" in page.read_text("utf-8")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if not needs_postgres(page)], ids=lambda page: page.stem
)  # fmt: skip
def test_what_a_page_says_works(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if needs_postgres(page)], ids=lambda page: page.stem
)  # fmt: skip
def test_what_a_page_says_works_on_postgresql(
    page: Path, tmp_path: Path, postgres_url: str
) -> None:
    run_page(page, tmp_path, DATABASE_URL=postgres_url)


def test_a_page_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    """A command that fails, output that differs, output that nothing prints."""
    for text in (
        "```sh\nfalse\n```\n",
        "```sh\necho a\n```\n\n```text\nb\n```\n",
        "```text\nb\n```\n",
    ):
        page = tmp_path / "page.md"
        page.write_text(text)
        with pytest.raises(AssertionError):
            run_page(page, tmp_path)

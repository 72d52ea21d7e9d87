"""What a user can call has documentation: every command and option, every endpoint, every public name, every hook."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import pytest

from tenax.memory import MemoryProvider
from tenax.web.app import endpoints
from tools.pictures import BYTES_MAX, shown_pictures
from tools.reference import (
    CONFIGURATION,
    MODULES,
    commands,
    configuration_page,
    pages,
    public_members,
    public_names,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    return pages()


def test_every_command_and_option_has_help(reference: dict[str, str]) -> None:
    """`--help` prints a sentence about each, and the page shows it."""
    page = reference["reference/command-line.md"]
    for context, command in commands():
        assert command.help, context.command_path
        assert f"\n## {context.command_path}\n" in page
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{context.command_path} {option.opts[0]}"


def test_the_tables_of_settings_are_those_of_the_code() -> None:
    """Run `python -m tools.reference` after a change of a setting. tests/unit/test_config.py looks for each name."""
    assert CONFIGURATION.read_text("utf-8") == configuration_page()


def test_every_endpoint_is_on_the_page(reference: dict[str, str]) -> None:
    page = reference["reference/http.md"]
    for endpoint in endpoints():
        assert f"\n## {endpoint.method} `{endpoint.path}`\n" in page
        assert endpoint.about in page


def test_every_public_name_is_on_the_page(reference: dict[str, str]) -> None:
    """Classes and functions with their docstrings, methods with their signatures."""
    page = reference["reference/python.md"]
    for module in MODULES:
        assert f"\n## {module}\n" in page
    for module, name, value in public_names():
        assert f"\n### {module}.{name}\n" in page
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{module}.{name} has no docstring"


def test_every_hook_of_a_memory_provider_is_on_its_page() -> None:
    """A method that a provider may override is in the table of the how-to page."""
    page = (DOCS / "how-to" / "write-a-memory-provider.md").read_text("utf-8")
    for name, _ in public_members(MemoryProvider):
        assert f"\n| `{name}` | " in page


def test_every_link_between_pages_leads_somewhere(reference: dict[str, str]) -> None:
    """Files in the repository, and pages that are made when the site is built. `make docs` checks anchors too."""
    generated = {DOCS / path for path in reference}
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]:
        links = LINK.findall(page.read_text("utf-8"))
        targets = {(page.parent / link).resolve() for link in links}
        missing = {target for target in targets - generated if not target.exists()}
        assert not missing, page


def test_every_picture_is_shown_and_small() -> None:
    """Run `python -m tools.pictures` after a change of the page or of the pictures that a document shows."""
    files = {file.stem: file for file in (DOCS / "img").glob("*.png")}
    assert set(files) == shown_pictures()
    for file in files.values():
        assert file.stat().st_size <= BYTES_MAX, file


def test_every_decision_is_in_the_list() -> None:
    """The site reaches the pages of decisions through their list."""
    decisions = DOCS / "decisions"
    listed = (decisions / "README.md").read_text("utf-8")
    for page in decisions.glob("0*.md"):
        assert f"({page.name})" in listed

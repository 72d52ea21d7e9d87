"""docs/CONTRACTS.md names, for every promise that is due, a test that is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "CONTRACTS.md").read_text("utf-8")
ROWS = re.findall(
    r"^\| (\d\S*|[A-Z]{2}|[CJMSW]\d+) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE
)
PROMISES = re.findall(
    r"^\| (.+?) \| (tests/.+?) \|$",
    (ROOT / "docs" / "PROMISES.md").read_text("utf-8"),
    re.MULTILINE,
)
"""The promises of the chat apps, and their tests."""
DUE = {
    *(f"0.{n}" for n in range(1, 7)),
    *(f"0.+{n}" for n in range(1, 5)),
    *(f"1.{n}" for n in range(1, 10)),
    *(f"1.+{n}" for n in range(1, 4)),
    *(f"2.{n}" for n in range(1, 12)),
    *(f"2.+{n}" for n in range(1, 5)),
    *("PC", "EO", "FD", "CV", "CO", "RD"),
    *(f"J{n}" for n in range(1, 28)),
    *(f"3.{n}" for n in range(1, 7)),
    *(f"3.+{n}" for n in range(1, 4)),
    *(f"4.{n}" for n in range(1, 17)),
    "4.+1",
    *(f"M{n}" for n in range(1, 7)),
    *(f"W{n}" for n in range(1, 11)),
    *(f"S{n}" for n in range(1, 5)),
    *(f"C{n}" for n in range(1, 7)),
}


@functools.cache
def parsed(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"))


def test_every_row_that_is_due_is_on_the_page() -> None:
    """No promise is dropped by leaving its row out."""
    assert {row for row, _, _ in ROWS} == DUE


@pytest.mark.parametrize(
    ("row", "promise", "tests"), ROWS, ids=[f"{row} {tests}" for row, _, tests in ROWS]
)
def test_the_test_that_a_row_names_is_there(row: str, promise: str, tests: str) -> None:
    """Each named test can be found in its file."""
    assert promise, row
    find_tests(tests)


@pytest.mark.parametrize(("promise", "tests"), PROMISES)
def test_the_test_that_a_promise_names_is_there(promise: str, tests: str) -> None:
    """docs/PROMISES.md names no test that was renamed or removed."""
    assert promise
    find_tests(tests)


def find_tests(tests: str) -> None:
    """Find every test of a list in its file."""
    for each in tests.split(", "):
        path, *names = each.split("::")
        found = parsed(path).body
        for name in names:
            (node,) = [
                n
                for n in found
                if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and n.name == name
            ]
            found = node.body

"""tests/mutants.toml: for every row of docs/CONTRACTS.md a mutation of the source that its tests catch."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.unit.test_contracts_page import ROWS
from tools.mutants import ROOT, Mutant, read

MUTANTS = read()


def name_of(test: str) -> str:
    """The test's own name, without its file and parameters."""
    return test.partition("[")[0].rpartition("::")[2]


@functools.cache
def names_in(file: Path) -> set[str]:
    """Return the names of the functions and classes in a test file."""
    tree = ast.parse(file.read_text("utf-8"))
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, defined)}


@pytest.mark.parametrize(
    ("row", "tests"),
    [(row, tests) for row, _, tests in ROWS],
    ids=lambda text: text[:60],
)
def test_every_row_has_a_mutant(row: str, tests: str) -> None:
    """One that a test of this very row catches."""
    names = {name_of(test) for test in tests.split(", ")}
    caught = {
        name_of(test)
        for mutant in MUTANTS
        if mutant.row == row
        for test in mutant.tests
    }
    classes = {
        test.split("::")[1]
        for mutant in MUTANTS
        if mutant.row == row
        for test in mutant.tests
    }
    assert names & (caught | classes), f"no mutant of row {row} names one of its tests"


@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=lambda mutant: f"{mutant.row} {mutant.file}"
)
def test_a_mutant_can_be_applied_and_its_tests_are_there(mutant: Mutant) -> None:
    """Its old text stands in its file exactly once; whoever changes the source there changes the mutant."""
    assert mutant.old != mutant.new
    assert (ROOT / mutant.file).read_text("utf-8").count(mutant.old) == 1
    assert mutant.tests
    for test in mutant.tests:
        path = ROOT / test.split("::")[0]
        files = [path, *(ROOT / "tests" / "contract" / "engine").glob("*.py")]
        assert any(name_of(test) in names_in(file) for file in files), test

"""tests/targets.toml: every test belongs to one target, and a test on two engines runs on one of them before the night."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.targets import Case, Targets

ROOT = Path(__file__).parents[2]
NAMED = "tests/agent/test_a.py::test_named"


@pytest.fixture
def targets() -> Targets:
    return Targets(
        {
            "tests/unit": "quick",
            "tests/unit/test_slow.py": "nightly",
            "tests/agent": "test",
        },
        markers={"crash": "proof", "nightly": "nightly"},
        engines={"postgresql": "proof"},
        one_engine_paths=["tests/agent"],
        contracts=[NAMED],
    )


def case(name: str, *markers: str, engine: str = "") -> Case:
    return Case(name, frozenset(markers), engine)


def test_the_longest_path_decides(targets: Targets) -> None:
    """A file may differ from its folder."""
    assert targets.of_file("tests/unit/test_a.py") == "quick"
    assert targets.of_file("tests/unit/test_slow.py") == "nightly"


def test_a_file_that_the_table_does_not_name_is_an_error(targets: Targets) -> None:
    """It would never run."""
    with pytest.raises(LookupError, match="belongs to no target"):
        targets.of_file("tests/new/test_a.py")


def test_a_marker_or_an_engine_moves_a_test_to_a_later_target(targets: Targets) -> None:
    """Never to an earlier one."""
    cases = {
        case("tests/unit/test_a.py::test_a"): "quick",
        case("tests/unit/test_a.py::test_b", "crash"): "proof",
        case("tests/unit/test_slow.py::test_c", "crash"): "nightly",
        case("tests/unit/test_a.py::test_d[postgresql]", engine="postgresql"): "proof",
    }
    assert targets.of_cases(cases) == {each.id: cases[each] for each in cases}


def test_a_case_on_two_engines_is_for_the_night_on_one_of_them(
    targets: Targets,
) -> None:
    """Both engines get their share. What the contracts name runs on both, and so does a case that has one engine."""
    functions = [f"tests/agent/test_a.py::test_{number}" for number in range(40)]
    cases = [
        case(f"{function}[{engine}-x]", engine=engine)
        for function in [*functions, NAMED]
        for engine in ("sqlite", "postgresql")
    ]
    alone = case("tests/agent/test_a.py::test_alone[sqlite]", engine="sqlite")
    found = targets.of_cases([*cases, alone])
    pairs = [
        (found[f"{function}[sqlite-x]"], found[f"{function}[postgresql-x]"])
        for function in functions
    ]
    assert set(pairs) == {("test", "nightly"), ("nightly", "proof")}
    assert found[f"{NAMED}[sqlite-x]"] == "test"
    assert found[f"{NAMED}[postgresql-x]"] == "proof"
    assert found[alone.id] == "test"


def test_test_and_proof_run_each_test_once_but_for_the_night(targets: Targets) -> None:
    """And `quick` is a part of `test`."""
    cases = [
        case("tests/unit/test_a.py::test_a"),
        case("tests/agent/test_a.py::test_b"),
        case("tests/agent/test_a.py::test_c", "crash"),
        case("tests/agent/test_a.py::test_d", "nightly"),
    ]
    runs = {
        target: targets.selected(target, cases)
        for target in ("quick", "test", "proof", "nightly", "all", "")
    }
    assert runs["quick"] < runs["test"]
    assert not runs["test"] & runs["proof"]
    assert runs["test"] | runs["proof"] == runs[""] == runs["all"] - runs["nightly"]


def test_the_table_names_only_what_is_there() -> None:
    """A path that was renamed does not stay in it."""
    missing = [path for path in Targets.read().paths if not (ROOT / path).exists()]
    assert missing == []

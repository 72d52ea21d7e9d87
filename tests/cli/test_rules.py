"""`tenax rules`: listed with numbers, added, taken back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tenax.config.rules import Rule
from tests.cli.conftest import Told, tenax


@pytest.fixture
def told(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Told:
    """Runs `tenax rules` with these words: the exit code, what was printed and what was said beside it."""
    monkeypatch.setenv("TENAX_HOME", str(home / "home"))
    return partial(tenax, capsys, "rules")


def test_rules_are_added_listed_and_taken_back(told: Told, tmp_path: Path) -> None:
    """Looking makes no file; a number that is not in the list is refused; the others keep their order."""
    assert told() == (
        0,
        "",
        "No rules. Tenax asks before it changes anything.\n",
    )
    assert not (tmp_path / "home").exists()
    assert told("add", "allow", "write_file", "notes/*") == (
        0,
        "allow write_file notes/*\n",
        "",
    )
    assert told("add", "deny", "shell")[0] == 0
    listed = " 1  allow  write_file  notes/*\n 2  deny   shell       *\n"
    assert told() == (0, listed, "")
    code, _, err = told("remove", "3")
    assert (code, err.splitlines()[0]) == (1, "tenax: No rule has the number 3.")
    assert told("remove", "1") == (0, "Removed: allow write_file notes/*\n", "")
    assert told() == (0, " 1  deny   shell  *\n", "")


def test_what_can_be_no_rule_is_refused_in_a_sentence(told: Told) -> None:
    """An unknown verdict is wrong use; an empty pattern, and one that hides something, are no rule."""
    assert told("add", "ask", "x")[0] == 2
    for bad in ("", " ", "a\u202eb"):
        code, out, err = told("add", "allow", "x", bad)
        assert (code, out) == (1, "")
        assert "cannot be a rule: its touches" in err


def test_the_command_of_a_rule_makes_it(told: Told) -> None:
    """Also of one that begins with a dash, or holds quotes."""
    import shlex

    rules = [Rule("deny", "x", "-rf 'a' \"b\""), Rule("allow", "--y", "*")]
    for rule in rules:
        assert told(*shlex.split(rule.command)[2:])[0] == 0
    assert [line.split(maxsplit=1)[1] for line in told()[1].splitlines()] == [
        "deny   x    -rf 'a' \"b\"",
        "allow  --y  *",
    ]

"""`tools.house`: the figures of a source tree, and the budgets that only fall."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tools.house import main, measure_tree, nodes_per_package, summarize

CORE = {"include": ["names.py", "store/*"], "exclude": ["store/extra.py"]}
NAMES = '"""It is what they call names."""\nX = 1\n'
STORE = '''
class Store:
    """Keep rows. `it` is quoted code."""

    def __init__(self, a, b, c, d, e, f, g, *, h, i):
        self.rows = [each for each in a]
        for row in b:
            print(row)
'''
BUDGETS = """# A comment that stays.
[figures]
core_nodes = { budget = 1000, target = 10 }
all_nodes = { budget = 20, target = 10 }
nodes_per_line = { budget = 100.0, target = 6.0 }
pronouns_per_100_words = { budget = 100.0, target = 6.0 }
each_loops_percent = { budget = 100.0, target = 0.0 }
top_level_modules = { budget = 12, target = 12 }
wide_constructors = { budget = 5, target = 0 }
[core]
include = ["names.py", "store/*"]
exclude = ["store/extra.py"]
[packages]
"top level" = 1000
store = 1000
gone = 1000
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small tree: a module at the top, and a package of two."""
    root = tmp_path / "source"
    (root / "store").mkdir(parents=True)
    (root / "names.py").write_text(NAMES)
    (root / "store" / "store.py").write_text(STORE)
    (root / "store" / "extra.py").write_text("Y = 2\n")
    return root


@pytest.fixture
def budgets(tmp_path: Path) -> Path:
    path = tmp_path / "budgets.toml"
    path.write_text(BUDGETS)
    return path


def run(source: Path, budgets: Path, *options: str) -> int:
    return main([*options, "--source", str(source), "--budgets", str(budgets)])


def test_the_figures_of_a_small_tree(source: Path) -> None:
    """Nodes by package, density, pronouns in docstrings, `each` in loops, modules at the top, wide constructors."""
    files = measure_tree(source)
    # Module, Expr, Constant, Assign, Name, Store, Constant.
    packages = nodes_per_package(files)
    assert packages["top level"] == 7
    figures = summarize(files, CORE)
    assert figures["all_nodes"] == sum(packages.values())
    # Module, Assign, Name, Store, Constant are in the file that the core leaves out.
    assert figures["core_nodes"] == figures["all_nodes"] - 5
    assert figures["nodes_per_line"] == pytest.approx(figures["all_nodes"] / 11)
    # it, what, they: of "It is what they call names. Keep rows. is quoted code."
    assert figures["pronouns_per_100_words"] == pytest.approx(100 * 3 / 11)
    assert figures["each_loops_percent"] == 50
    assert figures["top_level_modules"] == 1
    assert figures["wide_constructors"] == 1


def test_a_figure_above_its_budget_fails(
    source: Path, budgets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report names the figure, its value and the budget."""
    assert run(source, budgets) == 1
    out, err = capsys.readouterr()
    assert "store/store.py:5 __init__ (9)" in out
    assert err.startswith("Above the budget: all_nodes is ")
    assert err.endswith("; the budget is 20.\n")
    budgets.write_text(BUDGETS.replace("budget = 20,", "budget = 2000,"))
    assert run(source, budgets) == 0


def test_a_package_without_a_budget_fails(
    source: Path, budgets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new package states its size."""
    text = BUDGETS.replace("budget = 20,", "budget = 2000,")
    budgets.write_text(text.replace("store = 1000", ""))
    assert run(source, budgets) == 1
    assert "The package 'store' has no budget." in capsys.readouterr().err


def test_budgets_fall_to_the_figures_and_never_rise(
    source: Path, budgets: Path
) -> None:
    """`--lower` keeps comments, drops a package that is gone, and leaves a budget that is lower already."""
    assert run(source, budgets, "--lower", "--headroom", "10") == 1
    text = budgets.read_text()
    assert text.startswith("# A comment that stays.\n")
    lowered = tomllib.loads(text)
    assert lowered["figures"]["all_nodes"] == {"budget": 20, "target": 10}
    assert lowered["figures"]["each_loops_percent"]["budget"] == pytest.approx(55)
    assert lowered["figures"]["wide_constructors"]["budget"] == 2
    assert lowered["packages"]["top level"] == 8
    assert set(lowered["packages"]) == {"top level", "store"}
    run(source, budgets, "--lower")
    assert tomllib.loads(budgets.read_text())["packages"]["top level"] == 7

"""Measure the size and the language of src/tenax, and compare the figures with the budgets.

    python -m tools.house                  print the figures; exit with 1 if a figure is above its budget
    python -m tools.house --lower          lower the budgets to the present figures
    python -m tools.house --headroom 2     with --lower: leave 2 % above the present figures

The budgets are in tools/budgets.toml. A budget falls and never rises, except in a commit of its own that gives the reason.

Size is counted in nodes of the syntax tree, because dense writing cannot hide nodes. Density is nodes per line. The
language figure counts pronouns and relatives per 100 words of docstring; by this count starlette has 4.0 and httpx 3.5.
"""

from __future__ import annotations

import argparse
import ast
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import tomlkit

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src" / "tenax"
BUDGETS: Final = ROOT / "tools" / "budgets.toml"
TOP_LEVEL: Final = "top level"
PARAMETERS_MAX: Final = 8
LONGEST_SHOWN: Final = 3

PRONOUNS: Final = frozenset(
    [
        "it",
        "its",
        "itself",
        "one",
        "ones",
        "who",
        "whom",
        "whose",
        "what",
        "which",
        "that",
        "this",
        "these",
        "those",
        "they",
        "them",
        "their",
        "other",
        "others",
        "another",
        "each",
        "something",
        "somebody",
        "anybody",
        "nobody",
        "everybody",
        "somewhere",
        "there",
        "whatever",
        "whoever",
        "wherever",
        "all",
        "none",
        "any",
        "such",
        "so",
    ]
)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.comprehension)


@dataclass
class File:
    """The figures of one file."""

    path: str
    lines: int
    nodes: int
    words: int
    pronouns: int
    loops: int
    each_loops: int
    functions: list[tuple[int, str]] = field(default_factory=list)
    """The length of every function in lines, and its position."""
    wide_constructors: list[str] = field(default_factory=list)

    @property
    def package(self) -> str:
        """The folder directly below the root, or "top level"."""
        folder, separator, _ = self.path.partition("/")
        return folder if separator else TOP_LEVEL


def measure_tree(root: Path) -> list[File]:
    """Measure every Python file below `root`."""
    paths = sorted(root.rglob("*.py"))
    return [measure_file(path, path.relative_to(root).as_posix()) for path in paths]


def measure_file(path: Path, name: str) -> File:
    """Measure one file, which is called `name` in the report."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    words = [word for node in nodes for word in _docstring_words(node)]
    loop_names = [
        node.target.id
        for node in nodes
        if isinstance(node, _LOOPS) and isinstance(node.target, ast.Name)
    ]
    found = File(
        path=name,
        lines=text.count("\n"),
        nodes=len(nodes),
        words=len(words),
        pronouns=sum(word.lower() in PRONOUNS for word in words),
        loops=len(loop_names),
        each_loops=loop_names.count("each"),
    )
    for node in nodes:
        if isinstance(node, _FUNCTIONS):
            _measure_function(node, found)
    return found


def _docstring_words(node: ast.AST) -> Iterator[str]:
    """Yield the words of the string statements directly in the body of `node`. Quoted code does not count."""
    body = getattr(node, "body", None)
    for statement in body if isinstance(body, list) else []:
        if not isinstance(statement, ast.Expr):
            continue
        value = statement.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            prose = re.sub(r"`[^`]*`", "", value.value)
            yield from re.findall(r"[A-Za-z']+", prose)


def _measure_function(
    function: ast.FunctionDef | ast.AsyncFunctionDef, found: File
) -> None:
    position = f"{found.path}:{function.lineno} {function.name}"
    last_line = function.end_lineno or function.lineno
    found.functions.append((last_line - function.lineno + 1, position))
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    # The first parameter of a constructor is `self`.
    if function.name == "__init__" and len(parameters) - 1 > PARAMETERS_MAX:
        found.wide_constructors.append(f"{position} ({len(parameters) - 1})")


def nodes_per_package(files: list[File]) -> dict[str, int]:
    """Return the number of nodes of every package, largest first."""
    counts: Counter[str] = Counter()
    for file in files:
        counts[file.package] += file.nodes
    return dict(counts.most_common())


def summarize(files: list[File], core: Mapping[str, list[str]]) -> dict[str, float]:
    """Return the figures that have a budget. `core` names the files of the core by patterns: `include`, `exclude`."""
    lines = sum(file.lines for file in files)
    nodes = sum(file.nodes for file in files)
    words = sum(file.words for file in files)
    loops = sum(file.loops for file in files)
    pronouns = sum(file.pronouns for file in files)
    each_loops = sum(file.each_loops for file in files)
    modules = [file for file in files if "/" not in file.path]
    return {
        "core_nodes": sum(file.nodes for file in files if _is_core(file.path, core)),
        "all_nodes": nodes,
        "nodes_per_line": nodes / max(lines, 1),
        "pronouns_per_100_words": 100 * pronouns / max(words, 1),
        "each_loops_percent": 100 * each_loops / max(loops, 1),
        "top_level_modules": len(modules),
        "wide_constructors": sum(len(file.wide_constructors) for file in files),
    }


def _is_core(path: str, core: Mapping[str, list[str]]) -> bool:
    included = any(fnmatch(path, pattern) for pattern in core["include"])
    excluded = any(fnmatch(path, pattern) for pattern in core["exclude"])
    return included and not excluded


def find_excesses(
    figures: Mapping[str, float],
    packages: Mapping[str, int],
    budgets: Mapping[str, Any],
) -> list[str]:
    """Return a sentence for every figure above its budget and for every package without one."""
    excesses = []
    for name, value in figures.items():
        budget = budgets["figures"][name]["budget"]
        if value > budget:
            excesses.append(
                f"{name} is {_short(value)}; the budget is {_short(budget)}."
            )
    for package, nodes in packages.items():
        budget = budgets["packages"].get(package)
        if budget is None:
            excesses.append(f"The package {package!r} has no budget.")
        elif nodes > budget:
            excesses.append(f"{package} has {nodes:,} nodes; the budget is {budget:,}.")
    return excesses


def lower_budgets(
    figures: Mapping[str, float],
    packages: Mapping[str, int],
    budgets: Any,  # noqa: ANN401  (a tomlkit document)
    headroom_percent: float,
) -> None:
    """Lower each budget to the present figure plus the headroom. A budget that is lower already stays."""
    factor = 1 + headroom_percent / 100
    for name, value in figures.items():
        entry = budgets["figures"][name]
        # Counts are whole; ratios have one digit after the point.
        digits = 0 if isinstance(value, int) else 1
        scale = 10**digits
        # Rounding first keeps 6.1000000001 from becoming 6.2.
        allowed = math.ceil(round(value * factor * scale, 6)) / scale
        lowered = min(entry["budget"], allowed)
        entry["budget"] = lowered if digits else int(lowered)
    for package in list(budgets["packages"]):
        allowed = math.ceil(packages.get(package, 0) * factor)
        if package in packages:
            budgets["packages"][package] = min(budgets["packages"][package], allowed)
        else:
            del budgets["packages"][package]


def report(
    files: list[File], figures: Mapping[str, float], budgets: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"{'package':12} {'nodes':>8} {'budget':>8} {'lines':>7} {'nodes/line':>10} {'pronouns/100':>12}"
    for package, nodes in nodes_per_package(files).items():
        members = [file for file in files if file.package == package]
        lines = sum(file.lines for file in members)
        words = sum(file.words for file in members)
        pronouns = sum(file.pronouns for file in members)
        budget = budgets["packages"].get(package, 0)
        yield (
            f"{package:12} {nodes:8,} {budget:8,} {lines:7,} {nodes / max(lines, 1):10.1f} "
            f"{100 * pronouns / max(words, 1):12.1f}"
        )
    yield f"{'figure':24} {'now':>9} {'budget':>9} {'target':>9}"
    for name, value in figures.items():
        entry = budgets["figures"][name]
        cells = (value, entry["budget"], entry["target"])
        yield f"{name:24} " + " ".join(f"{_short(cell):>9}" for cell in cells)
    by_length = sorted(files, key=_file_length, reverse=True)[:LONGEST_SHOWN]
    yield "longest files: " + "; ".join(
        f"{file.lines} {file.path}" for file in by_length
    )
    functions = sorted(
        (entry for file in files for entry in file.functions), reverse=True
    )
    longest = [f"{length} {position}" for length, position in functions[:LONGEST_SHOWN]]
    yield "longest functions: " + "; ".join(longest)
    wide = [position for file in files for position in file.wide_constructors]
    if wide:
        yield f"constructors with more than {PARAMETERS_MAX} parameters: " + "; ".join(
            wide
        )


def _file_length(file: File) -> int:
    return file.lines


def _short(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def main(arguments: list[str] | None = None) -> int:
    """Print the report, and return 1 if a figure is above its budget."""
    parser = argparse.ArgumentParser(prog="python -m tools.house")
    parser.add_argument("--lower", action="store_true", help="lower the budgets to the present figures")  # fmt: skip
    parser.add_argument("--headroom", type=float, default=0.0, metavar="PERCENT", help="with --lower: leave so much room")  # fmt: skip
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--budgets", type=Path, default=BUDGETS)
    asked = parser.parse_args(arguments)

    budgets = tomlkit.parse(asked.budgets.read_text(encoding="utf-8")).unwrap()
    files = measure_tree(asked.source)
    figures = summarize(files, budgets["core"])
    packages = nodes_per_package(files)
    if asked.lower:
        document = tomlkit.parse(asked.budgets.read_text(encoding="utf-8"))
        lower_budgets(figures, packages, document, asked.headroom)
        asked.budgets.write_text(tomlkit.dumps(document), encoding="utf-8")
        budgets = document.unwrap()
    for line in report(files, figures, budgets):
        sys.stdout.write(f"{line}\n")
    excesses = find_excesses(figures, packages, budgets)
    for excess in excesses:
        sys.stderr.write(f"Above the budget: {excess}\n")
    return 1 if excesses else 0


if __name__ == "__main__":
    sys.exit(main())

"""Decide which make target runs a test. The table is tests/targets.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple, Self

__all__ = ["ENGINES", "TARGETS", "Case", "Targets"]

ROOT: Final = Path(__file__).parents[2]
TARGETS: Final = ("quick", "test", "proof", "nightly")
"""From the fastest to the slowest."""
ENGINES: Final = ("sqlite", "postgresql")
_INCLUDED: Final = {"test": {"quick", "test"}}
_DEFAULT: Final = {"quick", "test", "proof"}
"""What a run without a target includes."""


class Case(NamedTuple):
    """What decides about one test item."""

    id: str
    """pytest's node id."""
    markers: frozenset[str]
    engine: str
    """One of `ENGINES`, or empty."""

    @property
    def file(self) -> str:
        return self.id.partition("::")[0]

    @property
    def function(self) -> str:
        """The node id without parameters."""
        return self.id.partition("[")[0]

    @property
    def on_any_engine(self) -> str:
        """A key that the same case on the other engine has too."""
        function, bracket, parameters = self.id.partition("[")
        return function + bracket + parameters.replace(self.engine or "*", "*")


class Targets:
    """The table, and the names of the tests on docs/CONTRACTS.md."""

    def __init__(
        self,
        paths: Mapping[str, str],
        *,
        markers: Mapping[str, str],
        engines: Mapping[str, str],
        one_engine_paths: Iterable[str],
        contracts: Iterable[str],
    ) -> None:
        self._paths = dict(paths)
        self._markers = dict(markers)
        self._engines = dict(engines)
        self._one_engine_paths = list(one_engine_paths)
        self._contracts = set(contracts)

    @classmethod
    def read(cls) -> Self:
        """Read the table and the contracts page of this repository."""
        table = tomllib.loads((ROOT / "tests" / "targets.toml").read_text("utf-8"))
        page = (ROOT / "docs" / "CONTRACTS.md").read_text("utf-8")
        return cls(
            table["paths"],
            markers=table["markers"],
            engines=table["engines"],
            one_engine_paths=table["one_engine"]["paths"],
            contracts=re.findall(r"tests/[\w/]+\.py(?:::\w+)+", page),
        )

    @property
    def paths(self) -> list[str]:
        """Every path in the table."""
        return list(self._paths)

    def of_file(self, file: str) -> str:
        """Return the target of a file. Raises LookupError if the table has none."""
        path = PurePosixPath(file)
        for part in (path, *path.parents):
            target = self._paths.get(str(part))
            if target is not None:
                return target
        raise LookupError(f"{file} belongs to no target: add it to tests/targets.toml.")

    def includes_file(self, target: str, file: str) -> bool:
        """Return whether a run of this target has to collect this file.

        Markers and engines move a test to a later target, so only a later file can be left out.
        """
        return _weight(self.of_file(file)) <= max(map(_weight, _included(target)))

    def of_cases(self, cases: Iterable[Case]) -> dict[str, str]:
        """Return the target of each test, by node id."""
        cases = list(cases)
        engines: dict[str, set[str]] = {}
        for case in cases:
            engines.setdefault(case.on_any_engine, set()).add(case.engine)
        return {case.id: self._of(case, engines[case.on_any_engine]) for case in cases}

    def _of(self, case: Case, engines: set[str]) -> str:
        targets = [self.of_file(case.file)]
        targets += [self._markers[name] for name in case.markers & set(self._markers)]
        if case.engine in self._engines:
            targets.append(self._engines[case.engine])
        if len(engines) > 1 and self._needs_one_engine(case):
            chosen = _choose(case.on_any_engine, sorted(engines))
            if case.engine != chosen:
                targets.append("nightly")
        return max(targets, key=_weight)

    def _needs_one_engine(self, case: Case) -> bool:
        path = PurePosixPath(case.file)
        listed = any(path.is_relative_to(part) for part in self._one_engine_paths)
        return listed and case.function not in self._contracts

    def selected(self, target: str, cases: Iterable[Case]) -> set[str]:
        """Return the node ids of the tests that a run of this target includes."""
        included = _included(target)
        return {name for name, of in self.of_cases(cases).items() if of in included}


def _choose(name: str, engines: list[str]) -> str:
    """Choose an engine by a hash that is the same in every process and version of Python."""
    return engines[sha256(name.encode()).digest()[0] % len(engines)]


def _included(target: str) -> set[str]:
    """Return the targets in the table that a run includes; an empty `target` is a run without one."""
    if target == "all":
        return set(TARGETS)
    if not target:
        return _DEFAULT
    return _INCLUDED.get(target, {target})


def _weight(target: str) -> int:
    return TARGETS.index(target)

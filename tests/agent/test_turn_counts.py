"""What one plain turn asks of the store, and how often it leaves the event loop.

The bounds are those of issue 13. Before there was one feed for each conversation a turn took 26 to 28 reads, with 100
watched conversations 1,012, 8 write transactions and 24 hops; `tenax -p` took 42 reads and 45 hops.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.counting import question_costs, turn_costs


@pytest.mark.parametrize(("watched", "reads"), [(1, 10), (100, 12)])
async def test_a_turn_in_the_browser_reads_no_more_than_it_must(
    tmp_path: Path, watched: int, reads: int
) -> None:
    """However many other conversations the page watches."""
    costs = await turn_costs(tmp_path, watched)
    assert costs.reads <= reads, costs
    assert costs.writes <= 6, costs
    assert costs.hops <= 12, costs


async def test_a_turn_with_instruction_files_stays_within_the_same_bounds(
    tmp_path: Path,
) -> None:
    """With an `AGENTS.md` every prompt has a second part, and every turn asks who writes in the conversation."""
    (tmp_path / "AGENTS.md").write_text("Answer briefly.")
    with_file = await turn_costs(tmp_path, 1)
    assert with_file.reads <= 10, with_file
    assert with_file.hops <= 12, with_file


def test_a_question_in_the_terminal_takes_half_of_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tenax -p`, with its start and its end, in a new conversation."""
    monkeypatch.setenv("TENAX_HOME", str(tmp_path))
    costs = question_costs(tmp_path)
    assert costs.reads <= 21, costs
    assert costs.hops <= 22, costs

"""`tenax schedule`: what is asked by itself, made, shown and taken away, and a sentence for what cannot be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.cli.conftest import tenax


def test_a_schedule_is_made_shown_and_taken_away(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Looking makes no store; the beginning of an id is enough to take one away."""
    assert tenax(capsys, "schedule", "--json")[:2] == (0, "[]\n")
    assert not (home / "tenax.db").exists()
    code, out, err = tenax(
        capsys,
        "schedule",
        "add",
        "every weekday at 8",
        "Look",
        "\x1b[31mthere",
        "--zone",
        "UTC",
    )
    assert (code, err) == (
        0,
        "Schedules run while `tenax serve` runs. A missed run happens once at the next start.\n",
    )
    assert "every weekday at 08:00 (UTC)" in out
    assert out.endswith("  Look \ufffd[31mthere\n")
    (made,) = msgspec.json.decode(tenax(capsys, "schedule", "list", "--json")[1])
    assert (made["words"], made["zone"]) == ("Look \x1b[31mthere", "UTC")
    assert tenax(capsys, "schedule")[1] == f"{out.rstrip()} (No model is set up.)\n"
    # a variable of a shell that is not set
    code, out, err = tenax(capsys, "schedule", "remove", "")
    assert (code, out, err.splitlines()[0]) == (1, "", "tenax: There is no schedule .")
    assert tenax(capsys, "schedule", "remove", made["id"][:20])[:2] == (
        0,
        f"Removed: {made['id']}\n",
    )
    assert tenax(capsys, "schedule")[:2] == (0, "")


@pytest.mark.usefixtures("home")
def test_what_cannot_be_a_schedule_is_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever is given: a code, and words for a person on stderr."""
    for args, said in {
        ("add", "now and then", "x"): "now and then",
        ("add", "in 5 minutes", " "): "There is nothing to ask in this",
        ("add", "in 5 minutes", "\udcff"): "it is no text",
        ("add", "in 5 minutes", "x", "--zone", "Mars/\udcff"): "There is no time zone",
        (
            "add",
            "in 5 minutes",
            "x",
            "-c",
            "\udcff",
        ): "A conversation id must have 1 to 200 printable characters",
        ("remove", "t_nothing"): "There is no schedule t_nothing.",
        ("remove", "\udcff\x00"): "There is no schedule \ufffd\ufffd.",
    }.items():
        code, out, err = tenax(capsys, "schedule", *args)
        assert (code, out) == (1, ""), args
        assert said in err.splitlines()[0]

"""What a talk prints of a transcript: all of it, once, whatever pieces it comes in."""

from __future__ import annotations

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from tenax.cli.talk.screen import Screen
from tenax.runtime.approvals import Question
from tenax.views.transcript import Drop, Grow, Put, Row

STYLE = re.compile(r"\x1b\[[0-9;]*m")
BLOCKS = ["{} {}", "# {}", "- {}\n- {}\n\n  {}", "```\n{}\n\n{}\n```", "> {}", "|{}|{}|\n|---|---|\n|{}|{}|", "1. {}",
          "[{}]: {}", "<b>{}</b>\n{}", "{}\n---", "    {}", "![{}]({})", "{}<!-- {} -->"]  # fmt: skip


def row(
    text: str, state: str = "", *, kind: str = "assistant", name: str = "7", **more: str
) -> Row:
    return Row(name, (7, 0, 0), kind, 0, text=text, state=state, **more)  # type: ignore[arg-type]


def plain(printed: str) -> str:
    return STYLE.sub("", printed)


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, list[int], int]:
    """Markdown in which every word is there once, where it is cut into pieces, and how many words it has."""
    count, blocks = 0, []
    for block in draw(st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=8)):
        words = [f"w{count + n}w" for n in range(block.count("{}"))]
        count += len(words)
        blocks.append(block.format(*words))
    text = draw(st.sampled_from(["\n\n", "\n"])).join(blocks)
    cuts = draw(st.lists(st.integers(1, max(len(text) - 1, 1)), max_size=12))
    return text, sorted({0, *cuts, len(text)}), count


@given(answers())
def test_an_answer_in_pieces_is_printed_whole_and_once(
    answer: tuple[str, list[int], int],
) -> None:
    """Every word is printed, in order, also when changes come a second time."""
    text, cuts, count = answer
    screen = Screen(lambda: 80)
    printed = screen.changed([Put(row(text[: cuts[1]], "streaming"))])
    for begin, end in itertools.pairwise(cuts[1:]):
        printed += screen.changed([Grow("7", begin, text[begin:end])])
        printed += screen.changed([Grow("7", begin, text[begin:end])])
    printed += screen.changed([Put(row(text))])
    printed += screen.changed([Put(row(text[: cuts[1]], "streaming")), Put(row(text))])
    assert re.findall(r"w\d+w", plain(printed)) == [f"w{n}w" for n in range(count)]
    assert screen.live(10) == []


def test_what_is_closed_is_printed_and_the_rest_is_drawn() -> None:
    """A paragraph is printed when the next block begins; its end is drawn live, in as many lines as there is room for."""
    screen = Screen(lambda: 40)
    assert screen.changed([Put(row("One.\n\nTw", "streaming"))]) == "One.\n\n"
    assert [line for _, line in screen.live(10)] == ["Tw"]
    assert screen.changed([Grow("7", 8, "o " * 1000)]) == ""
    assert len(screen.live(4)) == 4
    assert (
        plain(screen.changed([Put(row("One.\n\nTwo.", "cut"))]))
        == "Two.\n\n-- The answer was cut off here.\n\n"
    )


def test_an_answer_that_reached_its_longest_says_so_once() -> None:
    """It is the model that ended it, and not Tenax."""
    screen = Screen(lambda: 80)
    told = [
        plain(screen.changed([Put(row("There once was a", "full"))])) for _ in range(2)
    ]
    assert told == [
        "There once was a\n\n-- Reached the maximum length.\n\n",
        "",
    ]


def test_what_is_taken_back_is_said_to_be_and_comes_back() -> None:
    """Scrollback cannot be unprinted: a line says what no longer stands, and what is restored is printed again."""
    screen = Screen(lambda: 80)
    rows = [row("Who?", kind="user", name="3"), row("Me.")]
    screen.changed(map(Put, rows))
    assert (
        plain(screen.changed([Drop("3"), Drop("7")]))
        == "-- Removed: the last 2 rows above.\n\n"
    )
    assert plain(screen.changed(map(Put, rows))) == "> Who?\n\nMe.\n\n"


def test_an_interruption_is_worded_as_everywhere() -> None:
    """Each state of its marker is a line; why it came is said once."""
    screen = Screen(lambda: 80)
    told = [
        screen.changed([Put(row("It is gone.", state, kind="marker"))])
        for state in ("pending", "pending", "resumed")
    ]
    assert [plain(each).strip() for each in told] == [
        "-- The answer was interrupted. Recovering it. It is gone.",
        "",
        "-- The answer was interrupted. It is regenerated below.",
    ]


def test_a_question_is_open_until_it_is_answered() -> None:
    """Who answered it elsewhere is said; what was answered here is not."""
    screen = Screen(lambda: 80)
    asks = row("", "asks", kind="tool", name="5:a", touches="a.txt")
    assert "Target: a.txt" in plain(screen.changed([Put(asks), Put(asks)]))
    assert [ask.id for ask in screen.asks] == ["5:a"]
    settled = screen.changed([Put(row("", "approved", kind="tool", name="5:a"))])
    assert "answered elsewhere: approved" in plain(settled)
    screen.changed([Put(row("", "asks", kind="tool", name="5:b"))])
    screen.mine.add("5:b")
    assert screen.changed([Put(row("", "denied", kind="tool", name="5:b"))]) == ""
    assert screen.asks == []


def test_every_way_to_answer_is_shown_however_narrow_it_is() -> None:
    """The line of a question is wrapped and not cut: its end says how to say no."""
    screen = Screen(lambda: 40)
    screen.changed(
        [
            Put(
                row(
                    "",
                    "asks",
                    kind="tool",
                    name="5:a",
                    touches="a/rather/long/path/of/a/file.txt",
                )
            )
        ]
    )
    shown = [line for _, line in screen.live(10)]
    assert " ".join(" ".join(shown).split()).endswith("y once, n deny; then Enter")
    screen.questions["5:a"] = Question(
        5, "a", ["a/rather/long/path/of/a/file.txt", "a/rather/*"], ["a"]
    )
    shown = [line for _, line in screen.live(10)]
    words = " ".join(" ".join(shown).split())
    assert (
        "c in this conversation: a/rather/long/path/of/a/file.txt c 2 in this" in words
    )
    assert words.endswith("y once, c, c 2, always, n deny; then Enter")
    assert max(map(len, shown)) < 40

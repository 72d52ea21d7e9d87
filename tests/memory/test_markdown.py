"""The memory as a Markdown file: what is written is read again, and people may edit it in between."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenax.errors import InvalidInput
from tenax.memory.entries import About, MemoryEntry
from tenax.memory.markdown import CHARS_MAX, Bullet, read, write

AT = 1_800_000_000_000_000


def fact(
    text: str,
    name: str = "f_1",
    about: About = "note",
    version: int = 1,
    learned_from: tuple[str, int] | None = None,
) -> MemoryEntry:
    conversation, seq = learned_from or (None, None)
    return MemoryEntry(
        name,
        version,
        "standing",
        text,
        about,
        "model",
        AT,
        conversation,
        seq,
        None,
        None,
    )


def test_the_file_can_be_read_by_people() -> None:
    """A title, two sections, a bullet for each fact, and at its end which one it is, where it was learned and when."""
    text = write(
        [fact("Likes tea."), fact("Is Hanna.", "f_2", "profile", 3, ("c_9", 14))]
    )
    assert text.startswith("# What Tenax remembers\n\n")
    assert text.endswith(
        "\n## Profile\n\n- Is Hanna. <!-- f_2 v3, c_9:14, 2027-01-15T08:00:00.000000Z -->\n"
        "\n## Notes\n\n- Likes tea. <!-- f_1 v1, 2027-01-15T08:00:00.000000Z -->\n"
    )


TRICKY = [
    "a --> b",
    "<!-- hidden --> seen",
    "ends in a comment <!-- f_9 v9 -->",
    "\\<!-- --> \\\\ \\",
    "- a bullet",
    "* another",
    "# Profile",
    "*bold* _under_ `code` [link](x) | table | 1. one",
    "C:\\new\\<b>",
    "-",
    "two  spaces",
]


@pytest.mark.parametrize("text", TRICKY)
def test_a_text_with_markdown_in_it_survives(text: str) -> None:
    """Comments, backslashes, bullets and headings inside a text are text."""
    assert read(write([fact(text)])) == [Bullet(text, "note", "f_1", 1)]


LINES = st.lists(
    st.sampled_from([*"ab \\<>!-*#`", "<!--", "-->", "f_1 v1"])
    | st.characters(exclude_categories=["Cs"]),
    min_size=1,
)


def line(pieces: list[str]) -> str:
    """As facts keep a text: on one line."""
    text = "".join(pieces).replace("\x00", "")
    return " ".join(each.strip() for each in text.splitlines() if each.strip())


@given(
    st.lists(
        st.tuples(LINES.map(line).filter(bool), st.sampled_from(["profile", "note"])),
        max_size=6,
    )
)
def test_what_is_written_is_read_again(kept: list[tuple[str, About]]) -> None:
    """Every text, section, id and version comes back, whatever the texts hold."""
    facts = [fact(text, f"f_{n}", about, n + 1) for n, (text, about) in enumerate(kept)]
    back = read(write(facts))
    assert sorted(back) == sorted(
        Bullet(each.text, each.about, each.id, each.version) for each in facts
    )


@given(
    st.lists(
        st.sampled_from(
            [
                "- ",
                "\n",
                "  ",
                "## Profile",
                "<!--",
                "-->",
                "f_1 v",
                "9" * 30,
                "\\",
                "\r",
                "\u2028",
            ]
        )
        | st.text(max_size=4)
    )
)
def test_junk_never_breaks_it(pieces: list[str]) -> None:
    """Any text is read, or refused with a sentence."""
    with contextlib.suppress(InvalidInput):
        assert all(
            event.text and "\n" not in event.text for event in read("".join(pieces))
        )


def test_a_person_may_edit_it() -> None:
    """Moved, wrapped, copied, changed and new bullets are read; what is no bullet is left alone, and so is an emptied one."""
    text = """\ufeff# Mine\r
- before any heading
## PROFILE
Some words of mine.
* Is Hanna,
  from Graz. <!-- f_2 v3,
  c_9:14 -->
+ Is Hanna, too.<!-- f_2 v3 -->

Not this one.
## Work
- Likes \\< and C:\\temp <!-- mine -->
    - nested <!-- f_3 v0 -->
-
- <!-- f_4 v1 -->
"""
    assert read(text) == [
        Bullet("before any heading", "note"),
        Bullet("Is Hanna, from Graz.", "profile", "f_2", 3),
        Bullet("Is Hanna, too.", "profile"),
        Bullet("Likes < and C:\\temp", "note"),
        Bullet("nested", "note"),
    ]


def test_an_empty_memory_is_read_as_one() -> None:
    """Nothing remembered, nothing read; and it is not refused."""
    assert read(write([])) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "Dear Sir or Madam",
        "{}",
        "- a\x00b",
        "- \ud800",
        "x" * (CHARS_MAX + 1),
    ],
    ids=range(7),
)
def test_what_is_no_such_file_is_refused(text: str) -> None:
    """Nothing that could be a fact, bytes that are no text, and far too much of it are refused with a sentence."""
    with pytest.raises(InvalidInput):
        read(text)

"""Markdown as messages of Discord: Discord's own Markdown, cut to the size of a message."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenax.channels.discord.format import Text, plain_text, render_texts

LIMIT = 1990


def written(markdown: str) -> str:
    """Return the only message in Discord's Markdown."""
    [text] = render_texts(markdown)
    return text.markdown


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("Hello", "Hello"),
        ("**a** *b* ~~c~~ `d`", "**a** *b* ~~c~~ `d`"),
        ("**a *b* c**", "**a *b* c**"),
        ("***both***", "***both***"),
        ("# Title\n\ntext", "**Title**\n\ntext"),
        ("- a\n- b", "• a\n• b"),
        ("1. a\n2. b", "1. a\n2. b"),
        ("> one\n> two\n\nthree", "> one\n> two\n\nthree"),
        ("[a label](https://example.org/a_b)", "[a label](<https://example.org/a_b>)"),
        ("<https://example.org>", "<https://example.org>"),
        ("[https://a.example](https://b.example)", "https://a.example (<https://b.example>)"),
        ("```py\nx = 1\n```", "```py\nx = 1\n```"),
        ("`a``b`", "`` a`\u200b`b ``"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "```\na | b\n--|--\n1 | 2\n```"),
    ],
)  # fmt: skip
def test_markdown_becomes_the_markdown_of_discord(markdown: str, expected: str) -> None:
    """What Discord formats stays formatted, a table is code, and a link has no preview."""
    assert written(markdown) == expected


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("2 * 3 * 4 and snake_case_name", r"2 \* 3 \* 4 and snake\_case\_name"),
        (r"\*no\* \`no\` ~~", r"\*no\* \`no\` \~\~"),
        ("||spoiler||", r"\|\|spoiler\|\|"),
        ("<@7001> <#5> <t:1>", r"\<@7001> \<#5> \<t:1>"),
        (r"\# no heading", r"\# no heading"),
        (r"\> no quote", r"\> no quote"),
        ("see https://example.org/a_b_c_", "see https://example.org/a_b_c_"),
        ("@everyone", "@everyone"),
    ],
)
def test_a_text_that_is_no_markdown_stays_as_written(
    markdown: str, expected: str
) -> None:
    """Characters that only look like formatting or mentions are escaped, except in addresses."""
    assert written(markdown) == expected


def test_a_fence_inside_code_does_not_end_the_code() -> None:
    """Discord has no longer fences, so an invisible character takes the inner fence apart."""
    text = written("````\n```\ninner\n```\n````")
    assert text.count("```") == 2


def test_long_code_is_fenced_in_every_message() -> None:
    """A message never ends inside an open fence."""
    code = "\n".join(f"line_{number} = {number} * 2" for number in range(500))
    texts = render_texts(f"Before\n\n```python\n{code}\n```\n\nAfter")
    assert len(texts) > 3
    for text in texts:
        assert text.markdown.count("```") % 2 == 0
        assert len(text.markdown) <= LIMIT
    lines = [
        line
        for text in texts
        for line in text.markdown.splitlines()
        if line.startswith("line_")
    ]
    assert lines == code.splitlines()


def test_a_growing_text_changes_only_its_last_messages() -> None:
    """What was sent stays as it is, whatever follows."""
    source = "\n\n".join(
        f"Paragraph {number} with *some* `code` and a_b_c " + "word " * 50
        for number in range(40)
    )
    before = render_texts(source[:1000])
    for end in range(1500, len(source), 500):
        now = render_texts(source[:end])
        assert now[: len(before) - 1] == before[:-1]
        before = now


def test_a_shortened_text_has_no_formatting() -> None:
    """The first words are plain, and an ellipsis says that more follows."""
    assert plain_text("a_b " * 100, 12) == Text("a_b a_b a_b…", r"a\_b a\_b a\_b…")
    assert plain_text("short", 12) == Text("short", "short")


@pytest.mark.parametrize("markdown", ["", "  \n ", "\u200b", "<!-- -->"[:0]])
def test_nothing_visible_is_no_message(markdown: str) -> None:
    """Discord refuses an empty message."""
    assert render_texts(markdown) == []


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet="ab *_~`|>#-[]()<@\n1.\\😀x", max_size=3000))
def test_every_message_has_the_right_size_and_no_open_fence(markdown: str) -> None:
    """Discord takes whatever comes out."""
    for text in render_texts(markdown):
        assert text.visible.strip()
        assert text.markdown.strip()
        assert len(text.markdown.encode("utf-16-le")) // 2 <= LIMIT
        assert len(re.findall("```", text.markdown)) % 2 == 0

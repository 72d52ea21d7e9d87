"""What a query finds, and that an index which holds pieces and keys can propose all of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenax.errors import InvalidInput
from tenax.journal.search.query import CHARS_MAX, fold, keys_of, parse, snippet

TEXT = st.text(alphabet="abcÉß_.-# \n猫喜欢ガงาน한글🙂ﬁ\uff11", max_size=40)


def finds(words: str, text: str) -> bool:
    return parse(words).matches(fold(text))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("deploy", "We deployed it"),
        ("nal_v2", "see final_v2.txt"),
        ("OAUTH token", "the Token of OAuth"),
        ("zurich", "Zürich"),
        ("ZÜRICH", "zurich"),
        ("strasse", "Straße"),
        ("елка", "Ёлка"),
        ("office", "oﬃce"),
        ("abc123", "\uff41\uff42\uff43\uff11\uff12\uff13"),
        ("go", "let's go!"),
        ("v2", "final_v2"),
        ("c#", "C# and F#"),
        ("猫", "我的猫喜欢鱼"),
        ("喜欢", "我的猫喜欢鱼"),
        ("的猫喜欢", "我的猫喜欢鱼"),
        ("カ*", "カメラ"),
        ("서울", "서울에서 만나요"),
        ("งาน", "ทำงานหนัก"),
        ("🙂", "fine 🙂 thanks"),
        ("❤", "with ❤️"),
        ('"blue whale"', "a Blue\n  whale, seen"),
        ('"a b"', "plan (A) - b!"),
        ('"我喜欢"', "是我喜欢的"),
        ('"unclosed phrase', "an unclosed phrase here"),
        ("depl*", "Deployment"),
        ("foo()", "call foo() twice"),
        ("=== !!", "a === b"),
        ("AND OR NOT NEAR", "not near and or"),
        ("sel%ct_", "sel%ct_ all"),
        ("c:\\temp", "in C:\\Temp now"),
    ],
)
def test_it_finds(words: str, text: str) -> None:
    """Words anywhere, short ones and phrases as words, other scripts anywhere, accents and case ignored."""
    assert finds(words, text)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("deploy rollback", "deploy only"),
        ("go", "google"),
        ("ai", "said again"),
        ("c#", "abc#"),
        ("喜欢", "喜人欢"),
        ("カ", "ガ"),
        ('"blue whale"', "blue-ish whale"),
        ('"blue whale"', "whale blue"),
        ('"art"', "start"),
        ("ploy*", "deploy"),
        ("sel%ct", "select"),
        ("foo_bar", "fooxbar"),
    ],
)
def test_it_does_not_find(words: str, text: str) -> None:
    """A short word inside another, words apart that a phrase has together, or what only looks like a pattern."""
    assert not finds(words, text)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "   ",
        '""',
        "*",
        "-",
        "?!",
        '"..."',
        "a\x00b",
        "\ud800",
        "x" * (CHARS_MAX + 1),
        "ab*",
        "a " * 40,
        None,
        7,
    ],
)
def test_what_cannot_be_searched_for_is_refused_with_a_sentence(words: object) -> None:
    """Nothing at all, no text, too much, or too little of a word."""
    with pytest.raises(InvalidInput, match=r"\.$"):
        parse(words)


@given(
    TEXT, st.integers(0, 40), st.integers(1, 12), st.sampled_from(["{}", '"{}"', "{}*"])
)
def test_what_is_found_is_always_proposed(
    text: str, start: int, length: int, shape: str
) -> None:
    """A text that matches holds every piece and every key, so an index of them misses nothing."""
    try:
        query = parse(shape.format(text[start : start + length].replace('"', "")))
    except InvalidInput:
        return
    folded = fold(text)
    if query.matches(folded):
        assert all(piece in folded for piece in query.pieces)
        assert {*query.keys, *query.implied} <= set(keys_of(folded))
        assert query.pieces or query.keys


@given(TEXT)
def test_folding_twice_changes_nothing(text: str) -> None:
    """A folded text is its own fold."""
    assert fold(fold(text)) == fold(text)


def test_a_snippet_shows_the_first_hit_in_one_line() -> None:
    """About 160 characters, white space joined, cut ends marked, and nothing else added."""
    text = "früh " * 100 + "the\n\n needle  <b>here</b> " + "spät " * 100
    shown = snippet(text, fold(text), parse("needle"))
    assert "the needle <b>here</b> spät" in shown
    assert shown.startswith("…")
    assert shown.endswith("…")
    assert len(shown) <= 164


def test_a_snippet_of_a_short_text_is_the_text() -> None:
    """Nothing is cut where nothing is too long."""
    assert snippet("Only this", fold("Only this"), parse("only")) == "Only this"


def test_a_snippet_is_right_where_folding_changes_lengths() -> None:
    """Letters that fold into several do not move the window away."""
    text = "ﬃ" * 400 + " needle " + "ß" * 400
    assert "needle" in snippet(text, fold(text), parse("needle"))

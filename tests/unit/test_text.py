"""Which characters may be stored or shown."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from tenax.text import (
    describe_error,
    has_hidden,
    is_storable,
    make_storable,
    replace_controls,
    replace_hidden,
    to_one_line,
)
from tenax.tools.files import walk

ALL = [chr(number) for number in range(sys.maxunicode + 1)]


def test_the_store_refuses_only_nul_and_lone_surrogates() -> None:
    """Everything else is a person's text and stays as it is."""
    refused = [char for char in ALL if not is_storable(char)]
    assert refused == ["\x00", *map(chr, range(0xD800, 0xE000))]
    assert make_storable("a\x00b\ud800") == "a\ufffdb\ufffd"


def test_controls_are_replaced_except_tab_and_line_feed() -> None:
    """The output of a program keeps its lines, and joined emoji."""
    replaced = {char for char in ALL if replace_controls(char) != char}
    controls = {char for char in ALL if unicodedata.category(char) in {"Cc", "Cs"}}
    assert replaced == controls - {"\t", "\n"}
    assert replace_controls("a\x1b[2Jb", "") == "a[2Jb"


def test_each_set_of_characters_holds_the_set_before() -> None:
    """A text that may be shown may also be stored."""
    hidden = {char for char in ALL if has_hidden(char)}
    controls = {char for char in ALL if replace_controls(char) != char}
    refused = {char for char in ALL if not is_storable(char)}
    assert refused < controls < hidden
    assert not any(char.isprintable() for char in hidden)


@pytest.mark.parametrize("char", ["\u202e", "\u2028", "\x1b", "\u200b", "\x9b", "\n"])
def test_hidden_characters_are_found_and_replaced(char: str) -> None:
    """Marks of direction, separators, controls and characters without width."""
    assert has_hidden(f"a{char}b")
    assert replace_hidden(f"a{char}b") == "a\ufffdb"
    assert not has_hidden(f"a{char}b", keep=char)
    assert replace_hidden(f"a{char}b", keep=char) == f"a{char}b"


def test_text_of_every_language_is_shown_as_it_is() -> None:
    """A space that does not break a line is no hidden character."""
    text = "Où\u00a0? 日本語\u3000\u0627\u0644 👍"
    assert replace_hidden(text) == text


def test_one_line_has_single_spaces_and_nothing_hidden() -> None:
    """Line breaks of every kind become spaces."""
    assert to_one_line(" a\r\nb\u2028c\td\x1b[1m ") == "a b c d\ufffd[1m"


def test_the_program_that_walks_folders_hides_the_same_characters() -> None:
    """The program cannot import the definition, so it repeats the definition."""
    for char in ALL:
        is_quoted = walk.shown(f"a{char}") != f"a{char}"
        assert is_quoted == has_hidden(char), hex(ord(char))


def test_an_error_of_foreign_code_is_one_short_line() -> None:
    """Also an error whose text cannot be made."""

    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert describe_error(ValueError("a\n  b")) == "ValueError: a b"
    assert describe_error(Silent()) == "Silent"
    assert len(describe_error(ValueError("x" * 1000))) < 250

"""What a person types into a search, and which texts it finds.

One definition for every engine: an index only proposes, `Query.matches` decides. Texts and queries are compared
folded: without case, without the accents of Latin, Greek and Cyrillic, and with the wide, narrow and joined forms of
a character made one.

    words            all of them occur, each also inside a longer word: `nal_v2` finds `final_v2`
    ab, x, C#        one or two characters are found as a word of their own, not inside others
    喜欢, 猫, 🙂      of any length, anywhere: these scripts put no spaces between words
    "two words"      these words as whole words, one after the other
    deploy*          words that begin so

Which characters make a word stands here and not in the language's tables: what an index was fed has to be told again,
character for character, when it is taken out, perhaps by another version of Python.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tenax.errors import InvalidInput
from tenax.parts import NO_TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Query", "fold", "has_word", "keys_of", "parse", "snippet", "trigrams"]

CHARS_MAX = 1000
TERMS_MAX = 32
GRAM = 3
"""A piece of a word that has at least this many characters is looked up by its trigrams."""

SNIPPET_CHARS = 160
_SNIPPET_LEAD = 50

_LETTERS = (
    "0-9a-z\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u0dff\u0f00-\u0fff\u10a0-\u10ff\u1200-\u177f"
    "\u1800-\u1fff\u2071\u207f\u2090-\u209c\u2100-\u218f\u2c00-\u2dff\ua000-\ua95f\ua980-\uabff\ufb00-\ufdff"
    "\ufe70-\ufefe\U00010000-\U0001afef\U0001b170-\U0001efff"
)
"""Characters of words that stand between spaces."""
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2600-\u27bf\u2e80-\u2fdf\u3005-\u3007\u3040-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U0001aff0-\U0001b16f\U0001f000-\U0001faff"
    "\U00020000-\U0003ffff"
)
"""Characters of scripts that are written without spaces (and Korean, whose particles hang on the word), and emoji."""

_WORDS = re.compile(f"[{_LETTERS}]+|[{_SPACELESS}]+")
_SHORT_ASCII = re.compile(r"\b[0-9a-z]{1,2}\b", re.ASCII)
_IS_LETTER = re.compile(f"[{_LETTERS}]")
_IS_SPACELESS = re.compile(f"[{_SPACELESS}]")
_BEFORE, _AFTER = f"(?<![{_LETTERS}])", f"(?![{_LETTERS}])"
_BETWEEN = f"[^{_LETTERS}{_SPACELESS}]"
_MARKS = re.compile("[\u0300-\u036f\ufe0e\ufe0f]")
_PIECES = re.compile(r'"([^"]*)"?|([^\s"]+)')


def fold(text: str) -> str:
    """The text as it is compared."""
    if text.isascii():
        return text.lower().replace("\x00", " ")
    plain = _MARKS.sub("", unicodedata.normalize("NFKD", NO_TEXT.sub(" ", text)))
    return unicodedata.normalize("NFC", plain).casefold()


def keys_of(folded: str) -> list[str]:
    """What an index holds of a folded text beside its trigrams: short words, and one and two spaceless characters."""
    if folded.isascii():  # most texts, and thrice as fast
        return list(dict.fromkeys(_SHORT_ASCII.findall(folded.replace("_", " "))))
    found: dict[str, None] = {}
    for word in _WORDS.findall(folded):
        if _IS_SPACELESS.match(word):
            found.update(dict.fromkeys(word))
            found.update((word[at : at + 2], None) for at in range(len(word) - 1))
        elif len(word) < GRAM:
            found[word] = None
    return list(found)


def trigrams(pieces: Iterable[str]) -> list[str]:
    """Every three characters in a row of these pieces, once."""
    return list(
        dict.fromkeys(
            each[at : at + GRAM]
            for each in pieces
            for at in range(len(each) - GRAM + 1)
        )
    )


def has_word(piece: str) -> bool:
    """Whether three letters in a row stand in it: what an index of letters can look up."""
    return any(
        len(word) >= GRAM and not _IS_SPACELESS.match(word)
        for word in _WORDS.findall(piece)
    )


class Query(NamedTuple):
    """A parsed query. A text that it finds holds every piece and every key; `tests` say the rest."""

    pieces: tuple[str, ...]
    """Strings of three characters or more that occur somewhere."""
    keys: tuple[str, ...]
    """Of `keys_of` the text."""
    tests: tuple[re.Pattern[str], ...]
    implied: tuple[str, ...] = ()
    """Keys that the pieces hold, for an index that has no trigrams of them."""

    def matches(self, folded: str) -> bool:
        return all(piece in folded for piece in self.pieces) and all(
            test.search(folded) for test in self.tests
        )

    def first(self, folded: str) -> int:
        """Where the first of its words stands in a text that it finds."""
        return min(
            (found.start() for test in self.tests if (found := test.search(folded))),
            default=0,
        )


def parse(words: object) -> Query:
    """What these words ask for. Raises InvalidInput; whatever is typed is looked for, never obeyed."""
    if not isinstance(words, str):
        raise InvalidInput(f"A search is for words, not for {type(words).__name__}.")
    if len(words) > CHARS_MAX:
        raise InvalidInput(
            f"A search takes at most {CHARS_MAX:,} characters, not {len(words):,}."
        )
    if NO_TEXT.search(words):
        raise InvalidInput(
            "The words hold a NUL or half of a surrogate pair, which is no text."
        )
    terms = [
        term
        for phrase, word in _PIECES.findall(words)
        if (term := _phrase(phrase) if not word else _word(word))
    ]
    if not terms:
        raise InvalidInput(
            "There is nothing to search for in this.",
            hint="give a word, or a part of one",
        )
    if len(terms) > TERMS_MAX:
        raise InvalidInput(
            f"A search takes at most {TERMS_MAX} words, not {len(terms)}.",
            hint="leave some out",
        )
    return Query(
        tuple(dict.fromkeys(piece for term in terms for piece in term.pieces)),
        tuple(dict.fromkeys(key for term in terms for key in term.keys)),
        tuple(test for term in terms for test in term.tests),
        tuple(dict.fromkeys(key for term in terms for key in term.implied)),
    )


def _word(word: str) -> Query | None:
    """A word as typed; None if there is nothing in it to look for."""
    begins = word.endswith("*")
    folded = fold(word.rstrip("*") if begins else word)
    if not folded:
        return None
    starts_with_letter = _IS_LETTER.match(folded) is not None
    if begins and starts_with_letter and len(folded) < GRAM:
        raise InvalidInput(
            f"{word} is too short: the beginning of a word has at least {GRAM} characters.",
            hint="type more of the word",
        )
    exact = re.escape(folded)
    if len(folded) >= GRAM:
        return Query(
            (folded,),
            (),
            (re.compile((_BEFORE if begins else "") + exact),),
            _spaceless_keys(folded),
        )
    keys = _spaceless_keys(folded) or tuple(keys_of(folded))
    if not keys:
        return None
    if not _IS_SPACELESS.search(folded):
        exact = _bounded(folded, exact)
    return Query((), keys, (re.compile(exact),))


def _phrase(phrase: str) -> Query | None:
    """Whole words, one after the other, whatever stands between them."""
    tokens = _WORDS.findall(fold(phrase))
    if not tokens:
        return None
    test = re.escape(tokens[0])
    for left, right in pairwise(tokens):
        gap = "+" if _IS_LETTER.match(left) and _IS_LETTER.match(right) else "*"
        test += f"{_BETWEEN}{gap}{re.escape(right)}"
    long = [each for each in tokens if len(each) >= GRAM]
    short = [each for each in tokens if len(each) < GRAM]
    implied = [key for each in long for key in _spaceless_keys(each)]
    bounded = re.compile(_bounded(tokens[0][0] + tokens[-1][-1], test))
    return Query(tuple(long), tuple(short), (bounded,), tuple(implied))


def _bounded(ends: str, test: str) -> str:
    """No letter may touch a letter at either end."""
    before = _BEFORE if _IS_LETTER.match(ends[0]) else ""
    return before + test + (_AFTER if _IS_LETTER.match(ends[-1]) else "")


def _spaceless_keys(folded: str) -> tuple[str, ...]:
    """The longest keys of the spaceless runs in a piece of a query."""
    keys: list[str] = []
    for run in _WORDS.findall(folded):
        if _IS_SPACELESS.match(run):
            keys += (
                [run]
                if len(run) == 1
                else [run[at : at + 2] for at in range(len(run) - 1)]
            )
    return tuple(keys)


def snippet(text: str, folded: str, query: Query) -> str:
    """About 160 characters of the text around the first of the words, in one line and without any markup."""
    at = query.first(folded)
    if len(text) != len(folded):  # folding joined or parted characters before it
        at = bisect_left(range(len(text)), at, key=lambda end: len(fold(text[:end])))
    start = max(0, at - _SNIPPET_LEAD)
    found = " ".join(text[start : start + 3 * SNIPPET_CHARS].split())
    more = len(found) > SNIPPET_CHARS or start + 3 * SNIPPET_CHARS < len(text)
    return (
        ("…" if start else "") + found[:SNIPPET_CHARS].rstrip() + ("…" if more else "")
    )

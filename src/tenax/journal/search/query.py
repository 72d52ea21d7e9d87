"""The syntax of a search, and the definition of a match.

All engines share the definition: an index only proposes messages, and `Query.matches` decides. Texts and queries are
folded before the comparison: case and the accents of Latin, Greek and Cyrillic are removed, and wide, narrow and joined
forms of a character become the same character.

    words            every word occurs, also inside longer words: `nal_v2` finds `final_v2`
    ab, x, C#        one or two characters match whole words only
    喜欢, 猫, 🙂      any length, anywhere: scripts without spaces between words
    "two words"      the whole words in sequence
    deploy*          words starting with `deploy`

The characters of words are listed here and not taken from Python's tables. To remove a text, an index needs exactly the
characters of the insertion, perhaps from another version of Python.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tenax.errors import InvalidInput
from tenax.text import is_storable, make_storable

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Query", "fold", "has_word", "keys_of", "parse", "snippet", "trigrams"]

CHARS_MAX = 1000
TERMS_MAX = 32
GRAM = 3
"""The minimum length of a part of a word for a lookup by trigrams."""

SNIPPET_CHARS = 160
_SNIPPET_LEAD = 50

_LETTERS = (
    "0-9a-z\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u0dff\u0f00-\u0fff\u10a0-\u10ff\u1200-\u177f"
    "\u1800-\u1fff\u2071\u207f\u2090-\u209c\u2100-\u218f\u2c00-\u2dff\ua000-\ua95f\ua980-\uabff\ufb00-\ufdff"
    "\ufe70-\ufefe\U00010000-\U0001afef\U0001b170-\U0001efff"
)
"""Characters of scripts with spaces between words."""
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2600-\u27bf\u2e80-\u2fdf\u3005-\u3007\u3040-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U0001aff0-\U0001b16f\U0001f000-\U0001faff"
    "\U00020000-\U0003ffff"
)
"""Characters of scripts without spaces between words, of Korean (particles are joined to words), and emoji."""

_WORDS = re.compile(f"[{_LETTERS}]+|[{_SPACELESS}]+")
_SHORT_ASCII = re.compile(r"\b[0-9a-z]{1,2}\b", re.ASCII)
_IS_LETTER = re.compile(f"[{_LETTERS}]")
_IS_SPACELESS = re.compile(f"[{_SPACELESS}]")
_BEFORE, _AFTER = f"(?<![{_LETTERS}])", f"(?![{_LETTERS}])"
_BETWEEN = f"[^{_LETTERS}{_SPACELESS}]"
_MARKS = re.compile("[\u0300-\u036f\ufe0e\ufe0f]")
_PIECES = re.compile(r'"([^"]*)"?|([^\s"]+)')


def fold(text: str) -> str:
    """Return the folded form of a text."""
    if text.isascii():
        return text.lower().replace("\x00", " ")
    plain = _MARKS.sub("", unicodedata.normalize("NFKD", make_storable(text, " ")))
    return unicodedata.normalize("NFC", plain).casefold()


def keys_of(folded: str) -> list[str]:
    """Return the keys of a folded text: short words, and single characters and pairs of scripts without spaces."""
    # Most texts are ASCII, and the pattern for ASCII is three times as fast.
    if folded.isascii():
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
    """Return the distinct trigrams of the pieces."""
    return list(
        dict.fromkeys(
            piece[at : at + GRAM]
            for piece in pieces
            for at in range(len(piece) - GRAM + 1)
        )
    )


def has_word(piece: str) -> bool:
    """Return whether a piece has three letters in a row, so that an index of letters can look the piece up."""
    return any(
        len(word) >= GRAM and not _IS_SPACELESS.match(word)
        for word in _WORDS.findall(piece)
    )


class Query(NamedTuple):
    """A parsed query. A matching text contains every piece and every key and passes every test."""

    pieces: tuple[str, ...]
    """Strings of at least three characters, anywhere in the text."""
    keys: tuple[str, ...]
    """Elements of `keys_of` the text."""
    tests: tuple[re.Pattern[str], ...]
    implied: tuple[str, ...] = ()
    """Keys contained in the pieces, for an index without trigrams of the pieces."""

    def matches(self, folded: str) -> bool:
        return all(piece in folded for piece in self.pieces) and all(
            test.search(folded) for test in self.tests
        )

    def first(self, folded: str) -> int:
        """Return the position of the first match in a matching text."""
        return min(
            (found.start() for test in self.tests if (found := test.search(folded))),
            default=0,
        )


def parse(words: object) -> Query:
    """Parse the words of a search. Raises `InvalidInput`. No input is ever passed on as an operator of an engine."""
    if not isinstance(words, str):
        raise InvalidInput(f"`words` must be a str, not {type(words).__name__}.")
    if len(words) > CHARS_MAX:
        raise InvalidInput(
            f"A search takes at most {CHARS_MAX:,} characters, not {len(words):,}."
        )
    if not is_storable(words):
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
            "The search contains no word.",
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
    """Parse a word. Return `None` for a word without searchable characters."""
    begins = word.endswith("*")
    folded = fold(word.rstrip("*") if begins else word)
    if not folded:
        return None
    starts_with_letter = _IS_LETTER.match(folded) is not None
    if begins and starts_with_letter and len(folded) < GRAM:
        raise InvalidInput(
            f"{word} is too short: the start of a word needs at least {GRAM} characters.",
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
    """Parse a phrase: whole words in sequence, with any separators in between."""
    tokens = _WORDS.findall(fold(phrase))
    if not tokens:
        return None
    test = re.escape(tokens[0])
    for left, right in pairwise(tokens):
        gap = "+" if _IS_LETTER.match(left) and _IS_LETTER.match(right) else "*"
        test += f"{_BETWEEN}{gap}{re.escape(right)}"
    long = [token for token in tokens if len(token) >= GRAM]
    short = [token for token in tokens if len(token) < GRAM]
    implied = [key for token in long for key in _spaceless_keys(token)]
    bounded = re.compile(_bounded(tokens[0][0] + tokens[-1][-1], test))
    return Query(tuple(long), tuple(short), (bounded,), tuple(implied))


def _bounded(ends: str, test: str) -> str:
    """Add tests that no letter adjoins a letter at either end."""
    before = _BEFORE if _IS_LETTER.match(ends[0]) else ""
    return before + test + (_AFTER if _IS_LETTER.match(ends[-1]) else "")


def _spaceless_keys(folded: str) -> tuple[str, ...]:
    """Return the longest keys of the runs without spaces in a piece of a query."""
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
    """Return about 160 characters of the text around the first match, on a single line."""
    at = query.first(folded)
    # Folding may have joined or split characters before the match.
    if len(text) != len(folded):
        at = bisect_left(range(len(text)), at, key=lambda end: len(fold(text[:end])))
    start = max(0, at - _SNIPPET_LEAD)
    found = " ".join(text[start : start + 3 * SNIPPET_CHARS].split())
    more = len(found) > SNIPPET_CHARS or start + 3 * SNIPPET_CHARS < len(text)
    return (
        ("…" if start else "") + found[:SNIPPET_CHARS].rstrip() + ("…" if more else "")
    )

"""Recall: find the memory entries about the subject of a message.

Entries are short, and people ask in other words. So a word of the query matches the same word, a word with a similar
spelling (an ending, a typo, a part of a longer word; no grammar of any language is needed), and a word of the same
topic of everyday life (`_RELATED`: with the list, 64 of the 80 questions in `bench/data/recall.toml` find their entry,
without the list 40). Scripts without spaces are matched by pairs of characters. As in BM25, a word found in fewer
entries weighs more. Stop words weigh nothing. An entry is recalled only if a good part of the query matches, because no
recall is better than a false recall. The module is pure.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from heapq import nlargest
from itertools import chain, islice
from math import ceil, log
from typing import NamedTuple

from tenax.journal.search.query import fold

__all__ = ["Match", "Recall"]

# An entry must reach a part of the query's weight and a part of the best score.
_ENOUGH = 0.33
_NEAR = 0.6
# The weight of a query word found in no entry: perhaps a synonym of a word in an entry, perhaps another subject.
_UNKNOWN = 0.7
# The score of a match between two words of the same topic.
_RELATED_SCORE = 0.8
# The weight of an entry's length: a longer entry ranks lower.
_LENGTH = 0.3
# With few entries, every word looks frequent. The weight of a word assumes at least this number of entries.
_ENTRIES_MIN = 100
# Of a long message, only the beginning and the end are searched, up to a number of words.
_CHARS = 1000
_WORDS_MAX = 64
# A long message has several subjects. So an entry must match a part of this number of rare words, not of the whole
# query.
_SUBJECTS_MAX = 6
# A shorter word can only have a plural ending.
_STEM = 4
# Words with the same root share this number of first characters, and this part of the longer word.
_START = 5
_ROOT = 0.55
# For a typo, two words must share this part of their trigrams.
_TYPO = 0.6

_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
# Vowels that are marks on a letter.
_MARKS = "\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
_LETTERS = rf"(?:[^\W_{_SPACELESS}]|[{_MARKS}])+"
_WORD = re.compile(rf"[{_SPACELESS}]+|{_LETTERS}(?:[-'\u2019]{_LETTERS})*")
_JOINT = re.compile("[-'\u2019]")
_POINTS = ".,;:!?()'\"\u201c\u201d\u201e"
_NUMBER = re.compile(r"[\d=]")
_IS_SPACELESS = re.compile(f"[{_SPACELESS}]")
_BETWEEN = re.compile(
    "[的了是在我你您他她们吗呢吧和什么哪谁怎几很はがをにでともへのか]+"
)
_ENDINGS = frozenset(
    ("s", "es", "d", "ed", "r", "er", "ers", "n", "en", "ing", "e", "t", "y")
)
_PLURALS = frozenset(("s", "es"))
# An ending of a word without its e: hike, hiking.
_AFTER_E = frozenset(("ing", "ed", "er", "ers"))

# fmt: off
_COMMON = frozenset(fold("""
    a about after afternoon all also always am an and any anything are as at away be because been before best but by can come
    could did do does doing done each else evening ever every find first for from get give go goes going good got had has have
    having he hello help her here him his how i if in into is it its just keep kind know last let like ll long look looks make
    many may me mine more morning most much must my myself need never new next night no not now number of often on once one
    only or other our out over own people please put re really recommend remember remind same say see she should show so some
    something sort still such suggest take tell than thank thanks that the their them then there these they thing things think
    this those time times to today tomorrow tonight too type up us use used user ve very want wants was way we well were what
    when where which while who whom whose why will with without would year years yes yesterday yet you your yours
    abend aber als am an auch auf aus bei bin bis da das dass dein dem den denn der des die diese dieser doch du ein eine einem einen
    einer er es für gibt guten haben habe hast hat heißt ich ihm ihn ihr im ist ja jetzt kann kannst kein keine keinen können man mein
    meine meinem meinen meiner meines mich mir mit morgen muss nach nein nicht noch nur ob oder ohne sehr sein seine sich sie sind soll
    über um und uns unser unsere vom von vor wann war warum was welche welchem welchen welcher welches wem wen wenn wer werden
    wie will wir wird wo zu zum zur
    au aux avec ce ces cette comment dans de du elle en est et il ils je la le les leur lui ma mais mes moi mon ne nos notre nous
    ou où par pas pour quand que quel quelle quels qui sa ses son sont sur ta tes toi ton tu un une votre vous
    al como con cual cuando del donde el ella eres es esta este los las mi mis muy o para pero por qué quién se ser si sin sobre
    soy su sus también tiene tengo una uno y ya yo
    aan ben bij dat deze dit een er geen haar heb heeft het hij hoe ik je jij jouw kan mij mijn naar niet nog nu om onze ons ook
    op te uit van voor waar waarom wanneer wat welk welke wie wij ze zich zij zijn""").split())
# A line is one topic. Words of one part mean the same. The first part also means the others, but the others do not mean
# one another: a pet may be a cat or a dog, but a cat is no dog.
_RELATED = """
    spouse partner married marry wedding / wife / husband
    child children kid / son boy / daughter girl
    parent / mother mum mom / father dad
    sibling / brother / sister
    job work employer employ company profession occupation office career living
    boss manager supervisor report
    live home house flat apartment address city town / move
    born birthday birth age
    name call
    doctor physician gp clinic practice
    pet animal vet / cat / dog
    medicine medication drug pill tablet dose
    ill sick disease operation surgery hospital health
    eat food diet meal dinner lunch / restaurant / vegetarian vegan meat
    drink / tea / coffee / beer wine alcohol
    favourite favorite prefer love enjoy
    afraid scared fear
    car vehicle drive
    bike bicycle cycle
    travel trip holiday vacation journey / hike / hotel stay sleep
    plane flight fly seat sit
    phone mobile smartphone
    computer / laptop notebook
    photo picture image
    pay paid cost price budget charge euro dollar
    earn salary income
    tax accountant adviser
    school class lesson / teacher teach / kindergarten nursery daycare
    language speak fluent / english / german / french / spanish
    instrument music play / piano / guitar / violin / orchestra band
    book novel read / author writer
    meet meeting appointment
    rubbish trash garbage bin
    answer reply response
    day weekday / monday / tuesday / wednesday / thursday / friday / saturday / sunday"""
_FILLERS = frozenset(("a", "an", "the", "is", "are", "am", "be", "do", "does", "i", "my", "user", "user's", "users", "their", "they",
                      "that", "also", "really", "very", "called", "named", "der", "das", "ein", "eine", "ist"))
# fmt: on
# By word: the name of the topic line, and the name of the part unless the word is in the first part.
_RELATIONS = {
    word: (f"={line}", f"={line}/{part}" if part else "")
    for line, parts in enumerate(_RELATED.split("\n"))
    for part, words in enumerate(parts.split("/"))
    for word in words.split()
}


class Match(NamedTuple):
    """A matching entry, and the matched part of the query, up to 1."""

    id: str
    score: float


class Recall:
    """The search index of `entries`, given as `(id, text)`. Of equal entries the first ranks higher."""

    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        self._ids: list[str] = []
        self._sizes: list[int] = []
        self._normalized: dict[tuple[str, ...], str] = {}
        self._entries: defaultdict[str, list[int]] = defaultdict(list)
        """The positions of the entries, by word and by relation."""
        self._words: defaultdict[str, list[str]] = defaultdict(list)
        """The words, by trigram."""
        for position, (name, text) in enumerate(entries):
            words = set(_words(text, index=True))
            self._ids.append(name)
            self._sizes.append(len(words))
            self._normalized.setdefault(_normalize(text), name)
            for word in words:
                self._entries[word].append(position)
        self._mean_size = sum(self._sizes) / (len(self._sizes) or 1) or 1
        for word in list(self._entries):
            for gram in _grams(word):
                self._words[gram].append(word)
            for relation in _relations(word):
                self._entries[relation] += self._entries[word]

    def find(self, query: str, limit: int = 5) -> list[Match]:
        """Return the entries about the subject of the query, best first. Often the list is empty."""
        if len(query) > 2 * _CHARS:
            query = f"{query[:_CHARS]} {query[-_CHARS:]}"
        scores: defaultdict[int, float] = defaultdict(float)
        total = 0.0
        for word in islice(dict.fromkeys(_words(query)), _WORDS_MAX):
            matches = self._match(word)
            weight = self._weight(len(matches))
            total += weight
            for position, score in matches.items():
                scores[position] += weight * score
        total = min(total, _SUBJECTS_MAX * self._weight(1))
        least = max(_ENOUGH * total, _NEAR * max(scores.values(), default=0))
        parts = {at: score / total for at, score in scores.items() if score >= least}

        def rank(position: int) -> tuple[float, int]:
            return parts[position] * self._shortness(position), -position

        best = nlargest(limit, parts, key=rank)
        return [Match(self._ids[at], min(parts[at], 1.0)) for at in best]

    def same(self, text: str) -> str | None:
        """Return the id of an entry with the same meaning, ignoring case, accents, punctuation, plurals and articles.

        Another word, number, name or order may change the meaning, so such a text is a new entry.
        """
        return self._normalized.get(_normalize(text))

    def _match(self, word: str) -> dict[int, float]:
        """Return the positions of the entries matching a word, with scores."""
        similar = dict.fromkeys(_relations(word, asked=True), _RELATED_SCORE)
        similar[word] = 1.0
        grams = chain.from_iterable(self._words.get(gram, ()) for gram in _grams(word))
        for other, count in Counter(grams).items():
            if count >= len(word) / 3:
                similar[other] = _similarity(word, other, count)
        found: dict[int, float] = {}
        # Sort by score, so that the best score of an entry is written last.
        for other in sorted(filter(similar.get, similar), key=similar.__getitem__):
            found.update(dict.fromkeys(self._entries.get(other, ()), similar[other]))
        return found

    def _weight(self, matches: int) -> float:
        """Return the weight of a word matched by a number of entries."""
        entries = max(len(self._ids), _ENTRIES_MIN)
        count = max(matches, 1)
        weight = log(1 + (entries - count + 0.5) / (count + 0.5))
        return weight if matches else weight * _UNKNOWN

    def _shortness(self, position: int) -> float:
        """Return BM25's factor for the length of a text."""
        return 1 / (2 - _LENGTH + _LENGTH * self._sizes[position] / self._mean_size)


def _words(text: str, *, index: bool = False) -> Iterator[str]:
    """Yield the significant words of a text. An index also gets every character of a script without spaces."""
    for found in _WORD.findall(fold(text)):
        if _IS_SPACELESS.match(found):
            for piece in filter(None, _BETWEEN.split(found)):
                yield from (piece[at : at + 2] for at in range(max(len(piece) - 1, 1)))
                if index:
                    yield from piece
            continue
        parts = _JOINT.split(found)
        for part in parts:
            if part not in _COMMON and (len(part) > 1 or len(parts) == 1):
                yield part
        # Compounds like e-mail and Wi-Fi are words too.
        if len(parts) > 1 and len(parts[-1]) > 1:
            yield "".join(parts)


def _grams(word: str) -> list[str]:
    """Return the trigrams of a word, and its first two characters.

    A number has no trigrams, because another number is another word.
    """
    if _NUMBER.search(word):
        return []
    padded = f" {word}"
    return [padded[at : at + 3] for at in range(len(word) - 1)]


def _similarity(one: str, other: str, shared_grams: int) -> float:
    """Return the similarity of the spelling of two words; 0 for different words."""
    if one == other:
        return 1.0
    short, long = sorted((one, other), key=len)
    rest = long.removeprefix(short)
    if len(short) < _STEM:
        return 0.9 if rest in _PLURALS else 0.0
    if rest in _ENDINGS or long.removeprefix(short.removesuffix("e")) in _AFTER_E:
        return 0.9
    root = max(_START, ceil(_ROOT * len(long)))
    if one[:root] == other[:root]:
        return 0.8
    similarity = 2 * shared_grams / (len(one) + len(other) - 2)
    if len(short) > _START and similarity >= _TYPO:
        return similarity
    return _TYPO if len(short) >= _START and short in long else 0.0


def _relations(word: str, *, asked: bool = False) -> tuple[str, ...]:
    """Return the relations of a word: for the index of an entry, or for the search if the word is `asked`."""
    stems = [word, re.sub("ies$", "y", word)]
    for ending in _ENDINGS:
        if word.endswith(ending):
            stem = word.removesuffix(ending)
            stems += [stem, f"{stem}e"]
    for stem in stems:
        if stem in _RELATIONS:
            line, part = _RELATIONS[stem]
            break
    else:
        return ()
    if asked:
        return line, part or f"{line}/"
    return (f"{line}/", part) if part else (line,)


def _normalize(text: str) -> tuple[str, ...]:
    """Return the words of a text in order, without parts that do not change the meaning."""
    words: list[str] = []
    for written in text.replace("\u2019", "'").replace("n't", " not").split():
        bare = written.strip(_POINTS)
        word = fold(bare)
        if not word or word in _FILLERS:
            continue
        # A name stays unchanged. So does the first word, because the first word may be a name.
        if words and bare.islower() and len(word) >= _STEM:
            word = word.removesuffix("s")
        words.append(word)
    return tuple(words or text.split())

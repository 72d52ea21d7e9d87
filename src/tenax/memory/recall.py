"""Recall: which remembered facts a message is about. Pure, and nothing is stored: the index is made of the facts.

Facts are short, and people ask in other words. So a word of the query is met by the same word, by one that is spelt much
the same (an ending, a slip, a part of a longer word: that needs no grammar of any language), or by one that stands for the
same side of everyday life (`_RELATED`: with it 64 of the 80 questions in `bench/data/recall.toml` find their fact, without 40).
Scripts without spaces are met by pairs of characters. Words weigh by how few facts they meet, after BM25; words that only
hold a sentence together weigh nothing. A fact is recalled if it meets a good part of what the query is about, and no other:
nothing recalled is better than something false.
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

_ENOUGH = 0.33  # of the query's weight a fact must meet,
_NEAR = 0.6  # and as much of what the best one meets
# a word that meets no fact: another word for one that does, perhaps, or another subject
_UNKNOWN = 0.7
_KIN = 0.8  # how well a word is met by one of the same relation
_LENGTH = 0.3  # how much the length of a fact counts against it
_FACTS_MIN = 100  # words are no less rare because there are few facts yet
_CHARS = 1000  # of a long message its beginning and its end are looked at,
_WORDS_MAX = 64  # of these so many words,
# and it is about several things: a fact must meet enough of so many rare words, not of all
_SUBJECTS_MAX = 6
_STEM = 4  # a word of fewer characters has no ending but that of a plural
_START = 5  # words of one root begin with so many the same, and with
_ROOT = 0.55  # this part of the longer one
# of the characters of two words, in threes, that must be the same for a slip of the pen
_SPELT = 0.6

_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
# vowels, as marks on a letter
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
_AFTER_E = frozenset(("ing", "ed", "er", "ers"))  # hike, hiking

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
# A line is one side of life. Words of one part stand for each other; the first part stands for the others too, not they
# for one another: a pet may be a cat or a dog, but a cat is no dog.
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
# of a word: the name of its line, and of its part if that is not the first
_RELATIONS = {
    word: (f"={line}", f"={line}/{part}" if part else "")
    for line, parts in enumerate(_RELATED.split("\n"))
    for part, words in enumerate(parts.split("/"))
    for word in words.split()
}


class Match(NamedTuple):
    """A fact that the query is about, and how much of the query it meets: 1 is all of it."""

    id: str
    score: float


class Recall:
    """The index of these facts, `(id, text)`. Of equals the first is the better one."""

    def __init__(self, facts: Iterable[tuple[str, str]]) -> None:
        self._ids: list[str] = []
        self._sizes: list[int] = []
        self._said: dict[tuple[str, ...], str] = {}
        # by word and by relation
        self._facts: defaultdict[str, list[int]] = defaultdict(list)
        # by three of their characters
        self._words: defaultdict[str, list[str]] = defaultdict(list)
        for at, (name, text) in enumerate(facts):
            words = set(_words(text, index=True))
            self._ids.append(name)
            self._sizes.append(len(words))
            self._said.setdefault(_said(text), name)
            for word in words:
                self._facts[word].append(at)
        self._mean = sum(self._sizes) / (len(self._sizes) or 1) or 1
        for word in list(self._facts):
            for gram in _grams(word):
                self._words[gram].append(word)
            for relation in _relations(word):
                self._facts[relation] += self._facts[word]

    def find(self, query: str, limit: int = 5) -> list[Match]:
        """The facts that the query is about, best first. Often there are none."""
        if len(query) > 2 * _CHARS:
            query = f"{query[:_CHARS]} {query[-_CHARS:]}"
        scores: defaultdict[int, float] = defaultdict(float)
        whole = 0.0
        for word in islice(dict.fromkeys(_words(query)), _WORDS_MAX):
            met = self._meet(word)
            weight = self._weight(len(met))
            whole += weight
            for at, well in met.items():
                scores[at] += weight * well
        whole = min(whole, _SUBJECTS_MAX * self._weight(1))
        least = max(_ENOUGH * whole, _NEAR * max(scores.values(), default=0))
        enough = {at: score / whole for at, score in scores.items() if score >= least}
        ranked = nlargest(
            limit, enough, key=lambda at: (enough[at] * self._short(at), -at)
        )
        return [Match(self._ids[at], min(enough[at], 1.0)) for at in ranked]

    def same(self, text: str) -> str | None:
        """The fact that says this already, whatever its case, accents, points, plurals and articles.

        Another word, number, name or order, or one more or less, may make it another fact: then it is one.
        """
        return self._said.get(_said(text))

    def _meet(self, word: str) -> dict[int, float]:
        """The facts that meet a word, and how well."""
        alike = dict.fromkeys(_relations(word, asked=True), _KIN) | {word: 1.0}
        shared = Counter(
            chain.from_iterable(self._words.get(gram, ()) for gram in _grams(word))
        )
        least = len(word) / 3
        alike |= {
            other: _alike(word, other, count)
            for other, count in shared.items()
            if count >= least
        }
        found: dict[int, float] = {}
        for other in sorted(filter(alike.get, alike), key=alike.__getitem__):
            found.update(dict.fromkeys(self._facts.get(other, ()), alike[other]))
        return found

    def _weight(self, met: int) -> float:
        """How much a word tells that so many facts meet."""
        facts, count = max(len(self._ids), _FACTS_MIN), max(met, 1)
        return log(1 + (facts - count + 0.5) / (count + 0.5)) * (1 if met else _UNKNOWN)

    def _short(self, at: int) -> float:
        """BM25's factor for the length of a text."""
        return 1 / (2 - _LENGTH + _LENGTH * self._sizes[at] / self._mean)


def _words(text: str, *, index: bool = False) -> Iterator[str]:
    """What a text is about. Of a script without spaces an index has each character too."""
    for found in _WORD.findall(fold(text)):
        if not _IS_SPACELESS.match(found):
            parts = _JOINT.split(found)
            yield from (
                part
                for part in parts
                if part not in _COMMON and (len(part) > 1 or len(parts) == 1)
            )
            if len(parts) > 1 and len(parts[-1]) > 1:
                yield "".join(parts)  # e-mail, Wi-Fi
            continue
        for piece in filter(None, _BETWEEN.split(found)):
            yield from (piece[at : at + 2] for at in range(max(len(piece) - 1, 1)))
            if index:
                yield from piece


def _grams(word: str) -> list[str]:
    """Every three characters in a row, and the first two; of a number nothing, for another number is another one."""
    padded = f" {word}"
    return (
        []
        if _NUMBER.search(word)
        else [padded[at : at + 3] for at in range(len(word) - 1)]
    )


def _alike(one: str, other: str, shared: int) -> float:
    """How much two words, which share so many of their `_grams`, are spelt like one; 0 if they are two."""
    short, long = sorted((one, other), key=len)
    rest, start = long.removeprefix(short), max(_START, ceil(_ROOT * len(long)))
    if one == other:
        return 1.0
    if len(short) < _STEM:
        return 0.9 if rest in _PLURALS else 0.0
    if rest in _ENDINGS or long.removeprefix(short.removesuffix("e")) in _AFTER_E:
        return 0.9
    if one[:start] == other[:start]:
        return 0.8
    spelt = 2 * shared / (len(one) + len(other) - 2)
    if len(short) > _START and spelt >= _SPELT:
        return spelt
    return _SPELT if len(short) >= _START and short in long else 0.0


def _relations(word: str, *, asked: bool = False) -> tuple[str, ...]:
    """Under which relations a fact with this word is kept, or looked for when it is asked about."""
    stems = [word, re.sub("ies$", "y", word)]
    stems += [
        word.removesuffix(end) + e
        for end in _ENDINGS
        if word.endswith(end)
        for e in ("", "e")
    ]
    found = next((_RELATIONS[stem] for stem in stems if stem in _RELATIONS), None)
    if found is None:
        return ()
    line, part = found
    if asked:
        return line, part or f"{line}/"
    return (f"{line}/", part) if part else (line,)


def _said(text: str) -> tuple[str, ...]:
    """What must be the same for two texts to say the same: the words in order, without what changes nothing."""
    said: list[str] = []
    for each in text.replace("\u2019", "'").replace("n't", " not").split():
        word = fold(bare := each.strip(_POINTS))
        if (
            word and word not in _FILLERS
        ):  # a name stays as it is, and so does the first word, which may be one
            said.append(
                word.removesuffix("s")
                if said and bare.islower() and len(word) >= _STEM
                else word
            )
    return tuple(said or text.split())

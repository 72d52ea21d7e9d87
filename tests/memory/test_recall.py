"""Recall finds what a message is about, in other words and any language, and otherwise nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenax.memory.recall import Recall

SET = Path(__file__).parents[2] / "bench" / "data" / "recall.toml"
LIFE = [
    ("spouse", "Is married to Joris, who is a physiotherapist."),
    ("boss", "Reports to Saskia de Wit."),
    ("pill", "Takes levothyroxine every morning."),
    ("father", "Father Karl died in 2019."),
    ("car", "Das Auto ist ein blauer Skoda, Baujahr 2018."),
    ("tyres", "Die Winterreifen lagern in der Garage van Dijk."),
    ("hike", "Is planning a hike along the Lechweg in July."),
    ("guests", "The Wi-Fi for guests is called gracht."),
    ("friend", "Best friend Annelies moved to Lisbon."),
    ("key", "The spare key is with the neighbour."),
    ("cheese", "Préfère le fromage de chèvre."),
    ("moscow", "Живёт в Москве рядом."),
    ("cat", "养了一只黑猫。名字叫咪咪。"),
    ("tea", "抹茶アイスが好きです。"),
    ("seoul", "서울에서 개발자로 일한다."),
    ("hindi", "मेरी बहन दिल्ली में रहती है।"),
    ("arabic", "يعمل مهندسا في القاهرة."),
]


def found(query: str, facts: list[tuple[str, str]] = LIFE) -> list[str]:
    return [each.id for each in Recall(facts).find(query)]


@pytest.mark.parametrize(
    ("query", "fact"),
    [
        ("Where are we hiking?", "hike"),
        ("Who are the neighbours with our keys?", "key"),
        ("Which wifi can a guest use?", "guests"),
        ("Where does Anelies live?", "friend"),
        ("Wo sind die Reifen?", "tyres"),
        ("What does my husband do?", "spouse"),
        ("Who is my manager?", "boss"),
        ("quel FROMAGE ou chevre", "cheese"),
        ("кто в Москва?", "moscow"),
        ("黑猫叫什么", "cat"),
        ("猫", "cat"),
        ("アイスは", "tea"),
        ("서울에 있는 개발자", "seoul"),
        ("दिल्ली में कौन?", "hindi"),
        ("القاهرة", "arabic"),
    ],
)
def test_a_fact_is_found_in_other_words(query: str, fact: str) -> None:
    """Endings, slips, parts of a word, related words, accents and scripts do not stand between."""
    assert found(query)[:1] == [fact]


@pytest.mark.parametrize(
    "query",
    ["", " ", "?!", "What is it that you can do for me?", "Good morning!", "Explain congestion control.", "天气怎么样", "=1", "\ud800",
     "When does my mother arrive?", "Something of 2017", "Ein Boot"],
)  # fmt: skip
def test_nothing_is_found_that_is_not_asked_about(query: str) -> None:
    """No words, common words, other subjects, a sibling of a related word, and another number find nothing."""
    assert found(query) == []


def test_the_best_comes_first_and_no_more_than_asked_for() -> None:
    """A fact that meets more of the query stands before one that meets less; of equals the first given does."""
    facts = [
        ("a", "Likes green tea"),
        ("b", "Likes tea from Assam"),
        ("c", "Likes tea from Assam"),
        ("d", "Likes Assam"),
    ]
    matches = Recall(facts).find("tea from Assam", limit=2)
    assert [match.id for match in matches] == ["b", "c"]
    assert matches[0].score == pytest.approx(1)
    assert Recall([]).find("tea") == []


def test_a_rare_word_tells_more_than_one_that_many_facts_have() -> None:
    """A word of every fact adds nothing to choose by."""
    facts = [
        (f"{n}", f"Project Otter, part {word}")
        for n, word in enumerate(["pumps", "valves", "gauges"])
    ]
    assert found("the valves of Otter", facts)[0] == "1"


def test_a_long_message_is_looked_at_in_bounds() -> None:
    """What it says at its end is found, and its length costs no more than that of a shorter one."""
    noise = "".join(
        f"wort{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)} "
        for n in range(15_000)
    )
    facts = [("x", "The boiler of the greenhouse needs a new valve from Honeywell")]
    assert found(
        f"{'Well. ' * 300} the greenhouse, its boiler and the Honeywell valve", facts
    ) == ["x"]
    assert found(noise, facts) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Likes tea", "likes  TEA."),
        ("Likes tea", "The user likes tea"),
        ("Prefers short answers", "User prefers a short answer"),
        ("Café Zürich is the favourite", "Cafe Zurich is the favourite!"),
        ("Doesn't like tea", "does not like tea"),
        ("Has a cat called Mokka", "Has a cat named Mokka"),
        ("喜欢茶。", "喜欢茶。"),
    ],
)
def test_what_is_said_again_is_the_same(one: str, other: str) -> None:
    """Case, accents, points, articles and plurals do not make another fact."""
    assert Recall([("a", one)]).same(other) == "a"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Likes tea", "Does not like tea"),
        ("Likes tea", "Never likes tea"),
        ("Likes tea", "Likes green tea"),
        ("Born on 14 May 1987", "Born on 15 May 1987"),
        ("Pays 2.1 percent", "Pays 21 percent"),
        ("Is at -5 degrees", "Is at 5 degrees"),
        ("Writes C++", "Writes C#"),
        ("Simon likes tea", "Simone likes tea"),
        ("Adam likes tea", "Adams likes tea"),
        ("Works with Adam", "Works with Adams"),
        ("Anna loves Bert", "Bert loves Anna"),
        ("Moved from Berlin to Paris", "Moved from Paris to Berlin"),
        ("Was a teacher", "Is a teacher"),
        ("喜欢茶", "不喜欢茶"),
        ("?", "!"),
    ],
)
def test_what_says_something_else_is_not_the_same(one: str, other: str) -> None:
    """No, another number, name, date, order or time, and a word more make another fact."""
    assert Recall([("a", one)]).same(other) is None
    assert Recall([("a", other)]).same(one) is None


@given(st.lists(st.text(max_size=40), max_size=8), st.text(max_size=40))
def test_any_text_can_be_kept_and_asked_for(texts: list[str], query: str) -> None:
    """Nothing breaks it; scores lie between 0 and 1; every text is the same as itself."""
    recall = Recall((str(n), text) for n, text in enumerate(texts))
    scores = [each.score for each in recall.find(query)]
    assert all(0 < score <= 1 for score in scores)
    assert len(scores) <= 5
    for text in texts:
        same = recall.same(text)
        assert same is not None
        assert texts[int(same)] == text or recall.same(texts[int(same)]) == same


def test_what_was_measured_stays() -> None:
    """Of the set's questions at least as many find their fact, and no more find something false, than in docs/BENCHMARKS.md."""
    told = tomllib.loads(SET.read_text())
    recall = Recall(
        (name, text) for facts in told["told"].values() for name, text in facts.items()
    )
    asked = [each for part in ("first", "second") for each in told["questions"][part]]
    assert len(asked) == 100
    names = [
        (fact, [each.id for each in recall.find(question)]) for fact, question in asked
    ]
    assert sum(fact in ids for fact, ids in names if fact) >= 64
    assert sum(bool(ids) for fact, ids in names if not fact) <= 9

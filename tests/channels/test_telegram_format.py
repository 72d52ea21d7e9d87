"""Markdown as messages of Telegram: texts with entities, cut to the size of a message."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenax.channels.telegram.format import Body, Entity, plain_pieces, render_pieces
from tests.support.telegram import ADA, FakeTelegram, utf16_length

LIMIT = 4096
Accept = Callable[[Body], None]


def shown(markdown: str) -> str:
    """Return the text of the only message."""
    [body] = render_pieces(markdown)
    return body.text


def parts(body: Body) -> list[tuple[str, str]]:
    """Return the kind and the text of every entity of a message."""
    units = body.text.encode("utf-16-le")
    found = []
    for entity in body.entities:
        part = units[2 * entity.offset : 2 * (entity.offset + entity.length)]
        found.append((entity.type, part.decode("utf-16-le")))
    return found


def formatted(markdown: str) -> list[tuple[str, str]]:
    """Return the kind and the text of every entity of the only message."""
    [body] = render_pieces(markdown)
    return parts(body)


def links(markdown: str) -> list[str]:
    """Return the addresses of the links of the only message."""
    [body] = render_pieces(markdown)
    return [entity.url for entity in body.entities if entity.type == "text_link"]


@pytest.fixture(scope="module")
def accept() -> Iterator[Accept]:
    """Send a body to the fake Bot API, and assert that it is taken as it is."""
    with FakeTelegram() as telegram:
        telegram.add_person(ADA)
        host = urlsplit(telegram.url).netloc
        connection = http.client.HTTPConnection(host, timeout=60)

        def send(body: Body) -> None:
            entities = []
            for entity in body.entities:
                found = {"type": entity.type, "offset": entity.offset}
                more = {"url": entity.url, "language": entity.language}
                entities.append({**found, "length": entity.length, **more})
            request = {"chat_id": ADA.id, "text": body.text, "entities": entities}
            connection.request(
                "POST",
                f"/bot{telegram.token}/sendMessage",
                json.dumps(request),
                {"content-type": "application/json"},
            )
            answer = json.loads(connection.getresponse().read())
            assert answer["ok"], answer["description"]
            # Telegram removes the marks of the writing direction and some combining lines.
            removed = "[\u202a-\u202e\u030a\u0333\u033f]"
            text = re.sub(removed, "", body.text).replace("\t", " ")
            assert answer["result"]["text"] == text

        yield send
        connection.close()


# -- what a person sees ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("markdown", "text", "entities"),
    [
        ("Hello", "Hello", []),
        ("**a** *b* ~~c~~ `d`", "a b c d",
         [("bold", "a"), ("italic", "b"), ("strikethrough", "c"), ("code", "d")]),
        ("***both***", "both", [("bold", "both"), ("italic", "both")]),
        ("# Title\n\ntext", "Title\n\ntext", [("bold", "Title")]),
        ("one\ntwo  \nthree", "one\ntwo\nthree", []),
        ("\\*no\\* &amp; &lt;b&gt; <b>x</b>", "*no* & <b> <b>x</b>", []),
        ("a\n\n---\n\nb", "a\n\n———\n\nb", []),
        ("> one\n> two\n\nthree", "one\ntwo\n\nthree", [("blockquote", "one\ntwo")]),
        ("> > deep\n\nend", "deep\n\nend", [("blockquote", "deep")]),
        ("**a `b` c**", "a b c", [("bold", "a "), ("code", "b"), ("bold", " c")]),
        ("2 * 3 * 4 and snake_case_name", "2 * 3 * 4 and snake_case_name", []),
        ("**not closed", "**not closed", []),
        ("[^1] note\n\n[^1]: Source", "[^1] note\n\n[^1]: Source", []),
    ],
)  # fmt: skip
def test_markdown_becomes_text_with_entities(
    markdown: str, text: str, entities: list[tuple[str, str]]
) -> None:
    """The signs of Markdown disappear, and what is no Markdown stays as written."""
    [body] = render_pieces(markdown)
    assert body.text == text
    assert parts(body) == entities


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("- a\n- b", "• a\n• b"),
        ("- a\n  - b\n    1. c\n    2. d\n- e", "• a\n  • b\n    1. c\n    2. d\n• e"),
        ("3. a\n4. b", "3. a\n4. b"),
        ("1) a", "1) a"),
        ("- [ ] open\n- [x] done", "☐ open\n☑ done"),
        ("1. [x] done", "1. ☑ done"),
        ("- a\n\n  more\n- b", "• a\n  more\n• b"),
        ("-\n- b", "•\n• b"),
        ("text\n- a\n\nend", "text\n\n• a\n\nend"),
    ],
)
def test_lists_keep_their_shape(markdown: str, text: str) -> None:
    """Markers and indentation show how lists are nested."""
    assert shown(markdown) == text


def test_code_keeps_its_lines_and_names_its_language() -> None:
    """Code is a block with the name of its language, its indentation and its blank lines."""
    [body] = render_pieces("```python\nif x:\n\tif y:\n\n        go()\n```")
    code = "if x:\n    if y:\n\n        go()"
    assert body == Body(code, (Entity("pre", 0, len(code), language="python"),))


@pytest.mark.parametrize(
    "markdown", ["```py\nx = 1", "~~~py\nx = 1\n~~~", "```py\nx = 1\n``"]
)
def test_code_that_is_still_growing_is_code(markdown: str) -> None:
    """A fence without its end is a fence."""
    [body] = render_pieces(markdown)
    assert body.entities[0].type == "pre"
    assert body.entities[0].language == "py"


def test_code_in_a_list_and_in_a_quote_is_code() -> None:
    """The indentation of the list is no part of the code."""
    found = formatted("- a\n\n  ```\n  x\n    y\n  ```\n\n> b\n> ```\n> z\n> ```")
    assert ("pre", "x\n  y") in found
    assert ("pre", "z") in found
    assert ("blockquote", "b\n\nz") in found


def test_a_table_is_drawn_with_columns() -> None:
    """A table that fits a phone has columns of equal width, wide letters counted twice."""
    markdown = "| Name | Price |\n|------|------:|\n| Tee 茶 | 3 |\n| **Kaffee** | 12 |"
    assert formatted(markdown) == [
        ("pre", "Name   | Price\n-------|------\nTee 茶 |     3\nKaffee |    12")
    ]


def test_a_wide_table_is_a_list_with_the_names_of_its_columns() -> None:
    """Too wide for a phone: every row becomes an item, and its links and styles stay."""
    wide = "long words " * 8
    [body] = render_pieces(
        f"| City | Notes |\n|-|-|\n| Rome | {wide}|\n| [Bonn](https://bonn.example) | **x** |"
    )
    assert body.text == (
        f"• City: Rome\n  Notes: {wide.strip()}\n• City: Bonn\n  Notes: x"
    )
    assert parts(body) == [("text_link", "Bonn"), ("bold", "x")]


@pytest.mark.parametrize(
    ("markdown", "found"),
    [
        ("so $x_1^2$ is", ("code", "x_1^2")),
        ("so \\(a + b\\) is", ("code", "a + b")),
        ("so $$E = mc^2$$ is", ("code", "E = mc^2")),
        ("$$\n\\frac{a}{b}\n= c\n$$", ("pre", "\\frac{a}{b}\n= c")),
        ("\\[\nx = *y* + _z_\n\\]", ("pre", "x = *y* + _z_")),
    ],
)
def test_math_is_shown_as_it_is_written(markdown: str, found: tuple[str, str]) -> None:
    """A formula is code, so its stars and lines are no formatting."""
    assert formatted(markdown) == [found]


@pytest.mark.parametrize(
    "text", ["It costs $5 or $6.", "echo $HOME and $USER", "a \\$5 bill and $", "$$"]
)
def test_dollars_are_no_math(text: str) -> None:
    """Prices and variables stay text."""
    assert formatted(text) == []
    assert shown(text) == text.replace("\\$", "$")


# -- links -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example",
        "http://a.example:8080/p?q=1#f",
        "HTTPS://A.EXAMPLE/x",
        "tg://resolve?domain=telegram",
        "https://xn--mnchen-3ya.example/%20",
    ],
)
def test_a_web_address_is_a_link(url: str, accept: Accept) -> None:
    """The text can be tapped, and the address is not shown."""
    [body] = render_pieces(f"see [the page]({url})")
    assert body.text == "see the page"
    assert links(f"see [the page]({url})") == [url]
    accept(body)


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "tg://user?id=1",
        "TG://USER?id=1",
        "ftp://a.example",
        "http://localhost:8000/x",
        "http://[::1]/",
        "http://a.example:0/",
        "http://a.example:99999/",
        "https://a..example/",
        "/relative",
        "#part",
        "../up.md",
        "https://a.example/" + "x" * 3000,
    ],
)
def test_any_other_address_is_only_text(url: str, accept: Accept) -> None:
    """Telegram refuses the address, or it leads to harm: it stands behind the text, to be seen."""
    [body] = render_pieces(f"see [the page]({url})")
    assert body.text == f"see the page ({url})"
    assert body.entities == ()
    accept(body)


@pytest.mark.parametrize(
    ("markdown", "text", "urls"),
    [
        ("<https://a.example>", "https://a.example", ["https://a.example"]),
        ("[](https://a.example)", "https://a.example", ["https://a.example"]),
        ("[mail](mailto:ada@a.example)", "mail (ada@a.example)", []),
        ("<ada@a.example>", "ada@a.example", []),
        ("![a cat](https://a.example/c.png)", "🖼 a cat", ["https://a.example/c.png"]),
        ("![](cat.png)", "🖼 image (cat.png)", []),
        ("[`code`](https://a.example)", "code", ["https://a.example"]),
        ("[a\n\nb](https://a.example)", "[a\n\nb](https://a.example)", []),
    ],
)
def test_other_links_and_pictures_are_readable(
    markdown: str, text: str, urls: list[str]
) -> None:
    """A link without a text shows its address, a picture its description."""
    assert shown(markdown) == text
    assert links(markdown) == urls


# -- offsets -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before",
    ["🙂", "👨‍👩‍👧‍👦", "🇩🇪", "漢字", "e\u0301", "\U0001d54f", "- 🙂", "> 🙂", "| 🙂 |"],
)
def test_offsets_count_as_telegram_counts(before: str, accept: Accept) -> None:
    """An emoji before a bold word moves the entity by its UTF-16 units."""
    [body] = render_pieces(f"{before} **bold 🙂** `x`")
    assert parts(body)[-2:] == [("bold", "bold 🙂"), ("code", "x")]
    accept(body)


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\ud800", "\r\n", "\u2028", "\u202e"])
def test_unusual_characters_do_no_harm(char: str, accept: Accept) -> None:
    """Control characters, half surrogate pairs and foreign line ends never make a message invalid."""
    [body] = render_pieces(f"a{char}**b{char}c** `d`")
    assert [kind for kind, _ in parts(body)] == ["bold", "code"]
    accept(body)


@pytest.mark.parametrize(
    "markdown",
    ["", " \n\t\n", "\u200b\u2060", "[]()", "```\n```", "```\n \n```",
     "\u2800", "> ", "**\u200b**"],
)  # fmt: skip
def test_nothing_visible_is_no_message(markdown: str) -> None:
    """Telegram refuses a message without visible characters."""
    assert render_pieces(markdown) == []
    assert plain_pieces(markdown.strip("[]()`>* \n")) == []


# -- cuts ------------------------------------------------------------------------------


def paragraph(number: int, words: int = 60) -> str:
    return f"Paragraph {number} " + "with some words " * words + "ends here."


def test_a_long_answer_is_cut_between_blocks() -> None:
    """No paragraph that fits a message is torn apart, and nothing is lost."""
    paragraphs = [paragraph(number) for number in range(12)]
    found = render_pieces("\n\n".join(paragraphs))
    assert len(found) == 3
    assert [text for body in found for text in body.text.split("\n\n")] == paragraphs
    assert all(utf16_length(body.text) <= LIMIT for body in found)


def test_a_heading_stays_with_its_text() -> None:
    """A heading at the end of a message goes with what follows."""
    found = render_pieces(f"{paragraph(1, 240)}\n\n# Part two\n\n{paragraph(2)}")
    assert [body.text.partition("\n")[0] for body in found][1] == "Part two"
    assert "Part two" not in found[0].text


def test_code_that_fits_a_message_is_never_cut() -> None:
    """Code goes to the next message as a whole."""
    code = "\n".join(f"line_{number} = {number}" for number in range(150))
    found = render_pieces(f"{paragraph(1, 150)}\n\n```py\n{code}\n```\n\nend")
    assert len(found) == 2
    assert ("pre", code) in parts(found[1])


def test_longer_code_is_cut_at_lines_and_each_part_is_code() -> None:
    """The fence is repeated with its language, a cut is at the end of a line, and the parts make up the code."""
    code = "\n".join(f"    line_{number} = '{number}🙂'" for number in range(900))
    found = render_pieces(f"Look:\n\n```py\ndef f():\n{code}\n```\n\nend")
    codes = [body for body in found if body.text not in {"Look:", "end"}]
    assert len(codes) >= 3
    for body in codes:
        [entity] = body.entities
        assert (entity.type, entity.language, entity.offset) == ("pre", "py", 0)
    lines = [line.strip() for body in codes for line in parts(body)[0][1].split("\n")]
    assert lines == ["def f():", *(line.strip() for line in code.split("\n"))]


def test_code_is_cut_between_its_parts_where_it_can_be() -> None:
    """A cut before an unindented line keeps a function whole."""
    function = "def f{0}():\n" + "    pass\n" * 40 + "\n"
    code = "".join(function.format(number) for number in range(30))
    found = render_pieces(f"```py\n{code}```")
    assert len(found) > 2
    assert all(body.text.startswith("def f") for body in found)


def test_a_long_paragraph_is_cut_after_a_sentence() -> None:
    """A style across the cut goes on in the next message."""
    sentences = [f"This is sentence {number} of many." for number in range(400)]
    found = render_pieces(f"**{' '.join(sentences)}**")
    assert len(found) > 2
    assert all(body.text.endswith(".") for body in found)
    assert all(parts(body) == [("bold", body.text)] for body in found)
    assert " ".join(body.text for body in found) == " ".join(sentences)


def test_a_long_link_stays_a_link_on_both_sides_of_a_cut(accept: Accept) -> None:
    """Each part leads to the same address."""
    found = render_pieces(f"[{'word ' * 1000}](https://a.example)")
    assert len(found) == 2
    for body in found:
        assert [entity.url for entity in body.entities] == ["https://a.example"]
        accept(body)


@pytest.mark.parametrize("char", ["a", "🙂", "👨‍👩‍👧‍👦", "🇩🇪", "e\u0301", "👍🏽"])
def test_a_text_without_spaces_is_cut_between_visible_characters(char: str) -> None:
    """No emoji, flag or accent is torn apart."""
    text = char * 5000
    found = render_pieces(text)
    assert "".join(body.text for body in found) == text
    assert all(len(body.text) % len(char) == 0 for body in found)
    assert all(LIMIT - 30 < utf16_length(body.text) <= LIMIT for body in found[:-1])


def test_a_message_has_at_most_a_hundred_entities(accept: Accept) -> None:
    """Telegram ignores the entities after the hundredth, so a new message begins before."""
    found = render_pieces(" ".join(f"**b{number}**" for number in range(250)))
    assert sum(len(body.entities) for body in found) == 250
    assert all(len(body.entities) <= 100 for body in found)
    for body in found:
        accept(body)


def test_a_quote_goes_on_in_the_next_message() -> None:
    """Each message has the part of the quote as a quote."""
    quoted = "\n>\n".join(f"> {paragraph(number)}" for number in range(8))
    found = render_pieces(f"{quoted}\n\nend")
    assert len(found) == 2
    assert all(body.entities[0].type == "blockquote" for body in found)
    assert ("blockquote", "end") not in parts(found[1])


def test_hostile_markdown_is_rendered_in_bounded_time_and_size() -> None:
    """Deep nesting and unclosed brackets lose no text."""
    for text in (
        "> " * 500 + "deep",
        "[" * 5000,
        "- " * 500 + "deep",
        "*a **b " * 2000,
    ):
        found = "".join(body.text for body in render_pieces(text))
        assert found.count("deep") == text.count("deep")
        assert found.count("[") == text.count("[")


def test_a_very_long_text_is_complete() -> None:
    """Beyond the bound of the parser the text is shown as written."""
    paragraphs = [paragraph(number, 10) for number in range(1500)]
    found = render_pieces("\n\n".join(paragraphs))
    words = " ".join(body.text for body in found).split()
    assert words == " ".join(paragraphs).split()


def test_a_plain_text_has_no_formatting() -> None:
    """The signs of Markdown stay, and long texts are cut."""
    [body] = plain_pieces("**a** [b](https://a.example)\n# c")
    assert body == Body("**a** [b](https://a.example)\n# c")
    assert [utf16_length(body.text) for body in plain_pieces("🙂" * 5, 4)] == [4, 4, 2]


# -- properties --------------------------------------------------------------------------

FRAGMENTS = [
    "# H", "**", "*", "_", "~~", "`", "``", "```", "```py\n", "\n", "\n\n", "- ", "  - ", "1. ", "> ", "> > ",
    "\n| a | b |\n|-|-:|\n| 1 | **2** |\n", "$$", "$x_1$", "\\(", "\\)", "\\[", "\\]", "[", "](", "![",
    "](https://a.example/c)", "](http://localhost)", "](javascript:x)", "](tg://resolve?domain=x)",
    "](tg://user?id=1)", "](mailto:a@b.c)", "<https://x.example>", "<b>", "🙂", "👨‍👩‍👧", "🇩🇪", "e\u0301", "\u200b",
    "\u202e", "\x00", "\ud800", "word ", "Hello world. ", "    code\n", "\n---\n", "\t", "&amp;", "&#0;", "\\",
    "漢字", "\r\n", "\u2028", "- [ ] ", "- [x] ", "|", "https://", "http://[::1]/", "http://a_b.c)", "a..b", "٣",
]  # fmt: skip
MARKDOWN = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=8), max_size=60).map(
    "".join
)


@settings(max_examples=150)
@given(MARKDOWN, st.sampled_from([2, 7, 40, 200, LIMIT]))
def test_every_message_is_accepted(accept: Accept, markdown: str, limit: int) -> None:
    """Whatever a model writes, every message has the right size, and Telegram takes it."""
    for body in render_pieces(markdown, limit):
        assert 0 < utf16_length(body.text) <= limit
        assert body.text == body.text.strip()
        assert len(body.entities) <= 100
        accept(body)
    for body in plain_pieces(markdown, limit):
        assert 0 < utf16_length(body.text) <= limit
        accept(body)


@settings(max_examples=100)
@given(st.text(), st.integers(2, 50))
def test_a_plain_text_loses_nothing_but_space(text: str, limit: int) -> None:
    """Every visible character of a plain text is in one of its messages, in order."""

    def letters(some: str) -> str:
        return "".join(char for char in some if char.isalnum())

    found = " ".join(body.text for body in plain_pieces(text, limit))
    assert letters(found) == letters(text)


WORDS = st.sampled_from(
    ["word", "🙂", "**bold**", "`code`", "[x](https://a.example)", "$x_1$", "end."]
)
PARAGRAPHS = st.lists(WORDS, min_size=1, max_size=40).map(" ".join)
BLOCKS = st.one_of(
    PARAGRAPHS,
    PARAGRAPHS.map(lambda text: f"## {text[:40]}"),
    PARAGRAPHS.map(lambda text: f"> {text}\n> {text}"),
    st.lists(PARAGRAPHS, min_size=1, max_size=6).map(
        lambda items: "\n".join(f"- {item}" for item in items)
    ),
    st.integers(1, 120).map(lambda count: "```py\n" + "x = 1\n" * count + "```"),
    st.integers(1, 8).map(lambda count: "| a | b |\n|-|-|\n" + "| 1 | 2 |\n" * count),
    st.just("$$\n\\frac{a}{b}\n$$"),
)


@settings(max_examples=60)
@given(
    st.lists(BLOCKS, min_size=4, max_size=25),
    st.lists(st.integers(1, 5000), max_size=6),
)
@example([paragraph(0), "```py\n" + "x = 1\n" * 900], [1000, 3000, 5000])
def test_a_growing_text_changes_only_its_last_messages(
    blocks: list[str], ends: list[int]
) -> None:
    """What was shown before stays, so only the end of an answer is edited while it is written."""
    limit = 400
    markdown = "\n\n".join(blocks)
    before: list[Body] = []
    for end in [*sorted(ends), len(markdown)]:
        found = render_pieces(markdown[:end], limit)
        finished = max(len(before) - 2, 0)
        assert found[:finished] == before[:finished]
        before = found


@settings(max_examples=60)
@given(st.lists(BLOCKS, min_size=1, max_size=25))
def test_code_is_whole_or_marked_in_every_message(blocks: list[str]) -> None:
    """No line of code appears outside of a code block, wherever the messages are cut."""
    for body in render_pieces("\n\n".join(blocks), 400):
        codes = "".join(text for kind, text in parts(body) if kind == "pre")
        assert body.text.count("x = 1") == codes.count("x = 1")
        assert "```" not in body.text

"""Markdown as Matrix messages: allowed HTML only, and whole blocks in every message."""

from __future__ import annotations

import re
import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenax.channels.matrix.format import Body, render_bodies

# The elements that the specification of Matrix allows in `formatted_body` and that Markdown can make.
ALLOWED = frozenset(
    [
        "a",
        "blockquote",
        "br",
        "code",
        "del",
        "s",
        "em",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "li",
        "ol",
        "p",
        "pre",
        "strong",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        "ul",
    ]
)
ATTRIBUTES = frozenset({"href", "class", "start"})
LANGUAGE = "```python"


def html_of(markdown: str) -> str:
    (body,) = render_bodies(markdown)
    return body.html


def size_of(body: Body) -> int:
    return len(msgspec.json.encode(body.text)) + len(msgspec.json.encode(body.html))


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("**bold** and `code`", "<p><strong>bold</strong> and <code>code</code></p>"),
        ("<b>x</b> & y", "<p>&lt;b&gt;x&lt;/b&gt; &amp; y</p>"),
        ("[a](https://x.org/?a=1&b=2)", '<p><a href="https://x.org/?a=1&amp;b=2">a</a></p>'),
        ("[a](javascript:alert(1))", "<p>[a](javascript:alert(1))</p>"),
        ("![A cat](https://x.org/cat.png)", '<p><a href="https://x.org/cat.png">🖼 A cat</a></p>'),
        ("```py\nx < 1\n```", '<pre><code class="language-py">x &lt; 1\n</code></pre>'),
        ("~~old~~", "<p><s>old</s></p>"),
        ("3. three", '<ol start="3">\n<li>three</li>\n</ol>'),
    ],
)  # fmt: skip
def test_the_html_of_markdown(markdown: str, html: str) -> None:
    """HTML of the text itself is shown as written, and only known kinds of links are links."""
    assert html_of(markdown) == html


def test_a_table_has_no_styles() -> None:
    """Matrix allows tables, and no alignment."""
    html = html_of("| a | b |\n|:-:|--:|\n| 1 | 2 |")
    assert "<table>" in html
    assert "style" not in html


@pytest.mark.parametrize("markdown", ["", "  \n ", "\u200b"])
def test_a_text_without_visible_characters_is_no_message(markdown: str) -> None:
    assert render_bodies(markdown) == []


def test_long_code_is_cut_into_whole_fences() -> None:
    """Every part begins and ends with a fence, and all lines are there."""
    lines = [f"line {number}: {'x' * 60}" for number in range(2000)]
    bodies = render_bodies(
        "\n".join(["Before", "", LANGUAGE, *lines, "```", "", "After"])
    )
    assert len(bodies) > 1
    found = []
    for body in bodies:
        assert body.text.count("```") % 2 == 0
        assert body.html.count("<pre>") == body.html.count("</pre>")
        found += re.findall(r"line \d+: x+", body.text)
    assert found == lines
    assert bodies[0].text.startswith("Before")
    assert bodies[-1].text.endswith("After")


def test_a_growing_text_changes_only_its_last_messages() -> None:
    """A message that is followed by others is final."""
    paragraphs = [f"Paragraph {number}. " + "Words. " * 100 for number in range(100)]
    before: list[Body] = []
    for count in range(10, 101, 10):
        bodies = render_bodies("\n\n".join(paragraphs[:count]))
        assert bodies[: max(len(before) - 1, 0)] == before[:-1]
        before = bodies
    assert len(before) > 2


@given(
    st.text(
        st.sampled_from(string.printable + "äöü€😀\u2028`*_[](){}<>|#"), max_size=3000
    )
)
def test_any_text_makes_messages_that_the_homeserver_takes(markdown: str) -> None:
    """Every message is small enough, and its HTML has only allowed elements and attributes."""
    bytes_max = 3000
    for body in render_bodies(markdown, bytes_max):
        assert size_of(body) <= bytes_max
        assert body.text.strip()
        for name, attributes in re.findall(
            r"</?([a-z0-9]+)((?: [^>]*)?)/?>", body.html
        ):
            assert name in ALLOWED
            names = re.findall(r' ([a-z-]+)="', attributes)
            assert set(names) <= ATTRIBUTES


def test_words_are_not_lost() -> None:
    """A paragraph that is longer than a message is cut between words."""
    words = [f"word{number}" for number in range(20_000)]
    bodies = render_bodies(" ".join(words))
    assert " ".join(body.text for body in bodies).split() == words

"""Markdown as Matrix messages: a plain text, and the HTML that the specification of Matrix allows.

A message holds whole blocks of the Markdown text: paragraphs, lists, code. Only a block that is longer than a message is
cut: code between two lines, and every part is a whole fence. A growing text changes only its last messages.

HTML of the text itself is shown as written, so the HTML here comes from the renderer alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from typing import Any, Final

import msgspec
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from tenax.text import make_storable

__all__ = ["Body", "cut_text", "render_bodies"]

BYTES_MAX: Final = 30_000
"""The size of the text and the HTML of a message. An event has at most 65,536 bytes, and encryption adds a third."""
_MARKDOWN_CHARS_MAX: Final = 200_000
"""The parser needs about a second for 100,000 hostile characters. The text after this bound is shown as written."""
_LINE_SEPARATORS: Final = re.compile("\r\n|[\r\u2028\u2029]")
_VISIBLE: Final = re.compile(r"[^\s\u200b-\u200f\u202a-\u202e\u2060\ufeff\ufffc]")
_LINK: Final = re.compile(r"(?:https?|ftp|mailto|magnet):", re.IGNORECASE)
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})[^\n]*")
_LANGUAGE: Final = re.compile(r"[\w+#.-]{1,32}")
_CUT_FROM: Final = 0.5
"""Where in a part the search for a good end begins."""


class Body(msgspec.Struct, frozen=True):
    """A message: the text, and its HTML, or "" for a text without formatting."""

    text: str
    html: str = ""


def render_bodies(markdown: str, bytes_max: int = BYTES_MAX) -> list[Body]:
    """Convert Markdown to messages of at most `bytes_max` bytes. Without visible text: an empty list."""
    source = make_storable(_LINE_SEPARATORS.sub("\n", markdown))
    end = min(len(source), _MARKDOWN_CHARS_MAX)
    bodies: list[Body] = []
    blocks: list[str] = []
    open_body = Body("")
    for block in _cut_blocks(_split_blocks(source[:end]), bytes_max):
        longer = _make_body([*blocks, block])
        if blocks and _size(longer) > bytes_max:
            bodies.append(open_body)
            blocks, longer = [], _make_body([block])
        blocks.append(block)
        open_body = longer
    bodies.append(open_body)
    bodies += [Body(part.strip()) for part in cut_text(source[end:], bytes_max // 4)]
    return [body for body in bodies if _VISIBLE.search(body.text)]


def _make_body(blocks: Sequence[str]) -> Body:
    text = "\n\n".join(blocks)
    return Body(text, "\n".join(_to_html(block) for block in blocks))


def _size(body: Body) -> int:
    return len(msgspec.json.encode(body.text)) + len(msgspec.json.encode(body.html))


def _split_blocks(source: str) -> Iterator[str]:
    """Yield the blocks that are in no other block, as written."""
    lines = source.split("\n")
    start = 0
    for token in _parser().parse(source):
        if token.level or token.nesting < 0 or token.map is None:
            continue
        first, last = token.map
        # The text between two blocks has no block of its own.
        first = min(first, start) if first < start else first
        block = "\n".join(lines[max(first, start) : last]).strip("\n")
        start = max(start, last)
        if block.strip():
            yield block


def _cut_blocks(blocks: Iterator[str], bytes_max: int) -> Iterator[str]:
    """Cut the blocks that are longer than a message."""
    for block in blocks:
        if _size(_make_body([block])) <= bytes_max:
            yield block
        else:
            # Every character may need several bytes, and is in the text and in the HTML.
            yield from _cut_block(block, bytes_max // 16)


def _cut_block(block: str, chars: int) -> Iterator[str]:
    fence = _FENCE.match(block)
    if fence is None:
        for part in cut_text(block, chars):
            yield part.strip("\n")
        return
    opening, marks = fence[0], fence[1]
    code = block[fence.end() :].strip("\n")
    last = code.rpartition("\n")[2].strip()
    if last.startswith(marks) and not last.strip(marks[0]):
        code = code.rpartition("\n")[0]
    for part in cut_text(code, chars):
        yield f"{opening}\n{part.strip(chr(10))}\n{marks}"


def cut_text(text: str, chars: int) -> Iterator[str]:
    """Yield parts of at most `chars` characters, cut after a paragraph, else a line, else a word."""
    while len(text) > chars:
        cut = chars
        for separator in ("\n\n", "\n", " "):
            found = text.rfind(separator, int(chars * _CUT_FROM), chars)
            if found > 0:
                cut = found + len(separator)
                break
        yield text[:cut]
        text = text[cut:]
    if text:
        yield text


# -- HTML --------------------------------------------------------------------------------


class _Parser(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802  (the name is the parser's)
        """Accept the addresses that Matrix allows. Another link is shown as written."""
        return _LINK.match(url) is not None


class _Renderer(RendererHTML):
    """Renders only what the specification of Matrix allows in `formatted_body`."""

    def image(
        self,
        tokens: Sequence[Token],
        idx: int,
        options: OptionsDict,
        env: EnvType,
    ) -> str:
        """Show a picture as a link: Matrix shows only pictures of the homeserver."""
        token = tokens[idx]
        name = self.renderInlineAsText(token.children, options, env) or "image"
        address = escape(str(token.attrGet("src") or ""))
        return f'<a href="{address}">🖼 {escape(name)}</a>'

    def fence(
        self,
        tokens: Sequence[Token],
        idx: int,
        options: OptionsDict,
        env: EnvType,
    ) -> str:
        del options, env
        token = tokens[idx]
        found = _LANGUAGE.match(token.info.strip())
        name = f' class="language-{escape(found[0])}"' if found else ""
        return f"<pre><code{name}>{escape(token.content)}</code></pre>\n"


@cache
def _parser() -> _Parser:
    parser = _Parser("commonmark", {"html": False}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"])
    # A definition such as "[^1]: Source" would disappear.
    parser.disable("reference")
    return parser


def _to_html(block: str) -> str:
    parser = _parser()
    tokens = parser.parse(block)
    _remove_styles(tokens)
    html: Any = parser.renderer.render(tokens, parser.options, {})
    return str(html).strip()


def _remove_styles(tokens: Sequence[Token]) -> None:
    """Remove the alignment of the cells of tables: Matrix allows no styles."""
    for token in tokens:
        token.attrs.pop("style", None)

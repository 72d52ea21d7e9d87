"""Markdown as Telegram messages: texts with entities, cut to the size of a message.

The work has three steps. The parser of markdown-it makes tokens. `_Converter` turns the tokens into blocks: a paragraph,
a list item, a code block. `_Packer` fills one body after the other with blocks, and cuts a block that is longer than a
body. Blocks and their spans count in characters; only a finished `Body` counts in UTF-16 code units.

A growing text changes only its last bodies: the end of a body never depends on text after the next block.

Telegram refuses a whole message for a single mistake, such as an empty text, an entity that starts inside a surrogate
pair, or a link without a dot in the host. The rules here follow the sources of the Telegram server: TDLib's
`MessageEntity.cpp`, `LinkManager.cpp` and `misc.cpp`.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from tenax.text import make_storable, replace_controls, to_one_line

__all__ = ["Body", "Entity", "plain_pieces", "render_pieces"]

_BODY_UNITS_MAX: Final = 4096
_ENTITIES_MAX: Final = 100
_MARKDOWN_CHARS_MAX: Final = 200_000
"""The parser needs about a second for 100,000 hostile characters. The text after this bound is shown as written."""
_TABLE_COLUMNS_MAX: Final = 60
_URL_CHARS_MAX: Final = 2048
_MATH_CHARS_MAX: Final = 2000
_GRAPHEME_CHARS_MAX: Final = 32
_TAB_COLUMNS: Final = 4
_PORT_MAX: Final = 65_535

_STYLES: Final = {"strong": "bold", "em": "italic", "s": "strikethrough"}
_RULE: Final = "———"
_BULLET: Final = "• "
_PICTURE: Final = "🖼"
_INDENT: Final = "  "

_LINE_SEPARATORS: Final = re.compile("\r\n|[\r\u2028\u2029]")
# Telegram refuses a text of only these characters, or removes them.
_VISIBLE: Final = re.compile(
    r"[^\s\u030a\u0333\u033f\u180e\u200b-\u200f\u202a-\u202e\u2060\u2800\ufeff\ufffc\U000e0000-\U000e007f]"
)
_TASK: Final = re.compile(r"\[([ xX])\]\s+")
_LANGUAGE: Final = re.compile(r"[\w+#.-]{1,32}")
_WEB_LINK: Final = re.compile(
    r"https?://[\w-]+(?:\.[\w-]+)+\.?(?::(\d{1,5}))?(?:[/?#]\S*)?", re.IGNORECASE
)
# A link to `tg://user` is a mention. Telegram refuses the mention of an unknown user.
_APP_LINK: Final = re.compile(r"tg://(?!user\b)[a-z0-9_-]+(?:[/?#]\S*)?", re.IGNORECASE)
_SENTENCE_END: Final = re.compile(r"[.!?…][\"'”’»)\]]*(?=\s)|[。！？][”』」）]*")  # noqa: RUF001
_CODE_PARAGRAPH: Final = re.compile(r"\n(?=[^\s)\]}])")
_DOLLAR_MATH: Final = re.compile(
    r"\$((?!\s)(?:\\.|[^$\\\n`]){1,500})(?<!\s)\$(?![\w$])"
)
_PRICES: Final = re.compile(r"\d[^\\^_{}=]*\s[^\\^_{}=]*")
_TEX: Final = re.compile(r"[\\^_{}=<>+]")


class Entity(msgspec.Struct, frozen=True, omit_defaults=True):
    """A formatted range of a text. Offset and length count UTF-16 code units, as in the Bot API."""

    type: str
    offset: int
    length: int
    url: str = ""
    language: str = ""


class Body(msgspec.Struct, frozen=True):
    """The text of a message with its entities. The text is visible, and has no white space at its ends."""

    text: str
    entities: tuple[Entity, ...] = ()


def render_pieces(markdown: str, limit: int = _BODY_UNITS_MAX) -> list[Body]:
    """Convert Markdown to bodies of at most `limit` UTF-16 code units and 100 entities.

    The limit is at least 2, the length of an emoji. A text without visible characters gives an empty list.
    """
    source = _clean(markdown)
    end = _find_markdown_end(source)
    blocks = _to_blocks(source[:end])
    blocks.extend(_to_plain_blocks(source[end:]))
    return _pack(blocks, limit)


def plain_pieces(text: str, limit: int = _BODY_UNITS_MAX) -> list[Body]:
    """Cut a plain text into bodies of at most `limit` UTF-16 code units, without entities."""
    return _pack(_to_plain_blocks(_clean(text)), limit)


def _clean(text: str) -> str:
    """Return the text with line feeds as its only line separators, and without lone surrogates."""
    return make_storable(_LINE_SEPARATORS.sub("\n", text))


def _find_markdown_end(source: str) -> int:
    """Return the end of the text to parse: the last blank line or line end before the bound."""
    if len(source) <= _MARKDOWN_CHARS_MAX:
        return len(source)
    for separator in ("\n\n", "\n"):
        end = source.rfind(separator, _MARKDOWN_CHARS_MAX // 2, _MARKDOWN_CHARS_MAX)
        if end >= 0:
            return end
    return _MARKDOWN_CHARS_MAX


# -- the parser ------------------------------------------------------------------------


class _Parser(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802  (the name is the parser's)
        """Accept every address. `_accepts_link` decides later; a refused address is shown as text."""
        del url
        return True


@cache
def _parser() -> _Parser:
    parser = _Parser("commonmark", {"html": False})
    parser.enable(["table", "strikethrough"])
    # A definition such as "[^1]: Source" would disappear. A late definition would change early bodies.
    parser.disable("reference")
    parser.inline.ruler.before("escape", "math", _parse_inline_math)
    interrupted = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before(
        "fence", "math_block", _parse_math_block, {"alt": interrupted}
    )
    return parser


def _parse_inline_math(state: StateInline, silent: bool) -> bool:
    """Parse a formula in a line. The tokens of a formula have no emphasis."""
    found = _match_math(state.src, state.pos, state.posMax)
    if found is None:
        return False
    formula, end = found
    if not silent:
        token = state.push("math_inline", "", 0)
        token.content = " ".join(formula.split())
    state.pos = end
    return True


def _match_math(source: str, start: int, end: int) -> tuple[str, int] | None:
    """Return the formula that begins at `start` and the position after it."""
    opening = source[start : start + 2]
    if opening == "$$":
        return _match_delimited(source, start, end, "$$")
    if opening == "\\(":
        return _match_delimited(source, start, end, "\\)")
    if opening == "\\[":
        # "\[sic\]" is no formula, but an escaped bracket.
        found = _match_delimited(source, start, end, "\\]")
        return found if found and _TEX.search(found[0]) else None
    if opening[:1] == "$":
        return _match_dollars(source, start, end)
    return None


def _match_delimited(
    source: str, start: int, end: int, closing: str
) -> tuple[str, int] | None:
    begin = start + 2
    close = source.find(closing, begin, min(end, begin + _MATH_CHARS_MAX))
    if close < 0:
        return None
    formula = source[begin:close]
    repeated = source[start:begin] in formula
    return None if repeated or not formula.strip() else (formula, close + 2)


def _match_dollars(source: str, start: int, end: int) -> tuple[str, int] | None:
    """Match "$a_1$", and neither prices ("$5 or $6") nor variables ("$HOME/$USER")."""
    before = source[start - 1 : start]
    if before.isalnum() or before == "$":
        return None
    found = _DOLLAR_MATH.match(source, start, end)
    if found is None or _PRICES.fullmatch(found[1]):
        return None
    return found[1], found.end()


def _parse_math_block(
    state: StateBlock, start_line: int, end_line: int, silent: bool
) -> bool:
    """Parse a formula on lines of its own. The formula ends before the first blank line."""
    begin = state.bMarks[start_line] + state.tShift[start_line]
    closing = {"$$": "$$", "\\[": "\\]"}.get(state.src[begin : begin + 2])
    if closing is None or state.is_code_block(start_line):
        return False
    if state.src.find(closing, begin + 2, begin + _MATH_CHARS_MAX) < 0:
        return False
    lines: list[str] = []
    line = start_line
    rest = state.src[begin + 2 : state.eMarks[line]]
    while closing not in rest:
        lines.append(rest)
        line += 1
        if line >= end_line or state.isEmpty(line):
            return False
        if state.sCount[line] < state.blkIndent:
            return False
        begin = state.bMarks[line] + state.tShift[line]
        rest = state.src[begin : state.eMarks[line]]
    last, _, tail = rest.partition(closing)
    if tail.strip() not in {"", ".", ",", ";"}:
        return False
    if not silent:
        formula = "\n".join([*lines, last]).strip()
        token = state.push("math_block", "", 0)
        token.content = formula + tail.strip()
        token.map = [start_line, line + 1]
        state.line = line + 1
    return True


# -- blocks ----------------------------------------------------------------------------


class _Span(NamedTuple):
    """A formatted range of a block. Start and end count characters."""

    start: int
    end: int
    type: str
    url: str = ""
    language: str = ""


class _Block(msgspec.Struct, frozen=True):
    """A part of the text that belongs together. The spans are sorted by start."""

    text: str
    spans: list[_Span] = []
    quote: int = 0
    """The number of the block quote, 0 outside. A body has one entity per quote."""
    group: int = 0
    """The number of the outermost list, 0 outside. A single line end separates the blocks of a list."""
    is_code: bool = False
    is_heading: bool = False


def _to_plain_blocks(text: str) -> list[_Block]:
    return [_Block(replace_controls(text, " "))]


def _to_blocks(source: str) -> list[_Block]:
    lines = source.split("\n")
    converter = _Converter()
    parser = _parser()
    for tokens in _split_top_level(parser.parse(source)):
        if _is_cut_short(tokens, parser.options["maxNesting"]):
            first, last = tokens[0].map or [0, 0]
            written = "\n".join(lines[first:last])
            converter.blocks.extend(_to_plain_blocks(written))
        else:
            converter.convert(tokens)
    return converter.blocks


def _split_top_level(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Yield the tokens of every block that is in no other block."""
    start = 0
    for index, token in enumerate(tokens):
        if token.level == 0 and token.nesting <= 0 and token.type != "inline":
            yield tokens[start : index + 1]
            start = index + 1


def _is_cut_short(tokens: Sequence[Token], nesting_max: int) -> bool:
    """Return whether the parser left out content, because its containers are nested too deeply."""
    return any(
        token.level >= nesting_max - 1
        and token.type in {"blockquote_open", "list_item_open"}
        for token in tokens
    )


class _List:
    """An open list: the marker of the next item, and its number."""

    def __init__(self, token: Token) -> None:
        self._is_ordered = token.type == "ordered_list_open"
        start = token.attrGet("start")
        self._number = start if isinstance(start, int) else 1

    def next_marker(self, punctuation: str) -> str:
        if not self._is_ordered:
            return _BULLET
        marker = f"{self._number}{punctuation} "
        self._number += 1
        return marker


class _Converter:
    """Turns block tokens into blocks."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self._quote_depth = 0
        self._quotes = 0
        self._groups = 0
        self._lists: list[_List] = []
        self._marker = ""
        """The marker of the open list item, until a block shows the marker."""
        self._is_heading = False
        self._table: _Table | None = None

    def convert(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            if self._table is not None or token.type == "table_open":
                self._convert_table(token)
            elif token.nesting:
                self._convert_container(token)
            else:
                self._convert_leaf(token)

    def _convert_leaf(self, token: Token) -> None:
        match token.type:
            case "inline":
                self._add_text(token.children or [])
            case "fence" | "code_block" | "math_block":
                language = _LANGUAGE.match(token.info.strip())
                self._add_code(token.content, language[0] if language else "")
            case "hr":
                self._add_line(_RULE)
            case _:
                self._add_line(token.content)

    def _convert_container(self, token: Token) -> None:
        match token.type:
            case "heading_open" | "heading_close":
                self._is_heading = token.nesting > 0
            case "blockquote_open" | "blockquote_close":
                self._move_in_quotes(token)
            case "bullet_list_open" | "ordered_list_open":
                self._open_list(token)
            case "bullet_list_close" | "ordered_list_close":
                self._lists.pop()
            case "list_item_open":
                self._marker = self._lists[-1].next_marker(token.markup)
            case "list_item_close":
                self._show_marker()

    def _convert_table(self, token: Token) -> None:
        table = self._table or _Table()
        match token.type:
            case "table_open":
                self._table = table
            case "tr_open":
                table.rows.append([])
            case "th_open":
                table.alignments.append(str(token.attrGet("style") or ""))
            case "inline":
                table.rows[-1].append(token)
            case "table_close":
                self._table = None
                self._add_table(table)

    def _move_in_quotes(self, token: Token) -> None:
        # Telegram has no quotes inside quotes: only the outermost quote counts.
        if token.nesting > 0 and self._quote_depth == 0:
            self._quotes += 1
        self._quote_depth += token.nesting

    def _open_list(self, token: Token) -> None:
        self._show_marker()
        if not self._lists:
            self._groups += 1
        self._lists.append(_List(token))

    def _show_marker(self) -> None:
        """Add the marker of an item without text."""
        if self._marker:
            self._add_line("")

    def _add_line(self, text: str) -> None:
        writer = self._start_text()
        writer.write(text)
        self._add(writer)

    def _start_text(self) -> _Writer:
        """Return a writer that has written the indentation and the marker of the item."""
        writer = _Writer(indent=_INDENT * len(self._lists))
        if self._marker:
            writer.write(_INDENT * (len(self._lists) - 1) + self._marker)
            self._marker = ""
        else:
            writer.write(writer.indent)
        return writer

    def _add_text(self, tokens: list[Token]) -> None:
        if self._marker and tokens and tokens[0].type == "text":
            self._show_task(tokens[0])
        writer = self._start_text()
        if self._is_heading:
            writer.open_style("bold")
        writer.write_tokens(tokens)
        if self._is_heading:
            writer.close_style("bold")
        self._add(writer)

    def _show_task(self, token: Token) -> None:
        """Show "[x] " at the start of a list item as a box. The box replaces a bullet."""
        task = _TASK.match(token.content)
        if task is None:
            return
        box = "☐ " if task[1] == " " else "☑ "
        self._marker = box if self._marker == _BULLET else self._marker + box
        token.content = token.content[task.end() :]

    def _add(self, writer: _Writer, group: int = 0) -> None:
        text = replace_controls("".join(writer.parts), " ").rstrip()
        if not _VISIBLE.search(text):
            return
        block = _Block(
            text,
            _clip(writer.spans, 0, len(text)),
            quote=self._quotes if self._quote_depth else 0,
            group=self._groups if self._lists else group,
            is_heading=self._is_heading,
        )
        self.blocks.append(block)

    def _add_code(self, content: str, language: str = "") -> None:
        self._show_marker()
        # Telegram shows a tab as a single space.
        text = replace_controls(content, " ").expandtabs(_TAB_COLUMNS)
        text = text.strip("\n").rstrip()
        if not _VISIBLE.search(text):
            return
        block = _Block(
            text,
            [_Span(0, len(text), "pre", language=language)],
            quote=self._quotes if self._quote_depth else 0,
            group=self._groups if self._lists else 0,
            is_code=True,
        )
        self.blocks.append(block)

    def _add_table(self, table: _Table) -> None:
        lines = table.draw()
        if lines is not None:
            self._add_code("\n".join(lines))
            return
        self._show_marker()
        if not self._lists:
            self._groups += 1
        for writer in table.list_rows(_INDENT * len(self._lists)):
            self._add(writer, group=self._groups)


def _clip(spans: Iterable[_Span], start: int, end: int) -> list[_Span]:
    """Return the parts of the spans between two positions, sorted, and relative to `start`."""
    clipped = []
    for span in spans:
        first = max(span.start, start) - start
        last = min(span.end, end) - start
        if first < last:
            clipped.append(span._replace(start=first, end=last))
    return sorted(clipped, key=_order_spans)


def _order_spans(span: _Span) -> tuple[int, int, bool]:
    """Sort outer spans before inner spans."""
    return span.start, -span.end, span.type != "blockquote"


# -- inline text -----------------------------------------------------------------------


class _Writer:
    """Collects text and spans. Without formatting, an address stands behind its link text."""

    def __init__(self, *, indent: str = "", formatted: bool = True) -> None:
        self.indent = indent
        """The indentation of the lines after the first line."""
        self.parts: list[str] = []
        self.spans: list[_Span] = []
        self._formatted = formatted
        self._length = 0
        self._style_depths = dict.fromkeys(_STYLES.values(), 0)
        self._style_starts: dict[str, int] = {}
        self._link_depth = 0
        self._link_address = ""
        self._link_start = 0
        self._link_part = 0

    def write(self, text: str) -> None:
        self.parts.append(text)
        self._length += len(text)

    def write_tokens(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            match token.type:
                case "text":
                    self.write(token.content)
                case "softbreak" | "hardbreak":
                    self.write("\n" + self.indent)
                case "code_inline" | "math_inline":
                    self._write_code(token.content)
                case "strong_open" | "em_open" | "s_open":
                    self.open_style(_STYLES[token.tag])
                case "strong_close" | "em_close" | "s_close":
                    self.close_style(_STYLES[token.tag])
                case "link_open":
                    self._open_link(str(token.attrGet("href") or ""))
                case "link_close":
                    self._close_link()
                case "image":
                    self._write_image(token)
                case _:
                    self.write(token.content)

    def open_style(self, style: str) -> None:
        self._style_depths[style] += 1
        self._style_starts.setdefault(style, self._length)

    def close_style(self, style: str) -> None:
        self._style_depths[style] -= 1
        if self._style_depths[style] == 0:
            self._mark(self._style_starts.pop(style), style)

    def _mark(self, start: int, kind: str, url: str = "") -> None:
        if self._formatted and start < self._length:
            self.spans.append(_Span(start, self._length, kind, url))

    def _write_code(self, text: str) -> None:
        """Write code. Telegram allows code inside no style and no link: a style is interrupted, a link has no code."""
        if self._link_depth:
            self.write(text)
            return
        for style, start in self._style_starts.items():
            self._mark(start, style)
        start = self._length
        self.write(text)
        self._mark(start, "code")
        for style in self._style_starts:
            self._style_starts[style] = self._length

    def _open_link(self, address: str) -> None:
        # An address in angle brackets inside a link text is a second link.
        self._link_depth += 1
        if self._link_depth == 1:
            self._link_address = address
            self._link_start = self._length
            self._link_part = len(self.parts)

    def _close_link(self) -> None:
        self._link_depth -= 1
        if self._link_depth:
            return
        shown = _show_address(self._link_address)
        text = "".join(self.parts[self._link_part :])
        if not text.strip():
            self.write(shown)
        if self._formatted and _accepts_link(self._link_address):
            self._mark(self._link_start, "text_link", self._link_address)
        elif text.strip() and shown not in {"", text}:
            self.write(f" ({shown})")

    def _write_image(self, token: Token) -> None:
        address = str(token.attrGet("src") or "")
        alternative = _Writer(formatted=False)
        alternative.write_tokens(token.children or [])
        name = " ".join("".join(alternative.parts).split())
        start = self._length
        self.write(f"{_PICTURE} {name or 'image'}")
        if self._link_depth:
            return
        if self._formatted and _accepts_link(address):
            self._mark(start, "text_link", address)
        elif address:
            self.write(f" ({_show_address(address)})")


def _accepts_link(url: str) -> bool:
    """Return whether Telegram accepts the address of a link.

    Telegram refuses a host without a dot, such as localhost, and changes "mailto:" into "http://mailto:".
    """
    if len(url) > _URL_CHARS_MAX:
        return False
    if _APP_LINK.fullmatch(url):
        return True
    found = _WEB_LINK.fullmatch(url)
    return found is not None and 0 < int(found[1] or 1) <= _PORT_MAX


def _show_address(url: str) -> str:
    """Return an address as a person writes it. Telegram makes a mail address clickable by itself."""
    return to_one_line(_parser().normalizeLinkText(url)).removeprefix("mailto:")


# -- tables ----------------------------------------------------------------------------


class _Table:
    """The cells of a table. The first row is the header."""

    def __init__(self) -> None:
        self.rows: list[list[Token]] = []
        self.alignments: list[str] = []

    def draw(self) -> list[str] | None:
        """Draw the table with characters of equal width. Return None if the table is too wide."""
        cells = [[_to_plain_text(cell) for cell in row] for row in self.rows]
        widths = [
            max(map(_count_columns, column)) for column in zip(*cells, strict=True)
        ]
        if sum(widths) + 3 * (len(widths) - 1) > _TABLE_COLUMNS_MAX:
            return None
        lines = [self._draw_row(row, widths) for row in cells]
        lines.insert(1, "-|-".join("-" * width for width in widths))
        # Telegram removes white space at the start of a message, and a row would move to the left.
        if any(line.startswith(" ") for line in lines):
            lines = [f"| {line}" for line in lines]
        return [line.rstrip() for line in lines]

    def _draw_row(self, row: list[str], widths: list[int]) -> str:
        padded = []
        for text, width, alignment in zip(row, widths, self.alignments, strict=True):
            space = width - _count_columns(text)
            left = 0
            if alignment.endswith("right"):
                left = space
            elif alignment.endswith("center"):
                left = space // 2
            padded.append(" " * left + text + " " * (space - left))
        return " | ".join(padded)

    def list_rows(self, indent: str) -> Iterator[_Writer]:
        """Write every row as a list item with a line "Header: value" for every cell."""
        header, *rows = self.rows
        names = [_to_plain_text(cell) for cell in header]
        for row in rows or [header]:
            writer = _Writer(indent=indent + _INDENT)
            separator = indent + _BULLET
            for name, cell in zip(names, row, strict=True):
                if not name and not cell.content:
                    continue
                writer.write(separator)
                separator = "\n" + writer.indent
                if row is not header and name:
                    writer.write(f"{name}: " if cell.content else f"{name}:")
                writer.write_tokens(cell.children or [])
            yield writer


def _to_plain_text(cell: Token) -> str:
    writer = _Writer(formatted=False)
    writer.write_tokens(cell.children or [])
    return " ".join("".join(writer.parts).split())


def _count_columns(text: str) -> int:
    """Return the width of a text in columns of a font of equal width."""
    if text.isascii():
        return len(text)
    columns = 0
    before = ""
    for char in text:
        if before != "\u200d" and unicodedata.category(char) not in {"Mn", "Me", "Cf"}:
            columns += 2 if unicodedata.east_asian_width(char) in "WF" else 1
        before = char
    return columns


# -- bodies ----------------------------------------------------------------------------


def _pack(blocks: Iterable[_Block], limit: int) -> list[Body]:
    packer = _Packer(limit)
    for block in blocks:
        packer.add(block)
    packer.close_body()
    return packer.bodies


class _Packer:
    """Fills bodies with blocks, as many blocks as fit."""

    def __init__(self, limit: int) -> None:
        self.bodies: list[Body] = []
        self._limit = limit
        self._blocks: list[_Block] = []
        """The blocks of the open body."""
        self._units = 0
        self._entities = 0

    def add(self, block: _Block) -> None:
        """Add a block to the open body, or to the next body. Cut a block that is longer than a body."""
        if self._append(block):
            return
        headings = self._take_last_headings()
        self.close_body()
        for heading in headings:
            self._append(heading)
        if self._append(block):
            return
        self.close_body()
        for part in _cut_block(block, self._limit):
            self.close_body()
            self._append(part)

    def _append(self, block: _Block) -> bool:
        """Append a block to the open body if the body has space."""
        last = self._blocks[-1] if self._blocks else None
        units = _count_units(block.text)
        entities = len(block.spans)
        if last is not None:
            units += len(_separate(last, block))
        if block.quote and (last is None or last.quote != block.quote):
            entities += 1
        if self._units + units > self._limit:
            return False
        if self._entities + entities > _ENTITIES_MAX:
            return False
        self._units += units
        self._entities += entities
        self._blocks.append(block)
        return True

    def _take_last_headings(self) -> list[_Block]:
        """Remove the headings at the end of the open body, so that a heading is never far from its text."""
        start = len(self._blocks)
        while start > 0 and self._blocks[start - 1].is_heading:
            start -= 1
        if start == 0:
            return []
        headings = self._blocks[start:]
        del self._blocks[start:]
        return headings

    def close_body(self) -> None:
        """Make a body of the collected blocks."""
        body = _make_body(self._blocks)
        if body is not None:
            self.bodies.append(body)
        self._blocks = []
        self._units = 0
        self._entities = 0


def _separate(last: _Block, block: _Block) -> str:
    return "\n" if block.group and block.group == last.group else "\n\n"


def _make_body(blocks: Sequence[_Block]) -> Body | None:
    """Join blocks. Return None if the text has no visible character."""
    parts: list[str] = []
    spans: list[_Span] = []
    position = 0
    last: _Block | None = None
    quote_start = 0
    for number, block in enumerate(blocks):
        shown = _dedent(block) if number == 0 and block.is_code else block
        if last is not None:
            separator = _separate(last, block)
            parts.append(separator)
            position += len(separator)
        if last is None or last.quote != block.quote:
            quote_start = position
        for span in shown.spans:
            moved = span._replace(start=span.start + position, end=span.end + position)
            spans.append(moved)
        parts.append(shown.text)
        position += len(shown.text)
        following = blocks[number + 1].quote if number + 1 < len(blocks) else 0
        if block.quote and block.quote != following:
            spans.append(_Span(quote_start, position, "blockquote"))
        last = block
    text = "".join(parts)
    if not _VISIBLE.search(text):
        return None
    return _finish_body(text, spans)


def _dedent(block: _Block) -> _Block:
    """Remove the common indentation of code. Otherwise, only the first line of a body would lose its indentation."""
    text = textwrap.dedent(block.text).strip("\n")
    spans = [span._replace(end=len(text)) for span in block.spans]
    return msgspec.structs.replace(block, text=text, spans=spans)


def _finish_body(text: str, spans: Iterable[_Span]) -> Body:
    """Remove the white space at the ends of the text, and express the spans in UTF-16 code units."""
    start = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    shown = text[start:end]
    wide = [index for index, char in enumerate(shown) if char > "\uffff"]
    entities = []
    for span in _clip(spans, start, end):
        if shown[span.start : span.end].isspace():
            continue
        offset = span.start + bisect_left(wide, span.start)
        length = span.end + bisect_left(wide, span.end) - offset
        entities.append(Entity(span.type, offset, length, span.url, span.language))
    return Body(shown, tuple(entities[:_ENTITIES_MAX]))


def _count_units(text: str) -> int:
    """Return the length of a text in UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


# -- cuts ------------------------------------------------------------------------------


def _cut_block(block: _Block, limit: int) -> Iterator[_Block]:
    """Yield the parts of a block that is longer than a body. A span across a cut continues in the next part."""
    entities_max = _ENTITIES_MAX - (block.quote > 0)
    open_spans: list[_Span] = []
    next_span = 0
    start = 0
    while start < len(block.text):
        end = _find_end(block.text, start, limit)
        first_excess = next_span + entities_max - len(open_spans)
        if first_excess < len(block.spans):
            end = max(start + 1, min(end, block.spans[first_excess].start))
        if end < len(block.text):
            end = _find_cut(block, start, end)
        while next_span < len(block.spans) and block.spans[next_span].start < end:
            open_spans.append(block.spans[next_span])
            next_span += 1
        spans = _clip(open_spans, start, end)
        open_spans = [span for span in open_spans if span.end > end]
        part = block.text[start:end]
        yield msgspec.structs.replace(block, text=part, spans=spans)
        start = end


def _find_end(text: str, start: int, limit: int) -> int:
    """Return the end of the longest part that has at most `limit` UTF-16 code units."""
    units = text[start : start + limit].encode("utf-16-le")
    # Half a surrogate pair at the end is ignored.
    part = units[: 2 * limit].decode("utf-16-le", "ignore")
    return start + max(len(part), 1)


def _find_cut(block: _Block, start: int, end: int) -> int:
    """Return the best place for a cut in `text[start:end]`, after `start`."""
    text = block.text
    if block.is_code:
        quarter = end - (end - start) // 4
        cuts = [
            found.start() for found in _CODE_PARAGRAPH.finditer(text, quarter, end + 2)
        ]
        line_end = text.rfind("\n", start + 1, end + 1)
        cuts = [cut for cut in cuts if cut <= end] or [line_end]
        if cuts[-1] > start:
            return cuts[-1]
    else:
        cut = _find_sentence_end(text, (start + end) // 2, end)
        if cut > start:
            return cut
    for cut in range(end, start, -1):
        if text[cut].isspace():
            return cut
    return _find_grapheme_end(text, start, end)


def _find_sentence_end(text: str, start: int, end: int) -> int:
    """Return the end of the last paragraph, else line, else sentence between `start` and `end`. Return -1 for none."""
    for separator in ("\n\n", "\n"):
        cut = text.rfind(separator, start, end + len(separator))
        if cut >= 0:
            return cut
    cuts = [found.end() for found in _SENTENCE_END.finditer(text, start, end + 1)]
    cuts = [cut for cut in cuts if cut <= end]
    return cuts[-1] if cuts else -1


def _find_grapheme_end(text: str, start: int, end: int) -> int:
    """Return the last end of a visible character up to `end`. Return `end` if it is too far away."""
    cut = end
    while _joins(text, cut):
        cut -= 1
        if cut <= start or end - cut > _GRAPHEME_CHARS_MAX:
            return end
    return cut


def _joins(text: str, index: int) -> bool:
    """Return whether two adjacent characters form one visible character."""
    before, char = text[index - 1], text[index]
    if "\u200d" in {before, char} or "\U0001f3fb" <= char <= "\U0001f3ff":
        return True
    if unicodedata.category(char) in {"Mn", "Me", "Mc"}:
        return True
    # Two letters of this alphabet are a flag.
    return all("\U0001f1e6" <= letter <= "\U0001f1ff" for letter in (before, char))

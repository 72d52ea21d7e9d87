"""Markdown as messages of Discord.

Discord reads a Markdown of its own, without tables and with fewer rules. So the Markdown of a model is not sent as it is:
it becomes formatted texts first, and every formatted text is written in Discord's Markdown. Tables and formulas are code
then, and a character that only looks like formatting is escaped.

A message has at most 2,000 characters of Discord's Markdown. A growing text changes only its last messages.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tenax.channels.telegram.format import Body, plain_pieces, render_pieces

__all__ = ["Text", "plain_text", "render_texts"]

TEXT_CHARS_MAX: Final = 1990
"""Discord takes 2,000. The rest is for the mark of a repeated message."""
_MARKUP_CHARS: Final = 90
"""The space for the marks and escapes of an ordinary message. With more of them, a message is cut once more."""
_MARKERS: Final = {"bold": "**", "italic": "*", "strikethrough": "~~"}
_URL: Final = re.compile(r"https?://[^\s<>]+")
_SPECIAL: Final = re.compile(r"[\\*_~`|\[\]<]")
_LINE_START: Final = re.compile(r"^(\s*)(#{1,3} |-# |> |>>> |[-+] )", re.MULTILINE)
_ZERO_WIDTH: Final = "\u200b"


class Text(NamedTuple):
    """A message: the visible text, and the text in Discord's Markdown."""

    visible: str
    markdown: str


class _Span(NamedTuple):
    """A formatted range. Start and end count characters."""

    start: int
    end: int
    type: str
    url: str
    language: str


def render_texts(markdown: str, limit: int = TEXT_CHARS_MAX) -> list[Text]:
    """Return Markdown as messages of at most `limit` characters. Without visible text: an empty list."""
    texts: list[Text] = []
    for body in render_pieces(markdown, max(limit - _MARKUP_CHARS, 2)):
        texts.extend(_fit(body.text, _to_spans(body), limit))
    return texts


def plain_text(text: str, chars: int) -> Text:
    """Return a text of at most `chars` characters without formatting. A cut text ends with an ellipsis."""
    shown = text
    if len(text) > chars:
        # An emoji has two UTF-16 code units.
        cut = plain_pieces(text, chars - 1) if chars > 2 else []  # noqa: PLR2004
        shown = f"{cut[0].text}…" if cut else "…"
    return Text(shown, _escape(shown))


def _to_spans(body: Body) -> list[_Span]:
    """Return the entities with offsets in characters."""
    offsets = [0]
    for char in body.text:
        offsets.append(offsets[-1] + (2 if char > "\uffff" else 1))
    return [
        _Span(
            bisect_left(offsets, entity.offset),
            bisect_left(offsets, entity.offset + entity.length),
            entity.type,
            entity.url,
            entity.language,
        )
        for entity in body.entities
    ]


def _count(text: str) -> int:
    """Return the length in UTF-16 code units, which is never less than Discord counts."""
    return len(text.encode("utf-16-le")) // 2


def _fit(text: str, spans: Sequence[_Span], limit: int) -> Iterator[Text]:
    """Yield the text as messages. Escapes make a text longer, so it may need several."""
    start = 0
    while start < len(text):
        end = len(text)
        written = _write(text, spans, start, end)
        if _count(written) > limit:
            end = _find_end(text, spans, start, limit)
            written = _write(text, spans, start, end)
        visible = text[start:end].strip()
        if visible:
            yield Text(visible, written.strip("\n"))
        start = end


def _find_end(text: str, spans: Sequence[_Span], start: int, limit: int) -> int:
    """Return the end of the longest part that fits, if possible at the end of a line or a word."""
    low, high = start + 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if _count(_write(text, spans, start, middle)) <= limit:
            low = middle
        else:
            high = middle - 1
    for separator in ("\n\n", "\n", " "):
        cut = text.rfind(separator, start + (low - start) // 2, low)
        if cut > start:
            return cut + len(separator)
    return low


# -- Discord's Markdown ------------------------------------------------------------------


def _write(text: str, spans: Sequence[_Span], start: int, end: int) -> str:
    """Return a part of a formatted text in Discord's Markdown."""
    inside = [
        span._replace(start=max(span.start, start), end=min(span.end, end))
        for span in spans
        if span.start < end and span.end > start
    ]
    inside.sort(key=lambda span: (span.start, -span.end))
    return _write_range(text, inside, start, end)


def _write_range(text: str, spans: Sequence[_Span], start: int, end: int) -> str:
    """Write a range. The spans are sorted, and an outer span comes before its inner spans."""
    parts: list[str] = []
    position = start
    index = 0
    while index < len(spans):
        span = spans[index]
        inner = index + 1
        while inner < len(spans) and spans[inner].start < span.end:
            inner += 1
        parts.append(_escape(text[position : span.start]))
        parts.append(_write_span(text, span, spans[index + 1 : inner]))
        position = max(position, span.end)
        index = inner
    parts.append(_escape(text[position:end]))
    return "".join(parts)


def _write_span(text: str, span: _Span, inner: Sequence[_Span]) -> str:
    content = text[span.start : span.end]
    if span.type == "pre":
        return _write_fence(content, span.language)
    if span.type == "code":
        return _write_code(content)
    clipped = [found._replace(end=min(found.end, span.end)) for found in inner]
    written = _write_range(text, clipped, span.start, span.end)
    if span.type == "blockquote":
        return "\n".join(f"> {line}" for line in written.split("\n"))
    if span.type == "text_link":
        return _write_link(content, written, span.url)
    marker = _MARKERS.get(span.type, "")
    # Discord sees no formatting if there is white space inside the marks.
    before = written[: len(written) - len(written.lstrip())]
    after = written[len(written.rstrip()) :]
    core = written.strip()
    return f"{before}{marker}{core}{marker}{after}" if core else written


def _write_fence(code: str, language: str) -> str:
    """Write code. A fence inside the code is taken apart by an invisible character: Discord has no longer fences."""
    safe = code.replace("```", f"``{_ZERO_WIDTH}`").strip("\n")
    return f"```{language}\n{safe}\n```"


def _write_code(code: str) -> str:
    if "`" not in code:
        return f"`{code}`"
    safe = code.replace("``", f"`{_ZERO_WIDTH}`")
    return f"`` {safe} ``"


def _write_link(label: str, written: str, url: str) -> str:
    target = url.replace("<", "%3C").replace(">", "%3E").replace(" ", "%20")
    if label == url or _URL.search(label):
        # Discord shows no link whose text looks like an address.
        return f"<{target}>" if label == url else f"{written} (<{target}>)"
    return f"[{written}](<{target}>)"


def _escape(text: str) -> str:
    """Return a plain text, so that Discord formats nothing in it."""
    parts: list[str] = []
    position = 0
    for found in _URL.finditer(text):
        parts.append(_escape_words(text[position : found.start()]))
        # A backslash would become a part of the address.
        parts.append(found[0])
        position = found.end()
    parts.append(_escape_words(text[position:]))
    return _LINE_START.sub(r"\1\\\2", "".join(parts))


def _escape_words(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)

"""Convert an HTML page to plain lines: the visible text, and the targets of the links.

Scripts, styles and elements hidden by the markup are omitted, because a page could address the model in text invisible
to the person. Style sheets are not read, so text hidden only by a style sheet remains. The module does no I/O. The work
per page is bounded, because a page can be built to be expensive to parse.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from typing import Final, NamedTuple
from urllib.parse import urljoin

__all__ = ["decoded", "readable"]

MARKUP_CHARS_MAX: Final = 2_000_000
MARKS_MAX: Final = 100_000
"""The limits for parsing a page: characters of markup (`MARKUP_CHARS_MAX`), and tags and texts (`MARKS_MAX`)."""
_LINK_CHARS_MAX = 1000
_DEPTH_MAX = 8


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VOID = _words("area base br col embed hr img input link meta param source track wbr")
_UNSEEN = _words(
    "audio canvas datalist iframe object script select style svg template textarea video"
)
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_LINES = _words("br caption dd dt li tr")
_BLOCKS = frozenset(_HEADINGS) | _words(
    "address article aside blockquote details dialog div dl fieldset figcaption figure footer form header hr main nav ol "
    "p pre section summary table ul"
)
_CLOSES = {
    "p": _BLOCKS,
    "li": frozenset({"li"}),
    "dt": frozenset({"dd", "dt"}),
    "dd": frozenset({"dd", "dt"}),
    "td": frozenset({"td", "th", "tr"}),
    "th": frozenset({"td", "th", "tr"}),
    "tr": frozenset({"tr"}),
}
"""Elements closed without an end tag, with the start tags closing them."""
_HIDING = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|(?:font-size|opacity)\s*:\s*0(?:\.0*)?(?![.\d])",
    re.IGNORECASE,
)
_SPACES = re.compile(r"\s+")

_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_SAYS_CHARSET = re.compile(
    rb"(?:<meta[^>]{1,300}charset|^\s*<\?xml[^>]{1,100}encoding)\s*=\s*[\"']?\s*([-\w.:]{1,40})",
    re.IGNORECASE,
)
_HEAD_BYTES = 1024
_LABEL = re.compile(r"[-\w.:]{1,40}", re.ASCII)
_CODECS = re.compile(
    r"utf-8|utf-16(-[lb]e)?|cp(125\d|866|874|932|949)|iso8859-\d+|koi8-[ru]|gbk|gb18030|big5|big5hkscs|euc_(jp|kr)"
    r"|shift_jis|iso2022_jp|mac-roman"
)
_MEANT = {"ascii": "cp1252", "iso8859-1": "cp1252", "gb2312": "gb18030"}
"""The encodings that pages actually mean by these labels."""


class _Open(NamedTuple):
    tag: str
    hidden: bool
    link: str
    said: int
    """The number of text characters before the element."""


class _Enough(Exception):
    """The page reached a limit."""


def readable(html: str, url: str, chars_max: int) -> tuple[str, bool]:
    """Return up to about `chars_max` characters of text of the page at `url`, and whether the text is complete."""
    page = _Page(url, chars_max)
    whole = len(html) <= MARKUP_CHARS_MAX
    try:
        page.feed(html[:MARKUP_CHARS_MAX])
        page.rest()
    except _Enough:
        whole = False
    return page.text(), whole


def decoded(data: bytes, charset: str | None) -> str:
    """Decode bytes by the byte order mark, the HTTP header, the declaration in the page, or a guess, in that order."""
    for mark, codec in _BOMS.items():
        if data.startswith(mark):
            return data.decode(codec, "replace")
    says = _SAYS_CHARSET.search(data, 0, _HEAD_BYTES)
    inside = _codec(says[1].decode("ascii", "replace")) if says else None
    if inside is not None and inside.startswith("utf-16"):
        # In real UTF-16 the declaration would be unreadable.
        inside = "utf-8"
    if codec_said := _codec(charset or "") or inside:
        return data.decode(codec_said, "replace")
    try:
        # The last character may be incomplete.
        return codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def _codec(label: str) -> str | None:
    """Return the Python codec of an encoding used on the web, or `None`. Some codecs of Python do not encode text."""
    if not _LABEL.fullmatch(label):
        return None
    try:
        name = codecs.lookup(label).name
    except LookupError:
        return None
    name = _MEANT.get(name, name)
    return name if _CODECS.fullmatch(name) else None


class _Page(HTMLParser):
    """The parser of a page. `close` is never called, because `close` can take unbounded time on a broken page."""

    def __init__(self, url: str, chars_max: int) -> None:
        super().__init__()
        self._base = url
        self._left = chars_max
        self._marks = 0
        self._said = 0
        self._open: list[_Open] = []
        self._count: Counter[str] = Counter()
        self._hidden = 0
        self._title: list[str] = []
        self._out: list[str] = []
        self._now: list[str] = []
        self._prefix = ""
        self._gap = 0

    def text(self) -> str:
        self._break(0)
        title = _SPACES.sub(" ", "".join(self._title)).strip()
        return "\n\n".join(filter(None, [title, "".join(self._out)]))

    def rest(self) -> None:
        """Handle the text after the last tag. An unfinished tag or comment is dropped, as in a browser."""
        if not self.rawdata.startswith("<") and not self.cdata_elem:
            self.handle_data(unescape(self.rawdata))

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Parse `<![` as a comment, as in HTML. The parser of the standard library raises for some inputs."""
        return self.parse_bogus_comment(i, report)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Handle `<tag/>`. The slash has a meaning only inside `svg`."""
        if tag != "svg" and not self._count["svg"]:
            self.handle_starttag(tag, attrs)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._mark()
        # Of two attributes with the same name, the first counts.
        said = dict(reversed(attrs))
        if self._open and tag in _CLOSES.get(self._open[-1].tag, ()):
            self._pop()
        self._begin_element(tag)
        if tag == "base":
            self._base = self._link(said) or self._base
        if tag in _VOID:
            return
        hidden = _hides(tag, said)
        self._hidden += hidden
        self._open.append(
            _Open(tag, hidden, self._link(said) if tag == "a" else "", self._said)
        )
        self._count[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._mark()
        if not self._count[tag]:
            return
        while self._open[-1].tag != tag:
            self._pop()
        self._pop()

    def handle_data(self, data: str) -> None:
        self._mark()
        if self._hidden:
            return
        if self._open and self._open[-1].tag == "title":
            self._title.append(self._taken(data))
        elif self._count["pre"]:
            self._say(data)
        else:
            self._say(_SPACES.sub(" ", data))

    def _mark(self) -> None:
        self._marks += 1
        if self._marks > MARKS_MAX:
            raise _Enough

    def _begin_element(self, tag: str) -> None:
        """Write the separator or prefix before the text of an element."""
        if tag in {"td", "th"}:
            if self._now:
                self._now.append(" | ")
        elif self._count["td"] + self._count["th"] and tag not in {"tr", "table"}:
            if tag in _BLOCKS or tag in _LINES:
                self._now.append(" ")
        elif tag in _BLOCKS or tag in _LINES:
            self._break(1 if tag in _LINES or self._count["li"] else 2)
            if tag == "li":
                depth = min(self._count["ul"] + self._count["ol"], _DEPTH_MAX)
                self._prefix = "  " * (depth - 1) + "- "
            elif tag in _HEADINGS:
                self._prefix = _HEADINGS[tag]

    def _pop(self) -> None:
        """Close the innermost open element."""
        tag, hidden, link, said = self._open[-1]
        if link and not self._hidden and self._said > said:
            self._say(f" ({link})")
        in_cell = self._count["td"] + self._count["th"] and tag not in {"tr", "table"}
        if (tag in _BLOCKS or tag in _LINES) and not in_cell:
            self._break(1 if tag in _LINES or self._count["li"] else 2)
        if tag == "li" or tag in _HEADINGS:
            self._prefix = ""
        self._open.pop()
        self._count[tag] -= 1
        self._hidden -= hidden

    def _say(self, text: str) -> None:
        self._now.append(self._taken(text))

    def _taken(self, text: str) -> str:
        if not text.isspace():
            self._said += len(text)
        self._left -= len(text)
        if self._left < 0:
            self._now.append(text[: self._left])
            raise _Enough
        return text

    def _break(self, lines: int) -> None:
        """End the current line. At least `lines` line breaks follow before the next line."""
        line = "".join(self._now)
        line = (
            line.strip("\n").rstrip()
            if self._count["pre"]
            else _SPACES.sub(" ", line).strip()
        )
        self._now.clear()
        if line:
            self._out += ["\n" * self._gap if self._out else "", self._prefix, line]
            self._prefix, self._gap = "", 0
        self._gap = max(self._gap, lines)

    def _link(self, said: dict[str, str | None]) -> str:
        """Return the absolute URL of a link to a different page, or an empty text."""
        try:
            link = urljoin(self._base, (said.get("href") or "#").strip())
        except ValueError:
            return ""
        here = link.partition("#")[0] == self._base.partition("#")[0]
        fit = link.startswith(("http://", "https://")) and len(link) <= _LINK_CHARS_MAX
        return link if fit and not here else ""


def _hides(tag: str, said: dict[str, str | None]) -> bool:
    return (
        tag in _UNSEEN
        or "hidden" in said
        or said.get("aria-hidden") == "true"
        or (tag == "dialog" and "open" not in said)
        or _HIDING.search(said.get("style") or "") is not None
    )

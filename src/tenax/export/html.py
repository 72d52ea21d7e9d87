"""Export as HTML: a single file without scripts and without requests, for reading and printing.

Everything foreign is escaped. Answers are rendered from Markdown without HTML and without pictures from elsewhere.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from tenax.clock import rfc3339
from tenax.export.markdown import minute
from tenax.export.rows import NAMES, STATES, Exported, Indexed, describe_part, say_row
from tenax.parts import Image
from tenax.text import replace_controls, replace_hidden, to_one_line
from tenax.views.transcript import Row

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


__all__ = ["write", "write_index"]

_PICTURE_KINDS: Final = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_STYLE: Final = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #1b1f23; background: #fff; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1rem; margin: 0; }
article { margin: 1.5rem 0; overflow-wrap: anywhere; } article.user { background: #f3f4f6; border-radius: .75rem; padding: .75rem 1rem; }
.meta, .note { color: #57606a; font-size: .85rem; } .note { border-left: 3px solid #d0d7de; padding-left: .75rem; }
.plain { white-space: pre-wrap; } details { margin: .75rem 0; } summary { color: #57606a; font-size: .9rem; cursor: default; }
pre { background: #f6f8fa; border-radius: .5rem; padding: .75rem; overflow-x: auto; font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; }
code { font-family: ui-monospace, monospace; font-size: .9em; } table { border-collapse: collapse; } th, td { border: 1px solid #d0d7de; padding: .25rem .5rem; }
blockquote { margin: 0 0 0 .25rem; padding-left: .75rem; border-left: 3px solid #d0d7de; color: #57606a; } img { max-width: 100%; height: auto; }
@media print { body { margin: 0; max-width: none; font-size: 11pt; } h2, summary { break-after: avoid; } pre, img, tr { break-inside: avoid-page; }
  details::details-content { content-visibility: visible; block-size: auto; } a { color: inherit; } }
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write(
    exported: Exported,
    rows: Iterator[Row],
    get_blob: Callable[[str], bytes | None],
) -> Iterator[str]:
    """Yield the pieces of the page."""
    title = exported.title or "Conversation"
    times = f"{minute(exported.opened_at)} to {minute(exported.updated_at)} (UTC)"
    yield _head(title)
    yield f'<h1>{_shown(title)}</h1>\n<p class="meta">{times}, conversation {escape(exported.id)}</p>\n'
    for row in rows:
        yield from _row(row, get_blob)
    yield "</html>\n"


def write_index(index: Iterable[Indexed]) -> Iterator[str]:
    """Yield the pieces of the page with links to all conversations."""
    yield f"{_head('Conversations')}<h1>Conversations</h1>\n<ul>\n"
    for entry in index:
        exported = entry.conversation
        link = f'<a href="{escape(quote(entry.file))}">{_shown(exported.title or "Conversation")}</a>'
        yield f'<li>{link} <span class="meta">{minute(exported.updated_at)}, {exported.messages:,} messages</span></li>\n'
    yield "</ul>\n</html>\n"


def _head(title: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer">\n<title>{_shown(title)}</title>\n<style>{_STYLE}</style>\n'
    )


def _row(row: Row, get_blob: Callable[[str], bytes | None]) -> Iterator[str]:
    text = "(erased)" if row.erased else replace_controls(row.text)
    if row.kind == "tool":
        yield _tool(row, text)
        return
    if row.kind not in NAMES:
        yield f'<p class="note">{_shown(say_row(row))}</p>\n'
        return
    name = to_one_line(row.author) or NAMES[row.kind]
    details = [minute(rfc3339(row.at))]
    if row.model:
        details.append(to_one_line(row.model))
    if row.state in STATES:
        details.append(STATES[row.state])
    yield f'<article class="{row.kind}">\n<h2>{_shown(name)}</h2>\n<div class="meta">{_shown(", ".join(details))}</div>\n'
    if row.thought:
        yield f'<details><summary>Reasoning</summary><div class="plain">{_text(row.thought)}</div></details>\n'
    if row.kind == "user":
        yield f'<div class="plain">{_text(text)}</div>\n'
    else:
        yield _renderer().render(text)
    for part in row.parts:
        yield _part(part, get_blob)
    yield "</article>\n"


def _tool(row: Row, text: str) -> str:
    late = ", late" if row.late else ""
    title = f"{to_one_line(row.name)} ({row.state}{late})"
    blocks = "".join(
        f"<pre>{_text(block)}</pre>" for block in (row.arguments, text) if block
    )
    return f"<details><summary>{_shown(title)}</summary>{blocks}</details>\n"


def _part(part: object, get_blob: Callable[[str], bytes | None]) -> str:
    described = _shown(describe_part(part))
    if isinstance(part, Image) and part.media_type in _PICTURE_KINDS:
        data = get_blob(part.blob)
        if data is not None:
            source = f"data:{part.media_type};base64,{base64.b64encode(data).decode()}"
            return f'<p><img alt="{described}" src="{source}"></p>\n'
    return f'<p class="meta">Attachment: {described}</p>\n'


def _shown(text: str) -> str:
    """Return a line as HTML."""
    return escape(replace_hidden(text))


def _text(text: str) -> str:
    """Return a text of several lines as HTML."""
    return escape(replace_hidden(replace_controls(text), keep="\n\t"))


@cache
def _renderer() -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415  (only HTML needs it)

    renderer = MarkdownIt("commonmark", {"html": False})
    # A picture from elsewhere would tell its server that somebody reads the file.
    return renderer.enable(["table", "strikethrough"]).disable("image")

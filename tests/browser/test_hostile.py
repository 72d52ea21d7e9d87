"""Whatever a model, a tool or a stranger writes is text: nothing of it runs, asks elsewhere, or breaks the page."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from tenax.events import ConversationTitled, MessageAssistant, MessageUser, ToolFinished
from tenax.models import Reply, ScriptedCall
from tenax.parts import Reasoning, Text, ToolCall
from tests.support.browser import Serve, Tab, Window, client, expect
from tests.support.turns import new_conversation

EVIL = """<script>window.__pwned = 1; alert(1)</script>
<img src=x onerror="window.__pwned = 2"> <svg onload="window.__pwned = 3"></svg>
<iframe src="http://evil.invalid/frame"></iframe> <base href="http://evil.invalid/">
<style>* { display: none !important }</style> <form action="http://evil.invalid/"><input name=q></form>
[click](javascript:window.__pwned=4) [data](data:text/html,<script>window.__pwned=5</script>)
![image](http://evil.invalid/pixel.png) [ref]: javascript:window.__pwned=6
<a href="javascript:window.__pwned=7" id=page name=cookie>needle</a> <math><mtext><img src=x onerror=window.__pwned=8>
```html onload=window.__pwned=9
</code></pre><script>window.__pwned = 10</script>
```
| a | b |
|---|---|
| <img src=x onerror=window.__pwned=11> | [x](vbscript:x) |
"""
SIGNS = "needle \x01\x07\x08\x1b[31mred\x1b[0m \u202egnp.exe\u202c \u200b\ufeff\ufffd\U000e0041"
HALVES = SIGNS + "\x00 \ud83d"
"""No text: a model may say it, and it is repaired before it is stored."""


def is_harmless(tab: Tab, window: Window) -> None:
    """Nothing ran, nothing was asked of anybody else, and no element came in that could do either."""
    assert tab.page.evaluate("window.__pwned") is None
    assert (
        tab.page.locator(
            "main iframe, main script, main style, main base, main object, main embed"
        ).count()
        == 0
    )
    assert (
        tab.page.locator(
            ".transcript img, .transcript form, .transcript input, .text svg,"
            " .transcript svg:not(button.icon > svg)"
        ).count()
        == 0
    )
    links = tab.page.locator(".transcript a").evaluate_all(
        "links => links.map(link => link.getAttribute('href'))"
    )
    assert [link for link in links if not re.match(r"https?://|/|#", link or "#")] == []
    handlers = "all => all.flatMap(each => each.getAttributeNames()).filter(name => name.startsWith('on'))"
    assert tab.page.locator("*").evaluate_all(handlers) == []
    window.check()


def hostile_talk(home: Path) -> str:
    """The same things in every place that a row has."""
    call = ToolCall(
        "call_<b>1",
        "<img src=x onerror=window.__pwned=20>",
        '{"path": "<script>window.__pwned=21</script>"}',
    )
    bad = ToolCall(
        "call_2", "read_file", "{not json <script>window.__pwned=22</script>"
    )
    return new_conversation(
        f"sqlite:///{home / 'tenax.db'}",
        ConversationTitled(f"needle {EVIL[:120]}"),
        MessageUser([Text(EVIL)], author="<script>window.__pwned=23</script>"),
        MessageAssistant(
            [Reasoning(EVIL), Text(EVIL), call, bad],
            model="<img src=x onerror=window.__pwned=24>",
        ),
        ToolFinished(4, "call_<b>1", "done", EVIL),
        ToolFinished(4, "call_2", "failed", HALVES),
        MessageUser([Text(SIGNS)]),
        MessageAssistant([Text(HALVES)]),
    )


def test_what_is_stored_is_shown_as_text(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """In messages, answers, reasoning, tools, arguments, titles, authors, models and search hits."""
    name = hostile_talk(tmp_path)
    served = serve("Yes.")
    tab = window.enter(served)
    tab.page.goto(f"{served.url}/c/{name}")
    expect(tab.rows("user")).to_have_count(2)
    expect(tab.rows("assistant").first).to_contain_text("needle")
    for element in tab.page.locator("details > summary").all():
        element.click()
    expect(tab.rows("tool").first).to_contain_text(
        "<script>window.__pwned = 1; alert(1)</script>"
    )
    assert tab.texts("user")[0] == EVIL.strip()
    is_harmless(tab, window)
    tab.page.get_by_label("Search all conversations").fill("needle")
    expect(tab.page.locator("a[data-hit]").first).to_be_visible()
    is_harmless(tab, window)
    tab.say("Still there?")
    tab.answered("Yes.")
    is_harmless(tab, window)


def test_what_streams_in_is_shown_as_text(serve: Serve, window: Window) -> None:
    """Piece by piece, where half a tag stands at every moment; and a tool that asks with such arguments."""
    write = ScriptedCall(
        "write_file",
        {"path": "<img src=x onerror=window.__pwned=30>\u202etxt.exe", "content": EVIL},
    )
    tab = window.enter(serve(Reply(EVIL, pause=0.01), Reply("May I?", calls=[write])))
    tab.say("Begin")
    expect(tab.rows("assistant", "")).to_have_count(1)
    is_harmless(tab, window)
    tab.say(EVIL)
    asks = tab.rows("tool", "asks")
    expect(asks).to_contain_text("<script>window.__pwned = 1; alert(1)</script>")
    expect(asks).to_contain_text("\\u202e")
    is_harmless(tab, window)


def test_a_picture_from_here_does_nothing(serve: Serve, window: Window) -> None:
    """What an answer shows as a picture begins no tour and examines no store."""
    window.expects("status of 40[34]")
    served = serve("Look: ![a](/tour) ![b](/api/doctor)", "Yes.")
    tab = window.enter(served)
    tab.say("Begin")
    expect(tab.rows("assistant", "").locator("img")).to_have_count(2)
    for picture in tab.rows("assistant").locator("img").all():
        expect(picture).to_have_js_property("complete", True)
    assert {"/tour", "/api/doctor"} <= {
        urlsplit(request).path for request in window.requests
    }
    tab.say("And now?")
    tab.answered("Yes.")
    assert len(client(served).get("/conversations")["conversations"]) == 1


def test_a_title_with_tags_is_a_title(serve: Serve, window: Window) -> None:
    """Typed by a person, shown in the list and above."""
    tab = window.enter(serve("Yes."))
    tab.say("Hello")
    tab.answered("Yes.")
    tab.menu("Rename")
    title = tab.page.get_by_label("Title")
    evil = "<img src=x onerror=window.__pwned=40>"
    title.fill(evil)
    title.press("Enter")
    expect(tab.page.get_by_role("heading", level=1)).to_have_text(evil)
    expect(tab.page.locator("[data-conversation] .title")).to_have_text(evil)
    is_harmless(tab, window)


def test_three_million_characters_are_shown_and_the_page_stays_usable(
    serve: Serve, window: Window
) -> None:
    """As a message of the person and as an answer, whole when asked for."""
    large = "".join(
        f"line {n:06} of a text that nobody will read to its end\n"
        for n in range(55_000)
    )
    served = serve("Yes.")
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    client(served).say(tab.conversation, large)
    tab.answered("Yes.", count=2)
    more = tab.page.get_by_role("button", name="Show all")
    expect(more).to_have_text(re.compile(rf"Show all \({len(large):,} characters\)"))
    more.click()
    expect(tab.rows("user").last.locator(".piece").last).to_contain_text("line 054999")
    assert tab.rows("user").last.locator(".box").text_content() == large
    tab.say("And now?")
    tab.answered("Yes.", count=3)
    is_harmless(tab, window)

"""Whatever a model, a tool or a stranger writes is text: nothing of it runs, asks elsewhere, or breaks the page."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from tenax.events import ConversationTitled, MessageAssistant, MessageUser, ToolFinished
from tenax.models import Reply, ScriptedCall
from tenax.parts import Reasoning, Text, ToolCall
from tests.support.browser import Serve, Tab, Window, client, expect, inside, source
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
            " .transcript svg:not(.icon)"
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


DIAGRAMS = """```mermaid
%%{init: {"securityLevel": "loose", "htmlLabels": true, "themeCSS": "@import url(https://evil.invalid/x.css)"}}%%
graph TD
  A["<script>window.__pwned = 50</script><img src=x onerror='window.__pwned = 51'>needle"] --> B["<iframe src='https://evil.invalid/frame'></iframe>"]
  B --> C["<a href='javascript:window.__pwned=52'>link</a>"]
  click A "javascript:window.__pwned=53" "tip"
  click B href "https://evil.invalid/click" _top
  click C call window.alert("54")
  style A fill:url(https://evil.invalid/fill.png)
```

```mermaid
graph TD
  A[<img src="https://evil.invalid/pixel.png">] --> B[plain]
```
"""
HUGE = "\n\n".join(
    "```mermaid\ngraph TD\n"
    + "".join(f"  N{n} --> N{n + 1}\n" for n in range(edges))
    + "```"
    for edges in (400, 3_000)
)
PREVIEWS = """```html
<!doctype html><base href="https://evil.invalid/"><meta http-equiv="refresh" content="0;url=https://evil.invalid/refresh">
<link rel="preconnect" href="https://evil.invalid/"><link rel="stylesheet" href="https://evil.invalid/x.css">
<style>@import url(https://evil.invalid/y.css); h1 { background: url(https://evil.invalid/z.png) }</style>
<script>parent.window.__pwned = 60; top.location = "https://evil.invalid/top"</script>
<h1 onclick="window.__pwned = 61">needle</h1><img src="https://evil.invalid/pixel.png" onerror="window.__pwned = 62">
<form action="https://evil.invalid/form"><input name="q" autofocus></form><iframe src="https://evil.invalid/frame"></iframe>
<a id="out" href="https://evil.invalid/link" target="_top">out</a><video src="https://evil.invalid/v.mp4" autoplay></video>
```

```svg
<svg xmlns="http://www.w3.org/2000/svg" onload="window.__pwned = 63"><script>window.__pwned = 64</script>
<image href="https://evil.invalid/i.png"/><foreignObject><img src=x onerror="window.__pwned = 65"></foreignObject><text y="20">needle</text></svg>
```
"""


def nothing_ran(tab: Tab) -> None:
    """Not in the page, and in no frame of it."""
    for frame in tab.page.frames:
        # Nothing runs in a frame without scripts, nor in one without a document: that would not even answer.
        if frame.url and "srcdoc" not in frame.url:
            assert frame.evaluate("window.__pwned") is None
    assert re.match(r"http://127\.0\.0\.1:\d+/", tab.page.url)


def test_a_hostile_diagram_reaches_nothing(serve: Serve, window: Window) -> None:
    """Its scripts, links and directives do nothing, and it asks nobody: its frame has no network."""
    window.expects("Content Security Policy", "Blocked|blocked", "Unsafe attempt")
    tab = window.enter(serve(DIAGRAMS))
    tab.say("Draw it")
    boxes = tab.rows("assistant", "").locator(".code")
    expect(boxes).to_have_count(2)
    for box in boxes.all():
        # drawn, or refused with a line
        expect(box.locator("iframe, .status")).to_have_count(1)
        expect(box).not_to_have_class(re.compile("drawing"))
    drawn = boxes.locator("iframe")
    if drawn.count():
        for link in inside(drawn.first).locator("a, .clickable").all():
            link.dispatch_event("click")
    nothing_ran(tab)
    assert tab.page.evaluate("document.querySelectorAll('main svg a').length") == 0
    window.check()


def test_a_huge_diagram_stays_code(serve: Serve, window: Window) -> None:
    """One line says why. The page stays usable."""
    tab = window.enter(serve(HUGE, "Yes."))
    tab.say("Draw it")
    answer = tab.rows("assistant", "")
    # A diagram is drawn when it comes into view.
    answer.locator(".code").first.scroll_into_view_if_needed()
    expect(answer.locator(".code > .status")).to_contain_text(
        ["The diagram cannot be drawn: "] * 2
    )
    expect(answer.locator("iframe")).to_have_count(0)
    tab.say("Still there?")
    tab.answered("Yes.")
    nothing_ran(tab)


def test_only_the_frame_of_a_diagram_sets_its_height(
    serve: Serve, window: Window
) -> None:
    """A message from anywhere else, or with another content, changes nothing."""
    tab = window.enter(serve("```mermaid\ngraph TD\n  A --> B\n```", "Yes."))
    tab.say("Draw it")
    box = tab.rows("assistant", "").locator(".code")
    expect(inside(box.locator("iframe")).locator("svg")).to_be_visible()
    height = "frame => frame.style.height"
    before = box.locator("iframe").evaluate(height)
    tab.page.evaluate("window.postMessage({ height: 9999, error: 'x' }, '*')")
    inner = tab.page.frames[1]
    for message in (
        "'x'",
        "null",
        "{ height: '9' }",
        "{ height: NaN }",
        "{ height: -5 }",
    ):
        inner.evaluate(f"parent.postMessage({message}, '*')")
    tab.say("Still there?")
    tab.answered("Yes.")
    assert box.locator("iframe").evaluate(height) == before
    inner.evaluate("parent.postMessage({ height: 1e9 }, '*')")
    expect(box.locator("iframe")).to_have_css("height", "1500px")


def test_a_hostile_preview_reaches_nothing(serve: Serve, window: Window) -> None:
    """It is shown without scripts, in a frame without network, and leads nowhere."""
    window.expects("Content Security Policy", "Blocked|blocked", "Unsafe attempt")
    tab = window.enter(serve(PREVIEWS))
    tab.say("Write it")
    boxes = tab.rows("assistant", "").locator(".code")
    expect(boxes).to_have_count(2)
    for box in boxes.all():
        box.get_by_role("button", name="Preview").click()
        inner = inside(box.locator("iframe")).locator("iframe")
        assert source(inner, "h1, text") == ["needle"]
        assert source(inner, "script, link, meta, base, form, iframe") == []
    preview = inside(inside(boxes.first.locator("iframe")).locator("iframe"))
    preview.locator("#out").click()
    nothing_ran(tab)
    window.check()


def test_a_hostile_picture_has_no_button(serve: Serve, window: Window) -> None:
    """Odd schemes, credentials and policies in the address: a link at most."""
    addresses = [
        "http://evil.invalid/x.png",
        "https://user:secret@evil.invalid/x.png",
        "https://evil.invalid;script-src/x.png",
        "//evil.invalid/x.png",
        "ftp://evil.invalid/x.png",
        "blob:https://evil.invalid/x",
        "https://[::1]/x.png",
    ]
    text = "\n\n".join(f"![needle](<{address}>)" for address in addresses)
    tab = window.enter(serve(text))
    tab.say("Show it")
    expect(tab.rows("assistant", "")).to_contain_text("needle")
    expect(tab.page.locator(".picture .show")).to_have_count(0)
    is_harmless(tab, window)

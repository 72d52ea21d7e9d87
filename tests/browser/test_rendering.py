"""How answers and tool calls look: formulas, diagrams, pictures, code, footnotes, and commands that failed."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Request, Route

import tenax
from tenax.events import MessageAssistant, MessageUser
from tenax.journal import LOCAL_USER
from tenax.models import Reply, ScriptedCall
from tenax.parts import Image, Text
from tests.browser.test_for_everybody import nothing_is_wrong
from tests.contract.engine.base import begin
from tests.support.browser import Chromium, Pace, Serve, Window, expect, inside, source
from tests.support.files import png

MATH = r"""Energy: \(E = mc^2\), and a price of $5 to $6.

\[
\int_0^1 x\,dx = \frac{1}{2}
\]

Broken: \(\frac{1\)
"""


def test_formulas_are_drawn_and_nothing_of_them_is_lost(
    serve: Serve, window: Window
) -> None:
    """A formula that is not valid shows its source, backslashes included."""
    tab = window.enter(serve(MATH))
    tab.say("Show me")
    answer = tab.rows("assistant", "")
    expect(answer.locator("math")).to_have_count(2)
    expect(answer.locator("math mfrac")).to_have_count(1)
    expect(answer).to_contain_text("a price of $5 to $6.")
    expect(answer).to_contain_text(r"Broken: \(\frac{1\)")


def test_a_command_that_fails_is_red_and_open(serve: Serve, window: Window) -> None:
    """Its exit code stands in its line. A command that succeeds shows only its time."""
    calls = [
        ScriptedCall("shell", {"command": "echo fine"}),
        ScriptedCall("shell", {"command": "echo lost; exit 3"}),
    ]
    tab = window.enter(serve(Reply(calls=calls), "Done."))
    tab.say("Run it")
    for command in ("echo fine", "echo lost; exit 3"):
        card = tab.page.get_by_role("region", name="Approval needed")
        card = card.filter(has_text=command)
        # A click in the first moments is ignored: it may be meant for what was there before.
        once = card.get_by_role("button", name="Allow once")
        expect(once).not_to_have_attribute("aria-disabled", "true")
        once.click()
        expect(card).to_have_count(0)
    tab.answered("Done.")
    expect(tab.page.locator(".work > summary")).to_contain_text("Ran 2 commands")
    expect(tab.page.locator(".work > summary")).to_contain_text("1 failed")
    tab.unfold()
    good, bad = tab.rows("tool").nth(0), tab.rows("tool").nth(1)
    expect(bad.locator(".ending")).to_contain_text("exit 3")
    expect(bad.locator("pre.output")).to_contain_text("lost")
    expect(bad.locator("details")).to_have_attribute("open", "")
    expect(good.locator("summary")).not_to_contain_text("exit")
    expect(good.locator("details")).not_to_have_attribute("open", "")


DIAGRAM = """Before.

```mermaid
graph TD
  A[Start] --> B{Works?}
  B -->|yes| C[Ship it]
```

```mermaid
graph TD
  A[[[ -->
```
"""


def test_a_diagram_is_drawn_in_a_frame_of_its_own(serve: Serve, window: Window) -> None:
    """The code is one click away. A diagram with an error shows the code and one line."""
    tab = window.enter(serve(DIAGRAM))
    tab.say("Draw it")
    answer = tab.rows("assistant", "")
    good, bad = answer.locator(".code").nth(0), answer.locator(".code").nth(1)
    drawing = inside(good.locator("iframe")).locator("svg")
    expect(drawing).to_contain_text("Ship it")
    expect(good.locator("iframe")).to_have_attribute("sandbox", "allow-scripts")
    expect(good.locator("pre")).to_be_hidden()
    good.get_by_role("button", name="Code").click()
    expect(good.locator("pre")).to_contain_text("A[Start] --> B{Works?}")
    expect(good.locator("iframe")).to_be_hidden()
    good.get_by_role("button", name="Diagram").click()
    expect(good.locator("iframe")).to_be_visible()
    expect(bad.locator(".status")).to_contain_text("The diagram cannot be drawn: ")
    expect(bad.locator("pre")).to_be_visible()
    expect(bad.locator("iframe")).to_have_count(0)


def test_a_diagram_follows_the_theme(serve: Serve, chromium: Chromium) -> None:
    """Light or dark, also when that changes."""
    with chromium.window(color_scheme="dark") as window:
        tab = window.enter(serve(DIAGRAM))
        tab.say("Draw it")
        frame = inside(tab.rows("assistant", "").locator("iframe").first)
        root = frame.locator("html")
        expect(frame.locator("svg")).to_contain_text("Ship it")
        expect(root).to_have_css("color-scheme", "dark")
        tab.page.emulate_media(color_scheme="light")
        expect(root).to_have_css("color-scheme", "light")


PICTURE = "![a cat](https://pictures.example/cat.svg?size=2)"


def test_a_picture_of_another_site_is_loaded_after_a_click(
    serve: Serve, window: Window
) -> None:
    """Before that the other site is not asked, and the page itself cannot ask."""
    address = "https://pictures.example/cat.svg?size=2"
    asked: list[Request] = []

    def give(route: Route) -> None:
        asked.append(route.request)
        svg = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="70"/>'
        route.fulfill(body=svg, content_type="image/svg+xml")

    window.context.route("https://pictures.example/**", give)
    tab = window.enter(serve(PICTURE))
    tab.say("Show it")
    button = tab.rows("assistant", "").get_by_role("button")
    button = button.filter(has_text="Show picture from pictures.example")
    expect(button).to_be_visible()
    assert asked == []
    button.click()
    frame = tab.page.locator(".picture iframe")
    expect(frame).to_have_css("height", "70px")
    assert [request.url for request in asked] == [address]
    assert "referer" not in asked[0].headers
    assert "cookie" not in asked[0].headers
    window.requests.remove(address)  # the only request to somewhere else


LONG_CODE = (
    "```python\n" + "".join(f"line_{n} = 'x'\n" for n in range(1, 121)) + "```\n"
)


def test_code_can_be_folded_wrapped_and_saved(serve: Serve, window: Window) -> None:
    """Long code is folded when the conversation is opened, but not while somebody reads along."""
    tab = window.enter(serve(LONG_CODE))
    tab.say("Write it")
    tab.shows("line_120")
    tab.page.reload()
    code = tab.rows("assistant", "").locator(".code")
    more = code.get_by_role("button", name="Show all 120 lines")
    expect(more).to_have_attribute("aria-expanded", "false")
    pre = code.locator("pre")
    clipped = "pre => pre.clientHeight < pre.scrollHeight / 4"
    assert pre.evaluate(clipped)
    more.click()
    expect(code.get_by_role("button", name="Show less")).to_be_visible()
    assert not pre.evaluate(clipped)
    wrap = code.get_by_role("button", name="Wrap")
    wrap.click()
    expect(wrap).to_have_attribute("aria-pressed", "true")
    expect(pre).to_have_css("white-space-collapse", "preserve")
    expect(pre).to_have_css("text-wrap-mode", "wrap")
    with tab.page.expect_download() as download:
        code.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "code.py"
    expected = LONG_CODE.removeprefix("```python\n").removesuffix("```\n")
    assert Path(download.value.path()).read_text(encoding="utf-8") == expected


def test_code_has_its_colours_while_it_grows(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """And what a person selects in it stays selected."""
    pace = Pace(tmp_path, 60)
    tab = window.enter(serve(Reply(LONG_CODE, pause=0.01), env=pace.env))
    tab.say("Write it")
    growing = tab.rows("assistant", "streaming")
    expect(growing.locator(".hljs-string").nth(2)).to_have_text("'x'")
    select = (
        """span => { window.__span = span; getSelection().selectAllChildren(span) }"""
    )
    growing.locator(".hljs-string").first.evaluate(select)
    pace.say()
    done = tab.rows("assistant", "")
    expect(done.locator(".hljs-string")).to_have_count(120)
    assert (
        tab.page.evaluate("window.__span.isConnected && `${getSelection()}`") == "'x'"
    )
    assert tab.texts("assistant")[0].endswith("line_120 = 'x'\nShow less")


def test_a_footnote_is_one_click_from_its_text_and_back(
    serve: Serve, window: Window
) -> None:
    """Each answer has its own footnotes, even with the same numbers."""
    text = "See this[^1].\n\n[^1]: The note of this answer."
    tab = window.enter(serve(text, text))
    tab.say("One")
    expect(tab.rows("assistant", "")).to_have_count(1)
    tab.say("Two")
    expect(tab.rows("assistant", "")).to_have_count(2)
    for answer in tab.rows("assistant", "").all():
        answer.locator("sup a").click()
        expect(answer.locator(".footnote a")).to_be_focused()
        answer.locator(".footnote a").click()
        expect(answer.locator("sup a")).to_be_focused()
    assert "#" not in tab.page.url


def test_a_growing_answer_shows_no_half_marks(serve: Serve, window: Window) -> None:
    """Stars, backticks, brackets and formulas are never seen, and the text never shrinks."""
    text = (
        "Some **bold text** with `code`, a [link](https://a.example/) and \\(x^2\\).\n\n"
        "- **one**\n- ~~two~~\n\n| a | b |\n|---|---|\n| **c** | `d` |\n\nThe end."
    )
    tab = window.enter(serve(Reply(text, pause=0.02)))
    tab.say("Write it")
    expect(tab.rows("assistant", "")).to_contain_text("The end.")
    marks = [seen for seen in tab.seen if re.search(r"[*`~\[\]]|--", seen)]
    assert marks == []


def test_reduced_motion_gets_the_text_as_it_arrives(
    serve: Serve, chromium: Chromium
) -> None:
    """Nothing is held back, and the text is whole at the end."""
    words = " ".join(f"word{n}" for n in range(150))
    reply = Reply(words, pause=0.01)
    served = serve(reply, reply)
    for how in ({"reduced_motion": "reduce"}, {}):
        with chromium.window(**how) as window:
            tab = window.tab(served.tenax("link").stdout.strip())
            tab.say("Write it")
            tab.answered(words)
            texts = [text for text in tab.seen if text.startswith("word0")]
            assert all(words.startswith(text) for text in texts)


def test_an_attached_picture_is_shown_in_an_answer(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """By its address in this conversation. One that is not there stays a name."""
    url = f"sqlite:///{tmp_path / 'tenax.db'}"
    with tenax.open(url, user=LOCAL_USER) as journal:
        blob = journal.put_blob(png(40, 30))
        picture = Image(blob, "image/png", "plan.png")
        name = begin(journal, MessageUser([Text("Look"), picture]))
        path = f"/api/conversations/{name}/attachments"
        text = f"![the plan]({path}/{blob}) ![nothing]({path}/{'0' * 64})"
        journal.append(name, [MessageAssistant([Text(text)])])
    window.expects("status of 404")
    served = serve("Yes.")
    tab = window.enter(served)
    tab.page.goto(f"{served.url}/c/{name}")
    shown = tab.rows("assistant").get_by_role("img", name="the plan")
    expect(shown).to_have_js_property("naturalWidth", 40)
    expect(tab.rows("assistant")).to_contain_text("nothing")


def test_everything_in_an_answer_is_for_everybody(
    serve: Serve, chromium: Chromium
) -> None:
    """Diagrams, previews, pictures, footnotes and code: light and dark, on a phone and on a desk."""
    html = "```html\n<h1>Hello</h1>\n```\n"
    notes = "A note[^1].\n\n[^1]: Its text."
    served = serve(f"{DIAGRAM}\n{html}\n{LONG_CODE}\n{PICTURE}\n\n{notes}")
    for width, scheme in ((1280, "light"), (390, "dark")):
        size = {"width": width, "height": 844}
        with chromium.window(viewport=size, color_scheme=scheme) as window:
            # Playwright's own script does not run in the frame without scripts
            window.expects("Blocked script execution in 'about:srcdoc'")
            tab = window.tab(served.tenax("link").stdout.strip())
            tab.say("Show it")
            answer = tab.rows("assistant", "")
            drawing = inside(answer.locator(".code.drawn iframe").first)
            expect(drawing.locator("svg")).to_contain_text("Ship it")
            answer.get_by_role("button", name="Preview").click()
            preview = inside(answer.locator(".code:not(.drawn) iframe"))
            assert source(preview.locator("iframe"), "h1") == ["Hello"]
            nothing_is_wrong(tab, f"answer {width}")

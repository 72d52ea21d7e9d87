"""Attaching in the page: pasted, dropped and chosen; kept until it is sent, and shown where it was said."""

from __future__ import annotations

import base64

from playwright.sync_api import Page

from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Window, expect
from tests.support.files import png

PHONE = {"width": 390, "height": 844}
_GIVE = """([kind, name, type, data]) => {
  const carried = new DataTransfer();
  carried.items.add(new File([Uint8Array.from(atob(data), (each) => each.charCodeAt(0))], name, { type }));
  const how = { bubbles: true, cancelable: true };
  const event = kind === "paste" ? new ClipboardEvent("paste", { ...how, clipboardData: carried })
                                 : new DragEvent("drop", { ...how, dataTransfer: carried });
  document.querySelector("textarea").dispatchEvent(event);
}"""


def give(page: Page, how: str, name: str, kind: str, data: bytes) -> None:
    """Paste or drop a file, as a browser would."""
    page.evaluate(_GIVE, [how, name, kind, base64.b64encode(data).decode()])


def test_what_is_attached_is_kept_sent_and_shown(serve: Serve, window: Window) -> None:
    """A refusal is a sentence beside its file; a reload loses neither what waits nor what was sent and did not arrive."""
    served = serve("I see it.")
    window.expects(r"status of 400", r"ERR_FAILED|Failed to fetch")
    tab = window.enter(served)
    page = tab.page
    expect(tab.box).to_be_focused()  # from here on the page listens
    waiting = page.get_by_role("list", name="Attachments").get_by_role("listitem")
    give(page, "paste", "photo.png", "text/html", png(640, 400))
    give(page, "drop", "drawing.svg", "image/svg+xml", b"<svg onload='alert(1)'/>")
    page.get_by_label("Files to attach").set_input_files(
        {"name": "tool.exe", "mimeType": "image/png", "buffer": b"MZ\0\0"}
    )
    expect(waiting).to_have_count(3)
    expect(page.get_by_role("alert")).to_contain_text(
        "tool.exe cannot be read by a model. Attach text, a picture"
    )
    nothing_is_wrong(tab, "attached")
    tab.say("Look at this")
    expect(page.get_by_text("An attachment could not be uploaded.")).to_be_visible()
    assert tab.box.input_value() == "Look at this"
    tab.button("Remove tool.exe").click()
    expect(waiting.get_by_role("progressbar")).to_have_count(0)
    page.reload()
    expect(waiting).to_contain_text(["photo.png", "drawing.svg"])
    page.route("**/messages", lambda route: route.abort())
    tab.box.press("Enter")
    expect(tab.rows("user", "unsent")).to_contain_text("drawing.svg")
    expect(waiting).to_have_count(0)
    assert tab.conversation  # it is opened: the message alone does not get through
    page.reload()
    expect(tab.rows("user", "unsent")).to_contain_text("photo.png")
    page.unroute("**/messages")
    tab.answered("I see it.", count=1)
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    mine = tab.rows("user", "")
    expect(mine).to_have_count(1)
    picture = mine.get_by_role("img", name="photo.png")
    expect(picture).to_have_js_property("naturalWidth", 640)
    link = mine.get_by_role("link", name="drawing.svg")
    with page.expect_download() as saved:
        link.click()
    assert saved.value.suggested_filename == "drawing.svg"
    nothing_is_wrong(tab, "shown")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_ten_files_that_are_refused_leave_room_to_write(
    serve: Serve, window: Window
) -> None:
    """On a phone the sentences would be taller than the screen, and the box and its buttons below it."""
    window.expects(r"status of 400")
    tab = window.enter(serve("Yes."))
    tab.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    refused = [
        {"name": f"tool {n}.exe", "mimeType": "image/png", "buffer": b"MZ\0\0"}
        for n in range(10)
    ]
    tab.page.get_by_label("Files to attach").set_input_files(refused)  # type: ignore[arg-type]
    expect(tab.page.get_by_role("alert")).to_have_count(10)
    expect(tab.box).to_be_in_viewport(ratio=1)
    tab.button("Remove tool 9.exe").click()
    expect(tab.page.get_by_role("alert")).to_have_count(9)


_PASTE = """(text) => {
  const carried = new DataTransfer();
  carried.setData("text/plain", text);
  const event = new ClipboardEvent("paste", { bubbles: true, cancelable: true, clipboardData: carried });
  return document.activeElement.dispatchEvent(event);
}"""


def test_a_long_pasted_text_becomes_a_file(serve: Serve, window: Window) -> None:
    """And a text again on request. A short text, and a paste into another field, is left to the browser."""
    tab = window.enter(serve("I see it."))
    expect(tab.box).to_be_focused()
    waiting = tab.page.get_by_role("list", name="Attachments").get_by_role("listitem")
    assert tab.page.evaluate(_PASTE, "x" * 4000), "the browser does not paste"
    tab.page.evaluate(_PASTE, "x" * 4001)
    expect(waiting).to_contain_text(["pasted text.txt"])
    tab.button("Remove pasted text.txt").click()
    lines = "\n".join(f"line {n}" for n in range(61))
    tab.box.fill("Before after")
    tab.box.evaluate("box => box.setSelectionRange(7, 7)")
    tab.page.evaluate(_PASTE, lines)
    expect(waiting).to_have_count(1)
    tab.button("Insert as text").click()
    expect(waiting).to_have_count(0)
    expect(tab.box).to_have_value(f"Before {lines}after")
    tab.page.evaluate(_PASTE, lines)
    expect(waiting.get_by_role("progressbar")).to_have_count(0)
    tab.say("Look")
    expect(tab.rows("user", "")).to_contain_text("pasted text.txt")
    tab.page.get_by_label("Search all conversations").focus()
    assert tab.page.evaluate(_PASTE, lines), "the browser does not paste"


def test_a_waiting_picture_is_shown_also_after_a_reload(
    serve: Serve, window: Window
) -> None:
    tab = window.enter(serve("I see it."))
    expect(tab.box).to_be_focused()
    give(tab.page, "paste", "photo.png", "image/png", png(640, 400))
    picture = tab.page.get_by_role("list", name="Attachments").locator("img")
    expect(picture).to_have_js_property("naturalWidth", 96)
    expect(tab.page.get_by_role("progressbar")).to_have_count(0)
    tab.page.reload()
    expect(picture).to_have_js_property("naturalWidth", 96)


def test_a_kind_that_no_model_reads_is_named_before_the_upload(
    serve: Serve, window: Window
) -> None:
    tab = window.enter(serve("I see it."))
    expect(tab.box).to_be_focused()
    said = tab.page.get_by_role("alert")
    for name, words in (
        ("report.docx", "Save it as a PDF or as text"),
        ("all.zip", "Unpack it"),
    ):
        give(tab.page, "drop", name, "", b"PK\x03\x04\x14\0\0\0")
        expect(said).to_contain_text(f"{name} cannot be read by a model. {words}")
        expect(tab.button("Try again")).to_have_count(0)
        tab.button(f"Remove {name}").click()
    assert not [url for url in window.requests if "/api/attachments" in url]

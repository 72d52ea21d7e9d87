"""Import in Settings, Data: a file is chosen or dropped, its content is shown, and then it is imported."""

from __future__ import annotations

import base64
from pathlib import Path

from playwright.sync_api import Locator, Page

from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Tab, Window, expect
from tests.support.exports import (
    ImportPace,
    chatgpt_conversation,
    chatgpt_zip,
    many_chatgpt,
)

_DROP = """([name, data]) => {
  const carried = new DataTransfer();
  carried.items.add(new File([Uint8Array.from(atob(data), (each) => each.charCodeAt(0))], name));
  const event = new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: carried });
  document.querySelector("main h1").dispatchEvent(event);
}"""


def choose(page: Page, name: str, data: bytes) -> None:
    page.get_by_label("File to import").set_input_files(
        {"name": name, "mimeType": "application/octet-stream", "buffer": data}
    )


def card(tab: Tab) -> Locator:
    return tab.page.locator(".import .card")


def test_a_file_is_imported_and_its_conversations_are_in_the_list(
    serve: Serve, window: Window
) -> None:
    """A damaged file gets a sentence. A second import of the same file, dropped anywhere in the section, finds nothing new."""
    served = serve("Done.")
    tab = window.enter(served)
    page = tab.page
    page.goto(f"{served.url}/settings/data")
    choose(page, "cut.zip", many_chatgpt(2)[:-40])
    alert = page.locator(".import").get_by_role("alert")
    expect(alert).to_contain_text("cut.zip is a damaged zip file. Download the file")
    talk = chatgpt_conversation(7, "Where is the lamp?", "On the roof.")
    data = chatgpt_zip(talk, {"id": "x", "title": "Broken", "mapping": 5})
    choose(page, "chat.zip", data)
    expect(card(tab)).to_contain_text("chat.zip is an export of ChatGPT.")
    expect(alert).to_be_empty()
    expect(card(tab)).to_contain_text("1 new conversation")
    expect(page.get_by_role("switch")).not_to_be_checked()
    card(tab).get_by_text("Why they are skipped").click()
    expect(card(tab).locator(".reasons")).to_contain_text("Broken: ")
    nothing_is_wrong(tab, "dry run")
    tab.button("Import 1 conversation").press("Enter")
    expect(card(tab)).to_contain_text("chat.zip is imported.")
    expect(page.get_by_role("heading", name="Import", exact=True)).to_be_focused()
    nothing_is_wrong(tab, "imported")
    page.get_by_role("link", name="Open the first one").click()
    expect(tab.rows("user")).to_contain_text("Where is the lamp?")
    expect(tab.rows("assistant")).to_contain_text("On the roof.")
    page.goto(f"{served.url}/settings/data")
    tab.button("Close").click()
    expect(tab.button("Choose a file")).to_be_visible()
    page.evaluate(_DROP, ["chat.zip", base64.b64encode(data).decode()])
    expect(card(tab)).to_contain_text("Nothing is new")
    tab.button("Close").click()
    expect(card(tab)).to_have_count(0)


def test_an_import_goes_on_without_the_page(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """A reload in the dry run and in the import shows where it is, and the window may be closed."""
    pace = ImportPace(tmp_path, 0)
    served = serve("Done.", env=pace.env)
    tab = window.enter(served)
    page = tab.page
    page.goto(f"{served.url}/settings/data")
    choose(page, "many.zip", many_chatgpt(4))
    expect(card(tab)).to_contain_text("Looking through many.zip…")
    page.reload()
    expect(card(tab)).to_contain_text("Looking through many.zip…")
    pace.allow()
    expect(tab.button("Import 4 conversations")).to_be_visible()
    pace.allow(1)
    tab.button("Import 4 conversations").click()
    expect(card(tab)).to_contain_text("1 of 4 conversations")
    expect(page.locator(".import progress")).to_have_js_property("position", 0.25)
    page.close()
    tab = window.tab(f"{served.url}/settings/data")
    expect(card(tab)).to_contain_text("1 of 4 conversations")
    pace.allow()
    expect(card(tab)).to_contain_text("4 new conversations")
    tab.button("Show the conversations").click()
    expect(tab.page.get_by_role("link", name="Talk 3")).to_be_visible()

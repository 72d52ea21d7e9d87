"""The list of conversations, and what moving between conversations leaves behind."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Locator

from tenax.models import Reply, ScriptedCall
from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Tab, Window, client, expect
from tests.support.served import Page as Client


def test_a_temporary_conversation_is_marked_and_an_unused_one_is_not_listed(
    serve: Serve, window: Window
) -> None:
    tab = window.enter(serve("Yes."))
    items = tab.page.locator("a[data-conversation]")
    tab.button("New temporary conversation").click()
    expect(items).to_have_count(1)
    tab.page.get_by_role("link", name="New conversation", exact=True).click()
    expect(items).to_have_count(0)
    tab.button("New temporary conversation").click()
    expect(tab.page.get_by_text("Temporary: nothing is added")).to_be_visible()
    tab.say("Hello")
    tab.answered("Yes.")
    tab.page.get_by_role("link", name="New conversation", exact=True).click()
    expect(items.get_by_role("img", name="Temporary")).to_have_count(1)


def test_an_undo_does_not_reach_into_another_conversation(
    serve: Serve, window: Window
) -> None:
    """A toast with an action goes when the person opens something else."""
    tab = window.enter(serve("Yes."))
    tab.say("Hello")
    tab.answered("Yes.")
    tab.menu("Archive")
    expect(tab.button("Undo")).to_be_visible()
    tab.page.get_by_role("link", name="New conversation", exact=True).click()
    expect(tab.button("Undo")).to_have_count(0)


def test_the_page_asks_for_its_setup_once(serve: Serve, window: Window) -> None:
    """One request at the first load, although the stream connects meanwhile."""
    served = serve("Yes.")
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.page.reload()
    tab.answered("Yes.")
    tab.say("Again")
    tab.answered("Yes.", count=2)
    assert sum(url.endswith("/api/setup") for url in asked) == 1


def open_menu(tab: Tab, title: str) -> None:
    tab.page.get_by_role("link", name=title).hover()
    tab.button(f"More: {title}").click()


def item(tab: Tab, name: str) -> Locator:
    return tab.page.get_by_role("menuitem", name=name, exact=True)


def section(tab: Tab, name: str) -> Locator:
    return tab.page.get_by_role("region", name=name, exact=True)


def talk(page: Client, *titles: str) -> list[str]:
    """Conversations with these titles."""
    names = []
    for title in titles:
        name = page.new()
        page.http.patch(f"/api/conversations/{name}", json={"title": title})
        names.append(name)
    return names


def test_a_conversation_that_asks_stands_first_and_says_so(
    serve: Serve, window: Window
) -> None:
    write = ScriptedCall("write_file", {"path": "note.txt", "content": "held"})
    served = serve(Reply("", calls=[write]), "Done.")
    tab = window.enter(served)
    tab.say("Write a note")
    row = section(tab, "Needs you").locator("a[data-conversation]")
    expect(row.get_by_role("img", name="Needs you")).to_be_visible()
    tab.button("Allow once").click()
    tab.answered("Done.")
    expect(section(tab, "Needs you")).to_have_count(0)


def test_an_answer_that_nobody_saw_is_unread_until_somebody_opens_it(
    serve: Serve, window: Window
) -> None:
    """Also in another tab, and no longer after a reload."""
    served = serve("Yes.")
    tab = window.enter(served)
    other = window.tab(served.url)
    # Marks begin with the first conversation that the person reads in the page.
    with tab.page.expect_request(re.compile(r"/read$")):
        tab.say("First")
    tab.answered("Yes.")
    page = client(served)
    name = page.new()
    page.say(name, "Hello")
    row = tab.page.locator(f"a[data-conversation={name}]")
    elsewhere = other.page.locator(f"a[data-conversation={name}]")
    for shown in (row, elsewhere):
        expect(shown.get_by_role("img", name="Unread")).to_be_visible()
    row.click()
    tab.answered("Yes.")
    expect(elsewhere).to_have_attribute("data-unread", "false")
    other.page.reload()
    expect(elsewhere).to_have_attribute("data-unread", "false")

    # a run that ends while the person looks is read at once
    with tab.page.expect_request(re.compile(r"/read$")):
        tab.say("Again")
    tab.answered("Yes.", count=2)
    expect(elsewhere).to_have_attribute("data-unread", "false")


def test_the_menu_of_a_row_changes_a_conversation_that_is_not_open(
    serve: Serve, window: Window
) -> None:
    served = serve("Yes.")
    page = client(served)
    talk(page, "Apples", "Pears")
    tab = window.enter(served)
    open_menu(tab, "Apples")
    item(tab, "Rename").click()
    tab.page.get_by_label("Title").fill("Cherries")
    tab.button("Save").click()
    open_menu(tab, "Cherries")
    item(tab, "Pin").click()
    expect(section(tab, "Pinned").get_by_role("link", name="Cherries")).to_be_visible()

    # by keyboard, on the focused row
    tab.page.get_by_role("link", name="Cherries").focus()
    tab.page.keyboard.press("Shift+F10")
    expect(item(tab, "Rename")).to_be_focused()
    tab.page.keyboard.press("Escape")
    expect(tab.button("More: Cherries")).to_be_focused()

    open_menu(tab, "Pears")
    item(tab, "Export").click()
    with tab.page.expect_download() as download:
        item(tab, "Export as Markdown").click()
    assert download.value.suggested_filename.endswith(".md")
    open_menu(tab, "Pears")
    item(tab, "Archive").click()
    expect(tab.page.get_by_role("link", name="Pears")).to_have_count(0)
    open_menu(tab, "Cherries")
    item(tab, "Delete").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(tab.page.locator("a[data-conversation]")).to_have_count(0)
    assert "/c/" not in tab.page.url


def test_a_menu_is_not_cut_off_at_the_end_of_a_long_list(
    serve: Serve, window: Window
) -> None:
    served = serve("Yes.")
    talk(client(served), *(f"Number {n}" for n in range(30)))
    tab = window.enter(served)
    last = tab.page.locator("a[data-conversation]").last
    last.scroll_into_view_if_needed()
    open_menu(tab, "Number 0")
    expect(item(tab, "Rename")).to_be_in_viewport(ratio=1)
    expect(item(tab, "Delete")).to_be_in_viewport(ratio=1)


def test_several_conversations_are_exported_archived_and_deleted_together(
    serve: Serve, window: Window
) -> None:
    served = serve("Yes.")
    talk(client(served), *(f"Number {n}" for n in range(6)))
    tab = window.enter(served)
    rows = tab.page.locator("a[data-conversation]")
    expect(rows).to_have_count(6)
    bar = tab.page.get_by_role("toolbar", name="Selected conversations")
    rows.nth(0).click(modifiers=["Control"])
    rows.nth(2).click(modifiers=["Shift"])
    expect(bar.get_by_role("status")).to_have_text("3 selected")
    assert "/c/" not in tab.page.url
    nothing_is_wrong(tab, "several selected")
    bar.get_by_role("button", name="Export").click()
    with tab.page.expect_download() as download:
        item(tab, "Export for another Tenax").click()
    data = download.value.path().read_bytes()
    assert data.count(b'"type":"conversation"') == 3
    expect(bar).to_have_count(0)

    open_menu(tab, "Number 5")
    item(tab, "Select").click()
    box = tab.page.get_by_role("checkbox", name="Select: Number 4")
    box.focus()
    tab.page.keyboard.press("Space")
    bar.get_by_role("button", name="Archive").click()
    expect(rows).to_have_count(4)
    expect(bar).to_have_count(0)
    tab.button("Undo").click()
    expect(rows).to_have_count(6)

    rows.nth(0).click(modifiers=["Control"])
    rows.nth(4).click(modifiers=["Shift"])
    bar.get_by_role("button", name="Delete").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(rows).to_have_count(1)


def test_a_project_filters_the_list_and_takes_new_conversations(
    serve: Serve, window: Window
) -> None:
    served = serve("Yes.")
    page = client(served)
    headers: Any = {"Idempotency-Key": "garden"}
    page.post("/projects", {"name": "Garden"}, **headers)
    talk(page, "Apples", "Pears")
    tab = window.enter(served)
    open_menu(tab, "Apples")
    item(tab, "Move to project").click()
    item(tab, "Garden").click()
    rows = tab.page.locator("a[data-conversation]")
    expect(rows.filter(has_text="Garden")).to_have_count(1)
    nothing_is_wrong(tab, "projects")
    tab.page.get_by_label("Show the conversations of").select_option("Garden")
    expect(rows).to_have_count(1)
    tab.say("What grows here?")
    tab.answered("Yes.")
    expect(rows).to_have_count(2)
    tab.page.reload()
    expect(rows).to_have_count(2)
    tab.page.get_by_label("Show the conversations of").select_option("")
    expect(rows).to_have_count(3)
    expect(rows.filter(has_text="Garden")).to_have_count(2)

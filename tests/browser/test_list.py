"""The list of conversations, and what moving between conversations leaves behind."""

from __future__ import annotations

from tests.support.browser import Serve, Window, expect


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

"""Search in the page: the words are marked where they stand, and what was removed says so."""

from __future__ import annotations

from tests.support.browser import Serve, Window, expect

LONG = "\n\n".join(f"Paragraph {n} of the story." for n in range(300))


def test_the_searched_word_is_marked_and_in_sight(serve: Serve, window: Window) -> None:
    """In an answer that is longer than the window."""
    text = LONG.replace("Paragraph 200 of", "Paragraph 200, the giraffe, of")
    tab = window.enter(serve(text))
    tab.say("Tell me")
    tab.shows("Paragraph 299")
    tab.page.get_by_label("Search all conversations").fill("giraffe")
    tab.page.locator("a[data-hit]", has_text="Answer:").click()
    paragraph = tab.rows("assistant").get_by_text("Paragraph 200, the giraffe")
    expect(paragraph).to_be_in_viewport()
    tab.page.wait_for_function("CSS.highlights.get('hit')?.size === 1")


def test_a_removed_message_is_found_and_says_that_it_was_removed(
    serve: Serve, window: Window
) -> None:
    """And an old title is not found beside the new one."""
    tab = window.enter(serve("Yes."))
    tab.say("The giraffe sleeps")
    tab.answered("Yes.")
    for title in ("Zebra", "Okapi"):
        tab.menu("Rename")
        tab.page.get_by_label("Title").fill(title)
        tab.page.get_by_label("Title").press("Enter")
        expect(tab.page.locator("h1")).to_have_text(title)
    tab.menu("Remove last message")
    expect(tab.rows()).to_have_count(0)
    search = tab.page.get_by_label("Search all conversations")
    search.fill("giraffe")
    hit = tab.page.locator("a[data-hit]", has_text="You:")
    expect(hit).to_contain_text("Removed from the conversation.")
    search.fill("Okapi")
    expect(tab.page.locator("a[data-hit]")).to_have_count(1)
    search.fill("Zebra")
    expect(tab.page.get_by_role("heading", name="No results")).to_be_visible()

"""What is remembered: the line in the conversation, the page where all of it stands, and conversations that leave no trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tenax.models import Reply, ScriptedCall
from tests.browser.test_for_everybody import PHONE, is_on, nothing_is_wrong, press_until
from tests.support.browser import Chromium, Serve, Tab, Window, client, expect

DOG = "Has a dog called Berta."
REMEMBER = Reply("", calls=[ScriptedCall("memory", {"action": "add", "text": DOG})])
PROVIDER: dict[str, Any] = {
    "provider": "elephant",
    "problem": "",
    "behind": 3,
    "owed": 1,
    "busy_seconds": 0.0,
    "error": "The server answered 503.",
    "rests_seconds": 30.0,
    "letters": [
        {
            "conversation": "c_1",
            "seq": 7,
            "error": "It is too long.",
            "at": 1_794_000_000_000_000,
        }
    ],
}


def fact(tab: Tab, text: str) -> Any:
    """Where a fact stands on the page."""
    return tab.page.locator("[data-fact]").filter(has_text=text)


def remember(tab: Tab, text: str, group: str = "Notes") -> None:
    """Add one by hand."""
    tab.button("Add").click()
    tab.page.get_by_label("What to remember").fill(text)
    tab.page.get_by_role("radio", name=group).check()
    tab.button("Save").click()
    expect(fact(tab, text)).to_be_visible()


def test_a_line_says_what_was_remembered_and_takes_it_back(
    serve: Serve, window: Window
) -> None:
    """The memory page leads to the message it comes from; Undo in the conversation undoes it everywhere."""
    tab = window.enter(serve(REMEMBER, "Noted."))
    tab.say("My dog is called Berta.")
    tab.answered("Noted.")
    expect(tab.rows("memory")).to_have_text(f"Remembered: {DOG}Undo")
    name = tab.conversation
    tab.page.get_by_role("link", name="Memory", exact=True).click()
    expect(tab.page).to_have_title("Memory · Tenax")
    expect(fact(tab, DOG)).to_contain_text("The model, ")
    fact(tab, DOG).get_by_role("link", name="My dog is called Berta.").click()
    expect(tab.page).to_have_url(re.compile(rf"/c/{name}#user-\d+$"))
    expect(tab.page.locator(".row.hit")).to_contain_text("My dog is called Berta.")
    tab.button("Undo").click()
    expect(tab.rows("memory", "undone")).to_have_text(f"Remembered: {DOG}Undone.")
    tab.page.goto(tab.page.url.partition("/c/")[0] + "/memory")
    expect(tab.page.get_by_text("Nothing remembered yet")).to_be_visible()
    tab.page.goto(tab.page.url.replace("/memory", f"/c/{name}"))
    expect(tab.rows("memory", "undone")).to_contain_text("Undone.")


def test_a_person_adds_corrects_forgets_and_brings_back(
    serve: Serve, window: Window
) -> None:
    """Each with a way back; what is known is not kept twice; a search shows what fits."""
    served = serve("Yes.")
    tab = window.tab(f"{served.link}&to=/memory")
    expect(
        tab.page.get_by_role("link", name="Turn the review on or off")
    ).to_be_visible()
    remember(tab, "Is called Ada.", "Profile")
    remember(tab, "Drinks tea in the morning.")
    profile, notes = (
        tab.page.get_by_role("region", name=each, exact=True)
        for each in ("Profile", "Notes")
    )
    expect(profile).to_contain_text("Is called Ada.You, ")
    expect(notes).to_contain_text("Drinks tea in the morning.")
    tab.page.get_by_role("button", name="Edit: Drinks tea").click()
    tab.page.get_by_label("What to remember", exact=True).fill("Drinks coffee.")
    tab.page.get_by_role("radio", name="Profile").check()
    tab.button("Save").click()
    expect(profile).to_contain_text("Drinks coffee.")
    tab.page.locator(".toast", has_text="Saved.").get_by_role(
        "button", name="Undo"
    ).click()
    expect(notes).to_contain_text("Drinks tea in the morning.")
    tab.page.get_by_role("button", name="Forget: Is called Ada.").click()
    expect(fact(tab, "Ada")).to_have_count(0)
    tab.page.locator(".toast", has_text="Forgotten.").get_by_role(
        "button", name="Undo"
    ).click()
    expect(profile).to_contain_text("Is called Ada.")
    tab.page.get_by_label("Search memory").fill("tea")
    expect(tab.page.locator("[data-fact]")).to_have_count(1)
    expect(tab.page.locator("mark")).to_have_text("tea")
    tab.page.get_by_label("Search memory").fill("zeppelin")
    expect(tab.page.get_by_text("No results.")).to_be_visible()


def test_a_change_that_another_made_meanwhile_is_shown_and_not_lost(
    serve: Serve, window: Window
) -> None:
    """What was typed stays; the other's words are shown; saving again is then meant."""
    window.expects("409")
    served = serve("Yes.")
    tab = window.tab(f"{served.link}&to=/memory")
    remember(tab, "Lives in Bern.")
    tab.page.get_by_role("button", name="Edit: Lives").click()
    tab.page.get_by_label("What to remember", exact=True).fill("Lives in Basel.")
    other = client(served)
    (known,) = other.get("/memory")["facts"]
    other.http.patch(
        f"/api/memory/{known['id']}",
        json={"was": known["version"], "text": "Lives in Thun."},
    )
    tab.button("Save").click()
    expect(tab.page.locator(".refusal")).to_have_text(
        "Somebody else changed this. It now says: Lives in Thun."
    )
    expect(tab.page.get_by_label("What to remember", exact=True)).to_have_value(
        "Lives in Basel."
    )
    tab.button("Save").click()
    expect(fact(tab, "Lives in Basel.")).to_be_visible()


def test_it_is_taken_away_as_a_file_and_brought_back(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """Export is a download; Import takes the same file, and says what it did."""
    served = serve("Yes.")
    tab = window.tab(f"{served.link}&to=/memory")
    remember(tab, "Has a garden.")
    with tab.page.expect_download() as download:
        tab.page.get_by_role("link", name="Export").click()
    assert download.value.suggested_filename == "tenax-memory.md"
    file = tmp_path / "memory.md"
    download.value.save_as(file)
    assert "Has a garden." in file.read_text()
    file.write_text(f"{file.read_text()}\n- Has a shed.\n")
    with tab.page.expect_file_chooser() as chooser:
        tab.button("Import").click()
    chooser.value.set_files(file)
    expect(
        tab.page.locator(".toast", has_text="1 added, 0 changed, 1 already known.")
    ).to_be_visible()
    expect(fact(tab, "Has a shed.")).to_contain_text("Import, ")


def test_a_provider_that_is_behind_is_told_of_and_can_be_tried_again(
    serve: Serve, window: Window
) -> None:
    """How far, the last error, what it could not take; Retry asks the server."""
    asked: list[str] = []
    window.context.route(
        "**/api/memory/status",
        lambda route: route.fulfill(json={"providers": [PROVIDER]}),
    )
    window.context.route(
        "**/api/memory/providers/elephant/retry",
        lambda route: (
            asked.append(route.request.method),
            route.fulfill(json={"retried": 1}),
        )[-1],
    )
    served = serve("Yes.")
    tab = window.tab(f"{served.link}&to=/memory")
    elephant = tab.page.locator("[data-provider=elephant]")
    expect(elephant).to_contain_text(
        "Behind by 3 turns and 1 ended conversation. Next try in 30 s."
    )
    expect(elephant).to_contain_text("Last error: The server answered 503.")
    expect(elephant.get_by_role("link")).to_have_attribute("href", "/c/c_1#user-7")
    tab.button("Retry").click()
    expect(tab.page.locator(".toast", has_text="1 delivered.")).to_be_visible()
    assert asked == ["POST"]


def test_a_temporary_conversation_says_so(serve: Serve, window: Window) -> None:
    """From before the first words on, and after a reload; an ordinary one does not."""
    tab = window.enter(serve("Yes."))
    tab.button("New temporary conversation").click()
    badge = tab.page.get_by_text("Temporary: nothing is added to memory")
    expect(badge).to_be_visible()
    tab.say("Hello")
    tab.answered("Yes.")
    tab.page.reload()
    expect(badge).to_be_visible()
    tab.page.get_by_role("link", name="New conversation", exact=True).click()
    expect(badge).to_have_count(0)


def test_what_was_deleted_is_not_named_as_the_one_that_is_left(
    serve: Serve, window: Window
) -> None:
    """The next conversation opens as any other."""
    # The mark that the answer was read may come after the deletion.
    window.expects("status of 410 .*/read")
    tab = window.enter(serve("Yes."))
    tab.say("Hello")
    tab.answered("Yes.")
    gone = tab.conversation
    tab.button("Menu").click()
    tab.page.get_by_role("menuitem", name="Delete").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(tab.page.get_by_text("What can I help with?")).to_be_visible()
    tab.say("Hello again")
    tab.answered("Yes.")
    assert tab.conversation != gone


def test_the_memory_page_is_used_with_the_keyboard(
    serve: Serve, window: Window
) -> None:
    """Add, correct with Enter, leave with Escape; the focus goes on at a sensible place."""
    served = serve("Yes.")
    tab = window.tab(f"{served.link}&to=/memory")
    keys = tab.page.keyboard
    expect(tab.page.get_by_text("Nothing remembered yet")).to_be_visible()
    for text in ("One thing.", "Another matter."):
        press_until(tab, "Tab", is_on(tab, "Add"))
        keys.press("Enter")
        keys.type(text)
        keys.press("Enter")
        expect(fact(tab, text)).to_be_visible()
    edit = tab.page.get_by_role("button", name="Edit: One thing.")
    edit.focus()
    keys.press("Enter")
    keys.press("Escape")
    expect(edit).to_be_focused()
    keys.press("Enter")
    keys.press("End")
    keys.type(" And more.")
    keys.press("Enter")
    expect(
        tab.page.get_by_role("button", name="Edit: One thing. And more.")
    ).to_be_focused()
    tab.page.get_by_role("button", name="Forget: Another matter.").focus()
    keys.press("Enter")
    expect(
        tab.page.get_by_role("button", name="Edit: One thing. And more.")
    ).to_be_focused()


@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_anybody_out(
    chromium: Chromium, serve: Serve, scheme: str, size: str
) -> None:
    """Empty, with facts and a provider, while one is edited, in the conversation, and in a temporary one."""
    how = {
        "color_scheme": scheme,
        "reduced_motion": "reduce",
        **(PHONE if size == "phone" else {}),
    }
    with chromium.window(**how) as window:
        served = serve(REMEMBER, "Noted.")
        tab = window.tab(f"{served.link}&to=/memory")
        expect(tab.page.get_by_text("Nothing remembered yet")).to_be_visible()
        nothing_is_wrong(tab, "empty")
        tab.page.goto(served.url)
        tab.say("My dog is called Berta.")
        tab.answered("Noted.")
        expect(tab.rows("memory").get_by_role("button")).to_be_visible()
        nothing_is_wrong(tab, "line")
        window.context.route(
            "**/api/memory/status",
            lambda route: route.fulfill(json={"providers": [PROVIDER]}),
        )
        tab.page.goto(f"{served.url}/memory")
        expect(tab.button("Retry")).to_be_visible()
        nothing_is_wrong(tab, "facts")
        tab.page.get_by_role("button", name="Edit: Has a dog").click()
        expect(tab.page.get_by_label("What to remember", exact=True)).to_be_focused()
        nothing_is_wrong(tab, "editing")
        width = tab.page.evaluate("document.documentElement.scrollWidth")
        assert width <= tab.page.viewport_size["width"], "it scrolls sideways"  # type: ignore[index]
        if size == "phone":
            tab.button("Conversations").click()
        tab.button("New temporary conversation").click()
        expect(
            tab.page.get_by_text("Temporary: nothing is added to memory")
        ).to_be_visible()
        nothing_is_wrong(tab, "temporary")

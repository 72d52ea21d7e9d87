"""A question of the model with its choices, and the list of what there is to do, as a person sees them."""

from __future__ import annotations

from tenax.models import Reply, ScriptedCall
from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Window, expect

COLOUR = {
    "question": "Which colour shall the <b>door</b> have?",
    "choices": ["Red", "Dark blue"],
}
LISTS = [
    [
        {"text": "Buy paint", "state": "doing"},
        {"text": "Paint the door", "state": "open"},
    ],
    [
        {"text": "Buy paint", "state": "done"},
        {"text": "Paint the door", "state": "doing"},
    ],
]


def test_a_question_is_answered_with_a_choice_or_with_words_and_the_list_lives(
    serve: Serve, window: Window
) -> None:
    """The buttons are the choices; other words go as well; the present list stands above the composer."""
    first, second = (
        [ScriptedCall("todo", {"entries": each}), ScriptedCall("ask", COLOUR)]
        for each in LISTS
    )
    tab = window.enter(serve(Reply(calls=first), Reply(calls=second), "All right."))
    tab.say("Paint the door")
    asked = tab.page.get_by_role("region", name="A question for you")
    expect(asked.get_by_role("heading")).to_have_text(COLOUR["question"])
    living = tab.page.locator(".living")
    expect(living).to_contain_text("0 of 2 done")
    expect(living.get_by_role("listitem")).to_have_text(
        ["In progress: Buy paint", "Open: Paint the door"]
    )
    nothing_is_wrong(tab, "question")
    tab.button("Dark blue").click()
    expect(tab.rows("tool", "done").filter(has_text="You answered")).to_contain_text(
        "Dark blue"
    )
    expect(tab.button("Answer")).to_be_disabled()
    expect(living.get_by_role("listitem")).to_have_text(
        ["Done: Buy paint", "In progress: Paint the door"]
    )
    tab.page.get_by_label("Your own answer").fill("The same")
    # a look elsewhere costs no half answer
    tab.page.get_by_role("link", name="Memory").click()
    tab.page.go_back()
    # as it is whenever a conversation is opened; then nothing takes it away
    expect(tab.box).to_be_focused()
    expect(tab.page.get_by_label("Your own answer")).to_have_value("The same")
    tab.page.get_by_label("Your own answer").press("Enter")
    tab.answered("All right.")
    expect(living).to_have_count(0)
    tab.unfold()
    expect(
        tab.rows("tool", "done").filter(has_text="You answered").last
    ).to_contain_text("The same")
    lists = tab.page.locator("details.tool", has_text="To do:")
    expect(lists.nth(0)).to_contain_text("0 of 2 done")
    expect(lists.nth(1)).to_contain_text("1 of 2 done")


def test_a_question_with_a_word_without_end_is_read_whole(
    serve: Serve, window: Window
) -> None:
    """As an address or a path: neither it nor a choice goes beyond the card, where nobody could scroll to it."""
    word = "Pneumono" * 20
    tab = window.enter(
        serve(
            Reply(
                calls=[
                    ScriptedCall("ask", {"question": word, "choices": ["Yes", word]})
                ]
            )
        )
    )
    tab.say("Ask me")
    asked = tab.page.get_by_role("region", name="A question for you")
    expect(asked.get_by_role("button", name=word)).to_be_visible()
    assert asked.evaluate("card => card.scrollWidth <= card.clientWidth")

"""Chat apps on the page: a bot is added, people are let in, and a conversation goes on in both places."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Tab, Window, client, expect
from tests.support.served import Served
from tests.support.telegram import ADA, BOB, FakeTelegram
from tests.support.webhooks import Inbox, event, sign


@pytest.fixture
def telegram() -> Iterator[FakeTelegram]:
    with FakeTelegram() as telegram:
        telegram.unlimit_rates()
        yield telegram


def add_bot(tab: Tab, served: Served, telegram: FakeTelegram) -> None:
    """Add the bot in the settings, and wait until it receives messages."""
    tab.page.goto(f"{served.url}/settings/chats")
    tab.page.get_by_label("Token").fill(telegram.token)
    tab.page.get_by_text("Use a Bot API server of your own").click()
    tab.page.get_by_label("Address").fill(telegram.url)
    tab.button("Connect").click()
    card = tab.page.get_by_role("region", name="Accounts").locator(".cards > li")
    expect(card).to_contain_text(f"@{telegram.username}")
    expect(card).to_contain_text("Connected")
    telegram.wait_for(lambda: telegram.waiting_polls)


def let_in(tab: Tab, telegram: FakeTelegram) -> None:
    """Let Ada write to the bot, and say that she is the person at the page."""
    telegram.say("Hello?")
    code = telegram.wait_for(lambda: telegram.texts() and telegram.texts()[0])
    codes = tab.page.get_by_role("region", name="Waiting to be let in")
    shown = codes.locator("code")
    expect(shown).to_be_visible()
    assert shown.inner_text().replace(" ", "") in code
    codes.get_by_role("button", name="This is me").click()
    asked = tab.page.get_by_role("dialog")
    expect(asked).to_contain_text("Are you Ada?")
    expect(asked).to_contain_text(shown.inner_text())
    asked.get_by_role("button", name="This is me").click()
    people = tab.page.get_by_role("region", name="People who may talk")
    expect(people.get_by_role("listitem")).to_contain_text("Ada You")
    expect(codes.get_by_role("listitem")).to_have_count(0)


def hears(telegram: FakeTelegram, text: str) -> None:
    """Wait until the bot has written these words to Ada."""
    telegram.wait_for(lambda: any(text in said for said in telegram.texts()))


def test_a_bot_is_added_and_the_same_conversation_is_in_both_places(
    serve: Serve, window: Window, telegram: FakeTelegram
) -> None:
    """A stranger is let in; what is written in one place is answered and shown in both."""
    served = serve("Good morning.", "And good night.")
    tab = window.enter(served)
    add_bot(tab, served, telegram)
    let_in(tab, telegram)
    nothing_is_wrong(tab, "chat apps")
    telegram.say("Hello")
    hears(telegram, "Good morning.")
    listed = tab.page.get_by_role("navigation", name="Conversations")
    entry = listed.locator("a[data-conversation]")
    expect(entry.get_by_role("img", name="Began in Telegram")).to_be_visible()
    entry.click()
    tab.answered("Good morning.")
    expect(tab.rows("user").locator(".text")).to_have_text("Hello")
    badge = tab.page.get_by_role("img", name="Connected to Telegram: Ada")
    expect(badge).to_have_text("Telegram")
    tab.say("From the page")
    tab.answered("And good night.")
    hears(telegram, "From the page")
    hears(telegram, "And good night.")
    telegram.say("From the chat")
    expect(tab.rows("user").locator(".text").last).to_have_text("From the chat")
    nothing_is_wrong(tab, "a conversation in a chat app")


def test_a_conversation_of_the_page_continues_in_the_chat(
    serve: Serve, window: Window, telegram: FakeTelegram
) -> None:
    """The menu connects it and disconnects it; the header says to which chat."""
    served = serve("Yes.")
    tab = window.enter(served)
    add_bot(tab, served, telegram)
    let_in(tab, telegram)
    telegram.say("Hello")
    hears(telegram, "Yes.")
    tab.page.goto(served.url)
    tab.say("Only here")
    tab.answered("Yes.")
    badge = tab.page.get_by_role("img", name="Connected to Telegram: Ada")
    expect(badge).to_have_count(0)
    tab.menu("Continue on Telegram")
    expect(badge).to_be_visible()
    telegram.say("Now there too")
    expect(tab.rows("user").locator(".text").last).to_have_text("Now there too")
    tab.menu("Disconnect from Telegram")
    expect(badge).to_have_count(0)
    tab.page.reload()
    expect(tab.rows("user")).to_have_count(2)
    tab.button("Menu").click()
    item = tab.page.get_by_role("menuitem", name="Continue on Telegram", exact=True)
    expect(item).to_be_visible()


def test_a_wrong_token_is_explained_and_can_be_corrected(
    serve: Serve, window: Window, telegram: FakeTelegram
) -> None:
    """The refusal is beside the field, and what was typed stays."""
    served = serve("Yes.")
    tab = window.enter(served)
    window.expects("status of 400", "status of 409")
    tab.page.goto(f"{served.url}/settings/chats")
    field = tab.page.get_by_label("Token")
    field.fill("my token")
    tab.button("Connect").click()
    refusal = tab.page.locator(".connect .refusal")
    expect(refusal).to_contain_text("This is not a token")
    expect(field).to_have_value("my token")
    field.fill(f"{telegram.bot_id}:{'B' * 35}")
    tab.page.get_by_text("Use a Bot API server of your own").click()
    tab.page.get_by_label("Address").fill(telegram.url)
    tab.button("Connect").click()
    expect(refusal).to_contain_text("Nothing was saved.")
    telegram.away()
    field.fill(telegram.token)
    tab.button("Connect").click()
    expect(refusal).to_contain_text("Telegram")
    nothing_is_wrong(tab, "a refused token")
    telegram.back()
    tab.button("Connect").click()
    expect(tab.page.get_by_text(f"@{telegram.username}").first).to_be_visible()
    tab.button(f"Remove: @{telegram.username}").click()
    asked = tab.page.get_by_role("dialog")
    asked.get_by_role("button", name="Remove", exact=True).click()
    expect(field).to_be_visible()


def test_people_and_failed_messages_are_handled(
    serve: Serve, window: Window, telegram: FakeTelegram
) -> None:
    """Somebody else gets in; a message that failed is sent again or discarded; a person is removed."""
    served = serve("Yes.")
    tab = window.enter(served)
    add_bot(tab, served, telegram)
    let_in(tab, telegram)
    telegram.say("Hello?", sender=BOB)
    tab.button("Somebody else").click()
    people = tab.page.get_by_role("region", name="People who may talk")
    expect(people.get_by_role("listitem")).to_have_count(2)
    telegram.say("Hello")
    hears(telegram, "Yes.")
    other = client(served)
    (conversation,) = other.get("/conversations")["conversations"]
    telegram.block(ADA.id)
    other.say(conversation["id"], "Are you there?")
    failed = tab.page.get_by_role("region", name="Messages that failed")
    expect(failed.get_by_role("listitem")).to_have_count(2)
    nothing_is_wrong(tab, "failed messages")
    before = len(telegram.texts())
    tab.button("Discard: Copy of a message to Ada").click()
    expect(failed.get_by_role("listitem")).to_have_count(1)
    telegram.unblock(ADA.id)
    tab.button("Try again: Answer to Ada").click()
    expect(failed).to_have_count(0)
    telegram.wait_for(lambda: len(telegram.texts()) == before + 1)
    tab.button("Remove: Bob").click()
    expect(people.get_by_role("listitem")).to_have_count(1)


def test_a_webhook_is_added_and_its_secret_is_shown_once(
    serve: Serve, window: Window
) -> None:
    """The page makes the secret, a signed request is answered at the address, and the badge names the webhook."""
    served = serve("Good morning.")
    tab = window.enter(served)
    tab.page.goto(f"{served.url}/settings/chats")
    tab.page.get_by_label("Webhook").check()
    with Inbox() as inbox:
        tab.page.get_by_label("Address for answers").fill(inbox.url)
        tab.button("Connect").click()
        card = tab.page.get_by_role("region", name="Accounts").locator(".cards > li")
        expect(card).to_contain_text("Connected")
        expect(card).to_contain_text(f"{served.url}/api/hooks/webhook")
        secret = card.get_by_text("whsec_").inner_text()
        nothing_is_wrong(tab, "a webhook")
        inbox.use(secret)
        body = event("Hello")
        headers = sign(body, secret=secret)
        url = f"{served.url}/api/hooks/webhook"
        answer = httpx.post(url, content=body, headers=headers, trust_env=False)
        assert answer.status_code == 202
        assert inbox.wait_for(inbox.texts) == ["Good morning."]
        tab.button("I have kept it").click()
        expect(card.get_by_text("whsec_")).to_have_count(0)
        tab.page.reload()
        expect(card).to_contain_text("/api/hooks/webhook")
        assert "whsec_" not in tab.page.content()

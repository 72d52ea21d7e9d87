"""A Matrix account is added on the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Window, expect
from tests.support.matrix import FakeMatrix


@pytest.fixture
def matrix() -> Iterator[FakeMatrix]:
    with FakeMatrix() as matrix:
        yield matrix


def test_a_matrix_account_is_added(
    serve: Serve, window: Window, matrix: FakeMatrix
) -> None:
    """The form asks for homeserver, user and password, says what is wrong, and shows the account."""
    served = serve("Good morning.")
    tab = window.enter(served)
    tab.page.goto(f"{served.url}/settings/chats")
    tab.page.get_by_role("radio", name="Matrix").check()
    nothing_is_wrong(tab, "matrix account")
    tab.page.get_by_label("Homeserver").fill(matrix.url)
    tab.page.get_by_label("User id").fill(matrix.bot)
    window.expects("status of 400")
    secret = tab.page.get_by_label("Password or access token")
    secret.fill("wrong")
    tab.button("Connect").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("refuses the user id")
    secret.fill("secret words")
    tab.button("Connect").click()
    card = tab.page.get_by_role("region", name="Accounts").locator(".cards > li")
    expect(card).to_contain_text(matrix.bot)
    expect(card).to_contain_text("Connected")
    matrix.wait_for(lambda: matrix.waiting_polls)

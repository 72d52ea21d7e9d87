"""`/api/schedules` and `tenax schedule`: the same list for the page and the terminal, and a server that asks what is due."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tenax.journal import LOCAL_USER
from tenax.journal import open as open_journal
from tenax.models import Reply
from tenax.schedules.rows import Schedules
from tests.contract.engine.base import begin
from tests.support.served import Page, Served
from tests.support.turns import set_up, wait_for


def add(page: Page, body: dict[str, str], status: int = 201) -> Any:
    headers = {"Idempotency-Key": body.get("words", "")}
    answer = page.http.post("/api/schedules", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_page_and_terminal_make_show_and_remove_the_same(
    shared: Served, page: Page
) -> None:
    """Made twice under one key it is one; what cannot be is told with examples."""
    name = page.new()
    daily = {
        "words": "Water the plants.",
        "when": "daily at 8",
        "zone": "Europe/Berlin",
        "conversation": name,
    }
    for _ in range(2):
        (made,) = add(page, daily)["schedules"]
    shown = {**daily, "when": "every day at 08:00", "waits": "", "title": None}
    assert {each: made[each] for each in shown} == shown
    refused = add(page, {"words": "x", "when": "soon"}, 400)
    assert "every weekday at 8:30" in refused["hint"]
    add(page, {"words": "x", "when": "every hour", "zone": "Mars/Phobos"}, 400)
    hourly = shared.tenax(
        "schedule", "add", "every hour", "Look", "around.", "-c", name
    )
    assert hourly.stdout.split("  ")[3:] == [name, "Look around.\n"]
    listed = shared.tenax("schedule").stdout.splitlines()
    assert [line[:34] for line in listed] == [
        schedule["id"] for schedule in page.get("/schedules")["schedules"]
    ]
    assert len(listed) == 2
    assert shared.tenax("schedule", "remove", hourly.stdout[:34]).returncode == 0
    assert page.http.delete(f"/api/schedules/{made['id']}").json() == {"schedules": []}


def test_a_server_asks_what_a_terminal_made(tmp_path: Path) -> None:
    """Within seconds, in a conversation of its own; and after a start what is due for a user who has not come yet."""
    set_up(tmp_path, [Reply("Said.")])
    url = f"sqlite:///{tmp_path / 'tenax.db'}"
    with open_journal(url, user="berta") as berta:
        hers = begin(berta)
        Schedules(berta).add(hers, "Hers.", "every hour", "UTC", berta.clock.now_us())
        with Served(tmp_path, env={"TENAX_STORE": url}) as served:
            page, local = served.browser(), berta.of(LOCAL_USER)
            mine = served.tenax(
                "schedule", "add", "in 1 minute", "Say it."
            ).stdout.split("  ")[3]
            (made,) = Schedules(local).all()
            assert made.conversation == mine
            # as if the minute were over
            assert Schedules(local).move(made, berta.clock.now_us())
            wait_for(local, mine, "run.finished")
            wait_for(berta, hers, "run.finished")
            asked, answered = page.rows(mine)
            assert (asked["author"], answered["text"]) == ("system", "Said.")
            assert asked["text"].endswith("\n\nSay it.")
            assert page.get("/schedules")["schedules"] == []

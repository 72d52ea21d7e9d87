"""A bot on Discord is connected over HTTP, and its chat talks to the conversation of the page."""

from __future__ import annotations

from pathlib import Path

from tenax.models import Reply
from tests.support.discord import FakeDiscord
from tests.support.served import Served
from tests.support.turns import set_up


def test_a_bot_on_discord_is_checked_stored_and_served(tmp_path: Path) -> None:
    """The account is checked before it is saved. A stranger who is let in gets an answer."""
    set_up(tmp_path, [Reply("Forty-two.")])
    with FakeDiscord() as discord, Served(tmp_path) as served:
        discord.unlimit_rates()
        page = served.browser()
        bot = {"platform": "discord", "token": discord.token, "url": discord.url}
        discord.may_read_content = False
        refused = page.http.post("/api/channels", json=bot)
        assert refused.status_code == 400
        assert "Message Content Intent" in refused.text
        discord.may_read_content = True
        added = page.http.post("/api/channels", json=bot)
        assert added.status_code == 201, added.text
        assert discord.token not in added.text

        def is_connected() -> bool:
            (account,) = page.get("/channels")["accounts"]
            return bool(account["state"] == "connected")

        discord.wait_for(is_connected)
        discord.wait_for(lambda: discord.sockets)
        discord.say("Who are you?")
        (code,) = discord.wait_for(lambda: page.get("/channels")["codes"])
        discord.wait_for(discord.texts)
        page.post("/channels/pair", {"code": code["code"], "me": True})
        discord.say("Hello")
        discord.wait_for(lambda: discord.texts()[-1] == "Forty-two.")

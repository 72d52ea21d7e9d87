"""One conversation in Telegram, on the page and in a terminal at once. The server and the terminal are real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tenax
from tenax.channels.rows import ChannelRows
from tenax.events import ApprovalAnswered, MessageUser, RunFinished, RunStarted
from tenax.journal import LOCAL_USER
from tenax.models.scripted import Reply, ScriptedCall
from tenax.parts import text_of
from tests.cli.test_talk import Terminal
from tests.support.served import Pace, Page, Served, Stream
from tests.support.telegram import ADA, FakeTelegram, Message
from tests.support.turns import journal_of, set_up

LOOKS = Reply(
    "I look for the file first.",
    calls=[ScriptedCall("read_file", {"path": "plan.txt"})],
)
COUNTS = Reply(" ".join(f"number{number:02}" for number in range(60)))
FEW_WORDS = 3
MORE_WORDS = 20


def writes(number: int) -> list[Reply]:
    arguments = {"path": f"note-{number}.txt", "content": "held"}
    asks = Reply(
        f"May I write {number}?", calls=[ScriptedCall("write_file", arguments)]
    )
    return [asks, Reply(f"Thank you for {number}.")]


class Places:
    """The three places, with the same conversation."""

    def __init__(
        self, telegram: FakeTelegram, page: Page, stream: Stream, terminal: Terminal
    ) -> None:
        self.telegram = telegram
        self.page = page
        self.stream = stream
        self.terminal = terminal
        (self.conversation,) = [
            found["id"] for found in page.get("/conversations")["conversations"]
        ]

    # -- Telegram ------------------------------------------------------------------------

    def chat_shows(self, text: str) -> None:
        """Wait until a message of the bot contains a text."""
        self.telegram.wait_for(
            lambda: any(text in one for one in self.telegram.texts())
        )

    def question(self) -> Message:
        """Wait for a message with buttons."""
        return self.telegram.wait_for(
            lambda: next(
                (found for found in self.telegram.messages() if found.buttons), None
            )
        )

    def message(self, number: int) -> Message:
        (found,) = [one for one in self.telegram.messages() if one.id == number]
        return found

    # -- the page ------------------------------------------------------------------------

    def page_shows(self, text: str, state: str | None = None) -> dict[str, Any]:
        """Wait until the page has a row that contains a text, and return the row."""
        found: list[dict[str, Any]] = []

        def is_there(rows: dict[str, dict[str, Any]]) -> bool:
            found[:] = [
                row
                for row in rows.values()
                if text in f"{row.get('text', '')} {row.get('touches', '')}"
                and state in {None, row.get("state", "")}
            ]
            return bool(found)

        self.stream.read_until(self.conversation, is_there)
        return found[-1]

    def answer(self, row: dict[str, Any]) -> None:
        """Allow a call on the page."""
        message, _, call = row["id"].partition(":")
        answer = {"message": int(message), "call": call, "answer": "once"}
        path = f"/conversations/{self.conversation}/approvals"
        self.page.post(path, answer, status=202)

    def questions(self) -> list[Any]:
        path = f"/conversations/{self.conversation}/approvals"
        found: list[Any] = self.page.get(path)["questions"]
        return found


@contextmanager
def open_places(
    telegram: FakeTelegram,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Places]:
    """Let Ada begin a conversation in Telegram, and open it on the page and in a terminal."""
    with served:
        page = served.browser()
        telegram.wait_for(lambda: telegram.waiting_polls)
        telegram.say("Hello")
        telegram.wait_for(lambda: telegram.texts() == ["Good morning."])
        (found,) = page.get("/conversations")["conversations"]
        for name, value in served.env.items():
            monkeypatch.setenv(name, value)
        terminal = Terminal("-c", found["id"])
        try:
            terminal.until("script")
            with page.stream(f"-~{found['id']}:") as stream:
                yield Places(telegram, page, stream, terminal)
        finally:
            terminal.close()


def server(
    home: Path, telegram: FakeTelegram, *replies: Reply, pace: Pace | None = None
) -> Served:
    """Return a server with an account of Telegram, in which Ada is the owner."""
    set_up(home, [Reply("Good morning."), *replies])
    with (home / "config.toml").open("a") as config:
        config.write(
            f'[channels.telegram]\nplatform = "telegram"\ntoken = "env:CHAT_TOKEN"\nurl = "{telegram.url}"\n'
        )
    account = f"telegram:{telegram.bot_id}"
    with tenax.open(_store(home)) as journal:
        ChannelRows(journal).add_person(account, str(ADA.id), LOCAL_USER, "Ada")
    env = {"CHAT_TOKEN": telegram.token, **(pace.env if pace is not None else {})}
    return Served(home, env=env)


def _store(home: Path) -> str:
    return f"sqlite:///{home / 'tenax.db'}"


def test_a_run_from_telegram_is_steered_on_the_page_and_stopped_in_the_terminal(
    telegram: FakeTelegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each place shows what the others do, while it happens, and the run is one."""
    pace = Pace(tmp_path)
    served = server(tmp_path, telegram, LOOKS, COUNTS, pace=pace)
    with open_places(telegram, served, monkeypatch) as places:
        pace.say(FEW_WORDS)
        telegram.say("Look for the plan")
        places.page_shows("I look for", "streaming")
        places.terminal.until("I look for")
        places.page.say(places.conversation, "Count instead", how="steer")
        places.terminal.until("Count instead")
        pace.say(MORE_WORDS)
        places.chat_shows("Count instead")
        places.page_shows("number00", "streaming")
        places.terminal.until("number00")
        places.chat_shows("number00")
        places.terminal.send("/stop")
        places.page_shows("number00", "cut")
        places.terminal.at_rest()
        telegram.wait_for(lambda: _is_settled(served, telegram))
        assert "number59" not in "".join(telegram.texts())
    events = [fact.event for fact in journal_of(_store(tmp_path), places.conversation)]
    said = [text_of(found.parts) for found in events if isinstance(found, MessageUser)]
    assert said == ["Hello", "Look for the plan", "Count instead"]
    runs = [found for found in events if isinstance(found, RunStarted)]
    assert len(runs) == 2, "the steered run is the run that Telegram started"
    ends = [found.outcome for found in events if isinstance(found, RunFinished)]
    assert ends == ["completed", "cancelled"]


def _is_settled(served: Served, telegram: FakeTelegram) -> bool:
    """Return whether every message to the chat has its final state."""
    with tenax.open(_store(served.home)) as journal:
        rows = ChannelRows(journal)
        return not rows.unfinished(f"telegram:{telegram.bot_id}")


def test_an_approval_is_asked_everywhere_and_answered_in_each_place(
    telegram: FakeTelegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two other places show the result, and each call runs once."""
    replies = [reply for number in range(3) for reply in writes(number)]
    served = server(tmp_path, telegram, *replies)
    with open_places(telegram, served, monkeypatch) as places:
        for number, place in enumerate(("telegram", "page", "terminal")):
            telegram.say(f"Write note {number}")
            question = places.question()
            assert f"note-{number}.txt" in question.text
            row = places.page_shows(f"note-{number}.txt", "asks")
            places.terminal.until(f"Allow write_file note-{number}.txt?")
            if place == "telegram":
                telegram.tap(question.id, "Allow once")
            elif place == "page":
                places.answer(row)
            else:
                places.terminal.send("y")
            places.page_shows(f"note-{number}.txt", "done")
            places.page_shows(f"Thank you for {number}.")
            assert places.questions() == []
            places.terminal.until(f"Thank you for {number}.")
            places.chat_shows(f"Thank you for {number}.")
            telegram.wait_for(
                lambda asked=question: not places.message(asked.id).buttons
            )
            assert "Allowed once" in places.message(question.id).text
            note = served.home / "work" / f"note-{number}.txt"
            assert note.read_text() == "held"
    events = journal_of(_store(tmp_path), places.conversation)
    answers = [
        fact.event.answer for fact in events if isinstance(fact.event, ApprovalAnswered)
    ]
    assert answers == ["once", "once", "once"]

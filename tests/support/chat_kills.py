"""A real `tenax gateway` beside a chat app, killed at moments that the app of the test knows for certain.

`ChatApp` is what a platform has to offer for this. `TelegramApp` is the fake Telegram.

The model is played inside the gateway: it answers the last question of the conversation, such as "question 7 long", with a
text that begins with "Answer 7" and ends with "End 7.". `GatewayHome.allow_words` says how far an answer may go.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, TypeVar

import tenax
from tenax.channels.ledger import PLACED_CHARS
from tenax.channels.rows import ChannelRows, Outgoing
from tenax.channels.units import answer_unit
from tenax.events import (
    Event,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    RunFinished,
    RunStarted,
)
from tenax.journal import LOCAL_USER
from tenax.journal.base import Recorded
from tenax.journal.verify.store import verify
from tenax.parts import text_of
from tests.support.served import ROOT, environment
from tests.support.telegram import Attachment, FakeTelegram, When
from tests.support.telegram import Person as TelegramPerson

__all__ = [
    "ADA",
    "BOB",
    "MARK",
    "SECONDS",
    "ChatApp",
    "ChatStore",
    "GatewayHome",
    "GatewayProcess",
    "Kind",
    "Person",
    "Question",
    "Server",
    "Shown",
    "Talk",
    "TelegramApp",
    "kill_at",
    "wait_until",
]

T = TypeVar("T")
Kind = Literal["short", "medium", "long"]

SECONDS: Final = 60.0
MARK: Final = "↻ "
_ELLIPSIS: Final = "…"
_ALL_WORDS: Final = 1_000_000

_CONFIG: Final = """model = "main"
[tools]
folder = "{folder}"
[models.main]
api = "script"
url = "{home}/script.json"
name = "script"
[channels.chat]
token = "env:CHAT_TOKEN"
allow = [{allowed}]
{settings}
"""

# Python runs this when the gateway starts.
_MODEL: Final = """
import sys
if {{"gateway", "tenax.web"}} & set(sys.orig_argv):
    import asyncio, contextlib, pathlib, re
    from tenax.models import scripted
    unpaced, allowed = scripted.ScriptedModel.stream, pathlib.Path({words!r})
    question = re.compile(rb"question ([0-9]+) (short|medium|long)")
    paragraphs = dict(short=0, medium=5, long=60)
    def answer(self, body, played):
        number, kind = (found.decode() for found in question.findall(body)[-1])
        lines = ["And %s: " % n + "so it goes on, " * 5 + "and on." for n in range(paragraphs[kind])]
        return 0, scripted.Reply(words="\\n\\n".join(["Answer %s." % number, *lines, "End %s." % number]))
    async def stream(self, body, *, silence):
        said = 0
        async with contextlib.aclosing(unpaced(self, body, silence=silence)) as pieces:
            async for piece in pieces:
                said += isinstance(piece, scripted.Words)
                while said > int(allowed.read_text()):
                    await asyncio.sleep(0.01)
                yield piece
    scripted.Script.next, scripted.ScriptedModel.stream = answer, stream
    from {module} import {channel} as channel
    channel.traits = scripted.msgspec.structs.replace(channel.traits, **{pauses!r})
"""
_PAUSES: Final = {"send_seconds": 0.05, "account_seconds": 0.0, "preview_seconds": 0.05}
"""The pauses between messages are no subject of these tests, and would take most of the time."""


class Person(NamedTuple):
    """A person with a private chat. `id` is the platform's id of the person."""

    id: str
    name: str


ADA: Final = Person("7001", "Ada")
BOB: Final = Person("7002", "Bob")


class Shown(NamedTuple):
    """A message as a chat shows the message now."""

    id: str
    text: str
    from_bot: bool


class ChatApp(Protocol):
    """A platform with an account of Tenax, and people with private chats."""

    account: str
    """PLATFORM:ID."""
    secret: str
    """The token of the account."""
    settings: str
    """The lines of the account in the settings, except the token and the list of people."""
    channel: str
    """The class of the channel, with its module."""

    def chat_of(self, person: Person) -> str:
        """Return the id of the private chat of a person."""

    def say(self, text: str, sender: Person, file: tuple[str, bytes] | None) -> str:
        """Write to the bot, also with a file. Return the id of the message."""

    def messages(self, person: Person) -> list[Shown]:
        """Return the messages of a private chat, oldest first, without deleted messages."""

    def is_confirmed(self) -> bool:
        """Return whether the gateway has confirmed everything that people have written."""

    def wait_for(self, predicate: Callable[[], T], seconds: float) -> T:
        """Wait until something holds. Raises `TimeoutError` with a description of the platform."""


class TelegramApp:
    """A fake Telegram. Chats and people have the same ids there."""

    channel = "tenax.channels.telegram.channel.TelegramChannel"

    def __init__(self, telegram: FakeTelegram) -> None:
        self.telegram = telegram
        self.account = f"telegram:{telegram.bot_id}"
        self.secret = telegram.token
        self.settings = f'platform = "telegram"\nurl = "{telegram.url}"'

    def add_people(self, *people: Person) -> None:
        """Open the private chats of people."""
        for person in people:
            self.telegram.add_person(_telegram_person(person))

    def chat_of(self, person: Person) -> str:
        return person.id

    def say(self, text: str, sender: Person, file: tuple[str, bytes] | None) -> str:
        files = []
        if file is not None:
            name, data = file
            files.append(Attachment.document(name, data, "text/plain"))
        writer = _telegram_person(sender)
        return str(self.telegram.say(text, sender=writer, files=files))

    def messages(self, person: Person) -> list[Shown]:
        return [
            Shown(str(message.id), message.text, message.from_bot)
            for message in self.telegram.messages(int(person.id))
            if not message.deleted
        ]

    def is_confirmed(self) -> bool:
        return not self.telegram.pending

    def wait_for(self, predicate: Callable[[], T], seconds: float) -> T:
        return self.telegram.wait_for(predicate, seconds)


def _telegram_person(person: Person) -> TelegramPerson:
    return TelegramPerson(int(person.id), person.name, person.name.lower())


def wait_until(predicate: Callable[[], T], what: str, seconds: float = SECONDS) -> T:
    """Wait until something holds that is looked up in the store or in the fake. Return its value."""
    deadline = time.monotonic() + seconds
    while not (found := predicate()):
        assert time.monotonic() < deadline, f"Timed out: {what}."
        time.sleep(0.01)
    return found


class GatewayHome:
    """The folder of a gateway: its settings and its model. Several hosts have a folder each."""

    def __init__(
        self,
        app: ChatApp,
        store_url: str,
        home: Path,
        *,
        tools_folder: Path | None = None,
        allow: tuple[Person, ...] = (),
    ) -> None:
        self.path = home
        self.app = app
        self.store_url = store_url
        self._words = home / "words"
        home.mkdir(parents=True, exist_ok=True)
        work = tools_folder or home / "work"
        work.mkdir(exist_ok=True)
        allowed = ", ".join(f'"{person.id}"' for person in allow)
        (home / "config.toml").write_text(
            _CONFIG.format(
                home=home, folder=work, settings=app.settings, allowed=allowed
            )
        )
        module, _, channel = app.channel.rpartition(".")
        (home / "script.json").write_text('{"replies": []}')
        (home / "sitecustomize.py").write_text(
            _MODEL.format(
                words=str(self._words), pauses=_PAUSES, module=module, channel=channel
            )
        )
        self.allow_words()

    def allow_words(self, count: int = _ALL_WORDS) -> None:
        """Let every answer go on, up to so many words."""
        new = self._words.with_suffix(".new")
        new.write_text(str(count))
        new.replace(self._words)

    def env(self) -> dict[str, str]:
        path = os.pathsep.join((str(self.path), str(ROOT)))
        return environment(
            self.path,
            TENAX_STORE=self.store_url,
            CHAT_TOKEN=self.app.secret,
            PYTHONPATH=path,
        )


class GatewayProcess:
    """`tenax gateway`. `with` starts it, and kills what is left of it."""

    def __init__(self, home: GatewayHome) -> None:
        self.home = home
        self._output = home.path / "output.txt"
        self._output.touch()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "tenax", "gateway"]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                command, env=self.home.env(), stdout=output, stderr=output
            )

    def kill(self) -> None:
        """Kill the process, and wait for its end: what it has not received or stored by now, it never will."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def suspend(self) -> None:
        """Stop the process for a while, as if its machine hung."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def starts(self) -> int:
        """Return how often the gateway has said that it serves."""
        return self._output.read_text().count("Serving the chat apps.")

    def describe(self) -> str:
        """Return what the gateway said last."""
        log = self.home.path / "log" / "gateway.log"
        files = [file for file in (self._output, log) if file.exists()]
        return "\n".join(file.read_text()[-3000:] for file in files)


class Server(Protocol):
    """A fake server whose requests can go wrong."""

    def on(
        self, method: str, callback: Callable[[Any], object], when: When
    ) -> object: ...

    def drop_before(self, method: str) -> object: ...


@contextlib.contextmanager
def kill_at(
    server: Server,
    gateway: GatewayProcess,
    method: str,
    when: When,
) -> Iterator[None]:
    """Kill the gateway at the next request of a method that arrives: before the server acts, or before its answer.

    With `before`, the server never acts. The block causes the request; at its end the gateway is dead.
    """
    killed = threading.Event()

    def kill(_call: object) -> None:
        gateway.kill()
        killed.set()

    server.on(method, kill, when)
    if when == "before":
        server.drop_before(method)
    yield
    if not killed.wait(SECONDS):
        raise TimeoutError(f"No {method} came.\n{gateway.describe()}")


@dataclass
class Question:
    """A message of a person."""

    person: Person
    message: str
    """The id of the message in the chat."""
    text: str
    number: int


@dataclass
class _Answer:
    """An answer of the journal, as the chat shows it."""

    text: str
    shown: list[Shown] = field(default_factory=list)
    repeated: list[bool] = field(default_factory=list)


class ChatStore:
    """What the test sees in the store of the gateways."""

    def __init__(self, store_url: str, app: ChatApp) -> None:
        self.journal = tenax.open(store_url)
        self.rows = ChannelRows(self.journal)
        self.account = app.account
        self._app = app
        self._everybody = self.journal.of(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()

    def pair(self, *people: Person) -> None:
        """Let people talk as the owner."""
        for person in people:
            self.rows.add_person(self.account, person.id, LOCAL_USER, person.name)

    # -- what is stored ------------------------------------------------------------------

    def conversations(self) -> list[tuple[str, str]]:
        """Return user and name of every conversation."""
        users = {LOCAL_USER, *(person.user for person in self.rows.people())}
        return [
            (user, summary.conversation)
            for user in sorted(users)
            for summary in self.journal.of(user).conversations(limit=1000)
        ]

    def facts(self, user: str, name: str) -> list[Recorded]:
        """Return the facts of a conversation."""
        journal, found, after = self.journal.of(user), list[Recorded](), 0
        while page := journal.read(name, after=after, limit=10_000):
            found += page
            after = page[-1].seq
        return found

    def events(self, user: str, name: str, *kinds: type[Event]) -> list[Event]:
        """Return the events of a conversation that are of some kinds."""
        facts = self.facts(user, name)
        return [fact.event for fact in facts if isinstance(fact.event, kinds)]

    def inbound(self) -> list[tuple[str, str, str]]:
        """Return chat, id and text of every stored message of a chat."""
        return [
            (
                event.extra["chat"]["chat"],
                event.extra["chat"]["message"],
                text_of(event.parts),
            )
            for user, name in self.conversations()
            for event in self.events(user, name, MessageUser)
            if isinstance(event, MessageUser)
        ]

    def open_rows(self) -> list[Outgoing]:
        """Return the deliveries without a final state."""
        return self.rows.unfinished(self.account)

    def wait_of(self, person: Person) -> int:
        """Return until when a chat has to wait, in microseconds, or 0."""
        return int(
            self.rows.value(self.account, f"wait:{self._app.chat_of(person)}") or 0
        )

    def lease_until(self) -> float:
        """Return when the lease of the account ends, by the clock of the store."""
        name = f"gateway:{self.account}"
        rows = self.journal.store.query("lease", owner=LOCAL_USER, name=name)
        return float(rows[0][2]) if rows else 0.0

    def now_us(self) -> int:
        return self.rows.now_us()

    def is_settled(self) -> bool:
        """Return whether every message is stored and answered, and every answer is delivered."""
        if self.rows.news(self.account):
            return False
        # In the order in which a message passes these stations, so it cannot be overlooked between two of them.
        if not self._app.is_confirmed() or self._everybody.unfinished():
            return False
        if not all(
            self._is_answered(user, name) for user, name in self.conversations()
        ):
            return False
        return not self.rows.news(self.account) and not self.open_rows()

    def _is_answered(self, user: str, name: str) -> bool:
        last = self.events(user, name, MessageUser, RunFinished)[-1]
        return isinstance(last, RunFinished) and last.outcome == "completed"

    def wait_settled(self, *gateways: GatewayProcess) -> None:
        try:
            self._app.wait_for(self.is_settled, SECONDS)
        except TimeoutError as error:
            for gateway in gateways:
                error.add_note(gateway.describe())
            error.add_note(f"Open: {self.open_rows()}")
            raise

    # -- what must hold ------------------------------------------------------------------

    def check(self, questions: list[Question]) -> None:
        """Check every message of the chats against the journal and the deliveries."""
        said = [
            (self._app.chat_of(question.person), question.message, question.text)
            for question in questions
        ]
        assert sorted(self.inbound()) == sorted(said)
        answers = self._answers()
        whole = {
            int(re.findall(r"\d+", answer.text)[0])
            for answer in answers.values()
            if re.fullmatch(r"Answer (\d+)\..*\n\nEnd \1\.", answer.text, re.DOTALL)
        }
        asked = {question.number for question in questions}
        missing = asked - whole - self._overtaken()
        assert missing == set()
        for person in {question.person for question in questions}:
            self._match(person, answers)
        for unit, answer in answers.items():
            joined = "\n\n".join(
                _unmarked(message.text) for message in answer.shown
            ).removesuffix(f" {_ELLIPSIS}")
            assert joined == answer.text, f"{unit} is not in the chat as it was given"
            for message, repeated in zip(answer.shown, answer.repeated, strict=True):
                assert message.text.startswith(MARK) == repeated, message.text
        states = set(self.rows.counts(self.account)) - {"repeated"}
        assert states <= {"delivered"}, self.rows.failed()
        assert verify(self.journal).problems == []

    def _overtaken(self) -> set[int]:
        """Return the questions without an answer of their own: a kill ended the run, and a newer message waited.

        Such a run is not resumed (contract 2.10). The model reads the question with the newer message.
        """
        found = set[int]()
        for user, name in self.conversations():
            questions: dict[int, int] = {}
            taken: list[int] = []
            interrupted: list[int] = []
            for fact in self.facts(user, name):
                match fact.event:
                    case MessageUser(parts=parts):
                        number = re.findall(r"question (\d+)", text_of(parts))
                        questions[fact.seq] = int(number[0])
                    case RunStarted(inputs=inputs, resumes=None):
                        found.update(interrupted)
                        taken = [questions[seq] for seq in inputs]
                    case RunFinished(outcome=outcome):
                        interrupted = taken if outcome == "interrupted" else []
        return found

    def _answers(self) -> dict[tuple[str, str], _Answer]:
        """Return the answers by chat and unit."""
        found = {}
        for user, name in self.conversations():
            num = self.rows.number(user, name)
            events = self.events(
                user, name, MessageUser, MessagePartial, MessageAssistant
            )
            chat = ""
            for event in events:
                if isinstance(event, MessageUser):
                    chat = event.extra["chat"]["chat"]
                elif isinstance(event, MessageAssistant):
                    unit = answer_unit(num, event.request)
                    found[chat, unit] = _Answer(text_of(event.parts))
        return found

    def _match(self, person: Person, answers: dict[tuple[str, str], _Answer]) -> None:
        """Give every message of the bot to its answer, and check the messages that no delivery knows."""
        chat = self._app.chat_of(person)
        repeated: list[Shown] = []
        for message in self._from_bot(person):
            row = self.rows.delivery_of(self.account, chat, message.id)
            if row is None:
                repeated.append(message)
            elif row.state == "delivered" and (chat, row.unit) in answers:
                answers[chat, row.unit].shown.append(message)
                answers[chat, row.unit].repeated.append(bool(row.repeated))
                repeated = [
                    first for first in repeated if not _is_repeated(first, message)
                ]
            else:
                raise AssertionError(f"{message} belongs to {row}")
        assert repeated == [], "a message is there without a delivery"

    def _from_bot(self, person: Person) -> list[Shown]:
        return [message for message in self._app.messages(person) if message.from_bot]

    def repeats(self, person: Person) -> int:
        """Return how many messages of the bot in a chat no delivery knows, because a message came twice."""
        chat = self._app.chat_of(person)
        return sum(
            self.rows.delivery_of(self.account, chat, message.id) is None
            for message in self._from_bot(person)
        )

    def marks(self, person: Person) -> int:
        """Return how many messages of the bot in a chat have the mark of a repetition."""
        return sum(message.text.startswith(MARK) for message in self._from_bot(person))


def _is_repeated(first: Shown, second: Shown) -> bool:
    """Return whether a message has only the first words of a later message with the mark of a repetition."""
    words = _unmarked(first.text).removesuffix(_ELLIPSIS).rstrip()
    is_short = len(first.text) <= PLACED_CHARS + len(MARK)
    return is_short and second.text.startswith(MARK + words)


def _unmarked(text: str) -> str:
    return text.removeprefix(MARK)


class Talk:
    """People who talk to a bot, while its gateways are killed and started again."""

    def __init__(self, app: ChatApp, store: ChatStore) -> None:
        self.app = app
        self.store = store
        self.person = ADA
        """The person of the present phase."""
        self.questions: list[Question] = []

    def ask(
        self,
        kind: Kind = "medium",
        *,
        person: Person | None = None,
        file: tuple[str, bytes] | None = None,
    ) -> Question:
        """Write a message to the bot."""
        sender = person or self.person
        number = len(self.questions) + 1
        text = f"question {number} {kind}"
        message = self.app.say(text, sender, file)
        question = Question(sender, message, text, number)
        self.questions.append(question)
        return question

    def open_states(self) -> list[str]:
        """Return the states of the deliveries without a final state."""
        return [row.state for row in self.store.open_rows()]

    def stored(self, question: Question) -> int:
        """Return how often a message is in the journal."""
        key = (self.app.chat_of(question.person), question.message)
        return sum((chat, message) == key for chat, message, _ in self.store.inbound())

    def shows(self, question: Question) -> bool:
        """Return whether the chat shows the beginning of the answer."""
        begin = f"Answer {question.number}."
        return any(
            message.text.startswith(begin)
            for message in self.app.messages(question.person)
            if message.from_bot
        )

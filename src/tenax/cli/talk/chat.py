"""The terminal chat: execute the input, follow the open conversation, and show its status.

The process answers messages typed here; other processes answer their own messages. If a message cannot be stored, the
text returns to the input line. An error is printed as a sentence, and the chat continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import uuid
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, Final, TypeAlias

from tenax.assembly import Runtime
from tenax.cli.lines import fit
from tenax.cli.talk.commands import Commands
from tenax.cli.talk.prompt import Prompt
from tenax.cli.talk.screen import Screen, aside
from tenax.config import Config
from tenax.config.watch import SettingsFile
from tenax.errors import (
    ConfigError,
    Gone,
    InvalidInput,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TenaxError,
)
from tenax.events import MessageAssistant, Usage
from tenax.journal.base import Dedup
from tenax.journal.journal import TailPosition
from tenax.parts import Part, Text
from tenax.runtime.runtime import Answer, How
from tenax.text import to_one_line
from tenax.tools.ask import choices
from tenax.views.transcript import Change, Grow, Put, Row

__all__ = ["TerminalChat"]

ROWS_SHOWN: Final = 10
_AWAY_SECONDS: Final = 0.5
_LEAVE_SECONDS: Final = 2.0
"""The longest wait at the end for storing the last message."""
_TITLE_COLUMNS: Final = 40
_ANSWERS: Final[dict[str, Answer]] = {
    "y": "once",
    "yes": "once",
    "n": "no",
    "no": "no",
}
_ANSWERS_EXPLAINED: Final = [
    "y       allow this call once",
    "c       allow such calls in this conversation; c 2 takes the second pattern",
    "always  allow such calls in all conversations (tenax rules lists them)",
    "n       deny this call",
    "Any other text is a new message, and denies the call.",
]
_SETTINGS_SECONDS: Final = 1.0
_Shown: TypeAlias = tuple[str | None, str] | None
"""The conversation and the row of the question on the screen; `None` without a question."""
_PATTERNED: Final[dict[str, Answer]] = {"c": "conversation", "always": "always"}


class TerminalChat:
    """A chat in a terminal."""

    def __init__(self, config: Config, settings: SettingsFile) -> None:
        self._settings = settings
        self.name: str | None = None
        """The open conversation; `None` before the first message of a new conversation."""
        self.run: str | None = None
        """The open run of the conversation."""
        self.runtime = Runtime(config, serves=False, on_held=self._on_held)
        self.commands = Commands(self)
        self.prompt = Prompt(
            config.directories.state / "history",
            above=self._above,
            complete=self.commands.complete,
            begin=self._note_shown,
            accept=self._accept,
            interrupt=self._interrupt,
        )
        self.screen = Screen(lambda: self.prompt.columns)
        self._lines: asyncio.Queue[tuple[str, _Shown]] = asyncio.Queue()
        self._shown: _Shown = None
        self._shown_at_begin: _Shown = None
        """The question on the screen when the person started to type the line."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._surprise: BaseException | None = None
        self._armed = False
        """Whether the next Ctrl-C leaves."""
        self._sending = ""
        self.attached: list[Part] = []
        """The attachments of the next message."""
        self._unsure: dict[str, Dedup] = {}
        """By possibly stored message, the id that makes a second try harmless."""
        self._opened: set[str] = set()
        """The conversations opened here."""
        self._title = self._status = ""
        self._held = 0
        self._away = False

    @classmethod
    async def talk(
        cls, settings: SettingsFile, conversation: str | None, *, new: bool
    ) -> int:
        """Chat until the person leaves."""
        chat = cls(settings.config, settings)
        await chat.runtime.try_sandbox()
        try:
            chat.runtime.agent  # noqa: B018  (what is not set up is said before anything else)
        except ConfigError:
            await chat.runtime.close()
            raise
        with _log_above(chat):
            async with chat.runtime:
                await chat.open(None if new else conversation or await chat._last())
                await chat._until_left()
        return 0

    async def _last(self) -> str | None:
        """Return the conversation with the last change. The first conversation in the list may be pinned and older."""
        found = await self.runtime.conversations()
        return (
            max(found, key=lambda summary: summary.updated_at).conversation
            if found
            else None
        )

    async def _until_left(self) -> None:
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signal_number, self.prompt.leave)
        self.spawn(self._work())
        self.spawn(self._follow_settings())
        await self.prompt.run()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._lines.join()
        unsure = self._sending
        for task in [*self._tasks]:
            task.cancel()
        if self._surprise is not None:
            raise self._surprise
        if unsure:
            self.tell(f"This message may not have been saved: {unsure}")
        self.prompt.print(self.screen.rest())
        if await self._is_writing():
            self.tell(
                "The answer is not finished. It continues when you open the conversation again."
            )

    async def _is_writing(self) -> bool:
        """Return whether the process is writing an answer."""
        try:
            me = await self.runtime.journal.instance()
            return me in [
                await self.runtime.journal.holder(f"run:{name}")
                for name in self._opened
            ]
        except StoreError:
            return False

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in the background.

        A `TenaxError` is printed; any other exception ends the chat and is raised there.
        """
        task = asyncio.create_task(self._report_errors(work))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._surprise = task.exception()
            self.prompt.leave()

    async def _report_errors(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except TenaxError as error:
            unsure = isinstance(error, OutcomeUnknown)
            hint = (
                "Send it again unchanged; it is saved only once."
                if unsure
                else error.hint
            )
            self.tell(f"{error} {hint}".rstrip())

    # -- what is shown ---------------------------------------------------------------------------------------

    async def open(self, name: str | None) -> None:
        """Show the last rows of a conversation and follow the conversation. `None` starts a new conversation."""
        rows, title, parent = [], None, None
        if name is not None:
            position = await self.runtime.journal.position(name)
            rows = await self.runtime.transcript(name, limit=ROWS_SHOWN)
            summary = await self.runtime.journal.summary(name)
            title, parent = summary.title, summary.parent
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        if self.name not in {None, name}:
            self.spawn(self.runtime.left(self.name or ""))
        self.name, self.screen = name, Screen(lambda: self.prompt.columns)
        if name is None:
            self.tell("New conversation.")
        else:
            if rows:
                self.tell(f"{to_one_line(title)} ({name})" if title else name)
            if parent is not None:
                self.tell(f"This is a sub-agent. /open {parent} goes back.")
            self._show([Put(row) for row in rows])
            await self._look_at_questions()
            self._following = self.spawn(self._follow(name, position))
            self._opened.add(name)
            # Continue unfinished work in the conversation, unless another process does.
            self.runtime.workers.wake(name, patient=False)
        await self.look()
        self.spawn(self.commands.learn())

    async def _follow(self, name: str, position: TailPosition) -> None:
        while True:
            try:
                async for _, changes in self.runtime.follow(name, position):
                    self._away = False
                    self._show(changes)
                    await self._look_at_questions()
                    if not changes or not all(
                        isinstance(change, Grow) for change in changes
                    ):
                        await self.look()
            except StoreUnavailable:
                self._away = True
                self.prompt.refresh()
                await asyncio.sleep(_AWAY_SECONDS)
            except Gone:
                self.tell("This conversation was deleted.")
                self.name = self.run = None
                await self.look()
                return

    def _show(self, changes: Iterable[Change]) -> None:
        if text := self.screen.changed(changes):
            self.prompt.print(text)
        self.prompt.refresh()

    async def _look_at_questions(self) -> None:
        """Load the possible answers of every new question."""
        if self.name is None or all(
            row.id in self.screen.questions for row in self.screen.asks
        ):
            return
        for question in await self.runtime.questions(self.name):
            self.screen.questions[f"{question.message}:{question.call}"] = question
        self.prompt.refresh()

    async def look(self) -> None:
        """Update the status line: the title, whether an answer is being written, and the usage."""
        name, journal = self.name, self.runtime.journal
        model = self.runtime.agent.models[0]
        title, run, parts = "new conversation", None, [model.name]
        if name is not None:
            run = (await journal.head(name)).run
            (entry,) = await self.runtime.list.page([await journal.summary(name)])
            title = to_one_line(entry.title or entry.words or "") or title
            usage, spent = await self._usage(name), await journal.spent(name)
            room = f" of {model.context:,}" if model.context else ""
            parts.append(
                f"context {usage.input + usage.output:,}{room}"
                if usage
                else "context unknown"
            )
            parts.append(f"{spent.input:,} tokens in, {spent.output:,} out")
            parts.append("cost unknown" if spent.unpriced else f"${spent.cost:.4f}")
        if run is not None and run != self.run:
            self._armed = False
        self.run, self._title, self._status = run, title, " · ".join(parts)
        self.prompt.refresh()

    async def _usage(self, name: str) -> Usage | None:
        """Return the usage of the last answer."""
        for row in reversed(await self.runtime.journal.rows(name, limit=ROWS_SHOWN)):
            fact = await self.runtime.journal.fact(name, row.last)
            if fact is not None and isinstance(fact.event, MessageAssistant):
                return fact.event.usage
        return None

    def _above(self, lines_max: int) -> list[tuple[str, str]]:
        lines = self.screen.live(lines_max)
        self._shown = self._first_question
        if self._sending:
            lines.append(
                ("class:waits", f"> {to_one_line(self._sending)[:60]} (not saved yet)")
            )
        if self._armed and not self.prompt.text:
            lines.append(("class:hint", "Press Ctrl-C again to leave"))
        return [
            *lines,
            ("class:status", fit(self._status_line(), self.prompt.columns - 1)),
        ]

    def _status_line(self) -> str:
        held = f" · {self._held:,} bytes saved on this host" if self._held else ""
        away = " · the store is not responding" if self._away or self._held else ""
        writing = " · writing" if self.run is not None and not self.screen.asks else ""
        title = fit(self._title, min(_TITLE_COLUMNS, self.prompt.columns // 2))
        return f"{title}{writing}{away}{held} · {self._status}"

    def _on_held(self, _conversation: str, count: int) -> None:
        self._held = count
        self.prompt.refresh()

    def tell(self, words: str) -> None:
        """Print a note of Tenax."""
        self.prompt.print(aside(f"-- {words}", columns=self.prompt.columns) + "\n")

    def tell_list(self, lines: Iterable[str]) -> None:
        """Print a list of lines."""
        columns = self.prompt.columns
        self.prompt.print(
            "".join(aside(f"   {line}", columns=columns) for line in lines) + "\n"
        )

    # -- what is typed ---------------------------------------------------------------------------------------

    @property
    def _first_question(self) -> _Shown:
        asks = self.screen.asks
        return (self.name, asks[0].id) if asks else None

    def _note_shown(self) -> None:
        self._shown_at_begin = self._shown

    def _accept(self, line: str) -> None:
        self._armed = False
        self._lines.put_nowait((line, self._shown_at_begin))

    def _interrupt(self) -> None:
        """Handle Ctrl-C: stop the answer, or clear the input, or leave at the second press."""
        if self.run is not None and not self._armed:
            self._armed = True
            self.spawn(self.stop())
        elif self.run is None and self.prompt.text:
            self._armed = False
            self.prompt.clear()
        elif self._armed:
            self.prompt.leave()
        else:
            self._armed = True
        self.prompt.refresh()

    async def stop(self) -> None:
        """Stop the current answer."""
        self.screen.mine.update(row.id for row in self.screen.asks)
        await self.runtime.stop(self.name or "")

    async def _follow_settings(self) -> None:
        """Use another model as soon as the page or `tenax setup` has chosen it."""
        while True:
            await asyncio.sleep(_SETTINGS_SECONDS)
            changed = self._settings.read_if_changed()
            if changed and self._settings.config.model is not None:
                # A model that cannot be used here is reported. The next change counts again.
                await self._report_errors(self._use_settings())

    async def _use_settings(self) -> None:
        before = self.runtime.config.model
        await self.runtime.configure(self._settings.config)
        if self.runtime.config.model != before:
            self.tell(f"Now using {self.runtime.agent.models[0].name}.")
        await self.look()

    async def _work(self) -> None:
        while True:
            line, shown = await self._lines.get()
            try:
                await self._report_errors(self._do(line, shown))
            finally:
                self._lines.task_done()

    async def _do(self, line: str, shown: _Shown) -> None:
        asks, key = self.screen.asks, line.strip().lower()
        if line.startswith("/"):
            await self.commands.do(line)
        elif asks and key == "?" and not choices(asks[0].name, asks[0].arguments):
            self.tell_list(_ANSWERS_EXPLAINED)
        elif asks and self.name is not None and _answers(asks[0], key):
            if shown == self._first_question:
                await self._answer_with(asks[0], line)
            else:
                # The person started to type before the question appeared.
                self.tell(
                    "The question appeared after you started typing. Press Enter to answer it."
                )
                self.prompt.put(line)
        elif (
            (key in _ANSWERS or key == "c")
            and self.run
            and self.screen.asked_by == self.run
        ):
            self.tell("The question was already answered.")
        else:
            await self.say(line)

    async def _answer_with(self, row: Row, line: str) -> None:
        key, _, number = line.strip().lower().partition(" ")
        if found := choices(row.name, row.arguments):
            numbered = {str(n): choice for n, choice in enumerate(found, 1)}
            await self._answer_question(row, "once", numbered.get(line.strip(), line))
        elif key in _PATTERNED:
            await self._allow_pattern(row, _PATTERNED[key], number)
        else:
            await self._answer_question(row, _ANSWERS[key])

    async def _answer_question(self, row: Row, answer: Answer, words: str = "") -> None:
        message, _, call = row.id.partition(":")
        self.screen.mine.add(row.id)
        try:
            await self.runtime.answer(
                self.name or "", int(message), call, answer, words=words
            )
        except TenaxError:
            if words:
                self.prompt.put(words)
            raise

    async def _allow_pattern(self, row: Row, answer: Answer, number: str) -> None:
        """Allow the call and later calls matching the pattern with the given number.

        `c` allows the exact call in the conversation. `always` without a number shows the possible rules.
        """
        await self._look_at_questions()
        found = self.screen.questions.get(row.id)
        patterns = (
            []
            if found is None
            else found.always
            if answer == "always"
            else found.conversation
        )
        if found is None or not patterns:
            what = "always" if answer == "always" else "for this conversation"
            raise InvalidInput(
                f"This cannot be allowed {what}.", hint="y allows it once."
            )
        if answer == "always" and not number:
            lines = [
                f"{n:>2}  {row.name}  {pattern}"
                for n, pattern in enumerate(found.annotate_patterns(patterns), 1)
            ]
            self.tell_list(["Always allow calls that match:", *lines])
            self.tell(
                "Type always 1 to add that rule and allow this call. /rules lists and removes rules."
            )
            return
        numbered = {str(n): pattern for n, pattern in enumerate(patterns, 1)}
        pattern = numbered.get(number or "1", "")
        if not pattern:
            raise InvalidInput(
                f"No pattern has the number {number:.20}.",
                hint=f"Choose 1 to {len(patterns)}.",
            )
        self.screen.mine.add(row.id)
        await self.runtime.answer(
            self.name or "", found.message, found.call, answer, pattern=pattern
        )

    async def say(
        self, words: str, how: How = "queue", *, parts: Iterable[Part] = ()
    ) -> None:
        """Store a message.

        The first message creates the conversation. On failure, the text returns to the input line.
        """
        more = [*parts, *self.attached]
        if not words.strip() and not more:
            raise InvalidInput("The message is empty.")
        self._sending = words
        self.prompt.refresh()
        try:
            if self.name is None:
                await self.open(await self.runtime.new(source="cli"))
            name = self.name or ""
            once = self._unsure.setdefault(
                f"{name} {words}", Dedup("talk", uuid.uuid4().hex)
            )
            # A newer message denies the open questions.
            self.screen.mine.update(row.id for row in self.screen.asks)
            await self.runtime.submit(name, [Text(words), *more], how=how, dedup=once)
            self.attached.clear()
            del self._unsure[f"{name} {words}"]
        except TenaxError:
            self.prompt.put(words if how == "queue" else f"/{how} {words}")
            raise
        finally:
            self._sending = ""
            self.prompt.refresh()


def _answers(row: Row, words: str) -> bool:
    """Return whether the input answers the question of the row. Other input is a message."""
    key, _, number = words.partition(" ")
    patterned = key in _PATTERNED and (not number or number.isdecimal())
    return bool(choices(row.name, row.arguments)) or patterned or words in _ANSWERS


class _Above(logging.Handler):
    """A log handler for warnings, printed above the input line once and without tracebacks."""

    def __init__(self, chat: TerminalChat) -> None:
        super().__init__(logging.WARNING)
        self._chat, self._loop, self._last = chat, asyncio.get_running_loop(), ""

    def emit(self, record: logging.LogRecord) -> None:
        said, self._last = self._last, record.getMessage()
        if said != self._last and self._chat.prompt.is_open:
            self._loop.call_soon_threadsafe(self._chat.tell, self._last)


@contextlib.contextmanager
def _log_above(chat: TerminalChat) -> Iterator[None]:
    handler, log = _Above(chat), logging.getLogger("tenax")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)

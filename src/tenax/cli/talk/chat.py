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
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from tenax.assembly import Runtime
from tenax.cli.lines import clean, fit
from tenax.cli.talk.commands import Commands
from tenax.cli.talk.prompt import Prompt
from tenax.cli.talk.screen import Screen, aside
from tenax.cli.talk.shell import PersonCommand
from tenax.config import Config, find_secrets
from tenax.config.watch import SettingsFile
from tenax.errors import (
    ConfigError,
    Gone,
    InvalidInput,
    OutcomeUnknown,
    RunConflict,
    StoreError,
    StoreUnavailable,
    TenaxError,
)
from tenax.events import MessageAssistant, MessageUser, Mode, Usage
from tenax.journal.base import Dedup
from tenax.journal.journal import TailPosition
from tenax.models import Model
from tenax.parts import Part, Text
from tenax.runtime.agents import Setting
from tenax.runtime.approvals import Answer
from tenax.runtime.runtime import How
from tenax.text import to_one_line
from tenax.tools.ask import choices
from tenax.tools.redact import Redact
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
    "a       allow all waiting calls once; n a denies them all",
    "n       deny this call; n and your reason tells the model why",
    "Any other text is a new message, and denies the call.",
]
_COMMANDS_EXPLAINED: Final = (
    "! and a command runs it in the folder of the conversation, with your shell and outside the sandbox: !git status. "
    "The command and its output are added to the conversation. To send a message that starts with !, put a space "
    "before it."
)
_SETTINGS_SECONDS: Final = 1.0
_NOT_USABLE: Final = "the model cannot be used here"
_MODES_SHOWN: Final[dict[Mode, str]] = {
    "ask": "",
    "edits": "edits accepted",
    "plan": "plan mode",
}
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
        self.editing: tuple[str, int] | None = None
        """The conversation and the message that the next message replaces."""
        self._command: PersonCommand | None = None
        """The running command of the person."""
        self._redact = Redact(lambda: find_secrets(self.runtime.config))
        self._unsure: dict[str, Dedup] = {}
        """By possibly stored message, the id that makes a second try harmless."""
        self._opened: set[str] = set()
        """The conversations opened here."""
        self.chosen = Setting("cli")
        """The choices for the next new conversation."""
        self._title = self._status = ""
        self._held = 0
        self._away = False

    @classmethod
    async def talk(
        cls,
        settings: SettingsFile,
        conversation: str | None,
        *,
        new: bool,
        folder: str = "",
    ) -> int:
        """Chat until the person leaves. With `folder`, start a conversation in the project with the folder."""
        chat = cls(settings.config, settings)
        await chat.runtime.try_sandbox()
        try:
            chat.runtime.agent  # noqa: B018  (what is not set up is said before anything else)
        except ConfigError:
            await chat.runtime.close()
            raise
        with _log_above(chat):
            async with chat.runtime:
                if folder:
                    project = await chat.runtime.projects.of_folder(folder)
                    chat.chosen = Setting("cli", project=project)
                    new = True
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
        if self._command is not None:
            self.tell(
                "The command was stopped, and its output is not in the conversation."
            )
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
        self.editing = None
        if name is None:
            project, where = self.chosen.project, ""
            if project is not None:
                where = f" in the project {to_one_line(project.name)}"
            self.tell(f"New conversation{where}.")
        else:
            if rows:
                self.tell(f"{to_one_line(title)} ({name})" if title else name)
            if parent is not None:
                self.tell(f"This is a sub-agent. /open {parent} goes back.")
            changes = [Put(row) for row in rows]
            await self._look_at_questions(changes)
            self._show(changes)
            self._following = self.spawn(self._follow(name, position))
            self._opened.add(name)
            # Continue unfinished work in the conversation, unless another process does.
            self.runtime.workers.wake(name, patient=False)
        await self.look()
        setting = await self.setting()
        if note := self.runtime.agents.explain_model(setting):
            self.tell(note)
        if name is None:
            model = self._model_of(setting)
            shown = model.name if model is not None else setting.model
            folder = _shorten_home(self.runtime.agents.folder_of(setting))
            self.tell(f"{shown} works in {folder}. ? for help, ! runs a command.")
        self.spawn(self.commands.learn())

    async def _follow(self, name: str, position: TailPosition) -> None:
        while True:
            try:
                async for _, changes in self.runtime.follow(name, position):
                    self._away = False
                    # Changes are shown also while the store is away.
                    with contextlib.suppress(StoreUnavailable):
                        await self._look_at_questions(changes)
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

    async def _look_at_questions(self, changes: Iterable[Change] = ()) -> None:
        """Load the possible answers of every new question, also of the questions that `changes` will show."""
        new = [change.row for change in changes if isinstance(change, Put)]
        asks = [row for row in new if row.kind == "tool" and row.state == "asks"]
        if self.name is None or all(
            row.id in self.screen.questions for row in [*self.screen.asks, *asks]
        ):
            return
        for question in await self.runtime.questions(self.name):
            self.screen.questions[f"{question.message}:{question.call}"] = question
        self.prompt.refresh()

    async def setting(self) -> Setting:
        """Return the choices for the open conversation, or for the next new conversation."""
        if self.name is None:
            return self.chosen
        return await self.runtime.agents.setting(self.name)

    async def choose(
        self, *, model: str | None = None, mode: Mode | None = None
    ) -> None:
        """Choose the model or the mode of the open conversation, or of the next new conversation."""
        choices = self.runtime.choices
        if self.name is not None:
            await choices.configure(self.name, model=model, mode=mode)
        else:
            event = await choices.make_event(model=model, mode=mode)
            given = {"model": event.model, "mode": event.mode}
            changes = {
                name: value for name, value in given.items() if value is not None
            }
            self.chosen = msgspec.structs.replace(self.chosen, **changes)
        await self.look()

    async def look(self) -> None:
        """Update the status line: the title, whether an answer is being written, the choices, and the usage."""
        name, journal = self.name, self.runtime.journal
        setting = await self.setting()
        model = self._model_of(setting)
        shown = model.name if model is not None else _NOT_USABLE
        title, run, parts = "new conversation", None, [shown]
        if setting.mode != "ask":
            parts.insert(0, _MODES_SHOWN[setting.mode])
        if setting.project is not None:
            parts.append(to_one_line(setting.project.name))
        if name is not None:
            run = (await journal.head(name)).run
            (entry,) = await self.runtime.list.page([await journal.summary(name)])
            title = to_one_line(entry.title or entry.words or "") or title
            usage, spent = await self._usage(name), await journal.spent(name)
            room = f" of {model.context:,}" if model and model.context else ""
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

    def _model_of(self, setting: Setting) -> Model | None:
        """Return the model of a conversation; `None` for a model that the page chose and that has no key here."""
        try:
            return self.runtime.agents.agent_of(setting).models[0]
        except ConfigError:
            return None

    async def _usage(self, name: str) -> Usage | None:
        """Return the usage of the last answer."""
        for row in reversed(await self.runtime.journal.rows(name, limit=ROWS_SHOWN)):
            fact = await self.runtime.journal.fact(name, row.last)
            if fact is not None and isinstance(fact.event, MessageAssistant):
                return fact.event.usage
        return None

    def _above(self, lines_max: int) -> list[tuple[str, str]]:
        lines = self.screen.live(lines_max)
        if self._command is not None:
            columns = self.prompt.columns - 1
            command = f"  $ {to_one_line(self._command.command)}"
            if self._command.unfinished:
                unfinished = to_one_line(self._command.unfinished)
                lines.append(("class:waits", fit(unfinished, columns)))
            running = " … running, Ctrl-C stops it"
            if self._command.is_stopping:
                running = " … stopping, Ctrl-C kills it"
            lines.append(("class:tool", fit(command, columns - len(running)) + running))
        self._shown = self._first_question
        if self._sending:
            lines.append(
                ("class:waits", f"> {to_one_line(self._sending)[:60]} (not saved yet)")
            )
        if self.editing is not None:
            lines.append(
                ("class:hint", "Editing: Enter sends a new version, Ctrl-C cancels")
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
        """Handle Ctrl-C: stop the command or the answer, or clear the input, or leave at the second press."""
        if self._command is not None:
            self._command.stop()
        elif self.editing is not None or (self.run is None and self.prompt.text):
            self._armed, self.editing = False, None
            self.prompt.clear()
        elif self.run is not None and not self._armed:
            self._armed = True
            self.spawn(self.stop())
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
        setting = await self.setting()
        agents = self.runtime.agents
        before, default = agents.label_of(setting), self.runtime.config.model
        await self.runtime.configure(self._settings.config)
        if self.runtime.config.model != default:
            # A default model that cannot be used here is reported, also if the conversation has another model.
            agents.connect_models()
        if agents.label_of(setting) != before:
            self.tell(f"Now using {agents.agent_of(setting).models[0].name}.")
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
            # The person does something else than to edit the message.
            self.editing = None
            await self.commands.do(line)
        elif line.startswith("!"):
            self.editing = None
            await self._run_command(line)
        elif key == "?" and not asks:
            await self.commands.do("/help")
        elif asks and key == "?" and not choices(asks[0].name, asks[0].arguments):
            self.tell_list(_ANSWERS_EXPLAINED)
        elif asks and self.name is not None and self._answers(asks[0], key):
            if shown == self._first_question:
                await self._answer_with(asks[0], line)
            else:
                # The person started to type before the question appeared.
                self.tell(
                    "The question appeared after you started typing. Press Enter to answer it."
                )
                self.prompt.put(line)
        elif (
            (key in _ANSWERS or key in {"a", "c"})
            and self.run
            and self.screen.asked_by == self.run
        ):
            self.tell("The question was already answered.")
        else:
            await self.say(line)

    def _answers(self, row: Row, words: str) -> bool:
        """Return whether the input answers the question of the row. Other input is a message."""
        key, _, number = words.partition(" ")
        patterned = key in _PATTERNED and (not number or number.isdecimal())
        # A "no" takes a reason.
        plain = words in _ANSWERS or _ANSWERS.get(key) == "no"
        to_all = words == "a" and len(self.screen.asks_with_first) > 1
        return bool(choices(row.name, row.arguments)) or patterned or plain or to_all

    async def _answer_with(self, row: Row, line: str) -> None:
        key, _, number = line.strip().lower().partition(" ")
        if found := choices(row.name, row.arguments):
            numbered = {str(n): choice for n, choice in enumerate(found, 1)}
            await self._answer_question(row, "once", numbered.get(line.strip(), line))
        elif key in _PATTERNED:
            await self._allow_pattern(row, _PATTERNED[key], number)
        elif key == "a" or (_ANSWERS[key] == "no" and number == "a"):
            await self._answer_all("once" if key == "a" else "no")
        else:
            why = line.strip().partition(" ")[2]
            await self._answer_question(row, _ANSWERS[key], why=why)

    async def _answer_all(self, answer: Literal["once", "no"]) -> None:
        rows = self.screen.asks_with_first
        message, _, _ = rows[0].id.partition(":")
        self.screen.mine.update(row.id for row in rows)
        await self.runtime.answer_all(self.name or "", int(message), answer)

    async def _answer_question(
        self, row: Row, answer: Answer, words: str = "", why: str = ""
    ) -> None:
        message, _, call = row.id.partition(":")
        self.screen.mine.add(row.id)
        try:
            await self.runtime.answer(
                self.name or "", int(message), call, answer, words=words, why=why
            )
        except TenaxError:
            if words or why:
                self.prompt.put(words or f"n {why}")
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

    async def _new(self) -> str:
        """Create a conversation with the chosen model, mode and project. The project stays for later conversations."""
        chosen = self.chosen
        project = chosen.project.id if chosen.project is not None else ""
        name = await self.runtime.new(
            source="cli", model=chosen.model, mode=chosen.mode, project=project
        )
        self.chosen = Setting("cli", project=chosen.project)
        return name

    async def _begin(self) -> str:
        """Return the open conversation. The first message creates the conversation."""
        if self.name is None:
            await self.open(await self._new())
        return self.name or ""

    async def _run_command(self, line: str) -> None:
        """Start the command after the `!`. The input line stays open while the command runs."""
        command = line[1:].strip()
        if not command:
            self.tell(_COMMANDS_EXPLAINED)
            return
        if self._command is not None:
            self.prompt.put(line)
            raise InvalidInput("A command is still running.", hint="Ctrl-C stops it.")
        name = await self._begin()
        folder = await self.runtime.folder(name)
        self._command = PersonCommand(command, folder, self._redact, self._show_output)
        self.tell(f"$ {self._command.command}")
        self.spawn(self._follow_command(name, self._command))

    async def _follow_command(self, name: str, command: PersonCommand) -> None:
        """Add the command and its output to the conversation when the command has ended."""
        try:
            text = await command.run()
        finally:
            self._command = None
            self.prompt.refresh()
        # The line is shown when the message is stored, because it comes from the journal.
        self.screen.watched[text] = (
            f"  $ {fit(to_one_line(command.command), _TITLE_COLUMNS)} … {command.ending}. "
            "Added to the conversation; the model reads it with your next message."
        )
        once = Dedup("talk", uuid.uuid4().hex)
        try:
            await self._add_command(name, text, once)
        except TenaxError as error:
            self.tell(
                f"{command.ending}. The output could not be added to the conversation: {error}"
            )

    async def _add_command(self, name: str, text: str, once: Dedup) -> None:
        try:
            await self.runtime.add_command(name, text, dedup=once)
        except OutcomeUnknown:
            # A second try with the same id stores the message once.
            await self.runtime.add_command(name, text, dedup=once)

    def _show_output(self, lines: str) -> None:
        if lines:
            self.prompt.print(clean(lines))
        self.prompt.refresh()

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
            name = await self._begin()
            key = f"{name} {self.editing} {words}"
            once = self._unsure.setdefault(key, Dedup("talk", uuid.uuid4().hex))
            # A newer message denies the open questions.
            self.screen.mine.update(row.id for row in self.screen.asks)
            if self.editing is not None:
                await self._replace(*self.editing, [Text(words), *more], once)
            else:
                message = [Text(words), *more]
                await self.runtime.submit(name, message, how=how, dedup=once)
            self.attached.clear()
            del self._unsure[key]
        except TenaxError:
            self.prompt.put(words if how == "queue" else f"/{how} {words}")
            raise
        finally:
            self._sending = ""
            self.prompt.refresh()

    async def _replace(
        self, name: str, seq: int, parts: list[Part], once: Dedup
    ) -> None:
        """Store another version of a message, with the attachments of the message and more."""
        fact = await self.runtime.journal.fact(name, seq)
        if fact is not None and isinstance(fact.event, MessageUser):
            parts[1:1] = [
                part for part in fact.event.parts if not isinstance(part, Text)
            ]
        try:
            await self.runtime.replace(name, seq, parts, dedup=once)
        except RunConflict as error:
            # Only a queued message can be replaced during an answer.
            raise InvalidInput(
                "An answer is being written.", hint="/stop stops it."
            ) from error
        self.editing = None


def _shorten_home(folder: Path) -> str:
    """Return the path of a folder, with ~ for the home folder."""
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if home in folder.parents else str(folder)


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

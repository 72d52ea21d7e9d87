"""The slash commands. A command is a method; the docstring is its line in /help."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenax.agent.attachments import read_file
from tenax.cli.lines import EFFECTS, UNTITLED, fit, short_time
from tenax.cli.rules import lines_of, nth
from tenax.cli.talk.screen import render_changes
from tenax.concurrency import run_in_own_thread
from tenax.errors import InvalidInput
from tenax.events import MessageUser, Mode
from tenax.journal.base import Summary
from tenax.parts import text_of
from tenax.runtime.runtime import COMMAND
from tenax.runtime.versions import ShownVersions
from tenax.text import to_one_line
from tenax.views.transcript import Key, Row

if TYPE_CHECKING:
    from tenax.cli.talk.chat import TerminalChat

__all__ = ["Commands"]

LISTED_MAX: Final = 20
# Command names of other agents: accepted, but not shown in /help.
_HABITS: Final = {
    "sessions": "list",
    "resume": "open",
    "compress": "compact",
    "reset": "new",
}
_NAMES: Final = ("new", "list", "open", "search", "undo", "retry", "edit", "versions", "fork", "compact", "clear", "model", "mode", "tools",
                 "rules", "changes", "putback", "attach", "stop", "steer", "queue", "cancel", "title", "help")  # fmt: skip
_TITLE_COLUMNS: Final = 60
_MODES: Final[dict[Mode, str]] = {
    "ask": "Tenax asks before a call that changes something",
    "edits": "Changes of files in the folder are accepted; other calls still ask",
    "plan": "Plan mode: no tool that changes something runs",
}


class Commands:
    """The slash commands. `words` is the text after the name of the command."""

    def __init__(self, chat: TerminalChat) -> None:
        self._chat = chat
        self._numbered: list[str] = []
        """The conversations of the last list, for the numbers of /open."""
        self._titles: dict[str, str] = {}
        self._taken_back: tuple[str, int] | None = None
        """The last undo or clear: the conversation and the seq."""

    async def do(self, line: str) -> None:
        """Execute a slash command."""
        name, _, words = line[1:].partition(" ")
        name = _HABITS.get(name, name)
        if name not in _NAMES:
            near = difflib.get_close_matches(name, [*_NAMES, *_HABITS], n=1)
            meant = (
                f"Did you mean /{_HABITS.get(near[0], near[0])}?"
                if near
                else "/help lists them."
            )
            self._chat.prompt.put(line)
            self._chat.tell(
                f"Unknown command /{name}. {meant} To send a message that starts with a slash, put a space before it."
            )
            return
        act: Callable[[str], Awaitable[None]] = getattr(self, f"_{name}")
        await act(words.strip())

    def complete(self, line: str) -> Iterator[tuple[str, str]]:
        """Yield completions for the end of a line, with descriptions."""
        name, space, rest = line[1:].partition(" ")
        if not space:
            yield from (
                (f"/{command}", self._about(command)[1])
                for command in _NAMES
                if command.startswith(name)
            )
        elif _HABITS.get(name, name) == "open":
            yield from (
                (conversation, title)
                for conversation, title in self._titles.items()
                if conversation.startswith(rest)
            )
        elif name == "mode":
            yield from (
                (mode, about) for mode, about in _MODES.items() if mode.startswith(rest)
            )
        elif name in {"model", "retry"}:
            models = self._chat.runtime.config.models
            yield from (
                (label, models[label].name)
                for label in models
                if label.startswith(rest)
            )

    def _about(self, name: str) -> tuple[str, str]:
        """Return the arguments and the description of a command, from the docstring of its method."""
        takes, _, does = (inspect.getdoc(getattr(self, f"_{name}")) or "").rpartition(
            ": "
        )
        return takes, does[:1].upper() + does[1:]

    @property
    def _here(self) -> str:
        if self._chat.name is None:
            raise InvalidInput("This conversation has no messages yet.")
        return self._chat.name

    @property
    def _at_rest(self) -> str:
        """The open conversation. Raises InvalidInput while an answer is being written."""
        if self._chat.run is not None:
            raise InvalidInput("An answer is being written.", hint="/stop stops it.")
        return self._here

    # -- going from one to another ---------------------------------------------------------------------------

    async def _new(self, _words: str) -> None:
        """Start a new conversation."""
        await self._chat.open(None)

    async def _list(self, _words: str) -> None:
        """List the conversations."""
        found = await self._chat.runtime.conversations(limit=LISTED_MAX)
        self._numbered = [summary.conversation for summary in found]
        await self.learn(found)
        lines = [f"{n:>2}  {self._line(summary)}" for n, summary in enumerate(found, 1)]
        self._chat.tell_list(lines or ["No conversations yet."])

    async def learn(self, found: list[Summary] | None = None) -> None:
        """Load the titles, or first words, of the given conversations or of the newest conversations."""
        runtime = self._chat.runtime
        for entry in await runtime.list.page(
            found or await runtime.conversations(limit=LISTED_MAX)
        ):
            title = to_one_line(entry.title or "") or entry.words or UNTITLED
            self._titles[entry.id] = fit(title, _TITLE_COLUMNS)

    def _line(self, summary: Summary) -> str:
        name, now = summary.conversation, self._chat.runtime.journal.clock.now_us()
        marks = {
            "here": name == self._chat.name,
            "writing": summary.running,
            "pinned": summary.pinned,
        }
        told = ", ".join(
            [
                f"{summary.messages} message{'' if summary.messages == 1 else 's'}",
                *(mark for mark, on in marks.items() if on),
            ]
        )
        return f"{self._titles.get(name, name)}  {short_time(summary.updated_at, now)}, {told}"

    async def _open(self, words: str) -> None:
        """N or ID: open a conversation by its number in the last list, or by its id."""
        name = words
        if words.isdecimal():
            numbered = {
                str(n): conversation for n, conversation in enumerate(self._numbered, 1)
            }
            if words not in numbered:
                raise InvalidInput(
                    f"The last list has no number {words:.20}.",
                    hint="/list shows the numbers.",
                )
            name = numbered[words]
        if not name:
            raise InvalidInput(
                "Which conversation?", hint="Type a number from /list, or an id."
            )
        await self._chat.open(name)

    async def _search(self, words: str) -> None:
        """WORDS: search all conversations."""
        if not words:
            raise InvalidInput("Nothing to search for.", hint="Type: /search WORDS")
        found = await self._chat.runtime.search(words, limit=LISTED_MAX)
        if not found.hits:
            self._chat.tell("No results.")
            return
        self._numbered = list(dict.fromkeys(hit.conversation for hit in found.hits))
        now = self._chat.runtime.journal.clock.now_us()
        lines = [
            f"{self._numbered.index(hit.conversation) + 1:>2}  {short_time(hit.at, now)}  {hit.role}: "
            f"{to_one_line(hit.snippet)}{'' if hit.standing else ' (removed)'}"
            for hit in found.hits
        ]
        self._chat.tell_list([*lines, "/open N opens a conversation."])

    async def _fork(self, _words: str) -> None:
        """Copy this conversation and continue in the copy."""
        before = self._at_rest
        await self._chat.open(await self._chat.runtime.fork(before))
        self._chat.tell(f"Copied to a new conversation. /open {before} goes back.")

    # -- taking back -----------------------------------------------------------------------------------------

    async def _undo(self, words: str) -> None:
        """[back]: remove the last message and its answer, or restore them."""
        if words == "back":
            await self._bring_back()
        elif words:
            raise InvalidInput(
                f"Unknown option {words!r}.", hint="Use /undo or /undo back."
            )
        else:
            await self._take_back()
            self._chat.tell("Message removed. /undo back restores it.")

    async def _bring_back(self) -> None:
        if self._taken_back is None or self._taken_back[0] != self._here:
            raise InvalidInput("Nothing to restore.")
        await self._chat.runtime.restore(*self._taken_back)
        self._taken_back = None

    async def _take_back(self) -> Row:
        """Remove the last message, and return the row of the message."""
        name = self._at_rest
        asked = await self._last_message(name, commands=True)
        self._taken_back = (
            name,
            await self._chat.runtime.undo(name, to=int(asked.id) - 1),
        )
        return asked

    async def _last_message(self, name: str, *, commands: bool = False) -> Row:
        """Find the last message of a person, page by page, because an answer may have many rows.

        With `commands`, a command that the person ran counts as a message.
        """
        before: Key | None = None
        while True:
            page = await self._chat.runtime.page(name, before=before)
            for row in reversed([*page.rows, *page.waiting]):
                if row.kind != "user" or row.author == "system":
                    continue
                if commands or not await self._is_command(name, row):
                    return row
            if page.next is None:
                raise InvalidInput("There is no message to remove.")
            before = page.next

    async def _is_command(self, name: str, row: Row) -> bool:
        """Return whether the message is a command that the person ran."""
        fact = await self._chat.runtime.journal.fact(name, int(row.id))
        event = fact.event if fact is not None else None
        return isinstance(event, MessageUser) and COMMAND in event.extra

    async def _retry(self, words: str) -> None:
        """[MODEL]: send the last message again, as another version, or to another model."""
        name = self._at_rest
        row = await self._last_message(name)
        await self._chat.runtime.replace(name, int(row.id), model=words or None)

    async def _edit(self, _words: str) -> None:
        """Edit the last message, and send it as another version; a queued message is replaced."""
        row = await self._last_queued()
        name = self._here if row is not None else self._at_rest
        row = row or await self._last_message(name)
        self._chat.editing = (name, int(row.id))
        self._chat.prompt.put(row.text)

    async def _versions(self, words: str) -> None:
        """[N]: list the versions of your messages, or show one."""
        name = self._at_rest if words else self._here
        messages = await self._chat.runtime.versions(name)
        seqs = [seq for versions in messages for seq in versions.seqs]
        if not words:
            await self._list_versions(name, messages)
            return
        numbered = {str(n): seq for n, seq in enumerate(seqs, 1)}
        if words not in numbered:
            raise InvalidInput(
                f"No version has the number {words:.20}.",
                hint="/versions shows the numbers.",
            )
        seq = numbered[words]
        if any(versions.shown == seq for versions in messages):
            self._chat.tell(f"Version {words} is shown already.")
            return
        await self._chat.runtime.choose_version(name, seq)

    async def _list_versions(self, name: str, messages: list[ShownVersions]) -> None:
        lines: list[str] = []
        number = 0
        for versions in messages:
            lines.append("An earlier message:" if lines else "Your message:")
            for seq in versions.seqs:
                number += 1
                shown = "  (shown)" if seq == versions.shown else ""
                text = fit(await self._text_of(name, seq), _TITLE_COLUMNS)
                lines.append(f"{number:>2}  {text}{shown}")
        if lines:
            lines.append("/versions N shows another version and its answers.")
        self._chat.tell_list(
            lines or ["No message has versions. /edit and /retry make one."]
        )

    async def _text_of(self, name: str, seq: int) -> str:
        """Return the text of a message in one line."""
        fact = await self._chat.runtime.journal.fact(name, seq)
        if fact is None or not isinstance(fact.event, MessageUser):
            return "(erased)"
        return to_one_line(text_of(fact.event.parts)) or "(no text)"

    async def _clear(self, _words: str) -> None:
        """Clear the conversation."""
        name = self._at_rest
        self._taken_back = (name, await self._chat.runtime.clear(name))
        self._chat.tell("Cleared. /undo back restores it.")

    async def _compact(self, _words: str) -> None:
        """Summarise older messages to free context."""
        name = self._here

        async def compact_conversation() -> None:
            outcome = await self._chat.runtime.compact(name)
            self._chat.tell(outcome.said)

        self._chat.spawn(compact_conversation())

    # -- the answer that is being written --------------------------------------------------------------------

    async def _stop(self, _words: str) -> None:
        """Stop the answer."""
        if self._chat.run is None:
            raise InvalidInput("There is no answer to stop.")
        await self._chat.stop()

    async def _steer(self, words: str) -> None:
        """WORDS: send a message that the model reads at its next step."""
        await self._chat.say(words, "steer")

    async def _queue(self, words: str) -> None:
        """WORDS: send a message after the current answer, as Enter does."""
        await self._chat.say(words)

    async def _cancel(self, _words: str) -> None:
        """Cancel the last queued message."""
        row = await self._last_queued()
        if row is None:
            raise InvalidInput("No message is queued.", hint="/stop stops the answer.")
        await self._chat.runtime.withdraw(self._here, int(row.id))
        self._chat.tell(f"Cancelled: {fit(to_one_line(row.text), _TITLE_COLUMNS)}")

    async def _last_queued(self) -> Row | None:
        """Return the last message of the person that waits for a run, or None."""
        page = await self._chat.runtime.page(self._here, limit=1)
        rows = [row for row in page.waiting if row.author != "system"]
        return rows[-1] if rows else None

    async def _attach(self, words: str) -> None:
        """[FILE]: attach a text file, a picture or a PDF to the next message; without FILE, remove attachments."""
        chat = self._chat
        if words:
            setting = await chat.setting()
            data = await run_in_own_thread(
                partial(read_file, Path(words), chat.runtime.agents.folder_of(setting))
            )
            part = await chat.runtime.attachments.put(words, data)
            chat.attached.append(part)
            chat.tell(
                f"{part.name} is attached to the next message. /attach alone removes it."
            )
        else:
            chat.tell(
                f"Attachments removed: {len(chat.attached)}."
                if chat.attached
                else "Type: /attach FILE"
            )
            chat.attached.clear()

    # -- settings --------------------------------------------------------------------------------------------

    async def _model(self, words: str) -> None:
        """[NAME [--default]]: list the models, or use one in this conversation, or by default in all of them."""
        chat, models = self._chat, self._chat.runtime.config.models
        label, _, option = words.partition(" ")
        if option.strip() not in {"", "--default"}:
            raise InvalidInput(
                f"Unknown option {option.strip()!r}.",
                hint="Use /model NAME or /model NAME --default.",
            )
        if label and label not in models:
            raise InvalidInput(
                f"No model is called {label}.", hint=f"Models: {', '.join(models)}."
            )
        if not label:
            await self._list_models()
        elif option:
            await chat.runtime.use_model(label)
            await chat.choose(model="")
            chat.tell(f"Now using {label}, also in other conversations.")
        else:
            await chat.choose(model=label)
            chat.tell(f"Now using {label}.")

    async def _list_models(self) -> None:
        chat, config = self._chat, self._chat.runtime.config
        now = chat.runtime.agents.label_of(await chat.setting())
        lines = []
        for label, model in config.models.items():
            marks = {"in use": label == now, "default": label == config.model}
            told = ", ".join(mark for mark, on in marks.items() if on)
            lines.append(f"{label}  {model.name}{f'  ({told})' if told else ''}")
        chat.tell_list(lines)

    async def _mode(self, words: str) -> None:
        """[ask|edits|plan]: show the modes, or switch the mode of this conversation."""
        chat = self._chat
        if not words:
            now = (await chat.setting()).mode
            chat.tell_list(
                [
                    f"{mode}  {about}{'  (in use)' if mode == now else ''}"
                    for mode, about in _MODES.items()
                ]
            )
            return
        for mode, about in _MODES.items():
            if mode == words:
                await chat.choose(mode=mode)
                chat.tell(f"{about}.")
                return
        raise InvalidInput(
            f"No mode is called {words:.20}.", hint=f"Modes: {', '.join(_MODES)}."
        )

    async def _tools(self, _words: str) -> None:
        """List the tools, and which of them ask first."""
        tools = self._chat.runtime.agent.gate.tools()
        asks = {True: ", asks first", False: ""}
        self._chat.tell_list(
            [
                f"{tool.name} ({EFFECTS[tool.effect]}{asks[tool.asks]}): {tool.description}"
                for tool in tools
            ]
        )

    async def _rules(self, words: str) -> None:
        """[remove N]: list the rules, or remove one."""
        runtime = self._chat.runtime
        what, _, number = words.partition(" ")
        if what == "remove" and number.isdecimal():
            gone = nth(runtime.rules(), number)
            await runtime.remove_rule(gone)
            self._chat.tell(f"Removed: {gone}")
        elif words:
            raise InvalidInput(
                f"Unknown option {words!r}.",
                hint="Use /rules or /rules remove N.",
            )
        else:
            self._chat.tell_list(lines_of(runtime.rules()) or ["No rules yet."])

    async def _changes(self, _words: str) -> None:
        """Show the file changes of the last turn."""
        chat = self._chat
        turns = await chat.runtime.changes(self._here)
        if turns:
            chat.prompt.print(render_changes(turns[-1], columns=chat.prompt.columns))
        else:
            chat.tell("No files were changed.")

    async def _putback(self, _words: str) -> None:
        """Revert the file changes of the last turn; again to undo that."""
        turns = await self._chat.runtime.changes(self._at_rest)
        if not turns:
            raise InvalidInput("No files were changed.")
        back = await self._chat.runtime.put_back(self._here, turns[-1].turn)
        left = [f"{path} was not reverted. {why}" for path, why in back.left.items()]
        self._chat.tell_list([*(f"{path} was reverted." for path in back.done), *left])

    async def _title(self, words: str) -> None:
        """TITLE: rename the conversation."""
        await self._chat.runtime.rename(self._here, words or None)
        await self._chat.look()

    async def _help(self, _words: str) -> None:
        """Show this list."""
        abouts = [
            (f"/{name} {self._about(name)[0]}".rstrip(), self._about(name)[1])
            for name in _NAMES
        ]
        keys = "Enter sends, Alt-Enter starts a new line. Ctrl-C stops the answer; Ctrl-C again or Ctrl-D leaves."
        shell = "!COMMAND runs a command with your shell in the folder, and adds it to the conversation."
        self._chat.tell_list(
            [*(f"{usage:<16} {does}" for usage, does in abouts), shell, keys]
        )

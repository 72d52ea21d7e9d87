"""The words with a slash: each is a method, its docstring the line that /help shows."""

from __future__ import annotations

import asyncio
import difflib
import inspect
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenax.agent.attachments import read_file
from tenax.agent.compaction import Aborted, Compacted, NothingToDo
from tenax.cli.lines import UNTITLED, changed, fit, one_line, short_time
from tenax.cli.rules import lines_of, nth
from tenax.errors import InvalidInput
from tenax.journal.base import Summary
from tenax.views.transcript import Key, Row

if TYPE_CHECKING:
    from tenax.cli.talk.face import Face

__all__ = ["Commands"]

LISTED_MAX: Final = 20
# Names that people bring along from elsewhere: accepted, not advertised.
_HABITS: Final = {
    "sessions": "list",
    "resume": "open",
    "compress": "compact",
    "reset": "new",
}
_NAMES: Final = ("new", "list", "open", "search", "undo", "retry", "edit", "fork", "compact", "clear", "model", "tools",
                 "rules", "changes", "putback", "attach", "stop", "steer", "queue", "title", "help")  # fmt: skip
_TITLE_COLUMNS: Final = 60


class Commands:
    """What can be typed besides messages. `words` is what stands after the name."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self._numbered: list[str] = []
        """The conversations as they were last listed: /open takes their numbers."""
        self._titles: dict[str, str] = {}
        self._taken_back: tuple[str, int] | None = None
        """The last undo or clear here: where, and its seq."""

    async def do(self, line: str) -> None:
        """Do what a line with a slash says."""
        name, _, words = line[1:].partition(" ")
        name = _HABITS.get(name, name)
        if name not in _NAMES:
            near = difflib.get_close_matches(name, [*_NAMES, *_HABITS], n=1)
            meant = (
                f"Did you mean /{_HABITS.get(near[0], near[0])}?"
                if near
                else "/help lists them."
            )
            self._face.prompt.put(line)
            self._face.tell(
                f"There is no command /{name}. {meant} A message may begin with a space, then a slash."
            )
            return
        act: Callable[[str], Awaitable[None]] = getattr(self, f"_{name}")
        await act(words.strip())

    def complete(self, line: str) -> Iterator[tuple[str, str]]:
        """Words that may stand at the end of this line, each with what it is."""
        name, space, rest = line[1:].partition(" ")
        if not space:
            yield from (
                (f"/{each}", self._about(each)[1])
                for each in _NAMES
                if each.startswith(name)
            )
        elif _HABITS.get(name, name) == "open":
            yield from (
                (each, title)
                for each, title in self._titles.items()
                if each.startswith(rest)
            )
        elif name == "model":
            models = self._face.runtime.config.models
            yield from (
                (label, models[label].name)
                for label in models
                if label.startswith(rest)
            )

    def _about(self, name: str) -> tuple[str, str]:
        """What a command takes and does, from its docstring."""
        takes, _, does = (inspect.getdoc(getattr(self, f"_{name}")) or "").rpartition(
            ": "
        )
        return takes, does[:1].upper() + does[1:]

    @property
    def _here(self) -> str:
        if self._face.name is None:
            raise InvalidInput("Nothing was said here yet.")
        return self._face.name

    @property
    def _at_rest(self) -> str:
        """The open conversation, when nothing is being written in it."""
        if self._face.run is not None:
            raise InvalidInput("An answer is being written.", hint="/stop stops it.")
        return self._here

    # -- going from one to another ---------------------------------------------------------------------------

    async def _new(self, _words: str) -> None:
        """A new conversation."""
        await self._face.open(None)

    async def _list(self, _words: str) -> None:
        """The conversations, with numbers."""
        found = await self._face.runtime.conversations(limit=LISTED_MAX)
        self._numbered = [each.conversation for each in found]
        await self.learn(found)
        lines = [f"{n:>2}  {self._line(each)}" for n, each in enumerate(found, 1)]
        self._face.tell_list(lines or ["There are no conversations yet."])

    async def learn(self, found: list[Summary] | None = None) -> None:
        """Find what these conversations, or the newest, are called, by their title or their first words."""
        runtime = self._face.runtime
        for each in await runtime.list.page(
            found or await runtime.conversations(limit=LISTED_MAX)
        ):
            title = one_line(each.title or "") or each.words or UNTITLED
            self._titles[each.id] = fit(title, _TITLE_COLUMNS)

    def _line(self, each: Summary) -> str:
        name, now = each.conversation, self._face.runtime.journal.clock.now_us()
        marks = {
            "here": name == self._face.name,
            "writing": each.running,
            "pinned": each.pinned,
        }
        told = ", ".join(
            [f"{each.messages} messages", *(mark for mark, on in marks.items() if on)]
        )
        return f"{self._titles.get(name, name)}  {short_time(each.updated_at, now)}, {told}"

    async def _open(self, words: str) -> None:
        """N or ID: go to a conversation, by its number in the last list or its id."""
        name = words
        if words.isdecimal():
            numbered = {str(n): each for n, each in enumerate(self._numbered, 1)}
            if words not in numbered:
                raise InvalidInput(
                    f"The last list has no number {words:.20}.", hint="/list shows it."
                )
            name = numbered[words]
        if not name:
            raise InvalidInput(
                "Which one?", hint="/open takes a number of /list, or an id."
            )
        await self._face.open(name)

    async def _search(self, words: str) -> None:
        """WORDS: everything that was ever said with these words."""
        if not words:
            raise InvalidInput("What is looked for?", hint="/search takes words.")
        found = await self._face.runtime.search(words, limit=LISTED_MAX)
        if not found.hits:
            self._face.tell("Nothing was found.")
            return
        self._numbered = list(dict.fromkeys(each.conversation for each in found.hits))
        now = self._face.runtime.journal.clock.now_us()
        lines = [
            f"{self._numbered.index(each.conversation) + 1:>2}  {short_time(each.at, now)}  {each.role}: "
            f"{one_line(each.snippet)}{'' if each.standing else ' (taken back)'}"
            for each in found.hits
        ]
        self._face.tell_list([*lines, "/open N goes there."])

    async def _fork(self, _words: str) -> None:
        """Go on in a copy; this conversation stays as it is."""
        before = self._at_rest
        await self._face.open(await self._face.runtime.fork(before))
        self._face.tell(f"This is the copy. /open {before} goes back.")

    # -- taking back -----------------------------------------------------------------------------------------

    async def _undo(self, words: str) -> None:
        """[back]: take the last message and its answer back, or bring back what was taken."""
        if words == "back":
            await self._bring_back()
        elif words:
            raise InvalidInput(
                f"/undo does not know {words!r}.", hint="It stands alone, or with: back"
            )
        else:
            await self._take_back()
            self._face.tell(
                "The last message was taken back. /undo back brings it back."
            )

    async def _bring_back(self) -> None:
        if self._taken_back is None or self._taken_back[0] != self._here:
            raise InvalidInput("Nothing was taken back in this talk.")
        await self._face.runtime.restore(*self._taken_back)
        self._taken_back = None

    async def _take_back(self) -> Row:
        """The last message, which no longer stands."""
        name = self._at_rest
        asked = await self._last_message(name)
        self._taken_back = (
            name,
            await self._face.runtime.undo(name, to=int(asked.id) - 1),
        )
        return asked

    async def _last_message(self, name: str) -> Row:
        """Find the last message of a person, page by page: one answer may have many rows."""
        before: Key | None = None
        while True:
            page = await self._face.runtime.page(name, before=before)
            for row in reversed([*page.rows, *page.waiting]):
                if row.kind == "user" and row.author != "system":
                    return row
            if page.next is None:
                raise InvalidInput("There is no message to take back.")
            before = page.next

    async def _retry(self, _words: str) -> None:
        """Ask the last message again."""
        row = await self._take_back()
        await self._face.say(row.text, parts=row.parts)

    async def _edit(self, _words: str) -> None:
        """Take the last message back into the input line."""
        row = await self._take_back()
        self._face.prompt.put(row.text)

    async def _clear(self, _words: str) -> None:
        """Everything said so far leaves the conversation."""
        name = self._at_rest
        self._taken_back = (name, await self._face.runtime.clear(name))
        self._face.tell("Cleared. /undo back brings it all back.")

    async def _compact(self, _words: str) -> None:
        """Put a summary in place of the older part of the context."""
        name = self._here

        async def work() -> None:
            match await self._face.runtime.compact(name):
                case Compacted(tokens_before=before, tokens_after=after):
                    said = f"The context has about {after:,} tokens now, and had {before:,}."
                case NothingToDo():
                    said = "There is nothing to shorten."
                case Aborted(why=why):
                    said = f"Nothing was shortened. {why}"
                case _:
                    said = "Nothing was shortened: somebody else is at it, or it was tried just now."
            self._face.tell(said)

        self._face.spawn(work())

    # -- the answer that is being written --------------------------------------------------------------------

    async def _stop(self, _words: str) -> None:
        """Stop the answer."""
        if self._face.run is None:
            raise InvalidInput("Nothing is being written.")
        await self._face.stop()

    async def _steer(self, words: str) -> None:
        """WORDS: say something that the answer takes in while it is written."""
        await self._face.say(words, "steer")

    async def _queue(self, words: str) -> None:
        """WORDS: say something that is answered afterwards, as Enter does."""
        await self._face.say(words)

    async def _attach(self, words: str) -> None:
        """FILE: a text, a picture or a PDF that goes with the next message; without one, take back what waits."""
        face = self._face
        if words:
            data = await asyncio.to_thread(
                read_file, Path(words), face.runtime.config.tools_folder
            )
            part = await face.runtime.attachments.put(words, data)
            face.attached.append(part)
            face.tell(
                f"{part.name} goes with the next message. /attach alone takes it back."
            )
        else:
            face.tell(
                f"{len(face.attached)} taken back." if face.attached else "Which file?"
            )
            face.attached.clear()

    # -- settings --------------------------------------------------------------------------------------------

    async def _model(self, words: str) -> None:
        """[NAME]: the models that are set up, or answer with this one from now on."""
        face, models = self._face, self._face.runtime.config.models
        if words not in models:
            if words:
                raise InvalidInput(
                    f"No model is called {words}.",
                    hint=f"There are: {', '.join(models)}.",
                )
            now = face.runtime.agent.models[0].name
            marks = {
                each: "  (in use)" if models[each].name == now else ""
                for each in models
            }
            face.tell_list(
                [f"{each}  {models[each].name}{marks[each]}" for each in models]
            )
            return
        await face.runtime.use_model(words)
        await face.look()
        face.tell(f"{words} answers from now on.")

    async def _tools(self, _words: str) -> None:
        """What the model can do, and what a person is asked for."""
        tools = self._face.runtime.agent.gate.tools()
        asks = {True: ", asks first", False: ""}
        self._face.tell_list(
            [
                f"{each.name} ({each.effect}{asks[each.asks]}): {each.description}"
                for each in tools
            ]
        )

    async def _rules(self, words: str) -> None:
        """[remove N]: what tools may do without asking and what they never may, or take one of these back."""
        runtime = self._face.runtime
        what, _, number = words.partition(" ")
        if what == "remove" and number.isdecimal():
            gone = nth(runtime.rules(), number)
            await runtime.remove_rule(gone)
            self._face.tell(f"Taken back: {gone}")
        elif words:
            raise InvalidInput(
                f"/rules does not know {words!r}.",
                hint="It stands alone, or with: remove N",
            )
        else:
            self._face.tell_list(lines_of(runtime.rules()) or ["There are no rules."])

    async def _changes(self, _words: str) -> None:
        """What the last turn changed in the folder, as diffs."""
        turns = await self._face.runtime.changes(self._here)
        self._face.tell_list(
            changed(turns[-1]) if turns else ["Nothing was changed in the folder."]
        )

    async def _putback(self, _words: str) -> None:
        """Make the files again what they were before the last turn; once more takes that back."""
        turns = await self._face.runtime.changes(self._at_rest)
        if not turns:
            raise InvalidInput("Nothing was changed in the folder.")
        back = await self._face.runtime.put_back(self._here, turns[-1].turn)
        left = [f"{path} was not put back. {why}" for path, why in back.left.items()]
        self._face.tell_list([*(f"{path} was put back." for path in back.done), *left])

    async def _title(self, words: str) -> None:
        """WORDS: give the conversation a title."""
        await self._face.runtime.rename(self._here, words or None)
        await self._face.look()

    async def _help(self, _words: str) -> None:
        """This list."""
        abouts = [
            (f"/{name} {self._about(name)[0]}".rstrip(), self._about(name)[1])
            for name in _NAMES
        ]
        keys = "Enter sends, Alt-Enter begins a new line. Ctrl-C stops the answer, a second one leaves; so does Ctrl-D."
        self._face.tell_list([*(f"{usage:<16} {does}" for usage, does in abouts), keys])

"""The commands of a chat: /new, /stop, /undo, /retry, /status, /model, /compact and /help.

A command is an input like a message: its effect is stored under the id of the update, so a repeated update has no second
effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tenax.assembly import Runtime
from tenax.errors import DedupReused, InvalidInput, TenaxError
from tenax.events import ConversationOpened, ConversationRouted
from tenax.journal.base import Dedup

__all__ = ["COMMANDS", "SLOW", "Command", "Commands", "Origin", "parse"]

COMMANDS: Final = (
    ("new", "Begin a new conversation"),
    ("stop", "Stop the answer"),
    ("undo", "Remove the last message and its answer"),
    ("retry", "Answer the last message again"),
    ("status", "Show the conversation, the model and the usage"),
    ("model", "Show the models, or choose one: /model NAME"),
    ("compact", "Summarise the conversation to make it shorter"),
    ("help", "Show the commands"),
)
_ALREADY: Final = "This was done already."
_NONE: Final = "This chat has no conversation yet. Write a message to begin."
_GREETINGS: Final = frozenset({"start", "help"})
SLOW: Final = frozenset({"compact"})
"""The commands that wait for a model."""


class Command(NamedTuple):
    """A command and its arguments."""

    name: str
    words: str


def parse(text: str) -> Command | None:
    """Return the command of a message, or `None`. A path such as /etc/hosts is no command."""
    first, _, words = text.strip().partition(" ")
    name = first[1:].lower()
    if not first.startswith(("/", "!")) or not name.isascii() or not name.isalpha():
        return None
    if first.startswith("!") and name not in dict(COMMANDS):
        return None
    return Command(name, words.strip())


class Origin(NamedTuple):
    """Where a command comes from."""

    route: ConversationRouted
    source: str
    """The platform, for the source of a new conversation."""
    conversation: str | None
    dedup: Dedup


class Commands:
    """Executes commands with the runtime of the user."""

    async def do(self, runtime: Runtime, command: Command, origin: Origin) -> str:
        """Execute a command and return the reply. Refusals are replies too."""
        if command.name in _GREETINGS:
            return _help()
        action = _ACTIONS.get(command.name)
        if action is None:
            return f"/{command.name:.30} is no command.\n\n{_help()}"
        try:
            return await action(self, runtime, command.words, origin)
        except DedupReused:
            return _ALREADY
        except TenaxError as error:
            return f"{error} {error.hint}".strip()

    async def _new(self, runtime: Runtime, _words: str, origin: Origin) -> str:
        journal = runtime.journal
        opened = ConversationOpened(
            journal.user or "", journal.ids.segment(), source=origin.source
        )
        name = journal.ids.conversation()
        await journal.append(name, [opened, origin.route], dedup=origin.dedup)
        return "New conversation."

    async def _stop(self, runtime: Runtime, _words: str, origin: Origin) -> str:
        name = _required(origin)
        stopped = await runtime.stop(name, dedup=origin.dedup)
        # The end of the run is a message of its own.
        return "" if stopped else "No answer is being written."

    async def _undo(self, runtime: Runtime, _words: str, origin: Origin) -> str:
        await runtime.undo(_required(origin), dedup=origin.dedup)
        return "The last message and its answer were removed from the conversation."

    async def _retry(self, runtime: Runtime, words: str, origin: Origin) -> str:
        name = _required(origin)
        seq = await runtime.last_message(name)
        model = _find_model(runtime, words) if words else None
        await runtime.replace(name, seq, model=model, dedup=origin.dedup)
        return ""

    async def _status(self, runtime: Runtime, _words: str, origin: Origin) -> str:
        name = _required(origin)
        summary = await runtime.journal.summary(name)
        usage = await runtime.usage(name)
        silence = await runtime.agents.explain_silence(name)
        setting = await runtime.agents.setting(name)
        model = "none" if silence else runtime.agents.agent_of(setting).models[0].name
        cost = "" if usage.cost is None else f", ${usage.cost:.4f}"
        tokens = f"{usage.tokens_in + usage.tokens_out:,} tokens{cost}"
        lines = [
            f"**{summary.title or 'Untitled conversation'}**",
            f"- Model: {model}",
            f"- Messages: {summary.messages}",
            f"- Usage: {tokens}",
            f"- State: {'answering' if summary.running else 'ready'}",
        ]
        if silence:
            lines.append(f"- {silence}")
        return "\n".join(lines)

    async def _model(self, runtime: Runtime, words: str, origin: Origin) -> str:
        name = _required(origin)
        if not words:
            chosen = (await runtime.journal.choice(name)).model
            present = chosen or runtime.config.model or ""
            labels = [
                f"- {label}{' (in use)' if label == present else ''}"
                for label in sorted(runtime.config.models)
            ]
            listed = "\n".join(labels) or "No model is set up."
            return f"{listed}\n\nTo choose one: /model NAME"
        label = _find_model(runtime, words)
        await runtime.choices.configure(name, model=label)
        return f"The model is {label} from the next answer on."

    async def _compact(self, runtime: Runtime, _words: str, origin: Origin) -> str:
        return (await runtime.compact(_required(origin))).said


_Action = Callable[[Commands, Runtime, str, Origin], Awaitable[str]]
_ACTIONS: Final[dict[str, _Action]] = {
    "new": Commands._new,  # noqa: SLF001  (its own methods)
    "stop": Commands._stop,  # noqa: SLF001
    "undo": Commands._undo,  # noqa: SLF001
    "retry": Commands._retry,  # noqa: SLF001
    "status": Commands._status,  # noqa: SLF001
    "model": Commands._model,  # noqa: SLF001
    "compact": Commands._compact,  # noqa: SLF001
}


def _required(origin: Origin) -> str:
    if origin.conversation is None:
        raise InvalidInput(_NONE)
    return origin.conversation


def _find_model(runtime: Runtime, words: str) -> str:
    """Return the label of a model, also for a part of the label that fits only one."""
    labels = sorted(runtime.config.models)
    if words in labels:
        return words
    fitting = [label for label in labels if words.lower() in label.lower()]
    if len(fitting) != 1:
        known = ", ".join(labels) or "none"
        raise InvalidInput(f"There is no model {words:.60}. The models are: {known}.")
    return fitting[0]


def _help() -> str:
    lines = [f"/{name}: {about}" for name, about in COMMANDS]
    return "Write a message to talk to Tenax. The commands:\n\n" + "\n".join(
        f"- {line}" for line in lines
    )

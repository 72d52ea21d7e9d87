"""The gate: every path to a tool leads through here, in the foreground, in the background, from a schedule or a sub-agent.

`weigh` says whether a call may be made, has to be asked for, or is refused. Only what it allowed, or what a person
approved with exactly these arguments, can be performed, and each permit once. `perform` holds the limits of time and
output, and turns whatever a tool does into an outcome: nothing that a tool raises gets past it.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import re
import unicodedata
import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Literal, TypeVar

import msgspec

from tenax.config.rules import UNSEEN, Rule, exactly, proposals
from tenax.errors import ConfigError, InvalidInput, Refused, ToolFailed
from tenax.models.base import ToolSpec
from tenax.tools.base import Call, Elsewhere, Tool, works_for

__all__ = [
    "CHARS_MAX",
    "GRACE_SECONDS",
    "NO_TEXT",
    "STUCK_MAX",
    "Allowed",
    "Asks",
    "Done",
    "Gate",
]

log = logging.getLogger(__name__)

CHARS_MAX = 30_000
"""The longest output of a call, the note on what is missing included."""
GRACE_SECONDS = 5.0
"""How long a call that was told to stop may take to do so."""
STUCK_MAX = 16
"""Calls that did not stop when they were told to. With this many, no other is begun."""

_TAIL_CHARS = 9_900
_HEAD_CHARS = CHARS_MAX - _TAIL_CHARS - 100
_NOT_APPROVED = (
    "The arguments are not those that were approved, so the call was not made."
)
NO_TEXT: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class _Weighed(msgspec.Struct, frozen=True, eq=False, weakref=True):
    tool: Tool[Any]
    args: Any
    arguments: str
    """The JSON text exactly as the model wrote it."""
    call: Call
    touches: str
    exact: str = ""
    """The whole of what it touches, where `touches` does not say all of it."""

    @property
    def patterns(self) -> list[str]:
        """Patterns that a person may allow for later calls, the exact call first."""
        return proposals(
            self.touches, paths=self.tool.paths, line=self.tool.line, exact=self.exact
        )


class Allowed(_Weighed, frozen=True, eq=False, weakref=True):
    """A permit for one call, good once, at the gate that gave it."""

    approved: bool = False
    """A person was asked for this one."""


class Asks(_Weighed, frozen=True, eq=False, weakref=True):
    """A person has to be asked. `touches` is the line they read beside the arguments."""

    standing: bool = True
    """What is answered may stand for later calls too."""

    @property
    def rule(self) -> Rule | None:
        """The narrowest rule that would let this call be made without asking; None where none would."""
        patterns = self.patterns if self.standing else []
        return Rule("allow", exactly(self.tool.name), patterns[0]) if patterns else None


_W = TypeVar("_W", bound=_Weighed)


class Done(msgspec.Struct, frozen=True):
    """What came of a call, or why it is not made. `cut` is how many characters of the output are not in `text`."""

    outcome: Literal["done", "failed", "denied"]
    text: str
    cut: int = 0
    at: Elsewhere | None = None
    """It is not done, and goes on there."""


class Gate:
    """These tools, under these rules, which are looked up for each call: they can change."""

    def __init__(
        self,
        tools: Iterable[Tool[Any]],
        rules: Callable[[], Iterable[Rule]] = tuple,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._rules, self._redact = rules, redact
        self._tools: dict[str, Tool[Any]] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"There are two tools of the name {tool.name}.")
            if (
                tool.schema is None
                and not tool.args.__struct_config__.forbid_unknown_fields
            ):
                raise ValueError(
                    f"The arguments of {tool.name} must forbid unknown fields."
                )
            self._tools[tool.name] = tool
        self._specs = [
            ToolSpec(each.name, each.description, each.schema or _schema(each.args))
            for each in self._tools.values()
        ]
        self._asked: weakref.WeakSet[Asks] = weakref.WeakSet()
        self._permits: weakref.WeakSet[Allowed] = weakref.WeakSet()
        self._stuck: set[asyncio.Task[str]] = set()

    def only(self, tools: Iterable[Tool[Any]]) -> Gate:
        """A gate of its own for these tools, under the same rules."""
        return Gate(tools, self._rules, self._redact)

    def tools(self) -> list[Tool[Any]]:
        """The tools, in the order in which they were given."""
        return list(self._tools.values())

    def specs(self) -> list[ToolSpec]:
        """The tools as a model is told of them, in the order in which they were given."""
        return list(self._specs)

    def weigh(
        self, name: str, arguments: str, call: Call, *, allowed: Collection[Rule]
    ) -> Allowed | Asks | Done:
        """Whether this call may be made. `allowed` is what the person allowed for this conversation."""
        tool = self._tools.get(name)
        if tool is None:
            return self._no_such(name)
        try:
            takes: Any = tool.args if tool.schema is None else dict[str, Any]
            args = msgspec.json.decode(
                arguments if arguments.strip() else "{}", type=takes
            )
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            return Done("failed", _trimmed(_misfit(tool, error))[0])
        try:
            touches, exact = _line(tool.touches(args, call)), _line(tool.exact(args))
            standing = not tool.always_asks(args)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a tool may be anybody's; what it raises is told)
            return Done("failed", _trimmed(_told(tool, error))[0])
        weighed = (tool, args, arguments, call, touches, exact)
        verdicts = self._verdicts(tool, touches, exact)
        if "deny" in verdicts:
            return _forbidden(name, touches)
        here = any(
            rule.fits(name, touches, line=tool.line, exact=exact) for rule in allowed
        )
        if standing and (not tool.asks or "allow" in verdicts or here):
            return self._permit(Allowed(*weighed))
        asks = Asks(*weighed, standing=standing)
        self._asked.add(asks)
        return asks

    def approve(self, asks: Asks, arguments: str) -> Allowed | Done:
        """The permit for a call that a person approved, if it was approved with exactly these arguments. Once."""
        if not _use_up(asks, self._asked):
            return Done(
                "denied", "This approval was used already, or is not of this gate."
            )
        if arguments != asks.arguments:
            return Done("denied", _NOT_APPROVED)
        weighed = (asks.tool, asks.args, arguments, asks.call, asks.touches, asks.exact)
        return self._permit(Allowed(*weighed, approved=True))

    async def perform(self, permit: Allowed, *, approved_arguments: str | None) -> Done:
        """Make the call, within its limits. `approved_arguments` is what the person saw, None if nobody was asked.

        A caller that is cancelled is so after the tool has stopped, or after the grace.
        """
        tool = permit.tool
        if not _use_up(permit, self._permits):
            return Done(
                "denied", "This permit was used already, or is not of this gate."
            )
        if approved_arguments != (permit.arguments if permit.approved else None):
            return Done("denied", _NOT_APPROVED)
        if "deny" in self._verdicts(
            tool, permit.touches, permit.exact
        ):  # one that was made while this call waited
            return _forbidden(tool.name, permit.touches)
        if len(self._stuck) >= STUCK_MAX:
            return Done(
                "failed",
                f"{STUCK_MAX} earlier calls did not stop when told to, so {tool.name} was not begun.",
            )
        task = asyncio.create_task(_run(permit, self._redact), name=f"tool {tool.name}")
        try:
            ended, _ = await asyncio.wait({task}, timeout=tool.seconds)
        except asyncio.CancelledError:
            await self._stop(task, tool)
            raise
        if ended:
            return _done(task, tool)
        await self._stop(task, tool)
        return _late(task, tool)

    def _no_such(self, name: str) -> Done:
        nearest = difflib.get_close_matches(name[:100], self._tools, n=1, cutoff=0.5)
        way_on = (
            f"Did you mean {nearest[0]}?"
            if nearest
            else f"There are: {', '.join(self._tools) or 'none'}."
        )
        return Done("failed", _trimmed(f"There is no tool {name[:100]!r}. {way_on}")[0])

    def _verdicts(self, tool: Tool[Any], touches: str, exact: str) -> set[str]:
        fit = (
            rule
            for rule in self._rules()
            if rule.fits(tool.name, touches, line=tool.line, exact=exact)
        )
        return {rule.verdict for rule in fit}

    def _permit(self, permit: Allowed) -> Allowed:
        self._permits.add(permit)
        return permit

    async def _stop(self, task: asyncio.Task[str], tool: Tool[Any]) -> None:
        """Tell it to stop, and wait no longer than the grace. What does not stop is kept in sight until it ends."""
        task.cancel()
        self._stuck.add(task)
        task.add_done_callback(self._unstick)
        await asyncio.wait({task}, timeout=GRACE_SECONDS)
        if not task.done():
            log.warning(
                "%s did not stop within %g seconds of being told to.",
                tool.name,
                GRACE_SECONDS,
                extra={"action": "tool_stuck", "tool": tool.name},
            )

    def _unstick(self, task: asyncio.Task[str]) -> None:
        self._stuck.discard(task)
        if not task.cancelled():
            # it was logged where it was raised; asyncio need not log it again
            task.exception()


def _use_up(weighed: _W, given: weakref.WeakSet[_W]) -> bool:
    """False if this was never given, or was used before."""
    there = weighed in given
    given.discard(weighed)
    return there


async def _run(permit: Allowed, redact: Callable[[str], str]) -> str:
    """All that a tool says comes by here, before it is cut. It is a task of its own."""
    works_for.set(permit.call.user)
    try:
        return redact(str(await permit.tool.run(permit.args, permit.call)))
    except Elsewhere:
        raise
    except (
        Exception,
        SystemExit,
    ) as error:  # a tool may be anybody's, and may not end the process
        raise ToolFailed(redact(_told(permit.tool, error))) from error


def _done(task: asyncio.Task[str], tool: Tool[Any]) -> Done:
    if task.cancelled():
        return Done("failed", f"{tool.name} stopped by itself before it was done.")
    error = task.exception()
    if isinstance(error, Elsewhere):
        return Done("done", "", at=error)
    text, cut = _trimmed(str(error) if error else task.result())
    return Done("failed" if error else "done", text, cut)


def _late(task: asyncio.Task[str], tool: Tool[Any]) -> Done:
    """The outcome of a call past its time: a failure, with what it still said."""
    if not task.done():
        said = "It did not stop when told to, so it may still be at work."
    else:
        said = "It may have done a part of it."
        if not task.cancelled():
            said += f"\n{task.exception() or task.result()}"
    text, cut = _trimmed(
        f"{tool.name} was stopped because it took more than {tool.seconds:g} seconds. {said}"
    )
    return Done("failed", text, cut)


def _forbidden(name: str, touches: str) -> Done:
    return Done("denied", _trimmed(f"A rule forbids {name} for this: {touches}")[0])


def _told(tool: Tool[Any], error: BaseException) -> str:
    """The sentence for what a tool raised. A surprise goes to the log; its own words may hold a secret."""
    if isinstance(error, ToolFailed | ConfigError | InvalidInput | Refused):
        return f"{error} ({error.hint})" if error.hint else str(error)
    log.error(
        "%s failed in a way it did not foresee.",
        tool.name,
        exc_info=error,
        extra={"action": "tool_raised", "tool": tool.name},
    )
    return f"{tool.name} failed in a way it did not foresee ({type(error).__name__}); the log says more."


def _misfit(tool: Tool[Any], error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        names = (tool.schema or {}).get(
            "properties"
        ) or tool.args.__struct_encode_fields__
        takes = ", ".join(names) or "nothing"
        return f"The arguments of {tool.name} do not fit: {error}. It takes: {takes}."
    if isinstance(error, msgspec.DecodeError):
        return f"The arguments of {tool.name} are not JSON: {error}."
    if isinstance(error, RecursionError):
        return f"The arguments of {tool.name} are nested too deeply."
    return (
        f"The arguments of {tool.name} hold half of a surrogate pair, which is no text."
    )


def _trimmed(text: str) -> tuple[str, int]:
    """The text as it is kept, and how much of it is not: head and tail, and nothing that is no text."""
    cut = 0
    if len(text) > CHARS_MAX:
        cut = len(text) - _HEAD_CHARS - _TAIL_CHARS
        text = f"{text[:_HEAD_CHARS]}\n[... {cut:,} characters are not shown ...]\n{text[-_TAIL_CHARS:]}"
    return NO_TEXT.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n")), cut


def _line(text: str) -> str:
    """One line, in which nothing is hidden and nothing changes the direction of the rest."""
    return "".join(
        "\ufffd" if unicodedata.category(each) in UNSEEN else each for each in text
    )


def _schema(args: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema with the object itself at its top, where providers look for it."""
    schema = msgspec.json.schema(args)
    others = schema["$defs"]
    own = others.pop(schema["$ref"].rpartition("/")[2])
    own = {
        name: value
        for name, value in own.items()
        if name not in {"title", "description"}
    }
    return {**own, "$defs": others} if others else own

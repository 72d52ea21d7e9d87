"""The gate: the only way to a tool, for turns, background work, schedules and sub-agents.

`weigh` decides whether a call is allowed, needs approval, or is refused. Only an allowed call, or a call approved by a
person with exactly the same arguments, can be performed. A permit is valid once. `perform` enforces the timeout and the
length of the output, and turns every result and every exception of a tool into an outcome.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, TypeVar

import msgspec

from tenax.clock import Timing
from tenax.concurrency import thread_owner
from tenax.config.rules import Rule, escape_pattern, propose
from tenax.errors import ConfigError, InvalidInput, Refused, TenaxError, ToolFailed
from tenax.events import Mode
from tenax.models.base import ToolSpec
from tenax.text import replace_controls, replace_hidden
from tenax.tools.base import Call, Elsewhere, Tool

__all__ = [
    "CHARS_MAX",
    "PREVIEW_CHARS_MAX",
    "STOPPED",
    "STUCK_MAX",
    "Allowed",
    "Asks",
    "Done",
    "Gate",
    "runs_in_plan_mode",
]

log = logging.getLogger(__name__)

# The longest output of a call, including the note about omitted text.
CHARS_MAX = 30_000
# With this many cancelled calls still running, no new call begins.
STUCK_MAX = 16
PREVIEW_CHARS_MAX = 20_000
PREVIEW_SECONDS = 3.0
STOPPED = "It was stopped while it ran."

_TAIL_CHARS = 9_900
_HEAD_CHARS = CHARS_MAX - _TAIL_CHARS - 100
_NOT_APPROVED = (
    "The arguments are not those that were approved, so the call was not made."
)

_PLAN_MODE = (
    "This conversation is in plan mode: describe the change instead; the person can switch the mode. "
    "The call was not made."
)
_MODE_CHANGED = "The person switched the mode of the conversation, so the call was not made. Call again if it is needed."


class _Weighed(msgspec.Struct, frozen=True, eq=False, weakref=True):
    tool: Tool[Any]
    args: Any
    arguments: str
    """The JSON text, as written by the model."""
    call: Call
    touches: str
    exact: str = ""
    """The complete target of the call if `touches` is shortened."""

    @property
    def offers(self) -> dict[str, str]:
        """The patterns offered to the person for later calls, the exact call first, and what each leaves open."""
        open_words = self.tool.open_words
        found = propose(
            self.touches, paths=self.tool.paths, line=self.tool.line, exact=self.exact
        )
        whole = escape_pattern(self.exact)
        return {
            pattern: ""
            if pattern == whole
            else ", ".join(filter(None, (note, open_words)))
            for pattern, note in found.items()
        }

    @property
    def patterns(self) -> list[str]:
        """The patterns offered to the person for later calls, the exact call first."""
        return list(self.offers)


class Allowed(_Weighed, frozen=True, eq=False, weakref=True):
    """A permit for a call, valid once, and only at the issuing gate."""

    approved: bool = False
    """Whether a person approved the call."""
    by_mode: bool = False
    """Whether only the mode `edits` allows the call."""


class Asks(_Weighed, frozen=True, eq=False, weakref=True):
    """A call that needs approval. The person reads the line `touches` beside the arguments."""

    standing: bool = True
    """Whether the answer may apply to later calls."""

    @property
    def rule(self) -> Rule | None:
        """The narrowest rule allowing the call without approval, or `None`."""
        patterns = self.patterns if self.standing else []
        if not patterns:
            return None
        return Rule("allow", escape_pattern(self.tool.name), patterns[0])


_W = TypeVar("_W", bound=_Weighed)


class Done(msgspec.Struct, frozen=True):
    """The outcome of a call, or why the call was not made. `cut` is the number of omitted characters of the output."""

    outcome: Literal["done", "failed", "denied", "cancelled"]
    text: str
    cut: int = 0
    at: Elsewhere | None = None
    """The conversation in which an unfinished call continues."""


_IN_PLAN_MODE = Done("denied", _PLAN_MODE)


class Gate:
    """The tools of an agent, and their rules. The gate reads the rules again for every call."""

    def __init__(
        self,
        tools: Iterable[Tool[Any]],
        rules: Callable[[], Iterable[Rule]] = tuple,
        redact: Callable[[str], str] = str,
        timing: Timing = Timing(),
    ) -> None:
        self._rules, self._redact, self._timing = rules, redact, timing
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
            ToolSpec(tool.name, tool.description, tool.schema or _schema(tool.args))
            for tool in self._tools.values()
        ]
        self._asked: weakref.WeakSet[Asks] = weakref.WeakSet()
        self._permits: weakref.WeakSet[Allowed] = weakref.WeakSet()
        self._stuck: set[asyncio.Task[str]] = set()

    def only(self, tools: Iterable[Tool[Any]]) -> Gate:
        """Return a new gate for `tools`, with the same rules."""
        return Gate(tools, self._rules, self._redact, self._timing)

    def tools(self) -> list[Tool[Any]]:
        """Return the tools in order."""
        return list(self._tools.values())

    def specs(self) -> list[ToolSpec]:
        """Return the descriptions of the tools for a model, in the same order."""
        return list(self._specs)

    def weigh(
        self,
        name: str,
        arguments: str,
        call: Call,
        *,
        allowed: Collection[Rule],
        mode: Mode = "ask",
    ) -> Allowed | Asks | Done:
        """Decide about a call. `allowed` holds the rules that the person allowed in the conversation."""
        tool = self._tools.get(name)
        if tool is None or _is_refused(tool, mode):
            return self._unknown_tool(name) if tool is None else _IN_PLAN_MODE
        try:
            takes: Any = tool.args if tool.schema is None else dict[str, Any]
            args = msgspec.json.decode(
                arguments if arguments.strip() else "{}", type=takes
            )
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            return Done("failed", _trim(_describe_misfit(tool, error))[0])
        try:
            touches = replace_hidden(tool.touches(args, call))
            exact = replace_hidden(tool.exact(args))
            standing = not tool.always_asks(args)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a foreign tool may raise anything)
            return Done("failed", _trim(_describe_error(tool, error))[0])
        weighed = (tool, args, arguments, call, touches, exact)
        verdicts = self._verdicts(tool, touches, exact)
        if "deny" in verdicts:
            return _forbidden(name, touches)
        here = any(
            rule.matches(name, touches, line=tool.line, paths=tool.paths, exact=exact)
            for rule in allowed
        )
        is_free = not tool.asks or "allow" in verdicts or here
        by_mode = not is_free and tool.edits and mode == "edits"
        if standing and (is_free or by_mode):
            return self._permit(Allowed(*weighed, by_mode=by_mode))
        asks = Asks(*weighed, standing=standing)
        self._asked.add(asks)
        return asks

    def approve(self, asks: Asks, arguments: str) -> Allowed | Done:
        """Return a permit if the person approved exactly the same arguments. An approval is valid once."""
        if not _use_up(asks, self._asked):
            return Done(
                "denied", "This approval was used already, or is not of this gate."
            )
        if arguments != asks.arguments:
            return Done("denied", _NOT_APPROVED)
        weighed = (asks.tool, asks.args, arguments, asks.call, asks.touches, asks.exact)
        return self._permit(Allowed(*weighed, approved=True))

    async def perform(
        self, permit: Allowed, *, approved_arguments: str | None, mode: Mode = "ask"
    ) -> Done:
        """Perform the call. `approved_arguments` are the arguments seen by the person, or `None` without approval.

        `mode` is the mode of the conversation now: the person may have changed it since `weigh`.

        If the caller is cancelled, `perform` returns after the tool has stopped, or after
        `Timing.tool_stop_seconds`.
        """
        tool = permit.tool
        if not _use_up(permit, self._permits):
            return Done(
                "denied", "This permit was used already, or is not of this gate."
            )
        if approved_arguments != (permit.arguments if permit.approved else None):
            return Done("denied", _NOT_APPROVED)
        if _is_refused(tool, mode) or (permit.by_mode and mode != "edits"):
            return _IN_PLAN_MODE if mode == "plan" else Done("denied", _MODE_CHANGED)
        # A rule may have been added while this call waited.
        if "deny" in self._verdicts(tool, permit.touches, permit.exact):
            return _forbidden(tool.name, permit.touches)
        if len(self._stuck) >= STUCK_MAX:
            return Done(
                "failed",
                f"{STUCK_MAX} earlier calls did not stop when told to, so {tool.name} was not begun.",
            )
        return await self._run_in_task(permit)

    async def preview(self, weighed: Asks | Allowed) -> str:
        """Return the change that a call would make now, as a unified diff; "" if there is none to show."""
        try:
            async with asyncio.timeout(PREVIEW_SECONDS):
                text = await weighed.tool.preview(weighed.args, weighed.call)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a foreign tool may raise anything)
            # A call that cannot succeed has no preview. The person can still read the arguments.
            if not isinstance(error, TenaxError):
                _describe_error(weighed.tool, error)
            return ""
        text = replace_hidden(self._redact(text), keep="\n\t")
        cut = len(text) - PREVIEW_CHARS_MAX
        if cut > 0:
            text = f"{text[:PREVIEW_CHARS_MAX]}\n[... {cut:,} more characters of the diff are not shown ...]"
        return text

    def output_of(self, permit: Allowed) -> str:
        """Return the output so far of a running call, without secrets; "" for a tool without live output."""
        read = permit.call.live.read
        if read is None:
            return ""
        try:
            return _trim(self._redact(read()))[0]
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a foreign tool may raise anything)
            permit.call.live.read = None
            _describe_error(permit.tool, error)
            return ""

    async def _run_in_task(self, permit: Allowed) -> Done:
        """Run a tool in a task of its own, for at most the time of the tool.

        A cancelled call returns the output of the tool, if the tool gives its output when it is stopped.
        """
        tool = permit.tool
        task = asyncio.create_task(_run(permit, self._redact), name=f"tool {tool.name}")
        try:
            ended, _ = await asyncio.wait({task}, timeout=tool.seconds)
        except asyncio.CancelledError:
            await self._stop(task, tool)
            output = _output_of_stopped(task)
            if output is None:
                raise
            return Done("cancelled", *_trim(f"{STOPPED}\n{output}"))
        if ended:
            return _done(task, tool)
        await self._stop(task, tool)
        return _late(task, tool)

    def _unknown_tool(self, name: str) -> Done:
        nearest = difflib.get_close_matches(name[:100], self._tools, n=1, cutoff=0.5)
        hint = f"There are: {', '.join(self._tools) or 'none'}."
        if nearest:
            hint = f"Did you mean {nearest[0]}?"
        return Done("failed", _trim(f"There is no tool {name[:100]!r}. {hint}")[0])

    def _verdicts(self, tool: Tool[Any], touches: str, exact: str) -> set[str]:
        return {
            rule.verdict
            for rule in self._rules()
            if rule.matches(
                tool.name, touches, line=tool.line, paths=tool.paths, exact=exact
            )
        }

    def _permit(self, permit: Allowed) -> Allowed:
        self._permits.add(permit)
        return permit

    async def _stop(self, task: asyncio.Task[str], tool: Tool[Any]) -> None:
        """Cancel the call, and wait for its end up to `Timing.tool_stop_seconds`.

        If the call does not stop, track it until it ends.
        """
        seconds = self._timing.tool_stop_seconds
        task.cancel()
        self._stuck.add(task)
        task.add_done_callback(self._unstick)
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            log.warning(
                "%s did not stop within %g seconds of being told to.",
                tool.name,
                seconds,
                extra={"action": "tool_stuck", "tool": tool.name},
            )

    def _unstick(self, task: asyncio.Task[str]) -> None:
        self._stuck.discard(task)
        if not task.cancelled():
            # Reading the exception keeps asyncio from logging it a second time.
            task.exception()


def runs_in_plan_mode(tool: Tool[Any]) -> bool:
    """Return whether plan mode allows the tool. A tool of an MCP server is refused, whatever the server declares."""
    return tool.only_reads and tool.effect == "pure"


def _is_refused(tool: Tool[Any], mode: Mode) -> bool:
    return mode == "plan" and not runs_in_plan_mode(tool)


def _use_up(weighed: _W, given: weakref.WeakSet[_W]) -> bool:
    """Use a permit. Return `False` for a used permit, or a permit of a different gate."""
    there = weighed in given
    given.discard(weighed)
    return there


async def _run(permit: Allowed, redact: Callable[[str], str]) -> str:
    """Run a tool in a separate task, and remove secrets from the output before the output is cut."""
    thread_owner.set(permit.call.user)
    try:
        return redact(str(await permit.tool.run(permit.args, permit.call)))
    except Elsewhere:
        raise
    except (
        Exception,
        SystemExit,
    ) as error:
        # A foreign tool may raise anything, and must not end the process.
        raise ToolFailed(redact(_describe_error(permit.tool, error))) from error


def _done(task: asyncio.Task[str], tool: Tool[Any]) -> Done:
    if task.cancelled():
        return Done("failed", f"{tool.name} stopped by itself before it was done.")
    error = task.exception()
    if isinstance(error, Elsewhere):
        return Done("done", "", at=error)
    text, cut = _trim(str(error) if error else task.result())
    return Done("failed" if error else "done", text, cut)


def _output_of_stopped(task: asyncio.Task[str]) -> str | None:
    """Return the output of a stopped call: a tool raises `ToolFailed` with its output. Return None for no output."""
    if not task.done() or task.cancelled():
        return None
    error = task.exception()
    return str(error) if isinstance(error, ToolFailed) else None


def _late(task: asyncio.Task[str], tool: Tool[Any]) -> Done:
    """Return the outcome of a timed-out call: a failure, with the last output."""
    if not task.done():
        note = "It did not stop when told to, so it may still be at work."
    else:
        note = "It may have done a part of it."
        if not task.cancelled():
            note += f"\n{task.exception() or task.result()}"
    text = f"{tool.name} was stopped because it took more than {tool.seconds:g} seconds. {note}"
    return Done("failed", *_trim(text))


def _forbidden(name: str, touches: str) -> Done:
    return Done("denied", _trim(f"A rule forbids {name} for this: {touches}")[0])


def _describe_error(tool: Tool[Any], error: BaseException) -> str:
    """Describe an exception of a tool. An unexpected exception is logged and not quoted: its text may hold a secret."""
    if isinstance(error, ToolFailed | ConfigError | InvalidInput | Refused):
        return f"{error} ({error.hint})" if error.hint else str(error)
    log.error(
        "%s failed in a way it did not foresee.",
        tool.name,
        exc_info=error,
        extra={"action": "tool_raised", "tool": tool.name},
    )
    return f"{tool.name} failed in a way it did not foresee ({type(error).__name__}); the log says more."


def _describe_misfit(tool: Tool[Any], error: Exception) -> str:
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


def _trim(text: str) -> tuple[str, int]:
    """Return the text without control characters, cut in the middle, and the number of omitted characters."""
    cut = 0
    if len(text) > CHARS_MAX:
        cut = len(text) - _HEAD_CHARS - _TAIL_CHARS
        text = f"{text[:_HEAD_CHARS]}\n[... {cut:,} characters are not shown ...]\n{text[-_TAIL_CHARS:]}"
    return replace_controls(text.replace("\r\n", "\n").replace("\r", "\n")), cut


def _schema(args: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema with the object at the top, where providers expect it."""
    schema = msgspec.json.schema(args)
    others = schema["$defs"]
    own = others.pop(schema["$ref"].rpartition("/")[2])
    own = {
        name: value
        for name, value in own.items()
        if name not in {"title", "description"}
    }
    return {**own, "$defs": others} if others else own

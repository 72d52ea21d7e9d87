"""Compaction: a summary stands for the older part of a conversation, and everything stays readable.

The commit is conditional (`SessionDB.rotate`): two that compact at once make one child, with or without the compression
lock, which only saves paying for the same summary twice. Every outcome is a value, the caller's messages are never lost,
and a try that did not make the context smaller is not made again until something has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from tenax.agent.history import History
from tenax.agent.loop import Agent, Run
from tenax.compat.sessions import Compacted as Rotated
from tenax.compat.sessions import SessionDB
from tenax.errors import OutcomeUnknown, StoreUnavailable
from tenax.events import CUT_SHORT, ContextKept, ModelUsed
from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.models.base import Answer, Failure, Model, Words
from tenax.models.render import contents_of, spelled_out
from tenax.parts import File, Image, Part, Text, ToolResult, text_of
from tenax.text import fence
from tenax.tools.todo import with_list
from tenax.views.context import TRIMMED_CHARS, Context, Message, Placed

__all__ = [
    "Aborted",
    "Busy",
    "Compacted",
    "Compactor",
    "CoolingDown",
    "NothingToDo",
    "Outcome",
    "Superseded",
]

log = logging.getLogger(__name__)

FULL = 0.8
"""How full a context may be before it is made smaller."""
TAIL = 0.25
"""How much of it stays word for word."""
KEEP_MESSAGES = 4
SUMMARY_CHARS_MAX = 24_000
_PICTURE_TOKENS_MAX = 1600
_KEPT_CHARS_MAX = 2000
_CLIPPED_CHARS_MIN = 256
_STILL_LONG = "The conversation was summarised, and is still nearly as long as the model can take."
_NOTHING = "The conversation is nearly as long as the model can take, and nothing in it could be summarised."
NO_SHORTER = "The summary is no shorter than what it would stand for."
_SECRET = re.compile(
    r"\b(?:sk|pk|rk)-[\w-]{16,}|\bgh[pousr]_\w{20,}|\bxox[abprs]-[\w-]{10,}|\bAKIA[0-9A-Z]{16}\b"
)
_KEY_END = re.compile("-----END [A-Z ]*PRIVATE KEY-----")
_KEY = re.compile(f"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?{_KEY_END.pattern}", re.DOTALL)

INSTRUCTION = """\
Write a summary of the talk so far, for yourself: it will stand in place of these messages. If they begin with an earlier
summary, update that one: keep what still holds, change what changed, add what is new.
Keep every name, number, date, path, address, decision and its reason, open task, promise, preference and unanswered
question, word for word where wording matters. Leave out pleasantries and what led nowhere. No secrets, keys or passwords.
Use short headed lists. Do not answer anything and do not address the person: only the summary."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it. `messages` and `session_id` are what the caller goes on with."""

    messages: list[Any]
    session_id: str

    @property
    def said(self) -> str:
        """What became of it, in a sentence for the person."""
        return type(self).__doc__ or ""


class Compacted(Outcome, frozen=True, kw_only=True):
    """The older part is a summary now."""

    summary: str
    tokens_before: int
    tokens_after: int

    @property
    def said(self) -> str:
        return f"The context is a summary and the last messages now: {self.tokens_before:,} tokens became {self.tokens_after:,}."


class Superseded(Outcome, frozen=True, kw_only=True):
    """Somebody else compacted or edited it meanwhile."""

    by: str | None


class Busy(Outcome, frozen=True, kw_only=True):
    """Somebody else is at it. No model was asked."""


class CoolingDown(Outcome, frozen=True, kw_only=True):
    """It was tried before, and nothing has changed since."""


class Aborted(Outcome, frozen=True, kw_only=True):
    """It did not work, and everything is as it was."""

    why: str

    @property
    def said(self) -> str:
        return f"It did not work, and everything is as it was: {self.why}"


class NothingToDo(Outcome, frozen=True, kw_only=True):
    """There is nothing that a summary could stand for."""


def acquire_lock(db: Any, session_id: str, holder: str) -> bool | None:  # noqa: ANN401
    """True: held. False: somebody else has it. None: there is no lock to be had, and progress does not wait for it."""
    try:
        return bool(db.try_acquire_compression_lock(session_id, holder))
    except Exception as error:  # noqa: BLE001  (missing, broken, of another version: all the same)
        log.warning(
            "The compression lock cannot be used (%s); going on without it. Restart Tenax so that all of it is of one version.",
            error,
            extra={"action": "no_compression_lock"},
        )
        return None


def release_lock(db: Any, session_id: str, holder: str) -> None:  # noqa: ANN401
    try:
        db.release_compression_lock(session_id, holder)
    except Exception as error:  # noqa: BLE001  (it runs out by itself)
        log.warning(
            "The compression lock was not given back: %s",
            error,
            extra={"action": "lock_kept"},
        )


def redacted(text: str) -> str:
    """The same without anything that looks like a key."""
    last = 0
    for end in _KEY_END.finditer(text):
        last = end.end()
    # After the last end, every begin would look for one through all the rest.
    text = _KEY.sub("[redacted]", text[:last]) + text[last:]
    return _SECRET.sub("[redacted]", text)


def cut_index(roles: Sequence[str], keep: int) -> int:
    """Where the part that stays begins: never between a call and its result, and not after the last user message, unless
    that is the beginning of a long work: the summary then stands for it too.
    """
    cut = max(0, len(roles) - max(0, keep))
    users = [n for n, role in enumerate(roles) if role == "user"]
    if users and users[-1] > 1:
        cut = min(cut, users[-1])
    while 0 < cut < len(roles) and roles[cut] in {"tool", "results"}:
        cut -= 1
    return cut if cut > 1 else 0


class Compactor:
    """Keeps the context of a run below its limit."""

    def __init__(
        self,
        journal: Journal,
        must_keep: Callable[[list[dict[str, Any]]], Awaitable[str]],
        compacted: Callable[[str], Awaitable[None]],
    ) -> None:
        self._db = SessionDB(journal=journal)
        self._must_keep = must_keep
        """What memories want a summary of these messages to hold."""
        self._compacted = compacted
        """Told of every stretch that ended so."""

    async def make_room(self, run: Run) -> bool:
        """Compact if the context is nearly full. True if it is another one now, or the run has to look again."""
        context, overflowed = run.history.context, bool(run.overflow)
        limit = run.overflow or run.model.context
        if run.overflow == 1:  # the provider did not say how much it takes
            limit = max(1, used(context) // 2)
        if limit is None or not (
            overflowed or (not context.kept and used(context) >= FULL * limit)
        ):
            return False
        run.overflow = 0 if overflowed else run.overflow  # it is seen to once
        outcome: Outcome | None = CoolingDown(messages=[], session_id="")
        if not context.kept:
            work = self._try(
                run.journal, run.history, run.agent, run.model, limit, limit, run
            )
            try:
                outcome = await run.unless_stopped(
                    asyncio.create_task(work, name=f"compact {run.id}")
                )
            except (StoreUnavailable, OutcomeUnknown) as error:
                log.warning(
                    "A compaction has to wait: %s",
                    error,
                    extra={"action": "compaction_waits"},
                )
                return True
        return await self._after(run, outcome, limit, overflowed=overflowed)

    async def _after(
        self, run: Run, outcome: Outcome | None, limit: int, *, overflowed: bool
    ) -> bool:
        """What a try leads to; None is one that was stopped."""
        if isinstance(outcome, Busy) and not overflowed:
            return False
        if outcome is None or isinstance(outcome, Compacted | Superseded):
            await run.history.catch_up()
            full = not overflowed and used(run.history.context) >= FULL * limit
            if full and isinstance(outcome, Compacted):
                await run.record(ContextKept(_STILL_LONG, run.history.seq))
                await run.history.catch_up()
            return True
        return await self._trim(
            run, outcome.why if isinstance(outcome, Aborted) else _NOTHING
        )

    async def by_hand(
        self, journal: AsyncJournal, agent: Agent, conversation: str
    ) -> Outcome:
        """Compact because the person asks for it."""
        history = History(journal, conversation)
        await history.catch_up()
        model = agent.models[0]
        limit = min(estimate(history.context.items), model.context or sys.maxsize)
        return await self._try(
            journal, history, agent, model, limit, model.context or sys.maxsize, None
        )

    async def _try(
        self,
        journal: AsyncJournal,
        history: History,
        agent: Agent,
        model: Model,
        limit: int,
        room: int,
        run: Run | None,
    ) -> Outcome:
        context = history.context
        stretch = (await journal.head(history.conversation)).stretch
        same: dict[str, Any] = {"messages": [], "session_id": stretch or ""}
        cut = _cut_items(
            context.items, int(limit * TAIL), context.unplaced or history.seq + 1
        )
        if stretch is None or cut == 0:
            return NothingToDo(**same)
        holder = f"compact-{uuid.uuid4().hex}"
        locked = await journal.apart(partial(acquire_lock, self._db, stretch, holder))
        if locked is False:
            return Busy(**same)
        try:
            covered = context.items[:cut]
            fits = int(room * FULL / _share(context))
            summary, why = await self._ask(
                journal, history.conversation, agent, model, covered, fits, run
            )
            if why:
                return Aborted(**same, why=why)
            earlier = text_of(covered[0].message.parts) if covered[0].place == 0 else ""
            parts = [part for each in covered for part in each.message.parts]
            summary = redacted(with_list(summary, earlier, parts))
            before, after = (
                estimate(context.items),
                len(summary) // 4 + estimate(context.items[cut:]),
            )
            if after >= before:
                return Aborted(**same, why=NO_SHORTER)
            rotate = partial(
                self._db.rotate,
                stretch,
                summary=summary,
                covers_to=covered[-1].place,
                folded_to=history.seq,
                kept=_kept(context.items, cut),
                tokens_before=before,
                tokens_after=after,
                model=model.name,
                lease=run.lease if run is not None else None,
                run=run.id if run is not None else None,
            )
            rotated = await journal.apart(rotate)
        finally:
            if locked:
                await journal.apart(partial(release_lock, self._db, stretch, holder))
        if not isinstance(rotated, Rotated):
            return Superseded(**same, by=rotated.by)
        # it is found later: what is owed is in the store
        with contextlib.suppress(StoreUnavailable):
            await self._compacted(stretch)
        return Compacted(messages=[], session_id=rotated.session_id, summary=summary, tokens_before=before,
                         tokens_after=after)  # fmt: skip

    async def _ask(
        self,
        journal: AsyncJournal,
        conversation: str,
        agent: Agent,
        model: Model,
        covered: list[Placed],
        room: int,
        run: Run | None,
    ) -> tuple[str, str]:
        """The summary, and why there is none."""
        plain = _fitting(
            await _spelled(journal, covered),
            room - len(agent.prompt + INSTRUCTION) // 4,
        )
        also = await self._also(plain) if agent.memory is not None else ""
        messages = [*plain, Message("user", (Text(INSTRUCTION + also),))]
        body = model.body(
            agent.prompt, [], [model.message(each) for each in messages], {}
        )
        answer: Answer | Failure | None = None
        said, renewed_at = 0, journal.clock.monotonic()
        async with contextlib.aclosing(
            model.stream(body, silence=agent.limits.silence)
        ) as stream:
            async for piece in stream:
                if isinstance(piece, Answer | Failure):
                    answer = piece
                said += len(piece.text) if isinstance(piece, Words) else 0
                if said > SUMMARY_CHARS_MAX:
                    return "", "The summary is too long."
                now = journal.clock.monotonic()
                # a summary takes its time
                if run is not None and now - renewed_at > run.lease.seconds / 4:
                    run.lease, renewed_at = await journal.renew(run.lease), now
        if not isinstance(answer, Answer):
            why = answer.message if answer is not None else "it ended without an end."
            return "", f"The summary could not be written: {why}"
        if answer.usage is not None:
            await journal.append(
                conversation,
                [ModelUsed("summary", model.name, answer.usage)],
                run=run.id if run is not None else None,
            )
        if answer.finish in CUT_SHORT:
            return "", "The summary was cut off."
        summary = redacted(text_of(answer.parts).strip())
        if not summary:
            return "", "The summary came back empty."
        return (
            (summary, "")
            if len(summary) <= SUMMARY_CHARS_MAX
            else ("", "The summary is too long.")
        )

    async def _also(self, messages: Sequence[Message]) -> str:
        """What memories want kept, for the end of the instruction."""
        told = [
            {"role": each.role, "content": text_of(each.parts)} for each in messages
        ]
        kept = fence((await self._must_keep(told))[:_KEPT_CHARS_MAX])
        return (
            f"\n\nA memory of yours asks that these things are not left out:\n{kept}"
            if kept
            else ""
        )

    async def _trim(self, run: Run, why: str) -> bool:
        """When no summary is to be had: shorten old tool output, by rule, and say so. True if that helped."""
        context, opened = run.history.context, run.history.context.opened
        long = [each for each in context.items[:-KEEP_MESSAGES] if _is_long(each)]
        kept = ContextKept(why, run.history.seq)
        if not long or opened is None:
            await run.record(kept)
            await run.history.catch_up()
            return False
        trimmed = msgspec.structs.replace(
            opened, reason="trimmed", trimmed_to=max(each.last for each in long)
        )
        await run.record(kept, trimmed)
        await run.history.catch_up()
        return True


def used(context: Context) -> int:
    """How many tokens the next request takes: as the provider counted them, and what came since."""
    return context.used + estimate(
        context.items[context.used_items if context.used else 0 :]
    )


def _share(context: Context) -> float:
    """How many tokens the provider counts for one that we estimate, where it counts fewer."""
    estimated = estimate(context.items[: context.used_items])
    return min(1.0, context.used / estimated) if context.used and estimated else 1.0


def estimate(items: Sequence[Placed]) -> int:
    """About how many tokens these are: four bytes each."""
    return sum(_tokens(each.message) for each in items)


def _tokens(message: Message) -> int:
    return (
        len(msgspec.json.encode(message)) // 4 + 4 + sum(map(_attached, message.parts))
    )


def _attached(part: Part) -> int:
    """What a part weighs that only names its blob. Providers count a picture by its pixels, up to a bound."""
    match part:
        case Image(width=width, height=height):
            return (
                min(width * height // 750, _PICTURE_TOKENS_MAX) or _PICTURE_TOKENS_MAX
            )
        case File(bytes=size, text=text):
            return (text.bytes if text is not None else size) // 4
    return 0


async def _spelled(journal: AsyncJournal, covered: Sequence[Placed]) -> list[Placed]:
    """The same, with the words of what is attached: a summary is to know them."""
    found = []
    for each in covered:
        files = [part for part in each.message.parts if isinstance(part, File)]
        contents = await contents_of(files, journal.get_blob, journal.apart)
        parts = spelled_out(each.message.parts, contents)
        found.append(
            msgspec.structs.replace(each, message=Message(each.message.role, parts))
        )
    return found


def _cut_items(items: Sequence[Placed], tail: int, waiting: int) -> int:
    """Where the part that stays begins: `tail` tokens and what reaches beyond them, calls with their results, and nothing
    that stands at or after the first input that waits.
    """
    cut, size = len(items), 0
    while cut > 0 and size <= tail:
        cut -= 1
        size += estimate([items[cut]])
    while 0 < cut < len(items) and (
        items[cut].message.role == "results"
        or items[cut - 1].place >= min(waiting, items[cut].place)
    ):
        cut -= 1
    first_is_summary = bool(items) and items[0].place == 0
    return cut if cut > (2 if first_is_summary else 1) else 0


def _kept(items: Sequence[Placed], cut: int) -> list[int]:
    """The last message of the person, if it lies in what is summarised: it stays word for word."""
    users = [n for n, each in enumerate(items) if each.person]
    return list(items[users[-1]].seqs) if users and users[-1] < cut else []


def _is_long(each: Placed) -> bool:
    return each.message.role == "results" and any(
        len(part.text) > TRIMMED_CHARS + 100
        for part in each.message.parts
        if isinstance(part, ToolResult)
    )


def _plain(message: Message) -> Message:
    """A message for the summariser: calls and results as words, so that no provider asks for tools."""
    if message.role in {"user", "system"} and all(
        isinstance(part, Text) for part in message.parts
    ):
        return message
    words = (
        msgspec.json.encode(message.parts).decode() if message.role == "results" else ""
    )
    for part in message.parts if message.role != "results" else ():
        words += (
            part.text
            if isinstance(part, Text)
            else f"\n[{msgspec.json.encode(part).decode()}]"
        )
    return Message(
        "user" if message.role != "assistant" else "assistant", (Text(words),)
    )


def _fitting(covered: Sequence[Placed], room: int) -> list[Message]:
    """The messages for the summariser. Where they are more than so many tokens, long ones are shortened as far as that
    goes: results of tools first, what people said last, an earlier summary never.
    """
    messages = [_plain(each.message) for each in covered]
    for role in ("results", "assistant", "user"):
        chars = 16_384
        while chars >= _CLIPPED_CHARS_MIN and sum(map(_tokens, messages)) > room:
            for n, each in enumerate(covered):
                if each.message.role == role and each.place > 0:
                    text = clipped(text_of(messages[n].parts), chars)
                    messages[n] = Message(messages[n].role, (Text(text),))
            chars //= 2
    return messages


def clipped(text: str, chars: int) -> str:
    """The beginning and the end of a text that is longer than so many characters."""
    return (
        text
        if len(text) <= chars
        else f"{text[: chars // 2]}\n[...]\n{text[-chars // 2 :]}"
    )

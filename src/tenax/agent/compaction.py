"""Compaction: replace the older part of the context by a summary. The journal keeps every message readable.

The commit is conditional (`Rotations.commit`): two concurrent compactions create one child segment, with or without the
compression lock. The lock only avoids paying for the same summary twice. Every outcome is a value, and the caller's
messages are never lost. A try that did not shrink the context is not repeated until something has changed.
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
from tenax.agent.rotation import Rotated, Rotations, Summary
from tenax.errors import OutcomeUnknown, StoreUnavailable
from tenax.events import CUT_SHORT, ContextKept, ModelUsed
from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.models.base import Answer, Failure, Model, Words
from tenax.models.render import contents_of, spelled_out
from tenax.parts import File, Image, Part, Text, ToolResult, text_of
from tenax.text import quote
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
"""Fraction of the context limit at which a compaction starts."""
TAIL = 0.25
"""Fraction of the context limit that stays word for word."""
KEEP_MESSAGES = 4
SUMMARY_CHARS_MAX = 24_000
_PICTURE_TOKENS_MAX = 1600
_KEPT_CHARS_MAX = 2000
_CLIPPED_CHARS_MIN = 256
_STILL_LONG = (
    "The conversation was summarised but still nearly fills the context of the model."
)
_NOTHING = "The conversation nearly fills the context of the model, and nothing in it could be summarised."
NO_SHORTER = "The summary is not shorter than the messages that it would replace."
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
    """The outcome of a compaction. The caller continues with `messages` and `session_id`."""

    messages: list[Any]
    session_id: str

    @property
    def said(self) -> str:
        """The outcome in a sentence for the person. By default, this is the docstring of the class."""
        return type(self).__doc__ or ""


class Compacted(Outcome, frozen=True, kw_only=True):
    """The older part is a summary now."""

    summary: str
    tokens_before: int
    tokens_after: int

    @property
    def said(self) -> str:
        return f"Compacted: {self.tokens_before:,} tokens became {self.tokens_after:,}."


class Superseded(Outcome, frozen=True, kw_only=True):
    """The conversation was compacted or edited elsewhere in the meantime."""

    by: str | None


class Busy(Outcome, frozen=True, kw_only=True):
    """This conversation is already being compacted."""


class CoolingDown(Outcome, frozen=True, kw_only=True):
    """Compacting failed before, and nothing has changed since."""


class Aborted(Outcome, frozen=True, kw_only=True):
    """Compacting failed. Nothing was changed."""

    why: str

    @property
    def said(self) -> str:
        return f"Compacting failed, and nothing was changed. {self.why}"


class NothingToDo(Outcome, frozen=True, kw_only=True):
    """Nothing to compact yet."""


def acquire_lock(db: Any, session_id: str, holder: str) -> bool | None:  # noqa: ANN401
    """Return `True` if the lock was acquired and `False` if another holder has the lock.

    Return `None` if there is no usable lock. Compaction then proceeds without the lock.
    """
    try:
        return bool(db.try_acquire_compression_lock(session_id, holder))
    except Exception as error:  # noqa: BLE001  (a missing, broken or incompatible lock is handled the same way)
        log.warning(
            "The compression lock cannot be used (%s); going on without it. Restart Tenax so that all of it is of one version.",
            error,
            extra={"action": "no_compression_lock"},
        )
        return None


def release_lock(db: Any, session_id: str, holder: str) -> None:  # noqa: ANN401
    try:
        db.release_compression_lock(session_id, holder)
    except Exception as error:  # noqa: BLE001  (the lock expires by itself)
        log.warning(
            "The compression lock was not given back: %s",
            error,
            extra={"action": "lock_kept"},
        )


def redacted(text: str) -> str:
    """Return the text with everything that looks like a key replaced."""
    last = 0
    for end in _KEY_END.finditer(text):
        last = end.end()
    # After the last end line, every begin line would search through the whole rest of the text.
    text = _KEY.sub("[redacted]", text[:last]) + text[last:]
    return _SECRET.sub("[redacted]", text)


def cut_index(roles: Sequence[str], keep: int) -> int:
    """Return the index at which the part to keep starts.

    The cut never separates a call from its result. The cut comes before the last user message, unless that message
    starts a long piece of work; the summary then covers the message too.
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
        self._rotations = Rotations(journal)
        self._must_keep = must_keep
        """Callback that returns the text that memory providers want in a summary of the given messages."""
        self._compacted = compacted
        """Callback for every segment ended by a compaction."""

    async def make_room(self, run: Run) -> bool:
        """Compact if the context is nearly full.

        Return `True` if the context has changed or if the run has to check again.
        """
        context, overflowed = run.history.context, bool(run.overflow)
        limit = run.overflow or run.model.context
        # The provider did not say how large its context is.
        if run.overflow == 1:
            limit = max(1, count_used_tokens(context) // 2)
        if limit is None or not (
            overflowed
            or (not context.is_kept and count_used_tokens(context) >= FULL * limit)
        ):
            return False
        # An overflow is handled once.
        run.overflow = 0 if overflowed else run.overflow
        outcome: Outcome | None = CoolingDown(messages=[], session_id="")
        if not context.is_kept:
            compaction = self._try(
                run.journal, run.history, run.agent, run.model, limit, limit, run
            )
            try:
                outcome = await run.unless_stopped(
                    asyncio.create_task(compaction, name=f"compact {run.id}")
                )
            except (StoreUnavailable, OutcomeUnknown) as error:
                log.warning(
                    "A compaction has to wait: %s",
                    error,
                    extra={"action": "compaction_waits"},
                )
                return True
        return await self._handle_outcome(run, outcome, limit, overflowed=overflowed)

    async def _handle_outcome(
        self, run: Run, outcome: Outcome | None, limit: int, *, overflowed: bool
    ) -> bool:
        """Act on the outcome of a try. `None` means that the try was stopped."""
        if isinstance(outcome, Busy) and not overflowed:
            return False
        if outcome is None or isinstance(outcome, Compacted | Superseded):
            await run.history.catch_up()
            full = (
                not overflowed
                and count_used_tokens(run.history.context) >= FULL * limit
            )
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
        """Compact at the request of the person."""
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
        segment = (await journal.head(history.conversation)).segment
        unchanged: dict[str, Any] = {"messages": [], "session_id": segment or ""}
        cut = _cut_items(
            context.items, int(limit * TAIL), context.unplaced or history.seq + 1
        )
        if segment is None or cut == 0:
            return NothingToDo(**unchanged)
        holder = f"compact-{uuid.uuid4().hex}"
        locked = await journal.threads.run(
            partial(acquire_lock, self._rotations, segment, holder)
        )
        if locked is False:
            return Busy(**unchanged)
        try:
            covered = context.items[:cut]
            fits = int(room * FULL / _share(context))
            summary, reason = await self._write_summary(
                journal, history.conversation, agent, model, covered, fits, run
            )
            if reason:
                return Aborted(**unchanged, why=reason)
            earlier = (
                text_of(covered[0].message.parts) if covered[0].position == 0 else ""
            )
            parts = [part for placed in covered for part in placed.message.parts]
            summary = redacted(with_list(summary, earlier, parts))
            before, after = (
                estimate(context.items),
                len(summary) // 4 + estimate(context.items[cut:]),
            )
            if after >= before:
                return Aborted(**unchanged, why=NO_SHORTER)
            commit = partial(
                self._rotations.commit,
                segment,
                Summary(
                    text=summary,
                    covers_to=covered[-1].position,
                    folded_to=history.seq,
                    kept=_find_kept_seqs(context.items, cut),
                    tokens_before=before,
                    tokens_after=after,
                    model=model.name,
                ),
                lease=run.lease if run is not None else None,
                run=run.id if run is not None else None,
            )
            rotated = await journal.threads.run(commit)
        finally:
            if locked:
                await journal.threads.run(
                    partial(release_lock, self._rotations, segment, holder)
                )
        if not isinstance(rotated, Rotated):
            return Superseded(**unchanged, by=rotated.by)
        # The work owed for the ended segment is in the store, so a later look finds the segment.
        with contextlib.suppress(StoreUnavailable):
            await self._compacted(segment)
        return Compacted(messages=[], session_id=rotated.session_id, summary=summary, tokens_before=before,
                         tokens_after=after)  # fmt: skip

    async def _write_summary(
        self,
        journal: AsyncJournal,
        conversation: str,
        agent: Agent,
        model: Model,
        covered: list[Placed],
        room: int,
        run: Run | None,
    ) -> tuple[str, str]:
        """Return the summary and an empty string, or an empty string and the reason for the failure."""
        plain = _fitting(
            await _spell_out_files(journal, covered),
            room - len(agent.prompt + INSTRUCTION) // 4,
        )
        additions = (
            await self._collect_additions(plain) if agent.memory is not None else ""
        )
        messages = [*plain, Message("user", (Text(INSTRUCTION + additions),))]
        body = model.body(
            agent.prompt,
            [],
            [model.message(message) for message in messages],
            model.parameters,
        )
        answer: Answer | Failure | None = None
        chars, renewed_at = 0, journal.clock.monotonic()
        async with contextlib.aclosing(
            model.stream(body, silence=agent.limits.silence)
        ) as stream:
            async for piece in stream:
                if isinstance(piece, Answer | Failure):
                    answer = piece
                chars += len(piece.text) if isinstance(piece, Words) else 0
                if chars > SUMMARY_CHARS_MAX:
                    return "", "The summary is too long."
                now = journal.clock.monotonic()
                # A summary may take longer than the lease, so renew the lease meanwhile.
                if run is not None and now - renewed_at > run.lease.seconds / 4:
                    run.lease, renewed_at = await journal.renew(run.lease), now
        if not isinstance(answer, Answer):
            reason = (
                answer.message if answer is not None else "it ended without an end."
            )
            return "", f"The summary could not be written: {reason}"
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

    async def _collect_additions(self, messages: Sequence[Message]) -> str:
        """Return the text that memory providers want to keep, for the end of the instruction."""
        plain_messages = [
            {"role": message.role, "content": text_of(message.parts)}
            for message in messages
        ]
        required_text = quote((await self._must_keep(plain_messages))[:_KEPT_CHARS_MAX])
        return (
            f"\n\nA memory of yours asks that these things are not left out:\n{required_text}"
            if required_text
            else ""
        )

    async def _trim(self, run: Run, reason: str) -> bool:
        """Shorten old tool output by a fixed rule if no summary is possible, and record the reason.

        Return `True` if something was shortened.
        """
        context, opened = run.history.context, run.history.context.opened
        long = [placed for placed in context.items[:-KEEP_MESSAGES] if _is_long(placed)]
        context_kept = ContextKept(reason, run.history.seq)
        if not long or opened is None:
            await run.record(context_kept)
            await run.history.catch_up()
            return False
        trimmed = msgspec.structs.replace(
            opened, reason="trimmed", trimmed_to=max(placed.last for placed in long)
        )
        await run.record(context_kept, trimmed)
        await run.history.catch_up()
        return True


def count_used_tokens(context: Context) -> int:
    """Return the tokens of the next request: the provider's last count plus an estimate of the newer messages."""
    return context.used + estimate(
        context.items[context.used_items if context.used else 0 :]
    )


def _share(context: Context) -> float:
    """Return the provider's count per estimated token, at most 1.0."""
    estimated = estimate(context.items[: context.used_items])
    return min(1.0, context.used / estimated) if context.used and estimated else 1.0


def estimate(items: Sequence[Placed]) -> int:
    """Return the estimated number of tokens, at four bytes per token."""
    return sum(_tokens(placed.message) for placed in items)


def _tokens(message: Message) -> int:
    return (
        len(msgspec.json.encode(message)) // 4
        + 4
        + sum(map(_estimate_blob_tokens, message.parts))
    )


def _estimate_blob_tokens(part: Part) -> int:
    """Return the estimated tokens of an attached blob. Providers count a picture by its pixels, up to a limit."""
    match part:
        case Image(width=width, height=height):
            return (
                min(width * height // 750, _PICTURE_TOKENS_MAX) or _PICTURE_TOKENS_MAX
            )
        case File(bytes=size, text=text):
            return (text.bytes if text is not None else size) // 4
    return 0


async def _spell_out_files(
    journal: AsyncJournal, covered: Sequence[Placed]
) -> list[Placed]:
    """Return the messages with the text of attached files, so that the summary can include it."""
    spelled = []
    for placed in covered:
        files = [part for part in placed.message.parts if isinstance(part, File)]
        contents = await contents_of(files, journal.get_blob, journal.threads)
        parts = spelled_out(placed.message.parts, contents)
        spelled.append(
            msgspec.structs.replace(placed, message=Message(placed.message.role, parts))
        )
    return spelled


def _cut_items(items: Sequence[Placed], tail: int, waiting: int) -> int:
    """Return the index at which the part to keep starts.

    The kept part has `tail` tokens and the whole message at the boundary. Calls stay with their results. Nothing at or
    after the first waiting input is summarised.
    """
    cut, size = len(items), 0
    while cut > 0 and size <= tail:
        cut -= 1
        size += estimate([items[cut]])
    while 0 < cut < len(items) and (
        items[cut].message.role == "results"
        or items[cut - 1].position >= min(waiting, items[cut].position)
    ):
        cut -= 1
    first_is_summary = bool(items) and items[0].position == 0
    return cut if cut > (2 if first_is_summary else 1) else 0


def _find_kept_seqs(items: Sequence[Placed], cut: int) -> list[int]:
    """Return the seqs of the person's last message if the summary covers the message.

    The message stays word for word.
    """
    users = [n for n, placed in enumerate(items) if placed.person]
    return list(items[users[-1]].seqs) if users and users[-1] < cut else []


def _is_long(placed: Placed) -> bool:
    return placed.message.role == "results" and any(
        len(part.text) > TRIMMED_CHARS + 100
        for part in placed.message.parts
        if isinstance(part, ToolResult)
    )


def _plain(message: Message) -> Message:
    """Return a message for the summariser. Calls and results become text, so that no provider requires tools."""
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
    """Return the messages for the summariser, shortened to fit into `room` tokens if possible.

    Long tool results are shortened first, then answers, then the messages of people. An earlier summary is never
    shortened.
    """
    messages = [_plain(placed.message) for placed in covered]
    for role in ("results", "assistant", "user"):
        chars = 16_384
        while chars >= _CLIPPED_CHARS_MIN and sum(map(_tokens, messages)) > room:
            for n, placed in enumerate(covered):
                if placed.message.role == role and placed.position > 0:
                    text = clipped(text_of(messages[n].parts), chars)
                    messages[n] = Message(messages[n].role, (Text(text),))
            chars //= 2
    return messages


def clipped(text: str, chars: int) -> str:
    """Return the text, or its beginning and end if the text is longer than `chars` characters."""
    return (
        text
        if len(text) <= chars
        else f"{text[: chars // 2]}\n[...]\n{text[-chars // 2 :]}"
    )

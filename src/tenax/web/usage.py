"""`/api/usage`: tokens and money by day, model and conversation."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, TypeVar

from msgspec import Meta

from tenax.assembly import Runtime
from tenax.journal.base import UsageRow
from tenax.web.api import ResponseBody, endpoint
from tenax.web.search import titles_of

SHOWN_CONVERSATIONS: Final = 10
Days = Annotated[int, Meta(ge=1, le=3660)]
KeyT = TypeVar("KeyT", bound=Hashable)


class Used(ResponseBody):
    """Tokens and US dollars. `unpriced` is the number of calls without a known price."""

    input: int
    output: int
    cost: float
    unpriced: int


class UsedOnDay(Used, frozen=True):
    """The usage of a model on a day (UTC). An older version of Tenax did not store the model: "" then."""

    day: str
    model: str


class UsedByConversation(Used, frozen=True):
    """The usage of a conversation and its sub-agents."""

    conversation: str
    title: str | None


class UsageReport(ResponseBody):
    """The usage by day and model, the totals, and the most expensive conversations."""

    days: list[UsedOnDay]
    total: Used
    conversations: list[UsedByConversation]


@endpoint("GET", "/api/usage")
async def get_usage(runtime: Runtime, days: Days = 30) -> UsageReport:
    """Return the usage of the last days, today included."""
    rows = await runtime.usage_by_day(days)
    by_day = _sums(rows, [(row.day, row.model) for row in rows])
    total = _sums(rows, [None for _ in rows]).get(None, (0, 0, 0.0, 0))
    by_conversation = _sums(rows, [row.conversation for row in rows])
    by_conversation.pop("", None)
    # The most expensive first; without prices, the conversation with the most tokens.
    expensive = sorted(
        by_conversation.items(),
        key=lambda item: (item[1][2], item[1][0] + item[1][1]),
        reverse=True,
    )[:SHOWN_CONVERSATIONS]
    titles = await titles_of(runtime, {name for name, _ in expensive})
    return UsageReport(
        days=[
            UsedOnDay(*used, day=_date(day), model=model)
            for (day, model), used in sorted(by_day.items())
        ],
        total=Used(*total),
        conversations=[
            UsedByConversation(*used, conversation=name, title=titles.get(name))
            for name, used in expensive
        ],
    )


def _sums(
    rows: Iterable[UsageRow], keys: Iterable[KeyT]
) -> dict[KeyT, tuple[int, int, float, int]]:
    """Return the sums of the rows with the same key."""
    sums: dict[KeyT, tuple[int, int, float, int]] = {}
    for row, key in zip(rows, keys, strict=True):
        tokens_in, tokens_out, cost, unpriced = sums.get(key, (0, 0, 0.0, 0))
        sums[key] = (
            tokens_in + row.input,
            tokens_out + row.output,
            round(cost + row.cost, 6),
            unpriced + row.unpriced,
        )
    return sums


def _date(day: int) -> str:
    return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day):%Y-%m-%d}"

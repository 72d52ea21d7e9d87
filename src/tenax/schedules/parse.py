"""Parse the times of a schedule, for example "every weekday at 8:30". The functions are pure and read no clock.

`parse_first` returns permanently valid words (`tomorrow at 9` becomes a date) and the first time. `next_time` computes
the later times. Times of day belong to a time zone. A time skipped by daylight saving is later by the length of the
gap. A time repeated by daylight saving is used once, at its first occurrence. In a month without the day, the last day
of the month is used.
"""

from __future__ import annotations

import calendar
import contextlib
import re
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, tzinfo
from typing import NamedTuple

from tenax.errors import InvalidInput

__all__ = [
    "EXAMPLES",
    "MINUTES_MIN",
    "check_words",
    "correct_due",
    "describe_duration",
    "next_time",
    "parse_first",
    "to_local",
]

MINUTES_MIN = 5
EXAMPLES = (
    "every day at 8", "every weekday at 8:30", "every monday and thursday at 18:00", "every month on the 1st at 7",
    "every hour", "every 15 minutes", "on 2026-12-24 at 9:00", "tomorrow at 9", "in 20 minutes",
)  # fmt: skip
_CHARS_MAX = 200
_MINUTES_MAX = 31 * 24 * 60
_AHEAD_DAYS_MAX = 366 * 5
_COUNTED_BACK = timedelta(days=366)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAY = (
    "(?:"
    + "|".join(f"{day[:3]}(?:{day[3:]})?s?" for day in map(str.lower, _DAYS))
    + ")"
)
_UNITS = {"minute": 1, "hour": 60, "day": 1440, "week": 10080}
_TIME = r"(\d{1,2})(?:[:.](\d\d))? ?(am|pm)?(?: o'?clock)?"
_NAMED_TIMES = {"noon": "12:00", "midnight": "0:00"}
_INTERVAL = re.compile(r"every (?:(\d{1,5}) )?(minute|hour)s?", re.ASCII)
_IN = re.compile(r"in (\d{1,5}|an?) (minute|hour|day|week)s?", re.ASCII)
_AT = re.compile(rf"(.+?) at {_TIME}", re.ASCII)
_DATE = re.compile(r"(?:on )?(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_MONTHLY = re.compile(r"every month on the (\d{1,2})(?:st|nd|rd|th)?", re.ASCII)
_WEEKLY = re.compile(rf"every {_DAY}(?: (?:and )?{_DAY})*", re.ASCII)


class _Rule(NamedTuple):
    """A parsed rule: an interval in `minutes`, weekdays (0 is Monday), a day of the month, or a single date."""

    minutes: int = 0
    days: frozenset[int] = frozenset()
    month_day: int = 0
    on: date | None = None
    at: time = time()

    def __str__(self) -> str:
        if self.minutes:
            hours, minutes = divmod(self.minutes, 60)
            if minutes:
                return f"every {self.minutes} minutes"
            return "every hour" if hours == 1 else f"every {hours} hours"
        if self.on is not None:
            days = f"on {self.on}"
        elif self.month_day:
            days = (
                f"every month on the {self.month_day}{_ordinal_suffix(self.month_day)}"
            )
        elif self.days in _NAMED_DAYS:
            days = f"every {_NAMED_DAYS[self.days]}"
        else:
            days = f"every {' and '.join(_DAYS[day] for day in sorted(self.days))}"
        return f"{days} at {self.at:%H:%M}"

    def is_on(self, day: date) -> bool:
        if self.month_day:
            _, last_day = calendar.monthrange(day.year, day.month)
            return day.day == min(self.month_day, last_day)
        return day.weekday() in self.days


_NAMED_DAYS = {frozenset(range(7)): "day", frozenset(range(5)): "weekday"}


def to_local(at_us: int, zone: tzinfo) -> datetime:
    """Convert microseconds since the epoch to the local time in a zone."""
    return datetime.fromtimestamp(at_us // 1_000_000, zone)


def parse_first(
    words: str, zone: tzinfo, now_us: int, *, since_us: int | None = None
) -> tuple[str, int]:
    """Parse words, and return permanently valid words and the first time after now. Raises `InvalidInput`.

    `since_us` is the time of writing the words, if earlier than now: `tomorrow` is the day after `since_us`.
    """
    since = now_us if since_us is None else since_us
    rule, minutes = _parse(words, to_local(since, zone).date())
    due = since + (minutes or rule.minutes) * 60_000_000
    if minutes:
        rule = _Rule(on=to_local(due, zone).date(), at=to_local(due, zone).time())
    elif rule.on is not None:
        due = _to_us(rule.on, rule.at, zone)
    elif not rule.minutes or due <= now_us:
        due = next_time(str(rule), zone, due, now_us)[0] or 0
    if due <= now_us:
        raise InvalidInput(
            f"That time is over: {rule}.", hint="name one that is to come"
        )
    if due > now_us + _AHEAD_DAYS_MAX * 86_400_000_000:
        raise InvalidInput(
            f"That is too far ahead: {rule}.", hint="name a time within five years"
        )
    return str(rule), due


def next_time(
    words: str, zone: tzinfo, due_us: int, now_us: int
) -> tuple[int | None, int]:
    """Return the first time after both `due_us` and `now_us`, and the number of missed times between the two.

    The time is `None` for a single date. Times on days are counted for a year back.
    """
    rule, _ = _parse(words, date.min)
    if rule.on is not None:
        return None, 0
    last = max(due_us, now_us)
    if rule.minutes:
        missed = (last - due_us) // (rule.minutes * 60_000_000)
        return due_us + (missed + 1) * rule.minutes * 60_000_000, missed
    missed = 0
    since = max(to_local(due_us, zone), to_local(now_us, zone) - _COUNTED_BACK).date()
    for time_us in _times(rule, zone, since):
        if time_us > last:
            return time_us, missed
        missed += time_us > due_us
    # `_times` has no end.
    raise AssertionError


def correct_due(words: str, zone: tzinfo, due_us: int, now_us: int) -> int | None:
    """Return the next time if `due_us` is too far ahead to come from the present clock; otherwise `None`.

    Such a time remains after a clock that ran ahead is set back. `due_us` may be one step after the next time, so no
    time comes twice after a clock is set back by seconds. A date is never corrected.
    """
    rule, _ = _parse(words, date.min)
    if rule.on is not None:
        return None
    if rule.minutes:
        step = rule.minutes * 60_000_000
        ahead = (due_us - now_us - 1) // step
        return due_us - ahead * step if ahead > 1 else None
    next_us, _ = next_time(words, zone, now_us, now_us)
    assert next_us is not None
    after_next_us, _ = next_time(words, zone, next_us, next_us)
    assert after_next_us is not None
    return next_us if due_us > after_next_us else None


def describe_duration(seconds: int) -> str:
    """Return a rough duration for people, for example `3 hours`."""
    minutes = seconds // 60
    for size, unit in ((1440, "day"), (60, "hour")):
        if minutes >= 2 * size:
            return f"{minutes // size} {unit}s"
    return f"{minutes} minute{'' if minutes == 1 else 's'}"


def check_words(words: str) -> None:
    """Raise `InvalidInput` with examples if the words are never valid for `parse_first`."""
    _parse(words, date(2000, 1, 1))


def _times(rule: _Rule, zone: tzinfo, since: date) -> Iterator[int]:
    """Yield the times of a rule in ascending order, from the day before `since`."""
    day = since - timedelta(days=2)
    last = -1
    while True:
        day += timedelta(days=1)
        if not rule.is_on(day):
            continue
        time_us = _to_us(day, rule.at, zone)
        # Daylight saving, or a skipped day, can map two days to one instant.
        if time_us > last:
            yield time_us
            last = time_us


def _to_us(day: date, at: time, zone: tzinfo) -> int:
    return int(datetime.combine(day, at, zone).timestamp()) * 1_000_000


def _parse(words: str, today: date) -> tuple[_Rule, int]:
    """Return the rule, and the number of minutes for words like `in 20 minutes`. Raises `InvalidInput`."""
    text = _normalise(words)
    found = _INTERVAL.fullmatch(text)
    if found:
        minutes = int(found[1] or 1) * _UNITS[found[2]]
        if not MINUTES_MIN <= minutes <= _MINUTES_MAX:
            raise InvalidInput(
                f"“{text}” is not between {MINUTES_MIN} minutes and 31 days."
            )
        return _Rule(minutes), 0
    found = _IN.fullmatch(text)
    if found:
        minutes = (int(found[1]) if found[1].isdigit() else 1) * _UNITS[found[2]]
        if not 1 <= minutes <= _AHEAD_DAYS_MAX * _UNITS["day"]:
            raise InvalidInput(f"“{text}” is not between 1 minute and five years.")
        return _Rule(), minutes
    found = _AT.fullmatch(text)
    at = _time(found[2], found[3], found[4]) if found else None
    rule = _parse_days(found[1], at, today) if found and at is not None else None
    if rule is None:
        raise InvalidInput(
            f"“{text[:80]}” is not a time that is understood.",
            hint=f"Such as: {'; '.join(EXAMPLES)}",
        )
    return rule, 0


def _normalise(words: str) -> str:
    if len(words) > _CHARS_MAX:
        raise InvalidInput(
            f"When it is due is said in at most {_CHARS_MAX} characters."
        )
    text = " ".join(words.casefold().replace(",", " and ").split())
    text = text.replace("and and", "and").rstrip(" .")
    text = re.sub(r"^each ", "every ", text)
    for name, full in _SYNONYMS.items():
        if re.match(rf"{name}\b", text):
            text = full + text.removeprefix(name)
            break
    for name, clock_time in _NAMED_TIMES.items():
        text = re.sub(rf"\bat {name}$", f"at {clock_time}", text)
    return text


_SYNONYMS = {"daily": "every day", "every days": "every day", "weekdays": "every weekday", "every weekdays": "every weekday",
          "hourly": "every hour", "monthly": "every month"}  # fmt: skip


def _time(hour: str, minute: str | None, half: str | None) -> time | None:
    hours, minutes = int(hour), int(minute or 0)
    if half is not None:
        if not 1 <= hours <= 12:  # noqa: PLR2004
            return None
        hours = hours % 12 + (12 if half == "pm" else 0)
    try:
        return time(hours, minutes)
    except ValueError:
        return None


def _parse_days(text: str, at: time, today: date) -> _Rule | None:
    if text in {"today", "tomorrow"}:
        return _Rule(on=today + timedelta(days=text == "tomorrow"), at=at)
    found = _DATE.fullmatch(text)
    if found:
        with contextlib.suppress(ValueError):
            return _Rule(on=date(*map(int, found.groups())), at=at)
    found = _MONTHLY.fullmatch(text)
    if found and 1 <= int(found[1]) <= 31:  # noqa: PLR2004
        return _Rule(month_day=int(found[1]), at=at)
    if _WEEKLY.fullmatch(text):
        names = {word[:3] for word in text.split()}
        days = [n for n, day in enumerate(_DAYS) if day[:3].lower() in names]
        return _Rule(days=frozenset(days), at=at)
    for named_days, name in _NAMED_DAYS.items():
        if text == f"every {name}":
            return _Rule(days=named_days, at=at)
    return None


def _ordinal_suffix(number: int) -> str:
    if number in {11, 12, 13}:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")

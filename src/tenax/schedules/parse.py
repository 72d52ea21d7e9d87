"""When a schedule is due: a few words such as "every weekday at 8:30", and the times that they mean. No clock, no machine.

`first` takes what a person says and gives plain words that stay true (`tomorrow at 9` is a date from then on) with the first
time; `following` goes on from there. Times on a clock are those of a zone: one that daylight saving skips comes as much
later as the clock was put forward, one that it repeats comes once, the first time. A day that a month lacks is its last one.
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
    "brought_back",
    "first",
    "following",
    "is_understood",
    "local",
    "span",
]

MINUTES_MIN = 5
EXAMPLES = (
    "every day at 8", "every weekday at 8:30", "every monday and thursday at 18:00", "every month on the 1st at 7",
    "every hour", "every 15 minutes", "on 2026-12-24 at 9:00", "tomorrow at 9", "in 20 minutes",
)  # fmt: skip
_CHARS_MAX = 200
_MINUTES_MAX = 31 * 24 * 60
_AHEAD_DAYS_MAX = 366 * 5
_COUNTED = timedelta(days=366)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAY = (
    "(?:"
    + "|".join(f"{each[:3]}(?:{each[3:]})?s?" for each in map(str.lower, _DAYS))
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
    """What words mean: every so many `minutes`, on weekdays (0 is Monday), on a day of each month, or once, on a date."""

    minutes: int = 0
    days: frozenset[int] = frozenset()
    month_day: int = 0
    on: date | None = None
    at: time = time()

    def __str__(self) -> str:
        if self.minutes:
            hours, minutes = divmod(self.minutes, 60)
            n, unit = (self.minutes, "minutes") if minutes else (hours, "hours")
            return (
                "every hour" if self.minutes == _UNITS["hour"] else f"every {n} {unit}"
            )
        if self.on is not None:
            what = f"on {self.on}"
        elif self.month_day:
            what = f"every month on the {self.month_day}{_nth(self.month_day)}"
        elif self.days in _NAMED_DAYS:
            what = f"every {_NAMED_DAYS[self.days]}"
        else:
            what = f"every {' and '.join(_DAYS[each] for each in sorted(self.days))}"
        return f"{what} at {self.at:%H:%M}"

    def is_on(self, day: date) -> bool:
        if self.month_day:
            return day.day == min(
                self.month_day, calendar.monthrange(day.year, day.month)[1]
            )
        return day.weekday() in self.days


_NAMED_DAYS = {frozenset(range(7)): "day", frozenset(range(5)): "weekday"}


def local(at_us: int, zone: tzinfo) -> datetime:
    """This time on a clock in the zone."""
    return datetime.fromtimestamp(at_us // 1_000_000, zone)


def first(
    words: str, zone: tzinfo, now_us: int, *, since_us: int | None = None
) -> tuple[str, int]:
    """What is meant by these words, in words that stay true, and the first time to come. Raises InvalidInput.

    `since_us` is when they were said, if that was earlier: `tomorrow` is the day after.
    """
    since = now_us if since_us is None else since_us
    rule, minutes = _parsed(words, local(since, zone).date())
    due = since + (minutes or rule.minutes) * 60_000_000
    if minutes:
        rule = _Rule(on=local(due, zone).date(), at=local(due, zone).time())
    elif rule.on is not None:
        due = _instant(rule.on, rule.at, zone)
    elif not rule.minutes or due <= now_us:
        due = following(str(rule), zone, due, now_us)[0] or 0
    if due <= now_us:
        raise InvalidInput(
            f"That time is over: {rule}.", hint="name one that is to come"
        )
    if due > now_us + _AHEAD_DAYS_MAX * 86_400_000_000:
        raise InvalidInput(
            f"That is too far ahead: {rule}.", hint="name a time within five years"
        )
    return str(rule), due


def following(
    words: str, zone: tzinfo, due_us: int, now_us: int
) -> tuple[int | None, int]:
    """The first time after both, and how many others went by since `due_us`; None where that was the only one.

    What went by on days is counted for a year back.
    """
    rule, _ = _parsed(words, date.min)
    if rule.on is not None:
        return None, 0
    last = max(due_us, now_us)
    if rule.minutes:
        missed = (last - due_us) // (rule.minutes * 60_000_000)
        return due_us + (missed + 1) * rule.minutes * 60_000_000, missed
    missed = 0
    since = max(local(due_us, zone), local(now_us, zone) - _COUNTED).date()
    for each in _times(rule, zone, since):
        if each > last:
            return each, missed
        missed += each > due_us
    raise AssertionError  # there is always another day


def brought_back(words: str, zone: tzinfo, due_us: int, now_us: int) -> int | None:
    """The next time by the present clock, where `due_us` cannot come from it; None where it can, or is a date.

    A clock that ran ahead leaves such a time behind when it is put back. A time may lie one step further ahead than the
    next one: a clock that is put back by seconds makes no time come twice.
    """
    rule, _ = _parsed(words, date.min)
    if rule.on is not None:
        return None
    if rule.minutes:
        step = rule.minutes * 60_000_000
        ahead = (due_us - now_us - 1) // step
        return due_us - ahead * step if ahead > 1 else None
    following_us, _ = following(words, zone, now_us, now_us)
    assert following_us is not None
    next_but_one, _ = following(words, zone, following_us, following_us)
    assert next_but_one is not None
    return following_us if due_us > next_but_one else None


def span(seconds: int) -> str:
    """A length of time, about, for people."""
    minutes = seconds // 60
    for size, unit in ((1440, "day"), (60, "hour")):
        if minutes >= 2 * size:
            return f"{minutes // size} {unit}s"
    return f"{minutes} minute{'' if minutes == 1 else 's'}"


def is_understood(words: str) -> None:
    """Raises InvalidInput, with examples, where `first` would not understand this at any time."""
    _parsed(words, date(2000, 1, 1))


def _times(rule: _Rule, zone: tzinfo, since: date) -> Iterator[int]:
    """The times from the day before on, each once, in order."""
    day, before = since - timedelta(days=2), -1
    while True:
        day += timedelta(days=1)
        if rule.is_on(day) and (found := _instant(day, rule.at, zone)) > before:
            yield found
            before = found


def _instant(day: date, at: time, zone: tzinfo) -> int:
    return int(datetime.combine(day, at, zone).timestamp()) * 1_000_000


def _parsed(words: str, today: date) -> tuple[_Rule, int]:
    """The rule; or for `in 20 minutes`, how many."""
    said = _plain(words)
    if found := _INTERVAL.fullmatch(said):
        minutes = int(found[1] or 1) * _UNITS[found[2]]
        if not MINUTES_MIN <= minutes <= _MINUTES_MAX:
            raise InvalidInput(
                f"“{said}” is not between {MINUTES_MIN} minutes and 31 days."
            )
        return _Rule(minutes), 0
    if found := _IN.fullmatch(said):
        minutes = (int(found[1]) if found[1].isdigit() else 1) * _UNITS[found[2]]
        if not 1 <= minutes <= _AHEAD_DAYS_MAX * _UNITS["day"]:
            raise InvalidInput(f"“{said}” is not between 1 minute and five years.")
        return _Rule(), minutes
    found = _AT.fullmatch(said)
    at = _time(found[2], found[3], found[4]) if found else None
    rule = _on_days(found[1], at, today) if found and at is not None else None
    if rule is None:
        raise InvalidInput(
            f"“{said[:80]}” is not a time that is understood.",
            hint=f"Such as: {'; '.join(EXAMPLES)}",
        )
    return rule, 0


def _plain(words: str) -> str:
    if len(words) > _CHARS_MAX:
        raise InvalidInput(
            f"When it is due is said in at most {_CHARS_MAX} characters."
        )
    said = " ".join(words.casefold().replace(",", " and ").split()).replace(
        "and and", "and"
    )
    said = re.sub(r"^each ", "every ", said.rstrip(" ."))
    said = re.sub(rf"^(?:{'|'.join(_PLAIN)})\b", lambda found: _PLAIN[found[0]], said)
    return re.sub(
        r"\bat (noon|midnight)$", lambda found: f"at {_NAMED_TIMES[found[1]]}", said
    )


_PLAIN = {"daily": "every day", "every days": "every day", "weekdays": "every weekday", "every weekdays": "every weekday",
          "hourly": "every hour", "monthly": "every month"}  # fmt: skip


def _time(hour: str, minute: str | None, half: str | None) -> time | None:
    h, m = int(hour), int(minute or 0)
    if half is not None:
        h = h % 12 + 12 * (half == "pm") if 1 <= h <= 12 else 24  # noqa: PLR2004  (as on a clock's face)
    return time(h, m) if h < 24 and m < 60 else None  # noqa: PLR2004


def _on_days(what: str, at: time, today: date) -> _Rule | None:
    rule = None
    if what in {"today", "tomorrow"}:
        rule = _Rule(on=today + timedelta(days=what == "tomorrow"), at=at)
    elif found := _DATE.fullmatch(what):
        with contextlib.suppress(ValueError):
            rule = _Rule(on=date(*map(int, found.groups())), at=at)
    elif (found := _MONTHLY.fullmatch(what)) and 1 <= int(found[1]) <= 31:  # noqa: PLR2004
        rule = _Rule(month_day=int(found[1]), at=at)
    elif _WEEKLY.fullmatch(what):
        named = {word[:3] for word in what.split()}
        rule = _Rule(
            days=frozenset(
                n for n, day in enumerate(_DAYS) if day[:3].lower() in named
            ),
            at=at,
        )
    else:
        days = next(
            (days for days, name in _NAMED_DAYS.items() if what == f"every {name}"),
            None,
        )
        rule = _Rule(days=days, at=at) if days else None
    return rule


def _nth(n: int) -> str:
    return "th" if n in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")

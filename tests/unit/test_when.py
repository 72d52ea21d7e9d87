"""When a schedule is due: what words mean, what is refused, and daylight saving both ways."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tenax.clock import machine_zone, zone_of
from tenax.errors import InvalidInput
from tenax.schedules.parse import (
    EXAMPLES,
    check_words,
    correct_due,
    next_time,
    parse_first,
    to_local,
)

BERLIN, LORD_HOWE, APIA = (
    ZoneInfo(each) for each in ("Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia")
)


def us(text: str, zone: ZoneInfo = BERLIN) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1e6)


def shown(at: int, zone: ZoneInfo = BERLIN) -> str:
    return f"{to_local(at, zone):%Y-%m-%d %H:%M %z}"


NOW = us("2026-11-15 23:00:30")  # a Sunday


@pytest.mark.parametrize(
    ("words", "means", "due"),
    [
        ("every day at 8", "every day at 08:00", "2026-11-16 08:00"),
        ("Daily at noon.", "every day at 12:00", "2026-11-16 12:00"),
        ("every weekday at 8:30", "every weekday at 08:30", "2026-11-16 08:30"),
        (
            "every monday and thursday at 18:00",
            "every Monday and Thursday at 18:00",
            "2026-11-16 18:00",
        ),
        (
            "Every Sat,  Sun AT 11 pm",
            "every Saturday and Sunday at 23:00",
            "2026-11-21 23:00",
        ),
        (
            "every mon, tue, and fri at 8",
            "every Monday and Tuesday and Friday at 08:00",
            "2026-11-16 08:00",
        ),
        ("every sunday at 23:00", "every Sunday at 23:00", "2026-11-22 23:00"),
        ("every hour", "every hour", "2026-11-16 00:00"),
        ("every 15 minutes", "every 15 minutes", "2026-11-15 23:15"),
        ("every 120 minutes", "every 2 hours", "2026-11-16 01:00"),
        (
            "every month on the 1st at 7",
            "every month on the 1st at 07:00",
            "2026-12-01 07:00",
        ),
        (
            "monthly on the 31 at midnight",
            "every month on the 31st at 00:00",
            "2026-11-30 00:00",
        ),
        ("on 2026-12-24 at 9:00", "on 2026-12-24 at 09:00", "2026-12-24 09:00"),
        ("tomorrow at 9", "on 2026-11-16 at 09:00", "2026-11-16 09:00"),
        ("today at 23:01", "on 2026-11-15 at 23:01", "2026-11-15 23:01"),
        ("in 20 minutes", "on 2026-11-15 at 23:20", "2026-11-15 23:20"),
        ("in a week", "on 2026-11-22 at 23:00", "2026-11-22 23:00"),
    ],
)
def test_words_mean_a_time_and_say_it_plainly(words: str, means: str, due: str) -> None:
    """However they are written; and what is kept of them means the same later."""
    said, at = parse_first(words, BERLIN, NOW)
    assert (said, shown(at)[:16]) == (means, due)
    check_words(words)
    if not said.startswith("on "):
        assert parse_first(said, BERLIN, NOW) == (said, at)
        assert next_time(said, BERLIN, at, at)[0] > at
    else:
        assert next_time(said, BERLIN, at, at) == (None, 0)


@pytest.mark.parametrize(
    "words",
    ["", "soon", "every day", "every blue day at 8", "every day at 24", "every day at 8:60", "every day at 13 pm",
     "every day at 8; every hour", "every 4 minutes", "every 0 hours", "every 99999 hours", "in 0 minutes",
     "on 2026-02-30 at 9", "on 2020-01-01 at 9", "on 9999-12-31 at 9", "today at 23:00", "monday at 9",
     "every month on the 32nd at 7", "every ٣٠ minutes", "every day at 8" + " " * 200, "* * * * *"],
)  # fmt: skip
def test_anything_else_is_refused_in_a_sentence(words: str) -> None:
    """With a way on where the words were not understood."""
    with pytest.raises(InvalidInput) as refused:
        parse_first(words, BERLIN, NOW)
    assert str(refused.value).endswith(".")
    if "understood" in str(refused.value):
        assert all(example in refused.value.hint for example in EXAMPLES)


def test_an_hour_that_is_skipped_comes_later_and_one_that_is_repeated_comes_once() -> (
    None
):
    """Berlin, 29 March and 25 October 2026; and Lord Howe, whose clock moves by half an hour."""
    every = "every day at 02:30"
    spring = [us("2026-03-27 12:00")]
    autumn = [us("2026-10-23 12:00")]
    for each in (spring, autumn):
        for _ in range(4):
            each.append(next_time(every, BERLIN, each[-1], each[-1])[0] or 0)
    assert [shown(each)[5:] for each in spring[1:]] == [
        "03-28 02:30 +0100", "03-29 03:30 +0200", "03-30 02:30 +0200", "03-31 02:30 +0200"]  # fmt: skip
    assert [shown(each)[5:] for each in autumn[1:]] == [
        "10-24 02:30 +0200", "10-25 02:30 +0200", "10-26 02:30 +0100", "10-27 02:30 +0100"]  # fmt: skip
    at, _ = next_time(
        "every day at 02:15", LORD_HOWE, us("2026-10-03 12:00", LORD_HOWE), 0
    )
    assert at is not None
    assert shown(at, LORD_HOWE) == "2026-10-04 02:45 +1100"


def test_an_interval_is_the_same_length_when_the_clock_moves_and_keeps_its_minute() -> (
    None
):
    """Every hour through the night that has 25 of them; and hours that nobody ran are skipped, and counted."""
    due = us("2026-10-24 23:10")
    twice = [due := next_time("every hour", BERLIN, due, due)[0] or 0 for _ in range(4)]
    assert [shown(each)[11:16] for each in twice] == [
        "00:10",
        "01:10",
        "02:10",
        "02:10",
    ]
    assert next_time("every hour", BERLIN, due, due + 7_300_000_000) == (
        due + 3 * 3_600_000_000,
        2,
    )


def test_what_was_missed_is_counted_and_not_made_up_for() -> None:
    """From Wednesday to the next Tuesday at noon four weekdays went by; a day that is not there is not one of them."""
    due = us("2026-11-18 08:00")
    assert next_time("every weekday at 08:00", BERLIN, due, us("2026-11-24 12:00")) == (
        us("2026-11-25 08:00"),
        4,
    )
    assert next_time("every weekday at 08:00", BERLIN, due, due) == (
        us("2026-11-19 08:00"),
        0,
    )
    gone = us("2011-12-29 08:00", APIA)  # Samoa had no 30 December 2011
    assert [
        shown(next_time("every day at 08:00", APIA, gone, gone)[0] or 0, APIA)[:10]
    ] == ["2011-12-31"]
    assert (
        next_time(
            "every day at 08:00",
            APIA,
            us("2011-12-28 08:00", APIA),
            us("2012-01-01 12:00", APIA),
        )[1]
        == 3
    )
    ages = next_time(
        "every day at 08:00", BERLIN, us("1975-01-01 08:00"), us("2026-11-15 08:00")
    )
    assert ages == (us("2026-11-16 08:00"), 368)  # a year and two days, not fifty


def test_a_zone_that_is_not_there_is_named() -> None:
    """Neither a path nor an empty name is a zone; UTC is always there."""
    for name in (
        "Mars/Phobos",
        "",
        "../../etc/passwd",
        "/etc/localtime",
        "Europe",
        "a\0b",
    ):
        with pytest.raises(InvalidInput, match="no time zone"):
            zone_of(name)
    assert zone_of("UTC") is UTC


def test_the_machine_says_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """By TZ where that is a name; else by what it has set; what is no name is passed over."""
    monkeypatch.setenv("TZ", ":America/New_York")
    assert machine_zone() == "America/New_York"
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    assert zone_of(machine_zone()) is not None


RULES = some.one_of(
    some.builds("every day at {:%H:%M}".format, some.times()),
    some.builds("every weekday at {:%H:%M}".format, some.times()),
    some.builds("every Monday and Saturday at {:%H:%M}".format, some.times()),
    some.builds(
        "every month on the {} at {:%H:%M}".format, some.integers(1, 31), some.times()
    ),
)
ZONES = some.sampled_from(
    [
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "America/St_Johns",
        "UTC",
    ]
)


def _fits(words: str, day: date) -> bool:
    """Said once more, plainly."""
    kind = words.split()[1]
    if kind == "month":
        wanted = int(words.split()[4].rstrip("stndrh"))
        return day.day == wanted or (
            day.day < wanted and (day + timedelta(days=1)).day == 1
        )
    return kind == "day" or day.weekday() in ((0, 5) if kind == "Monday" else range(5))


SOME_DAY = some.dates(date(2000, 1, 1), date(2037, 1, 1))


@given(RULES, ZONES, SOME_DAY, some.times(), some.integers(0, 40 * 86_400))
def test_the_next_time_is_the_first_that_fits(
    words: str, name: str, day: date, at: time, late: int
) -> None:
    """After both times, on a day and at a minute that fit, with none left out in between; in any zone."""
    zone = zone_of(name)
    due = round(datetime.combine(day, at, zone).timestamp()) * 1_000_000
    now = due + late * 1_000_000
    days = [(to_local(due, zone).date() + timedelta(days=n)) for n in range(-3, 110)]
    hour, minute = map(int, words.rsplit(maxsplit=1)[-1].split(":"))
    clock = [
        datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
        for day in days
        if _fits(words, day)
    ]
    times = sorted({round(each.timestamp()) * 1_000_000 for each in clock})
    found, missed = next_time(words, zone, due, now)
    assert found == next(each for each in times if each > now)
    assert missed == sum(due < each <= now for each in times)
    plain, start = parse_first(words, zone, now)
    assert (start, parse_first(plain, zone, now)) == (found, (plain, start))


@pytest.mark.parametrize(
    ("words", "due", "back"),
    [
        ("every day at 08:00", "2026-11-16 08:00", None),
        (
            "every day at 08:00",
            "2026-11-17 08:00",
            None,
        ),  # asked a moment ago by a clock that was put back since
        ("every day at 08:00", "2026-11-18 08:00", "2026-11-16 08:00"),
        ("every weekday at 08:00", "2027-11-15 08:00", "2026-11-16 08:00"),
        ("every Sunday at 22:00", "2026-11-29 22:00", None),
        ("every Sunday at 22:00", "2027-11-14 22:00", "2026-11-22 22:00"),
        ("every month on the 31st at 07:00", "2027-12-31 07:00", "2026-11-30 07:00"),
        ("every hour", "2026-11-16 01:00", None),
        ("every hour", "2027-11-15 12:20", "2026-11-15 23:20"),
        ("on 2027-12-24 at 09:00", "2027-12-24 09:00", None),
    ],
)
def test_a_time_that_the_present_clock_cannot_have_set_is_brought_back(
    words: str, due: str, back: str | None
) -> None:
    """To the next one from now; never a date that was named, and never one that a small step back of the clock explains."""
    found = correct_due(words, BERLIN, us(due), NOW)
    assert (found and shown(found)[:16]) == back


@settings(deadline=None)
@given(
    some.sampled_from([example for example in EXAMPLES if example.startswith("every")]),
    some.integers(0, 400 * 1440),
)
def test_a_time_that_this_clock_set_stays(words: str, minutes: int) -> None:
    """Whenever it is looked at before it is due."""
    said, due = parse_first(words, BERLIN, NOW)
    now = NOW + minutes * 60_000_000
    later, _ = next_time(said, BERLIN, due, now)
    assert later is not None
    assert correct_due(said, BERLIN, later, now) is None

"""Schedules: when they fire, also where clocks are set; what is due after a pause; how they are written."""

from __future__ import annotations

import math
import sys
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from typing import Any

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from holdfast.admission.calendars import Cron, DueTicks, Interval, Timing, find_due_ticks, make_interval, make_tick_id
from holdfast.errors import UsageError


def at(text: str) -> float:
    """Seconds of a moment in UTC, unless the text says otherwise."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def local(ticks: list[float], zone: str) -> list[str]:
    """Ticks as the wall shows them, with the offset from UTC, which tells the two hours of the same name apart."""
    return [datetime.fromtimestamp(tick, zoneinfo.ZoneInfo(zone)).strftime("%m-%d %H:%M %z") for tick in ticks]


def day_in(zone: str, text: str, expression: str) -> list[str]:
    """What fires on a day, by the clock of the zone."""
    begin = datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone))
    end = begin + timedelta(days=1)
    return local(Cron(expression, zone).list_ticks(begin.timestamp() - 1, end.timestamp() - 1), zone)


def first(text: str, count: int, after: str = "2026-01-01T00:00:00") -> list[str]:
    ticks = Timing.parse(text).list_ticks(at(after), math.inf, count)
    return [datetime.fromtimestamp(tick, UTC).strftime("%Y-%m-%d %H:%M:%S") for tick in ticks]


# Expressions


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("30 2 * * *", ["2026-01-01 02:30:00", "2026-01-02 02:30:00"]),
        ("*/20 9-10 * * *", [f"2026-01-01 {time}:00" for time in ("09:00", "09:20", "09:40", "10:00")]),
        ("0 0 * * MON-FRI", ["2026-01-02 00:00:00", "2026-01-05 00:00:00"]),
        ("0 0 1 jan,JUL *", ["2026-07-01 00:00:00", "2027-01-01 00:00:00"]),
        ("0 0 * * 7", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("@yearly", ["2027-01-01 00:00:00", "2028-01-01 00:00:00"]),
        ("@monthly", ["2026-02-01 00:00:00", "2026-03-01 00:00:00"]),
        ("@weekly", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("@Daily", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("@hourly", ["2026-01-01 01:00:00", "2026-01-01 02:00:00"]),
        ("*/25 * * * * *", ["2026-01-01 00:00:25", "2026-01-01 00:00:50", "2026-01-01 00:01:00"]),
        ("15 30 2 * * *", ["2026-01-01 02:30:15", "2026-01-02 02:30:15"]),
        # Either day field is enough, unless one begins with a star.
        ("0 0 13 * FRI", ["2026-01-02 00:00:00", "2026-01-09 00:00:00", "2026-01-13 00:00:00"]),
        ("0 0 */10 * FRI", ["2026-05-01 00:00:00", "2026-07-31 00:00:00"]),
    ],
)
def test_an_expression_fires_at_the_times_it_names(text: str, ticks: list[str]):
    assert first(text, len(ticks)) == ticks


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("0 0 L * *", ["2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30"]),
        ("0 0 L 2 *", ["2026-02-28", "2027-02-28", "2028-02-29", "2029-02-28"]),
        ("0 0 LW * *", ["2026-01-30", "2026-02-27", "2026-03-31"]),
        ("0 0 31 * *", ["2026-01-31", "2026-03-31", "2026-05-31"]),
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29"]),
        ("0 0 * * 5L", ["2026-01-30", "2026-02-27"]),
        ("0 0 * * MON#1", ["2026-01-05", "2026-02-02"]),
        ("0 0 * 2 MON#5", ["2044-02-29", "2072-02-29", "2112-02-29"]),
    ],
)
def test_the_ends_of_months_and_leap_days(text: str, days: list[str]):
    assert first(text, len(days)) == [f"{day} 00:00:00" for day in days]


def test_no_leap_day_in_2100():
    assert first("0 0 29 2 *", 2, after="2096-01-01") == ["2096-02-29 00:00:00", "2104-02-29 00:00:00"]


def test_the_zone_says_what_two_o_clock_is():
    assert first("0 2 * * * in Europe/Berlin", 1) == ["2026-01-01 01:00:00"]
    assert first("0 2 * * * in Europe/Berlin", 1, after="2026-07-01") == ["2026-07-02 00:00:00"]
    assert first("0 2 * * * in Asia/Kolkata", 1) == ["2026-01-01 20:30:00"]


# Where clocks are set. Berlin: 2026-03-29 02:00 is 03:00, 2026-10-25 03:00 is 02:00 again.


def test_a_fixed_time_that_is_left_out_in_spring_fires_right_after():
    assert day_in("Europe/Berlin", "2026-03-29", "30 2 * * *") == ["03-29 03:00 +0200"]
    assert day_in("Europe/Berlin", "2026-03-29", "0,30 2 * * *") == ["03-29 03:00 +0200"]
    assert day_in("Europe/Berlin", "2026-03-29", "0 1,2,3,4 * * *") == [
        "03-29 01:00 +0100",
        "03-29 03:00 +0200",
        "03-29 04:00 +0200",
    ]
    assert day_in("America/New_York", "2026-03-08", "15 2 * * *") == ["03-08 03:00 -0400"]


def test_a_fixed_time_that_comes_twice_in_autumn_fires_the_first_time():
    assert day_in("Europe/Berlin", "2026-10-25", "30 2 * * *") == ["10-25 02:30 +0200"]
    assert day_in("Europe/Berlin", "2026-10-25", "0,30 2,3 * * *") == [
        "10-25 02:00 +0200",
        "10-25 02:30 +0200",
        "10-25 03:00 +0100",
        "10-25 03:30 +0100",
    ]
    assert day_in("America/New_York", "2026-11-01", "30 1 * * *") == ["11-01 01:30 -0400"]


def test_a_worker_that_begins_in_the_second_of_two_equal_hours_does_not_fire_again():
    between = at("2026-10-25T02:15:00+01:00")
    assert local([Cron("30 2 * * *", "Europe/Berlin").get_next_tick(between)], "Europe/Berlin") == ["10-26 02:30 +0100"]


def test_looking_back_from_the_second_of_two_equal_hours_finds_what_fired_in_the_first():
    between = at("2026-10-25T02:15:00+01:00")
    ticks = list(Cron("30,45 2 * * *", "Europe/Berlin").iter_newest_first(between - 86400, between))
    assert local(ticks, "Europe/Berlin") == ["10-25 02:45 +0200", "10-25 02:30 +0200"]


def test_a_timing_by_the_clock_leaves_out_what_is_left_out_and_fires_twice_what_comes_twice():
    assert day_in("Europe/Berlin", "2026-03-29", "*/30 2 * * *") == []
    assert day_in("Europe/Berlin", "2026-10-25", "*/30 2 * * *") == [
        "10-25 02:00 +0200",
        "10-25 02:30 +0200",
        "10-25 02:00 +0100",
        "10-25 02:30 +0100",
    ]
    assert day_in("America/New_York", "2026-03-08", "0 */2 * * *")[:3] == [
        "03-08 00:00 -0500",
        "03-08 04:00 -0400",
        "03-08 06:00 -0400",
    ]
    assert day_in("America/New_York", "2026-11-01", "@hourly")[:4] == [
        "11-01 00:00 -0400",
        "11-01 01:00 -0400",
        "11-01 01:00 -0500",
        "11-01 02:00 -0500",
    ]


@pytest.mark.parametrize("begin", ["2026-03-28", "2026-10-24"])
def test_every_quarter_of_an_hour_is_a_quarter_of_an_hour_apart_whatever_the_clock_does(begin: str):
    ticks = Cron("*/15 * * * *", "Europe/Berlin").list_ticks(at(begin), at(begin) + 3 * 86400)
    assert len(ticks) == 3 * 96
    assert {later - earlier for earlier, later in pairwise(ticks)} == {900}


def test_seconds_of_nought_change_nothing():
    for begin in (at("2026-03-28"), at("2026-10-24")):
        five, six = Cron("30 2 * * *", "Europe/Berlin"), Cron("0 30 2 * * *", "Europe/Berlin")
        assert six.list_ticks(begin, begin + 3 * 86400) == five.list_ticks(begin, begin + 3 * 86400)


def test_midnight_may_be_left_out():
    assert day_in("Asia/Beirut", "2026-03-28", "0 0 * * *") == ["03-28 00:00 +0200"]
    assert local(
        Cron("0 0 * * *", "Asia/Beirut").list_ticks(at("2026-03-28T12:00"), at("2026-03-29T12:00")), "Asia/Beirut"
    ) == ["03-29 01:00 +0300"]


def test_a_whole_day_may_be_left_out():
    """Samoa went over the date line at the end of 29 December 2011."""
    ticks = Cron("30 2 * * *", "Pacific/Apia").list_ticks(at("2011-12-28T13:00"), at("2012-01-01"))
    assert local(ticks, "Pacific/Apia") == [
        "12-29 02:30 -1000",
        "12-31 00:00 +1400",
        "12-31 02:30 +1400",
        "01-01 02:30 +1400",
    ]


SET = [
    ("Europe/Berlin", "2026-03-29T01:00"),
    ("Europe/Berlin", "2026-10-25T01:00"),
    ("America/New_York", "2026-03-08T07:00"),
    ("America/New_York", "2026-11-01T06:00"),
    ("Australia/Lord_Howe", "2026-04-04T15:00"),  # by half an hour
    ("Australia/Lord_Howe", "2026-10-03T15:30"),
    ("Asia/Beirut", "2026-03-28T22:00"),  # at midnight
    ("Asia/Beirut", "2026-10-24T21:00"),
    ("America/Sao_Paulo", "2018-11-04T03:00"),
    ("Pacific/Apia", "2011-12-30T10:00"),  # by a day
    ("Asia/Gaza", "2040-10-20T00:00"),  # twice within a week
    ("Africa/Casablanca", "2026-02-15T02:00"),  # back for Ramadan
    ("Asia/Kolkata", "2026-03-29T01:00"),  # never
    ("UTC", "2026-03-29T01:00"),
]
"""Zones, and moments at which their clocks are set."""

minutes = st.sampled_from(["*", "*/15", "*/7", "0", "30", "59", "0,30", "5-10", "10-50/20"])
hours = st.sampled_from(["*", "*/2", "*/5", "0", "1", "2", "3", "23", "0,1,2,3", "22,23", "1-4"])
days = st.sampled_from([("*", "*"), ("*", "*"), ("*", "SUN"), ("L", "*"), ("1,15,29", "*"), ("*/2", "*"), ("28", "6")])


@st.composite
def crons(draw: st.DrawFn, seconds: bool = False) -> tuple[Cron, float]:
    """A timing, and a moment at which its clock is set."""
    zone, moment = draw(st.sampled_from(SET))
    day, weekday = draw(days)
    fields = [draw(minutes), draw(hours), day, "*", weekday]
    if seconds and draw(st.booleans()):
        fields.insert(0, draw(st.sampled_from(["0", "*/20", "15,45"])))
    return Cron(" ".join(fields), zone), at(moment)


def by_looking_at_the_wall(timing: Cron, after: float, until: float) -> Iterator[float]:
    """The definition, minute by minute: what the wall shows, and for fixed times what it has come to or passed over."""
    zone, day = zoneinfo.ZoneInfo(timing.zone), 86400
    shown = [
        (moment, datetime.fromtimestamp(moment, zone).replace(tzinfo=None, fold=0))
        for moment in range(int(after) - 2 * day, int(until) + 60, 60)
    ]
    low, high = min(wall for _, wall in shown), max(wall for _, wall in shown)
    matching = set(takewhile(lambda wall: wall <= high, CronSim(timing.expression, low)))
    highest = low
    for moment, wall in shown:
        passed = minutes_between(highest, wall) if timing.is_fixed_time else [wall]
        highest = max(highest, wall)
        if after < moment <= until and not matching.isdisjoint(passed):
            yield float(moment)


def minutes_between(low: datetime, high: datetime) -> list[datetime]:
    return [low + timedelta(minutes=1 + number) for number in range((high - low) // timedelta(minutes=1))]


@given(crons(), st.integers(-1500, 1500), st.integers(1, 2500))
def test_the_ticks_are_those_that_the_wall_shows(given: tuple[Cron, float], shift: int, length: int):
    timing, moment = given
    after = moment + 60 * shift
    until = after + 60 * length
    assert timing.list_ticks(after, until) == list(by_looking_at_the_wall(timing, after, until))


@given(crons(), st.floats(-200_000, 200_000))
def test_it_is_what_the_library_itself_says_where_clocks_are_set_at_night(given: tuple[Cron, float], shift: float):
    timing, moment = given
    if timing.zone not in ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC"):
        return
    after = moment + shift
    theirs = CronSim(timing.expression, datetime.fromtimestamp(after, zoneinfo.ZoneInfo(timing.zone)))
    expected = [tick for tick in (next(theirs).timestamp() for _ in range(200)) if tick > after]
    assert timing.list_ticks(after, expected[-1]) == expected


intervals = st.builds(Interval, st.integers(1, 10**6), st.integers(0, 4 * 10**9))
timings = crons(seconds=True) | st.tuples(intervals, st.floats(0, 4 * 10**9))


@given(
    timings,
    st.lists(st.floats(-300_000, 300_000) | st.integers(-12, 12).map(lambda n: 900.0 * n), min_size=2, max_size=6),
)
def test_the_ticks_are_the_same_wherever_one_begins(given: tuple[Timing, float], shifts: list[float]):
    timing, moment = given
    cuts = sorted(moment + shift for shift in shifts)
    whole = timing.list_ticks(cuts[0], cuts[-1], 3000)
    assert all(earlier < later for earlier, later in pairwise(whole))
    assert all(cuts[0] < tick <= cuts[-1] and tick == int(tick) for tick in whole)
    if len(whole) == 3000:
        return
    assert [tick for low, high in pairwise(cuts) for tick in timing.list_ticks(low, high)] == whole
    assert list(timing.iter_newest_first(cuts[0], cuts[-1]))[::-1] == whole
    one_by_one, now = list[float](), cuts[0]
    while (now := timing.get_next_tick(now)) <= cuts[-1]:
        one_by_one.append(now)
    assert one_by_one == whole
    assert timing.list_ticks(cuts[0], cuts[-1], 3) == whole[:3]


@given(crons(seconds=True), st.integers(0, 12_000), st.integers(0, 12_000))
def test_around_a_change_the_ticks_are_the_same_in_both_directions(given: tuple[Cron, float], before: int, behind: int):
    timing, moment = given
    ticks = timing.list_ticks(moment - before, moment + behind)
    assert list(timing.iter_newest_first(moment - before, moment + behind)) == ticks[::-1]


@pytest.mark.parametrize("zone", [zone for zone, _ in SET])
def test_every_minute_of_a_day_is_found_in_both_directions(zone: str):
    for moment in (at(moment) for changing, moment in SET if changing == zone):
        every_minute = [moment + 60.0 * minute for minute in range(-719, 721)]
        assert Cron("* * * * *", zone).list_ticks(moment - 43200, moment + 43200) == every_minute
        assert list(Cron("* * * * *", zone).iter_newest_first(moment - 43200, moment + 43200)) == every_minute[::-1]


@pytest.mark.parametrize("text", ["0 0 * 2 MON#5", "*/30 0 29 2 * in America/New_York", "15 1 29 2 * in Asia/Beirut"])
def test_far_apart_ticks_are_the_same_in_both_directions(text: str):
    timing = Timing.parse(text)
    ticks = timing.list_ticks(0, at("2120-01-01"))
    assert len(ticks) > 3
    assert list(timing.iter_newest_first(0, at("2120-01-01"))) == ticks[::-1]


@pytest.mark.parametrize("text", ["* * * * * *", "0 0 29 2 *", "*/5 0 29 2 * in Europe/Berlin", "every 10 days"])
def test_no_moment_is_too_early_or_too_late_to_ask(text: str):
    timing = Timing.parse(text)
    assert timing.get_next_tick(-math.inf) >= 0
    assert timing.get_next_tick(at("8990-01-01")) > at("8990-01-01")
    assert timing.get_next_tick(math.inf) == math.inf
    assert timing.list_ticks(math.inf, -math.inf) == []
    assert list(timing.iter_newest_first(at("1970-01-01"), -5)) == []
    with pytest.raises(UsageError, match="NaN"):
        timing.get_next_tick(math.nan)


# Intervals


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("every 15 min", ["2026-01-01 00:15:00", "2026-01-01 00:30:00"]),
        ("every hour", ["2026-01-01 01:00:00", "2026-01-01 02:00:00"]),
        ("every day", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("every 1 h 30 min", ["2026-01-01 01:30:00", "2026-01-01 03:00:00"]),
        ("every day from 2020-05-05T06:00:00+02:00", ["2026-01-01 04:00:00", "2026-01-02 04:00:00"]),
        ("every 3 s from 2026-01-01T00:00:01Z", ["2026-01-01 00:00:01", "2026-01-01 00:00:04"]),
        ("every 10 days from 2026-03-01T06:00:00Z", ["2026-03-01 06:00:00", "2026-03-11 06:00:00"]),
    ],
)
def test_an_interval_is_counted_from_a_moment_of_its_own(text: str, ticks: list[str]):
    assert first(text, len(ticks)) == ticks


def test_an_interval_fires_at_its_start_and_not_before_it():
    timing = make_interval("1 day", datetime(2026, 3, 1, 6, tzinfo=UTC))
    assert timing.list_ticks(0, at("2026-03-01T05:59:59")) == []
    assert list(timing.iter_newest_first(0, at("2026-03-02T06:00:00"))) == [
        at("2026-03-02T06:00:00"),
        at("2026-03-01T06:00:00"),
    ]


def test_an_interval_may_be_given_in_seconds_or_as_a_timedelta():
    assert (
        make_interval(900)
        == make_interval(timedelta(minutes=15))
        == make_interval("15 min")
        == Timing.parse("every 15 minutes")
        == Interval(900)
    )
    assert make_interval(60, at("2026-01-01")) == make_interval(60, datetime(2026, 1, 1, tzinfo=UTC))


# What is due

NIGHTLY = Cron("0 2 * * *")
MONDAY = at("2026-01-05T02:00")
DAY = 86400.0


def nights(*numbers: int) -> tuple[float, ...]:
    return tuple(MONDAY + number * DAY for number in numbers)


@pytest.mark.parametrize("policy", ["skip", "last", "all"])
def test_a_tick_that_is_on_time_fires_whatever_the_policy(policy: Any):
    assert find_due_ticks(NIGHTLY, MONDAY - DAY, MONDAY - 0.1, policy) == DueTicks((), MONDAY - DAY)
    assert find_due_ticks(NIGHTLY, MONDAY - DAY, MONDAY, policy) == DueTicks((MONDAY,), MONDAY)
    assert find_due_ticks(NIGHTLY, MONDAY - DAY, MONDAY + 5, policy) == DueTicks((MONDAY,), MONDAY)
    assert find_due_ticks(NIGHTLY, MONDAY, MONDAY + 5, policy) == DueTicks((), MONDAY)


@pytest.mark.parametrize(("policy", "fires"), [("skip", ()), ("last", nights(3)), ("all", nights(1, 2, 3))])
def test_what_becomes_of_missed_ticks_is_the_policy(policy: Any, fires: tuple[float, ...]):
    assert find_due_ticks(NIGHTLY, MONDAY, MONDAY + 3.5 * DAY, policy) == DueTicks(fires, MONDAY + 3 * DAY)


@pytest.mark.parametrize(("policy", "fires"), [("skip", nights(3)), ("last", nights(3)), ("all", nights(1, 2, 3))])
def test_a_tick_on_time_makes_up_for_the_missed_ones(policy: Any, fires: tuple[float, ...]):
    assert find_due_ticks(NIGHTLY, MONDAY, MONDAY + 3 * DAY + 1, policy) == DueTicks(fires, MONDAY + 3 * DAY)


def test_by_default_only_the_last_missed_tick_fires():
    assert find_due_ticks(NIGHTLY, MONDAY, MONDAY + 3.5 * DAY).ticks == nights(3)


def test_several_ticks_may_be_on_time():
    seconds = Cron("* * * * * *")
    assert find_due_ticks(seconds, MONDAY, MONDAY + 3.2).ticks == (MONDAY + 1, MONDAY + 2, MONDAY + 3)
    assert find_due_ticks(seconds, MONDAY, MONDAY + 3.2, grace_s=1.5).ticks == (MONDAY + 2, MONDAY + 3)


def test_of_more_than_may_fire_at_once_the_newest_do():
    assert find_due_ticks(NIGHTLY, MONDAY, MONDAY + 30.5 * DAY, "all", 2) == DueTicks(nights(29, 30), MONDAY + 30 * DAY)


def test_years_of_missed_seconds_are_not_walked_through():
    seconds = Cron("* * * * * *", "Europe/Berlin")
    now = MONDAY + 50 * 366 * DAY
    assert find_due_ticks(seconds, MONDAY, now, "all", 3) == DueTicks((now - 2, now - 1, now), now)
    assert find_due_ticks(Interval(1), MONDAY, now, "all", 3) == DueTicks((now - 2, now - 1, now), now)


@given(
    timings,
    st.floats(-300_000, 300_000),
    st.floats(-1000, 300_000),
    st.sampled_from(["skip", "last", "all"]),
    st.integers(1, 30),
    st.floats(0, 10_000),
)
def test_what_was_due_is_not_due_again(
    given: tuple[Timing, float], shift: float, passed: float, policy: Any, most: int, grace: float
):
    timing, moment = given
    fired_up_to = moment + shift
    now = fired_up_to + passed
    ticks, settled = find_due_ticks(timing, fired_up_to, now, policy, most, grace_s=grace)
    assert len(ticks) <= most
    assert all(earlier < later for earlier, later in pairwise(ticks))
    assert all(fired_up_to < tick <= settled <= now for tick in ticks)
    assert settled == max([fired_up_to, *timing.iter_newest_first(fired_up_to, now)][:2])
    assert find_due_ticks(timing, settled, now, policy, most, grace_s=grace) == DueTicks((), settled)
    assert find_due_ticks(timing, settled, now - 10, policy, most, grace_s=grace) == DueTicks((), settled)


@given(timings, st.lists(st.floats(0, 30), max_size=50))
def test_who_looks_often_enough_fires_every_tick_once_under_every_policy(
    given: tuple[Timing, float], gaps: list[float]
):
    timing, start = given
    for policy in ("skip", "last", "all"):
        now = settled = start
        fired = list[float]()
        for gap in gaps:
            now += gap
            ticks, settled = find_due_ticks(timing, settled, now, policy)
            fired.extend(ticks)
        assert fired == timing.list_ticks(start, now)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"catch_up": "newest"}, "may be left out \\('skip'\\)"), ({"max_ticks": 0}, "at least one tick")],
)
def test_invalid_arguments_of_find_due_ticks(change: dict[str, Any], words: str):
    with pytest.raises(UsageError, match=words):
        find_due_ticks(NIGHTLY, MONDAY, MONDAY + DAY, **change)


# The id of a tick


def test_the_id_of_a_tick_names_the_schedule_and_the_moment():
    assert make_tick_id("nightly", at("2026-11-15T02:00:00")) == "nightly@2026-11-15T02:00:00Z"


@given(st.text(min_size=1), st.lists(st.integers(0, 2 * 10**11), min_size=2, unique=True))
def test_ids_are_as_many_as_ticks_and_sort_as_they_do(name: str, ticks: list[int]):
    ids = [make_tick_id(name, float(tick)) for tick in sorted(ticks)]
    assert ids == sorted(set(ids))
    assert [at(one.rpartition("@")[2]) for one in ids] == sorted(ticks)


def test_the_two_hours_of_one_name_have_two_ids():
    begin = at("2026-10-25")
    ids = [
        make_tick_id("often", tick)
        for tick in Cron("0 * * * *", "Europe/Berlin").list_ticks(begin - 1, begin + 2 * 3600)
    ]
    assert ids == ["often@2026-10-25T00:00:00Z", "often@2026-10-25T01:00:00Z", "often@2026-10-25T02:00:00Z"]


@pytest.mark.parametrize(("name", "tick", "words"), [("", 1.0, "needs a name"), ("n", 1.5, "no whole second")])
def test_what_has_no_id(name: str, tick: float, words: str):
    with pytest.raises(UsageError, match=words):
        make_tick_id(name, tick)


# How a timing is written


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("0 2 * * *", "0 2 * * *"),
        ("  0  2 * *\tmon-fri ", "0 2 * * MON-FRI"),
        ("@Daily", "@daily"),
        ("@weekly IN Europe/Berlin", "@weekly in Europe/Berlin"),
        ("0 2 l * * in UTC", "0 2 L * *"),
        ("*/10 * * * * * in America/Argentina/Buenos_Aires", "*/10 * * * * * in America/Argentina/Buenos_Aires"),
        ("every 60 minutes", "every hour"),
        ("EVERY 90s", "every 90 s"),
        ("every 2 weeks from 2026-01-05T07:00:00+01:00", "every 2 weeks from 2026-01-05T06:00:00Z"),
    ],
)
def test_a_timing_has_one_text_and_is_read_back_from_it(text: str, again: str):
    timing = Timing.parse(text)
    assert str(timing) == again
    assert Timing.parse(again) == timing


@given(timings)
def test_every_timing_is_read_back_from_its_text(given: tuple[Timing, float]):
    assert Timing.parse(str(given[0])) == given[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has 0 fields. It needs five, minute hour day month weekday, as in '30 2 * * MON-FRI'"),
        ("* * * *", "has 4 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("0 2 * * * Europe/Berlin", "A time zone stands behind the word 'in', as in '0 2 * * * in Europe/Berlin'"),
        ("15 min", "For an interval write 'every 15 min'"),
        ("60 * * * *", "the minute is '60'. Allowed are 0 to 59"),
        ("*/0 * * * *", "the minute is '*/0'"),
        ("61 * * * * *", "the second is '61'"),
        ("0 24 * * *", "the hour is '24'. Allowed are 0 to 23"),
        ("0 0 0 * *", "the day of the month is '0'. Allowed are 1 to 31, L for the last day"),
        ("0 0 * 13 *", "the month is '13'. Allowed are 1 to 12, or JAN to DEC"),
        ("0 0 * JANUARY *", "An example: JAN-MAR"),
        ("0 0 * * 8", "the day of the week is '8'. Allowed are 0 to 7 (0 and 7 are Sunday)"),
        ("0 0 * * FRI-MON", "a range from the lower to the higher"),
        ("0 0 * * MON#6", "MON#1 for the first"),
        ("0 ² * * *", "the hour is '²'"),
        ("0 0 30 2 *", "there is no such day in those months, so it would never fire"),
        ("0 0 */20 * 1L", "would never fire"),
        ("@reboot", "There are: @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly"),
        ("every", "every '' is not a duration: use seconds, a timedelta, or text such as '15 min'"),
        ("every 0.5 s", "a whole number of seconds"),
        ("every blue moon", "every 'blue moon' is not a duration"),
        ("every month", "for those, use a cron expression such as '0 0 1 * *'"),
        ("every day in Europe/Berlin", "For a time of day use a cron expression, as in '0 6 * * * in Europe/Berlin'"),
        ("every day from tomorrow", "as in 2026-01-01T06:00:00Z"),
        ("every day from 2026-01-01T06:00", "in which time zone? Say it, as in '2026-01-01T06:00:00Z' for UTC"),
        ("every day from 2026-01-01T06:00:00.5Z", "a whole second"),
        ("every day from 1969-01-01T06:00:00Z", "after 1970"),
    ],
)
def test_an_invalid_timing_is_refused_with_an_example(text: str, words: str):
    with pytest.raises(UsageError) as raised:
        Timing.parse(text)
    assert words in str(raised.value)


@given(st.text(alphabet="0123456789*/,-LW#@ MONJAFEBevryinfom:TZ.", max_size=30) | st.text(max_size=20))
def test_any_text_is_a_timing_or_a_mistake_of_its_writer(text: str):
    try:
        timing = Timing.parse(text)
    except UsageError:
        return
    assert timing.get_next_tick(0) > 0


def test_an_interval_of_no_time_is_refused():
    with pytest.raises(UsageError, match="the shortest is one second"):
        Interval(0)


# Time zones


@pytest.mark.parametrize(
    ("zone", "words"),
    [
        ("Europe/Berln", "Did you mean 'Europe/Berlin'?"),
        ("New York", "Did you mean 'America/New_York'?"),
        ("Mars/Olympus", "Names are like 'Europe/Berlin', or 'UTC'"),
        ("", "is not known"),
        ("Europe", "is not known"),
        ("/etc/passwd", "is not known"),
        ("../UTC", "is not known"),
        ("localtime", "is not known"),
        ("right/Europe/Berlin", "is not known"),
        ("\0", "is not known"),
        ("x" * 5000, "is not known"),
        ("Zürich\udc80", "is not known"),
    ],
)
def test_a_zone_that_is_not_known_on_every_machine_is_refused(zone: str, words: str):
    with pytest.raises(UsageError) as raised:
        Cron("0 2 * * *", zone)
    assert words in str(raised.value)


@pytest.fixture
def no_zone_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ["tzdata", *(name for name in sys.modules if name.startswith("tzdata."))]:
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.reset_tzpath([])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()


@pytest.mark.usefixtures("no_zone_data")
def test_without_time_zone_data_the_error_says_what_to_install():
    with pytest.raises(UsageError, match=r"has no time zone data.*pip install tzdata"):
        Cron("0 2 * * *", "Europe/Berlin")
    assert Cron("0 2 * * *").get_next_tick(MONDAY) == MONDAY + DAY

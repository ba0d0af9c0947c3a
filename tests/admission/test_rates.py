"""Rates: how they are written, that they are kept in every window, what is owed, and what is stored."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.admission.durations import duration_to_seconds, format_duration
from holdfast.admission.rates import SLOTS_PER_WINDOW, Rate, RateState, TakeResult, Unit
from holdfast.errors import UsageError

START = 1_763_000_000.0
"""A time as large as those of today, where floats are coarse."""


# How a rate is written


@pytest.mark.parametrize(
    ("text", "most", "window", "unit", "again"),
    [
        ("100/min", 100, 60, "calls", "100/min"),
        ("5/s", 5, 1, "calls", "5/s"),
        ("1000/hour", 1000, 3600, "calls", "1000/hour"),
        ("100/15min", 100, 900, "calls", "100/15 min"),
        ("10000 tokens/min", 10_000, 60, "tokens", "10000 tokens/min"),
        ("10,000 Tokens per minute", 10_000, 60, "tokens", "10000 tokens/min"),
        ("1_000_000 tokens / day", 1_000_000, 86_400, "tokens", "1000000 tokens/day"),
        ("1 call / 0.5 s", 1, 0.5, "calls", "1/0.5 s"),
        ("  20 calls per 1 h 30 min ", 20, 5400, "calls", "20/90 min"),
        ("3/week", 3, 604_800, "calls", "3/week"),
        ("3/60 s", 3, 60, "calls", "3/min"),
    ],
)
def test_a_rate_is_read_and_written_again(text: str, most: int, window: float, unit: Unit, again: str):
    rate = Rate.parse(text)
    assert rate == Rate(most, window, unit)
    assert str(rate) == again


@given(
    st.integers(1, 10**9),
    st.integers(1, 10**8).map(float) | st.floats(0.001, 10**6),
    st.sampled_from(["calls", "tokens"]),
)
def test_every_rate_can_be_read_back_from_its_text(most: int, window: float, unit: Any):
    rate = Rate(most, window, unit)
    assert Rate.parse(str(rate)) == rate


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("100", "say how many, and in how much time, as in '100/min'"),
        ("", "say how many"),
        ("/min", "say how many"),
        ("100/", "say how many"),
        ("100/ ", "' ' is not a duration"),
        ("-5/min", "say how many"),
        ("1.5/min", "How many is a whole number"),
        ("fast", "say how many"),
        ("5 apples/min", "'apples' cannot be counted. Give 'calls' or 'tokens'"),
        ("5/fortnight", "rate '5/fortnight': 'fortnight' is not a duration"),
        ("5/month", "Months differ in length"),
        ("5/15", "'15' is not a duration"),
        ("5/0 s", "longer than zero and shorter than a thousand years"),
        ("0/min", "at least 1 must be allowed"),
    ],
)
def test_an_invalid_rate_is_refused_with_an_example(text: str, words: str):
    with pytest.raises(UsageError) as raised:
        Rate.parse(text)
    assert words in str(raised.value)
    assert not text.strip("/ 0") or text in str(raised.value) or text.startswith("0")


@pytest.mark.parametrize("window", [0.0, -1.0, math.nan, math.inf])
def test_a_window_has_a_length(window: float):
    with pytest.raises(UsageError, match="longer than no time"):
        Rate(1, window)


# Lengths of time


@pytest.mark.parametrize(
    ("span", "seconds"),
    [
        ("15 min", 900),
        ("15m", 900),
        ("1h30min", 5400),
        ("1.5 hours", 5400),
        ("0.7 min", 42),
        ("Day", 86_400),
        ("2 weeks", 1_209_600),
        (90, 90),
        (0.25, 0.25),
        (timedelta(minutes=2), 120),
    ],
)
def test_a_length_of_time_in_many_words(span: Any, seconds: float):
    assert duration_to_seconds(span, "every") == seconds


@pytest.mark.parametrize(
    "span", [0, -1, math.nan, math.inf, timedelta(0), True, None, [], "", "min 5", "5 5 min", 1e12]
)
def test_what_is_no_length_of_time_is_refused(span: Any):
    with pytest.raises(UsageError, match="every"):
        duration_to_seconds(span, "every")


@given(st.integers(1, 10**9).map(float) | st.floats(1e-6, 10**6))
def test_every_length_of_time_can_be_read_back_from_its_words(seconds: float):
    assert duration_to_seconds(format_duration(seconds), "every") == seconds


# The bound

rates = st.builds(
    Rate,
    st.integers(1, 3) | st.integers(1, 3 * SLOTS_PER_WINDOW) | st.integers(1, 5000),
    st.sampled_from([1.0, 60.0, 7.3]),
)


@st.composite
def demands(draw: st.DrawFn) -> tuple[Rate, list[tuple[float, int]]]:
    """A rate, and who asks for how much at what time, in order of time: in crowds, evenly, with pauses."""
    rate = draw(rates)
    gaps = st.sampled_from([0.0, rate.window_s / SLOTS_PER_WINDOW, rate.window_s / 2, rate.window_s]) | st.floats(
        0, 1.5 * rate.window_s
    )
    gaps |= st.floats(0, 2 * rate.window_s / rate.max_count)
    slot = rate.window_s / SLOTS_PER_WINDOW
    gaps |= st.sampled_from([0.3 * slot, 0.6 * slot, rate.window_s - 0.6 * slot, rate.window_s - 0.3 * slot])
    amounts = st.just(1) | st.integers(1, rate.max_count) | st.sampled_from([rate.max_count, (rate.max_count + 1) // 2])
    time, asked = START + draw(st.floats(0, 100)), list[tuple[float, int]]()
    for gap, amount in draw(st.lists(st.tuples(gaps, amounts), max_size=80)):
        time += gap
        asked.append((time, amount))
    return rate, asked


def taken_by(rate: Rate, asked: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    state, granted = RateState(rate), list[tuple[float, int]]()
    for time, amount in asked:
        yes, state = state.take(time, amount)
        if yes:
            granted.append((time, amount))
    return granted


def fullest_window(rate: Rate, granted: Sequence[tuple[float, int]]) -> int:
    """The most that any window holds. It suffices to look at those that begin with a start."""
    return max(
        (sum(amount for time, amount in granted if begin <= time < begin + rate.window_s) for begin, _ in granted),
        default=0,
    )


@given(demands())
def test_never_more_than_the_rate_in_any_window(demand: tuple[Rate, list[tuple[float, int]]]):
    rate, asked = demand
    assert fullest_window(rate, taken_by(rate, asked)) <= rate.max_count


@given(demands())
def test_what_fits_is_granted_at_most_a_slot_late(demand: tuple[Rate, list[tuple[float, int]]]):
    """The other half of the bound: a limiter that refuses everything would keep it too."""
    rate, asked = demand
    state, granted = RateState(rate), list[tuple[float, int]]()
    for time, amount in asked:
        reach = rate.window_s + rate.slot_s + 1e-6  # floats of this size are this coarse
        recent = sum(taken for when, taken in granted if when + reach > time)
        yes, state = state.take(time, amount)
        assert yes or recent + amount > rate.max_count
        if yes:
            granted.append((time, amount))


def test_a_burst_of_the_whole_rate_is_granted_at_once_and_again_when_the_window_has_passed():
    state = RateState(Rate.parse("100/min"))
    for minute in range(5):
        for _ in range(100):
            yes, state = state.take(START + 60 * minute, 1)
            assert yes
        assert not state.take(START + 60 * minute, 1).is_granted
        assert not state.take(START + 60 * minute + 59.999, 1).is_granted


def test_the_first_of_a_slot_leaves_with_the_last_and_the_last_not_with_the_first():
    state = RateState(Rate.parse("100/min"))
    begin = START - START % 3  # a slot is three seconds
    state = state.take(begin, 1).state.take(begin + 2.9, 99).state
    assert not state.take(begin + 60, 1).is_granted
    assert not state.take(begin + 62.8, 2).is_granted
    assert state.get_next_grant_at(1) == state.get_next_grant_at(100) == begin + 62.9


def test_a_full_bucket_does_not_let_twice_the_rate_pass():
    """What a token bucket of this capacity would do: idle, a burst, and again all that flowed in since."""
    rate = Rate.parse("100/min")
    asked = [(START + 0.1 * tick, 1) for tick in range(1200)]
    assert fullest_window(rate, taken_by(rate, asked)) == 100


@pytest.mark.parametrize("most", [1, 7, SLOTS_PER_WINDOW])
def test_a_small_rate_is_exact_and_loses_nothing(most: int):
    rate = Rate(most, 60.0)
    asked = [(START + 60.0 / most * start, 1) for start in range(40 * most)]
    assert len(taken_by(rate, asked)) >= len(asked) - most  # less than a window lost, by rounding, in forty


def test_a_large_rate_loses_at_most_a_slot_in_a_window_when_starts_come_evenly():
    rate = Rate(1000, 60.0)
    asked = [(START + 0.03 * start, 1) for start in range(200_000)]  # twice the rate, for a hundred windows
    assert len(taken_by(rate, asked)) >= 100 * 1000 * SLOTS_PER_WINDOW / (SLOTS_PER_WINDOW + 1)


# When


@given(demands(), st.data())
def test_the_next_grant_is_possible_then_and_not_earlier(demand: tuple[Rate, list[tuple[float, int]]], data: Any):
    rate, asked = demand
    state = RateState(rate)
    for time, amount in asked:
        state = state.take(time, amount).state
        if data.draw(st.integers(0, 9)) == 0:
            state = state.charge(time, data.draw(st.integers(0, 3 * rate.max_count)))
    wanted = data.draw(st.integers(0, rate.max_count))
    at, now = state.get_next_grant_at(wanted), asked[-1][0] if asked else START
    assert state.take(max(at, now), wanted).is_granted
    if at > now:
        assert not state.take(max(now, math.nextafter(at, 0)), wanted).is_granted
        assert not state.take(max(now, at - 0.001), wanted).is_granted


def test_an_unused_rate_is_possible_at_once():
    assert RateState(Rate.parse("5/s")).get_next_grant_at(5) == 0


def test_the_next_is_possible_when_enough_has_left_the_window():
    state = RateState(Rate.parse("3/min"))
    for second in (0, 10, 20):
        state = state.take(START + second).state
    assert [state.get_next_grant_at(amount) - START for amount in (1, 2, 3)] == [60, 70, 80]


@pytest.mark.parametrize("ask", [lambda state: state.take(START, 11), lambda state: state.get_next_grant_at(11)])
def test_more_than_the_whole_rate_at_once_is_an_error_and_no_endless_wait(ask: Any):
    with pytest.raises(UsageError, match=r"rate 10/s: 11 at once would never be allowed.*raise the rate"):
        ask(RateState(Rate.parse("10/s")))


@pytest.mark.parametrize(
    "ask", [lambda s: s.take(START, -1), lambda s: s.get_next_grant_at(-1), lambda s: s.charge(START, -1)]
)
def test_nothing_is_given_back(ask: Any):
    with pytest.raises(UsageError, match="rate 10/s: "):
        ask(RateState(Rate.parse("10/s")))


# Charges and debt


def test_what_is_charged_counts_like_what_is_taken():
    state = RateState(Rate.parse("100 tokens/min")).charge(START, 60)
    assert not state.take(START + 1, 41).is_granted
    assert state.take(START + 1, 40).is_granted
    assert state.take(START + 60, 100).is_granted


def test_a_call_of_unknown_usage_may_begin_while_there_is_room_for_a_token():
    state = RateState(Rate.parse("100 tokens/min")).charge(START, 99)
    yes, same = state.take(START + 1, 0)
    assert yes
    assert same.to_numbers() == state.to_numbers()
    full = state.charge(START + 1, 1)
    assert full.debt == 0
    assert not full.take(START + 2, 0).is_granted
    assert full.get_next_grant_at(0) == START + 60


def test_three_windows_worth_of_tokens_stop_everything_for_three_windows():
    state = RateState(Rate.parse("100 tokens/min")).charge(START, 300)
    assert state.debt == 200
    assert [state.take(START + second, 0).is_granted for second in (0, 59, 60, 119, 120, 179, 180)] == 6 * [False] + [
        True
    ]
    assert state.get_next_grant_at(0) == START + 180
    assert state.take(START + 180, 100).is_granted


def test_debt_is_paid_with_the_room_as_it_becomes_free():
    state = RateState(Rate.parse("100 tokens/min")).charge(START, 60).charge(START + 30, 70)
    assert state.debt == 30
    later = state.charge(START + 60, 0)
    assert (later.debt, later.entries) == (0, ((START + 30, 40), (START + 60, 30)))
    assert later.take(START + 60, 30).is_granted
    assert not later.take(START + 60, 31).is_granted


@given(demands())
def test_what_is_charged_cannot_pass_the_rate_in_the_long_run(demand: tuple[Rate, list[tuple[float, int]]]):
    """Calls of unknown usage: each begins if it may, and is charged up to three windows' worth at its end."""
    rate, asked = demand
    state, used, first = RateState(rate), 0, asked[0][0] if asked else START
    for time, amount in asked:
        yes, state = state.take(time, 0)
        if yes:
            windows = math.floor((time - first + 1e-6) / rate.window_s) + 1
            assert used < windows * rate.max_count
            state = state.charge(time, 3 * amount)
            used += 3 * amount
    assert state.debt <= 3 * rate.max_count


@given(demands(), st.integers(1, 10**6))
def test_in_debt_nothing_is_granted_and_every_window_of_what_was_paid_is_within_the_rate(
    demand: tuple[Rate, list[tuple[float, int]]], owed: int
):
    rate, asked = demand
    state = RateState(rate).charge(START, owed)
    for time, amount in asked:
        settled = state.charge(time, 0)
        assert sum(entry.amount for entry in settled.entries) <= rate.max_count
        yes, state = state.take(time, amount)
        assert not (yes and settled.debt)
    assert state.debt <= max(0, owed - rate.max_count)


@given(demands(), st.integers(0, 10**5), st.floats(0, 1), st.floats(0, 1))
@example((Rate(22, 60.0), [(START, 11), (START + 58, 1)]), 32, 1.0, 0.25)  # the oldest is paid in the newest's slot
def test_looking_at_it_in_between_changes_nothing(
    demand: tuple[Rate, list[tuple[float, int]]], owed: int, one: float, other: float
):
    rate = Rate(
        demand[0].max_count, float(math.ceil(demand[0].window_s))
    )  # of times that floats can tell, or it is nearly so
    state, start = RateState(rate), START
    for time, amount in demand[1]:
        start = round_time(time)
        state = state.take(start, amount).state
    state = state.charge(start, owed)
    free = state.get_next_grant_at(rate.max_count)
    early, late = sorted(round_time(start + part * max(0.0, free - start)) for part in (one, other))
    assert state.charge(early, 0).charge(late, 0) == state.charge(late, 0)


def round_time(time: float) -> float:
    """The time in 64ths of a second, with which floats of this size reckon exactly."""
    return round(time * 64) / 64


def test_a_debt_of_millions_of_windows_is_settled_without_walking_through_them():
    state = RateState(Rate.parse("1 tokens/s")).charge(START, 10**7)
    assert state.get_next_grant_at() == START + 10**7
    assert state.charge(START + 10**6, 0).debt == 10**7 - 10**6 - 1
    assert state.take(START + 10**7).is_granted


# What is kept


def test_a_refusal_leaves_nothing_to_write():
    state = RateState(Rate.parse("1/min")).take(START).state
    refused = state.take(START + 30)
    assert refused == TakeResult(False, state)
    assert refused.state is state


@given(demands(), st.data())
def test_the_state_is_small_and_survives_json_at_every_moment(demand: tuple[Rate, list[tuple[float, int]]], data: Any):
    rate, asked = demand
    kept, loaded = RateState(rate), RateState.from_numbers(rate, ())
    for time, amount in asked:
        if data.draw(st.booleans()):
            kept, loaded = kept.take(time, amount).state, loaded.take(time, amount).state
        else:
            kept, loaded = kept.charge(time, amount), loaded.charge(time, amount)
        loaded = RateState.from_numbers(rate, json.loads(json.dumps(loaded.to_numbers())))
        assert loaded == kept
        assert len(kept.entries) <= SLOTS_PER_WINDOW + 1
        assert len(json.dumps(kept.to_numbers())) < 1000


@pytest.mark.parametrize("most", [SLOTS_PER_WINDOW, SLOTS_PER_WINDOW + 1, 2 * SLOTS_PER_WINDOW, 3 * SLOTS_PER_WINDOW])
def test_the_state_is_as_small_when_every_start_comes_alone(most: int):
    state = RateState(Rate(most, 60.0))
    for start in range(4 * most):
        state = state.take(START + start * 60.0 / most).state
        assert len(state.entries) <= SLOTS_PER_WINDOW + 1


def test_the_state_of_a_large_rate_under_full_load_is_a_few_hundred_bytes():
    state = RateState(Rate.parse("100000/min"))
    for start in range(30_000):
        state = state.take(START + 0.01 * start).state
    assert SLOTS_PER_WINDOW <= len(state.entries) <= SLOTS_PER_WINDOW + 1
    assert len(json.dumps(state.to_numbers())) < 600


@given(demands(), rates)
def test_a_rate_may_be_changed_while_it_is_in_use(demand: tuple[Rate, list[tuple[float, int]]], new: Rate):
    rate, asked = demand
    state = RateState(rate)
    for time, amount in asked:
        state = state.take(time, amount).state
    now = asked[-1][0] if asked else START
    state = RateState.from_numbers(new, state.charge(now, 2 * rate.max_count).to_numbers())
    at = max(now, state.get_next_grant_at())
    granted, state = state.take(at + 1e-3)
    assert granted
    assert state.debt == 0
    total = sum(amount for _, amount in state.entries)
    assert total <= new.max_count
    assert list(state.entries) == sorted(state.entries)


def test_a_raised_rate_pays_a_debt_at_once():
    state = RateState(Rate(10, 60.0, "tokens")).charge(START, 15)
    raised = RateState.from_numbers(Rate(100, 60.0, "tokens"), state.to_numbers())
    assert raised.get_next_grant_at(85) == 0
    assert raised.take(START, 85).is_granted
    assert not raised.take(START, 86).is_granted


# Clocks that disagree


@given(st.integers(1, 100), st.lists(st.tuples(st.floats(0, 10**6), st.integers(0, 50)), max_size=60))
def test_a_clock_that_is_set_back_stops_a_rate_for_a_window_at_most(most: int, asked: list[tuple[float, int]]):
    rate = Rate(most, 60.0)
    state = RateState(rate)
    for time, amount in asked:
        state = state.take(START + time, min(amount, most)).state
        assert len(state.entries) <= SLOTS_PER_WINDOW + 1
        assert [entry.time for entry in state.entries] == sorted(entry.time for entry in state.entries)
    now = START + 5
    taken = state.take(now).state
    first = state.charge(now, 0) if taken is state else taken
    assert first.get_next_grant_at() <= now + 60
    assert first.take(now + 60, most - 1 if taken is not state else most).is_granted


def test_two_clocks_that_differ_by_a_second_make_a_window_at_most_a_second_short():
    state = RateState(Rate.parse("2/min"))
    state = state.take(START + 1).state  # by a clock that is a second ahead
    state = state.take(START + 0.5).state
    assert not state.take(START + 60.4).is_granted
    assert state.take(START + 61).is_granted

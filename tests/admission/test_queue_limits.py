"""Queues: how limits are written, that a gate keeps them at every moment, and whose turn it is."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.admission.queue_limits import (
    Admission,
    PerKey,
    Queue,
    QueueAdmission,
    QueueLimits,
    RateUsage,
    compute_next_turn,
    parse_limits,
)
from holdfast.admission.rates import Rate
from holdfast.errors import UsageError

START = 1_763_000_000.0

# How limits are written


def test_limits_are_described_in_words():
    queue = Queue(
        "llm", concurrency=10, rate=["100/min", "50000 tokens/min"], per_key=PerKey(concurrency=2, rate="5/s")
    )
    assert queue.limits.describe() == "10 at once, 100/min, 50000 tokens/min; each key: 2 at once, 5/s"
    assert queue.limits.has_token_rate
    assert queue.limits.has_key_limits
    assert Queue("llm").limits == QueueLimits()
    assert QueueLimits().describe() == "no limits"
    assert "test_queue_limits.py:" in queue.source_location


@pytest.mark.parametrize(
    ("per_key", "concurrency", "rates"),
    [(3, 3, ()), ("5/s", None, ("5/s",)), (["5/s", "9/min"], None, ("5/s", "9/min")), (PerKey(concurrency=1), 1, ())],
)
def test_what_each_key_may_is_a_number_a_rate_or_both(per_key: Any, concurrency: int | None, rates: tuple[str, ...]):
    limits = Queue("llm", per_key=per_key).limits
    assert (limits.key_concurrency, tuple(map(str, limits.key_rates))) == (concurrency, rates)


_RATES = st.lists(
    st.builds(Rate, st.integers(1, 10**6), st.sampled_from([1.0, 60.0, 3600.0]), st.sampled_from(["calls", "tokens"])),
    max_size=3,
    unique_by=lambda rate: (rate.unit, rate.window_s),
).map(tuple)
_MOST = st.none() | st.integers(1, 1000)


@given(st.builds(QueueLimits, _MOST, _RATES, _MOST, _RATES))
def test_limits_survive_their_stored_form(limits: QueueLimits):
    assert QueueLimits.from_json(limits.to_json()) == limits


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Queue(""), "a queue's name is a text of 1 to 200 printable characters"),
        (lambda: Queue("a\nb"), "printable"),
        (lambda: Queue("x" * 201), "1 to 200"),
        (lambda: Queue(7), "queue 7: a queue's name is a text"),  # type: ignore[arg-type]
        (lambda: Queue("llm", concurrency=0), "Queue('llm'): concurrency=0 must be a whole number, 1 or more. To let"),
        (lambda: Queue("llm", concurrency=True), "concurrency=True must be a whole number"),
        (lambda: Queue("llm", concurrency=2.5), "concurrency=2.5 must be a whole number"),  # type: ignore[arg-type]
        (lambda: Queue("llm", rate="often"), "Queue('llm'): rate 'often': say how many, and in how much time"),
        (lambda: Queue("llm", rate="100 cups/min"), "Queue('llm'): rate '100 cups/min': 'cups' cannot be counted"),
        (lambda: Queue("llm", rate=5), "Queue('llm'): rate=5: give a text such as '100/min'"),  # type: ignore[arg-type]
        (lambda: Queue("llm", rate=[5]), "Queue('llm'): rate=5: give a text such as '100/min'"),  # type: ignore[list-item]
        (lambda: Queue("llm", rate=[]), "Queue('llm'): rate=[]: give a text such as '100/min'"),
        (lambda: Queue("llm", rate=["5/min", "9/60 s"]), "limits the same twice: give one rate for each time and unit"),
        (lambda: Queue("llm", per_key=0), "Queue('llm'): per_key: concurrency=0 must be a whole number"),
        (lambda: Queue("llm", per_key="x"), "Queue('llm'): per_key: rate 'x': say how many"),
        (lambda: Queue("llm", per_key=2.5), "Queue('llm'): per_key: rate=2.5: give a text"),  # type: ignore[arg-type]
        (lambda: Queue("llm", key="customer"), "key='customer' is the same for all runs. Name an input in braces"),
        (lambda: Queue("llm", key=7), "Queue('llm'): key=7 is the same for all runs"),  # type: ignore[arg-type]
        (lambda: PerKey(), "PerKey() limits nothing: give concurrency=, rate=, or both"),
        (lambda: PerKey(concurrency=-1), "PerKey: concurrency=-1 must be a whole number"),
        (
            lambda: parse_limits(
                concurrency=None, rate="x", key_concurrency=None, key_rate=None, error_prefix="queue 'a': "
            ),
            "queue 'a': rate 'x': say how many",
        ),
    ],
)
def test_a_limit_that_cannot_be_meant_is_an_error_that_says_what_to_give(make: Any, words: str):
    with pytest.raises(UsageError) as caught:
        make()
    assert words in str(caught.value)


# What a gate lets through


class _Fleet:
    """Whoever opens the gates of one queue, and writes down how they were left, as a store does."""

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.now = START
        self.running: list[str] = []
        self.parked: list[str] = []
        self.begun: list[tuple[float, str]] = []
        self.used: RateUsage = {}
        self.used_by_key: dict[str, RateUsage] = {}

    def gate(self) -> QueueAdmission:
        return QueueAdmission(
            self.limits,
            self.now,
            running_by_key=Counter(self.running),
            rate_usage=self.used,
            rate_usage_by_key=self.used_by_key,
        )

    def keep(self, gate: QueueAdmission, key: str) -> None:
        self.used = json.loads(json.dumps(gate.rate_usage))
        self.used_by_key[key] = json.loads(json.dumps(gate.get_key_rate_usage(key)))

    def take(self, key: str, *, begun: bool) -> Admission:
        gate = self.gate()
        answer = gate.decide(key, has_started=begun)
        if answer is Admission.ADMITTED:
            gate.admit(key, has_started=begun)
            self.keep(gate, key)
            self.running.append(key)
            if not begun:
                self.begun.append((self.now, key))
        return answer

    def max_started(self, window: float, key: str | None = None) -> int:
        """The most that have begun in any window, wherever that begins."""
        times = [at for at, one in self.begun if key is None or one == key]
        return max((sum(begin <= at < begin + window for at in times) for begin in times), default=0)


_LIMITS = st.builds(
    QueueLimits,
    st.none() | st.integers(1, 4),
    st.sampled_from([(), (Rate(3, 10.0),), (Rate(3, 10.0), Rate(8, 60.0))]),
    st.none() | st.integers(1, 3),
    st.sampled_from([(), (Rate(2, 10.0),)]),
)
_EVENTS = st.lists(
    st.tuples(st.just("take"), st.sampled_from("abc"))
    | st.tuples(st.just("end"), st.integers(0, 9))
    | st.tuples(st.just("park"), st.integers(0, 9))
    | st.tuples(st.just("wake"), st.integers(0, 9))
    | st.tuples(st.just("wait"), st.sampled_from([0.5, 1.0, 4.0, 9.9, 30.0])),
    max_size=60,
)


@given(_LIMITS, _EVENTS)
def test_a_gate_never_lets_more_pass_than_its_limits_at_any_time(limits: QueueLimits, events: list[tuple[str, Any]]):
    fleet = _Fleet(limits)
    for what, value in events:
        if what == "take":
            fleet.take(value, begun=False)
        elif what == "wait":
            fleet.now += value
        elif what == "wake" and fleet.parked:
            key = fleet.parked[value % len(fleet.parked)]
            if fleet.take(key, begun=True) is Admission.ADMITTED:
                fleet.parked.remove(key)
        elif what in ("end", "park") and fleet.running:
            key = fleet.running.pop(value % len(fleet.running))
            fleet.parked += [key] * (what == "park")
        assert limits.concurrency is None or len(fleet.running) <= limits.concurrency
        assert limits.key_concurrency is None or max(Counter(fleet.running).values(), default=0) <= (
            limits.key_concurrency
        )
    for rate in limits.rates:
        assert fleet.max_started(rate.window_s) <= rate.max_count
    for rate in limits.key_rates:
        assert all(fleet.max_started(rate.window_s, key) <= rate.max_count for key in "abc")


@given(_LIMITS, st.lists(st.sampled_from("abc"), min_size=1, max_size=30))
def test_a_gate_refuses_only_while_a_limit_is_reached(limits: QueueLimits, keys: list[str]):
    fleet = _Fleet(limits)
    for key in keys:
        answer = fleet.take(key, begun=False)
        by_key = Counter(one for _, one in fleet.begun)
        is_full = limits.concurrency is not None and len(fleet.running) >= limits.concurrency
        is_fast = any(len(fleet.begun) >= rate.max_count for rate in limits.rates)
        key_is_full = limits.key_concurrency is not None and fleet.running.count(key) >= limits.key_concurrency
        key_is_fast = any(by_key[key] >= rate.max_count for rate in limits.key_rates)
        if answer is Admission.QUEUE_LIMITED:
            assert is_full or is_fast
        elif answer is Admission.KEY_LIMITED:
            assert key_is_full or key_is_fast


def test_a_started_run_needs_a_slot_but_does_not_count_for_the_rate():
    fleet = _Fleet(QueueLimits(concurrency=1, rates=(Rate(1, 60.0),)))
    assert fleet.take("a", begun=False) is Admission.ADMITTED
    assert fleet.take("a", begun=True) is Admission.QUEUE_LIMITED
    fleet.running.clear()  # it parks
    assert fleet.take("b", begun=False) is Admission.QUEUE_LIMITED
    assert fleet.take("a", begun=True) is Admission.ADMITTED
    assert fleet.gate().get_next_start_at() == START + 60


def test_a_key_at_its_limits_does_not_hold_up_the_others():
    fleet = _Fleet(QueueLimits(concurrency=3, key_concurrency=1, key_rates=(Rate(1, 60.0),)))
    assert [fleet.take(key, begun=False) for key in ("a", "a", "b")] == [
        Admission.ADMITTED,
        Admission.KEY_LIMITED,
        Admission.ADMITTED,
    ]
    fleet.running.clear()
    assert fleet.gate().get_key_free_slot_count("a") == 1
    assert fleet.take("a", begun=False) is Admission.KEY_LIMITED
    assert fleet.gate().get_key_next_start_at("a") == START + 60
    assert fleet.gate().get_key_next_start_at("c") == 0
    fleet.now += 60
    assert fleet.take("a", begun=False) is Admission.ADMITTED


def test_tokens_that_were_used_are_paid_off_before_anything_begins():
    fleet = _Fleet(QueueLimits(rates=(Rate(1000, 60.0, "tokens"),), key_rates=(Rate(500, 60.0, "tokens"),)))
    gate = fleet.gate()
    gate.charge_tokens("a", 600, START)
    fleet.keep(gate, "a")
    assert (
        fleet.gate().has_rate_capacity,
        fleet.gate().has_key_rate_capacity("a"),
        fleet.gate().has_key_rate_capacity("b"),
    ) == (True, False, True)
    gate = fleet.gate()
    gate.charge_tokens("b", 2400, START)
    fleet.keep(gate, "b")
    assert fleet.take("b", begun=False) is Admission.QUEUE_LIMITED
    assert fleet.take("b", begun=True) is Admission.ADMITTED  # what has begun is not stopped
    assert fleet.gate().get_next_start_at() == START + 180  # three windows' worth was used
    fleet.now = START + 180
    assert fleet.take("a", begun=False) is Admission.ADMITTED


def test_what_was_used_goes_on_when_only_how_much_is_allowed_has_changed():
    fleet = _Fleet(QueueLimits(rates=(Rate(2, 60.0),)))
    assert [fleet.take("a", begun=False) for _ in range(3)] == [
        Admission.ADMITTED,
        Admission.ADMITTED,
        Admission.QUEUE_LIMITED,
    ]
    fleet.limits = QueueLimits(rates=(Rate(3, 60.0),))
    assert [fleet.take("a", begun=False) for _ in range(2)] == [Admission.ADMITTED, Admission.QUEUE_LIMITED]
    fleet.limits = QueueLimits(rates=(Rate(1, 3600.0),))  # another time: counted anew
    assert [fleet.take("a", begun=False) for _ in range(2)] == [Admission.ADMITTED, Admission.QUEUE_LIMITED]


def test_the_usage_of_a_key_can_be_added_later():
    gate = QueueAdmission(QueueLimits(key_rates=(Rate(1, 60.0),)), START, running_by_key={}, rate_usage={})
    gate.admit("a", has_started=False)
    later = QueueAdmission(QueueLimits(key_rates=(Rate(1, 60.0),)), START + 1, running_by_key={}, rate_usage={})
    later.set_key_usage("a", gate.get_key_rate_usage("a"))
    assert not later.has_key_rate_capacity("a")


# Whose turn it is


class _Line:
    """A queue of which one run after the other begins."""

    def __init__(self) -> None:
        self.turn = 0
        self.turns: dict[str, int] = {}
        self.waiting: list[tuple[int, int, str]] = []
        self.number = 0

    def put(self, key: str) -> int:
        self.turns[key] = compute_next_turn(self.turn, self.turns.get(key))
        self.number += 1
        self.waiting.append((self.turns[key], self.number, key))
        return self.number

    def begin(self) -> tuple[int, str]:
        first = min(self.waiting)
        self.waiting.remove(first)
        self.turn, number, key = first
        return number, key


def test_a_customer_with_one_run_waits_for_one_of_each_of_the_others():
    line = _Line()
    for key in ["large"] * 1000 + ["middle"] * 50:
        line.put(key)
    for _ in range(20):
        line.begin()
    mine = line.put("small")
    begun = [line.begin() for _ in range(4)]
    assert mine in [number for number, _ in begun]
    assert Counter(key for _, key in begun[: [number for number, _ in begun].index(mine)]) <= Counter(large=1, middle=1)


def test_keys_with_a_backlog_take_turns_from_the_beginning_to_the_end():
    line = _Line()
    for key in ["a"] * 30 + ["b"] * 30 + ["c"] * 30:
        line.put(key)
    begun = Counter[str]()
    for _ in range(90):
        begun[line.begin()[1]] += 1
        assert max(begun.values()) - min(begun[key] for key in "abc") <= 1


@given(st.lists(st.sampled_from("abcd") | st.none(), max_size=120))
def test_of_each_other_key_no_more_begin_before_a_run_than_its_own_key_has_waiting_and_two(events: list[str | None]):
    """Whatever comes when: a run that is the n-th of its key waits for at most n + 1 runs of any other key."""
    line = _Line()
    ahead: dict[int, int] = {}
    passed: dict[int, Counter[str]] = defaultdict(Counter)
    key_of: dict[int, str] = {}
    for key in [*events, *[None] * len(events)]:
        if key is not None:
            own = sum(other == key for _, _, other in line.waiting)
            number = line.put(key)
            ahead[number], key_of[number] = own, key
        elif line.waiting:
            number, taken = line.begin()
            for waiting in key_of:
                passed[waiting][taken] += waiting != number
            del key_of[number]
            assert all(many <= ahead[number] + 2 for other, many in passed[number].items() if other != taken)
    assert not line.waiting

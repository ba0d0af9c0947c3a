"""Queues with limits: what they let begin, and when. Pure: what is running and what time it is are handed in.

A run waits in a queue until a worker takes it. A queue that is only a name has no limits. A ``Queue`` has some, which
hold over the whole fleet:

- ``concurrency``: so many of its runs are executed at the same time. A run that is parked (it sleeps, or waits for a
  signal, a person or another run) is not executed: it gives up its place, and gets one again when it goes on. So a run
  can wait for others of its own queue.
- ``rate``: how often its runs *begin*, or how many tokens their model calls use. Taking one up again, after a wait or a
  crash, is no new beginning. Tokens are known when they have been used: then nothing begins until they are paid off.
- ``per_key``: the same for each *key*, such as a customer, so that one of them cannot fill the queue.

**Order.** Runs that have begun go first: what was paid for is finished. Then the higher priority, then *fairness*, then
age. Fairness is between keys: each run that is put into a queue gets a ``turn`` among the runs of its priority (see
``compute_next_turn``), and the lower one goes first. A key's runs have rising turns, and those of a key that comes late
begin where the queue is now: so a customer with one run waits for one run of each of the others, and not for the ten
thousand of the one who came first.

A ``QueueAdmission`` is what a queue lets through at one moment. Whoever opens it must be the only one who does, and
must write down how it was left.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import cast

from holdfast.admission.rates import Rate, RateState
from holdfast.errors import UsageError

Rates = tuple[Rate, ...]
RateInput = str | Rate | Sequence[str | Rate]
"""A rate as users give it, or several that all count."""

MAX_NAME_LENGTH = 200


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What a queue allows; whatever is not given is not limited."""

    concurrency: int | None = None
    rates: Rates = ()
    key_concurrency: int | None = None
    """Of each key, as the next one."""
    key_rates: Rates = ()

    @property
    def has_key_limits(self) -> bool:
        """Whether keys have limits of their own."""
        return self.key_concurrency is not None or bool(self.key_rates)

    @property
    def has_token_rate(self) -> bool:
        """Whether what model calls use is charged to it."""
        return any(rate.unit == "tokens" for rate in (*self.rates, *self.key_rates))

    def describe(self) -> str:
        """As people read it: ``10 at once, 100/min; each key: 2 at once``."""
        own = _describe_limits(self.concurrency, self.rates)
        each = _describe_limits(self.key_concurrency, self.key_rates)
        return "; ".join([*([own] if own else []), *([f"each key: {each}"] if each else [])]) or "no limits"

    def to_json(self) -> str:
        """As it is kept in a column."""
        rates, key_rates = [str(rate) for rate in self.rates], [str(rate) for rate in self.key_rates]
        return json.dumps([self.concurrency, rates, self.key_concurrency, key_rates])

    @classmethod
    def from_json(cls, text: str) -> QueueLimits:
        """What ``dump`` gave."""
        concurrency, rates, key_concurrency, key_rates = json.loads(text)
        return cls(concurrency, tuple(map(Rate.parse, rates)), key_concurrency, tuple(map(Rate.parse, key_rates)))


class PerKey:
    """Limits for each key of a queue: ``PerKey(concurrency=2, rate="10/min")``."""

    def __init__(self, *, concurrency: int | None = None, rate: RateInput | None = None) -> None:
        if concurrency is None and rate is None:
            raise UsageError("PerKey() limits nothing: give concurrency=, rate=, or both")
        self.concurrency = _validate_concurrency(concurrency, "PerKey: ")
        self.rates = _parse_rates(rate, "PerKey: ")

    def __repr__(self) -> str:
        given = [f"concurrency={self.concurrency}"] * (self.concurrency is not None)
        return f"PerKey({', '.join([*given, *([f'rate={[*map(str, self.rates)]}'] * bool(self.rates))])})"


class Queue:
    """A queue with limits that hold over the whole fleet.

    ``@workflow(queue=Queue("llm", concurrency=10, rate="100/min", per_key=2, key="{customer}"))``

    Args:
        name: what it is called: ``holdfast worker --queue llm`` serves it.
        concurrency: how many of its runs are executed at the same time.
        rate: how many of its runs begin in a time, as in ``100/min``, or how many tokens their model calls use, as in
            ``50000 tokens/min``; or a list of such, which all count.
        per_key: the same for each key: a number is a concurrency, a text a rate, ``PerKey(...)`` either or both.
        key: which of a run's inputs are its key, as a template: ``"{customer}"``. A start can also be given its own, by
            ``.options(key=...)``.
    """

    def __init__(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: RateInput | None = None,
        per_key: int | RateInput | PerKey | None = None,
        key: str | None = None,
    ) -> None:
        where = f"Queue({name!r}): "
        self.name = validate_queue_name(name)
        caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        self.source_location = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        """Where it is made, for people."""
        if key is not None and (not isinstance(key, str) or "{" not in key):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"{where}key={key!r} is the same for all runs. Name an input in braces, as in key='{{customer}}'; or "
                f"leave it out, and give starts their key: .options(key='acme')"
            )
        self.key = key
        each = _parse_per_key(per_key, where)
        self.limits = QueueLimits(
            concurrency=_validate_concurrency(concurrency, where),
            rates=_parse_rates(rate, where),
            key_concurrency=None if each is None else each.concurrency,
            key_rates=() if each is None else each.rates,
        )

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"


def validate_queue_name(name: str) -> str:
    """A name that can be a queue's. Raises ``UsageError``."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"queue {name!r:.60}: a queue's name is a text of 1 to {MAX_NAME_LENGTH} printable characters")
    return name


def parse_limits(
    *,
    concurrency: int | None,
    rate: RateInput | None,
    key_concurrency: int | None,
    key_rate: RateInput | None,
    error_prefix: str,
) -> QueueLimits:
    """Limits as people give them one by one. Raises ``UsageError``, which begins with ``error_prefix``."""
    return QueueLimits(
        _validate_concurrency(concurrency, error_prefix),
        _parse_rates(rate, error_prefix),
        _validate_concurrency(key_concurrency, error_prefix),
        _parse_rates(key_rate, error_prefix),
    )


def compute_next_turn(queue_turn: int, key_turn: int | None) -> int:
    """The turn of the next run of a key. All of it is among runs of the same priority: ``queue_turn`` is the highest
    turn of one that has begun, ``key_turn`` the last one that this key was given."""
    return queue_turn if key_turn is None else max(queue_turn, key_turn + 1)


class Admission(Enum):
    """Whether a queue lets a run through."""

    ADMITTED = "yes"
    QUEUE_LIMITED = "queue"
    """Not now: the queue is full, or its rate is used up."""
    KEY_LIMITED = "key"
    """Not now: the key is at its limits. Others may pass."""


RateUsage = Mapping[str, Sequence[float]]
"""How much of each rate is used up, as it is kept: by what is counted, and in which time."""


class QueueAdmission:
    """What a queue lets through at one moment."""

    def __init__(
        self,
        limits: QueueLimits,
        now: float,
        *,
        running_by_key: Mapping[str, int],
        rate_usage: RateUsage,
        rate_usage_by_key: Mapping[str, RateUsage] | None = None,
    ) -> None:
        """``running_by_key``: how many of its runs are executed, by key (``""`` for those without one).

        ``rate_usage_by_key`` may be completed by ``set_key_usage`` when a key comes up that it has nothing of.
        """
        self.limits = limits
        self._now = now
        self._running_by_key = Counter(running_by_key)
        self._running_count = sum(running_by_key.values())
        self._meter = _RateMeter(limits.rates, rate_usage)
        self._key_meters: dict[str, _RateMeter] = {}
        for key, numbers in (rate_usage_by_key or {}).items():
            self.set_key_usage(key, numbers)

    def set_key_usage(self, key: str, usage: RateUsage) -> None:
        """What a key has used of its rates."""
        self._key_meters[key] = _RateMeter(self.limits.key_rates, usage)

    # Asking

    @property
    def free_slot_count(self) -> int | None:
        """How many more may be executed; ``None``: any number."""
        limit = self.limits.concurrency
        return None if limit is None else max(0, limit - self._running_count)

    @property
    def has_rate_capacity(self) -> bool:
        """Whether one may begin, as far as the queue's own rates go."""
        return self._meter.has_capacity(self._now)

    def get_key_free_slot_count(self, key: str) -> int | None:
        """How many more of a key may be executed, as far as the key's own limit goes; ``None``: any number."""
        limit = self.limits.key_concurrency
        return None if limit is None else max(0, limit - self._running_by_key[key])

    def has_key_rate_capacity(self, key: str) -> bool:
        """Whether one of a key may begin, as far as the key's own rates go."""
        return self._get_key_meter(key).has_capacity(self._now)

    def decide(self, key: str, *, has_started: bool) -> Admission:
        """Whether a run may be taken now. One that ``has_started`` needs a place, and nothing of the rates."""
        if self.free_slot_count == 0 or not (has_started or self.has_rate_capacity):
            return Admission.QUEUE_LIMITED
        if self.get_key_free_slot_count(key) == 0 or not (has_started or self.has_key_rate_capacity(key)):
            return Admission.KEY_LIMITED
        return Admission.ADMITTED

    def get_next_start_at(self) -> float:
        """From when on the queue's own rates let one begin; 0: they do."""
        return self._meter.get_next_start_at()

    def get_key_next_start_at(self, key: str) -> float:
        """The same, of a key's own rates."""
        return self._get_key_meter(key).get_next_start_at()

    # Changing

    def admit(self, key: str, *, has_started: bool) -> None:
        """A run that was admitted is taken."""
        self._running_by_key[key] += 1
        self._running_count += 1
        if not has_started:
            self._meter.take_start(self._now)
            self._get_key_meter(key).take_start(self._now)

    def charge_tokens(self, key: str, tokens: int, at: float) -> None:
        """Model calls of a run of this key have used so many tokens."""
        self._meter.charge_tokens(at, tokens)
        self._get_key_meter(key).charge_tokens(at, tokens)

    # To be kept

    @property
    def rate_usage(self) -> RateUsage:
        """How much of the queue's own rates is used up now."""
        return self._meter.to_usage()

    def get_key_rate_usage(self, key: str) -> RateUsage:
        """The same, of a key's own."""
        return self._get_key_meter(key).to_usage()

    def _get_key_meter(self, key: str) -> _RateMeter:
        meter = self._key_meters.get(key)
        if meter is None:
            meter = self._key_meters[key] = _RateMeter(self.limits.key_rates, {})
        return meter


class _RateMeter:
    """How much of some rates is used up."""

    def __init__(self, rates: Rates, usage: RateUsage) -> None:
        self._states = [RateState.from_numbers(rate, usage.get(_make_rate_key(rate), ())) for rate in rates]

    def has_capacity(self, now: float) -> bool:
        return all(state.take(now, _get_start_amount(state.rate)).is_granted for state in self._states)

    def get_next_start_at(self) -> float:
        return max((state.get_next_grant_at(_get_start_amount(state.rate)) for state in self._states), default=0.0)

    def take_start(self, now: float) -> None:
        self._states = [state.take(now, _get_start_amount(state.rate)).state for state in self._states]

    def charge_tokens(self, at: float, tokens: int) -> None:
        self._states = [state.charge(at, tokens) if state.rate.unit == "tokens" else state for state in self._states]

    def to_usage(self) -> RateUsage:
        return {_make_rate_key(state.rate): state.to_numbers() for state in self._states}


def _make_rate_key(rate: Rate) -> str:
    """What a rate's state is kept under: when only how much is allowed has changed, it goes on."""
    return f"{rate.unit}/{rate.window_s}"


def _get_start_amount(rate: Rate) -> int:
    """What one run takes when it begins: its tokens are charged when they are known."""
    return 1 if rate.unit == "calls" else 0


def _describe_limits(concurrency: int | None, rates: Rates) -> str:
    return ", ".join([*([] if concurrency is None else [f"{concurrency} at once"]), *map(str, rates)])


def _parse_per_key(given: int | RateInput | PerKey | None, error_prefix: str) -> PerKey | None:
    if given is None or isinstance(given, PerKey):
        return given
    if isinstance(given, int):
        return PerKey(concurrency=_validate_concurrency(given, f"{error_prefix}per_key: "))
    return PerKey(rate=_parse_rates(given, f"{error_prefix}per_key: "))


def _validate_concurrency(given: int | None, error_prefix: str) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"{error_prefix}concurrency={given!r} must be a whole number, 1 or more. To let nothing begin, pause the "
            "queue: "
            f"holdfast queues pause"
        )
    return given


def _parse_rates(given: RateInput | None, error_prefix: str) -> Rates:
    if given is None:
        return ()
    several: object = [given] if isinstance(given, str | Rate) else given
    if not isinstance(several, list | tuple) or not several:
        raise UsageError(
            f"{error_prefix}rate={given!r}: give a text such as '100/min' or '50000 tokens/min', or a list of such "
            "texts"
        )
    several = cast("Sequence[str | Rate]", several)
    rates = tuple(one if isinstance(one, Rate) else _parse_rate(one, error_prefix) for one in several)
    if len({_make_rate_key(rate) for rate in rates}) < len(rates):
        raise UsageError(
            f"{error_prefix}rate={[*map(str, rates)]} limits the same twice: give one rate for each time and unit"
        )
    return rates


def _parse_rate(text: str, error_prefix: str) -> Rate:
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{error_prefix}rate={text!r}: give a text such as '100/min' or '50000 tokens/min'")
    try:
        return Rate.parse(text)
    except UsageError as error:
        raise UsageError(f"{error_prefix}{error}") from None

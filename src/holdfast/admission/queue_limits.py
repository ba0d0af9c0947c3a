"""Queues with limits: which runs may start, and when. Pure: the running work and the time are arguments.

A run waits in a queue until a worker claims it. A queue that is only a name has no limits. A ``Queue`` has limits that
hold for the whole fleet:

- ``concurrency``: how many of its runs execute at the same time. A parked run (it sleeps, or waits for a signal, a
  person or another run) does not execute: it gives up its slot, and gets one again when it continues. So a run can wait
  for others of its own queue.
- ``rate``: how often its runs *start*, or how many tokens their model calls use. Continuing a run, after a wait or a
  crash, is not a start. Tokens are counted when they have been used: if they exceed the rate, nothing starts until
  the rate has made up for them.
- ``per_key``: the same for each *key*, such as a customer, so that one of them cannot fill the queue.

**Order.** Runs that have started go first, because their work so far was paid for. Then comes the higher priority, then
*fairness*, then age. Fairness is between keys: each queued run gets a ``turn`` among the runs of its priority (see
``compute_next_turn``), and the lowest turn goes first. The turns of a key's runs increase, and those of a new key begin
where the queue is now. So a customer with one run waits for one run of each of the others, not for the ten thousand
runs of the customer who came first.

A ``QueueAdmission`` decides which runs a queue admits at one moment. Only one caller may use it at a time, and must
store its rate usage afterwards.
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
"""One rate, or several that all apply."""

MAX_NAME_LENGTH = 200


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of a queue, and those of each of its keys."""

    concurrency: int | None = None
    rates: Rates = ()
    key_concurrency: int | None = None
    key_rates: Rates = ()

    @property
    def has_key_limits(self) -> bool:
        """Whether keys have limits of their own."""
        return self.key_concurrency is not None or bool(self.key_rates)

    @property
    def has_token_rate(self) -> bool:
        """Whether the tokens of model calls count."""
        return any(rate.unit == "tokens" for rate in (*self.rates, *self.key_rates))

    def describe(self) -> str:
        """A description for people: ``10 at once, 100/min; each key: 2 at once``."""
        own = _describe_limits(self.concurrency, self.rates)
        each = _describe_limits(self.key_concurrency, self.key_rates)
        return "; ".join([*([own] if own else []), *([f"each key: {each}"] if each else [])]) or "no limits"

    def to_json(self) -> str:
        """The stored form."""
        rates, key_rates = [str(rate) for rate in self.rates], [str(rate) for rate in self.key_rates]
        return json.dumps([self.concurrency, rates, self.key_concurrency, key_rates])

    @classmethod
    def from_json(cls, text: str) -> QueueLimits:
        """Read the stored form."""
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
        args = [f"concurrency={self.concurrency}"] * (self.concurrency is not None)
        return f"PerKey({', '.join([*args, *([f'rate={[*map(str, self.rates)]}'] * bool(self.rates))])})"


class Queue:
    """A queue with limits that hold for the whole fleet.

    ``@workflow(queue=Queue("llm", concurrency=10, rate="100/min", per_key=2, key="{customer}"))``

    Args:
        name: its name: ``holdfast worker --queue llm`` serves it.
        concurrency: how many of its runs execute at the same time.
        rate: how many of its runs start in a time, as in ``100/min``, or how many tokens their model calls use, as in
            ``50000 tokens/min``; or a list of rates that all apply.
        per_key: the same for each key: a number is a concurrency, a text a rate, ``PerKey(...)`` either or both.
        key: a template for the key of a run, made from its inputs: ``"{customer}"``. A start can also have a key of its
            own: ``.options(key=...)``.
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
        prefix = f"Queue({name!r}): "
        self.name = validate_queue_name(name)
        caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        self.source_location = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        """The file and line of the caller, for error messages."""
        if key is not None and (not isinstance(key, str) or "{" not in key):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"{prefix}key={key!r} is the same for all runs. Name an input in braces, as in key='{{customer}}'; or "
                f"leave it out, and give starts their key: .options(key='acme')"
            )
        self.key = key
        key_limits = _parse_per_key(per_key, prefix)
        self.limits = QueueLimits(
            concurrency=_validate_concurrency(concurrency, prefix),
            rates=_parse_rates(rate, prefix),
            key_concurrency=None if key_limits is None else key_limits.concurrency,
            key_rates=() if key_limits is None else key_limits.rates,
        )

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"


def validate_queue_name(name: str) -> str:
    """A valid name of a queue. Raises ``UsageError``."""
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
    """Limits from separate arguments. Raises ``UsageError``, which begins with ``error_prefix``."""
    return QueueLimits(
        _validate_concurrency(concurrency, error_prefix),
        _parse_rates(rate, error_prefix),
        _validate_concurrency(key_concurrency, error_prefix),
        _parse_rates(key_rate, error_prefix),
    )


def compute_next_turn(queue_turn: int, key_turn: int | None) -> int:
    """The turn of the next run of a key, among runs of the same priority.

    ``queue_turn`` is the highest turn of a run that has started, ``key_turn`` the last turn of this key.
    """
    return queue_turn if key_turn is None else max(queue_turn, key_turn + 1)


class Admission(Enum):
    """Whether a queue admits a run."""

    ADMITTED = "yes"
    QUEUE_LIMITED = "queue"
    """Not now: the queue is full, or its rate is exhausted."""
    KEY_LIMITED = "key"
    """Not now: the key is at its limits. Runs of other keys may be admitted."""


RateUsage = Mapping[str, Sequence[float]]
"""The stored usage of each rate, by its unit and window."""


class QueueAdmission:
    """Decides which runs a queue admits at one moment."""

    def __init__(
        self,
        limits: QueueLimits,
        now: float,
        *,
        running_by_key: Mapping[str, int],
        rate_usage: RateUsage,
        rate_usage_by_key: Mapping[str, RateUsage] | None = None,
    ) -> None:
        """``running_by_key``: the number of executing runs by key (``""`` for runs without one).

        ``set_key_usage`` adds the usage of keys that are not in ``rate_usage_by_key``.
        """
        self.limits = limits
        self._now = now
        self._running_by_key = Counter(running_by_key)
        self._running_count = sum(running_by_key.values())
        self._meter = _RateMeter(limits.rates, rate_usage)
        self._key_meters: dict[str, _RateMeter] = {}
        for key, usage in (rate_usage_by_key or {}).items():
            self.set_key_usage(key, usage)

    def set_key_usage(self, key: str, usage: RateUsage) -> None:
        """Set the usage of a key's rates."""
        self._key_meters[key] = _RateMeter(self.limits.key_rates, usage)

    # Decisions

    @property
    def free_slot_count(self) -> int | None:
        """How many more runs may execute; ``None`` if there is no limit."""
        limit = self.limits.concurrency
        return None if limit is None else max(0, limit - self._running_count)

    @property
    def has_rate_capacity(self) -> bool:
        """Whether the queue's own rates allow a start."""
        return self._meter.has_capacity(self._now)

    def get_key_free_slot_count(self, key: str) -> int | None:
        """How many more runs of a key may execute by the key's own limit; ``None`` if there is none."""
        limit = self.limits.key_concurrency
        return None if limit is None else max(0, limit - self._running_by_key[key])

    def has_key_rate_capacity(self, key: str) -> bool:
        """Whether the key's own rates allow a start."""
        return self._get_key_meter(key).has_capacity(self._now)

    def decide(self, key: str, *, has_started: bool) -> Admission:
        """Whether a run may be claimed now. A run that ``has_started`` needs a slot, but does not count for rates."""
        if self.free_slot_count == 0 or not (has_started or self.has_rate_capacity):
            return Admission.QUEUE_LIMITED
        if self.get_key_free_slot_count(key) == 0 or not (has_started or self.has_key_rate_capacity(key)):
            return Admission.KEY_LIMITED
        return Admission.ADMITTED

    def get_next_start_at(self) -> float:
        """When the queue's own rates allow the next start; 0 if they do now."""
        return self._meter.get_next_start_at()

    def get_key_next_start_at(self, key: str) -> float:
        """The same for a key's own rates."""
        return self._get_key_meter(key).get_next_start_at()

    # Changes

    def admit(self, key: str, *, has_started: bool) -> None:
        """Count a run that was admitted."""
        self._running_by_key[key] += 1
        self._running_count += 1
        if not has_started:
            self._meter.take_start(self._now)
            self._get_key_meter(key).take_start(self._now)

    def charge_tokens(self, key: str, tokens: int, at: float) -> None:
        """Count the tokens of a run of this key."""
        self._meter.charge_tokens(at, tokens)
        self._get_key_meter(key).charge_tokens(at, tokens)

    # The state to store

    @property
    def rate_usage(self) -> RateUsage:
        """The usage of the queue's own rates."""
        return self._meter.to_usage()

    def get_key_rate_usage(self, key: str) -> RateUsage:
        """The usage of a key's own rates."""
        return self._get_key_meter(key).to_usage()

    def _get_key_meter(self, key: str) -> _RateMeter:
        meter = self._key_meters.get(key)
        if meter is None:
            meter = self._key_meters[key] = _RateMeter(self.limits.key_rates, {})
        return meter


class _RateMeter:
    """The usage of some rates."""

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
    """The key of a rate's stored state, which stays when only ``max_count`` changes."""
    return f"{rate.unit}/{rate.window_s}"


def _get_start_amount(rate: Rate) -> int:
    """The amount that the start of a run takes: its tokens are charged when they are known."""
    return 1 if rate.unit == "calls" else 0


def _describe_limits(concurrency: int | None, rates: Rates) -> str:
    return ", ".join([*([] if concurrency is None else [f"{concurrency} at once"]), *map(str, rates)])


def _parse_per_key(per_key: int | RateInput | PerKey | None, error_prefix: str) -> PerKey | None:
    if per_key is None or isinstance(per_key, PerKey):
        return per_key
    if isinstance(per_key, int):
        return PerKey(concurrency=_validate_concurrency(per_key, f"{error_prefix}per_key: "))
    return PerKey(rate=_parse_rates(per_key, f"{error_prefix}per_key: "))


def _validate_concurrency(concurrency: int | None, error_prefix: str) -> int | None:
    if concurrency is None:
        return None
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"{error_prefix}concurrency={concurrency!r} must be a whole number, 1 or more. To let nothing begin, pause "
            f"the queue: holdfast queues pause"
        )
    return concurrency


def _parse_rates(rate: RateInput | None, error_prefix: str) -> Rates:
    if rate is None:
        return ()
    items: object = [rate] if isinstance(rate, str | Rate) else rate
    if not isinstance(items, list | tuple) or not items:
        raise UsageError(
            f"{error_prefix}rate={rate!r}: give a text such as '100/min' or '50000 tokens/min', or a list of such texts"
        )
    items = cast("Sequence[str | Rate]", items)
    rates = tuple(item if isinstance(item, Rate) else _parse_rate(item, error_prefix) for item in items)
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

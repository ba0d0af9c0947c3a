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
``next_turn``), and the lower one goes first. A key's runs have rising turns, and those of a key that comes late begin
where the queue is now: so a customer with one run waits for one run of each of the others, and not for the ten thousand
of the one who came first.

A ``Gate`` is what a queue lets through at one moment. Whoever opens it must be the only one who does, and must write
down how it was left.
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
AnyRate = str | Rate | Sequence[str | Rate]
"""A rate as users give it, or several that all count."""

LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What a queue allows; whatever is not given is not limited."""

    concurrency: int | None = None
    rates: Rates = ()
    key_concurrency: int | None = None
    """Of each key, as the next one."""
    key_rates: Rates = ()

    @property
    def any_per_key(self) -> bool:
        """Whether keys have limits of their own."""
        return self.key_concurrency is not None or bool(self.key_rates)

    @property
    def counts_tokens(self) -> bool:
        """Whether what model calls use is charged to it."""
        return any(rate.unit == "tokens" for rate in (*self.rates, *self.key_rates))

    def in_words(self) -> str:
        """As people read it: ``10 at once, 100/min; each key: 2 at once``."""
        own = _in_words(self.concurrency, self.rates)
        each = _in_words(self.key_concurrency, self.key_rates)
        return "; ".join([*([own] if own else []), *([f"each key: {each}"] if each else [])]) or "no limits"

    def dump(self) -> str:
        """As it is kept in a column."""
        rates, key_rates = [str(rate) for rate in self.rates], [str(rate) for rate in self.key_rates]
        return json.dumps([self.concurrency, rates, self.key_concurrency, key_rates])

    @classmethod
    def load(cls, text: str) -> QueueLimits:
        """What ``dump`` gave."""
        concurrency, rates, key_concurrency, key_rates = json.loads(text)
        return cls(concurrency, tuple(map(Rate.parse, rates)), key_concurrency, tuple(map(Rate.parse, key_rates)))


class PerKey:
    """Limits for each key of a queue: ``PerKey(concurrency=2, rate="10/min")``."""

    def __init__(self, *, concurrency: int | None = None, rate: AnyRate | None = None) -> None:
        if concurrency is None and rate is None:
            raise UsageError("PerKey() limits nothing: give concurrency=, rate=, or both")
        self.concurrency = _checked_concurrency(concurrency, "PerKey: ")
        self.rates = _read_rates(rate, "PerKey: ")

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
        rate: AnyRate | None = None,
        per_key: int | AnyRate | PerKey | None = None,
        key: str | None = None,
    ) -> None:
        where = f"Queue({name!r}): "
        self.name = checked_queue_name(name)
        caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        self.place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        """Where it is made, for people."""
        if key is not None and (not isinstance(key, str) or "{" not in key):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"{where}key={key!r} is the same for all runs. Name an input in braces, as in key='{{customer}}'; or "
                f"leave it out, and give starts their key: .options(key='acme')"
            )
        self.key = key
        each = _per_key(per_key, where)
        self.limits = QueueLimits(
            concurrency=_checked_concurrency(concurrency, where),
            rates=_read_rates(rate, where),
            key_concurrency=None if each is None else each.concurrency,
            key_rates=() if each is None else each.rates,
        )

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"


def checked_queue_name(name: str) -> str:
    """A name that can be a queue's. Raises ``UsageError``."""
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or not name.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"queue {name!r:.60}: a queue's name is a text of 1 to {LONGEST_NAME} printable characters")
    return name


def read_limits(
    *, concurrency: int | None, rate: AnyRate | None, key_concurrency: int | None, key_rate: AnyRate | None, where: str
) -> QueueLimits:
    """Limits as people give them one by one. Raises ``UsageError``, which begins with ``where``."""
    return QueueLimits(
        _checked_concurrency(concurrency, where),
        _read_rates(rate, where),
        _checked_concurrency(key_concurrency, where),
        _read_rates(key_rate, where),
    )


def next_turn(of_queue: int, of_key: int | None) -> int:
    """The turn of the next run of a key. All of it is among runs of the same priority: ``of_queue`` is the highest turn
    of one that has begun, ``of_key`` the last one that this key was given."""
    return of_queue if of_key is None else max(of_queue, of_key + 1)


class Admission(Enum):
    """Whether a queue lets a run through."""

    YES = "yes"
    QUEUE = "queue"
    """Not now: the queue is full, or its rate is used up."""
    KEY = "key"
    """Not now: the key is at its limits. Others may pass."""


RateNumbers = Mapping[str, Sequence[float]]
"""How much of each rate is used up, as it is kept: by what is counted, and in which time."""


class Gate:
    """What a queue lets through at one moment."""

    def __init__(
        self,
        limits: QueueLimits,
        now: float,
        *,
        running: Mapping[str, int],
        used: RateNumbers,
        used_by_key: Mapping[str, RateNumbers] | None = None,
    ) -> None:
        """``running``: how many of its runs are executed, by key (``""`` for those without one).

        ``used_by_key`` may be completed by ``know`` when a key comes up that it has nothing of.
        """
        self.limits = limits
        self._now = now
        self._running = Counter(running)
        self._in_all = sum(running.values())
        self._rates = _Meter(limits.rates, used)
        self._by_key: dict[str, _Meter] = {}
        for key, numbers in (used_by_key or {}).items():
            self.know(key, numbers)

    def know(self, key: str, numbers: RateNumbers) -> None:
        """What a key has used of its rates."""
        self._by_key[key] = _Meter(self.limits.key_rates, numbers)

    # Asking

    @property
    def places(self) -> int | None:
        """How many more may be executed; ``None``: any number."""
        limit = self.limits.concurrency
        return None if limit is None else max(0, limit - self._in_all)

    @property
    def has_rate(self) -> bool:
        """Whether one may begin, as far as the queue's own rates go."""
        return self._rates.has_room(self._now)

    def places_of(self, key: str) -> int | None:
        """How many more of a key may be executed, as far as the key's own limit goes; ``None``: any number."""
        limit = self.limits.key_concurrency
        return None if limit is None else max(0, limit - self._running[key])

    def has_rate_of(self, key: str) -> bool:
        """Whether one of a key may begin, as far as the key's own rates go."""
        return self._meter_of(key).has_room(self._now)

    def admits(self, key: str, *, begun: bool) -> Admission:
        """Whether a run may be taken now. One that has ``begun`` needs a place, and nothing of the rates."""
        if self.places == 0 or not (begun or self.has_rate):
            return Admission.QUEUE
        if self.places_of(key) == 0 or not (begun or self.has_rate_of(key)):
            return Admission.KEY
        return Admission.YES

    def next_at(self) -> float:
        """From when on the queue's own rates let one begin; 0: they do."""
        return self._rates.next_at()

    def next_at_of(self, key: str) -> float:
        """The same, of a key's own rates."""
        return self._meter_of(key).next_at()

    # Changing

    def take(self, key: str, *, begun: bool) -> None:
        """A run that was admitted is taken."""
        self._running[key] += 1
        self._in_all += 1
        if not begun:
            self._rates.take(self._now)
            self._meter_of(key).take(self._now)

    def charge(self, key: str, tokens: int, at: float) -> None:
        """Model calls of a run of this key have used so many tokens."""
        self._rates.charge(at, tokens)
        self._meter_of(key).charge(at, tokens)

    # To be kept

    @property
    def used(self) -> RateNumbers:
        """How much of the queue's own rates is used up now."""
        return self._rates.dump()

    def used_by(self, key: str) -> RateNumbers:
        """The same, of a key's own."""
        return self._meter_of(key).dump()

    def _meter_of(self, key: str) -> _Meter:
        meter = self._by_key.get(key)
        if meter is None:
            meter = self._by_key[key] = _Meter(self.limits.key_rates, {})
        return meter


class _Meter:
    """How much of some rates is used up."""

    def __init__(self, rates: Rates, numbers: RateNumbers) -> None:
        self._states = [RateState.load(rate, numbers.get(_name(rate), ())) for rate in rates]

    def has_room(self, now: float) -> bool:
        return all(state.take(now, _each(state.rate)).granted for state in self._states)

    def next_at(self) -> float:
        return max((state.next_at(_each(state.rate)) for state in self._states), default=0.0)

    def take(self, now: float) -> None:
        self._states = [state.take(now, _each(state.rate)).state for state in self._states]

    def charge(self, at: float, tokens: int) -> None:
        self._states = [state.charge(at, tokens) if state.rate.unit == "tokens" else state for state in self._states]

    def dump(self) -> RateNumbers:
        return {_name(state.rate): state.dump() for state in self._states}


def _name(rate: Rate) -> str:
    """What a rate's state is kept under: when only how much is allowed has changed, it goes on."""
    return f"{rate.unit}/{rate.window}"


def _each(rate: Rate) -> int:
    """What one run takes when it begins: its tokens are charged when they are known."""
    return 1 if rate.unit == "calls" else 0


def _in_words(concurrency: int | None, rates: Rates) -> str:
    return ", ".join([*([] if concurrency is None else [f"{concurrency} at once"]), *map(str, rates)])


def _per_key(given: int | AnyRate | PerKey | None, where: str) -> PerKey | None:
    if given is None or isinstance(given, PerKey):
        return given
    if isinstance(given, int):
        return PerKey(concurrency=_checked_concurrency(given, f"{where}per_key: "))
    return PerKey(rate=_read_rates(given, f"{where}per_key: "))


def _checked_concurrency(given: int | None, where: str) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"{where}concurrency={given!r} must be a whole number, 1 or more. To let nothing begin, pause the queue: "
            f"holdfast queues pause"
        )
    return given


def _read_rates(given: AnyRate | None, where: str) -> Rates:
    if given is None:
        return ()
    several: object = [given] if isinstance(given, str | Rate) else given
    if not isinstance(several, list | tuple) or not several:
        raise UsageError(
            f"{where}rate={given!r}: give a text such as '100/min' or '50000 tokens/min', or a list of such texts"
        )
    several = cast("Sequence[str | Rate]", several)
    rates = tuple(one if isinstance(one, Rate) else _parse(one, where) for one in several)
    if len({_name(rate) for rate in rates}) < len(rates):
        raise UsageError(
            f"{where}rate={[*map(str, rates)]} limits the same twice: give one rate for each time and unit"
        )
    return rates


def _parse(text: str, where: str) -> Rate:
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{where}rate={text!r}: give a text such as '100/min' or '50000 tokens/min'")
    try:
        return Rate.parse(text)
    except UsageError as error:
        raise UsageError(f"{where}{error}") from None

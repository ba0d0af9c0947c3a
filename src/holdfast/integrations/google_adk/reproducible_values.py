"""The ids, times, and random numbers of the framework, the same ones when an invocation runs again.

``google.adk.platform`` has context variables for them. They are set only while code of the invocation runs, so other
code of the process has its own.

- **Ids and random numbers** come from generators that are seeded by the run. Each task has its own, because tasks may
  come in another order when they run again.
- **The time** is that of the latest answer of a model. It stands still until the next one.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from google.adk.platform import _random as platform_random  # pyright: ignore[reportPrivateUsage]
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid

from holdfast.engine.program_context import get_owner

_TICK_S = 1e-6
"""Two readings of the clock differ, because the framework sorts events by time."""


class Clock:
    """The time of one invocation."""

    def __init__(self, now: float) -> None:
        self._now = now

    def read(self) -> float:
        """The current time."""
        self._now += _TICK_S
        return self._now

    def advance(self, to: float) -> None:
        """A recorded answer has this time."""
        self._now = max(self._now, to)


class _Generator:
    """The random numbers of one task."""

    def __init__(self, seed: str, owner: object) -> None:
        self.seed = seed
        self.owner = owner
        self.random = random.Random(seed)
        self.child_count = 0


class ReproducibleValues:
    """The ids, times, and random numbers of one invocation."""

    def __init__(self, seed: str, now: float) -> None:
        self.clock = Clock(now)
        self._generator = _Generator(seed, get_owner())

    @contextmanager
    def provided(self) -> Generator[None]:
        """The block in which the framework uses these values."""
        tokens = (
            (_current_clock, _current_clock.set(self.clock)),
            (_current_generator, _current_generator.set(self._generator)),
            (_ids, _ids.set(_make_id)),
            (_times, _times.set(self.clock.read)),
            (_randoms, _randoms.set(_get_random)),
        )
        try:
            yield
        finally:
            for variable, token in tokens:
                variable.reset(token)  # type: ignore[arg-type]


_current_clock: ContextVar[Clock | None] = ContextVar("holdfast_adk_clock", default=None)
_current_generator: ContextVar[_Generator] = ContextVar("holdfast_adk_generator")
# The module has functions that set these variables, but none that restores what a caller has set.
_ids = platform_uuid._id_provider_context_var  # pyright: ignore[reportPrivateUsage]
_times = platform_time._time_provider_context_var  # pyright: ignore[reportPrivateUsage]
_randoms = platform_random._random_provider_context_var  # pyright: ignore[reportPrivateUsage]


def _get_random() -> random.Random:
    generator, owner = _current_generator.get(), get_owner()
    if generator.owner is not owner and generator.owner != owner:
        generator.child_count += 1
        generator = _Generator(f"{generator.seed}/{generator.child_count}", owner)
        _current_generator.set(generator)
    return generator.random


def _make_id() -> str:
    return str(uuid.UUID(int=_get_random().getrandbits(128), version=4))


def get_recording_time() -> float:
    """The time to record with an answer."""
    return time.time()


def advance_clock(to: float) -> None:
    """Set the invocation's clock to the time of a recorded answer."""
    if (clock := _current_clock.get()) is not None:
        clock.advance(to)

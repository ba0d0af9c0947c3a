"""Time and chance as the engine sees them, so that tests can bring their own.

What is due is decided by the store's clock: on a database server, by the server's (see ``stores.clocks``). Leases are
measured by a clock that nobody sets, and that counts while the machine is suspended: others count that time as well.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Protocol

from holdfast.stores.clocks import monotonic

MAX_TIMER_DELAY_S = 30.0
"""A timer looks at the clock at least this often, so that a clock that is set forward is noticed."""


class ScheduledCall(Protocol):
    """A pending call that can be called off."""

    def cancel(self) -> object:
        """Call it off."""


class Clock(Protocol):
    """What the engine asks about time."""

    def now(self) -> float:
        """Seconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that is never set: what a lease is measured by. Called from any thread."""
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> ScheduledCall:
        """Call back at ``when`` or some time earlier: the callback looks at the clock itself."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def draw_random(self) -> float:
        """A random number in [0, 1), for jitter."""
        ...


class SystemClock:
    """Real time. ``now`` is the store's clock (default: the machine's own)."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now

    def now(self) -> float:
        """Seconds since 1970."""
        return self._now()

    def monotonic(self) -> float:
        """Seconds on a clock that is never set."""
        return monotonic()

    def call_at(self, when: float, callback: Callable[[], object]) -> ScheduledCall:
        """Call back at ``when``, or after ``MAX_TIMER_DELAY_S`` if that is earlier."""
        delay = min(max(0.0, when - self._now()), MAX_TIMER_DELAY_S)
        return asyncio.get_running_loop().call_later(delay, callback)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    def draw_random(self) -> float:
        """A random number in [0, 1)."""
        return random.random()

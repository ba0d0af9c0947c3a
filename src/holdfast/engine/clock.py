"""The engine's time and random numbers, which tests can replace.

The store's clock decides what is due: on a database server, the server's clock (see ``stores.clocks``). Leases are
measured by a clock that is never set, and that counts while the machine is suspended: others count that time, too.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
from collections.abc import Callable
from typing import Protocol

from holdfast.stores.clocks import monotonic

MAX_TIMER_DELAY_S = 30.0
"""A timer checks the clock at least this often, to notice a clock that was set forward."""


class ScheduledCall(Protocol):
    """A pending call that can be cancelled."""

    def cancel(self) -> object:
        """Cancel the call."""


class Clock(Protocol):
    """Time and random numbers."""

    def now(self) -> float:
        """Seconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that is never set, by which leases are measured. Called from any thread."""
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> ScheduledCall:
        """Call back at ``when`` or earlier: the callback checks the clock itself."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def draw_random(self) -> float:
        """A random number in [0, 1), for jitter."""
        ...


class SystemClock:
    """Real time. ``now`` is the store's clock (default: the machine's own)."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.now, self.monotonic = now, monotonic  # called for each step: without a function in between

    def call_at(self, when: float, callback: Callable[[], object]) -> ScheduledCall:
        """Call back at ``when``, or after ``MAX_TIMER_DELAY_S`` if that is earlier."""
        delay = min(max(0.0, when - self.now()), MAX_TIMER_DELAY_S)
        # Not in the context of the step that runs just now, which the timer would keep in memory.
        return asyncio.get_running_loop().call_later(delay, callback, context=contextvars.Context())

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    def draw_random(self) -> float:
        """A random number in [0, 1)."""
        return random.random()

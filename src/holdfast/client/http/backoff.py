"""How long to wait before the next try, and when to give up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

INITIAL_DELAY_S = 0.1
"""Seconds before the second try; the delay doubles with each further one."""
MAX_DELAY_S = 5.0
MAX_RETRY_AFTER_S = 60.0
"""Seconds that a server may ask to wait: it must not delay a caller forever."""
GIVE_UP_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Clock and random source, which tests replace."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random


class Backoff:
    """Counts the failures of one call, and the time since it was made.

    Args:
        timing: clock and random source.
        give_up_after_s: seconds after which to give up; ``None``: never.
    """

    def __init__(self, timing: Timing, give_up_after_s: float | None = GIVE_UP_AFTER_S) -> None:
        self._timing = timing
        self._give_up_after_s = give_up_after_s
        self._started_at = timing.clock()
        self._failure_count = 0

    async def wait(self, retry_after_s: float | None = None) -> bool:
        """Wait before the next try, at least ``retry_after_s`` seconds. False when it is time to give up."""
        # Half of the delay is random, so that the clients of a server that was down do not all return at once.
        delay = min(MAX_DELAY_S, INITIAL_DELAY_S * 2 ** min(self._failure_count, 16)) * (
            0.5 + self._timing.jitter() / 2
        )
        if retry_after_s is not None:
            delay += min(max(0.0, retry_after_s), MAX_RETRY_AFTER_S)
        if (
            self._give_up_after_s is not None
            and self._timing.clock() - self._started_at + delay > self._give_up_after_s
        ):
            return False
        self._failure_count += 1
        await self._timing.sleep(delay)
        return True

    def reset(self) -> None:
        """Start counting again after a success."""
        self._failure_count = 0
        self._started_at = self._timing.clock()

"""How long to wait before something is tried again, and when to give up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

FIRST = 0.1
"""Seconds before the first repetition; each further one waits twice as long."""
LONGEST = 5.0
LONGEST_ASKED = 60.0
"""Seconds that a server may ask to wait: it must not put a caller off for ever."""
LIMIT = 30.0
"""Seconds after which a call gives up."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Time and chance, which tests bring along themselves."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random


class Patience:
    """Of one call: how often it has failed, and since when.

    Args:
        pace: time and chance.
        limit: seconds after which to give up; ``None``: never.
    """

    def __init__(self, pace: Pace, limit: float | None = LIMIT) -> None:
        self._pace = pace
        self._limit = limit
        self._since = pace.clock()
        self._failures = 0

    async def wait(self, asked: float | None = None) -> bool:
        """Wait before the next try, as long as the server has ``asked`` for at least; false: it is time to give up."""
        # Half of it is left to chance, so that the clients of a server that was away do not all come back at once.
        delay = min(LONGEST, FIRST * 2 ** min(self._failures, 16)) * (0.5 + self._pace.chance() / 2)
        if asked is not None:
            delay += min(max(0.0, asked), LONGEST_ASKED)
        if self._limit is not None and self._pace.clock() - self._since + delay > self._limit:
            return False
        self._failures += 1
        await self._pace.sleep(delay)
        return True

    def renew(self) -> None:
        """It has worked: what fails from now on is counted anew."""
        self._failures = 0
        self._since = self._pace.clock()

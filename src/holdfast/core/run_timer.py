"""A timer of workflow code."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any


class RunTimer(asyncio.TimerHandle):
    """A timer with its position in the run's stream of timers."""

    __slots__ = ("delay_s", "position")

    def __init__(
        self,
        position: int,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.position = position
        self.delay_s = when - loop.time()

    @property
    def name(self) -> str:
        """The timer's name in the journal: its delay, which new code may not change for a recorded timer."""
        return f"{round(self.delay_s, 3):g} s"

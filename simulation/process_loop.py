# ruff: noqa: D102 - asyncio documents its own methods
"""The event loop of one simulated process, and the clock that its engine sees.

A real process has its own event loop, which runs ready callbacks in order and wakes for timers. This loop does the
same, with two differences: it never runs by itself (the world takes one callback at a time from any process), and its
time is the world's, which does not pass while callbacks run.

Tasks and futures hash by number and not by address. The engine keeps some of them in sets, and a set's order depends on
hashes: with addresses, a seed would not replay.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol

START_TIMESTAMP = 1_000_000.0
"""The wall clock at the beginning of every seed. Small, so that a float still holds fractions of a microsecond."""


class TimeSource(Protocol):
    """Knows the world's time."""

    time: float


class NumberedFuture(asyncio.Future[Any]):
    """A future whose hash does not depend on its address."""

    def __init__(self, loop: ProcessLoop) -> None:
        self.number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash does not depend on its address."""

    def __init__(self, coro: Any, loop: ProcessLoop, name: str | None, context: contextvars.Context | None) -> None:
        self.number = loop.next_number()
        super().__init__(coro, loop=loop, name=name or "task", context=context)

    def __hash__(self) -> int:
        return self.number


class ProcessLoop(asyncio.AbstractEventLoop):
    """A FIFO queue of callbacks, and timers by virtual time."""

    def __init__(self, world: TimeSource, number: int, on_error: Callable[[dict[str, Any]], None]) -> None:
        self.ready: deque[asyncio.Handle] = deque()
        self._world = world
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._on_error = on_error
        self._last_number = number << 24

    def next_number(self) -> int:
        """A number for a task or future, unlike any other of the world."""
        self._last_number += 1
        return self._last_number

    # Called by the world

    def run_next(self) -> None:
        """Run the callback that has waited longest."""
        handle = self.ready.popleft()
        if handle._cancelled:  # type: ignore[attr-defined]
            return
        events._set_running_loop(self)
        try:
            handle._run()  # type: ignore[attr-defined]
        finally:
            events._set_running_loop(None)

    def get_next_due(self) -> float:
        """When the next timer is due; infinity if there is none."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:  # type: ignore[attr-defined]
            heapq.heappop(timers)
        return timers[0][0] if timers else math.inf

    def queue_due_timers(self) -> None:
        """Make the callbacks of timers that are due ready, in the order in which they are due."""
        now = self._world.time
        while self.get_next_due() <= now:
            timer = heapq.heappop(self._timers)[2]
            timer._scheduled = False  # type: ignore[attr-defined]
            self.ready.append(timer)

    def close_all_tasks(self) -> None:
        """End every coroutine now, and not when the garbage collector runs."""
        self._on_error = lambda _: None
        closed: set[asyncio.Task[Any]] = set()
        while tasks := asyncio.all_tasks(self) - closed:  # a `finally` block may make another one
            for task in sorted(tasks, key=_get_number):
                closed.add(task)
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                try:
                    task.get_coro().close()  # type: ignore[union-attr]
                except BaseException:
                    pass  # its exception does not matter any more
        self.ready.clear()
        self._timers.clear()

    # What asyncio calls

    def time(self) -> float:
        return self._world.time

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return NumberedFuture(self)

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_: Any,
    ) -> asyncio.Task[Any]:
        return NumberedTask(coro, self, name, context)

    def get_task_factory(self) -> None:
        return None

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._world.time + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: it is passed over when it comes to the top of the heap."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail the seed: no engine should let a callback fail or leave a task's exception unread."""
        self._on_error(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_error(context)


def _get_number(task: asyncio.Task[Any]) -> int:
    return getattr(task, "number", 0)


class ProcessClock:
    """Time and chance as one process sees them: its wall clock may be wrong, its monotonic clock is not."""

    def __init__(self, world: TimeSource, loop: ProcessLoop, rng: random.Random) -> None:
        self._world = world
        self._loop = loop
        self._rng = rng
        self._max_now = 0.0
        self.skew_s = 0.0
        """Seconds by which the wall clock is ahead; may change while the process lives."""

    def now(self) -> float:
        """Seconds since 1970, as this machine believes."""
        now = START_TIMESTAMP + self._world.time + self.skew_s
        self._max_now = max(self._max_now, now)
        return now

    def get_max_now(self) -> float:
        """The latest time that this wall clock has ever shown, should it have been set back since."""
        return max(self._max_now, self.now())

    def monotonic(self) -> float:
        """Seconds since the world began."""
        return self._world.time

    def call_at(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call back at ``when`` by this wall clock as it goes now, as the engine's own clock does."""
        offset = START_TIMESTAMP + self.skew_s
        target = when - offset
        while target + offset < when:  # rounding must not fire it too early again and again
            target = math.nextafter(target, math.inf)
        return self._loop.call_at(min(max(target, self._world.time), self._world.time + 30.0), callback)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    def draw_random(self) -> float:
        """A random number in [0, 1)."""
        return self._rng.random()

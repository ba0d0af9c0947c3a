"""The environment of a driver on Temporal: a clock that only events move, a callback queue, and no live events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.patches import Patches
from holdfast.core.records import Record
from holdfast.engine.held_run import HeldRun
from holdfast.engine.live_events import LiveEventSource


class NullLiveEvents:
    """Drops live events: Temporal has no place for them."""

    def start_attempt(self, source: LiveEventSource) -> None:
        """Does nothing."""

    def get_text_appender(self, source: LiveEventSource, request_number: int = 0) -> Callable[[str], None]:
        """Drops the text."""
        return lambda _: None

    def discard(self, source: LiveEventSource) -> None:
        """Does nothing."""

    def flush_run(self, held_run: HeldRun) -> None:
        """Does nothing."""

    def write_skipped_steps(self, held_run: HeldRun) -> None:
        """Does nothing."""


class TemporalPatches(Patches):
    """Patches that Temporal decides, and records in the history."""

    def __init__(self, records: Sequence[Record], is_patched: Callable[[str], bool]) -> None:
        super().__init__(records)
        self._is_patched = is_patched

    def decide(self, name: str, *, command_count: int, timer_count: int) -> bool:
        """Whether the code takes the new path."""
        decision = self._decisions.get(name)
        if decision is None:
            decision = name in self._recorded_names
            is_replaying = command_count <= self._last_position or timer_count <= self._last_timer
            if not decision and not is_replaying and self._is_patched(name):
                decision = True
                self._add_new(name)
            self._decisions[name] = decision
        return decision


class WorkflowTaskClock:
    """The time of the current workflow task. A run on Temporal waits for nothing by itself."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        """Seconds since 1970."""
        return self.time

    def monotonic(self) -> float:
        """The same: a driver measures nothing with it."""
        return self.time

    def call_at(self, when: float, callback: Callable[[], object]) -> Any:
        """Never called: Temporal has the timers."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        """Never called, for the same reason."""
        raise NotImplementedError

    def draw_random(self) -> float:
        """Never called: activities retry steps."""
        raise NotImplementedError


class CallbackQueue:
    """The part of an event loop that a driver needs from its host. ``drain`` runs it."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Add a callback."""
        self._ready.append((call, args))

    def drain(self) -> None:
        """Call all callbacks, including those that they add."""
        while self._ready:
            call, args = self._ready.popleft()
            call(*args)

"""What a driver finds around it when its run is fed: a clock that stands, turns by hand, nobody to tell anything to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.patches import Patches
from holdfast.core.records import Record
from holdfast.engine.driver import Driver
from holdfast.engine.live_events import LiveEventBuffer


class NullLiveEvents:
    """Nobody follows a run while its steps are in flight: Temporal has no place for it."""

    def start_attempt(self, buffer: LiveEventBuffer, attempt: int, at: float) -> None:
        """Nothing is told."""

    def discard(self, buffer: LiveEventBuffer) -> None:
        """Nothing was told."""

    def flush_run(self, driver: Driver) -> None:
        """There is nothing to tell."""

    def write_skipped_steps(self, driver: Driver) -> None:
        """A history has no place for it."""


class TemporalPatches(Patches):
    """Which way a run takes is what Temporal says; it marks that in the history."""

    def __init__(self, records: Sequence[Record], is_patched: Callable[[str], bool]) -> None:
        super().__init__(records)
        self._is_patched = is_patched

    def decide(self, name: str, *, command_count: int, timer_count: int) -> bool:
        """The answer to code that asks."""
        known = self._decisions.get(name)
        if known is None:
            known = name in self._recorded_names
            if (
                not known
                and not (command_count <= self._last_position or timer_count <= self._last_timer)
                and self._is_patched(name)
            ):
                known = True
                self._newly_decided.append(name)
                self._pending_names.add(name)
            self._decisions[name] = known
        return known


class WorkflowTaskClock:
    """The time of the workflow task that is being told. A run that is fed waits for nothing by itself."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        """Seconds since 1970."""
        return self.time

    def monotonic(self) -> float:
        """The same: nothing is measured by it."""
        return self.time

    def call_at(self, when: float, callback: Callable[[], object]) -> Any:
        """Never asked for: timers are Temporal's."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        """Never asked for, either."""
        raise NotImplementedError

    def draw_random(self) -> float:
        """Never asked for, either: retries are made where steps are carried out."""
        raise NotImplementedError


class CallbackQueue:
    """As much of an event loop as a driver asks of its host. Whoever feeds the run lets it turn."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Call this when it is its turn."""
        self._ready.append((call, args))

    def drain(self) -> None:
        """Call all that is ready, and what becomes ready by that."""
        while self._ready:
            call, args = self._ready.popleft()
            call(*args)

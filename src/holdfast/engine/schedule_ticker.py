"""Schedules in a worker: it announces those of its code, sees when a tick is due, and starts the run.

Every worker does that for every schedule: there is no leader that could be down. What keeps them from doing it twice is
said in ``stores.schedules``; here is what keeps them from doing it all at once, and from asking all the time.

- The schedules are read when the worker starts, when the store tells that something has changed (not more often than
  every ``MIN_READ_INTERVAL_S`` seconds), and every ``READ_INTERVAL_S`` seconds in any case. In between, the worker
  knows by itself when the next tick is due, by the store's clock, and asks nothing.
- A worker is a little late, each time by another amount up to ``MAX_JITTER_S`` seconds, and by
  ``NON_SERVING_DELAY_S`` more if it does
  not serve the workflow. So as a rule one of those that serve it is the first, and executes the run, which saves a
  claim. Before it starts anything it reads the schedule again; the others find that the tick is settled.
- If only workers are there that do not serve the workflow, they start the run all the same, and it waits for one that
  does. A tick of a disabled workflow does not advance the schedule: it is missed, as if no worker had been there.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.admission.calendars import find_due_ticks
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import StoreError
from holdfast.stores.operations import NewRun, StartResult
from holdfast.stores.schedules import Schedule, ScheduleDefinition, get_next_tick, make_tick_run, parse_timing
from holdfast.stores.served_versions import find_spec_to_start

if TYPE_CHECKING:
    from holdfast.engine.journal_engine import JournalEngine

log = logging.getLogger("holdfast.engine")

READ_INTERVAL_S = 60.0
"""Seconds after which the schedules are read again, although nothing has told of a change."""
MIN_READ_INTERVAL_S = 2.0
"""Seconds between two readings, however much changes."""
MAX_JITTER_S = 0.2
"""Seconds that a worker may be late, so that not all of a fleet come at once."""
NON_SERVING_DELAY_S = 1.0
"""Seconds that a worker leaves to those that serve the workflow."""
RETRY_DELAY_S = 30.0
"""Seconds after which a tick that could not be fired is looked at again."""


class ScheduleTicker:
    """Fires what is due."""

    def __init__(self, host: JournalEngine, definitions: Mapping[str, WorkflowDefinition]) -> None:
        self._host = host
        self._definitions = definitions
        self._announced: dict[str, ScheduleDefinition] = {}
        self._previously_announced: dict[str, ScheduleDefinition] = {}
        """What was announced by the worker that this one was before it was declared dead."""
        self._check_times: dict[str, float] = {}
        """When to look at a schedule, by the store's clock."""
        self._next_check_at = math.inf
        """The earliest of them."""
        self._last_read_at = -math.inf
        """When all of them were read, by the clock that is never set."""
        self._has_changes = False
        self._warned_names: set[str] = set()

    # Announcing

    async def announce(self) -> None:
        """Announce the schedules of the code here that are new since the last time, or have changed."""
        declared = {name: new for one in self._definitions.values() for name, new in one.schedules.items()}
        new = [one for name, one in declared.items() if self._announced.get(name) != one]
        for is_news in (True, False):
            # What it has said before is no news: other code may have been deployed since.
            told = [one for one in new if (self._previously_announced.get(one.name) != one) is is_news]
            if told:
                await self._host.store.schedules.put(told, worker=self._host.worker_id, replace=is_news)
                self._announced.update((one.name, one) for one in told)
                self.notify_changed()

    def reset_announced(self) -> None:
        """This worker is a new one now, with the same code."""
        self._previously_announced, self._announced = {**self._previously_announced, **self._announced}, {}

    # When

    def notify_changed(self) -> None:
        """Something has changed in the store, perhaps a schedule."""
        self._has_changes = True

    def is_due(self) -> bool:
        """Whether there is something to look at."""
        return not self._host.is_draining and (self._is_stale() or self._next_check_at <= self._host.store.now())

    def get_wait_s(self, max_wait_s: float) -> float:
        """Seconds until a tick is due, at most ``max_wait_s``."""
        if self._host.is_draining:
            return max_wait_s
        return min(max_wait_s, max(0.0, self._next_check_at - self._host.store.now()))

    def _is_stale(self) -> bool:
        age = self._host.clock.monotonic() - self._last_read_at
        return age >= (MIN_READ_INTERVAL_S if self._has_changes else READ_INTERVAL_S)

    def _schedule_check(self, name: str, at: float) -> None:
        self._check_times[name] = at
        self._next_check_at = min(self._check_times.values())

    def _forget(self, name: str) -> None:
        self._check_times.pop(name, None)
        self._next_check_at = min(self._check_times.values(), default=math.inf)

    # Looking

    async def fire_due(self) -> None:
        """Start what is due."""
        if not self.is_due():
            return
        store = self._host.store
        if self._is_stale():
            await self._read_schedules()
        now = store.now()
        names = [name for name, at in self._check_times.items() if at <= now]
        if not names:
            return
        found = {one.definition.name: one for one in await store.schedules.list(names)}
        for name in names:
            if (schedule := found.get(name)) is None:
                self._forget(name)
                continue
            try:
                await self._fire(schedule)
            except StoreError:
                raise
            except Exception as error:
                self._warn_once(name, f"schedule {name!r} cannot fire: {error}")

    async def _read_schedules(self) -> None:
        read_at, self._has_changes = self._host.clock.monotonic(), False
        try:
            found = await self._host.store.schedules.list()
        except BaseException:
            self._has_changes = True
            raise
        self._last_read_at = read_at
        self._check_times.clear()
        self._next_check_at = math.inf
        for schedule in found:
            try:
                self._schedule_next_tick(schedule)
            except Exception as error:  # a timing that another release has written, or a zone that is not known here
                self._warn_once(
                    schedule.definition.name, f"schedule {schedule.definition.name!r} cannot fire here: {error}"
                )

    def _schedule_next_tick(self, schedule: Schedule) -> None:
        """Look at a schedule when its next tick is due."""
        what, tick = schedule.definition, get_next_tick(schedule)
        if tick is None:
            self._schedule_check(what.name, math.inf)
            return
        late = self._host.clock.draw_random() * MAX_JITTER_S
        self._schedule_check(
            what.name, tick + late + (0.0 if self._host.can_serve(what.workflow, what.queue) else NON_SERVING_DELAY_S)
        )

    async def _fire(self, schedule: Schedule) -> None:
        host, what = self._host, schedule.definition
        now = host.store.now()
        if schedule.paused_at is not None:
            self._schedule_next_tick(schedule)
            return
        found = find_due_ticks(parse_timing(what.timing), schedule.fired_up_to, now, what.catch_up, what.max_catch_up)
        if found.fired_up_to == schedule.fired_up_to:  # somebody else was first
            self._schedule_next_tick(schedule)
            return
        spec = await find_spec_to_start(host.store, what.workflow)
        if spec is None:
            self._warn_once(what.name, f"schedule {what.name!r}: no worker has announced a workflow {what.workflow!r}")
            return
        runs = [make_tick_run(schedule, spec, tick, now, host.worker_id) for tick in found.ticks]
        started, skipped = await (
            self._start_without_overlap(runs, schedule) if what.overlap == "skip" else self._start_all(runs)
        )
        if started is None:
            self._warn_once(what.name, f"schedule {what.name!r} does not fire: {what.workflow!r} is disabled")
            return
        self._warned_names.discard(what.name)
        last_skip = found.ticks[skipped] if skipped is not None else None
        last_run = started[-1] if started else ""
        await host.store.schedules.advance(
            what.name, schedule.fired_up_to, found.fired_up_to, run_id=last_run, skipped_at=last_skip
        )
        # Also if that was no longer so: somebody else has settled it. It is read again before the next tick.
        self._schedule_next_tick(replace(schedule, fired_up_to=found.fired_up_to))

    async def _start_all(self, runs: list[NewRun]) -> tuple[list[str] | None, int | None]:
        """Start them, in this order and in one commit. ``None``: the workflow is disabled."""
        answers = await asyncio.gather(*(self._host.start(run, join_orphan=False) for run in runs))
        if not all(isinstance(answer, StartResult) for answer in answers):
            return None, None
        return [run.id for run in runs], None

    async def _start_without_overlap(
        self, runs: list[NewRun], schedule: Schedule
    ) -> tuple[list[str] | None, int | None]:
        """Start each one unless the one before it is under way; also, the place of the last that was passed over."""
        before = await self._host.store.get_run(schedule.last_run) if schedule.last_run else None
        started: list[str] = []
        skipped: int | None = None
        for place, run in enumerate(runs):
            if before is not None and before.id != run.id and not before.state.is_terminal:
                skipped = place
                continue
            answer = await self._host.start(run, join_orphan=False)
            if not isinstance(answer, StartResult):
                return None, None
            before = answer.run
            started.append(run.id)
        return started, skipped

    def _warn_once(self, name: str, reason: str) -> None:
        """Say once why a schedule does not fire, and look at it again in a while."""
        if name not in self._warned_names:
            self._warned_names.add(name)
            log.warning("%s", reason)
        self._schedule_check(name, self._host.store.now() + RETRY_DELAY_S)

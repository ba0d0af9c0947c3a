"""Schedules in a worker: it announces those of its code, notices when a tick is due, and starts the run.

Every worker does that for every schedule: there is no leader that could be down. ``stores.schedules`` explains why no
tick fires twice. This module keeps the workers from all firing at once, and from querying the store all the time.

- The schedules are read when the worker starts, when the store reports a change (at most every ``MIN_READ_INTERVAL_S``
  seconds), and every ``READ_INTERVAL_S`` seconds in any case. In between, the worker knows when the next tick is due,
  by the store's clock, and queries nothing.
- A worker delays each tick by a random time up to ``MAX_JITTER_S`` seconds, and by ``NON_SERVING_DELAY_S`` more if it
  does not serve the workflow. So usually a worker that serves it is the first, and executes the run, which saves a
  claim. Before it starts anything it reads the schedule again; the others find that the tick has fired.
- If no worker serves the workflow, another one starts the run all the same, and it waits for one that does. A tick of a
  disabled workflow does not advance the schedule: it is missed, as if no worker were running.
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
from holdfast.stores.restoration import read_restoration
from holdfast.stores.schedules import Schedule, ScheduleDefinition, get_next_tick, make_tick_run, parse_timing
from holdfast.stores.served_versions import find_spec_to_start

if TYPE_CHECKING:
    from holdfast.engine.journal_engine import JournalEngine

log = logging.getLogger("holdfast.engine")

READ_INTERVAL_S = 60.0
"""Seconds after which the schedules are read again, even without a reported change."""
MIN_READ_INTERVAL_S = 2.0
"""Minimum number of seconds between two reads."""
MAX_JITTER_S = 0.2
"""Maximum random delay of a tick, so that not all workers fire at once."""
NON_SERVING_DELAY_S = 1.0
"""Additional delay of a worker that does not serve the workflow."""
RETRY_DELAY_S = 30.0
"""Seconds after which a tick that could not fire is tried again."""


class ScheduleTicker:
    """Announces schedules, and fires their ticks."""

    def __init__(self, host: JournalEngine, definitions: Mapping[str, WorkflowDefinition]) -> None:
        self._host = host
        self._definitions = definitions
        self._announced: dict[str, ScheduleDefinition] = {}
        self._previously_announced: dict[str, ScheduleDefinition] = {}
        """Announced before this worker was declared dead and registered again."""
        self._check_times: dict[str, float] = {}
        """When to check each schedule, by the store's clock."""
        self._next_check_at = math.inf
        """The earliest check time."""
        self._last_read_at = -math.inf
        """When all schedules were read (monotonic)."""
        self._has_changes = False
        self._warned_names: set[str] = set()

    # Announcing

    async def announce(self) -> None:
        """Announce the schedules of this code that are new or have changed since the last time."""
        declared = {name: new for one in self._definitions.values() for name, new in one.schedules.items()}
        pending = [schedule for name, schedule in declared.items() if self._announced.get(name) != schedule]
        for is_new in (True, False):
            # One that was announced before must not replace a stored one: other code may have been deployed since.
            group = [one for one in pending if (self._previously_announced.get(one.name) != one) is is_new]
            if group:
                await self._host.store.schedules.put(group, worker=self._host.worker_id, replace=is_new)
                self._announced.update((schedule.name, schedule) for schedule in group)
                self.notify_changed()

    def reset_announced(self) -> None:
        """This is a new worker now, with the same code: announce everything again."""
        self._previously_announced, self._announced = {**self._previously_announced, **self._announced}, {}

    # When to check

    def notify_changed(self) -> None:
        """Something has changed in the store, perhaps a schedule."""
        self._has_changes = True

    def is_due(self) -> bool:
        """Whether a tick is due, or the schedules must be read again."""
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

    # Firing

    async def fire_due(self) -> None:
        """Fire the ticks that are due."""
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
        """Check the schedule again when its next tick is due."""
        definition, tick = schedule.definition, get_next_tick(schedule)
        if tick is None:
            self._schedule_check(definition.name, math.inf)
            return
        delay = self._host.clock.draw_random() * MAX_JITTER_S
        if not self._host.can_serve(definition.workflow, definition.queue):
            delay += NON_SERVING_DELAY_S
        self._schedule_check(definition.name, tick + delay)

    async def _fire(self, schedule: Schedule) -> None:
        host, definition = self._host, schedule.definition
        now = host.store.now()
        if schedule.paused_at is not None:
            self._schedule_next_tick(schedule)
            return
        name, workflow = definition.name, definition.workflow
        timing = parse_timing(definition.timing)
        due = find_due_ticks(timing, schedule.fired_up_to, now, definition.catch_up, definition.max_catch_up)
        if due.fired_up_to == schedule.fired_up_to:  # another worker was first
            self._schedule_next_tick(schedule)
            return
        spec = await find_spec_to_start(host.store, workflow)
        if spec is None:
            self._warn_once(name, f"schedule {name!r}: no worker has announced a workflow {workflow!r}")
            return
        restoration = await read_restoration(host.store)
        runs = [make_tick_run(schedule, spec, tick, now, host.worker_id, restoration) for tick in due.ticks]
        started, skipped = await (
            self._start_without_overlap(runs, schedule) if definition.overlap == "skip" else self._start_all(runs)
        )
        if started is None:
            self._warn_once(name, f"schedule {name!r} does not fire: {workflow!r} is disabled")
            return
        self._warned_names.discard(name)
        last_skip = due.ticks[skipped] if skipped is not None else None
        last_run = started[-1] if started else ""
        await host.store.schedules.advance(
            name, schedule.fired_up_to, due.fired_up_to, run_id=last_run, skipped_at=last_skip
        )
        # Even if another worker has advanced it meanwhile: the schedule is read again before the next tick.
        self._schedule_next_tick(replace(schedule, fired_up_to=due.fired_up_to))

    async def _start_all(self, runs: list[NewRun]) -> tuple[list[str] | None, int | None]:
        """Start the runs, in this order and in one commit. ``None``: the workflow is disabled."""
        answers = await asyncio.gather(*(self._host.start(run, join_orphan=False) for run in runs))
        if not all(isinstance(answer, StartResult) for answer in answers):
            return None, None
        return [run.id for run in runs], None

    async def _start_without_overlap(
        self, runs: list[NewRun], schedule: Schedule
    ) -> tuple[list[str] | None, int | None]:
        """Start each run unless the one before it is unfinished; also returns the index of the last skipped run."""
        previous = await self._host.store.get_run(schedule.last_run) if schedule.last_run else None
        started: list[str] = []
        skipped: int | None = None
        for index, run in enumerate(runs):
            if previous is not None and previous.id != run.id and not previous.state.is_terminal:
                skipped = index
                continue
            answer = await self._host.start(run, join_orphan=False)
            if not isinstance(answer, StartResult):
                return None, None
            previous = answer.run
            started.append(run.id)
        return started, skipped

    def _warn_once(self, name: str, reason: str) -> None:
        """Log once why a schedule does not fire, and check it again later."""
        if name not in self._warned_names:
            self._warned_names.add(name)
            log.warning("%s", reason)
        self._schedule_check(name, self._host.store.now() + RETRY_DELAY_S)

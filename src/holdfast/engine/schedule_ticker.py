"""Schedules in a worker: it announces those of its code, sees when a tick is due, and starts the run.

Every worker does that for every schedule: there is no leader that could be down. What keeps them from doing it twice is
said in ``stores.schedules``; here is what keeps them from doing it all at once, and from asking all the time.

- The schedules are read when the worker starts, when the store tells that something has changed (not more often than
  every ``CALM`` seconds), and every ``READ_EVERY`` seconds in any case. In between, the worker knows by itself when the
  next tick is due, by the store's clock, and asks nothing.
- A worker is a little late, each time by another amount up to ``SPREAD`` seconds, and by ``STRANGER`` more if it does
  not serve the workflow. So as a rule one of those that serve it is the first, and executes the run, which saves a
  claim. Before it starts anything it reads the schedule again; the others find that the tick is settled.
- If only workers are there that do not serve the workflow, they start the run all the same, and it waits for one that
  does. A tick of a workflow that is switched off is not settled: it is missed, as if no worker had been there.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from holdfast.admission.calendars import due
from holdfast.engine.clock import Clock
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import StoreError
from holdfast.stores.contract import Store
from holdfast.stores.operations import Answer, NewRun, Started
from holdfast.stores.schedules import NewSchedule, Schedule, next_tick, run_of, timing_of
from holdfast.stores.served_versions import spec_to_start

log = logging.getLogger("holdfast.engine")

READ_EVERY = 60.0
"""Seconds after which the schedules are read again, although nothing has told of a change."""
CALM = 2.0
"""Seconds between two readings, however much changes."""
SPREAD = 0.2
"""Seconds that a worker may be late, so that not all of a fleet come at once."""
STRANGER = 1.0
"""Seconds that a worker leaves to those that serve the workflow."""
TRY_AGAIN = 30.0
"""Seconds after which a tick that could not be fired is looked at again."""


class TickHost(Protocol):
    """What the ticker needs of its engine."""

    store: Store
    clock: Clock
    worker: int
    draining: bool

    async def start(self, new: NewRun, *, join_orphan: bool) -> Answer:
        """Create a run."""
        ...

    def serves(self, workflow: str, queue: str | None) -> bool:
        """Whether runs of this workflow are executed here."""
        ...


class Ticker:
    """Fires what is due."""

    def __init__(self, host: TickHost, definitions: Mapping[str, WorkflowDefinition]) -> None:
        self._host = host
        self._definitions = definitions
        self._announced: dict[str, NewSchedule] = {}
        self._said_before: dict[str, NewSchedule] = {}
        """What was announced by the worker that this one was before it was declared dead."""
        self._at: dict[str, float] = {}
        """When to look at a schedule, by the store's clock."""
        self._next = math.inf
        """The earliest of them."""
        self._read_at = -math.inf
        """When all of them were read, by the clock that is never set."""
        self._told = False
        self._complained: set[str] = set()

    # Announcing

    async def announce(self) -> None:
        """Announce the schedules of the code here that are new since the last time, or have changed."""
        declared = {name: new for one in self._definitions.values() for name, new in one.schedules.items()}
        new = [one for name, one in declared.items() if self._announced.get(name) != one]
        for is_news in (True, False):
            # What it has said before is no news: other code may have been deployed since.
            told = [one for one in new if (self._said_before.get(one.name) != one) is is_news]
            if told:
                await self._host.store.put_schedules(told, worker=self._host.worker, replace=is_news)
                self._announced.update((one.name, one) for one in told)
                self.tell()

    def come_back(self) -> None:
        """This worker is a new one now, with the same code."""
        self._said_before, self._announced = {**self._said_before, **self._announced}, {}

    # When

    def tell(self) -> None:
        """Something has changed in the store, perhaps a schedule."""
        self._told = True

    def is_due(self) -> bool:
        """Whether there is something to look at."""
        return not self._host.draining and (self._is_stale() or self._next <= self._host.store.now())

    def until_due(self, longest: float) -> float:
        """Seconds until a tick is due, at most ``longest``."""
        if self._host.draining:
            return longest
        return min(longest, max(0.0, self._next - self._host.store.now()))

    def _is_stale(self) -> bool:
        age = self._host.clock.monotonic() - self._read_at
        return age >= (CALM if self._told else READ_EVERY)

    def _look_at(self, name: str, at: float) -> None:
        self._at[name] = at
        self._next = min(self._at.values())

    def _forget(self, name: str) -> None:
        self._at.pop(name, None)
        self._next = min(self._at.values(), default=math.inf)

    # Looking

    async def look(self) -> None:
        """Start what is due."""
        if not self.is_due():
            return
        store = self._host.store
        if self._is_stale():
            await self._read()
        now = store.now()
        names = [name for name, at in self._at.items() if at <= now]
        if not names:
            return
        found = {one.what.name: one for one in await store.schedules(names)}
        for name in names:
            if (schedule := found.get(name)) is None:
                self._forget(name)
                continue
            try:
                await self._fire(schedule)
            except StoreError:
                raise
            except Exception as error:
                self._complain(name, f"schedule {name!r} cannot fire: {error}")

    async def _read(self) -> None:
        read_at, self._told = self._host.clock.monotonic(), False
        try:
            found = await self._host.store.schedules()
        except BaseException:
            self._told = True
            raise
        self._read_at = read_at
        self._at.clear()
        self._next = math.inf
        for schedule in found:
            try:
                self._expect(schedule)
            except Exception as error:  # a timing that another release has written, or a zone that is not known here
                self._complain(schedule.what.name, f"schedule {schedule.what.name!r} cannot fire here: {error}")

    def _expect(self, schedule: Schedule) -> None:
        """Look at a schedule when its next tick is due."""
        what, tick = schedule.what, next_tick(schedule)
        if tick is None:
            self._look_at(what.name, math.inf)
            return
        late = self._host.clock.draw() * SPREAD
        self._look_at(what.name, tick + late + (0.0 if self._host.serves(what.workflow, what.queue) else STRANGER))

    async def _fire(self, schedule: Schedule) -> None:
        host, what = self._host, schedule.what
        now = host.store.now()
        if schedule.paused_at is not None:
            self._expect(schedule)
            return
        found = due(timing_of(what.timing), schedule.fired_up_to, now, what.catch_up, what.most)
        if found.fired_up_to == schedule.fired_up_to:  # somebody else was first
            self._expect(schedule)
            return
        spec = await spec_to_start(host.store, what.workflow)
        if spec is None:
            self._complain(what.name, f"schedule {what.name!r}: no worker has announced a workflow {what.workflow!r}")
            return
        runs = [run_of(schedule, spec, tick, now, host.worker) for tick in found.ticks]
        started, skipped = await (self._each(runs, schedule) if what.overlap == "skip" else self._all(runs))
        if started is None:
            self._complain(what.name, f"schedule {what.name!r} does not fire: {what.workflow!r} is switched off")
            return
        self._complained.discard(what.name)
        last_skip = found.ticks[skipped] if skipped is not None else None
        last_run = started[-1] if started else ""
        await host.store.settle_schedule(
            what.name, schedule.fired_up_to, found.fired_up_to, run=last_run, skipped=last_skip
        )
        # Also if that was no longer so: somebody else has settled it. It is read again before the next tick.
        self._expect(replace(schedule, fired_up_to=found.fired_up_to))

    async def _all(self, runs: list[NewRun]) -> tuple[list[str] | None, int | None]:
        """Start them, in this order and in one commit. ``None``: the workflow is switched off."""
        answers = await asyncio.gather(*(self._host.start(run, join_orphan=False) for run in runs))
        if not all(isinstance(answer, Started) for answer in answers):
            return None, None
        return [run.id for run in runs], None

    async def _each(self, runs: list[NewRun], schedule: Schedule) -> tuple[list[str] | None, int | None]:
        """Start each one unless the one before it is under way; also, the place of the last that was passed over."""
        before = await self._host.store.get(schedule.last_run) if schedule.last_run else None
        started: list[str] = []
        skipped: int | None = None
        for place, run in enumerate(runs):
            if before is not None and before.id != run.id and not before.state.is_terminal:
                skipped = place
                continue
            answer = await self._host.start(run, join_orphan=False)
            if not isinstance(answer, Started):
                return None, None
            before = answer.run
            started.append(run.id)
        return started, skipped

    def _complain(self, name: str, why: str) -> None:
        """Say once why a schedule does not fire, and look at it again in a while."""
        if name not in self._complained:
            self._complained.add(name)
            log.warning("%s", why)
        self._look_at(name, self._host.store.now() + TRY_AGAIN)

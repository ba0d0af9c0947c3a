"""What a store keeps of a schedule: what it starts and when, and how far it has come.

A schedule is declared in code, and announced by the workers that know its workflow, or made by a client. When it is due
follows from its timing alone (see ``admission.calendars``), so that a store need not know anything about cron.

**One run for each tick.** Whoever sees that a tick is due starts a run whose id is made of the schedule's name and the
tick. However many do so, there is one run under that id. Then the tick is *settled*: ``fired_up_to`` moves forward, by
a compare and set, and never goes back. A worker that dies in between leaves a tick that is not settled; the next one
starts the same run again, which is there already. So nothing is lost, and nothing happens twice.

**Changing one.** The last announcement of a name counts. Its pause and what it has settled stay. With another timing it
begins anew: what that timing would have fired before the change never was due.

**Paused** means that nothing is settled. What was missed when it is resumed is dealt with like what was missed because
no worker was there: by its ``catch_up``.
"""

from __future__ import annotations

import json
import secrets
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from holdfast.admission.calendars import CatchUp, Overlap, Timing, tick_id
from holdfast.admission.usage import Limits
from holdfast.codec import digest, render_key
from holdfast.stores.operations import NewRun

if TYPE_CHECKING:
    from holdfast.stores.contract import WorkflowSpec

TAG = "schedule:"
"""Runs that a schedule has started have a tag: this, and its name."""


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """What is announced of a schedule."""

    name: str
    workflow: str
    timing: str
    """As ``Timing.parse`` reads it."""
    inputs: bytes
    """Of each run; never kept apart, however large."""
    catch_up: CatchUp = "last"
    most: int = 100
    overlap: Overlap = "allow"
    queue: str | None = None
    """``None``: the workflow's own; as for ``budget`` and ``max_deliveries``."""
    priority: int = 0
    tags: tuple[str, ...] = ()
    session: str = ""
    budget: Limits | None = None
    max_deliveries: int | None = None
    by_code: bool = False
    """It is declared in code, so that its workers announce it."""
    key: str | None = None
    """Of its runs in their queue; ``None``: what the workflow's template says, if it is the workflow's own queue."""

    @property
    def tag(self) -> str:
        """What its runs are found by."""
        return TAG + self.name

    def options(self) -> str:
        """How its runs are started, as it is kept in a column."""
        return json.dumps(
            [self.queue, self.priority, self.tags, self.session, self.budget, self.max_deliveries, self.key]
        )

    def with_options(self, text: str) -> NewSchedule:
        """The same, with what ``options`` gave."""
        queue, priority, tags, session, budget, deaths, *later = json.loads(text)
        limits = None if budget is None else Limits(*budget)
        return replace(
            self,
            queue=queue,
            priority=priority,
            tags=tuple(tags),
            session=session,
            budget=limits,
            max_deliveries=deaths,
            key=later[0] if later else None,  # rows from before queues had keys
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule's row."""

    what: NewSchedule
    created_at: float
    fired_up_to: float
    """Everything up to here is settled: it has fired, or was passed over."""
    paused_at: float | None = None
    last_run: str = ""
    """The id of the run that it has started last."""
    skipped: float | None = None
    """The last tick that did not fire because the run before it was still under way."""
    announced: bool = False
    """A live worker has announced it."""


def merged(known: Schedule | None, new: NewSchedule, now: float) -> Schedule:
    """The row of a schedule when it is announced."""
    if known is None:
        return Schedule(new, now, now)
    fired_up_to = known.fired_up_to if known.what.timing == new.timing else max(known.fired_up_to, now)
    return replace(known, what=new, fired_up_to=fired_up_to)


@lru_cache(1024)
def timing_of(text: str) -> Timing:
    """The timing of a schedule."""
    return Timing.parse(text)


def next_tick(schedule: Schedule) -> float | None:
    """When it is due next (a time in the past: it is), unless it is paused or never will be again."""
    if schedule.paused_at is not None:
        return None
    tick = timing_of(schedule.what.timing).next_after(schedule.fired_up_to)
    return None if tick == float("inf") else tick


def run_of(schedule: Schedule, spec: WorkflowSpec, tick: float, now: float, starter: int | None = None) -> NewRun:
    """The run that a tick starts."""
    return _run(schedule.what, spec, tick_id(schedule.what.name, tick), now, starter)


def run_by_hand(schedule: Schedule, spec: WorkflowSpec, now: float) -> NewRun:
    """A run that a person starts in between."""
    run_id = f"{tick_id(schedule.what.name, int(now))}-by-hand-{secrets.token_hex(3)}"
    return _run(schedule.what, spec, run_id, now, None)


def _run(what: NewSchedule, spec: WorkflowSpec, run_id: str, now: float, starter: int | None) -> NewRun:
    return NewRun(
        id=run_id,
        workflow=what.workflow,
        inputs=what.inputs,
        digest=digest(what.inputs),
        seed=secrets.token_bytes(16),
        created_at=now,
        queue=what.queue or spec.queue,
        queue_key=_key(what, spec),
        priority=what.priority,
        deadline=None if spec.timeout is None else now + spec.timeout,
        max_deliveries=what.max_deliveries or spec.max_deliveries,
        tags=tuple(dict.fromkeys((*spec.tags, *what.tags, what.tag))),
        starter=starter,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        budget=spec.budget if what.budget is None else what.budget,
        session=what.session,
        version=spec.version,
    )


def _key(what: NewSchedule, spec: WorkflowSpec) -> str:
    if what.key is not None:
        return what.key
    if spec.queue_key is None or what.queue not in (None, spec.queue):
        return ""
    return render_key(spec.queue_key, what.inputs, spec.name)


def read_options(what: NewSchedule, text: Any) -> NewSchedule | None:
    """The schedule with its options; ``None`` if they cannot be read."""
    try:
        return what.with_options(text)
    except (TypeError, ValueError):
        return None

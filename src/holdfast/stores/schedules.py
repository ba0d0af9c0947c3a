"""Schedules in a store: what a schedule starts and when, and how far it has come.

A schedule is declared in code and announced by the workers that know its workflow, or made by a client. When it is due
follows from its timing alone (see ``admission.calendars``), so a store knows nothing about cron. The table
``announcements`` has the workers whose code declares a schedule; it shows whether one of them is live.

**One run for each tick.** A worker that sees that a tick is due starts a run whose id is made of the schedule's name
and the tick. However many workers do so, there is one run under that id. Then the schedule is advanced: ``fired_up_to``
moves forward, by a compare-and-set, and never goes back. The start and this update need not be one transaction. If a
worker dies in between, the next worker starts the same run again, and finds it. So no tick is lost, and none starts two
runs.

**Changing a schedule.** The last announcement of a name counts. Its pause and its ``fired_up_to`` stay. With another
timing it starts over: ticks of the new timing before the change were never due.

**Paused** means that ``fired_up_to`` stays where it is. After a resume, missed ticks are handled as if no worker had
been running: by the schedule's ``catch_up``.
"""

from __future__ import annotations

import json
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from holdfast.admission.calendars import CatchUp, Overlap, Timing, make_tick_id
from holdfast.admission.usage import BudgetLimits
from holdfast.codec import compute_digest, render_key
from holdfast.core.seeded_random import SEED_BYTES
from holdfast.stores.operations import NewRun
from holdfast.stores.restoration import Restoration

if TYPE_CHECKING:
    from holdfast.stores.contract import WorkflowSpec

TAG_PREFIX = "schedule:"
"""A run that a schedule has started has a tag: this and the schedule's name."""


@dataclass(frozen=True, slots=True)
class ScheduleDefinition:
    """The announcement of a schedule."""

    name: str
    workflow: str
    timing: str
    """The text that ``Timing.parse`` reads."""
    inputs: bytes
    """The inputs of each run; never stored as a blob, however large."""
    catch_up: CatchUp = "last"
    max_catch_up: int = 100
    overlap: Overlap = "allow"
    queue: str | None = None
    """``None``: the workflow's own, as for ``budget`` and ``max_deliveries``."""
    priority: int = 0
    tags: tuple[str, ...] = ()
    session: str = ""
    budget: BudgetLimits | None = None
    max_deliveries: int | None = None
    is_declared_in_code: bool = False
    """Workers announce it, because their code declares it."""
    queue_key: str | None = None
    """The queue key of its runs; ``None``: from the workflow's template, if the queue is the workflow's own."""

    @property
    def tag(self) -> str:
        """The tag of its runs."""
        return TAG_PREFIX + self.name

    def options_to_json(self) -> str:
        """The options of its runs, as stored in a column."""
        return json.dumps(
            [self.queue, self.priority, self.tags, self.session, self.budget, self.max_deliveries, self.queue_key]
        )

    def with_options_json(self, text: Any) -> ScheduleDefinition | None:
        """The same, with the options that ``options_to_json`` returned; ``None`` if they cannot be read."""
        try:
            queue, priority, tags, session, budget, max_deliveries, *later = json.loads(text)
            return replace(
                self,
                queue=queue,
                priority=priority,
                tags=tuple(tags),
                session=session,
                budget=None if budget is None else BudgetLimits(*budget),
                max_deliveries=max_deliveries,
                queue_key=later[0] if later else None,  # rows from before queues had keys
            )
        except (TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule's row."""

    definition: ScheduleDefinition
    created_at: float
    fired_up_to: float
    """All ticks up to this time have fired or were skipped."""
    paused_at: float | None = None
    last_run: str = ""
    """The id of the last run that it started."""
    last_skipped_at: float | None = None
    """The last tick that did not fire because the previous run had not ended."""
    is_announced: bool = False
    """A live worker has announced it."""


def merge_schedule(existing: Schedule | None, new: ScheduleDefinition, now: float) -> Schedule:
    """The row of a schedule after an announcement."""
    if existing is None:
        return Schedule(new, now, now)
    fired_up_to = existing.fired_up_to if existing.definition.timing == new.timing else max(existing.fired_up_to, now)
    return replace(existing, definition=new, fired_up_to=fired_up_to)


@lru_cache(1024)
def parse_timing(text: str) -> Timing:
    """Parse the timing of a schedule."""
    return Timing.parse(text)


def get_next_tick(schedule: Schedule) -> float | None:
    """When it is due next (a time in the past: now); ``None``: it is paused, or never due again."""
    if schedule.paused_at is not None:
        return None
    tick = parse_timing(schedule.definition.timing).get_next_tick(schedule.fired_up_to)
    return None if tick == float("inf") else tick


def make_tick_run(
    schedule: Schedule,
    spec: WorkflowSpec,
    tick: float,
    now: float,
    starter: int | None = None,
    restoration: Restoration | None = None,
) -> NewRun:
    """The run that a tick starts. ``restoration``: the last time that the store was restored from a backup."""
    run = _make_run(schedule.definition, spec, make_tick_id(schedule.definition.name, tick), now, starter)
    if restoration is None or tick > restoration.restored_at:
        return run
    return replace(run, restored_from=restoration.source)  # the tick may have fired after the backup


def make_manual_run(schedule: Schedule, spec: WorkflowSpec, now: float) -> NewRun:
    """A run that a person starts between ticks."""
    run_id = f"{make_tick_id(schedule.definition.name, int(now))}-by-hand-{secrets.token_hex(3)}"
    return _make_run(schedule.definition, spec, run_id, now, None)


def _make_run(
    definition: ScheduleDefinition, spec: WorkflowSpec, run_id: str, now: float, starter: int | None
) -> NewRun:
    return NewRun(
        id=run_id,
        workflow=definition.workflow,
        inputs=definition.inputs,
        digest=compute_digest(definition.inputs),
        seed=secrets.token_bytes(SEED_BYTES),
        created_at=now,
        queue=definition.queue or spec.queue,
        queue_key=_render_queue_key(definition, spec),
        priority=definition.priority,
        deadline=None if spec.timeout_s is None else now + spec.timeout_s,
        max_deliveries=definition.max_deliveries or spec.max_deliveries,
        tags=tuple(dict.fromkeys((*spec.tags, *definition.tags, definition.tag))),
        starter=starter,
        python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
        budget=spec.budget if definition.budget is None else definition.budget,
        session=definition.session,
        version=spec.version,
    )


def _render_queue_key(definition: ScheduleDefinition, spec: WorkflowSpec) -> str:
    if definition.queue_key is not None:
        return definition.queue_key
    if spec.queue_key_template is None or definition.queue not in (None, spec.queue):
        return ""
    return render_key(spec.queue_key_template, definition.inputs, spec.name)


class Schedules(ABC):
    """The schedules of a store. The store itself starts no runs."""

    @abstractmethod
    async def put(
        self, schedules: Sequence[ScheduleDefinition], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        """Write schedules under their names. Returns them, in order, as they are stored.

        An existing schedule is changed; its pause and ``fired_up_to`` stay, unless its timing differs: then
        ``fired_up_to`` is now. If ``replace`` is false, it stays as it is. ``worker`` announces them.
        """

    @abstractmethod
    async def advance(
        self,
        name: str,
        expected_fired_up_to: float,
        fired_up_to: float,
        *,
        run_id: str = "",
        skipped_at: float | None = None,
    ) -> bool:
        """Save how far a schedule has come, which run it started, and which tick it skipped. ``fired_up_to`` never
        decreases.

        False: it no longer exists, or its ``fired_up_to`` is not ``expected_fired_up_to``. Nothing has changed.
        """

    @abstractmethod
    async def pause(self, name: str) -> bool:
        """Stop a schedule from firing. False: it does not exist, or was already paused."""

    @abstractmethod
    async def resume(self, name: str) -> bool:
        """Let it fire again. False: it does not exist, or was not paused."""

    @abstractmethod
    async def delete(self, name: str) -> bool:
        """Delete a schedule. False: it does not exist."""

    @abstractmethod
    async def list(self, names: Collection[str] | None = None) -> list[Schedule]:
        """All schedules, or those with these names, ordered by name.

        A schedule that cannot be read is left out with a logged warning.
        """

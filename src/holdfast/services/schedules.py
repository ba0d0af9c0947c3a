"""Schedules from outside: making them, looking at them, pausing them, and starting a run of one in between.

How they fire is told in ``engine.schedule_ticker``; a client needs no worker for any of this.
"""

from __future__ import annotations

import builtins
import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_in
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from holdfast.admission.calendars import CatchUp, Cron, Overlap, Timing, every
from holdfast.admission.durations import Duration
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.codec import to_plain
from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, InputError, UnknownSchedule, UsageError
from holdfast.services.input_validation import bind_inputs
from holdfast.services.lookup import alike
from holdfast.services.queue_options import checked_text, declare, key_in
from holdfast.services.run_start import accept, checked_deliveries, checked_id, checked_priority, session_of
from holdfast.services.thread_offload import LARGE, off_loop
from holdfast.services.timestamps import moment
from holdfast.stores.contract import INLINE, Store, WorkflowSpec
from holdfast.stores.operations import Run, StartRun
from holdfast.stores.queues import NewQueue
from holdfast.stores.schedules import NewSchedule, Schedule, next_tick, run_by_hand, timing_of

if TYPE_CHECKING:
    from holdfast.client.backend import ScheduleBackend
    from holdfast.client.sync_methods import InSync

T = TypeVar("T")

LONGEST_NAME = 150
"""Characters of a schedule's name: the ids of its runs have its ticks behind it."""


# What is announced


def timing_from(
    cron: str | None, every_: Duration | None, zone: str | None = None, start: datetime | float | None = None
) -> Timing:
    """The timing that is meant by what was given. Raises ``UsageError``."""
    if (cron is None) == (every_ is None):
        raise UsageError("when? Give one of the two: cron='0 2 * * *', with zone='Europe/Berlin', or every='15 min'")
    if cron is not None:
        if start is not None:
            raise UsageError("start= is where an interval begins to count: it belongs to every=, not to cron=")
        return Timing.parse(cron) if zone is None else Cron(cron, zone)
    if zone is not None:
        raise UsageError(
            f"every={every_!r} counts elapsed time, in which zone={zone!r} has no part. For a time of day use "
            f"cron='0 6 * * *'"
        )
    assert every_ is not None
    return every(every_, start)


def checked_name(name: object) -> str:
    """A name that a schedule may have."""
    is_proper = isinstance(name, str) and name.strip() == name != "" and name.isprintable()
    if not isinstance(name, str) or not is_proper or len(name) > LONGEST_NAME:
        raise UsageError(f"a schedule's name has 1 to {LONGEST_NAME} printable characters, not {repr(name)[:60]}")
    return name


def new_schedule(
    name: str,
    spec: WorkflowSpec,
    inputs: bytes,
    timing: Timing,
    *,
    catch_up: CatchUp,
    most: int,
    overlap: Overlap,
    queue: str | Queue | None = None,
    key: str | int | None = None,
    priority: int = 0,
    tags: Collection[str] = (),
    budget: Budget | None = None,
    max_deliveries: int | None = None,
    defaults: Mapping[str, object] | None = None,
    by_code: bool = False,
) -> NewSchedule:
    """All that is kept of a new schedule. Raises ``UsageError``."""
    for word, given, allowed in (
        ("catch_up", catch_up, get_args(CatchUp)),
        ("overlap", overlap, get_args(Overlap)),
    ):
        if given not in allowed:
            near = difflib.get_close_matches(str(given), allowed, 1)
            raise UsageError(
                f"{word}={given!r} is not known{f': did you mean {near[0]!r}?' if near else ''} "
                f"({', '.join(map(repr, allowed))})"
            )
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"most={most!r}: so many missed ticks may fire at once, a whole number, 1 or more")
    if isinstance(tags, str):
        raise UsageError(f"tags is a collection of words, not one string: tags=[{tags!r}]")
    if len(inputs) > INLINE:
        raise UsageError(
            f"the inputs are {len(inputs):,} bytes, and those of a schedule may be {INLINE:,}: keep what is large "
            f"elsewhere, and hand over where it is"
        )
    given = checked_text(key, "key", "")
    rendered = key_in(queue, given, spec, inputs, defaults or {})
    if isinstance(queue, Queue):
        given = rendered
    return NewSchedule(
        name=checked_name(name),
        workflow=spec.name,
        timing=str(timing),
        inputs=inputs,
        catch_up=catch_up,
        most=most,
        overlap=overlap,
        queue=None if queue is None else declare(queue),
        key=given,
        priority=checked_priority(priority, ""),
        tags=tuple(tags),
        session=session_of(spec, inputs),
        budget=None if budget is None else budget.limits(),
        max_deliveries=checked_deliveries(max_deliveries, ""),
        by_code=by_code,
    )


# What is told


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """What can be told of a schedule."""

    name: str
    workflow: str
    timing: str
    """As in ``0 2 * * * in Europe/Berlin`` or ``every 15 min``."""
    zone: str
    """The time zone whose clock it is read by; empty for an interval."""
    inputs: Any
    """Of each run, as plain data by parameter."""
    catch_up: CatchUp
    most: int
    overlap: Overlap
    queue: str | None
    key: str | None
    """Of its runs in their queue; ``None``: what the workflow's queue says."""
    priority: int
    tags: tuple[str, ...]
    created_at: datetime
    next_at: datetime | None
    """When it fires next; in the past if that is due. ``None``: it is paused, or never fires again."""
    settled_until: datetime
    """Everything up to here has fired, or was passed over."""
    paused_at: datetime | None
    last_run: str
    """The id of the run that it has started last; empty if there is none."""
    last_state: RunState | None
    """How that is; ``None`` also if it has been deleted."""
    skipped_at: datetime | None
    """The last tick that started nothing because the run before it was under way."""
    by_code: bool
    """It is declared in code, not made by a client."""
    announced: bool
    """A live worker has that code. If not, it may have been removed: the schedule stays until it is deleted."""
    budget: Budget | None = None
    """Of each run; ``None``: the workflow's own, as for ``max_deliveries``."""
    max_deliveries: int | None = None

    @property
    def tag(self) -> str:
        """What its runs are found by: ``client.list(tag=...)``."""
        return f"schedule:{self.name}"

    @classmethod
    def of(cls, schedule: Schedule, last: Run | None) -> ScheduleInfo:
        """What a row tells, with the last run."""
        what = schedule.what
        try:
            timing, next_at = timing_of(what.timing), next_tick(schedule)
        except HoldfastError:  # a time zone that is not known on this machine: workers say so as well
            timing = next_at = None
        return cls(
            name=what.name,
            workflow=what.workflow,
            timing=what.timing,
            zone=timing.zone if isinstance(timing, Cron) else "",
            inputs=to_plain(what.inputs),
            catch_up=what.catch_up,
            most=what.most,
            overlap=what.overlap,
            queue=what.queue,
            key=what.key,
            priority=what.priority,
            tags=what.tags,
            created_at=moment(schedule.created_at),
            next_at=moment(next_at),
            settled_until=moment(schedule.fired_up_to),
            paused_at=moment(schedule.paused_at),
            last_run=schedule.last_run,
            last_state=None if last is None else last.state,
            skipped_at=moment(schedule.skipped),
            by_code=what.by_code,
            announced=schedule.announced,
            budget=None if what.budget is None else Budget.of(what.budget),
            max_deliveries=what.max_deliveries,
        )


async def schedule_info(schedule: Schedule, last: Run | None) -> ScheduleInfo:
    """What a row tells, with the last run; large inputs are decoded off the event loop."""
    return await off_loop(len(schedule.what.inputs), lambda: ScheduleInfo.of(schedule, last))


async def read_schedules(store: Store, names: Collection[str] | None = None) -> list[ScheduleInfo]:
    """All schedules, or those of these names, with how their last runs are."""
    found = await store.schedules(names)
    runs = {run.id: run for run in await store.get_many([one.last_run for one in found if one.last_run])}
    return [await schedule_info(one, runs.get(one.last_run)) for one in found]


async def find(store: Store, name: str) -> Schedule:
    """The schedule of this name. Raises ``UnknownSchedule``, which names one like it."""
    found = await store.schedules([name])
    if found:
        return found[0]
    known = [one.what.name for one in await store.schedules()]
    raise UnknownSchedule(f"there is no schedule {name!r} in {store.url}: {alike(name, known)}")


@dataclass(frozen=True, slots=True)
class WantedSchedule:
    """A schedule as it was asked for: see ``ClientSchedules.create``."""

    name: str
    workflow: str
    cron: str | None = None
    every: Duration | None = None
    zone: str | None = None
    start: datetime | float | None = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    catch_up: CatchUp = "last"
    most: int = 100
    overlap: Overlap = "allow"
    queue: str | Queue | None = None
    key: str | int | None = None
    priority: int = 0
    tags: Collection[str] = ()
    budget: Budget | None = None
    max_deliveries: int | None = None
    replace: bool = False


async def create_schedule(store: Store, wanted: WantedSchedule, spec: WorkflowSpec) -> ScheduleInfo:
    """Make a schedule of a workflow, or find that the very same is there."""
    where = f"schedule {wanted.name!r}"
    args, kwargs = tuple(wanted.args), dict(wanted.kwargs or {})
    try:
        # Always in a thread: values that are encoded already do not show their size.
        inputs = await off_loop(LARGE + 1, lambda: bind_inputs(spec, args, kwargs))
        new = new_schedule(
            wanted.name,
            spec,
            inputs,
            timing_from(wanted.cron, wanted.every, wanted.zone, wanted.start),
            catch_up=wanted.catch_up,
            most=wanted.most,
            overlap=wanted.overlap,
            queue=wanted.queue,
            key=wanted.key,
            priority=wanted.priority,
            tags=wanted.tags,
            budget=wanted.budget,
            max_deliveries=wanted.max_deliveries,
        )
    except InputError as error:
        raise InputError(f"{where}: {error}", error.faults) from None
    except HoldfastError as error:
        raise type(error)(f"{where}: {error}") from None
    if isinstance(wanted.queue, Queue):
        await store.put_queues([NewQueue(wanted.queue.name, wanted.queue.limits)])
    [kept] = await store.put_schedules([new], replace=False)
    if kept.what != new:
        if kept.what.by_code:
            raise UsageError(
                f"{where} is declared in code: change it there (workers that start announce it again), or choose "
                f"another name"
            )
        if not wanted.replace:
            raise UsageError(
                f"{where} is there already, and is another one ({kept.what.workflow!r}, {kept.what.timing}): "
                f"choose another name, or pass replace=True to change it"
            )
        [kept] = await store.put_schedules([new])
    return await schedule_info(kept, await store.get(kept.last_run) if kept.last_run else None)


async def trigger_schedule(store: Store, schedule: Schedule, spec: WorkflowSpec, id: str | None) -> str:
    """Start a run of a schedule now, or find the one that is there under the ``id``; returns the run's id."""
    new = await off_loop(len(schedule.what.inputs), lambda: run_by_hand(schedule, spec, store.now()))
    new = new if id is None else replace_in(new, id=checked_id(id))
    [answer] = await store.commit([StartRun(new)])
    run = accept(answer, new, unsuccessful_too=id is not None)
    # So that it counts as the last one. If a tick is settled meanwhile, that one does, which is as well.
    await store.settle_schedule(schedule.what.name, schedule.fired_up_to, schedule.fired_up_to, run=run.id)
    return run.id


class ClientSchedules:
    """Schedules as a client sees them."""

    def __init__(self, backend: ScheduleBackend, in_sync: InSync) -> None:
        self._backend = backend
        self._sync = in_sync

    async def create(
        self,
        name: str,
        workflow: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        zone: str | None = None,
        start: datetime | float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        catch_up: CatchUp = "last",
        most: int = 100,
        overlap: Overlap = "allow",
        queue: str | Queue | None = None,
        key: str | int | None = None,
        priority: int = 0,
        tags: Collection[str] = (),
        budget: Budget | None = None,
        max_deliveries: int | None = None,
        replace: bool = False,
    ) -> ScheduleInfo:
        """Let a workflow be started again and again; nothing changes if the very same schedule is there.

        Args:
            name: what it is called; the ids of its runs begin with it.
            workflow: the workflow's name. A worker must have announced it.
            cron: when, as a cron expression of five fields (or six, with seconds in front).
            every: when, as an interval: seconds, a ``timedelta``, or words such as ``15 min``.
            zone: the time zone whose clock a cron expression is read by; UTC unless given.
            start: when an interval begins to count.
            args: the inputs of each run.
            kwargs: the inputs of each run, by name.
            catch_up: what becomes of ticks that were missed because no worker was there, or it was paused: ``skip``
                fires none, ``last`` the newest, ``all`` each.
            most: at most so many missed ticks fire at once; the newest do.
            overlap: ``skip`` starts nothing while the run before is under way.
            queue: the queue that its runs wait in, instead of the workflow's own: its name, or a ``Queue`` with limits.
            key: whose runs they are in their queue; what the queue's template says unless given.
            priority: of its runs.
            tags: of its runs, beside ``schedule:NAME``.
            budget: what each run may use, instead of the workflow's own.
            max_deliveries: as in ``options``.
            replace: change the schedule that is there under this name; its pause stays.
        """
        wanted = WantedSchedule(
            name,
            workflow,
            cron=cron,
            every=every,
            zone=zone,
            start=start,
            args=args,
            kwargs=kwargs,
            catch_up=catch_up,
            most=most,
            overlap=overlap,
            queue=queue,
            key=key,
            priority=priority,
            tags=tags,
            budget=budget,
            max_deliveries=max_deliveries,
            replace=replace,
        )
        return await self._backend.create(wanted)

    async def list(self) -> builtins.list[ScheduleInfo]:
        """All schedules, in the order of their names."""
        return await self._backend.list()

    async def get(self, name: str) -> ScheduleInfo:
        """One schedule. Raises ``UnknownSchedule``."""
        return await self._backend.get(name)

    async def pause(self, name: str) -> bool:
        """Keep a schedule from firing, over restarts and deploys; false when it was paused before."""
        return await self._backend.pause(name)

    async def resume(self, name: str) -> bool:
        """Let it fire again; what it missed is dealt with by its ``catch_up``. False when it was not paused."""
        return await self._backend.resume(name)

    async def delete(self, name: str) -> bool:
        """Forget a schedule; its runs stay. One that is declared in code is back when a worker with that code starts.

        False when there is none.
        """
        return await self._backend.delete(name)

    async def trigger(self, name: str, *, id: str | None = None) -> str:
        """Start a run of it now, paused or not, beside those of its ticks; returns the run's id.

        With an ``id`` for the run, the one that is there under it is found instead, whatever has become of it.
        """
        return await self._backend.trigger(name, id)

    # The same, for code without an event loop

    def create_sync(self, name: str, workflow: str, **options: Any) -> ScheduleInfo:
        """``create`` without an event loop."""
        return self._sync(self.create(name, workflow, **options))

    def list_sync(self) -> builtins.list[ScheduleInfo]:
        """``list`` without an event loop."""
        return self._sync(self.list())

    def get_sync(self, name: str) -> ScheduleInfo:
        """``get`` without an event loop."""
        return self._sync(self.get(name))

    def pause_sync(self, name: str) -> bool:
        """``pause`` without an event loop."""
        return self._sync(self.pause(name))

    def resume_sync(self, name: str) -> bool:
        """``resume`` without an event loop."""
        return self._sync(self.resume(name))

    def delete_sync(self, name: str) -> bool:
        """``delete`` without an event loop."""
        return self._sync(self.delete(name))

    def trigger_sync(self, name: str, *, id: str | None = None) -> str:
        """``trigger`` without an event loop."""
        return self._sync(self.trigger(name, id=id))

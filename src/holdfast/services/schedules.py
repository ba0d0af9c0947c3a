"""Schedules as clients use them: creating, reading, and triggering them. None of this needs a worker.

``engine.schedule_ticker`` describes how they fire.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as replace_in
from datetime import datetime
from typing import Any, get_args

from holdfast.admission.calendars import CatchUp, Cron, Overlap, Timing, make_interval
from holdfast.admission.durations import Duration
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.codec import decode_plain
from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, InputError, UnknownSchedule, UsageError
from holdfast.services.input_validation import bind_inputs
from holdfast.services.json_form import UserValue, UtcDatetime
from holdfast.services.lookup import suggest_name
from holdfast.services.queue_options import declare_queue, resolve_queue_key, validate_start_key
from holdfast.services.run_start import (
    get_session,
    resolve_start,
    validate_max_deliveries,
    validate_priority,
    validate_run_id,
)
from holdfast.services.thread_offload import LARGE_BYTES, run_off_loop
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import MAX_INLINE_BYTES, Store, WorkflowSpec
from holdfast.stores.operations import Run, StartRun
from holdfast.stores.queues import NewQueue
from holdfast.stores.schedules import Schedule, ScheduleDefinition, get_next_tick, make_manual_run, parse_timing

MAX_NAME_LENGTH = 150
"""Characters of a schedule's name. The ids of its runs append a tick to it."""


# Definitions


def make_timing(
    cron: str | None, interval: Duration | None, zone: str | None = None, start: datetime | float | None = None
) -> Timing:
    """The timing of a cron expression or an interval. Raises ``UsageError``."""
    if (cron is None) == (interval is None):
        raise UsageError("when? Give one of the two: cron='0 2 * * *', with zone='Europe/Berlin', or every='15 min'")
    if cron is not None:
        if start is not None:
            raise UsageError("start= is where an interval begins to count: it belongs to every=, not to cron=")
        return Timing.parse(cron) if zone is None else Cron(cron, zone)
    if zone is not None:
        raise UsageError(
            f"every={interval!r} counts elapsed time, in which zone={zone!r} has no part. For a time of day use "
            f"cron='0 6 * * *'"
        )
    assert interval is not None
    return make_interval(interval, start)


def validate_schedule_name(name: object) -> str:
    """The name, if a schedule may have it. Raises ``UsageError``."""
    is_proper = isinstance(name, str) and name.strip() == name != "" and name.isprintable()
    if not isinstance(name, str) or not is_proper or len(name) > MAX_NAME_LENGTH:
        raise UsageError(f"a schedule's name has 1 to {MAX_NAME_LENGTH} printable characters, not {repr(name)[:60]}")
    return name


def build_schedule(
    name: str,
    spec: WorkflowSpec,
    inputs: bytes,
    timing: Timing,
    *,
    catch_up: CatchUp,
    max_catch_up: int,
    overlap: Overlap,
    queue: str | Queue | None = None,
    key: str | int | None = None,
    priority: int = 0,
    tags: Collection[str] = (),
    budget: Budget | None = None,
    max_deliveries: int | None = None,
    defaults: Mapping[str, object] | None = None,
    is_declared_in_code: bool = False,
) -> ScheduleDefinition:
    """The definition of a schedule, with checked values. Raises ``UsageError``."""
    _check_options(catch_up, max_catch_up, overlap, tags)
    if len(inputs) > MAX_INLINE_BYTES:
        raise UsageError(
            f"the inputs are {len(inputs):,} bytes, and those of a schedule may be {MAX_INLINE_BYTES:,}: keep what is "
            "large elsewhere, and hand over where it is"
        )
    given = validate_start_key(key, "key", "")
    rendered = resolve_queue_key(queue, given, spec, inputs, defaults or {})
    if isinstance(queue, Queue):
        given = rendered
    return ScheduleDefinition(
        name=validate_schedule_name(name),
        workflow=spec.name,
        timing=str(timing),
        inputs=inputs,
        catch_up=catch_up,
        max_catch_up=max_catch_up,
        overlap=overlap,
        queue=None if queue is None else declare_queue(queue),
        queue_key=given,
        priority=validate_priority(priority, ""),
        tags=tuple(tags),
        session=get_session(spec, inputs),
        budget=None if budget is None else budget.to_limits(),
        max_deliveries=validate_max_deliveries(max_deliveries, ""),
        is_declared_in_code=is_declared_in_code,
    )


def _check_options(catch_up: str, max_catch_up: int, overlap: str, tags: Collection[str]) -> None:
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
    if isinstance(max_catch_up, bool) or not isinstance(max_catch_up, int) or max_catch_up < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"max_catch_up={max_catch_up!r}: the number of missed ticks to fire at once is a whole number, 1 or more"
        )
    if isinstance(tags, str):
        raise UsageError(f"tags is a collection of words, not one string: tags=[{tags!r}]")


# Reading


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule, and the state of its last run."""

    name: str
    workflow: str
    timing: str
    """Such as ``0 2 * * * in Europe/Berlin`` or ``every 15 min``."""
    zone: str
    """The time zone of the cron expression; empty for an interval."""
    inputs: UserValue
    """The inputs of each run, as plain data by parameter."""
    catch_up: CatchUp
    max_catch_up: int
    overlap: Overlap
    queue: str | None
    key: str | None
    """The queue key of its runs; ``None``: that of the workflow's queue."""
    priority: int
    tags: tuple[str, ...]
    created_at: UtcDatetime
    next_at: UtcDatetime | None
    """When it fires next; in the past if it is due. ``None``: it is paused, or never fires again."""
    processed_until: UtcDatetime
    """Ticks up to this time have fired or were skipped."""
    paused_at: UtcDatetime | None
    last_run_id: str
    """The id of the last run that it started; empty if there is none."""
    last_run_state: RunState | None
    """The state of that run; ``None`` also if the run was deleted."""
    skipped_at: UtcDatetime | None
    """The last tick that started nothing, because the previous run had not ended."""
    is_declared_in_code: bool
    """It is declared in code, not created by a client."""
    is_announced: bool
    """A live worker has that code. If none has, the code may be gone; the schedule stays until it is deleted."""
    budget: Budget | None = None
    """The budget of each run; ``None``: that of the workflow. The same for ``max_deliveries``."""
    max_deliveries: int | None = None

    @property
    def tag(self) -> str:
        """The tag of its runs, for ``client.list(tag=...)``."""
        return f"schedule:{self.name}"

    @classmethod
    def from_row(cls, schedule: Schedule, last_run: Run | None) -> ScheduleInfo:
        """The schedule in a row, with its last run."""
        definition = schedule.definition
        try:
            timing, next_at = parse_timing(definition.timing), get_next_tick(schedule)
        except HoldfastError:  # a time zone that this machine does not know: workers report it as well
            timing = next_at = None
        return cls(
            name=definition.name,
            workflow=definition.workflow,
            timing=definition.timing,
            zone=timing.zone if isinstance(timing, Cron) else "",
            inputs=decode_plain(definition.inputs),
            catch_up=definition.catch_up,
            max_catch_up=definition.max_catch_up,
            overlap=definition.overlap,
            queue=definition.queue,
            key=definition.queue_key,
            priority=definition.priority,
            tags=definition.tags,
            created_at=to_datetime(schedule.created_at),
            next_at=to_datetime(next_at),
            processed_until=to_datetime(schedule.fired_up_to),
            paused_at=to_datetime(schedule.paused_at),
            last_run_id=schedule.last_run,
            last_run_state=None if last_run is None else last_run.state,
            skipped_at=to_datetime(schedule.last_skipped_at),
            is_declared_in_code=definition.is_declared_in_code,
            is_announced=schedule.is_announced,
            budget=None if definition.budget is None else Budget.from_limits(definition.budget),
            max_deliveries=definition.max_deliveries,
        )


async def build_schedule_info(schedule: Schedule, last_run: Run | None) -> ScheduleInfo:
    """``ScheduleInfo.from_row``, with large inputs decoded off the event loop."""
    return await run_off_loop(len(schedule.definition.inputs), lambda: ScheduleInfo.from_row(schedule, last_run))


async def list_schedules(store: Store, names: Collection[str] | None = None) -> list[ScheduleInfo]:
    """All schedules, or those with these names, with the states of their last runs."""
    found = await store.schedules.list(names)
    runs = {run.id: run for run in await store.get_runs([one.last_run for one in found if one.last_run])}
    return [await build_schedule_info(one, runs.get(one.last_run)) for one in found]


async def find_schedule(store: Store, name: str) -> Schedule:
    """The schedule with this name. Raises ``UnknownSchedule``, which suggests a similar name."""
    found = await store.schedules.list([name])
    if found:
        return found[0]
    known = [one.definition.name for one in await store.schedules.list()]
    raise UnknownSchedule(f"there is no schedule {name!r} in {store.url}: {suggest_name(name, known)}")


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """A request to create a schedule: see ``ClientSchedules.create``."""

    name: str
    workflow: str
    cron: str | None = None
    every: Duration | None = None
    zone: str | None = None
    start: datetime | float | None = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    catch_up: CatchUp = "last"
    max_catch_up: int = 100
    overlap: Overlap = "allow"
    queue: str | Queue | None = None
    key: str | int | None = None
    priority: int = 0
    tags: Collection[str] = ()
    budget: Budget | None = None
    max_deliveries: int | None = None
    replace: bool = False


def check_request(request: ScheduleRequest) -> None:
    """Raise ``UsageError`` for options that no schedule can have. It needs no store, so that every client calls it."""
    with _prefix_errors(request.name):
        validate_schedule_name(request.name)
        make_timing(request.cron, request.every, request.zone, request.start)
        _check_options(request.catch_up, request.max_catch_up, request.overlap, request.tags)
        validate_start_key(request.key, "key", "")
        validate_priority(request.priority, "")
        validate_max_deliveries(request.max_deliveries, "")
        if request.queue is not None:
            declare_queue(request.queue)


@contextmanager
def _prefix_errors(name: str) -> Generator[None]:
    """Let errors begin with the name of the schedule."""
    try:
        yield
    except InputError as error:
        raise InputError(f"schedule {name!r}: {error}", error.violations) from None
    except HoldfastError as error:
        raise type(error)(f"schedule {name!r}: {error}") from None


async def create_schedule(store: Store, request: ScheduleRequest, spec: WorkflowSpec) -> ScheduleInfo:
    """Create a schedule of a workflow, unless the same one exists."""
    where = f"schedule {request.name!r}"
    args, kwargs = tuple(request.args), dict(request.kwargs or {})
    with _prefix_errors(request.name):
        # Always in a thread, because the size of values that are encoded already is not known.
        inputs = await run_off_loop(LARGE_BYTES + 1, lambda: bind_inputs(spec, args, kwargs))
        new = build_schedule(
            request.name,
            spec,
            inputs,
            make_timing(request.cron, request.every, request.zone, request.start),
            catch_up=request.catch_up,
            max_catch_up=request.max_catch_up,
            overlap=request.overlap,
            queue=request.queue,
            key=request.key,
            priority=request.priority,
            tags=request.tags,
            budget=request.budget,
            max_deliveries=request.max_deliveries,
        )
    if isinstance(request.queue, Queue):
        await store.queues.declare([NewQueue(request.queue.name, request.queue.limits)])
    [stored] = await store.schedules.put([new], replace=False)
    if stored.definition != new:
        if stored.definition.is_declared_in_code:
            raise UsageError(
                f"{where} is declared in code: change it there (workers that start announce it again), or choose "
                f"another name"
            )
        if not request.replace:
            raise UsageError(
                f"{where} is there already, and is another one ({stored.definition.workflow!r}, "
                f"{stored.definition.timing}): choose another name, or pass replace=True to change it"
            )
        [stored] = await store.schedules.put([new])
    return await build_schedule_info(stored, await store.get_run(stored.last_run) if stored.last_run else None)


async def trigger_schedule(store: Store, schedule: Schedule, spec: WorkflowSpec, id: str | None) -> str:
    """Start a run of a schedule now, or join the run with this ``id``. Returns the run's id."""
    new = await run_off_loop(len(schedule.definition.inputs), lambda: make_manual_run(schedule, spec, store.now()))
    new = new if id is None else replace_in(new, id=validate_run_id(id))
    [result] = await store.commit([StartRun(new)])
    run = resolve_start(result, new, join_unsuccessful=id is not None)
    # Make it the last run of the schedule. If a tick fires meanwhile, its run is the last one, which is fine too.
    await store.schedules.advance(schedule.definition.name, schedule.fired_up_to, schedule.fired_up_to, run_id=run.id)
    return run.id

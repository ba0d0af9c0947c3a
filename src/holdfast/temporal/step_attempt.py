"""An attempt of a step, in an activity.

The activity itself (``activities``) runs in the thread of Temporal's workers. The step runs on the program's event
loop, or in a thread if it is a plain function. So a step that blocks the loop does not keep its worker from sending
heartbeats.

**What counts as an attempt.** Temporal counts every delivery of an activity, even when the worker died or stopped. A
step's ``retries`` are only for its failures. So Temporal retries without limit, and the details of the heartbeat hold
the counts, next to the step's ``progress``: the attempts that started, and those that failed or were handed over. The
other ones killed their worker. A run is dead when its step has done so ``max_deliveries`` times. An attempt that did
not start does not count: Temporal delivers activities to a frozen worker, or to a machine that is gone, until it
notices that the connection is dead.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from holdfast.admission.usage import Usage
from holdfast.background_tasks import forget_cancel_requests
from holdfast.codec import codec_for, encode_error, get_error_message, preview_arguments, validate_size
from holdfast.core.records import Record, RecordKind
from holdfast.core.seeded_random import SeededRandom
from holdfast.engine.attempts import call_sync_step, make_self_cancelled_error, run_with_timeout
from holdfast.engine.definitions import ModelUsage, StepCall, StepDefinition
from holdfast.engine.step_context import StepContext, current_context
from holdfast.engine.step_outcome import StepOutcome
from holdfast.errors import FenceLost, StepFailed, UnrecordableValue
from holdfast.stores.contract import History
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import ClientOp, OpStatus, Run
from holdfast.stores.temporal.budgets import StepRef
from holdfast.telemetry.telemetry import StepTelemetry
from holdfast.temporal.budget_reservation import BudgetReservation
from holdfast.temporal.engine_context import StartedCommand

if TYPE_CHECKING:
    from holdfast.temporal.engine import TemporalEngine

T = TypeVar("T")

_progress_codec = codec_for(Any)


@dataclass(frozen=True, slots=True)
class PastAttempts:
    """The earlier attempts of a step: the details of a heartbeat."""

    failure_count: int = 0
    handed_over_count: int = 0
    """Attempts during which a worker stopped cleanly."""
    started_count: int = 0
    """Attempts that have started, including the current one."""
    lookup_failure_count: int = 0
    """Attempts that did not find the step's command; these have started as well."""
    progress: str | None = None
    """The last argument of ``heartbeat``, encoded."""
    error: str = ""
    """Why the last attempt failed, for people to read."""
    failing_since: float | None = None
    """When the first attempt failed."""

    @classmethod
    def from_details(cls, details: Any) -> PastAttempts:
        """Read the stored form. Unknown fields are ignored."""
        if not isinstance(details, dict):
            return cls()
        values = cast(dict[str, Any], details)
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})

    def to_details(self) -> dict[str, Any]:
        """The stored form."""
        return asdict(self)

    def with_started_attempt(self, attempt: int) -> PastAttempts:
        """Count the current attempt, which is Temporal's delivery of this number."""
        # The first worker may have died before it could send a heartbeat: assume that it started the step.
        return replace(self, started_count=max(self.started_count, 1 if attempt > 1 else 0) + 1)

    @property
    def death_count(self) -> int:
        """The number of workers that the earlier attempts killed."""
        return self.started_count - 1 - self.failure_count - self.handed_over_count - self.lookup_failure_count


class Outcome(NamedTuple):
    """The outcome of an attempt."""

    payload: bytes
    """The encoded value, or error."""
    error: BaseException | None = None
    usage: str = ""
    """Its usage, as JSON."""


class StepAttempt:
    """One attempt: the step's ``StepExecutor``. Created in the workers' thread, and executed on the program's loop."""

    def __init__(
        self,
        engine: TemporalEngine,
        started_command: StartedCommand,
        execution_id: str,
        past: PastAttempts,
        send_heartbeat: Callable[[PastAttempts], None],
        save_past: Callable[[PastAttempts], Coroutine[Any, Any, None]],
    ) -> None:
        self.memory_change: MemoryChange | None = None
        self.reported_usage: ModelUsage | None = None
        self.run = started_command.run
        self.engine = engine
        self._call: StepCall = started_command.command.call
        self._position = started_command.command.position
        self.number = past.failure_count + 1
        self.past = past
        self.stop_reason: BaseException | None = None
        self._send_heartbeat = send_heartbeat
        self._save_past = save_past
        self._has_ended = False
        self.telemetry: StepTelemetry | None = None
        self._used: ModelUsage | None = None
        self._started_at = engine.clock.now()
        step_ref = StepRef(self.run.id, execution_id, self._position)
        self._reservation = BudgetReservation(engine.client, started_command.budgets, step_ref, self.step.name)

    @property
    def step(self) -> StepDefinition:
        """The definition of the step."""
        return self._call.step

    @property
    def idempotency_key(self) -> str:
        """The same in all attempts, after crashes, and on replay."""
        return SeededRandom(self.run.seed, self.run.rewind_points).derive_idempotency_key(
            self._position, self.step.name
        )

    @property
    def failing_since(self) -> float | None:
        """When the first attempt failed."""
        return self.past.failing_since

    # Execution, on the program's loop

    async def execute(self) -> Outcome:
        """Make the attempt."""
        try:
            value = await self._call_step()
        except asyncio.CancelledError:
            if self.stop_reason is not None or self.engine.is_stopping:
                raise
            error: BaseException = make_self_cancelled_error(self.step, self.run.id)
        except FenceLost as lost:
            if self.stop_reason is not None:
                raise asyncio.CancelledError from lost
            error = StepFailed(f"the step raised {lost!r}", self.step.name)
        except (SystemExit, KeyboardInterrupt) as stop:
            error = StepFailed(f"the step raised {type(stop).__name__}: {get_error_message(stop)}", self.step.name)
        except BaseException as raised:
            error = raised
        else:
            try:
                await forget_cancel_requests()
                return await self._encode_outcome(value)
            except (Exception, SystemExit, KeyboardInterrupt) as refused:
                error = refused
        finally:
            self._has_ended = True
        return Outcome(encode_error(error), error)

    async def _call_step(self) -> Any:
        step, args, kwargs = self._call
        encoded = self.past.progress
        progress = None if encoded is None else _progress_codec.decode(encoded.encode(), "heartbeat progress")
        current_context.set(StepContext(self, self.number, progress))
        if (telemetry := self.engine.context.telemetry) is not None:
            self.telemetry = telemetry.find_run(self.run).start_step(step, self._position, self._started_at)
            self.telemetry.enter()
        if step.is_async:
            call = partial(step.function, *args, **kwargs)
        else:
            call = partial(self._call_in_thread, args, kwargs)
            await self.engine.thread_pool.reserve()
        return await run_with_timeout(step, self.run.id, self.number, call)

    async def _call_in_thread(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        context = contextvars.copy_context()
        call = partial(call_sync_step, self.step, args, kwargs)
        return await self.engine.thread_pool.run(lambda: context.run(self._call_unless_stopped, call))

    def _call_unless_stopped(self, call: Callable[[], Any]) -> Any:
        """In the thread: the step may have been stopped while it waited for a thread."""
        if self.stop_reason is not None:
            raise FenceLost(f"step {self.step.name!r} had not begun when it was stopped")
        return call()

    async def _encode_outcome(self, value: Any) -> Outcome:
        step = self.step
        self._used = self.reported_usage if step.read_usage is None else step.read_usage(value)
        label = f"the output of step {step.name!r}"
        try:
            payload, _ = step.output_codec.round_trip(value, label)
            validate_size(payload, label, self.engine.max_value)
        except UnrecordableValue as refused:
            return Outcome(encode_error(refused), refused)
        if self.memory_change is not None:
            await self.engine.writer.perform(self.memory_change)
        used = await self.report_usage()
        return Outcome(payload, None, "" if used is None else json.dumps({**asdict(used.usage), "model": used.model}))

    def end_telemetry(self, outcome: Outcome) -> None:
        """The outcome is that of the step: no attempt follows."""
        if self.telemetry is not None:
            record = Record(
                0, RecordKind.STEP, self._position, self.step.name, outcome.error is None, outcome.payload,
                self.engine.clock.now(), self._started_at, self.number,
                preview=preview_arguments(self.step.parameters, self._call.args, self._call.kwargs),
            )  # fmt: skip
            usage, model = self._used or self.reported_usage or (None, "")
            self.telemetry.end(
                record,
                StepOutcome(record.ok, record.payload, record.started_at, record.attempts, record.preview,
                            usage=usage, model=model),
            )  # fmt: skip

    # The step's requests (see `engine.step_context.StepExecutor`)

    def heartbeat(self, context: StepContext, progress: Any) -> None:
        """Send a heartbeat, from the thread of the step."""
        if isinstance(self.stop_reason, FenceLost):
            raise FenceLost(f"run {context.run_id!r} is held by another worker now; step {context.name!r} must stop")
        if self.stop_reason is not None:
            raise asyncio.CancelledError(f"the workflow no longer waits for step {context.name!r}")
        if self._has_ended:
            raise asyncio.CancelledError(f"attempt {context.attempt} of step {context.name!r} is over")
        if progress is not None:
            self._set_progress(context, progress)
            self._send_heartbeat(self.past)

    async def save_progress(self, context: StepContext, progress: Any) -> None:
        """Send a heartbeat, and wait until Temporal has it."""
        self.heartbeat(context, None)
        self._set_progress(context, progress)
        await self._save_past(self.past)

    def _set_progress(self, context: StepContext, progress: Any) -> None:
        label = f"the progress of step {context.name!r}"
        encoded = validate_size(_progress_codec.encode(progress, label), label, self.engine.max_value)
        self.past = replace(self.past, progress=encoded.decode())

    def publish_text(self, context: StepContext, text: str) -> None:
        """Does nothing: Temporal has no live events."""

    def get_text_appender(self, context: StepContext, request_number: int) -> Callable[[str], None]:
        """Does nothing, for the same reason."""
        return lambda _: None

    async def reserve(self, expected: Usage) -> None:
        """Make a reservation with the run's budgets."""
        await self._reservation.reserve(expected)

    async def report_usage(self) -> ModelUsage | None:
        """Report the usage of a step that has an outcome to the run's budgets."""
        used = self._used
        if self.run.has_budget:
            usage, model = used or ModelUsage(Usage(), "")
            used = ModelUsage(replace(usage, seconds=max(0.0, self.engine.clock.now() - self._started_at)), model)
            await self._reservation.report_usage(used.usage)
        return used

    async def release_reservation(self) -> None:
        """Release the reservation of a step without an outcome that is not attempted again."""
        await self._reservation.release()

    async def get_previous_run_id(self) -> str:
        """The run before this one in its session."""
        run = self.run
        return run.previous_run if run.previous_run or not run.session else await self.engine.find_previous_run(run)

    async def remind_approval(
        self, approval_id: str, reminder_count: int, assignee: str, expires_at: float | None
    ) -> bool:
        """Note that people were reminded of an approval."""
        return await self.engine.update_run(self.run, "remind", approval_id, reminder_count, assignee, expires_at)

    async def withdraw_approval(self, approval_id: str) -> bool:
        """Withdraw an approval."""
        return await self.engine.update_run(self.run, "withdraw", approval_id)

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """Another run's row and journal."""
        return await self.engine.read_run(run_id)

    async def change_run(self, op: ClientOp) -> OpStatus:
        """Change another run."""
        return await self.engine.change_run(op)


class CrossLoopTask(Generic[T]):
    """A coroutine on the program's loop that a caller awaits on another loop. Its ``future`` survives ``cancel``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Callable[[], Coroutine[Any, Any, T]],
        context: contextvars.Context,
    ) -> None:
        self._loop = loop
        self._caller_loop = asyncio.get_running_loop()
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        self.future: asyncio.Future[T] = self._caller_loop.create_future()
        loop.call_soon_threadsafe(self._start, coro, context)

    def _start(self, coro: Callable[[], Coroutine[Any, Any, T]], context: contextvars.Context) -> None:
        self._task = self._loop.create_task(coro(), context=context)
        self._task.add_done_callback(self._on_task_done)
        if self._is_cancelled:
            self._task.cancel()

    def _on_task_done(self, task: asyncio.Task[T]) -> None:
        try:
            self._caller_loop.call_soon_threadsafe(self._copy_result, task)
        except RuntimeError:
            pass  # the workers' loop has closed, so there is no caller

    def _copy_result(self, task: asyncio.Task[T]) -> None:
        if self.future.done():
            return
        if task.cancelled():
            self.future.cancel()
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())

    def cancel(self) -> None:
        """Cancel the coroutine; the ``future`` still gets its outcome."""
        self._is_cancelled = True
        try:
            self._loop.call_soon_threadsafe(self._cancel_task)
        except RuntimeError:
            pass  # the program's loop has closed

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

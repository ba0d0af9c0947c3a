"""The activities of an engine: executing steps, and waiting for runs.

They run in the thread of Temporal's workers, which user code cannot block. A running activity sends several heartbeats
within Temporal's heartbeat timeout. If the process dies, the heartbeats stop, and another worker gets the activity
within seconds.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from holdfast.admission.retry_policy import RetryPolicy
from holdfast.codec import encode_error, read_error_info, validate_size
from holdfast.core.states import RunState
from holdfast.engine.definitions import StepCall
from holdfast.errors import FenceLost, HoldfastError, NonDeterminismError, ValueTooLarge
from holdfast.run_log import RunLog
from holdfast.stores.run_errors import encode_death_error
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.awaited_run import AwaitedRun, FoundRun, found_run_to_json
from holdfast.stores.temporal.payloads import from_payload, to_raw_value
from holdfast.temporal.engine_context import EngineContext, StartedCommand
from holdfast.temporal.failures import make_failure, make_handover_failure, truncate_error
from holdfast.temporal.program_activity import ProgramActivity
from holdfast.temporal.rebuilt_runs import RebuiltRuns
from holdfast.temporal.step_attempt import CrossLoopTask, Outcome, PastAttempts, StepAttempt

if TYPE_CHECKING:
    from holdfast.temporal.engine import TemporalEngine

log = logging.getLogger("holdfast.engine")

HEARTBEATS_PER_TIMEOUT = 5
"""Heartbeats within the time after which Temporal gives a silent activity to another worker."""

MAX_LOOKUP_FAILURES = 6
"""How often, over half a minute, workers may fail to find a step's command before the step fails."""

DECLINE_DELAY_S = 1.0
"""The delay before Temporal offers a declined step again. A worker whose event loop is blocked declines steps."""

RELEASE_INTERVAL_S = 0.01

CLEANUP_TIMEOUT_S = 10.0
"""How long a stopped step may take to clean up."""


class Activities:
    """The activities of one engine.

    Args:
        engine_context: what they share with its runs.
        engine: the engine, for steps.
        loop: the program's event loop, on which steps run.
        rebuilt_runs: finds commands of runs that are not in memory.
        client: the connection to Temporal.
        find_run: finds a run, or waits for its end.
        is_stuck: whether the program's loop has been blocked for too long. Then steps send no heartbeats, and Temporal
            gives them to other workers.
    """

    def __init__(
        self,
        engine_context: EngineContext,
        engine: TemporalEngine,
        loop: asyncio.AbstractEventLoop,
        rebuilt_runs: RebuiltRuns,
        client: Client,
        find_run: Callable[[AwaitedRun], Coroutine[Any, Any, FoundRun | None]],
        is_stuck: Callable[[], bool],
    ) -> None:
        self._engine_context = engine_context
        self.engine = engine
        self.loop = loop
        self._rebuilt_runs = rebuilt_runs
        self._client = client
        self._find_run = find_run
        self.is_stuck = is_stuck
        self._hand_over_callbacks: list[Callable[[], None]] = []
        self._await_tasks: set[asyncio.Task[FoundRun | None]] = set()
        self._is_stopping = False
        self.programs: set[ProgramActivity] = set()
        """The programs that are executed here."""
        self.handed_over = asyncio.Event()
        """Set when this worker takes no more tasks: from then on, others get its activities."""
        self.is_releasing = False
        """Whether this worker starts no more programs."""

    @activity.defn(dynamic=True)
    async def run_activity(self, args: Sequence[RawValue]) -> RawValue:
        """Execute an activity of any type."""
        if activity.info().activity_type == identifiers.AWAIT_RUN_ACTIVITY:
            return await self._await_run(AwaitedRun.from_json(from_payload(args[0].payload)))
        if activity.info().activity_type == identifiers.PROGRAM_ACTIVITY:
            return await ProgramActivity(self, self._engine_context).execute()
        return await self._run_step()

    async def _await_run(self, awaited: AwaitedRun) -> RawValue:
        async def send_heartbeats() -> None:
            while True:
                await asyncio.sleep(self.get_heartbeat_interval_s())
                activity.heartbeat()

        heartbeats = asyncio.create_task(send_heartbeats())
        search = asyncio.create_task(self._find_run(awaited))
        try:
            if self._is_stopping:
                raise make_handover_failure()
            self._await_tasks.add(search)
            return to_raw_value(self._encode_found(awaited, await search))
        except asyncio.CancelledError:
            if self._is_stopping:
                raise make_handover_failure() from None
            raise
        finally:
            self._await_tasks.discard(search)
            search.cancel()
            heartbeats.cancel()

    def _encode_found(self, awaited: AwaitedRun, found: FoundRun | None) -> bytes:
        """The activity's result. If the run's output is too large for a history, the result is that error, because
        otherwise Temporal would retry the activity forever."""
        result = found_run_to_json(found)
        try:
            return validate_size(result, f"how run {awaited.run_id!r} ended", self.engine.max_value)
        except ValueTooLarge as error:
            assert found is not None
            return found_run_to_json(found._replace(state=RunState.FAILED, output=None, error=encode_error(error)))

    async def _run_step(self) -> RawValue:
        info = activity.info()
        assert info.workflow_run_id is not None
        position = identifiers.parse_activity_position(info.activity_id)
        past = PastAttempts.from_details(
            info.heartbeat_details[0] if info.heartbeat_details else None
        ).with_started_attempt(info.attempt)
        step_activity = _StepActivity(self, info, past)
        is_once = info.retry_policy is not None and info.retry_policy.maximum_attempts == 1
        if self.is_stuck() and not is_once:
            raise step_activity.decline()
        heartbeats = asyncio.create_task(step_activity.send_heartbeats())
        try:
            try:
                if info.attempt > 1:
                    # If the step kills this worker at once, this attempt must already be counted.
                    await self.save_past_attempts(info, past)
                started = await self._find_command(info, position)
            except (HoldfastError, RPCError) as error:
                raise step_activity.record_lookup_failure(error) from None
            run, step = started.run, started.command.name
            if past.death_count >= run.max_deliveries:
                error = encode_death_error(run.id, past.death_count, circumstance=f"step {step!r} was in flight")
                raise make_failure(error, RunState.DEAD)
            if past.death_count:
                self.run_log.log_takeover(run, step=step)
            self._engine_context.add_running_step(info.workflow_run_id, position, step_activity.cancel)
            return await step_activity.execute(started)
        finally:
            self._engine_context.remove_running_step(info.workflow_run_id, position)
            heartbeats.cancel()

    async def _find_command(self, info: activity.Info, position: int) -> StartedCommand:
        """The command of an activity."""
        assert info.workflow_id is not None
        assert info.workflow_run_id is not None
        found = self._engine_context.find_command(info.workflow_run_id, position)
        if found is None or found.command.context is None:
            found = await self._rebuilt_runs.find_command(info.workflow_id, info.workflow_run_id, position)
        call = found.command.call
        if not isinstance(call, StepCall) or call.step.name != info.activity_type:
            raise NonDeterminismError(
                f"the code of this worker has {found.command.kind.label} {found.command.name!r} in its place, so it "
                f"has changed since the step was begun. Ask `patched` which way to take where code changes under runs, "
                f"or let a worker with the code of that time go on with the run"
            )
        return found

    async def save_past_attempts(self, info: activity.Info, past: PastAttempts) -> None:
        """Store the attempts so far in Temporal, and wait until they are stored."""
        with suppress(AsyncActivityCancelledError):  # the SDK also notices the cancellation, and stops the activity
            await self._client.get_async_activity_handle(task_token=info.task_token).heartbeat(past.to_details())

    @property
    def run_log(self) -> RunLog:
        """The engine's log of runs and steps."""
        return self._engine_context.run_log

    def get_heartbeat_interval_s(self) -> float:
        """The time between two heartbeats."""
        return self._engine_context.settings.heartbeat_timeout_s / HEARTBEATS_PER_TIMEOUT

    # Stopping

    def add_running_step(self, hand_over: Callable[[], None]) -> None:
        """Note a running step, which ``hand_over`` stops."""
        self._hand_over_callbacks.append(hand_over)
        if self._is_stopping:
            hand_over()

    def remove_running_step(self, hand_over: Callable[[], None]) -> None:
        """Note that a step does not run any more."""
        self._hand_over_callbacks.remove(hand_over)

    @property
    def running_step_count(self) -> int:
        """The number of running steps."""
        return len(self._hand_over_callbacks)

    async def release_programs(self, should_stop: Callable[[], bool]) -> None:
        """Stop programs when their steps in flight have ended, or ``should_stop``.

        What they record on the way is written by workflows, which this worker must still execute meanwhile.
        """
        self.is_releasing = True
        while self.programs:
            await asyncio.gather(*(program.release(should_stop) for program in list(self.programs)))
            await asyncio.sleep(RELEASE_INTERVAL_S)  # one that is about to start has not noticed

    def hand_over(self) -> None:
        """Leave all running activities, and those that still arrive, to other workers, because this one stops."""
        self._is_stopping = True
        self.handed_over.set()
        for stop in list(self._hand_over_callbacks):
            stop()
        for search in list(self._await_tasks):
            search.cancel()


class _StepActivity:
    """One activity that executes a step."""

    def __init__(self, activities: Activities, info: activity.Info, past: PastAttempts) -> None:
        self._activities = activities
        self._info = info
        self._past = past
        self._attempt: StepAttempt | None = None
        self._task: CrossLoopTask[Outcome] | None = None
        self._is_handed_over = False
        self._worker_loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        """The context in which the SDK knows the current activity."""

    async def send_heartbeats(self) -> None:
        """Send heartbeats. A short step needs none: its start is known."""
        while True:
            await asyncio.sleep(self._activities.get_heartbeat_interval_s())
            if not self._activities.is_stuck():
                self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        activity.heartbeat((self._past if self._attempt is None else self._attempt.past).to_details())

    async def execute(self, started_command: StartedCommand) -> RawValue:
        """Make an attempt, and return its outcome."""
        assert self._info.workflow_run_id is not None
        engine, loop = self._activities.engine, self._activities.loop
        attempt = self._attempt = StepAttempt(
            engine,
            started_command,
            self._info.workflow_run_id,
            self._past,
            self._request_heartbeat,
            self._save_past_attempts,
        )
        context = started_command.command.context
        task = self._task = CrossLoopTask(
            loop, attempt.execute, contextvars.Context() if context is None else context.copy()
        )
        self._activities.add_running_step(self._hand_over)
        try:
            outcome = await asyncio.shield(task.future)
        except asyncio.CancelledError:
            return await self._finish_stopped(attempt, task)
        finally:
            self._activities.remove_running_step(self._hand_over)
        if outcome.error is None:
            attempt.end_telemetry(outcome)
            return _encode_outcome(outcome)
        failure = self._make_failure(attempt, truncate_error(outcome.payload, engine.max_value), outcome.error)
        if failure.non_retryable:
            attempt.end_telemetry(outcome)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(attempt.report_usage(), loop))
        raise failure

    def _request_heartbeat(self, past: PastAttempts) -> None:
        """Send a heartbeat with new details of the step; called from any thread."""
        self._worker_loop.call_soon_threadsafe(self._send_heartbeat, context=self._context)

    async def _save_past_attempts(self, past: PastAttempts) -> None:
        """The same, on the program's loop, and wait for it."""
        self._request_heartbeat(past)
        saving = self._activities.save_past_attempts(self._info, past)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(saving, self._worker_loop))

    async def _finish_stopped(self, attempt: StepAttempt, task: CrossLoopTask[Outcome]) -> RawValue:
        """Stop a step: its run no longer needs the outcome, another worker has it, or this worker stops."""
        details = activity.cancellation_details()
        if attempt.stop_reason is None:
            is_taken_over = details is not None and not details.cancel_requested
            lost = FenceLost(f"step {attempt.step.name!r} of run {attempt.run.id!r} must stop")
            attempt.stop_reason = lost if is_taken_over else asyncio.CancelledError()
        task.cancel()
        await self._wait_for_cleanup(task)
        if task.future.done() and not task.future.cancelled() and task.future.exception() is None:
            outcome = task.future.result()
            if outcome.error is None and (attempt.step.compensation is not None or self._is_handed_over):
                return _encode_outcome(outcome)  # the step completed, and may have to be compensated
        if not isinstance(attempt.stop_reason, FenceLost):
            await self._release_reservation(attempt)
        if details is None and not self._is_handed_over:
            # Its own run stopped it, in this process, before Temporal has reported the cancellation.
            self._send_heartbeat()
            with suppress(TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(activity.wait_for_cancelled(), CLEANUP_TIMEOUT_S)
            details = activity.cancellation_details()
        if details is not None and details.cancel_requested:
            raise asyncio.CancelledError
        # Another worker continues it; or the run has ended, and Temporal ignores the failure.
        attempt.past = replace(attempt.past, handed_over_count=attempt.past.handed_over_count + 1)
        self._send_heartbeat()  # the failure carries the last heartbeat
        raise make_handover_failure()

    async def _wait_for_cleanup(self, task: CrossLoopTask[Outcome]) -> None:
        """Wait for the end of the task, even if this is cancelled again meanwhile."""
        until = self._worker_loop.time() + CLEANUP_TIMEOUT_S
        while not task.future.done() and (left_s := until - self._worker_loop.time()) > 0:
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task.future], timeout=left_s)

    def record_lookup_failure(self, error: Exception) -> ApplicationError:
        """Count a failure to find the step's command: another worker may find it, or this one later."""
        info, failure_count = self._info, self._past.lookup_failure_count + 1
        self._past = replace(self._past, lookup_failure_count=failure_count)
        self._send_heartbeat()  # the failure carries the last heartbeat
        return ApplicationError(
            f"step {info.activity_type!r} of run {info.workflow_id!r} cannot be found again: {error}",
            type=type(error).__name__,
            non_retryable=failure_count >= MAX_LOOKUP_FAILURES,
            next_retry_delay=timedelta(seconds=2 ** (failure_count - 1)),
        )

    def decline(self) -> ApplicationError:
        """Leave the attempt to another worker: the program's loop is blocked, perhaps by this very step."""
        self._past = replace(self._past, handed_over_count=self._past.handed_over_count + 1)
        self._send_heartbeat()  # the failure carries the last heartbeat
        return make_handover_failure(delay_s=DECLINE_DELAY_S)

    async def _release_reservation(self, attempt: StepAttempt) -> None:
        """Release the reservation of a step that is not executed again. If that fails, others do it (``budgets``)."""
        release = asyncio.run_coroutine_threadsafe(attempt.release_reservation(), self._activities.loop)
        try:
            await asyncio.wait_for(asyncio.wrap_future(release), CLEANUP_TIMEOUT_S)
        except Exception as error:
            log.debug("what step %r had reserved was not given back: %s", attempt.step.name, error)

    def cancel(self) -> None:
        """Stop the step, because its run no longer needs the outcome; called from any thread."""
        self._worker_loop.call_soon_threadsafe(self._stop, asyncio.CancelledError())

    def _hand_over(self) -> None:
        self._is_handed_over = True
        self._stop(FenceLost("the worker stops"))

    def _stop(self, reason: BaseException) -> None:
        if self._attempt is not None and self._attempt.stop_reason is None:
            self._attempt.stop_reason = reason
        if self._task is not None:
            self._task.cancel()

    def _make_failure(self, attempt: StepAttempt, payload: bytes, error: BaseException) -> ApplicationError:
        """The failure of an attempt. The step's own policy decides whether there is another one, and when."""
        retry: RetryPolicy = attempt.step.retry
        number, now = attempt.number, attempt.engine.clock.now()
        since = now if attempt.past.failing_since is None else attempt.past.failing_since
        try:
            delay_s = retry.compute_next_delay_s(number, error, random.random(), now - since)
        except (Exception, SystemExit, KeyboardInterrupt) as raised:  # the user's own predicate
            delay_s, payload = None, encode_error(raised)
        run_log, run, step = self._activities.run_log, attempt.run, attempt.step.name
        if delay_s is None:
            run_log.log_step_failure(run, step, number, payload)
            return make_failure(payload, RunState.FAILED)
        run_log.log_retry(run, step, number, retry.retries, delay_s, payload)
        info = read_error_info(payload)
        words = f"{info.type.rpartition('.')[2]}: {info.message}"[:500]
        attempt.past = replace(attempt.past, failure_count=number, error=words, failing_since=since)
        self._send_heartbeat()  # the failure carries the last heartbeat
        return make_failure(payload, RunState.FAILED, retry_delay_s=delay_s)


def _encode_outcome(outcome: Outcome) -> RawValue:
    return to_raw_value(outcome.payload, {"usage": outcome.usage} if outcome.usage else None)

"""What Temporal's workers hand out: steps to be carried out, and runs to be waited for.

All of this runs in the thread of the workers, which nothing of the user's can block. While an activity is at work, it
tells Temporal so several times within the time that Temporal is patient for; when the process is dead, nobody does, and
another worker is handed the activity in seconds.
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
from typing import Any

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from holdfast.admission.retry_policy import RetryPolicy
from holdfast.codec import encode_error, read_error_info, validate_size
from holdfast.core.states import RunState
from holdfast.engine.definitions import StepCall
from holdfast.errors import FenceLost, HoldfastError, NonDeterminismError, ValueTooLarge
from holdfast.run_log import RunLog
from holdfast.stores.run_errors import encode_death_error
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.payloads import from_payload, to_raw_value
from holdfast.temporal.awaited_run import AwaitedRun, FoundRun
from holdfast.temporal.engine_context import EngineContext, StartedCommand
from holdfast.temporal.error_truncation import truncate_error, truncate_message
from holdfast.temporal.rebuilt_runs import RebuiltRuns
from holdfast.temporal.step_attempt import CrossLoopTask, Outcome, PastAttempts, StepAttempt, StepHost

log = logging.getLogger("holdfast.engine")

HEARTBEATS_PER_TIMEOUT = 5
"""Heartbeats within the time after which Temporal gives a silent activity to somebody else."""

MAX_LOOKUP_FAILURES = 6
"""How often, over half a minute, workers may look for what a step is before it has failed."""

DECLINE_DELAY_S = 1.0
"""The delay before Temporal offers a declined step again. A worker whose event loop is blocked declines steps."""

CLEANUP_TIMEOUT_S = 10.0
"""Seconds that a step that was stopped gets to clean up."""


class Activities:
    """Those of one engine.

    Args:
        engine_context: what they share with its runs.
        host: the engine, as steps see it.
        loop: the program's event loop, on which steps run.
        rebuilt_runs: finds commands of runs that are not in memory.
        client: the way to Temporal.
        find_run: looks for a run, or waits for its end.
        is_stuck: whether the program's loop has been blocked for too long. Then nobody tells Temporal that steps are at
            work, and it hands them to other workers.
    """

    def __init__(
        self,
        engine_context: EngineContext,
        host: StepHost,
        loop: asyncio.AbstractEventLoop,
        rebuilt_runs: RebuiltRuns,
        client: Client,
        find_run: Callable[[AwaitedRun], Coroutine[Any, Any, FoundRun | None]],
        is_stuck: Callable[[], bool],
    ) -> None:
        self._engine_context = engine_context
        self._host = host
        self._loop = loop
        self._rebuilt_runs = rebuilt_runs
        self._client = client
        self._find_run = find_run
        self.is_stuck = is_stuck
        self._hand_over_callbacks: list[Callable[[], None]] = []
        self._await_tasks: set[asyncio.Task[FoundRun | None]] = set()
        self._is_stopping = False

    @activity.defn(dynamic=True)
    async def run_activity(self, args: Sequence[RawValue]) -> RawValue:
        """Whatever the activity is."""
        if activity.info().activity_type == identifiers.AWAIT_RUN_ACTIVITY:
            return await self._await_run(AwaitedRun.from_json(from_payload(args[0].payload)))
        return await self._run_step()

    async def _await_run(self, awaited: AwaitedRun) -> RawValue:
        async def beat() -> None:
            while True:
                await asyncio.sleep(self.get_heartbeat_interval_s())
                activity.heartbeat()

        beating = asyncio.create_task(beat())
        finding = asyncio.create_task(self._find_run(awaited))
        try:
            if self._is_stopping:
                raise _build_handed_over_error()
            self._await_tasks.add(finding)
            return to_raw_value(self._encode_found(awaited, await finding))
        except asyncio.CancelledError:
            if self._is_stopping:
                raise _build_handed_over_error() from None
            raise
        finally:
            self._await_tasks.discard(finding)
            finding.cancel()
            beating.cancel()

    def _encode_found(self, awaited: AwaitedRun, found: FoundRun | None) -> bytes:
        """What is told of a run. If that is too large for a history, so much: else it would be tried again for ever."""
        answer = AwaitedRun.found_to_json(found)
        try:
            return validate_size(answer, f"how run {awaited.run_id!r} ended", self._host.max_value)
        except ValueTooLarge as error:
            assert found is not None
            told = found._replace(state=RunState.FAILED, output=None, error=encode_error(error))
            return AwaitedRun.found_to_json(told)

    async def _run_step(self) -> RawValue:
        info = activity.info()
        assert info.workflow_run_id is not None
        position = identifiers.parse_activity_position(info.activity_id)
        past = PastAttempts.from_details(
            info.heartbeat_details[0] if info.heartbeat_details else None
        ).with_started_attempt(info.attempt)
        at_work = _StepActivity(self, info, past)
        is_once = info.retry_policy is not None and info.retry_policy.maximum_attempts == 1
        if self.is_stuck() and not is_once:
            raise at_work.decline()
        beating = asyncio.create_task(at_work.send_heartbeats())
        try:
            try:
                if info.attempt > 1:
                    # If the step takes this worker down in an instant, that must have been counted.
                    await self.save_past_attempts(info, past)
                begun = await self._find_command(info, position)
            except (HoldfastError, RPCError) as error:
                raise at_work.record_lookup_failure(error) from None
            if past.death_count >= begun.run.max_deliveries:
                in_flight = f"step {begun.command.name!r} was in flight"
                payload = encode_death_error(begun.run.id, past.death_count, circumstance=in_flight)
                raise _build_step_error(Outcome(payload), RunState.DEAD)
            if past.death_count:
                self.run_log.log_takeover(begun.run, step=begun.command.name)
            self._engine_context.add_running_step(info.workflow_run_id, position, at_work.cancel)
            return await at_work.execute(begun, self._host, self._loop)
        finally:
            self._engine_context.remove_running_step(info.workflow_run_id, position)
            beating.cancel()

    async def _find_command(self, info: activity.Info, position: int) -> StartedCommand:
        """The command that the activity is for."""
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
        """Have Temporal keep what is known of the attempts so far, now."""
        with suppress(AsyncActivityCancelledError):  # the SDK is told that as well, and stops it
            await self._client.get_async_activity_handle(task_token=info.task_token).heartbeat(past.to_details())

    @property
    def run_log(self) -> RunLog:
        """What logs the fate of steps."""
        return self._engine_context.run_log

    def get_heartbeat_interval_s(self) -> float:
        """Seconds between two heartbeats."""
        return self._engine_context.settings.heartbeat_timeout_s / HEARTBEATS_PER_TIMEOUT

    # Stopping

    def add_running_step(self, hand_over: Callable[[], None]) -> None:
        """A step is at work, which ``hand_over`` stops."""
        self._hand_over_callbacks.append(hand_over)
        if self._is_stopping:
            hand_over()

    def remove_running_step(self, hand_over: Callable[[], None]) -> None:
        """It is not any more."""
        self._hand_over_callbacks.remove(hand_over)

    @property
    def running_step_count(self) -> int:
        """How many steps are at work."""
        return len(self._hand_over_callbacks)

    def hand_over(self) -> None:
        """The worker stops: whatever is at work, or comes to it now, is to be done by another."""
        self._is_stopping = True
        for stop in list(self._hand_over_callbacks):
            stop()
        for finding in list(self._await_tasks):
            finding.cancel()


class _StepActivity:
    """One activity that carries out a step."""

    def __init__(self, activities: Activities, info: activity.Info, past: PastAttempts) -> None:
        self._activities = activities
        self._info = info
        self._past = past
        self._attempt: StepAttempt | None = None
        self._task: CrossLoopTask | None = None
        self._is_handed_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker_loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        """In which the SDK knows which activity this is."""

    async def send_heartbeats(self) -> None:
        """Tell Temporal again and again that somebody is at work. A short step need not: that it began is known."""
        while True:
            await asyncio.sleep(self._activities.get_heartbeat_interval_s())
            if not self._activities.is_stuck():
                self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        activity.heartbeat((self._past if self._attempt is None else self._attempt.past).to_details())

    async def execute(
        self, started_command: StartedCommand, host: StepHost, loop: asyncio.AbstractEventLoop
    ) -> RawValue:
        """Make an attempt, and tell what came of it."""
        assert self._info.workflow_run_id is not None
        attempt = self._attempt = StepAttempt(
            host,
            started_command,
            self._info.workflow_run_id,
            self._past,
            self._request_heartbeat,
            self._save_past_attempts,
        )
        self._loop = loop
        context = started_command.command.context
        running = self._task = CrossLoopTask(
            loop, attempt.execute, contextvars.Context() if context is None else context.copy()
        )
        self._activities.add_running_step(self._hand_over)
        try:
            outcome = await asyncio.shield(running.future)
        except asyncio.CancelledError:
            return await self._finish_stopped(attempt, running)
        finally:
            self._activities.remove_running_step(self._hand_over)
        if outcome.error is None:
            return _encode_outcome(outcome)
        outcome = outcome._replace(payload=truncate_error(outcome.payload, host.max_value))
        assert outcome.error is not None
        failure = self._build_failure(attempt, outcome, outcome.error)
        if failure.non_retryable:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(attempt.report_usage(), loop))
        raise failure

    def _request_heartbeat(self, past: PastAttempts) -> None:
        """The step has something new to be kept; called from whatever thread."""
        self._worker_loop.call_soon_threadsafe(self._send_heartbeat, context=self._context)

    async def _save_past_attempts(self, past: PastAttempts) -> None:
        """The same, on the program's loop, and waited for."""
        self._request_heartbeat(past)
        asked = asyncio.run_coroutine_threadsafe(
            self._activities.save_past_attempts(self._info, past), self._worker_loop
        )
        await asyncio.wrap_future(asked)

    async def _finish_stopped(self, attempt: StepAttempt, task: CrossLoopTask) -> RawValue:
        """The step is to stop: because nobody wants its outcome, because it is another's now, or the worker stops."""
        details = activity.cancellation_details()
        if attempt.stop_reason is None:
            is_wanted_elsewhere = details is not None and not details.cancel_requested
            lost = FenceLost(f"step {attempt.step.name!r} of run {attempt.run.id!r} must stop")
            attempt.stop_reason = lost if is_wanted_elsewhere else asyncio.CancelledError()
        task.cancel()
        await self._wait_for_cleanup(task)
        if task.future.done() and not task.future.cancelled() and task.future.exception() is None:
            outcome = task.future.result()
            if outcome.error is None and (attempt.step.compensation is not None or self._is_handed_over):
                return _encode_outcome(outcome)  # it was done all the same, and may have to be undone
        if not isinstance(attempt.stop_reason, FenceLost):
            await self._release_reservation(attempt)
        if details is None and not self._is_handed_over:
            # Stopped by its own run, in this process, before Temporal has told that it is to be cancelled.
            self._send_heartbeat()
            with suppress(TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(activity.wait_for_cancelled(), CLEANUP_TIMEOUT_S)
            details = activity.cancellation_details()
        if details is not None and details.cancel_requested:
            raise asyncio.CancelledError
        # Another worker goes on with it, or nobody does because the run is over: then nobody hears this, either.
        attempt.past = replace(attempt.past, handed_over_count=attempt.past.handed_over_count + 1)
        self._send_heartbeat()  # what was told last goes with the failure
        raise _build_handed_over_error()

    async def _wait_for_cleanup(self, task: CrossLoopTask) -> None:
        """Let it come to its end, whoever else wants it to stop meanwhile."""
        until = self._worker_loop.time() + CLEANUP_TIMEOUT_S
        while not task.future.done() and (left := until - self._worker_loop.time()) > 0:
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task.future], timeout=left)

    def record_lookup_failure(self, error: Exception) -> ApplicationError:
        """It cannot be found out what the step is: perhaps another worker can, or this one later."""
        info, missed = self._info, self._past.lookup_failure_count + 1
        self._past = replace(self._past, lookup_failure_count=missed)
        self._send_heartbeat()  # what was told last goes with the failure
        return ApplicationError(
            f"step {info.activity_type!r} of run {info.workflow_id!r} cannot be found again: {error}",
            type=type(error).__name__,
            non_retryable=missed >= MAX_LOOKUP_FAILURES,
            next_retry_delay=timedelta(seconds=2 ** (missed - 1)),
        )

    def decline(self) -> ApplicationError:
        """The program's loop is blocked, perhaps by this very step: another worker is to make the attempt."""
        self._past = replace(self._past, handed_over_count=self._past.handed_over_count + 1)
        self._send_heartbeat()  # the failure carries the last heartbeat
        return _build_handed_over_error(delay_s=DECLINE_DELAY_S)

    async def _release_reservation(self, attempt: StepAttempt) -> None:
        """Nobody carries the step out any more. If that cannot be told, others find out (see ``budgets``)."""
        assert self._loop is not None
        asked = asyncio.run_coroutine_threadsafe(attempt.release_reservation(), self._loop)
        try:
            await asyncio.wait_for(asyncio.wrap_future(asked), CLEANUP_TIMEOUT_S)
        except Exception as error:
            log.debug("what step %r had reserved was not given back: %s", attempt.step.name, error)

    def cancel(self) -> None:
        """Nobody wants the outcome any more; called from whatever thread."""
        self._worker_loop.call_soon_threadsafe(self._stop, asyncio.CancelledError())

    def _hand_over(self) -> None:
        self._is_handed_over = True
        self._stop(FenceLost("the worker stops"))

    def _stop(self, reason: BaseException) -> None:
        if self._attempt is not None and self._attempt.stop_reason is None:
            self._attempt.stop_reason = reason
        if self._task is not None:
            self._task.cancel()

    def _build_failure(self, attempt: StepAttempt, outcome: Outcome, error: BaseException) -> ApplicationError:
        """Whether another attempt is made, and when, is decided by the step's own policy."""
        retry: RetryPolicy = attempt.step.retry
        tried, now = attempt.number, attempt.engine.clock.now()
        since = now if attempt.past.failing_since is None else attempt.past.failing_since
        try:
            delay = retry.compute_next_delay_s(tried, error, random.random(), now - since)
        except (Exception, SystemExit, KeyboardInterrupt) as raised:  # the user's own predicate
            delay, outcome = None, Outcome(encode_error(raised))
        run_log, run, step = self._activities.run_log, attempt.run, attempt.step.name
        if delay is None:
            run_log.log_step_failure(run, step, tried, outcome.payload)
            return _build_step_error(outcome, RunState.FAILED)
        run_log.log_retry(run, step, tried, retry.retries, delay, outcome.payload)
        told = read_error_info(outcome.payload)
        words = f"{told.type.rpartition('.')[2]}: {told.message}"[:500]
        attempt.past = replace(attempt.past, failure_count=tried, error=words, failing_since=since)
        self._send_heartbeat()  # what was told last goes with the failure
        return _build_step_error(outcome, RunState.FAILED, retry_delay_s=delay)


def _encode_outcome(outcome: Outcome) -> RawValue:
    return to_raw_value(outcome.payload, {"usage": outcome.usage} if outcome.usage else None)


def _build_handed_over_error(delay_s: float = 0.001) -> ApplicationError:
    return ApplicationError(
        "not by this worker any more",
        type=identifiers.HANDOVER_FAILURE,
        category=ApplicationErrorCategory.BENIGN,
        next_retry_delay=timedelta(seconds=delay_s),
    )


def _build_step_error(outcome: Outcome, state: RunState, retry_delay_s: float | None = None) -> ApplicationError:
    told = read_error_info(outcome.payload)
    name = told.type.rpartition(".")[2]
    return ApplicationError(
        truncate_message(told.message),
        to_raw_value(outcome.payload, {identifiers.ENDING_NOTE: state}),
        type=name,
        category=ApplicationErrorCategory.BENIGN,  # it is the step's own affair: the SDK need not complain of it
        non_retryable=retry_delay_s is None,
        next_retry_delay=None if retry_delay_s is None else timedelta(seconds=max(0.001, retry_delay_s)),
    )

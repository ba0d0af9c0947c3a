"""One step that is being executed: attempts, timeout, retries, outcome.

``execute`` makes attempts until one of them decides the outcome, which the driver records. ``attempts`` calls the
function once. The outcome of a transactional step is committed before that, together with the step's changes: see
``step_transactions``. ``step_progress`` saves the progress of an attempt.

A step runs on the process's own event loop (a plain function in a thread) with the context variables of the workflow
code that called it. When its worker loses the run, or the workflow cancels the step, its task is cancelled. A thread
cannot be stopped from outside; ``heartbeat`` raises in it, and its outcome is dropped.

The step's code runs in the task that makes the attempts, so it can cancel that task, or leave a cancel request behind.
Only a cancellation by Holdfast (``is_cancelled``) ends the step without an outcome. Any other is a failed attempt.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.admission.retry_policy import RetryPolicy
from holdfast.admission.usage import Usage
from holdfast.background_tasks import forget_cancel_requests
from holdfast.codec import encode_error, get_error_message, preview_arguments, read_error_info, validate_size
from holdfast.core.commands import Command
from holdfast.core.records import Attempt
from holdfast.engine import forked_child, run_approvals
from holdfast.engine.attempts import LEASE_POLL_INTERVAL_S, make_attempt, make_self_cancelled_error
from holdfast.engine.budget_reservation import reserve_budget
from holdfast.engine.definitions import ModelUsage, StepCall, StepDefinition
from holdfast.engine.live_events import LiveEventBuffer
from holdfast.engine.step_context import StepContext, current_context
from holdfast.engine.step_outcome import StepOutcome, make_step_outcome
from holdfast.engine.step_progress import StepProgress, decode_progress
from holdfast.engine.step_transactions import MAX_INTERRUPTIONS, TransactionAborted
from holdfast.errors import FenceLost, StepFailed, UnrecordableValue
from holdfast.stores.contract import History
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import ClientOp, OpStatus, Run
from holdfast.telemetry.telemetry import StepTelemetry

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.host import StepEngine, StepHost

INTERRUPTION_BACKOFF_S = 0.1
"""Seconds before a step is run again after the database has ended its transaction; doubles each time."""

StepInterceptor = Callable[["StepRun", Callable[[], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]
"""Makes one attempt of a step in place of the engine, which passes the call that it would have made."""


class StepRun:
    """A step command on its way to an outcome."""

    # Most steps change few of these, and thousands are made in a second: so they are defaults of the class.
    task: asyncio.Task[None] | None = None
    is_withdrawn = False
    telemetry: StepTelemetry | None = None
    memory_change: MemoryChange | None = None
    """The change of memory by the current attempt: see ``StepExecutor.memory_change``."""
    reported_usage: ModelUsage | None = None
    has_prior_intent = False
    """Whether an earlier worker was about to start this ``once`` step, and may have."""
    retry_at: float | None = None
    failing_since: float | None = None
    is_committing = False
    """The transaction of the attempt is being committed, and cannot be stopped."""
    progress: bytes | None = None
    """What the step last passed to ``heartbeat``."""
    current_context: StepContext | None = None
    """The context of the current attempt."""
    is_detached = False
    attempt_number = 1
    """The number of the current attempt or, while the step waits for the next one, of the one before."""
    started_at = 0.0
    """When the last attempt began."""
    live_event_buffer: LiveEventBuffer | None = None
    has_attempt_row = False
    committed_output: tuple[bytes, Any] | None = None
    """The committed output of the attempt that was just made: encoded, and decoded again."""
    _last_error = ""
    _committed_attempt: Attempt | None = None
    """An attempt whose outcome was committed with the step's changes, and is still to be recorded."""
    _interruption_count = 0
    """Attempts that the database has ended, and that do not count."""
    _is_outcome_expected = False
    """The step was withdrawn during the commit; if it was committed, it must be compensated."""
    _step_progress: StepProgress | None = None
    _outcome: StepOutcome | None = None

    def __init__(self, host: StepHost, driver: Driver, command: Command, earlier_attempt: Attempt | None) -> None:
        self.host = host
        self.driver = driver
        self.command = command
        self.call: StepCall = command.call
        if earlier_attempt is not None:
            self.has_attempt_row = True
            # Else it is left from a step that a retry has removed from the journal.
            if earlier_attempt.name in ("", self.call.step.name):
                self._continue_after(earlier_attempt)

    def _continue_after(self, earlier_attempt: Attempt) -> None:
        self.has_prior_intent = earlier_attempt.intent
        if not earlier_attempt.intent:
            self.attempt_number = earlier_attempt.attempt + (earlier_attempt.retry_at is None)
        self._last_error = earlier_attempt.error
        self.retry_at = earlier_attempt.retry_at
        self.failing_since = earlier_attempt.failing_since
        self.progress = earlier_attempt.progress
        if earlier_attempt.outcome is not None:
            self._committed_attempt = earlier_attempt

    # What the step's code may use (see `step_context.StepExecutor`)

    @property
    def step(self) -> StepDefinition:
        """The step."""
        return self.call.step

    @property
    def run(self) -> Run:
        """The row of its run, as it was when the run came into memory."""
        return self.driver.run

    @property
    def engine(self) -> StepEngine:
        """The engine that executes the step."""
        return self.host

    @property
    def idempotency_key(self) -> str:
        """Stable over attempts, crashes, and replays."""
        return self.driver.execution.seeded_random.derive_idempotency_key(self.command.position, self.step.name)

    async def reserve(self, expected: Usage) -> None:
        """Reserve usage from the run's budgets."""
        await reserve_budget(self, expected)

    async def get_previous_run_id(self) -> str:
        """The id of the previous run in the same session."""
        return self.run.previous_run

    async def remind_approval(
        self, approval_id: str, reminder_count: int, assignee: str, expires_at: float | None
    ) -> bool:
        """Note that people are reminded of an approval."""
        return await run_approvals.remind_approval(self, approval_id, reminder_count, assignee, expires_at)

    async def withdraw_approval(self, approval_id: str) -> bool:
        """Withdraw an approval."""
        return await run_approvals.withdraw_approval(self, approval_id)

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """Another run's row and journal."""
        return await self.host.read_run(run_id)

    async def change_run(self, op: ClientOp) -> OpStatus:
        """Change another run."""
        return await self.host.change_run(op)

    def raise_claim_lost(self) -> NoReturn:
        """Another worker holds the run, says the store: stop the run here, and the step itself."""
        self.driver.handle_claim_lost()
        raise FenceLost(f"run {self.run.id!r} is held by another worker now; step {self.step.name!r} must stop")

    # Executing

    @property
    def is_cancelled(self) -> bool:
        """Whether Holdfast, and not the step itself, has cancelled it: its outcome is not wanted."""
        return self.is_withdrawn or self.driver.is_closed or self.host.is_stopping

    def launch(self) -> None:
        """Start on the process's loop, in the caller's context."""
        if self._committed_attempt is not None:
            attempt = self._committed_attempt
            assert attempt.outcome is not None
            preview = self._preview_arguments()
            outcome = StepOutcome(True, attempt.outcome, attempt.at, attempt.attempt, preview, has_attempt_row=True)
            self.driver.record_outcome(self, outcome)
            return
        self.task = self.host.loop.create_task(self.execute(), context=self.command.context)

    def cancel(self, *, detach: bool = False) -> None:
        """Stop: the outcome is no longer wanted, or (``detach``) this worker no longer holds the run."""
        self.is_detached = detach
        self.is_withdrawn = True
        self.host.live_events.discard(self)
        if self.is_committing and self.call.has_compensation and not detach:
            self._is_outcome_expected = True
            self.driver.recorder.add_pending(self.command.position)
            return
        if self.task is not None and not self.task.done():
            # Its cleanup may take a while, and asyncio itself holds tasks only weakly.
            self.host.lingering_tasks.add(self.task)
            self.task.add_done_callback(self.host.lingering_tasks.discard)
            self.task.cancel()

    def make_intent(self) -> Attempt:
        """The attempt to save before a ``once`` step starts."""
        self.has_attempt_row = True
        return self.to_attempt()._replace(attempt=self.attempt_number)

    def make_intent_withdrawal(self) -> Attempt:
        """The attempt to save when a ``once`` step does not start after all."""
        return self.to_attempt()._replace(intent=False)

    def to_attempt(self) -> Attempt:
        """What is known of the step, for the next attempt to continue from, on any worker."""
        return Attempt(
            self.command.position,
            # A running attempt counts only after it has failed.
            self.attempt_number - (self.retry_at is None),
            intent=self.call.is_once and self.retry_at is None,
            progress=self.progress,
            error=self._last_error,
            at=self.host.clock.now(),
            name=self.call.step.name,
            retry_at=self.retry_at,
            failing_since=self.failing_since,
        )

    async def execute(self) -> None:
        """Make attempts until the step has an outcome, and report it to the driver."""
        # The outcome is an attribute: if the function raises `GeneratorExit`, what this coroutine returns is lost.
        host, driver = self.host, self.driver
        try:
            should_start = self.retry_at is None or await self._wait_for_retry(self.retry_at - host.clock.now())
            while should_start:
                if not host.membership.has_lease():
                    await self._wait_for_lease()
                if driver.is_halted or host.is_draining:  # since this task was created
                    driver.steps.cancel_start(self)
                    return
                self.started_at = host.clock.now()
                host.live_events.start_attempt(self)
                generation = forked_child.generation
                try:
                    try:
                        value = await self._make_attempt()
                    finally:
                        if forked_child.generation != generation:
                            forked_child.exit_child_of_step(self.step.name, sys.exc_info()[1])
                except BaseException as raised:
                    error = raised
                else:
                    self._outcome = self._make_success(value)
                    return
                finally:
                    self.current_context = None
                    host.live_events.discard(self)
                should_start = await self._handle_failed_attempt(error)
                del error
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # A retry predicate or the serializer of the value's own type, which are the user's code, can fail here.
            # Without an outcome, the run would wait forever. The last two would end the worker.
            self._outcome = self._make_failure(error)
        finally:
            self.task = None  # its context refers to this object: only the garbage collector would free the step
            if self._is_outcome_expected:
                self._report_expected()
            elif self._outcome is not None:
                driver.record_outcome(self, self._outcome)

    def _report_expected(self) -> None:
        """The step was withdrawn during its commit: report an outcome that was committed."""
        driver, outcome = self.driver, self._outcome
        if driver.is_closed:
            return
        if outcome is not None and self.committed_output is not None:
            driver.recorder.record_step(self.command, outcome)
        driver.recorder.remove_answered(self.command.position)
        driver.finish_turn()

    async def _handle_failed_attempt(self, raised: BaseException) -> bool:
        """Wait for the next attempt, and return true; or set the outcome, if there is one here, and return false."""
        host, step, driver = self.host, self.call.step, self.driver
        clock, retry = host.clock, step.retry
        error, is_interrupted = raised, False
        match raised:
            case asyncio.CancelledError():
                if self.is_cancelled:
                    return False
                error = make_self_cancelled_error(step, self.run.id)
            case FenceLost():
                if self.is_cancelled:
                    return False
                if driver.is_disabled:
                    driver.steps.postpone(self)
                    return False
                error = StepFailed(f"the step raised {raised!r}", step.name)  # and its run is held here
            case SystemExit() | KeyboardInterrupt():
                error = StepFailed(f"the step raised {type(raised).__name__}: {get_error_message(raised)}", step.name)
            case TransactionAborted():
                error = raised.__cause__ or raised
                is_interrupted = self._interruption_count < MAX_INTERRUPTIONS
            case _:
                pass
        await forget_cancel_requests()
        if self.is_withdrawn:
            return False
        now = clock.now()
        if is_interrupted:
            self._interruption_count += 1
            wait = RetryPolicy(backoff=INTERRUPTION_BACKOFF_S).compute_delay_s(
                self._interruption_count, clock.draw_random()
            )
        else:
            if self.failing_since is None:
                self.failing_since = now
            tried = self.attempt_number - self._interruption_count
            wait = retry.compute_next_delay_s(tried, error, clock.draw_random(), now - self.failing_since)
        if wait is None:
            self._outcome = self._make_failure(error)
            return False
        encoded = encode_error(error)
        self._last_error = f"{type(error).__name__}: {read_error_info(encoded).message}"[:500]
        del error, raised
        self.memory_change = self.committed_output = None
        self.retry_at = now + wait
        self.save_attempt()
        retries = None if retry.retries is None else retry.retries + self._interruption_count
        if self.telemetry is not None:
            self.telemetry.note_retry(self.attempt_number, wait, read_error_info(encoded).type)
        host.run_log.log_retry(self.run, step.name, self.attempt_number, retries, wait, encoded)
        if driver.is_halted or host.is_draining:
            driver.steps.postpone(self)
            return False
        return await self._wait_for_retry(wait)

    async def _wait_for_retry(self, seconds: float) -> bool:
        """Wait for the next attempt; a run that waits for nothing else may leave memory (see ``steps_in_flight``).

        An earlier holder of the run may have waited for a part of the time. False: the step is ``once``, and is
        launched when its intent is durable.
        """
        await self._sleep(max(0.0, seconds))
        self.retry_at = None
        self.attempt_number += 1
        self.host.on_run_busy(self.driver)
        if self.call.is_once:
            self.driver.steps.launch_once(self)
            return False
        return True

    async def _wait_for_lease(self) -> None:
        while not self.host.membership.has_lease():
            await self._sleep(LEASE_POLL_INTERVAL_S)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, even if something that the step's code has left running cancels this task meanwhile."""
        clock = self.host.clock
        until = clock.now() + seconds
        while True:
            try:
                await clock.sleep(seconds)
                return
            except asyncio.CancelledError:
                if self.is_cancelled:
                    raise
                await forget_cancel_requests()
                seconds = max(0.0, until - clock.now())

    def _make_attempt(self) -> Awaitable[Any]:
        """Call the function once."""
        step, args, kwargs = self.call
        progress = None if self.progress is None else decode_progress(self.progress)
        self.current_context = context = StepContext(self, self.attempt_number, progress)
        current_context.set(context)
        if self.telemetry is None and (run := self.driver.telemetry) is not None:
            self.telemetry = run.start_step(step, self.command.position, self.started_at)
            self.telemetry.enter()
        if step.is_plain_async and self.host.step_interceptor is None:
            return step.function(*args, **kwargs)
        return make_attempt(self, context)

    def _make_success(self, value: Any) -> StepOutcome:
        """The outcome of a call that returned this value."""
        step = self.call.step
        usage, model = self.reported_usage or (None, "")
        if self.committed_output is not None:
            payload, decoded = self.committed_output
        else:
            if step.read_usage is not None and (used := step.read_usage(value)) is not None:
                usage, model = used
            try:
                payload, decoded = step.output_codec.round_trip(value, step.output_subject)
                validate_size(payload, step.output_subject, self.host.max_value)
            except UnrecordableValue as refused:
                return self._make_failure(refused, usage, model)
        if self.driver.run.has_budget:
            usage = self._add_duration(usage)
        call = self.call
        preview = preview_arguments(step.parameters, call.args, call.kwargs)
        return make_step_outcome(
            (
                *(True, payload, self.started_at, self.attempt_number, preview, decoded),
                *(self.has_attempt_row, usage, model, self.memory_change),
            )
        )

    def _make_failure(self, error: BaseException, usage: Usage | None = None, model: str = "") -> StepOutcome:
        """The outcome of a step that has failed for good."""
        payload = encode_error(error)
        if usage is None:
            usage, model = self.reported_usage or (None, "")
        if not (self.is_withdrawn or self.driver.is_closed):
            self.host.run_log.log_step_failure(self.run, self.step.name, self.attempt_number, payload)
        return StepOutcome(
            False,
            payload,
            self.started_at,
            self.attempt_number,
            self._preview_arguments(),
            has_attempt_row=self.has_attempt_row,
            usage=self._add_duration(usage) if self.driver.run.has_budget else usage,
            model=model,
        )

    def _add_duration(self, usage: Usage | None) -> Usage:
        return replace(usage or Usage(), seconds=max(0.0, self.host.clock.now() - self.started_at))

    def _preview_arguments(self) -> str:
        return preview_arguments(self.call.step.parameters, self.call.args, self.call.kwargs)

    # Progress and text of the current attempt

    def publish_text(self, context: StepContext, text: str) -> None:
        """Publish a piece of text, from any thread."""
        if threading.get_ident() != self.host.loop_thread_id:
            self.host.loop.call_soon_threadsafe(self.publish_text, context, text)
        elif context is self.current_context and not self.is_withdrawn:
            self.host.live_events.get_text_appender(self)(text)

    def get_text_appender(self, context: StepContext, request_number: int) -> Callable[[str], None]:
        """A function to call with each piece of an answer."""
        if context is self.current_context and not self.is_withdrawn:
            return self.host.live_events.get_text_appender(self, request_number)
        return lambda _: None

    def heartbeat(self, context: StepContext, progress: Any) -> None:
        """Save progress, from any thread; raises if the step should stop."""
        self._get_progress().heartbeat(context, progress)

    async def save_progress(self, context: StepContext, progress: Any) -> None:
        """Save progress, and wait until it is durable."""
        await self._get_progress().save(context, progress)

    def _get_progress(self) -> StepProgress:
        if self._step_progress is None:
            self._step_progress = StepProgress(self, self.host.loop_thread_id)
        return self._step_progress

    def save_attempt(self, on_durable: Callable[[], None] | None = None) -> None:
        """Save the state of this step, in the background."""
        self.has_attempt_row = True
        if not self.driver.is_closed:
            self.driver.recorder.save_attempt(self.to_attempt(), on_durable)

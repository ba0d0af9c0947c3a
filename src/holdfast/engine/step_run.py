"""One step that is being executed: attempts, timeout, retries, outcome.

``execute`` makes attempts until one of them decides the outcome. ``_run_attempt`` calls the function once.
``_handle_result`` encodes the outcome and records it. The outcome of a transactional step is committed before that,
together with the step's changes: see ``step_transactions``.

A step runs on the process's own event loop (a plain function in a thread) with the context variables of the workflow
code that called it. When its worker loses the run, or the workflow cancels the step, its task is cancelled. A thread
cannot be stopped from outside; ``heartbeat`` raises in it, and its outcome is dropped.

The step's code runs in the task that makes the attempts, so it can cancel that task, or leave a cancel request behind.
Only a cancellation by Holdfast (``is_cancelled``) ends the step without an outcome. Any other is a failed attempt.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.admission.retry_policy import RetryPolicy
from holdfast.admission.usage import Usage
from holdfast.background_tasks import forget_cancel_requests
from holdfast.codec import codec_for, encode_error, get_error_message, preview_arguments, read_error_info, validate_size
from holdfast.core.commands import UNDECODED, Command
from holdfast.core.records import Attempt
from holdfast.engine import run_approvals
from holdfast.engine.attempts import call_sync_step, make_self_cancelled_error, run_with_timeout
from holdfast.engine.budget_reservation import reserve_budget
from holdfast.engine.definitions import ModelUsage, StepCall, StepDefinition
from holdfast.engine.live_events import LiveEventBuffer
from holdfast.engine.step_context import StepContext, current_context
from holdfast.engine.step_transactions import MAX_INTERRUPTIONS, TransactionAborted, run_in_transaction
from holdfast.errors import FenceLost, StepFailed, UnrecordableValue, UsageError
from holdfast.stores.contract import History
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import ClientOp, OpStatus, Run

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.host import StepEngine
    from holdfast.engine.journal_engine import JournalEngine

HEARTBEAT_INTERVAL_S = 0.1
"""Progress is written at most this often; the latest wins."""

INTERRUPTION_BACKOFF_S = 0.1
"""Seconds before a step is run again after the database has ended its transaction; doubles each time."""

LEASE_POLL_INTERVAL_S = 0.02
"""How often a step checks again that may not start because its worker's lease is in doubt."""

_NO_ATTEMPT = Attempt(position=-1, attempt=0)
_progress_codec = codec_for(Any)

StepInterceptor = Callable[["StepRun", Callable[[], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]
"""Makes one attempt of a step in place of the engine, which passes the call that it would have made."""


class StepRun:
    """A step command on its way to an outcome."""

    def __init__(self, host: JournalEngine, driver: Driver, command: Command, earlier_attempt: Attempt | None) -> None:
        self.host = host
        self.driver = driver
        self.command = command
        self.call: StepCall = command.call
        self.task: asyncio.Task[None] | None = None
        self.is_withdrawn = False
        self.memory_change: MemoryChange | None = None
        """The change of memory by the current attempt: see ``StepExecutor.memory_change``."""
        self._live_events = LiveEventBuffer(driver, command)
        self._is_detached = False
        self._has_attempt_row = earlier_attempt is not None
        if earlier_attempt is None or earlier_attempt.name not in ("", self.call.step.name):
            # The step is new, or the attempt is left from a step that a retry has removed from the journal.
            earlier_attempt = _NO_ATTEMPT
        self.has_prior_intent = earlier_attempt.intent
        """Whether an earlier worker was about to start this ``once`` step, and may have."""
        self._attempt_number = 1
        """The number of the current attempt or, while the step waits for the next one, of the one before."""
        if not earlier_attempt.intent:
            self._attempt_number = earlier_attempt.attempt + (earlier_attempt.retry_at is None)
        self._last_error = earlier_attempt.error
        self.retry_at = earlier_attempt.retry_at
        self.failing_since = earlier_attempt.failing_since
        self._progress = earlier_attempt.progress
        self._committed_attempt = earlier_attempt if earlier_attempt.outcome is not None else None
        """An attempt whose outcome was committed with the step's changes, and is still to be recorded."""
        self._committed_output: tuple[bytes, Any] | None = None
        """The committed output of the attempt that was just made: encoded, and decoded again."""
        self._interruption_count = 0
        """Attempts that the database has ended, and that do not count."""
        self.is_committing = False
        """The transaction of the attempt is being committed, and cannot be stopped."""
        self._is_outcome_expected = False
        """The step was withdrawn during the commit; if it was committed, it must be compensated."""
        self._current_context: StepContext | None = None
        """The context of the current attempt."""
        self._is_heartbeat_due = False
        self._last_heartbeat_at = 0.0
        self._loop = host.loop
        self._thread_id = threading.get_ident()

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
            if self.driver.steps.finish(self):
                self._record_committed(attempt.outcome, attempt.at, attempt.attempt)
            return
        self.task = self._loop.create_task(self.execute(), context=self.command.context)

    def cancel(self, *, detach: bool = False) -> None:
        """Stop: the outcome is no longer wanted, or (``detach``) this worker no longer holds the run."""
        self._is_detached = detach
        self.is_withdrawn = True
        self.host.live_events.discard(self._live_events)
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
        self._has_attempt_row = True
        return self.to_attempt()._replace(attempt=self._attempt_number)

    def make_intent_withdrawal(self) -> Attempt:
        """The attempt to save when a ``once`` step does not start after all."""
        return self.to_attempt()._replace(intent=False)

    def to_attempt(self) -> Attempt:
        """What is known of the step, for the next attempt to continue from, on any worker."""
        return Attempt(
            self.command.position,
            # A running attempt counts only after it has failed.
            self._attempt_number - (self.retry_at is None),
            intent=self.call.is_once and self.retry_at is None,
            progress=self._progress,
            error=self._last_error,
            at=self.host.clock.now(),
            name=self.call.step.name,
            retry_at=self.retry_at,
            failing_since=self.failing_since,
        )

    def _record_committed(self, payload: bytes, started_at: float, attempts: int) -> None:
        """Record an outcome that was committed with the step's changes, and that the workflow has not waited for."""
        command = self.command
        self.driver.recorder.record(
            command.kind,
            command.position,
            command.name,
            payload=payload,
            started_at=started_at,
            attempts=attempts,
            preview=self._preview_arguments(),
            has_attempt_row=True,
        )

    async def execute(self) -> None:
        """Make attempts until the step has an outcome, and record it."""
        started_at = self.host.clock.now()
        try:
            await self._run_attempts()
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # A retry predicate or the serializer of the value's own type, which are the user's code, can fail here.
            # Without an outcome, the run would wait forever. The last two would end the worker.
            self._record_outcome(False, encode_error(error), UNDECODED, started_at)
        finally:
            self.task = None  # its context refers to this object: only the garbage collector would free the step
            if self._is_outcome_expected:
                self.driver.recorder.remove_answered(self.command.position)
                if not self.driver.is_closed:
                    self.driver.finish_turn()

    async def _run_attempts(self) -> None:
        """Make attempts until one decides the outcome."""
        clock = self.host.clock
        retry = self.call.step.retry
        if self.retry_at is not None:  # an earlier holder of the run has waited for a part of the time
            await self._wait_for_retry(self.retry_at - clock.now())
            if self.call.is_once:
                self.driver.steps.launch_once(self)
                return
        while True:
            if not self.host.membership.has_lease():
                await self._wait_for_lease()
            if self.driver.is_halted or self.host.is_draining:  # since this task was created
                self.driver.steps.cancel_start(self)
                return
            started_at = clock.now()
            self.memory_change = self._committed_output = None
            interrupted = False
            self.host.live_events.start_attempt(self._live_events, self._attempt_number, started_at)
            try:
                value = await self._run_attempt()
            except asyncio.CancelledError:
                if self.is_cancelled:
                    return
                error: BaseException = make_self_cancelled_error(self.step, self.run.id)
            except FenceLost as lost:
                if self.is_cancelled:
                    return
                if self.driver.is_disabled:
                    self.driver.steps.postpone(self)
                    return
                error = StepFailed(f"the step raised {lost!r}", self.step.name)  # and its run is held here
            except (SystemExit, KeyboardInterrupt) as stop:
                error = StepFailed(f"the step raised {type(stop).__name__}: {get_error_message(stop)}", self.step.name)
            except TransactionAborted as raised:
                error = raised.__cause__ or raised
                interrupted = self._interruption_count < MAX_INTERRUPTIONS
            except BaseException as raised:
                error = raised
            else:
                self._handle_result(value, None, started_at)
                return
            finally:
                self._current_context = None
                self.host.live_events.discard(self._live_events)
            await forget_cancel_requests()
            if self.is_withdrawn:
                return
            now = clock.now()
            if interrupted:
                self._interruption_count += 1
                wait = RetryPolicy(backoff=INTERRUPTION_BACKOFF_S).compute_delay_s(
                    self._interruption_count, clock.draw_random()
                )
            else:
                if self.failing_since is None:
                    self.failing_since = now
                tried = self._attempt_number - self._interruption_count
                wait = retry.compute_next_delay_s(tried, error, clock.draw_random(), now - self.failing_since)
            if wait is None:
                self._handle_result(None, error, started_at)
                return
            encoded = encode_error(error)
            self._last_error = f"{type(error).__name__}: {read_error_info(encoded).message}"[:500]
            del error
            self.retry_at = now + wait
            self._save_attempt()
            retries = None if retry.retries is None else retry.retries + self._interruption_count
            self.host.run_log.log_retry(self.run, self.step.name, self._attempt_number, retries, wait, encoded)
            if self.driver.is_halted or self.host.is_draining:
                self.driver.steps.postpone(self)
                return
            await self._wait_for_retry(wait)
            if self.call.is_once:
                self.driver.steps.launch_once(self)
                return

    async def _wait_for_retry(self, seconds: float) -> None:
        """Wait for the next attempt; a run that waits for nothing else may leave memory (see ``steps_in_flight``)."""
        await self._sleep(max(0.0, seconds))
        self.retry_at = None
        self._attempt_number += 1
        self.host.on_run_busy(self.driver)

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

    async def _run_attempt(self) -> Any:
        step, args, kwargs = self.call
        progress = None if self._progress is None else _progress_codec.decode(self._progress, "heartbeat progress")
        self._current_context = StepContext(self, self._attempt_number, progress)
        current_context.set(self._current_context)
        interceptor = self.host.step_interceptor
        if step.is_async:
            call = partial(step.function, *args, **kwargs)
        else:
            call = partial(self._call_in_thread, *args, **kwargs)
            if interceptor is None:
                await self.host.thread_pool.reserve()
        if interceptor is not None:
            call = call if step.is_async else partial(self._reserve_thread_and_call, call)
            if step.is_transactional:  # an interceptor that replaces the step needs no database
                call = partial(self._run_in_transaction, self._current_context, call)
            call = partial(interceptor, self, call)
        elif step.is_transactional:
            return await self._run_in_transaction(
                self._current_context, partial(self._run_with_timeout, call), has_reserved_thread=not step.is_async
            )
        return await self._run_with_timeout(call)

    async def _run_with_timeout(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await run_with_timeout(self.step, self.run.id, self._attempt_number, call)

    async def _run_in_transaction(
        self, context: StepContext, call: Callable[[], Coroutine[Any, Any, Any]], *, has_reserved_thread: bool = False
    ) -> Any:
        is_called = False

        async def mark_and_call() -> Any:
            nonlocal is_called
            is_called = True
            return await call()

        try:
            self._committed_output = await run_in_transaction(self, context, self._attempt_number, mark_and_call)
        finally:
            if has_reserved_thread and not is_called:
                self.host.thread_pool.release()
        self._has_attempt_row = True
        return self._committed_output[1]

    async def _reserve_thread_and_call(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        await self.host.thread_pool.reserve()
        return await call()

    async def _call_in_thread(self, /, *args: Any, **kwargs: Any) -> Any:
        # A copy: the thread may begin before this task has left its own context.
        context = contextvars.copy_context()
        attempt = self._current_context
        call = partial(call_sync_step, self.call.step, args, kwargs)
        return await self.host.thread_pool.run(lambda: context.run(self._call_if_claimed, attempt, call))

    def _call_if_claimed(self, attempt: StepContext | None, call: Callable[[], Any]) -> Any:
        """In the thread: the lease may have expired while the step waited for the thread."""
        while True:
            has_lease = self.host.membership.has_lease()
            # Checked after the lease: a worker that registered again has a new lease, and dropped its runs before.
            if self.driver.is_closed or self.is_withdrawn or attempt is not self._current_context:
                raise FenceLost(f"step {self.call.step.name!r} had not begun when its worker let go of it")
            if has_lease:
                return call()
            time.sleep(LEASE_POLL_INTERVAL_S)

    def _handle_result(self, value: Any, error: BaseException | None, started_at: float) -> None:
        step = self.call.step
        if self._committed_output is not None:
            payload, decoded = self._committed_output
            if self._is_outcome_expected and not self.driver.is_closed:
                self._record_committed(payload, started_at, self._attempt_number)
            else:
                self._record_outcome(True, payload, decoded, started_at)
            return
        if error is None:
            usage = None if step.read_usage is None else step.read_usage(value)
            try:
                subject = f"the output of step {step.name!r}"
                payload, decoded = step.output_codec.round_trip(value, subject)
                validate_size(payload, subject, self.host.max_value)
            except UnrecordableValue as refused:
                self._record_outcome(False, encode_error(refused), UNDECODED, started_at, usage)
            else:
                self._record_outcome(True, payload, decoded, started_at, usage)
            return
        self._record_outcome(False, encode_error(error), UNDECODED, started_at)

    def _record_outcome(
        self, ok: bool, payload: bytes, value: Any, started_at: float, model_usage: ModelUsage | None = None
    ) -> None:
        if not (ok or self.is_withdrawn or self.driver.is_closed):
            self.host.run_log.log_step_failure(self.run, self.step.name, self._attempt_number, payload)
        if not self.driver.steps.finish(self):
            return
        usage, model = (None, "") if model_usage is None else model_usage
        if self.driver.run.has_budget:
            seconds = max(0.0, self.host.clock.now() - started_at)
            usage = replace(usage or Usage(), seconds=seconds)
        command = self.command
        self.driver.recorder.record(
            command.kind,
            command.position,
            command.name,
            ok=ok,
            payload=payload,
            value=value,
            started_at=started_at,
            attempts=self._attempt_number,
            usage=usage,
            model=model,
            memory_change=self.memory_change if ok else None,
            preview=self._preview_arguments(),
            has_attempt_row=self._has_attempt_row,
        )

    def _preview_arguments(self) -> str:
        return preview_arguments(self.call.step.parameters, self.call.args, self.call.kwargs)

    # Progress and text of the current attempt

    def publish_text(self, context: StepContext, text: str) -> None:
        """Publish a piece of text, from any thread."""
        if threading.get_ident() != self._thread_id:
            self._loop.call_soon_threadsafe(self.publish_text, context, text)
        elif context is self._current_context and not self.is_withdrawn:
            self.host.live_events.get_text_appender(self._live_events)(text)

    def get_text_appender(self, context: StepContext, request_number: int) -> Callable[[str], None]:
        """A function to call with each piece of an answer."""
        if context is self._current_context and not self.is_withdrawn:
            return self.host.live_events.get_text_appender(self._live_events, request_number)
        return lambda _: None

    def heartbeat(self, context: StepContext, progress: Any) -> None:
        """Save progress, from any thread; raises if the step should stop."""
        # A run that was cancelled may have ended, so its driver may be closed as well.
        if self.driver.is_closed and (self._is_detached or not self.is_withdrawn):
            raise FenceLost(f"run {context.run_id!r} is held by another worker now; step {context.name!r} must stop")
        if self.is_withdrawn:
            raise asyncio.CancelledError(f"the workflow no longer waits for step {context.name!r}")
        if context is not self._current_context:
            raise asyncio.CancelledError(f"attempt {context.attempt} of step {context.name!r} is over")
        if progress is None:
            return
        self._set_progress(progress)
        if self._is_heartbeat_due:
            return
        self._is_heartbeat_due = True
        if threading.get_ident() == self._thread_id:
            self._schedule_heartbeat()
        else:
            self._loop.call_soon_threadsafe(self._schedule_heartbeat)

    def _set_progress(self, progress: Any) -> None:
        if self.step.is_transactional:
            raise UsageError(
                f"step {self.step.name!r} has transaction=True, so nothing of an attempt that fails stays, and there "
                "is nothing that the next one could go on from: call heartbeat() without progress, or make two steps "
                "of it"
            )
        self._progress = _progress_codec.encode(progress, f"the progress of step {self.step.name!r}")

    def _schedule_heartbeat(self) -> None:
        wait = self._last_heartbeat_at + HEARTBEAT_INTERVAL_S - self._loop.time()
        self._loop.call_later(max(0.0, wait), self._write_heartbeat)

    def _write_heartbeat(self) -> None:
        self._is_heartbeat_due = False
        self._last_heartbeat_at = self._loop.time()
        # Between two attempts, the state is saved already, with the end of the first one.
        if self._current_context is not None and self.task is not None and not self.task.done():
            self._save_attempt()

    async def save_progress(self, context: StepContext, progress: Any) -> None:
        """Save progress, and wait until it is durable. Losing the run meanwhile cancels the step, and so the wait."""
        self.heartbeat(context, None)
        self._set_progress(progress)
        durable: asyncio.Future[None] = self._loop.create_future()

        def on_durable() -> None:
            if not durable.done():
                durable.set_result(None)
            self.driver.finish_turn()

        self._save_attempt(on_durable)
        await durable

    def _save_attempt(self, on_durable: Callable[[], None] | None = None) -> None:
        """Save the state of this step, in the background."""
        self._has_attempt_row = True
        if not self.driver.is_closed:
            self.driver.recorder.save_attempt(self.to_attempt(), on_durable)

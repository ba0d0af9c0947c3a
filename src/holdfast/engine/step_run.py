"""One step being carried out: attempt, time-out, retry, outcome.

The way of a step is a pipe of verbs: ``execute`` makes attempts until one of them settles it; ``_run_attempt`` runs the
function once; ``_handle_result`` encodes the outcome and hands it to the run's driver, which records it. That of a
transactional step is committed before, with what the step did: see ``step_transactions``.

A step runs on the process's own event loop (a plain function in a thread) with the context variables of the workflow
code that called it. When its worker loses the run, or the workflow cancels the step, its task is cancelled. A thread
cannot be stopped from outside; ``heartbeat`` raises in it, and its outcome is dropped.

The step's code runs in the task that makes the attempts, so it can cancel that task, or leave a request to do so
behind. Only a cancellation of ours (``is_cancelled``) ends the step without an outcome. Any other is a failure of the
attempt.
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
    from holdfast.engine.host import StepEngine, StepHost

HEARTBEAT_INTERVAL_S = 0.1
"""Progress is written at most this often; the latest wins."""

INTERRUPTION_BACKOFF_S = 0.1
"""Seconds before a step is run again whose transaction the database has ended; each further wait is twice as long."""

LEASE_POLL_INTERVAL_S = 0.02
"""How often a step that may not begin, because its worker's lease is in doubt, looks again."""

_progress_codec = codec_for(Any)


StepInterceptor = Callable[["StepRun", Callable[[], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]
"""Carries out one attempt of a step in place of the engine, which hands it the call that it would have made."""


class StepRun:
    """A step command on its way to an outcome."""

    def __init__(self, host: StepHost, driver: Driver, command: Command, earlier_attempt: Attempt | None) -> None:
        self.host = host
        self.driver = driver
        self.command = command
        self.call: StepCall = command.call
        self.task: asyncio.Task[None] | None = None
        self.is_withdrawn = False
        self.memory_change: MemoryChange | None = None
        """What the attempt that is being made changes of what outlives runs."""
        self._live_events = LiveEventBuffer(driver, command)
        self._is_detached = False
        self._has_attempt_row = earlier_attempt is not None
        if earlier_attempt is not None and earlier_attempt.name not in ("", self.call.step.name):
            earlier_attempt = None  # left by a step that a retry has taken out of the run's past
        self.has_prior_intent = earlier_attempt is not None and earlier_attempt.intent
        """Whether a ``once`` step was about to start before, and may have."""
        self._attempt_number = 1
        """That of the attempt under way, or, while the step waits for the next one, of the one before."""
        if earlier_attempt is not None and not earlier_attempt.intent:
            self._attempt_number = earlier_attempt.attempt + (earlier_attempt.retry_at is None)
        self._last_error = earlier_attempt.error if earlier_attempt is not None else ""
        self.retry_at = earlier_attempt.retry_at if earlier_attempt is not None else None
        self.failing_since = earlier_attempt.failing_since if earlier_attempt is not None else None
        self._progress: bytes | None = earlier_attempt.progress if earlier_attempt is not None else None
        self._committed_attempt = (
            earlier_attempt if earlier_attempt is not None and earlier_attempt.outcome is not None else None
        )
        """Its outcome was committed with what it did, and is still to be recorded."""
        self._committed_output: tuple[bytes, Any] | None = None
        """The same, of the attempt that has just been made: encoded, and decoded again."""
        self._interruption_count = 0
        """Attempts that the database has ended, and that do not count."""
        self.is_committing = False
        """The transaction of the attempt is being committed: nothing stops that."""
        self._is_outcome_expected = False
        """It was withdrawn meanwhile, and if it was committed, that must be undone."""
        self._current_context: StepContext | None = None
        """What the attempt that is being made was told of itself."""
        self._is_heartbeat_due = False
        self._last_heartbeat_at = 0.0
        self._loop = host.loop
        self._thread_id = threading.get_ident()

    # What a step may know and ask for (see `step_context.StepExecutor`)

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
        """The engine that carries it out."""
        return self.host

    @property
    def idempotency_key(self) -> str:
        """Stable over attempts, crashes and replays."""
        return self.driver.execution.seeded_random.derive_idempotency_key(self.command.position, self.step.name)

    async def reserve(self, expected: Usage) -> None:
        """Ask for a piece of the run's budgets."""
        await reserve_budget(self, expected)

    async def get_previous_run_id(self) -> str:
        """The run before this one in its session."""
        return self.run.previous_run

    async def remind_approval(
        self, approval_id: str, reminder_count: int, assignee: str, expires_at: float | None
    ) -> bool:
        """Note that people are told of a question again."""
        return await run_approvals.remind_approval(self, approval_id, reminder_count, assignee, expires_at)

    async def withdraw_approval(self, approval_id: str) -> bool:
        """Take a question back."""
        return await run_approvals.withdraw_approval(self, approval_id)

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """Another run's row and journal."""
        return await self.host.read_run(run_id)

    async def change_run(self, op: ClientOp) -> OpStatus:
        """Change another run."""
        return await self.host.change_run(op)

    def raise_claim_lost(self) -> NoReturn:
        """The store says that another worker holds the run: stop all that is done for it here, and the step itself."""
        self.driver.handle_claim_lost()
        raise FenceLost(f"run {self.run.id!r} is held by another worker now; step {self.step.name!r} must stop")

    # Carrying it out

    @property
    def is_cancelled(self) -> bool:
        """Whether Holdfast, and not the step itself, has cancelled it: nobody wants an outcome from here."""
        return self.is_withdrawn or self.driver.is_closed or self.host.is_stopping

    def launch(self) -> None:
        """Start on the process's loop, in the caller's context."""
        if self._committed_attempt is not None:
            self._record_committed(self._committed_attempt)
            return
        self.task = self._loop.create_task(self.execute(), context=self.command.context)

    def cancel(self, *, detach: bool = False) -> None:
        """Nobody wants the outcome any more; or (``detach``) the run is not held here any more."""
        self._is_detached = detach
        self.is_withdrawn = True
        self.host.live_events.discard(self._live_events)
        if self.is_committing and self.call.has_compensation and not detach:
            self._is_outcome_expected = True
            self.driver.recorder.add_pending(self.command.position)
            return
        if self.task is not None and not self.task.done():
            # Its clean-up may take a while, and asyncio itself holds tasks only weakly.
            stragglers = self.host.lingering_tasks
            stragglers.add(self.task)
            self.task.add_done_callback(stragglers.discard)
            self.task.cancel()

    def make_intent(self) -> Attempt:
        """What is written before a ``once`` step starts."""
        self._has_attempt_row = True
        return self.to_attempt()._replace(attempt=self._attempt_number)

    def make_intent_withdrawal(self) -> Attempt:
        """What is written when it does not start after all: nobody need fear that it has."""
        return self.to_attempt()._replace(intent=False)

    def to_attempt(self) -> Attempt:
        """What is known of the step: the next attempt goes on from this, whoever makes it."""
        return Attempt(
            self.command.position,
            # The number of an attempt under way counts only once that has failed.
            self._attempt_number - (self.retry_at is None),
            intent=self.call.is_once and self.retry_at is None,
            progress=self._progress,
            error=self._last_error,
            at=self.host.clock.now(),
            name=self.call.step.name,
            retry_at=self.retry_at,
            failing_since=self.failing_since,
        )

    def _record_committed(self, attempt: Attempt) -> None:
        assert attempt.outcome is not None
        self.driver.steps.record_outcome(
            self,
            ok=True,
            payload=attempt.outcome,
            value=UNDECODED,
            started_at=attempt.at,
            attempts=attempt.attempt,
            usage=None,
            model="",
            memory_change=None,
            preview=self._preview_arguments(),
            has_attempt_row=True,
        )

    async def execute(self) -> None:
        """See to it that the step gets an outcome."""
        started_at = self.host.clock.now()
        try:
            await self._run_attempts()
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # A retry predicate, or the serializer of the value's own type: the user's code too can fail here. Without
            # an outcome the run would wait for ever. The last two would end the worker.
            self._record_outcome(False, encode_error(error), UNDECODED, started_at)
        finally:
            self.task = None  # its context leads back to here: nothing of the step would go before the collector comes
            if self._is_outcome_expected:
                self.driver.recorder.remove_answered(self.command.position)
                if not self.driver.is_closed:
                    self.driver.finish_turn()

    async def _run_attempts(self) -> None:
        """Make attempts until one settles the step."""
        clock = self.host.clock
        retry = self.call.step.retry
        if self.retry_at is not None:  # whoever had the run before has waited for a part of the time
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
                error = StepFailed(
                    f"the step raised {type(stop).__name__}: {get_error_message(stop)}", self.call.step.name
                )
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
        """Wait for the next attempt.

        A run that waits for nothing else leaves memory meanwhile: see ``steps_in_flight``.
        """
        await self._sleep(max(0.0, seconds))
        self.retry_at = None
        self._attempt_number += 1
        self.host.on_run_busy(self.driver)

    async def _wait_for_lease(self) -> None:
        while not self.host.membership.has_lease():
            await self._sleep(LEASE_POLL_INTERVAL_S)

    async def _sleep(self, seconds: float) -> None:
        """Let time pass. What the step's code has left running may cancel this task meanwhile: that ends nothing."""
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
        around = self.host.step_interceptor
        if step.is_async:
            call = partial(step.function, *args, **kwargs)
        else:
            call = partial(self._call_in_thread, *args, **kwargs)
            if around is None:
                await self.host.thread_pool.reserve()
        if around is not None:
            call = call if step.is_async else partial(self._reserve_thread_and_call, call)
            if step.is_transactional:  # whoever replaces the step needs no database
                call = partial(self._run_in_transaction, self._current_context, call)
            call = partial(around, self, call)
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
        begun = False

        async def once_begun() -> Any:
            nonlocal begun
            begun = True
            return await call()

        try:
            self._committed_output = await run_in_transaction(self, context, self._attempt_number, once_begun)
        finally:
            if has_reserved_thread and not begun:
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
        """In the thread: the lease may have passed while the step waited for its turn there."""
        while True:
            held = self.host.membership.has_lease()
            # Asked after the lease: a worker that registered anew has one again, and dropped its runs before that.
            if self.driver.is_closed or self.is_withdrawn or attempt is not self._current_context:
                raise FenceLost(f"step {self.call.step.name!r} had not begun when its worker let go of it")
            if held:
                return call()
            time.sleep(LEASE_POLL_INTERVAL_S)

    def _handle_result(self, value: Any, error: BaseException | None, started_at: float) -> None:
        step = self.call.step
        if self._committed_output is not None:
            payload, decoded = self._committed_output
            if self._is_outcome_expected and not self.driver.is_closed:
                self._record_withdrawn(payload, started_at)
            else:
                self._record_outcome(True, payload, decoded, started_at)
            return
        if error is None:
            used = None if step.read_usage is None else step.read_usage(value)
            try:
                what = f"the output of step {step.name!r}"
                payload, decoded = step.output_codec.round_trip(value, what)
                validate_size(payload, what, self.host.max_value)
            except UnrecordableValue as refused:
                self._record_outcome(False, encode_error(refused), UNDECODED, started_at, used)
            else:
                self._record_outcome(True, payload, decoded, started_at, used)
            return
        self._record_outcome(False, encode_error(error), UNDECODED, started_at)

    def _record_withdrawn(self, payload: bytes, started_at: float) -> None:
        command = self.command
        self.driver.recorder.record(
            command.kind,
            command.position,
            command.name,
            payload=payload,
            started_at=started_at,
            attempts=self._attempt_number,
            preview=self._preview_arguments(),
            has_attempt_row=True,
        )

    def _record_outcome(
        self, ok: bool, payload: bytes, value: Any, started_at: float, model_usage: ModelUsage | None = None
    ) -> None:
        if not (ok or self.is_withdrawn or self.driver.is_closed):
            self.host.run_log.log_step_failure(self.run, self.step.name, self._attempt_number, payload)
        used, model = (None, "") if model_usage is None else model_usage
        if self.driver.run.has_budget:
            seconds = max(0.0, self.host.clock.now() - started_at)
            used = replace(used or Usage(), seconds=seconds)
        self.driver.steps.record_outcome(
            self,
            ok=ok,
            payload=payload,
            value=value,
            started_at=started_at,
            attempts=self._attempt_number,
            usage=used,
            model=model,
            memory_change=self.memory_change if ok else None,
            preview=self._preview_arguments(),
            has_attempt_row=self._has_attempt_row,
        )

    def _preview_arguments(self) -> str:
        return preview_arguments(self.call.step.parameters, self.call.args, self.call.kwargs)

    # While it is in flight

    def publish_text(self, context: StepContext, text: str) -> None:
        """A piece of text, from whatever thread the step runs in."""
        if threading.get_ident() != self._thread_id:
            self._loop.call_soon_threadsafe(self.publish_text, context, text)
        elif context is self._current_context and not self.is_withdrawn:
            self.host.live_events.get_text_appender(self._live_events)(text)

    def get_text_appender(self, context: StepContext, request_number: int) -> Callable[[str], None]:
        """What takes the pieces of an answer."""
        if context is self._current_context and not self.is_withdrawn:
            return self.host.live_events.get_text_appender(self._live_events, request_number)
        return lambda _: None

    def heartbeat(self, context: StepContext, progress: Any) -> None:
        """A heartbeat, from whatever thread the step runs in."""
        if (
            self.is_withdrawn and not self._is_detached
        ):  # asked first: a cancelled run may have ended, and so be gone as well
            raise asyncio.CancelledError(f"the workflow no longer waits for step {context.name!r}")
        if self.driver.is_closed:
            raise FenceLost(f"run {context.run_id!r} is held by another worker now; step {context.name!r} must stop")
        if self.is_withdrawn:
            raise asyncio.CancelledError(f"the workflow no longer waits for step {context.name!r}")
        if context is not self._current_context:
            raise asyncio.CancelledError(f"attempt {context.attempt} of step {context.name!r} is over")
        if progress is None:
            return
        self._check_progress_allowed()
        self._progress = _progress_codec.encode(progress, f"the progress of step {context.name!r}")
        if self._is_heartbeat_due:
            return
        self._is_heartbeat_due = True
        if threading.get_ident() == self._thread_id:
            self._schedule_heartbeat()
        else:
            self._loop.call_soon_threadsafe(self._schedule_heartbeat)

    def _check_progress_allowed(self) -> None:
        if self.call.step.is_transactional:
            raise UsageError(
                f"step {self.call.step.name!r} has transaction=True, so nothing of an attempt that fails stays, and "
                f"there is nothing that the next one could go on from: call heartbeat() without progress, or make two "
                f"steps of it"
            )

    def _schedule_heartbeat(self) -> None:
        wait = self._last_heartbeat_at + HEARTBEAT_INTERVAL_S - self._loop.time()
        self._loop.call_later(max(0.0, wait), self._write_heartbeat)

    def _write_heartbeat(self) -> None:
        self._is_heartbeat_due = False
        self._last_heartbeat_at = self._loop.time()
        # Between two attempts all is noted already, and that the first of them is over.
        if self._current_context is not None and self.task is not None and not self.task.done():
            self._save_attempt()

    async def save_progress(self, context: StepContext, progress: Any) -> None:
        """A heartbeat that is waited for. Losing the run meanwhile cancels the step, and so the wait."""
        self.heartbeat(context, None)
        self._check_progress_allowed()
        self._progress = _progress_codec.encode(progress, f"the progress of step {context.name!r}")
        durable: asyncio.Future[None] = self._loop.create_future()

        def tell() -> None:
            if not durable.done():
                durable.set_result(None)
            self.driver.finish_turn()

        self._save_attempt(tell)
        await durable

    def _save_attempt(self, on_durable: Callable[[], None] | None = None) -> None:
        """Keep what is known of this step, in the background.

        Nothing waits for it, unless ``on_durable`` is to be told.
        """
        self._has_attempt_row = True
        self.driver.save_attempt(self.to_attempt(), on_durable)

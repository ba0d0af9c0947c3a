"""One step being carried out: attempt, time-out, retry, outcome.

The way of a step is a pipe of verbs: ``carry_out`` makes attempts until one of them settles it; ``_attempt`` runs the
function once; ``_report`` encodes the outcome and hands it to the run's driver, which records it. That of a
transactional step is committed before, with what the step did: see ``step_transactions``.

A step runs on the process's own event loop (a plain function in a thread) with the context variables of the workflow
code that called it. When its worker loses the run, or the workflow cancels the step, its task is cancelled. A thread
cannot be stopped from outside; ``heartbeat`` raises in it, and its outcome is dropped.

The step's code runs in the task that makes the attempts, so it can cancel that task, or leave a request to do so
behind. Only a cancellation of ours (``is_called_off``) ends the step without an outcome. Any other is a failure of the
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

from holdfast.admission.usage import Usage
from holdfast.background_tasks import forget_cancel_requests
from holdfast.codec import check_size, codec_for, describe_error, encode_error, message_of, preview
from holdfast.core.commands import UNREAD, Command
from holdfast.core.records import Attempt
from holdfast.core.retry_policy import RetryPolicy
from holdfast.engine import run_approvals
from holdfast.engine.attempts import call_plain, cancelled_from_within, in_time
from holdfast.engine.budget_reservation import reserve
from holdfast.engine.definitions import StepCall, StepDefinition, Used
from holdfast.engine.live_events import Account
from holdfast.engine.step_context import StepContext, current
from holdfast.engine.step_transactions import MOST_INTERRUPTIONS, Interrupted, in_transaction
from holdfast.errors import FenceLost, StepFailed, UnrecordableValue, UsageError
from holdfast.stores.contract import History
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import Change, Run, Verdict

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.host import Host, StepEngine

HEARTBEAT_INTERVAL = 0.1
"""Progress is written at most this often; the latest wins."""

INTERRUPTION_PAUSE = 0.1
"""Seconds before a step is run again whose transaction the database has ended; each further wait is twice as long."""

LEASE_LOOK = 0.02
"""How often a step that may not begin, because its worker's lease is in doubt, looks again."""

_progress = codec_for(Any)


AroundStep = Callable[["StepRun", Callable[[], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]
"""Carries out one attempt of a step in place of the engine, which hands it the call that it would have made."""


class StepRun:
    """A step command on its way to an outcome."""

    def __init__(self, host: Host, driver: Driver, command: Command, known: Attempt | None) -> None:
        self.host = host
        self.driver = driver
        self.command = command
        self.call: StepCall = command.call
        self.task: asyncio.Task[None] | None = None
        self.withdrawn = False
        self.memory: MemoryChange | None = None
        """What the attempt that is being made changes of what outlives runs."""
        self._account = Account(driver, command)
        self._lost = False
        self._noted = known is not None
        if known is not None and known.name not in ("", self.call.step.name):
            known = None  # left by a step that a retry has taken out of the run's past
        self.was_intended = known is not None and known.intent
        """Whether a ``once`` step was about to start before, and may have."""
        self._attempt_number = 1
        """That of the attempt under way, or, while the step waits for the next one, of the one before."""
        if known is not None and not known.intent:
            self._attempt_number = known.attempt + (known.retry_at is None)
        self._error = known.error if known is not None else ""
        self.retry_at = known.retry_at if known is not None else None
        self._failing_since = known.failing_since if known is not None else None
        self._progress: bytes | None = known.progress if known is not None else None
        self._known = known if known is not None and known.outcome is not None else None
        """Its outcome was committed with what it did, and is still to be recorded."""
        self._kept: tuple[bytes, Any] | None = None
        """The same, of the attempt that has just been made: encoded, and decoded again."""
        self._interruptions = 0
        """Attempts that the database has ended, and that do not count."""
        self.is_committing = False
        """The transaction of the attempt is being committed: nothing stops that."""
        self._is_expected = False
        """It was withdrawn meanwhile, and if it was committed, that must be undone."""
        self._current: StepContext | None = None
        """What the attempt that is being made was told of itself."""
        self._beat_due = False
        self._last_beat = 0.0
        self._loop = host.loop
        self._thread = threading.get_ident()

    # What a step may know and ask for (see `step_context.Carrier`)

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
        return self.driver.execution.idempotency_key(self.command.position, self.step.name)

    async def reserve(self, expected: Usage) -> None:
        """Ask for a piece of the run's budgets."""
        await reserve(self, expected)

    async def previous_run(self) -> str:
        """The run before this one in its session."""
        return self.run.previous

    async def remind_approval(self, id: str, reminders: int, asked_of: str, expires_at: float | None) -> bool:
        """Note that people are told of a question again."""
        return await run_approvals.remind(self, id, reminders, asked_of, expires_at)

    async def withdraw_approval(self, id: str) -> bool:
        """Take a question back."""
        return await run_approvals.withdraw(self, id)

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """Another run's row and journal."""
        return await self.host.read_run(run_id)

    async def change_run(self, op: Change) -> Verdict:
        """Change another run."""
        return await self.host.change(op)

    def lose(self) -> NoReturn:
        """The store says that another worker holds the run: stop all that is done for it here, and the step itself."""
        self.driver.lose()
        raise FenceLost(f"run {self.run.id!r} is held by another worker now; step {self.step.name!r} must stop")

    # Carrying it out

    @property
    def is_called_off(self) -> bool:
        """Whether Holdfast, and not the step itself, has cancelled it: nobody wants an outcome from here."""
        return self.withdrawn or self.driver.gone or self.host.is_stopping

    def launch(self) -> None:
        """Start on the process's loop, in the caller's context."""
        if self._known is not None:
            self._record_known(self._known)
            return
        self.task = self._loop.create_task(self.carry_out(), context=self.command.context)

    def cancel(self, *, lost: bool = False) -> None:
        """Nobody wants the outcome any more; or (``lost``) the run is not held here any more."""
        self._lost = lost
        self.withdrawn = True
        self.host.telling.forget(self._account)
        if self.is_committing and self.call.is_undoable and not lost:
            self._is_expected = True
            self.driver.journal.expect(self.command.position)
            return
        if self.task is not None and not self.task.done():
            # Its clean-up may take a while, and asyncio itself holds tasks only weakly.
            stragglers = self.host.stragglers
            stragglers.add(self.task)
            self.task.add_done_callback(stragglers.discard)
            self.task.cancel()

    def note_intent(self) -> Attempt:
        """What is written before a ``once`` step starts."""
        self._noted = True
        return self.so_far()._replace(attempt=self._attempt_number)

    def note_no_intent(self) -> Attempt:
        """What is written when it does not start after all: nobody need fear that it has."""
        return self.so_far()._replace(intent=False)

    def so_far(self) -> Attempt:
        """What is known of the step: the next attempt goes on from this, whoever makes it."""
        return Attempt(
            self.command.position,
            # The number of an attempt under way counts only once that has failed.
            self._attempt_number - (self.retry_at is None),
            intent=self.call.is_once and self.retry_at is None,
            progress=self._progress,
            error=self._error,
            at=self.host.clock.now(),
            name=self.call.step.name,
            retry_at=self.retry_at,
            failing_since=self._failing_since,
        )

    def _record_known(self, known: Attempt) -> None:
        assert known.outcome is not None
        self.driver.steps.settled(
            self,
            ok=True,
            payload=known.outcome,
            value=UNREAD,
            started_at=known.at,
            attempts=known.attempt,
            used=None,
            model="",
            memory=None,
            preview=self._preview(),
            noted=True,
        )

    async def carry_out(self) -> None:
        """See to it that the step gets an outcome."""
        started_at = self.host.clock.now()
        try:
            await self._make_attempts()
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # A retry predicate, or the serializer of the value's own type: the user's code too can fail here. Without
            # an outcome the run would wait for ever. The last two would end the worker.
            self._settle(False, encode_error(error), UNREAD, started_at)
        finally:
            self.task = None  # its context leads back to here: nothing of the step would go before the collector comes
            if self._is_expected:
                self.driver.journal.answered(self.command.position)
                if not self.driver.gone:
                    self.driver.rest()

    async def _make_attempts(self) -> None:
        """Make attempts until one settles the step."""
        clock = self.host.clock
        retry = self.call.step.retry
        if self.retry_at is not None:  # whoever had the run before has waited for a part of the time
            await self._pause(self.retry_at - clock.now())
            if self.call.is_once:
                self.driver.steps.launch_once(self)
                return
        while True:
            if not self.host.membership.holds_lease():
                await self._wait_for_lease()
            if self.driver.is_halted or self.host.draining:  # since this task was created
                self.driver.steps.not_begun(self)
                return
            started_at = clock.now()
            self.memory = self._kept = None
            interrupted = False
            self.host.telling.begin(self._account, self._attempt_number, started_at)
            try:
                value = await self._attempt()
            except asyncio.CancelledError:
                if self.is_called_off:
                    return
                error: BaseException = cancelled_from_within(self.step, self.run.id)
            except FenceLost as lost:
                if self.is_called_off:
                    return
                if self.driver.standing:
                    self.driver.steps.left(self)
                    return
                error = StepFailed(f"the step raised {lost!r}", self.step.name)  # and its run is held here
            except (SystemExit, KeyboardInterrupt) as stop:
                error = StepFailed(f"the step raised {type(stop).__name__}: {message_of(stop)}", self.call.step.name)
            except Interrupted as raised:
                error = raised.__cause__ or raised
                interrupted = self._interruptions < MOST_INTERRUPTIONS
            except BaseException as raised:
                error = raised
            else:
                self._report(value, None, started_at)
                return
            finally:
                self._current = None
                self.host.telling.forget(self._account)
            await forget_cancel_requests()
            if self.withdrawn:
                return
            now = clock.now()
            if interrupted:
                self._interruptions += 1
                wait = RetryPolicy(backoff=INTERRUPTION_PAUSE).delay(self._interruptions, clock.draw())
            else:
                if self._failing_since is None:
                    self._failing_since = now
                tried = self._attempt_number - self._interruptions
                wait = retry.next_wait(tried, error, clock.draw(), now - self._failing_since)
            if wait is None:
                self._report(None, error, started_at)
                return
            encoded = encode_error(error)
            self._error = f"{type(error).__name__}: {describe_error(encoded).message}"[:500]
            del error
            self.retry_at = now + wait
            self._note()
            retries = None if retry.retries is None else retry.retries + self._interruptions
            self.host.run_log.log_retry(self.run, self.step.name, self._attempt_number, retries, wait, encoded)
            if self.driver.is_halted or self.host.draining:
                self.driver.steps.left(self)
                return
            await self._pause(wait)
            if self.call.is_once:
                self.driver.steps.launch_once(self)
                return

    async def _pause(self, seconds: float) -> None:
        """Wait for the next attempt.

        A run that waits for nothing else leaves memory meanwhile: see ``steps_in_flight``.
        """
        await self._sleep(max(0.0, seconds))
        self.retry_at = None
        self._attempt_number += 1
        self.host.run_busy(self.driver)

    async def _wait_for_lease(self) -> None:
        while not self.host.membership.holds_lease():
            await self._sleep(LEASE_LOOK)

    async def _sleep(self, seconds: float) -> None:
        """Let time pass. What the step's code has left running may cancel this task meanwhile: that ends nothing."""
        clock = self.host.clock
        until = clock.now() + seconds
        while True:
            try:
                await clock.sleep(seconds)
                return
            except asyncio.CancelledError:
                if self.is_called_off:
                    raise
                await forget_cancel_requests()
                seconds = max(0.0, until - clock.now())

    async def _attempt(self) -> Any:
        step, args, kwargs = self.call
        progress = None if self._progress is None else _progress.decode(self._progress, "heartbeat progress")
        self._current = StepContext(self, self._attempt_number, progress, self._failing_since)
        current.set(self._current)
        around = self.host.around_step
        if step.is_async:
            call = partial(step.function, *args, **kwargs)
        else:
            call = partial(self._call_in_thread, *args, **kwargs)
            if around is None:
                await self.host.threads.reserve()
        if around is not None:
            call = call if step.is_async else partial(self._reserve_and_call, call)
            if step.transaction:  # whoever replaces the step needs no database
                call = partial(self._in_transaction, self._current, call)
            call = partial(around, self, call)
        elif step.transaction:
            return await self._in_transaction(self._current, partial(self._in_time, call), reserved=not step.is_async)
        return await self._in_time(call)

    async def _in_time(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await in_time(self.step, self.run.id, self._attempt_number, call)

    async def _in_transaction(
        self, context: StepContext, call: Callable[[], Coroutine[Any, Any, Any]], *, reserved: bool = False
    ) -> Any:
        begun = False

        async def once_begun() -> Any:
            nonlocal begun
            begun = True
            return await call()

        try:
            self._kept = await in_transaction(self, context, self._attempt_number, once_begun)
        finally:
            if reserved and not begun:
                self.host.threads.waive()
        self._noted = True
        return self._kept[1]

    async def _reserve_and_call(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        await self.host.threads.reserve()
        return await call()

    async def _call_in_thread(self, /, *args: Any, **kwargs: Any) -> Any:
        # A copy: the thread may begin before this task has left its own context.
        context = contextvars.copy_context()
        attempt = self._current
        call = partial(call_plain, self.call.step, args, kwargs)
        return await self.host.threads.run(lambda: context.run(self._call_if_held, attempt, call))

    def _call_if_held(self, attempt: StepContext | None, call: Callable[[], Any]) -> Any:
        """In the thread: the lease may have passed while the step waited for its turn there."""
        while True:
            held = self.host.membership.holds_lease()
            # Asked after the lease: a worker that registered anew has one again, and dropped its runs before that.
            if self.driver.gone or self.withdrawn or attempt is not self._current:
                raise FenceLost(f"step {self.call.step.name!r} had not begun when its worker let go of it")
            if held:
                return call()
            time.sleep(LEASE_LOOK)

    def _report(self, value: Any, error: BaseException | None, started_at: float) -> None:
        step = self.call.step
        if self._kept is not None:
            payload, decoded = self._kept
            if self._is_expected and not self.driver.gone:
                self._record_withdrawn(payload, started_at)
            else:
                self._settle(True, payload, decoded, started_at)
            return
        if error is None:
            used = None if step.used is None else step.used(value)
            try:
                what = f"the output of step {step.name!r}"
                payload, decoded = step.output.record(value, what)
                check_size(payload, what, self.host.max_value)
            except UnrecordableValue as refused:
                self._settle(False, encode_error(refused), UNREAD, started_at, used)
            else:
                self._settle(True, payload, decoded, started_at, used)
            return
        self._settle(False, encode_error(error), UNREAD, started_at)

    def _record_withdrawn(self, payload: bytes, started_at: float) -> None:
        command = self.command
        self.driver.journal.record(
            command.kind,
            command.position,
            command.name,
            payload=payload,
            started_at=started_at,
            attempts=self._attempt_number,
            preview=self._preview(),
            noted=True,
        )

    def _settle(self, ok: bool, payload: bytes, value: Any, started_at: float, told: Used | None = None) -> None:
        if not (ok or self.withdrawn or self.driver.gone):
            self.host.run_log.log_step_failure(self.run, self.step.name, self._attempt_number, payload)
        used, model = (None, "") if told is None else told
        if self.driver.run.has_budget:
            seconds = max(0.0, self.host.clock.now() - started_at)
            used = replace(used or Usage(), seconds=seconds)
        self.driver.steps.settled(
            self,
            ok=ok,
            payload=payload,
            value=value,
            started_at=started_at,
            attempts=self._attempt_number,
            used=used,
            model=model,
            memory=self.memory if ok else None,
            preview=self._preview(),
            noted=self._noted,
        )

    def _preview(self) -> str:
        return preview(self.call.step.parameters, self.call.args, self.call.kwargs)

    # While it is in flight

    def tell_text(self, context: StepContext, text: str) -> None:
        """A piece of text, from whatever thread the step runs in."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.tell_text, context, text)
        elif context is self._current and not self.withdrawn:
            self.host.telling.listen(self._account)(text)

    def listener(self, context: StepContext, request: int) -> Callable[[str], None]:
        """What takes the pieces of an answer."""
        if context is self._current and not self.withdrawn:
            return self.host.telling.listen(self._account, request)
        return lambda _: None

    def beat(self, context: StepContext, progress: Any) -> None:
        """A heartbeat, from whatever thread the step runs in."""
        if self.withdrawn and not self._lost:  # asked first: a cancelled run may have ended, and so be gone as well
            raise asyncio.CancelledError(f"the workflow no longer waits for step {context.name!r}")
        if self.driver.gone:
            raise FenceLost(f"run {context.run_id!r} is held by another worker now; step {context.name!r} must stop")
        if self.withdrawn:
            raise asyncio.CancelledError(f"the workflow no longer waits for step {context.name!r}")
        if context is not self._current:
            raise asyncio.CancelledError(f"attempt {context.attempt} of step {context.name!r} is over")
        if progress is None:
            return
        self._check_progress()
        self._progress = _progress.encode(progress, f"the progress of step {context.name!r}")
        if self._beat_due:
            return
        self._beat_due = True
        if threading.get_ident() == self._thread:
            self._schedule_beat()
        else:
            self._loop.call_soon_threadsafe(self._schedule_beat)

    def _check_progress(self) -> None:
        if self.call.step.transaction:
            raise UsageError(
                f"step {self.call.step.name!r} has transaction=True, so nothing of an attempt that fails stays, and "
                f"there is nothing that the next one could go on from: call heartbeat() without progress, or make two "
                f"steps of it"
            )

    def _schedule_beat(self) -> None:
        wait = self._last_beat + HEARTBEAT_INTERVAL - self._loop.time()
        self._loop.call_later(max(0.0, wait), self._write_beat)

    def _write_beat(self) -> None:
        self._beat_due = False
        self._last_beat = self._loop.time()
        # Between two attempts all is noted already, and that the first of them is over.
        if self._current is not None and self.task is not None and not self.task.done():
            self._note()

    async def keep(self, context: StepContext, progress: Any) -> None:
        """A heartbeat that is waited for. Losing the run meanwhile cancels the step, and so the wait."""
        self.beat(context, None)
        self._check_progress()
        self._progress = _progress.encode(progress, f"the progress of step {context.name!r}")
        durable: asyncio.Future[None] = self._loop.create_future()

        def tell() -> None:
            if not durable.done():
                durable.set_result(None)
            self.driver.rest()

        self._note(tell)
        await durable

    def _note(self, then: Callable[[], None] | None = None) -> None:
        """Keep what is known of this step, in the background: nothing waits for it, unless ``then`` is to be told."""
        self._noted = True
        self.driver.note(self.so_far(), then)

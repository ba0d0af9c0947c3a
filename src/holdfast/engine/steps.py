"""One step being carried out: attempt, time-out, retry, outcome.

The way of a step is a pipe of verbs: ``carry_out`` makes attempts until one of them settles it; ``_attempt`` runs the
function once; ``_report`` encodes the outcome and hands it to the run's driver, which records it. That of a
transactional step is committed before, with what the step did: see ``transacting``.

A step runs on the process's own event loop (a plain function in a thread) with the context variables of the workflow
code that called it. When its worker loses the run, or the workflow cancels the step, its task is cancelled. A thread
cannot be stopped from outside; ``heartbeat`` raises in it, and its outcome is dropped.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.codec import check_size, codec_for, describe_error, encode_error, preview
from holdfast.core.commands import UNREAD, Command
from holdfast.core.records import Attempt
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import Effect
from holdfast.core.usage import Usage
from holdfast.engine import asking
from holdfast.engine.attempting import call_plain, in_time
from holdfast.engine.definitions import StepCall, StepDefinition, Used
from holdfast.engine.reserving import reserve
from holdfast.engine.step_context import StepContext, current
from holdfast.engine.telling import Account
from holdfast.engine.transacting import MOST_INTERRUPTIONS, Interrupted, in_transaction
from holdfast.errors import FenceLost, StepFailed, UnrecordableValue, UsageError
from holdfast.stores.contract import History
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import Change, Run, Verdict

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.hosting import Host, StepEngine

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
        self._attempt_number = known.attempt + 1 if known is not None and not known.intent else 1
        self._error = known.error if known is not None else ""
        self._progress: bytes | None = known.progress if known is not None else None
        self._known = known if known is not None and known.outcome is not None else None
        """Its outcome was committed with what it did, and is still to be recorded."""
        self._kept: tuple[bytes, Any] | None = None
        """The same, of the attempt that has just been made: encoded, and decoded again."""
        self._interruptions = 0
        """Attempts that the database has ended, and that do not count."""
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
        await reserve(self.host, self.driver, self.command.position, self.step.name, expected)

    async def previous_run(self) -> str:
        """The run before this one in its session."""
        return self.run.previous

    async def remind_approval(self, id: str, reminders: int, asked_of: str, expires_at: float | None) -> bool:
        """Note that people are told of a question again."""
        return await asking.remind(self.host, self.run, id, reminders, asked_of, expires_at)

    async def withdraw_approval(self, id: str) -> bool:
        """Take a question back."""
        return await asking.withdraw(self.host, self.run, id)

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """Another run's row and journal."""
        return await self.host.read_run(run_id)

    async def change_run(self, op: Change) -> Verdict:
        """Change another run."""
        return await self.host.change(op)

    # Carrying it out

    @property
    def is_at_work(self) -> bool:
        """Whether an attempt is being made, and not only waited for. Nobody may leave a ``once`` step in between."""
        return self._current is not None or self.task is None or self.call.is_once

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
        if self.task is not None and not self.task.done():
            # Its clean-up may take a while, and asyncio itself holds tasks only weakly.
            stragglers = self.host.stragglers
            stragglers.add(self.task)
            self.task.add_done_callback(stragglers.discard)
            self.task.cancel()

    def note_intent(self) -> Attempt:
        """What is written before a ``once`` step starts."""
        self._noted = True
        now = self.host.clock.now()
        return Attempt(self.command.position, self._attempt_number, intent=True, at=now, name=self.call.step.name)

    def note_no_intent(self) -> Attempt:
        """What is written when it does not start after all: nobody need fear that it has."""
        now = self.host.clock.now()
        return Attempt(self.command.position, self._attempt_number - 1, at=now, name=self.call.step.name)

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
        except Exception as error:
            # A retry predicate, or the serializer of the value's own type: the user's code too can fail here. Without
            # an outcome the run would wait for ever.
            self._settle(False, encode_error(error), UNREAD, started_at)
        finally:
            self.task = None  # its context leads back to here: nothing of the step would go before the collector comes

    async def _make_attempts(self) -> None:
        """Make attempts until one settles the step."""
        clock = self.host.clock
        retry = self.call.step.retry
        while True:
            while not self.host.membership.holds_lease():
                await clock.sleep(LEASE_LOOK)
            started_at = clock.now()
            self.memory = self._kept = None
            interrupted = False
            self.host.telling.begin(self._account, self._attempt_number, started_at)
            try:
                value = await self._attempt()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self.withdrawn or (task is not None and task.cancelling()):
                    return  # withdrawn by the workflow, or the process stops: there is no outcome
                error: BaseException = StepFailed("the step cancelled itself (CancelledError)", self.call.step.name)
            except FenceLost:
                if self.driver.standing:
                    self.driver.steps.left(self)
                return
            except (SystemExit, KeyboardInterrupt) as stop:
                error = StepFailed(f"the step raised {stop!r}", self.call.step.name)
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
            if self.withdrawn:
                return
            tried = self._attempt_number - self._interruptions
            if interrupted:
                self._interruptions += 1
                wait = RetryPolicy(backoff=INTERRUPTION_PAUSE).delay(self._interruptions, clock.draw())
            elif retry.wants_retry(tried, error):
                wait = retry.delay(tried, clock.draw(), error)
            else:
                self._report(None, error, started_at)
                return
            self._error = f"{type(error).__name__}: {describe_error(encode_error(error)).message}"[:500]
            del error
            self._note()
            if self.driver.standing:
                self.driver.steps.left(self)
                return
            await clock.sleep(wait)
            self._attempt_number += 1

    async def _attempt(self) -> Any:
        step, args, kwargs = self.call
        progress = None if self._progress is None else _progress.decode(self._progress, "heartbeat progress")
        self._current = StepContext(self, self._attempt_number, progress)
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
        call = partial(call_plain, self.call.step.function, args, kwargs)
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

    def _settle(self, ok: bool, payload: bytes, value: Any, started_at: float, told: Used | None = None) -> None:
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
            self._note(self._attempt_number - 1)

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

        self._note(self._attempt_number - 1, tell)
        await durable

    def _note(self, attempt: int | None = None, then: Callable[[], None] | None = None) -> None:
        """Keep what is known of this step, in the background: nothing waits for it, unless ``then`` is to be told."""
        self._noted = True
        self.driver.note(
            Attempt(
                self.command.position,
                self._attempt_number if attempt is None else attempt,
                intent=self.call.step.effect is Effect.ONCE,
                progress=self._progress,
                error=self._error,
                at=self.host.clock.now(),
                name=self.call.step.name,
            ),
            then,
        )

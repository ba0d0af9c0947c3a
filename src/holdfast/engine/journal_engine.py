"""The journal engine: one worker and the runs it holds, over any store.

One ``JournalEngine`` is one worker: it registers with the store, renews its lease (``membership``), and executes runs
of the workflows it knows. Runs reach it in two ways: this process starts one, which is created as already claimed and
so saves a write, or its polling loop (``poller``) claims one that is due in the store.

**Tests** use this engine with parts of it replaced: ``clock`` (time and random numbers), ``heartbeat_factory`` (renews
the lease), ``execution_factory`` (makes the run in memory, so that a test can observe it), and ``step_interceptor``
(makes an attempt of a step).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any

from holdfast.admission.queue_limits import QueueLimits
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES
from holdfast.core.commands import Command
from holdfast.core.execution import Execution
from holdfast.core.patches import Patches
from holdfast.core.program_execution import ProgramExecution
from holdfast.core.records import Attempt
from holdfast.engine import forked_child, replay_logging
from holdfast.engine.announcements import Announcements
from holdfast.engine.claims import Claims
from holdfast.engine.clock import Clock, SystemClock
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.driver import Driver
from holdfast.engine.heartbeat import INTERRUPT_AFTER_S, Heartbeat, Turn, make_turn
from holdfast.engine.held_run import HeldRun
from holdfast.engine.held_runs import HeldRuns
from holdfast.engine.idle_runs import IdleRuns
from holdfast.engine.journal_writer import AnswerCallback, JournalWriter
from holdfast.engine.live_events import LiveEventWriter
from holdfast.engine.loop_watchdog import MAX_BLOCKED_S, LoopWatchdog
from holdfast.engine.membership import Membership
from holdfast.engine.poller import Poller
from holdfast.engine.program_run import ProgramRun
from holdfast.engine.schedule_ticker import ScheduleTicker
from holdfast.engine.step_run import StepInterceptor, StepRun
from holdfast.engine.store_readiness import retry_until_store_ready
from holdfast.engine.thread_pool import StepThreadPool
from holdfast.engine.timers import ClockTimers
from holdfast.errors import RunNotFound, SchemaTooNew, StoreError, UsageError, WorkflowNeverYields
from holdfast.processes.readiness import STOPPING
from holdfast.run_log import RunLog
from holdfast.stores.change_feed import ChangeFeed
from holdfast.stores.contract import History, Store
from holdfast.stores.operations import ClientOp, NewRun, OpResult, OpStatus, Run, RunLink
from holdfast.stores.run_waiters import RunWaiters
from holdfast.telemetry.metrics import Labels
from holdfast.telemetry.telemetry import Telemetry

log = logging.getLogger("holdfast.engine")

LINGERING_TASK_TIMEOUT_S = 1.0
"""Seconds that cancelled steps get to clean up when the engine closes."""


class JournalEngine:
    """Executes runs from a store in this process."""

    def __init__(
        self,
        store: Store,
        definitions: Mapping[str, WorkflowDefinition],
        *,
        lease_s: float = 10.0,
        max_concurrency: int = 1000,
        queues: Collection[str] | None = None,
        queue_limits: Mapping[str, QueueLimits] | None = None,
        threads: int = 64,
        clock: Clock | None = None,
        interrupt_after_s: float = INTERRUPT_AFTER_S,
        max_blocked_s: float = MAX_BLOCKED_S,
        max_value: int = DEFAULT_MAX_VALUE_BYTES,
        heartbeat_factory: type[Heartbeat] = Heartbeat,
        execution_factory: Callable[..., Execution] = Execution,
        program_execution_factory: Callable[..., ProgramExecution] = ProgramExecution,
        step_interceptor: StepInterceptor | None = None,
        fire_schedules: bool = True,
    ) -> None:
        self.store = store
        self.definitions = definitions
        self.served_queues = None if queues is None else tuple(queues)
        """The queues that this worker claims runs from; ``None``: all."""
        self.lease_s = lease_s
        self.clock: Clock = clock or SystemClock(store.now)
        self.is_draining = False
        """The engine starts nothing more."""
        self.is_closed = False
        """The engine has let go of its runs."""
        self.max_value = max_value
        self.worker_id = 0
        self.execution_factory = execution_factory
        self.program_execution_factory = program_execution_factory
        self.step_interceptor = step_interceptor
        self.run_log = RunLog.from_store(store)
        self.telemetry: Telemetry | None = None
        self.live_events = LiveEventWriter(self)
        self.change_feed = ChangeFeed()
        self.lingering_tasks: set[asyncio.Task[Any]] = set()
        self.close_callbacks: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.loop: asyncio.AbstractEventLoop
        self.loop_thread_id = 0
        self.writer: JournalWriter
        self.thread_pool = StepThreadPool(threads)
        self._interrupt_after_s = interrupt_after_s
        self._max_blocked_s = max_blocked_s
        self.on_stuck: Callable[[], None] = lambda: None
        self.held_runs = HeldRuns(self, max_concurrency)
        self.membership = Membership(self)
        self._claims = Claims(self)
        self._ticker = ScheduleTicker(self, definitions if fire_schedules else {})
        self._announcements = Announcements(self, {} if queue_limits is None else queue_limits, self._ticker)
        self._idle_runs = IdleRuns(self.clock.now)
        self.on_run_busy = self._idle_runs.remove
        self._run_waiters = RunWaiters()
        self._poller = Poller(self, self._announcements, self._claims, self._ticker, self._run_waiters)
        self._is_grace_skipped = False
        self.fatal_store_error: StoreError | None = None
        """Why this engine cannot use the store any more."""
        self.on_fatal_store_error: Callable[[], object] = lambda: None
        self._heartbeat_factory = heartbeat_factory
        self._heartbeat: Heartbeat

    # Opening and closing

    async def open(self) -> None:
        """Connect, register as a worker, and begin to take runs."""
        replay_logging.install_filter()
        self.loop = asyncio.get_running_loop()
        self.loop_thread_id = threading.get_ident()
        await retry_until_store_ready(self.store.open, self.clock)
        self.writer = JournalWriter(self.store, self.loop, self.clock)
        try:
            await retry_until_store_ready(self.membership.register, self.clock)
        except BaseException:
            await self.store.close()
            raise
        self._open_telemetry()
        self._heartbeat = self._heartbeat_factory(
            lease_s=self.lease_s,
            renew=self.membership.renew_lease,
            on_lost=self.membership.on_lease_lost,
            interrupt=self._interrupt_turn,
            interrupt_after_s=self._interrupt_after_s,
            watchdog=LoopWatchdog(
                max_blocked_s=self._max_blocked_s, on_stuck=lambda: self.on_stuck(), now=self.clock.monotonic
            ),
            now=self.clock.monotonic,
        )
        self._heartbeat.start()  # at once: waiting for the store below must not cost the lease
        try:
            await retry_until_store_ready(self._announcements.announce, self.clock)
            # Before the first start: whether a run is an orphan depends on whether its starter is known to be dead.
            await retry_until_store_ready(self.membership.reap_dead, self.clock)
        except BaseException:
            self._heartbeat.stop()
            await self.store.close()
            raise
        forked_child.guard_loop(self.loop)
        self._poller.start()

    def _open_telemetry(self) -> None:
        self.telemetry = Telemetry.find(self.run_log)
        metrics = None if self.telemetry is None else self.telemetry.metrics
        self.writer.metrics = metrics
        if metrics is not None:
            metrics.held_runs.sources.append(self._count_held_runs)

    def _close_telemetry(self) -> None:
        if self.telemetry is not None and (metrics := self.telemetry.metrics) is not None:
            metrics.held_runs.sources.remove(self._count_held_runs)
            self.telemetry = None

    def _count_held_runs(self) -> list[tuple[Labels, float]]:
        return [((), len(self.held_runs.drivers))]

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop: steps in flight get ``grace_s`` seconds to end; then every run is handed over to other workers."""
        if self.is_closed:
            return
        self.is_draining = True
        if self._poller.task is None:  # never opened, or opening failed and has cleaned up: do not hide that error
            self.is_closed = True
            self.thread_pool.stop()
            return
        for driver in self.held_runs.list_drivers():
            driver.steps.requeue_waiting()
        await self._drain(grace_s)
        self.is_closed = True
        self._idle_runs.stop()
        try:
            await self._retire()
        finally:
            forked_child.unguard_loop(self.loop)
            # Only now: a lease that expires during the handover would count as a worker death.
            self._heartbeat.stop()
        for error in await asyncio.gather(*(close() for close in self.close_callbacks), return_exceptions=True):
            if isinstance(error, Exception):
                log.error("something that steps have left open could not be closed", exc_info=error)
        await self.store.close()
        self._close_telemetry()
        closed = UsageError("the runtime was closed; the run goes on when a worker that knows it is open")
        self._run_waiters.fail_all(closed)
        self.change_feed.notify_all(closed)

    async def _retire(self) -> None:
        """Let go of every run, and leave cleanly as a worker."""
        self._poller.stop()
        self.live_events.stop()
        await self.writer.flush()
        for driver in self.held_runs.list_drivers():
            driver.unload()
        if self.lingering_tasks:
            await asyncio.wait(self.lingering_tasks, timeout=LINGERING_TASK_TIMEOUT_S)
        self.writer.stop()
        self.thread_pool.stop()
        if self.fatal_store_error is not None:
            return  # it takes no writes; other workers take over when this process releases its lock
        try:
            await self.store.workers.retire(self.worker_id)
        except StoreError as error:
            log.warning("could not hand over in good order; other workers take over when the lease ends: %s", error)

    def abandon(self) -> None:
        """The event loop is gone: let go of everything without it. Other workers take over as after a crash."""
        forked_child.unguard_loop(self.loop)
        self.is_closed = True
        self.is_draining = True
        self._idle_runs.stop()
        self.live_events.stop()
        self._heartbeat.stop()
        self.thread_pool.stop()
        for driver in self.held_runs.list_drivers():
            driver.abandon()
        self.store.abandon()
        self._close_telemetry()

    def simulate_crash(self) -> list[asyncio.Task[Any]]:
        """For tests, on the loop: stop everything without any cleanup, as if this worker's process were gone.

        Returns its tasks, which end soon. Threads cannot be stopped.
        """
        for driver in self.held_runs.list_drivers():
            driver.simulate_crash()
        self.abandon()
        tasks = [*self._poller.background_tasks, *self.writer.stop()]
        if self._poller.task is not None:
            tasks.append(self._poller.task)
        for task in tasks:
            task.cancel()
        return [*tasks, *self.lingering_tasks]

    @property
    def in_flight_count(self) -> int:
        """How many things are in flight here that only need time to end."""
        return (
            len(self._poller.background_tasks)
            + self.writer.is_busy
            + sum(driver.in_flight_count for driver in self.held_runs.drivers.values())
        )

    def park_idle(self) -> None:
        """Park every idle run at once."""
        self._idle_runs.park_all()

    def skip_grace(self) -> None:
        """Let a ``close`` that is running stop waiting for steps in flight."""
        self._is_grace_skipped = True

    async def _drain(self, grace_s: float) -> None:
        """Let what is in flight end, without starting anything new."""
        until = self.clock.monotonic() + grace_s
        while not self._is_grace_skipped and self.clock.monotonic() < until:
            if not any(driver.in_flight_count for driver in self.held_runs.drivers.values()):
                return
            await self.clock.sleep(0.02)

    @property
    def is_stopping(self) -> bool:
        """Whether the engine has let go of its runs, or is about to because its event loop ends."""
        return self.is_closed or self._poller.is_cancelling

    @property
    def not_ready_reason(self) -> str:
        """Why this worker takes no runs at the moment; empty if it does. Read from any thread."""
        if self.is_draining:
            return STOPPING
        return "" if self.membership.has_lease() else "its lease has passed, because the store did not respond"

    # For the runtime

    async def start(self, new: NewRun, *, join_orphan: bool) -> OpResult:
        """Create a run, and begin to execute it here if this worker can."""
        if self._announcements.has_pending(new.workflow, new.version):
            await self._announcements.announce()
        return await self.writer.await_answer(partial(self._claims.start_run, new, join_orphan=join_orphan))

    def start_child(self, new: NewRun, link: RunLink, on_answer: AnswerCallback) -> None:
        """Start a run for a held one, and execute it here if this worker can."""
        self._claims.start_run(new, on_answer, link=link)

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """A run's row and journal, if there is such a run."""
        run = await self.store.get_run(run_id)
        if run is None:
            return None
        [history] = await self.store.get_histories([run.key])
        return run, history

    async def change_run(self, op: ClientOp) -> OpStatus:
        """Change a run from outside."""
        try:
            answer = await self.writer.perform(op)
        except Exception:
            self._claims.note_unacknowledged()
            raise
        assert isinstance(answer, OpStatus)
        self.change_feed.notify_all()
        self.wake()
        return answer

    async def wait(self, run_id: str) -> Run:
        """The run's row, when it has ended, here or on another worker."""
        if self.fatal_store_error is not None:
            raise self.fatal_store_error
        future = self._run_waiters.add(run_id)
        try:
            if run_id not in self.held_runs.drivers_by_run_id:
                run = await self.store.get_run(run_id)
                if run is None:
                    raise RunNotFound(f"there is no run {run_id!r} in {self.store.url}", run_id)
                if run.state.is_terminal:
                    return run
            return await future
        finally:
            self._run_waiters.remove(run_id, future)

    def can_serve(self, workflow: str, queue: str | None) -> bool:
        """Whether runs of this workflow are executed here, if they are in this queue (``None``: its own)."""
        known = [definition for definition in self.definitions.values() if definition.name == workflow]
        return any(self._claims.can_serve_queue(queue or definition.queue) for definition in known)

    # For the poller and the claims

    def stop_on_newer_schema(self, error: SchemaTooNew) -> None:
        """A newer Holdfast has migrated the store: nothing can be recorded here any more, so drop all runs."""
        log.error("this worker drops its runs and stops: %s", error)
        self.is_draining = True
        self.fatal_store_error = error
        for driver in self.held_runs.list_drivers():
            driver.unload()
        self._run_waiters.fail_all(error)
        self.change_feed.notify_all(error)
        self.on_fatal_store_error()

    def on_unloaded_run_ended(self, run: Run) -> None:
        """A run has ended here without having been in memory."""
        self._run_waiters.resolve(run)
        self.wake()  # another held run may wait for it

    def wake(self) -> None:
        """Something in this process changed what there is to do: poll at once."""
        self._poller.wake()

    # For drivers (see `host.RunHost`)

    def create_step(self, driver: Driver, command: Command, earlier_attempt: Attempt | None) -> StepRun:
        """The executor of a step."""
        return StepRun(self, driver, command, earlier_attempt)

    def create_timers(self, driver: Driver) -> ClockTimers:
        """The timers of a run."""
        return ClockTimers(driver)

    def create_program(
        self, driver: Driver, execution: ProgramExecution, function: Callable[[], Any], *, is_async: bool
    ) -> ProgramRun:
        """The program of a run."""
        return ProgramRun(self, driver, execution, function, is_async=is_async)

    def create_patches(self, history: History) -> Patches:
        """The patches of a run with this history."""
        answered = [signal.position for signal in history.signals if signal.position is not None]
        return Patches(history.records, [*history.attempts, *history.links, *answered])

    def on_run_idle(self, held_run: HeldRun) -> None:
        """The run waits only for time and signals."""
        self.live_events.stop_timer_if_idle()
        if not self.is_closed:
            self._idle_runs.add(held_run)

    def on_run_closed(self, held_run: HeldRun, ended_run: Run | None) -> None:
        """The run is no longer in memory."""
        self._idle_runs.remove(held_run)
        self.live_events.stop_timer_if_idle()
        self.change_feed.notify(held_run.run.id)
        self.held_runs.remove(held_run)
        if ended_run is not None:
            if held_run.telemetry is not None:
                held_run.telemetry.end_run(ended_run)
            if not held_run.has_fatal_error:
                self.run_log.log_end(ended_run)
            self._run_waiters.resolve(ended_run)
        elif held_run.wake_at is not None:
            self._claims.note_wake_at(held_run.wake_at)
        elif not held_run.is_parked:
            self.wake()  # the run may have ended elsewhere, and a caller here may wait for that
        self._poller.has_freed_slots = True
        if self._claims.is_starved or held_run.run.is_limited:
            # There is a free slot here or in its queue, and the store does not report this worker's own writes.
            self._claims.is_starved = False
            self.wake()

    def on_released(self, answer: OpResult | BaseException) -> None:
        """The store has answered the release of a run."""
        self._claims.on_released(answer)

    def on_park_refused(self, held_run: HeldRun) -> None:
        """The store refused to park the run: what it waits for may have arrived."""
        self.wake()

    def set_turn(self, run_id: str | None) -> None:
        """Workflow code of this run starts to occupy the loop, or (``None``) stops."""
        self._heartbeat.current_turn = None if run_id is None else make_turn((run_id, self.clock.monotonic()))

    # For the membership

    def on_reregistered(self) -> None:
        """This is a new worker now: announce its code again."""
        self._announcements.reset()
        self.wake()

    def run_in_background(self, coro: Coroutine[Any, Any, None]) -> None:
        """Run something in a task, and handle its errors."""
        self._poller.run_in_background(coro)

    # For the heartbeat, in its thread

    def _interrupt_turn(self, turn: Turn, location: str) -> bool:
        """Fail a run that blocks the process with its code; false if its turn has ended meanwhile."""
        driver = self.held_runs.drivers_by_run_id.get(turn.run_id)
        if driver is None or not driver.is_started:
            return False
        loop = driver.execution.loop
        never_yields = WorkflowNeverYields(
            f"run {turn.run_id!r}: workflow code blocked its process for {self._interrupt_after_s:g} s"
            f"{f' (at {location})' if location else ''}. Workflow code may not block: do this in a step."
        )

        def poison() -> None:
            loop.fatal_error = loop.fatal_error or never_yields

        return loop.interrupt_window.interrupt(
            self._heartbeat.loop_thread_id, lambda: self._heartbeat.current_turn is turn, poison
        )

"""The journal engine: one worker and the runs it holds, over any store.

One ``JournalEngine`` is one worker: it registers with the store, renews its lease (``membership``), and executes runs
of the workflows it knows. Runs reach it in two ways: this process starts one, which is created as already claimed and
so saves a write, or ``_poll`` claims one that is due in the store.

``_run_polling`` is the engine's only loop. It waits until another process has written something, the next parked run is
due, or it is time to look for dead workers. Then ``_poll`` takes what there is to take: runs to claim and signals for
held runs (``claims``, ``held_runs``), ends of runs that this process waits for, and ticks of schedules
(``schedule_ticker``). These parts do not depend on each other: one that fails does not keep schedules from firing.

When a newer Holdfast has migrated the store (``SchemaTooNew``), nothing can be recorded any more: the engine drops its
runs and stops.

**Tests** use this engine with parts of it replaced: ``clock`` (time and random numbers), ``heartbeat_factory`` (who
renews the lease), ``execution_factory`` (what a run in memory is, so that a test can observe it), and
``step_interceptor`` (what makes an attempt of a step).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any

from holdfast.admission.queue_limits import QueueLimits
from holdfast.background_tasks import keep_running
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES
from holdfast.core.commands import Command
from holdfast.core.execution import Execution
from holdfast.core.patches import Patches
from holdfast.core.records import Attempt
from holdfast.engine import forked_child, replay_logging
from holdfast.engine.announcements import Announcements
from holdfast.engine.claims import Claims
from holdfast.engine.clock import Clock, SystemClock
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.driver import Driver
from holdfast.engine.heartbeat import INTERRUPT_AFTER_S, Heartbeat, Turn
from holdfast.engine.held_runs import HeldRuns
from holdfast.engine.idle_runs import IdleRuns
from holdfast.engine.journal_writer import AnswerCallback, JournalWriter
from holdfast.engine.live_events import LiveEventWriter
from holdfast.engine.loop_watchdog import MAX_BLOCKED_S, LoopWatchdog
from holdfast.engine.membership import Membership
from holdfast.engine.schedule_ticker import ScheduleTicker
from holdfast.engine.step_run import StepInterceptor, StepRun
from holdfast.engine.store_readiness import retry_until_store_ready
from holdfast.engine.thread_pool import StepThreadPool
from holdfast.engine.timers import ClockTimers
from holdfast.errors import RunNotFound, SchemaTooNew, StoreError, StoreUnavailable, UsageError, WorkflowNeverYields
from holdfast.run_log import RunLog
from holdfast.stores.change_feed import ChangeFeed
from holdfast.stores.contract import History, Store
from holdfast.stores.operations import ClientOp, NewRun, OpResult, OpStatus, Run, RunLink, StartRun
from holdfast.stores.run_waiters import RunWaiters
from holdfast.stores.workers import ReapResult

log = logging.getLogger("holdfast.engine")

REAP_INTERVAL_S = 0.2
"""Seconds between two looks at whether another worker has died."""
FREED_SLOT_POLL_DELAY_S = 1.0
"""Seconds after which there is another look if runs have left since the last one. Their queue may have been given
limits while they were held: then one of them has given up a place without our knowing."""

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
        step_interceptor: StepInterceptor | None = None,
        fire_schedules: bool = True,
    ) -> None:
        self.store = store
        self.clock: Clock = clock or SystemClock(store.now)
        self.is_draining = False
        self.max_value = max_value
        self.worker_id = 0
        self.execution_factory = execution_factory
        self.step_interceptor = step_interceptor
        self.run_log = RunLog.from_store(store)
        self.live_events = LiveEventWriter(self)
        self.change_feed = ChangeFeed()
        self.lingering_tasks: set[asyncio.Task[Any]] = set()
        self.close_callbacks: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.loop: asyncio.AbstractEventLoop
        self.writer: JournalWriter
        self.thread_pool = StepThreadPool(threads)
        self._definitions = definitions
        self._lease_s = lease_s
        self._interrupt_after_s = interrupt_after_s
        self._max_blocked_s = max_blocked_s
        self.on_stuck: Callable[[], None] = lambda: None
        served = None if queues is None else tuple(queues)
        self.held_runs = HeldRuns(self, max_concurrency)
        self.membership = Membership(self, definitions, served, lease_s)
        self._claims = Claims(self, definitions, served, lease_s)
        self._ticker = ScheduleTicker(self, definitions if fire_schedules else {})
        self._announcements = Announcements(
            self, definitions, {} if queue_limits is None else queue_limits, self._ticker
        )
        self._idle_runs = IdleRuns(self.clock.now)
        self._arrivals = RunWaiters()
        self._poll_lock = asyncio.Lock()
        self._is_wake_scheduled = False
        self._has_freed_slots = False
        """Runs have left memory since the last look."""
        self._last_poll_at = 0.0
        self._should_retry_poll = False
        """The last look failed: what it would have found is still there, and the store may tell of no new change."""
        self._is_grace_skipped = False
        self._is_closed = False
        self.fatal_store_error: StoreError | None = None
        """Why this engine cannot use the store any more."""
        self.on_fatal_store_error: Callable[[], object] = lambda: None
        self._background_tasks: set[asyncio.Task[Any]] = set()
        self._heartbeat_factory = heartbeat_factory
        self._heartbeat: Heartbeat
        self._poll_task: asyncio.Task[None] | None = None

    # Opening and closing

    async def open(self) -> None:
        """Connect, register as a worker, and begin to take runs."""
        replay_logging.install_filter()
        self.loop = asyncio.get_running_loop()
        await retry_until_store_ready(self.store.open, self.clock)
        self.writer = JournalWriter(self.store, self.loop, self.clock)
        try:
            await retry_until_store_ready(self.membership.register, self.clock)
        except BaseException:
            await self.store.close()
            raise
        self._heartbeat = self._heartbeat_factory(
            lease_s=self._lease_s,
            renew=self.membership.renew_lease,
            on_lost=self.membership.on_lease_lost,
            interrupt=self._interrupt_turn,
            interrupt_after_s=self._interrupt_after_s,
            watchdog=LoopWatchdog(
                max_blocked_s=self._max_blocked_s, on_stuck=lambda: self.on_stuck(), now=self.clock.monotonic
            ),
            now=self.clock.monotonic,
        )
        self._heartbeat.start()  # at once: a store that is waited for below must not cost the lease
        try:
            await retry_until_store_ready(self._announcements.announce, self.clock)
            # Before the first start: whether a run is an orphan depends on whether its starter is known to be dead.
            await retry_until_store_ready(self._reap, self.clock)
        except BaseException:
            self._heartbeat.stop()
            await self.store.close()
            raise
        forked_child.guard_loop(self.loop)
        self._poll_task = self.loop.create_task(self._run_polling(), name="holdfast-engine")

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop: steps in flight get ``grace_s`` seconds to end; then every run is handed over to other workers."""
        if self._is_closed:
            return
        self.is_draining = True
        if (
            self._poll_task is None
        ):  # never opened, or opening failed, and has cleaned up: that error must not be hidden
            self._is_closed = True
            self.thread_pool.stop()
            return
        for driver in self.held_runs.list_drivers():
            driver.steps.requeue_waiting()
        await self._drain(grace_s)
        self._is_closed = True
        self._idle_runs.stop()
        try:
            await self._retire()
        finally:
            forked_child.unguard_loop(self.loop)
            # Only now: a lease that passes while we hand over would make a death of it.
            self._heartbeat.stop()
        for error in await asyncio.gather(*(close() for close in self.close_callbacks), return_exceptions=True):
            if isinstance(error, Exception):
                log.error("something that steps have left open could not be closed", exc_info=error)
        await self.store.close()
        closed = UsageError("the runtime was closed; the run goes on when a worker that knows it is open")
        self._arrivals.fail_all(closed)
        self.change_feed.notify_all(closed)

    async def _retire(self) -> None:
        """Let go of every run, and leave as a worker in good order."""
        if self._poll_task is not None and self._poll_task is not asyncio.current_task():
            self._poll_task.cancel()
        for chore in list(self._background_tasks):
            chore.cancel()
        self.live_events.stop()
        await self.writer.flush()
        for driver in self.held_runs.list_drivers():
            driver.unload()
        if self.lingering_tasks:
            await asyncio.wait(self.lingering_tasks, timeout=LINGERING_TASK_TIMEOUT_S)
        self.writer.stop()
        self.thread_pool.stop()
        if self.fatal_store_error is not None:
            return  # it takes nothing, and others take over when this process lets go of its lock
        try:
            await self.store.workers.retire(self.worker_id)
        except StoreError as error:
            log.warning("could not hand over in good order; other workers take over when the lease ends: %s", error)

    def abandon(self) -> None:
        """The event loop is gone: let go of everything without it. Other workers take over as after a crash."""
        forked_child.unguard_loop(self.loop)
        self._is_closed = True
        self.is_draining = True
        self._idle_runs.stop()
        self.live_events.stop()
        self._heartbeat.stop()
        self.thread_pool.stop()
        for driver in self.held_runs.list_drivers():
            driver.abandon()
        self.store.abandon()

    def simulate_crash(self) -> list[asyncio.Task[Any]]:
        """For tests, on the loop: this worker's process is gone. Nothing of it does anything more, or is told why.

        Returns its tasks, which end in a moment. What its threads are doing cannot be stopped.
        """
        for driver in self.held_runs.list_drivers():
            driver.simulate_crash()
        self.abandon()
        tasks = [*self._background_tasks, *self.writer.stop()]
        if self._poll_task is not None:
            tasks.append(self._poll_task)
        for task in tasks:
            task.cancel()
        return [*tasks, *self.lingering_tasks]

    @property
    def in_flight_count(self) -> int:
        """How many things are under way here that need nothing from outside but the time they take."""
        return (
            len(self._background_tasks)
            + self.writer.is_busy
            + sum(driver.in_flight_count for driver in self.held_runs.drivers.values())
        )

    def park_idle(self) -> None:
        """Let every run leave memory at once that waits for nothing but time and signals."""
        self._idle_runs.park_all()

    def skip_grace(self) -> None:
        """Let a ``close`` that is under way wait for nothing more that is in flight."""
        self._is_grace_skipped = True

    async def _drain(self, grace_s: float) -> None:
        """Let what is in flight end, without starting anything new."""
        until = self.clock.monotonic() + grace_s
        while not self._is_grace_skipped and self.clock.monotonic() < until:
            if not any(driver.in_flight_count for driver in self.held_runs.drivers.values()):
                return
            await self.clock.sleep(0.02)

    @property
    def is_closed(self) -> bool:
        """Whether this engine has let go of its runs."""
        return self._is_closed

    @property
    def is_stopping(self) -> bool:
        """Whether it has let go of its runs, or is about to: the end of ``asyncio.run`` cancels all tasks at once."""
        return self._is_closed or (self._poll_task is not None and self._poll_task.cancelling() > 0)

    # What the runtime asks for

    async def start(self, new: NewRun, *, join_orphan: bool) -> OpResult:
        """Create a run, and begin to execute it here if this worker can."""
        if self._announcements.has_pending(new.workflow, new.version):
            await self._announcements.announce()
        return await self.writer.await_answer(partial(self._claims.start_run, StartRun(new, join_orphan=join_orphan)))

    def start_child(self, new: NewRun, link: RunLink, on_answer: AnswerCallback) -> None:
        """Start a run for a held one, and execute it here if this worker can."""
        self._claims.start_run(StartRun(new, link=link), on_answer)

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
        """The run's row, once it has ended, wherever that happens."""
        if self.fatal_store_error is not None:
            raise self.fatal_store_error
        future = self._arrivals.add(run_id)
        try:
            if run_id not in self.held_runs.drivers_by_run_id:
                run = await self.store.get_run(run_id)
                if run is None:
                    raise RunNotFound(f"there is no run {run_id!r} in {self.store.url}", run_id)
                if run.state.is_terminal:
                    return run
            return await future
        finally:
            self._arrivals.remove(run_id, future)

    # Watching

    def wake(self) -> None:
        """Something in this process changed what there is to do: look at once."""
        if not self._is_wake_scheduled and not self._is_closed:
            self._is_wake_scheduled = True
            self.run_in_background(self._poll())

    async def _run_polling(self) -> None:
        looking = keep_running(self._poll_forever, "looking for work", log, sleep=self.clock.sleep)
        try:
            # In a task of its own: a timeout that expires there must not look as if this task was cancelled
            # (`is_stopping`).
            await self.loop.create_task(looking)
        except asyncio.CancelledError:
            # `asyncio.run` cancels every task when its main coroutine has ended: the moment to leave in good order.
            if not self._is_closed:
                await self.close()
            raise

    async def _poll_forever(self) -> None:
        claims = self._claims
        failing = False
        changed = True
        while True:
            try:
                reaped = await self._reap()
                is_due = claims.is_due() or claims.is_check_due() or self._ticker.is_due()
                if changed or self._should_retry_poll or reaped.worker_ids or is_due or self._should_poll_freed_slots():
                    self._should_retry_poll = False
                    try:
                        await self._poll()
                    except BaseException:
                        self._should_retry_poll = True  # until it has worked
                        raise
                follows = bool(self.change_feed) or bool(
                    self._arrivals.list_awaited_ids(exclude=self.held_runs.drivers_by_run_id)
                )
                longest = self._ticker.get_wait_s(claims.get_wait_s(REAP_INTERVAL_S))
                changed = await self.store.wait_for_change(longest, follow_runs=follows)
                if changed:
                    self._ticker.notify_changed()
                    self.change_feed.notify_all()
                failing = False
            except SchemaTooNew as error:
                self._stop_on_newer_schema(error)
                return
            except StoreError as error:
                if not failing:
                    log.warning("the store cannot be read; trying again: %s", error)
                failing = True
                await self.clock.sleep(0.5)

    async def _reap(self) -> ReapResult:
        """Find workers that have died, and free their runs."""
        reaped = await self.store.workers.reap_dead(self.worker_id, self.membership.get_lease_window())
        self.run_log.log_deaths(reaped)
        return reaped

    def _stop_on_newer_schema(self, error: SchemaTooNew) -> None:
        """A newer Holdfast has migrated the store: nothing can be recorded here any more, so nothing is begun."""
        log.error("this worker drops its runs and stops: %s", error)
        self.is_draining = True
        self.fatal_store_error = error
        for driver in self.held_runs.list_drivers():
            driver.unload()
        self._arrivals.fail_all(error)
        self.change_feed.notify_all(error)
        self.on_fatal_store_error()

    def _should_poll_freed_slots(self) -> bool:
        return self._has_freed_slots and self.clock.monotonic() - self._last_poll_at > FREED_SLOT_POLL_DELAY_S

    async def _poll(self) -> None:
        """Take what there is to take."""
        async with self._poll_lock:
            self._is_wake_scheduled = self._has_freed_slots = False
            self._last_poll_at = self.clock.monotonic()
            if self.is_draining:
                return
            failed: list[Exception] = []
            for part in (
                self._announcements.announce,
                self._claims.release_unacknowledged,
                self._claims.claim_due,
                self._claims.fetch_changes,
                partial(self._arrivals.poll, self.store, exclude=self.held_runs.drivers_by_run_id),
                self._ticker.fire_due,
            ):
                try:
                    await part()
                except StoreUnavailable:
                    raise  # the others would fail, too
                except Exception as error:
                    failed.append(error)  # it must not keep the others from being done
            if failed:
                raise failed[0]

    def can_serve(self, workflow: str, queue: str | None) -> bool:
        """Whether runs of this workflow are executed here, if they are in this queue (``None``: its own)."""
        known = [definition for definition in self._definitions.values() if definition.name == workflow]
        return any(self._claims.can_serve_queue(queue or definition.queue) for definition in known)

    # What claims ask for

    def on_unloaded_run_ended(self, run: Run) -> None:
        """A run has ended here without having been in memory."""
        self._arrivals.resolve(run)
        self.wake()  # somebody here may have been waiting for it

    # What drivers ask for and tell (see `host.RunHost`)

    def create_step(self, driver: Driver, command: Command, earlier_attempt: Attempt | None) -> StepRun:
        """What carries a step out."""
        return StepRun(self, driver, command, earlier_attempt)

    def create_timers(self, driver: Driver) -> ClockTimers:
        """What wakes a run when something is due."""
        return ClockTimers(driver)

    def create_patches(self, history: History) -> Patches:
        """What a run with this journal answers to code that asks which way to take."""
        told = (signal.position for signal in history.signals if signal.position is not None)
        return Patches(history.records, [*history.attempts, *history.links, *told])

    def on_run_idle(self, driver: Driver) -> None:
        """The run waits for nothing but time and signals."""
        self.live_events.stop_timer_if_idle()
        if not self._is_closed:
            self._idle_runs.add(driver)

    def on_run_busy(self, driver: Driver) -> None:
        """The run does not, any more."""
        self._idle_runs.remove(driver)

    def on_run_closed(self, driver: Driver, ended_run: Run | None) -> None:
        """The driver is gone."""
        self._idle_runs.remove(driver)
        self.live_events.stop_timer_if_idle()
        self.change_feed.notify(driver.run.id)
        self.held_runs.remove(driver)
        if ended_run is not None:
            if not driver.has_fatal_error:
                self.run_log.log_end(ended_run)
            self._arrivals.resolve(ended_run)
        elif driver.wake_at is not None:
            self._claims.note_wake_at(driver.wake_at)
        elif not driver.is_parking:
            self.wake()  # it may have ended elsewhere, and somebody here may wait for that
        self._has_freed_slots = True
        if self._claims.is_starved or driver.run.is_limited:
            # There is room here, or a place in its queue, and nobody tells us of what we write ourselves.
            self._claims.is_starved = False
            self.wake()

    def on_released(self, answer: OpResult | BaseException) -> None:
        """The store has been asked to give a run to another worker, or to this one again."""
        self._claims.on_released(answer)

    def on_park_refused(self, driver: Driver) -> None:
        """The store did not let the run leave memory: what it waits for may be there, unseen."""
        self.wake()

    def set_turn(self, run_id: str | None) -> None:
        """Workflow code starts or stops to occupy the loop."""
        if run_id is None:
            self._heartbeat.end_turn()
        else:
            self._heartbeat.start_turn(run_id)

    # What membership asks for

    def on_reregistered(self) -> None:
        """It is another worker now: what it has announced is to be announced again."""
        self._announcements.reset()
        self.wake()

    def run_in_background(self, coro: Coroutine[Any, Any, None]) -> None:
        """Do something on the side, and see to its errors."""
        task = self.loop.create_task(coro)
        self._background_tasks.add(task)
        task.add_done_callback(self._on_background_done)

    def _on_background_done(self, task: asyncio.Task[Any]) -> None:
        self._background_tasks.discard(task)
        self._is_wake_scheduled = False
        if not task.cancelled() and (error := task.exception()) is not None:
            self._should_retry_poll = True
            is_known = isinstance(error, StoreError)
            log.warning("looking for work failed; it is tried again: %s", error, exc_info=None if is_known else error)

    # What the heartbeat asks for, from its thread

    def _interrupt_turn(self, turn: Turn, location: str) -> bool:
        """Fail a run whose code blocks the process; false if its turn has ended meanwhile."""
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

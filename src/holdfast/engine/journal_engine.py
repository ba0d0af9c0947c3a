"""The journal engine: a worker's hold on its runs, over any store.

One ``JournalEngine`` is one worker: it registers with the store, keeps its lease alive (``membership``), and executes
runs of the workflows it knows. Runs come to it in two ways: somebody in this process starts one (it is created as
already claimed, which saves a write), or ``_look`` claims one that is due in the store.

``_watch`` is the engine's only loop. It waits for the store to tell that somebody else wrote something, for the next
parked run to become due, or for the moment to check whether another worker has died; whatever it was, ``_look`` then
takes what there is to take: runs to claim and signals for held runs (``claims``), ends of runs that somebody here
waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any

from holdfast.admission.queue_limits import QueueLimits
from holdfast.background_tasks import keep_running
from holdfast.codec import LARGEST
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
from holdfast.engine.heartbeat import INTERRUPT_AFTER, Pulse, Turn
from holdfast.engine.idle_runs import IdleRuns
from holdfast.engine.journal_writer import Done, Writer
from holdfast.engine.live_events import Teller
from holdfast.engine.loop_watchdog import MAX_BLOCKED_S, LoopWatch
from holdfast.engine.membership import Membership
from holdfast.engine.schedule_ticker import Ticker
from holdfast.engine.step_run import AroundStep, StepRun
from holdfast.engine.store_readiness import when_available
from holdfast.engine.thread_pool import Threads
from holdfast.engine.timers import Timers
from holdfast.errors import RunNotFound, SchemaTooNew, StoreError, StoreUnavailable, UsageError, WorkflowNeverYields
from holdfast.run_log import RunLog
from holdfast.stores.change_feed import News
from holdfast.stores.contract import History, Reaped, Store
from holdfast.stores.operations import Answer, Change, Link, NewRun, Run, StartRun, Verdict
from holdfast.stores.run_waiters import Arrivals

log = logging.getLogger("holdfast.engine")

REAP_EVERY = 0.2
"""Seconds between two looks at whether another worker has died."""
LOOK_AFTER = 1.0
"""Seconds after which there is another look if runs have left since the last one. Their queue may have been given
limits while they were held: then one of them has given up a place without our knowing."""

STRAGGLER_PATIENCE = 1.0
"""Seconds that cancelled steps get to clean up when the engine closes."""


class JournalEngine:
    """Executes runs from a store in this process."""

    def __init__(
        self,
        store: Store,
        definitions: Mapping[str, WorkflowDefinition],
        *,
        lease: float = 10.0,
        concurrency: int = 1000,
        queues: Collection[str] | None = None,
        limits: Mapping[str, QueueLimits] | None = None,
        threads: int = 64,
        clock: Clock | None = None,
        interrupt_after: float = INTERRUPT_AFTER,
        max_blocked_s: float = MAX_BLOCKED_S,
        max_value: int = LARGEST,
        pulse: type[Pulse] = Pulse,
        execution: Callable[..., Execution] = Execution,
        around_step: AroundStep | None = None,
        schedules: bool = True,
    ) -> None:
        self.store = store
        self.clock: Clock = clock or SystemClock(store.now)
        self.draining = False
        self.max_value = max_value
        self.worker = 0
        self.execution = execution
        self.around_step = around_step
        self.run_log = RunLog.of_store(store)
        self.telling = Teller(self)
        self.news = News()
        self.stragglers: set[asyncio.Task[Any]] = set()
        self.closers: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._loaded: set[Callable[[], None]] = set()
        """What has been imported for workflows that need it."""
        self.loop: asyncio.AbstractEventLoop
        self.writer: Writer
        self.threads = Threads(threads)
        self._definitions = definitions
        self._lease = lease
        self._interrupt_after = interrupt_after
        self._max_blocked_s = max_blocked_s
        self.on_stuck: Callable[[], None] = lambda: None
        self._concurrency = concurrency
        served = None if queues is None else tuple(queues)
        self._drivers: dict[int, Driver] = {}
        self._coming = 0
        """Runs that are being started or claimed, and will be among the drivers in a moment."""
        self._by_id: dict[str, Driver] = {}
        self.membership = Membership(self, definitions, served, lease)
        self._claims = Claims(self, definitions, served, lease)
        self._ticker = Ticker(self, definitions if schedules else {})
        self._announcements = Announcements(self, definitions, {} if limits is None else limits, self._ticker)
        self._idle = IdleRuns(self.clock.now)
        self._arrivals = Arrivals()
        self._looking = asyncio.Lock()
        self._nudged = False
        self._some_left = False
        """Runs have left memory since the last look."""
        self._looked_at = 0.0
        self._look_again = False
        """The last look failed: what it would have found is still there, and the store may tell of no new change."""
        self._hurried = False
        self._closed = False
        self.refusal: StoreError | None = None
        """Why this engine cannot use the store any more."""
        self.on_refusal: Callable[[], object] = lambda: None
        self._chores: set[asyncio.Task[Any]] = set()
        self._make_pulse = pulse
        self._pulse: Pulse
        self._watcher: asyncio.Task[None] | None = None

    # Opening and closing

    async def open(self) -> None:
        """Connect, register as a worker, and begin to take runs."""
        replay_logging.install()
        self.loop = asyncio.get_running_loop()
        await when_available(self.store.open, self.clock)
        self.writer = Writer(self.store, self.loop, self.clock)
        try:
            await when_available(self.membership.register, self.clock)
        except BaseException:
            await self.store.close()
            raise
        self._pulse = self._make_pulse(
            lease=self._lease,
            renew=self.membership.renew,
            on_lost=self.membership.lost,
            interrupt=self._interrupt,
            interrupt_after=self._interrupt_after,
            watch=LoopWatch(max_blocked_s=self._max_blocked_s, now=self.clock.monotonic),
            on_stuck=lambda: self.on_stuck(),
            now=self.clock.monotonic,
        )
        self._pulse.start()  # at once: a store that is waited for below must not cost the lease
        try:
            await when_available(self._announcements.announce, self.clock)
            # Before the first start: whether a run is an orphan depends on whether its starter is known to be dead.
            await when_available(self._reap, self.clock)
        except BaseException:
            self._pulse.stop()
            await self.store.close()
            raise
        forked_child.guard_loop(self.loop)
        self._watcher = self.loop.create_task(self._watch(), name="holdfast-engine")

    async def close(self, grace: float = 0.0) -> None:
        """Stop: steps in flight get ``grace`` seconds to end; then every run is handed over to other workers."""
        if self._closed:
            return
        self.draining = True
        if self._watcher is None:  # never opened, or opening failed, and has cleaned up: that error must not be hidden
            self._closed = True
            self.threads.stop()
            return
        for driver in list(self._drivers.values()):
            driver.steps.put_back_waiting()
        await self._wind_down(grace)
        self._closed = True
        self._idle.stop()
        try:
            await self._hand_over()
        finally:
            forked_child.release_loop(self.loop)
            # Only now: a lease that passes while we hand over would make a death of it.
            self._pulse.stop()
        for error in await asyncio.gather(*(close() for close in self.closers), return_exceptions=True):
            if isinstance(error, Exception):
                log.error("something that steps have left open could not be closed", exc_info=error)
        await self.store.close()
        closed = UsageError("the runtime was closed; the run goes on when a worker that knows it is open")
        self._arrivals.give_up(closed)
        self.news.tell_all(closed)

    async def _hand_over(self) -> None:
        """Let go of every run, and leave as a worker in good order."""
        if self._watcher is not None and self._watcher is not asyncio.current_task():
            self._watcher.cancel()
        for chore in list(self._chores):
            chore.cancel()
        self.telling.stop()
        await self.writer.flush()
        for driver in list(self._drivers.values()):
            driver.release()
        if self.stragglers:
            await asyncio.wait(self.stragglers, timeout=STRAGGLER_PATIENCE)
        self.writer.stop()
        self.threads.stop()
        if self.refusal is not None:
            return  # it takes nothing, and others take over when this process lets go of its lock
        try:
            await self.store.retire_worker(self.worker)
        except StoreError as error:
            log.warning("could not hand over in good order; other workers take over when the lease ends: %s", error)

    def abandon(self) -> None:
        """The event loop is gone: let go of everything without it. Other workers take over as after a crash."""
        forked_child.release_loop(self.loop)
        self._closed = True
        self.draining = True
        self._idle.stop()
        self.telling.stop()
        self._pulse.stop()
        self.threads.stop()
        for driver in list(self._drivers.values()):
            driver.abandon()
        self.store.abandon()

    def vanish(self) -> list[asyncio.Task[Any]]:
        """For tests, on the loop: this worker's process is gone. Nothing of it does anything more, or is told why.

        Returns its tasks, which end in a moment. What its threads are doing cannot be stopped.
        """
        for driver in list(self._drivers.values()):
            driver.vanish()
        self.abandon()
        tasks = [*self._chores, *self.writer.stop()]
        if self._watcher is not None:
            tasks.append(self._watcher)
        for task in tasks:
            task.cancel()
        return [*tasks, *self.stragglers]

    @property
    def in_flight(self) -> int:
        """How many things are under way here that need nothing from outside but the time they take."""
        return len(self._chores) + self.writer.is_busy + sum(driver.in_flight for driver in self._drivers.values())

    def park_idle(self) -> None:
        """Let every run leave memory at once that waits for nothing but time and signals."""
        self._idle.park_all()

    def hurry(self) -> None:
        """Let a ``close`` that is under way wait for nothing more that is in flight."""
        self._hurried = True

    async def _wind_down(self, grace: float) -> None:
        """Let what is in flight end, without starting anything new."""
        until = self.clock.monotonic() + grace
        while not self._hurried and self.clock.monotonic() < until:
            if not any(driver.in_flight for driver in self._drivers.values()):
                return
            await self.clock.sleep(0.02)

    @property
    def is_closed(self) -> bool:
        """Whether this engine has let go of its runs."""
        return self._closed

    @property
    def is_stopping(self) -> bool:
        """Whether it has let go of its runs, or is about to: the end of ``asyncio.run`` cancels all tasks at once."""
        return self._closed or (self._watcher is not None and self._watcher.cancelling() > 0)

    # What the runtime asks for

    async def start(self, new: NewRun, *, join_orphan: bool) -> Answer:
        """Create a run, and begin to execute it here if this worker can."""
        if self._announcements.lacks(new.workflow, new.version):
            await self._announcements.announce()
        return await self.writer.answer_to(partial(self._claims.start, StartRun(new, join_orphan=join_orphan)))

    def start_child(self, new: NewRun, link: Link, done: Done) -> None:
        """Start a run for a held one, and execute it here if this worker can."""
        self._claims.start(StartRun(new, link=link), done)

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """A run's row and journal, if there is such a run."""
        run = await self.store.get(run_id)
        if run is None:
            return None
        [history] = await self.store.histories([run.key])
        return run, history

    async def change(self, op: Change) -> Verdict:
        """Change a run from outside."""
        try:
            answer = await self.writer.perform(op)
        except Exception:
            self._claims.doubt()
            raise
        assert isinstance(answer, Verdict)
        self.news.tell_all()
        self.nudge()
        return answer

    async def wait(self, run_id: str) -> Run:
        """The run's row, once it has ended, wherever that happens."""
        if self.refusal is not None:
            raise self.refusal
        future = self._arrivals.expect(run_id)
        try:
            if run_id not in self._by_id:
                run = await self.store.get(run_id)
                if run is None:
                    raise RunNotFound(f"there is no run {run_id!r} in {self.store.url}", run_id)
                if run.state.is_terminal:
                    return run
            return await future
        finally:
            self._arrivals.forget(run_id, future)

    # Watching

    def nudge(self) -> None:
        """Something in this process changed what there is to do: look at once."""
        if not self._nudged and not self._closed:
            self._nudged = True
            self.chore(self._look())

    async def _watch(self) -> None:
        looking = keep_running(self._keep_looking, "looking for work", log, sleep=self.clock.sleep)
        try:
            # In a task of its own: a timeout that expires there must not look as if this task was cancelled
            # (`is_stopping`).
            await self.loop.create_task(looking)
        except asyncio.CancelledError:
            # `asyncio.run` cancels every task when its main coroutine has ended: the moment to leave in good order.
            if not self._closed:
                await self.close()
            raise

    async def _keep_looking(self) -> None:
        claims = self._claims
        failing = False
        changed = True
        while True:
            try:
                reaped = await self._reap()
                is_due = claims.is_due() or claims.in_doubt() or self._ticker.is_due()
                if changed or self._look_again or reaped.workers or is_due or self._may_have_place():
                    self._look_again = False
                    try:
                        await self._look()
                    except BaseException:
                        self._look_again = True  # until it has worked
                        raise
                follows = bool(self.news) or bool(self._arrivals.awaited(except_for=self._by_id))
                longest = self._ticker.until_due(claims.until_due(REAP_EVERY))
                changed = await self.store.changed(longest, follows=follows)
                if changed:
                    self._ticker.tell()
                    self.news.tell_all()
                failing = False
            except SchemaTooNew as error:
                self._give_up(error)
                return
            except StoreError as error:
                if not failing:
                    log.warning("the store cannot be read; trying again: %s", error)
                failing = True
                await self.clock.sleep(0.5)

    async def _reap(self) -> Reaped:
        """Find workers that have died, and free their runs."""
        reaped = await self.store.reap(self.worker, self.membership.window())
        self.run_log.log_deaths(reaped)
        return reaped

    def _give_up(self, error: SchemaTooNew) -> None:
        """A newer Holdfast has migrated the store: nothing can be recorded here any more, so nothing is begun."""
        log.error("this worker drops its runs and stops: %s", error)
        self.draining = True
        self.refusal = error
        for driver in list(self._drivers.values()):
            driver.release()
        self._arrivals.give_up(error)
        self.news.tell_all(error)
        self.on_refusal()

    def _may_have_place(self) -> bool:
        return self._some_left and self.clock.monotonic() - self._looked_at > LOOK_AFTER

    async def _look(self) -> None:
        """Take what there is to take."""
        async with self._looking:
            self._nudged = self._some_left = False
            self._looked_at = self.clock.monotonic()
            if self.draining:
                return
            failed: list[Exception] = []
            for part in (
                self._announcements.announce,
                self._claims.look_for_unheld,
                self._claims.take_due,
                self._claims.fetch_news,
                partial(self._arrivals.look, self.store, except_for=self._by_id),
                self._ticker.look,
            ):
                try:
                    await part()
                except StoreUnavailable:
                    raise  # the others would fail, too
                except Exception as error:
                    failed.append(error)  # it must not keep the others from being done
            if failed:
                raise failed[0]

    def serves(self, workflow: str, queue: str | None) -> bool:
        """Whether runs of this workflow are executed here, if they are in this queue (``None``: its own)."""
        known = [definition for definition in self._definitions.values() if definition.name == workflow]
        return any(self._claims.serves(queue or definition.queue) for definition in known)

    # What claims ask for (see `claims.Holder`)

    @property
    def room(self) -> int:
        """How many more runs may be in memory."""
        return self._concurrency - len(self._drivers) - self._coming

    def expect(self, runs: int) -> None:
        """So many runs will be in memory in a moment (or, if negative, will not)."""
        self._coming += runs

    @property
    def is_empty(self) -> bool:
        """Whether no run is in memory."""
        return not self._drivers

    @property
    def is_free(self) -> bool:
        """Whether no run is in memory, and none is about to be."""
        return not self._drivers and not self._coming

    def driver_of(self, key: int) -> Driver | None:
        """The driver of a run that is in memory."""
        return self._drivers.get(key)

    def drivers(self) -> list[Driver]:
        """The drivers of all runs in memory."""
        return list(self._drivers.values())

    def take(self, run: Run, definition: WorkflowDefinition, history: History) -> None:
        """Take a run into memory that the store has given us."""
        if run.owner != self.worker or self.membership.is_coming_back:
            return  # it was given to the worker that we were before we were declared dead, and is another's by now
        known = self._drivers.get(run.key)
        if known is not None and known.run.epoch == run.epoch:
            return  # both a claim and a parent that starts it again have been given it
        if run.deliveries:
            self.run_log.log_takeover(run, recorded=len(history.records))
        driver = Driver(self, run, definition)
        self._drivers[run.key] = driver
        self._by_id[run.id] = driver
        is_loaded = definition.load is None or definition.load in self._loaded
        if is_loaded and definition.ready is None:
            self._begin(driver, history)
            return
        driver.loading = True
        loading = self.loop.create_task(self._load_and_begin(definition, driver, history))
        self.stragglers.add(loading)
        loading.add_done_callback(self.stragglers.discard)

    def _begin(self, driver: Driver, history: History) -> None:
        try:
            driver.begin(history)
        except Exception as error:
            log.exception("run %r could not be taken up", driver.run.id)
            driver.fail(error)

    async def _load_and_begin(self, definition: WorkflowDefinition, driver: Driver, history: History) -> None:
        """Begin when what the code needs has been imported (in a thread, for that may take seconds), or is there."""
        load = definition.load
        try:
            if load is not None and load not in self._loaded:
                await asyncio.to_thread(load)
                self._loaded.add(load)
            if definition.ready is not None:
                await definition.ready(driver.run)
        except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and self.is_stopping:
                raise
            log.exception("run %r could not be taken up", driver.run.id)
            driver.fail(error)
            return
        finally:
            driver.loading = False
        if not driver.gone:
            self._begin(driver, history)

    def ended_unread(self, run: Run) -> None:
        """A run has ended here without having been in memory."""
        self._arrivals.arrived(run)
        self.nudge()  # somebody here may have been waiting for it

    # What drivers ask for and tell (see `hosting.RunHost`)

    def step_run(self, driver: Driver, command: Command, known: Attempt | None) -> StepRun:
        """What carries a step out."""
        return StepRun(self, driver, command, known)

    def timers(self, driver: Driver) -> Timers:
        """What wakes a run when something is due."""
        return Timers(driver)

    def patches(self, history: History) -> Patches:
        """What a run with this journal answers to code that asks which way to take."""
        told = (signal.position for signal in history.signals if signal.position is not None)
        return Patches(history.records, [*history.attempts, *history.links, *told])

    def run_idle(self, driver: Driver) -> None:
        """The run waits for nothing but time and signals."""
        self.telling.rest()
        if not self._closed:
            self._idle.add(driver)

    def run_busy(self, driver: Driver) -> None:
        """The run does not, any more."""
        self._idle.remove(driver)

    def run_over(self, driver: Driver, run: Run | None) -> None:
        """The driver is gone."""
        self._idle.remove(driver)
        self.telling.rest()
        self.news.tell(driver.run.id)
        if self._drivers.get(driver.run.key) is driver:
            del self._drivers[driver.run.key]
            del self._by_id[driver.run.id]
        if run is not None:
            if not driver.has_fault:
                self.run_log.log_end(run)
            self._arrivals.arrived(run)
        elif driver.wakes_at is not None:
            self._claims.wake_at(driver.wakes_at)
        elif not driver.parking:
            self.nudge()  # it may have ended elsewhere, and somebody here may wait for that
        self._some_left = True
        if self._claims.starved or driver.run.limited:
            # There is room here, or a place in its queue, and nobody tells us of what we write ourselves.
            self._claims.starved = False
            self.nudge()

    def given_back(self, answer: Answer | BaseException) -> None:
        """The store has been asked to give a run to another worker, or to this one again."""
        self._claims.given_back(answer)

    def run_refused_park(self, driver: Driver) -> None:
        """The store did not let the run leave memory: what it waits for may be there, unseen."""
        self.nudge()

    def turning(self, run_id: str | None) -> None:
        """Workflow code starts or stops to occupy the loop."""
        if run_id is None:
            self._pulse.turn_ends()
        else:
            self._pulse.turn_begins(run_id)

    # What membership asks for (see `membership.Member`)

    def came_back(self) -> None:
        """It is another worker now: what it has announced is to be announced again."""
        self._announcements.begin_anew()
        self.nudge()

    def chore(self, coro: Coroutine[Any, Any, None]) -> None:
        """Do something on the side, and see to its errors."""
        task = self.loop.create_task(coro)
        self._chores.add(task)
        task.add_done_callback(self._chore_done)

    def _chore_done(self, task: asyncio.Task[Any]) -> None:
        self._chores.discard(task)
        self._nudged = False
        if not task.cancelled() and (error := task.exception()) is not None:
            self._look_again = True
            is_known = isinstance(error, StoreError)
            log.warning("looking for work failed; it is tried again: %s", error, exc_info=None if is_known else error)

    # What the pulse tells, from its thread

    def _interrupt(self, turn: Turn, place: str) -> bool:
        """Fail a run whose code blocks the process; false if its turn has ended meanwhile."""
        driver = self._by_id.get(turn.run_id)
        if driver is None or not driver.is_begun:
            return False
        loop = driver.execution.loop
        never_yields = WorkflowNeverYields(
            f"run {turn.run_id!r}: workflow code blocked its process for {self._interrupt_after:g} s"
            f"{f' (at {place})' if place else ''}. Workflow code may not block: do this in a step."
        )

        def poison() -> None:
            loop.poison = loop.poison or never_yields

        return loop.window.interrupt(self._pulse.loop_thread, lambda: self._pulse.turn is turn, poison)

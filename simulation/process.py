"""A simulated process: one real engine on its own loop, and what can go wrong with it.

The engine is the one that users run. Only its seams are replaced: the clock shows the world's time, the world triggers
heartbeats instead of a thread, the store is a connection to the world's database, and the execution reports to the
checker what workflow code receives and issues.

A process that crashes is not cancelled, because a crash cancels nothing. It is never scheduled again, and all its
coroutines stay where they are.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.codec import compute_digest
from holdfast.core.commands import UNDECODED, Outcome
from holdfast.core.execution import Execution
from holdfast.core.records import Record, RecordKind
from holdfast.core.run_timer import RunTimer
from holdfast.engine.definitions import ChildCall, StepCall
from holdfast.engine.heartbeat import Heartbeat
from holdfast.engine.journal_engine import JournalEngine
from holdfast.engine.run_approvals import ApprovalCall
from holdfast.engine.step_run import StepRun
from holdfast.errors import StoreError, UsageError
from holdfast.stores.operations import ClientOp, NewRun, OpStatus, SendSignal, StartResult
from simulation.execution_checks import get_label
from simulation.process_loop import ProcessClock, ProcessLoop
from simulation.process_store import ProcessStore
from simulation.workloads import CHANGING_PREFIX, other, simulated

if TYPE_CHECKING:
    from simulation.world import World

DEFINITIONS = {"simulated": simulated.definition, "other": other.definition}


class ObservedExecution(Execution):
    """A run in memory that reports every command and delivery to the checker."""

    def __init__(self, process: Process, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._process = process
        self.last_seq = -1
        """The number of the record that the workflow saw last."""
        driver = process.engine.held_runs.drivers_by_run_id.get(self.run_id)
        self.epoch = 0 if driver is None else driver.run.epoch
        """The claim under which it is executed."""
        self.code_version = process.world.code_version
        """The version of the code that it runs."""
        self.last_fired: tuple[int | None, float] | None = None
        self.due_poll_numbers: dict[int, int] = {}
        """By position: which look at due timers queued the timer."""
        self._due_poll_count = 0
        self._take_due = self.loop.take_due_timers
        self.loop.take_due_timers = self._observe_due  # type: ignore[method-assign]
        self._changing_approval_ids: set[str] = set()
        """The ids of questions that a deploy changes."""
        self.due_on_resume: list[int] = []
        """Timers that were due when the run was brought back."""
        process.executions.append(self)

    def _observe_due(self, now: float) -> list[RunTimer]:
        due = self._take_due(now)
        self._due_poll_count += 1
        self.due_poll_numbers.update((timer.position, self._due_poll_count) for timer in due)
        return due

    def issue(self, kind: RecordKind, name: str, call: Any) -> asyncio.Future[Outcome]:
        """Issue a command, and see that it is the one that was issued here before."""
        position = self._issued_count
        future = super().issue(kind, name, call)
        arguments = json.dumps([self._mask_changing_ids(call.args), call.kwargs]) if isinstance(call, StepCall) else ""
        if isinstance(call, ChildCall):
            arguments = f"{call.run_id} {'' if call.make_run is None else call.make_run(0.0).digest.hex()}"
        if isinstance(call, ApprovalCall):
            arguments = f"{call.id} {call.request.question}"
            if call.request.question.startswith(CHANGING_PREFIX):
                self._changing_approval_ids.add(call.id)
                arguments = CHANGING_PREFIX
        self._process.world.checker.execution_checker.check_command(self, kind, position, name, arguments)
        return future

    def _mask_changing_ids(self, args: Any) -> list[Any]:
        """Arguments, but for the ids of questions that a deploy changes."""
        return [CHANGING_PREFIX if isinstance(one, str) and one in self._changing_approval_ids else one for one in args]

    def deliver(self, record: Record, value: Any = UNDECODED) -> None:
        """Deliver a record, if it may be."""
        command = self.open_commands.get(record.position) if record.kind is RecordKind.STEP else None
        world = self._process.world
        world.checker.execution_checker.check_delivery(self._process, self, record, value, command)
        world.reach_fault_point("delivered", self._process, self.run_id)
        self.last_seq = record.seq
        super().deliver(record, value)

    def go_live(self) -> None:
        """The journal is replayed: timers that are due must fire before steps in flight start again."""
        if self.loop.is_replaying:
            now = self._process.clock.now()
            self.due_on_resume = [at for at, timer in self.loop.timers.items() if timer.when() <= now]
        super().go_live()

    def deliver_after_end(self, record: Record) -> None:
        """A record after the workflow's end."""
        if record.kind is not RecordKind.CANCEL:  # delivered like the others
            self.last_seq = record.seq
        super().deliver_after_end(record)


class SimulatedHeartbeat(Heartbeat):
    """The heartbeat's thread, as something that the world lets act."""

    def __init__(self, process: Process, **options: Any) -> None:
        super().__init__(**options)
        self._process = process
        self._is_stopped = False

    def start(self) -> None:
        """Begin to beat."""
        self._process.heartbeat = self
        self._schedule_next()

    def stop(self) -> None:
        """Stop beating."""
        self._is_stopped = True

    def _schedule_next(self) -> None:
        world = self._process.world
        world.schedule(world.time + self.get_wait_s(), self._beat_unless_paused)

    def _beat_unless_paused(self) -> None:
        process = self._process
        if self._is_stopped or process.is_dead:
            return
        if process.is_heartbeat_paused:
            process.resume_callbacks.append(self._beat_unless_paused)
            return
        self.beat()
        self._schedule_next()


class Process:
    """A worker's process."""

    def __init__(self, world: World, number: int, rng: random.Random) -> None:
        self.world = world
        self.number = number
        self.loop = ProcessLoop(world, number, self._on_loop_error)
        self.clock = ProcessClock(world, self.loop, rng)
        self.store = ProcessStore(world, self)
        self.worker_ids: set[int] = set()
        """The numbers under which it has registered."""
        self.executions: list[ObservedExecution] = []
        self.heartbeat: SimulatedHeartbeat | None = None
        self.is_dead = False
        self.is_open = False
        self.is_closing = False
        self.is_loop_paused = False
        self.is_heartbeat_paused = False
        self.slow_until = 0.0
        """Until when its requests and answers take long."""
        self.resume_callbacks: list[Callable[[], None]] = []
        self.can_be_declared_dead = False
        """Whether the process had a fault after which others may declare it dead."""
        self.disabled_claims: set[tuple[int, int]] = set()
        """Runs, with their claims, whose workflow is disabled as far as this process knows."""
        self.in_flight_count = 0
        """Attempts that have begun here and not ended."""
        self._rng = rng
        self.engine: JournalEngine = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"p{self.number}"

    def _on_loop_error(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.world.fail("no exception is left over", f"{self}: {context.get('message')}: {error!r}")

    # Life

    def start(self) -> None:
        """Start the engine."""
        self.spawn(self._start_engine)

    async def _start_engine(self) -> None:
        world = self.world
        self.engine = JournalEngine(
            self.store,
            DEFINITIONS,
            lease_s=world.plan.lease_s,
            max_concurrency=world.plan.concurrency,
            max_blocked_s=world.plan.lease_s,
            threads=1,
            clock=self.clock,
            heartbeat_factory=partial(SimulatedHeartbeat, self),  # type: ignore[arg-type]
            execution_factory=partial(ObservedExecution, self),  # type: ignore[arg-type]
            step_interceptor=self._around_step,
        )
        try:
            await self.engine.open()
        except StoreError:
            self.is_dead = self.can_be_declared_dead = True
            world.on_process_ended(self)
            return
        self.is_open = True
        world.log(self, "open")

    async def shut_down(self, grace: float) -> None:
        """Stop in good order."""
        self.is_closing = True
        await self.engine.close(grace)
        self.is_dead = self.can_be_declared_dead = True
        self.world.log(self, "closed")
        for worker in sorted(self.worker_ids):
            self.world.database.simulate_worker_death(worker)  # the process has ended, and with it its lock
        self.world.on_process_ended(self)

    def crash(self) -> None:
        """End the process and leave everything as it is."""
        self.is_dead = self.can_be_declared_dead = True

    async def _around_step(self, step: StepRun, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        attempts = self.world.checker.execution_checker.check_attempt_start(self, step)
        self.world.log(self, "attempt", step.driver.run.id, get_label(step), step.driver.run.epoch)
        self.world.reach_fault_point("attempt", self, step.driver.run.id)
        self.in_flight_count += 1
        try:
            value = await call()
            attempts.has_succeeded = True
            return value
        finally:
            attempts.is_running = False
            self.in_flight_count -= 1

    # Requests from users in this process

    def spawn(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run a request of a user in this process."""
        self.loop.call_soon(lambda: self.loop.create_task(function(*args)))

    async def start_run(self, run_id: str, inputs: bytes, options: dict[str, Any]) -> None:
        """Start a run and wait for its end, as ``await etl("acme")`` does. Repeats the request if the store fails."""
        engine, timeout = self.engine, options.get("timeout")
        for _ in range(self._rng.choice([1, 5])):
            now = self.clock.now()
            new = NewRun(
                id=run_id,
                workflow="simulated",
                inputs=inputs,
                digest=compute_digest(inputs),
                seed=self._rng.randbytes(16),
                created_at=now,
                available_at=now + options["delay"] if options["delay"] else 0.0,
                priority=options["priority"],
                deadline=None if timeout is None else now + timeout,
                max_deliveries=options["max_deliveries"],
                starter=engine.worker_id,
            )
            try:
                if not isinstance(await engine.start(new, join_orphan=False), StartResult):
                    return  # switched off
                row = await engine.wait(run_id)
            except (StoreError, ConnectionError):
                await self.clock.sleep(0.3)
                continue
            except UsageError:
                return  # this process is closing
            self.world.on_end_reported(self, row)
            return

    async def send_signal(self, run_id: str, name: str, payload: bytes, dedup: str) -> None:
        """Send a signal. Repeats it under the same key if the store fails, unless the sender gives up."""
        answer = await self.change_run(SendSignal(run_id, name, payload, dedup, self.clock.now()))
        if answer in (OpStatus.DONE, OpStatus.DUPLICATE):
            self.world.on_signal_accepted(run_id, dedup)

    async def change_run(self, op: ClientOp) -> OpStatus | None:
        """Send a request about a run. Repeats it if the store fails, unless the caller gives up."""
        for _ in range(self._rng.choice([1, 5])):
            try:
                return await self.engine.change_run(op)
            except (StoreError, ConnectionError):
                await self.clock.sleep(0.3)
        return None

"""A simulated process: one real engine on a loop of its own, and the ways in which it can fare badly.

The engine is the one that users run; only its seams are ours: a clock that shows the world's time, a pulse that beats
when the world says so instead of in a thread, a store that is a connection to the world's database, and an execution
that tells the checker what workflow code is given and asks for.

A process that crashes is not cancelled, because a crash cancels nothing: it is simply never scheduled again, with all
its coroutines where they are.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.codec import digest
from holdfast.core.commands import UNREAD, Outcome
from holdfast.core.execution import Execution
from holdfast.core.loop import RunTimer
from holdfast.core.records import Kind, Record
from holdfast.engine.definitions import ChildCall, StepCall
from holdfast.engine.heartbeat import Pulse
from holdfast.engine.journal_engine import JournalEngine
from holdfast.engine.run_approvals import ApprovalCall
from holdfast.engine.step_run import StepRun
from holdfast.errors import StoreError, UsageError
from holdfast.stores.operations import Change, NewRun, SendSignal, Started, Verdict
from simulation.execution_checks import label_of
from simulation.process_loop import ProcessClock, ProcessLoop
from simulation.process_store import ProcessStore
from simulation.workloads import CHANGING, other, simulated

if TYPE_CHECKING:
    from simulation.world import World

DEFINITIONS = {"simulated": simulated.definition, "other": other.definition}


class ObservedExecution(Execution):
    """A run in memory whose every command and delivery is looked at."""

    def __init__(self, process: Process, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._process = process
        self.last_seq = -1
        """The number of the record that the workflow saw last."""
        driver = process.engine._by_id.get(self.run_id)
        self.epoch = 0 if driver is None else driver.run.epoch
        """The claim under which it is executed."""
        self.code = process.world.code
        """The version of the code that it runs."""
        self.last_fired: tuple[int | None, float] | None = None
        self.taken_at: dict[int, int] = {}
        """With which look at what is due a timer was taken, by its position."""
        self._looks = 0
        self._take_due = self.loop.take_due
        self.loop.take_due = self._observe_due  # type: ignore[method-assign]
        self._changing: set[str] = set()
        """The ids of questions that a deploy changes."""
        self.due_on_resume: list[int] = []
        """Timers that were due when the run was brought back."""
        process.executions.append(self)

    def _observe_due(self, now: float) -> list[RunTimer]:
        due = self._take_due(now)
        self._looks += 1
        self.taken_at.update((timer.position, self._looks) for timer in due)
        return due

    def issue(self, kind: Kind, name: str, call: Any) -> asyncio.Future[Outcome]:
        """Issue a command, and see that it is the one that was issued here before."""
        position = self._issued
        future = super().issue(kind, name, call)
        arguments = json.dumps([self._lasting(call.args), call.kwargs]) if isinstance(call, StepCall) else ""
        if isinstance(call, ChildCall):
            arguments = f"{call.run_id} {'' if call.make is None else call.make(0.0).digest.hex()}"
        if isinstance(call, ApprovalCall):
            arguments = f"{call.id} {call.question.text}"
            if call.question.text.startswith(CHANGING):
                self._changing.add(call.id)
                arguments = CHANGING
        self._process.world.checker.doing.issued(self, kind, position, name, arguments)
        return future

    def _lasting(self, args: Any) -> list[Any]:
        """Arguments, but for the ids of questions that a deploy changes."""
        return [CHANGING if isinstance(one, str) and one in self._changing else one for one in args]

    def deliver(self, record: Record, value: Any = UNREAD) -> None:
        """Deliver a record, if it may be."""
        command = self.open.get(record.position) if record.kind is Kind.STEP else None
        world = self._process.world
        world.checker.doing.delivered(self._process, self, record, value, command)
        world.moment("delivered", self._process, self.run_id)
        self.last_seq = record.seq
        super().deliver(record, value)

    def go_live(self) -> None:
        """The journal is used up; what is due by now must come before what was in flight."""
        if self.loop.replaying:
            now = self._process.clock.now()
            self.due_on_resume = [at for at, timer in self.loop.timers.items() if timer.when() <= now]
        super().go_live()

    def leftover(self, record: Record) -> None:
        """A record behind the workflow's end."""
        if record.kind is not Kind.CANCEL:  # which is delivered like others
            self.last_seq = record.seq
        super().leftover(record)


class WorldPulse(Pulse):
    """The heartbeat's thread, as something that the world lets act."""

    def __init__(self, process: Process, **options: Any) -> None:
        super().__init__(**options)
        self._process = process
        self._stopped = False

    def start(self) -> None:
        """Begin to beat."""
        self._process.pulse = self
        self._later()

    def stop(self) -> None:
        """Stop beating."""
        self._stopped = True

    def _later(self) -> None:
        world = self._process.world
        world.at(world.time + self.until_next(), self._come)

    def _come(self) -> None:
        process = self._process
        if self._stopped or process.is_gone:
            return
        if process.pulse_paused:
            process.when_resumed.append(self._come)
            return
        self.beat()
        self._later()


class Process:
    """A worker's process."""

    def __init__(self, world: World, number: int, chance: random.Random) -> None:
        self.world = world
        self.number = number
        self.loop = ProcessLoop(world, number, self._unexpected)
        self.clock = ProcessClock(world, self.loop, chance)
        self.store = ProcessStore(world, self)
        self.workers: set[int] = set()
        """The numbers under which it has registered."""
        self.executions: list[ObservedExecution] = []
        self.pulse: WorldPulse | None = None
        self.is_gone = False
        self.is_open = False
        self.is_closing = False
        self.loop_paused = False
        self.pulse_paused = False
        self.slow_until = 0.0
        """Until when its requests and answers take long."""
        self.when_resumed: list[Callable[[], None]] = []
        self.disturbed = False
        """Whether something has happened to it after which others may declare it dead."""
        self.to_stand_still: set[tuple[int, int]] = set()
        """Runs, and the claims on them, whose workflow this process knows to be switched off."""
        self.in_flight = 0
        """Attempts that have begun here and not ended."""
        self._chance = chance
        self.engine: JournalEngine = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"p{self.number}"

    def _unexpected(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.world.fail("no exception is left over", f"{self}: {context.get('message')}: {error!r}")

    # Life

    def boot(self) -> None:
        """Start the engine."""
        self.spawn(self._boot)

    async def _boot(self) -> None:
        world = self.world
        self.engine = JournalEngine(
            self.store,
            DEFINITIONS,
            lease=world.plan.lease,
            concurrency=world.plan.concurrency,
            max_blocked_s=world.plan.lease,
            threads=1,
            clock=self.clock,
            pulse=partial(WorldPulse, self),  # type: ignore[arg-type]
            execution=partial(ObservedExecution, self),  # type: ignore[arg-type]
            around_step=self._around_step,
        )
        try:
            await self.engine.open()
        except StoreError:
            self.is_gone = self.disturbed = True
            world.process_over(self)
            return
        self.is_open = True
        world.tell(self, "open")

    async def shut(self, grace: float) -> None:
        """Stop in good order."""
        self.is_closing = True
        await self.engine.close(grace)
        self.is_gone = self.disturbed = True
        self.world.tell(self, "closed")
        for worker in sorted(self.workers):
            self.world.database.kill_worker(worker)  # the process has ended, and with it its lock
        self.world.process_over(self)

    def crash(self) -> None:
        """The process is gone, with everything as it was."""
        self.is_gone = self.disturbed = True

    async def _around_step(self, step: StepRun, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        attempts = self.world.checker.doing.attempt_begins(self, step)
        self.world.tell(self, "attempt", step.driver.run.id, label_of(step), step.driver.run.epoch)
        self.world.moment("attempt", self, step.driver.run.id)
        self.in_flight += 1
        try:
            value = await call()
            attempts.ended_well = True
            return value
        finally:
            attempts.running = False
            self.in_flight -= 1

    # What people in this process ask of it

    def spawn(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Let somebody in this process do something."""
        self.loop.call_soon(lambda: self.loop.create_task(function(*args)))

    async def start_run(self, run_id: str, inputs: bytes, options: dict[str, Any]) -> None:
        """Start a run, and wait for its end, as ``await etl("acme")`` does; a store that fails is asked again."""
        engine, timeout = self.engine, options.get("timeout")
        for _ in range(self._chance.choice([1, 5])):
            now = self.clock.now()
            new = NewRun(
                id=run_id,
                workflow="simulated",
                inputs=inputs,
                digest=digest(inputs),
                seed=self._chance.randbytes(16),
                created_at=now,
                available_at=now + options["delay"] if options["delay"] else 0.0,
                priority=options["priority"],
                deadline=None if timeout is None else now + timeout,
                max_deliveries=options["max_deliveries"],
                starter=engine.worker,
            )
            try:
                if not isinstance(await engine.start(new, join_orphan=False), Started):
                    return  # switched off
                row = await engine.wait(run_id)
            except (StoreError, ConnectionError):
                await self.clock.sleep(0.3)
                continue
            except UsageError:
                return  # this process is closing
            self.world.told_of_end(self, row)
            return

    async def send_signal(self, run_id: str, name: str, payload: bytes, dedup: str) -> None:
        """Send a signal; a store that fails is asked again under the same key, unless the sender gives up."""
        answer = await self.change(SendSignal(run_id, name, payload, dedup, self.clock.now()))
        if answer in (Verdict.DONE, Verdict.DUPLICATE):
            self.world.signal_accepted(run_id, dedup)

    async def change(self, op: Change) -> Verdict | None:
        """Ask something of a run; a store that fails is asked again, unless whoever asks gives up."""
        for _ in range(self._chance.choice([1, 5])):
            try:
                return await self.engine.change(op)
            except (StoreError, ConnectionError):
                await self.clock.sleep(0.3)
        return None

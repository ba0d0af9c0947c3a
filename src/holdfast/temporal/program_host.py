"""Executes the program of a run, for the activity of the run: the host of its driver.

The driver, the steps, and the program are those of the journal engine. Steps are executed in the program's own process,
as everywhere. Only the journal differs: ``program_log`` writes it to the run's workflow in Temporal.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast.core.commands import Command
from holdfast.core.execution import Execution
from holdfast.core.patches import Patches
from holdfast.core.program_execution import ProgramExecution
from holdfast.core.records import Attempt, RecordKind, Signal
from holdfast.core.states import RunState
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.driver import Driver
from holdfast.engine.held_run import HeldRun
from holdfast.engine.host import Lease
from holdfast.engine.journal_writer import AnswerCallback, JournalWriter
from holdfast.engine.program_run import ProgramRun
from holdfast.engine.step_run import StepInterceptor, StepRun
from holdfast.engine.timers import ClockTimers
from holdfast.errors import HistoryFull, HoldfastError
from holdfast.stores.claims import RunRequests
from holdfast.stores.contract import History
from holdfast.stores.operations import (
    AppendLiveEvents,
    AppendRecord,
    AwaitRun,
    CancelState,
    ClientOp,
    FinishRun,
    NewRun,
    Op,
    OpResult,
    OpStatus,
    ParkRun,
    ReleaseRun,
    Run,
    RunLink,
    StartResult,
    StartRun,
)
from holdfast.stores.temporal.budgets import StepRef
from holdfast.stores.temporal.program_updates import (
    CANCEL_NOTICE,
    PAUSE_NOTICE,
    RESUME_NOTICE,
    Message,
    RunStarted,
    StepInFlight,
)
from holdfast.stores.temporal.run_memo import BudgetOwner
from holdfast.temporal.budget_reservation import BudgetReservation
from holdfast.temporal.linked_runs import make_row
from holdfast.temporal.live_program import CONTINUED, PARKED
from holdfast.temporal.program_log import ProgramLog
from holdfast.temporal.program_step import ProgramStep
from holdfast.temporal.run_environment import NullLiveEvents

if TYPE_CHECKING:
    from holdfast.temporal.engine import TemporalEngine

log = logging.getLogger("holdfast.engine")

MAX_RETRY_DELAY_S = 2.0
"""The longest pause before the program's host asks again for messages that it could not get."""

LINGERING_TASK_TIMEOUT_S = 1.0
"""How long cancelled tasks of the program get to clean up."""

MAX_SHOWN_STEPS = 20
"""The most steps in flight that are shown to people."""

RELEASE_TIMEOUT_S = 5.0
"""How long a worker that stops waits until Temporal knows that its program has not died."""

LOST, RELEASED = "lost", "released"
"""Why a program was stopped: another worker executes it, or the run has ended; or this worker stops."""

_LOCAL_OPERATIONS = (FinishRun, ParkRun, ReleaseRun, AppendLiveEvents)
"""What the journal does not need: the result of the activity says it."""


class ProgramEnd(NamedTuple):
    """Why a program does not run here any more."""

    reason: str
    """The state in which its run ends, or one of the reasons above, ``PARKED``, or ``CONTINUED``."""
    payload: bytes = b"null"
    rewind: str = ""
    """What a retry takes back, as JSON."""


class ProgramHost:
    """The host of one program's driver, on the loop of the process's own code.

    Args:
        engine: the engine.
        run: the run.
        definition: its program.
        journal: writes its journal.
        execution_id: Temporal's run id of its execution.
        budgets: the budgets that apply to it.
        lease: whether the activity can still be this worker's.
    """

    execution_factory: Callable[..., Execution] = Execution
    program_execution_factory: Callable[..., ProgramExecution] = ProgramExecution
    step_interceptor: StepInterceptor | None = None
    min_overlap_count: int | None = None

    def __init__(
        self,
        engine: TemporalEngine,
        run: Run,
        definition: WorkflowDefinition,
        journal: ProgramLog,
        execution_id: str,
        budgets: Sequence[BudgetOwner],
        lease: Lease,
        worker_id: int,
    ) -> None:
        self.engine = engine
        self.loop = engine.loop
        self.loop_thread_id = threading.get_ident()
        self.worker_id = worker_id
        self.is_draining = False
        self.max_value = engine.max_value
        self.run_log = engine.context.run_log
        self.telemetry = engine.context.telemetry
        self.clock = engine.clock
        self.store = engine.store
        self.live_events = NullLiveEvents()
        self.change_feed = engine.change_feed
        self.thread_pool = engine.thread_pool
        self.close_callbacks = engine.close_callbacks
        self.lingering_tasks: set[asyncio.Task[Any]] = set()
        self.membership = lease
        self.writer = ProgramWriter(self)
        self._journal = journal
        self._execution_id = execution_id
        self._budgets = budgets
        self._reservations: dict[int, BudgetReservation] = {}
        """The steps that have reserved something, by position."""
        self._reported_seq = -1
        """The last record whose usage was reported."""
        self._start_callbacks: dict[int, AnswerCallback] = {}
        """What waits for the start of another run, by position."""
        self._is_cancel_requested = run.cancel_state is CancelState.REQUESTED
        self._is_pause_requested = False
        self._end = ProgramEnd(LOST)
        self._ended: asyncio.Future[ProgramEnd] = self.loop.create_future()
        self.driver = Driver(self, run, definition)
        if self.telemetry is not None:
            self.driver.telemetry = self.telemetry.find_run(run, is_agent=definition.is_agent)

    # Its life

    async def execute(self, history: History, messages: Sequence[Message], message_count: int) -> ProgramEnd:
        """Execute the program until it does not run here any more."""
        driver = self.driver
        listening = self.loop.create_task(self._receive_messages(message_count))
        try:
            await self._start(history)
            self._take([message for message in messages if message == PAUSE_NOTICE])
            return await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            driver.unload()
            raise
        finally:
            # Its last request is answered when the run's workflow knows of the end.
            self.engine.ending_tasks.add(listening)
            listening.add_done_callback(self.engine.ending_tasks.discard)
            self.writer.stop()
            if self.lingering_tasks:
                await asyncio.wait(self.lingering_tasks, timeout=LINGERING_TASK_TIMEOUT_S)

    async def _start(self, history: History) -> None:
        driver = self.driver
        try:
            if driver.definition.prepare_run is not None:
                await driver.definition.prepare_run(driver.run)
            if not self._ended.done():
                driver.start(history)
        except Exception as error:
            log.exception("run %r could not be taken up", driver.run.id)
            driver.fail(error)

    def list_steps(self) -> list[StepInFlight]:
        """The steps in flight, for people to read."""
        steps = [step for step in self.driver.steps.started.values() if isinstance(step, ProgramStep)]
        return [step.describe() for step in steps[:MAX_SHOWN_STEPS]]

    def lose(self) -> None:
        """Another worker executes the program, or the run has ended."""
        if not self._ended.done() and not self.driver.is_closed:
            self.driver.handle_claim_lost()

    async def release(self, should_stop: Callable[[], bool]) -> None:
        """Let steps in flight end, unless ``should_stop``, and hand the program over to another worker."""
        self.is_draining = True
        driver = self.driver
        while not driver.is_closed and driver.in_flight_count and not should_stop():  # noqa: ASYNC110  # changes often
            await asyncio.sleep(0.02)
        await self.writer.flush()
        if not driver.is_closed:
            self._end = ProgramEnd(RELEASED)
            driver.unload()
            try:
                async with asyncio.timeout(RELEASE_TIMEOUT_S):
                    await self._journal.send([ReleaseRun(driver.run.key, driver.run.epoch)])
            except (HoldfastError, TimeoutError) as error:
                log.warning("the stop of run %r counts as a worker death: %s", driver.run.id, error)

    # What was sent to the run

    async def _receive_messages(self, count: int) -> None:
        delay_s = 0.1
        while not self._ended.done():
            try:
                answer = await self._journal.request_messages(count, should_wait=True)
            except HoldfastError as error:
                log.debug("what was sent to run %r cannot be read: %s", self.driver.run.id, error)
                await asyncio.sleep(delay_s)
                delay_s = min(MAX_RETRY_DELAY_S, 2 * delay_s)
                continue
            delay_s = 0.1
            if answer.is_fenced:
                self.lose()
                return
            count += len(answer.messages)
            self._take(answer.messages)

    def _take(self, messages: Sequence[Message]) -> None:
        driver = self.driver
        for message in messages:
            if driver.is_closed:
                return
            if isinstance(message, Signal):
                driver.add_signals([message])
            elif isinstance(message, RunStarted):
                if (on_answer := self._start_callbacks.pop(message.position, None)) is not None:
                    on_answer(_read_started(message))
            elif message == CANCEL_NOTICE:
                self._is_cancel_requested = True
                driver.handle_request(RunRequests(0, is_cancel_requested=True, is_pause_requested=False))
            elif message == PAUSE_NOTICE:
                self._is_pause_requested = True
                driver.handle_request(RunRequests(0, is_cancel_requested=False, is_pause_requested=True))
            elif message == RESUME_NOTICE:
                self._is_pause_requested = False

    # The journal (see `engine.journal_writer.OperationLog`)

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Write the driver's operations to the workflow."""
        for op in ops:
            if isinstance(op, AppendRecord):
                await self._report(op)
        sent = [op for op in ops if not isinstance(op, _LOCAL_OPERATIONS)]
        answers = iter(await self._journal.send(sent) if sent else ())
        if self._journal.next:
            self.loop.call_soon(self._follow_length)
        results = [self._perform(op) if isinstance(op, _LOCAL_OPERATIONS) else next(answers) for op in ops]
        return cast(list[OpResult], results)  # an error goes to the one who has submitted the operation

    def _perform(self, op: FinishRun | ParkRun | ReleaseRun | AppendLiveEvents) -> OpStatus:
        if isinstance(op, ParkRun):
            if not self._is_pause_requested:
                return OpStatus.REFUSED
            self._end = ProgramEnd(PARKED)
        elif isinstance(op, FinishRun):
            if op.respect_cancel and self._is_cancel_requested:
                return OpStatus.REFUSED
            rewind = "" if op.rewind is None else json.dumps(op.rewind._asdict())
            payload = op.output if op.state is RunState.COMPLETED else op.error
            self._end = ProgramEnd(op.state, payload or b"null", rewind)
        return OpStatus.DONE

    async def _report(self, op: AppendRecord) -> None:
        """Write what a step has changed elsewhere, once, before its outcome is recorded."""
        if op.record.seq <= self._reported_seq:
            return  # the commit is repeated
        if op.memory is not None:
            await self.engine.perform(op.memory)
        if op.used is not None and self._budgets and op.record.kind in (RecordKind.STEP, RecordKind.COMPENSATION):
            reservation = self.get_reservation(op.record.position, op.record.name)
            await reservation.report_usage(op.used)
            self._reservations.pop(op.record.position, None)
        self._reported_seq = op.record.seq

    def _follow_length(self) -> None:
        """The history is long: continue as new when nothing is in flight."""
        driver = self.driver
        if driver.is_closed or not driver.is_started:
            return
        if self._journal.next == "full":
            driver.fail(
                HistoryFull(
                    f"run {driver.run.id!r} has a history that is near Temporal's limits, and there was always "
                    "something in flight, or its records are too large (`?payloads=`), so that it could not continue "
                    "as new. Let it start child runs for parts of its work: they have their own."
                )
            )
        elif self._has_nothing_in_flight():
            self._end = ProgramEnd(CONTINUED)
            driver.unload()

    def _has_nothing_in_flight(self) -> bool:
        driver = self.driver
        if driver.program is not None and driver.program.owns_process:
            return False  # it cannot run again in this process
        has_only_signals = all(command.kind is RecordKind.SIGNAL for command in driver.execution.open_commands.values())
        return has_only_signals and not driver.recorder.pending_count and driver.execution.result is None

    def start_child(self, new: NewRun, link: RunLink, on_answer: AnswerCallback) -> None:
        """Start a run for this one."""
        self.writer.submit(StartRun(new, link=link), on_answer)

    def expect_start(self, position: int, on_answer: AnswerCallback) -> AnswerCallback:
        """``on_answer`` gets the answer when the run is there. Returns what gets the answer to the request."""
        self._start_callbacks[position] = on_answer
        return partial(self._on_start_sent, position)

    def _on_start_sent(self, position: int, answer: OpResult | BaseException) -> None:
        """The workflow has the request, and answers it with a message; or it does not take it."""
        if answer is not OpStatus.DONE and (on_answer := self._start_callbacks.pop(position, None)) is not None:
            on_answer(answer)

    # Budgets

    def get_reservation(self, position: int, name: str) -> BudgetReservation:
        """The reservation of a step."""
        reservation = self._reservations.get(position)
        if reservation is None:
            ref = StepRef(self.driver.run.id, self._execution_id, position)
            reservation = BudgetReservation(self.engine.client, self._budgets, ref, name)
            self._reservations[position] = reservation
        return reservation

    def release_reservation(self, position: int) -> None:
        """Release the reservation of a step that is not executed, if it has one."""
        reservation = self._reservations.pop(position, None)
        if reservation is not None:
            task = self.loop.create_task(reservation.release())
            self.lingering_tasks.add(task)
            task.add_done_callback(self.lingering_tasks.discard)

    # The host of the driver and of its steps (see `engine.host`)

    def create_step(self, driver: Driver, command: Command, earlier_attempt: Attempt | None) -> StepRun:
        """The executor of a step."""
        return ProgramStep(self, driver, command, earlier_attempt)

    def create_timers(self, driver: Driver) -> ClockTimers:
        """The timers of the run: its deadline."""
        return ClockTimers(driver)

    def create_program(
        self, driver: Driver, execution: ProgramExecution, function: Callable[[], Any], *, is_async: bool
    ) -> ProgramRun:
        """The program."""
        return ProgramRun(self, driver, execution, function, is_async=is_async)

    def create_patches(self, history: History) -> Patches:
        """The patches of the run."""
        answered = [signal.position for signal in history.signals if signal.position is not None]
        return Patches(history.records, [*history.attempts, *answered])

    def on_run_idle(self, held_run: HeldRun) -> None:
        """Does nothing: a program stays in memory."""

    def on_run_busy(self, held_run: HeldRun) -> None:
        """Does nothing, for the same reason."""

    def on_run_closed(self, held_run: HeldRun, ended_run: Run | None) -> None:
        """The run is no longer in memory."""
        self.change_feed.notify(held_run.run.id)
        if ended_run is not None and held_run.telemetry is not None:
            held_run.telemetry.end_run(ended_run)
        if ended_run is not None and not held_run.has_fatal_error:
            self.run_log.log_end(ended_run)
        if not self._ended.done():
            self._ended.set_result(self._end)

    def on_released(self, answer: OpResult | BaseException) -> None:
        """Does nothing: the activity ends, and another worker gets it."""

    def on_park_refused(self, held_run: HeldRun) -> None:
        """The run was resumed, or cancelled."""

    def set_turn(self, run_id: str | None) -> None:
        """Does nothing: no workflow code runs here that could block the loop."""

    def wake(self) -> None:
        """Does nothing: the workflow reports what was sent to the run."""

    @property
    def is_stopping(self) -> bool:
        """Whether the engine has let go of its runs, or is about to."""
        return self.engine.is_stopping

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """A run's row and journal."""
        return await self.engine.read_run(run_id)

    async def change_run(self, op: ClientOp) -> OpStatus:
        """Change a run from outside."""
        return await self.engine.change_run(op)


class ProgramWriter(JournalWriter):
    """Writes to the journal of a program. A run that is started is there only when the workflow says so."""

    def __init__(self, host: ProgramHost) -> None:
        super().__init__(host, host.loop, host.clock)
        self._host = host

    def submit(self, op: Op, on_answer: AnswerCallback) -> None:
        """Write this with everything else that is ready."""
        if isinstance(op, StartRun | AwaitRun) and op.link is not None:
            on_answer = self._host.expect_start(op.link.position, on_answer)
        super().submit(op, on_answer)


def _read_started(started: RunStarted) -> OpResult:
    if not started.is_found:
        return OpStatus.UNKNOWN_RUN
    ok = started.state is RunState.COMPLETED
    row = make_row(None, "", started.state, started.payload if ok else None, None if ok else started.payload)
    row = replace(row, workflow=started.workflow, digest=started.digest)
    return StartResult(row, is_new=started.is_new, is_linked=started.is_linked)

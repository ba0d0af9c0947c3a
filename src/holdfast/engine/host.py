"""What a driver and its steps need of their engine: the journal engine, or Temporal's (``temporal.temporal_run``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.commands import Command
from holdfast.core.execution import Execution
from holdfast.core.patches import Patches
from holdfast.core.program_execution import ProgramExecution
from holdfast.core.records import Attempt
from holdfast.engine.clock import Clock
from holdfast.engine.definitions import StepCall
from holdfast.engine.journal_writer import AnswerCallback
from holdfast.run_log import RunLog
from holdfast.stores.change_feed import ChangeFeed
from holdfast.stores.contract import History, Store
from holdfast.stores.operations import ClientOp, NewRun, Op, OpResult, OpStatus, Run, RunLink
from holdfast.telemetry.telemetry import StepTelemetry, Telemetry

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.held_run import HeldRun
    from holdfast.engine.live_events import LiveEventSource
    from holdfast.engine.program_run import ProgramRun
    from holdfast.engine.step_run import StepInterceptor
    from holdfast.engine.thread_pool import StepThreadPool


class OperationExecutor(Protocol):
    """Performs operations in a store, one by one."""

    async def perform(self, op: Op) -> OpResult:
        """Perform the operation, and return the store's answer."""
        ...


class StepEngine(Protocol):
    """What a step may need of its engine: the same for all steps that the engine executes."""

    close_callbacks: list[Callable[[], Coroutine[Any, Any, None]]]
    """Called when the engine closes, to close what steps have opened for later steps."""
    max_value: int
    """The largest value that can be recorded, in bytes."""

    @property
    def clock(self) -> Clock:
        """Time and random numbers."""
        ...

    @property
    def store(self) -> Store:
        """The engine's store, for reading."""
        ...

    @property
    def writer(self) -> OperationExecutor:
        """The way to change something in the store."""
        ...


class StartedStep(Protocol):
    """A step command that a driver has started."""

    command: Command
    is_withdrawn: bool
    """The outcome is no longer wanted."""
    retry_at: float | None
    """When the next attempt is due, while the step waits for it; ``None``: it does not wait."""
    telemetry: StepTelemetry | None

    @property
    def call(self) -> StepCall:
        """The step, with its arguments."""
        ...

    @property
    def has_prior_intent(self) -> bool:
        """Whether an earlier worker was about to start this ``once`` step, and may have."""
        ...

    def launch(self) -> None:
        """Start the next attempt."""

    def cancel(self, *, detach: bool = False) -> None:
        """Stop: the outcome is no longer wanted, or (``detach``) this worker no longer holds the run."""

    def make_intent(self) -> Attempt:
        """The attempt to save before a ``once`` step starts."""
        ...

    def make_intent_withdrawal(self) -> Attempt:
        """The attempt to save when a ``once`` step does not start after all."""
        ...

    def to_attempt(self) -> Attempt:
        """What is known of the step, for the next attempt to continue from."""
        ...


class RunTimers(Protocol):
    """The timers of one run, and its deadline."""

    is_deadline_recorded: bool
    """Whether the record that the run's deadline has passed is in the journal, or on its way there."""

    def arm(self) -> None:
        """Schedule a wakeup for the timer that is due next."""

    def stop(self) -> None:
        """Cancel the wakeup."""

    def get_next_due_at(self) -> float | None:
        """When the next timer is due."""
        ...

    def record_due(self) -> bool:
        """Record the timers that are due; true if there were any."""
        ...


class OperationQueue(Protocol):
    """Takes operations, and answers later."""

    def submit(self, op: Op, on_answer: AnswerCallback) -> None:
        """Perform the operation; ``on_answer`` gets the answer, or the reason why there is none."""


class LiveEventSink(Protocol):
    """Publishes live events of commands in flight."""

    def start_attempt(self, source: LiveEventSource) -> None:
        """An attempt begins."""

    def get_text_appender(self, source: LiveEventSource, request_number: int = 0) -> Callable[[str], None]:
        """A function to call with each piece of an answer."""
        ...

    def discard(self, source: LiveEventSource) -> None:
        """The command has no more live events."""

    def flush_run(self, held_run: HeldRun) -> None:
        """Submit the buffered events of this run, without waiting."""

    def write_skipped_steps(self, held_run: HeldRun) -> None:
        """The code of this run has ended: write which steps it skipped."""


class Lease(Protocol):
    """Whether this worker may start something."""

    def has_lease(self) -> bool:
        """Whether no other worker can have taken its runs over. Called from any thread."""
        ...


class RunHost(Protocol):
    """What a driver needs of its engine."""

    loop: asyncio.AbstractEventLoop
    worker_id: int
    is_draining: bool
    max_value: int
    """The largest value that can be recorded, in bytes."""
    run_log: RunLog
    telemetry: Telemetry | None
    """Its spans and metrics, if anybody wants them."""
    execution_factory: Callable[..., Execution]
    """Makes the run in memory: ``Execution``, or a subclass through which a test observes the run."""
    program_execution_factory: Callable[..., ProgramExecution]
    """Makes the run of a program."""

    @property
    def clock(self) -> Clock:
        """The run's time."""
        ...

    @property
    def writer(self) -> OperationQueue:
        """Takes what the driver writes."""
        ...

    @property
    def live_events(self) -> LiveEventSink:
        """Publishes live events of commands in flight."""
        ...

    @property
    def change_feed(self) -> ChangeFeed:
        """The subscriptions to runs in this process."""
        ...

    def create_step(self, driver: Driver, command: Command, earlier_attempt: Attempt | None) -> StartedStep:
        """The executor of a step; ``earlier_attempt`` is what an earlier holder of the run has saved of it."""
        ...

    def create_timers(self, driver: Driver) -> RunTimers:
        """The timers of a run."""
        ...

    def create_program(
        self, driver: Driver, execution: ProgramExecution, function: Callable[[], Any], *, is_async: bool
    ) -> ProgramRun:
        """The program of a run. Raises ``UsageError`` if the engine runs no programs."""
        ...

    def create_patches(self, history: History) -> Patches:
        """The patches of a run with this history."""
        ...

    def on_run_idle(self, held_run: HeldRun) -> None:
        """The run waits only for time and signals."""

    def on_run_busy(self, held_run: HeldRun) -> None:
        """The run is no longer idle."""

    def on_run_closed(self, held_run: HeldRun, ended_run: Run | None) -> None:
        """The run is no longer in memory; ``ended_run`` is the run's row, if the run ended here."""

    def on_released(self, answer: OpResult | BaseException) -> None:
        """The store has answered the release of a run."""

    def on_park_refused(self, held_run: HeldRun) -> None:
        """The store refused to park the run, because there is something to do for it."""

    def set_turn(self, run_id: str | None) -> None:
        """Workflow code of this run starts to occupy the loop, or (``None``) stops."""

    def wake(self) -> None:
        """Check at once what there is to do."""

    def start_child(self, new: NewRun, link: RunLink, on_answer: AnswerCallback) -> None:
        """Start a run for a held run."""


class StepWriter(OperationQueue, OperationExecutor, Protocol):
    """Takes what a driver and its steps write."""


class StepHost(RunHost, StepEngine, Protocol):
    """What the steps and the program of a driver need of an engine that executes them in its own process."""

    loop_thread_id: int
    lingering_tasks: set[asyncio.Task[Any]]
    """Cancelled tasks of users' code that may still clean up."""
    thread_pool: StepThreadPool
    step_interceptor: StepInterceptor | None
    """Makes an attempt of a step instead of the engine, in a test."""

    @property
    def membership(self) -> Lease:
        """Whether steps may start."""
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether the engine has let go of its runs, or is about to."""
        ...

    @property
    def writer(self) -> StepWriter:
        """Takes what the driver and its steps write."""
        ...

    @property
    def clock(self) -> Clock:
        """The run's time."""
        ...

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """A run's row and journal, if there is such a run."""
        ...

    async def change_run(self, op: ClientOp) -> OpStatus:
        """Change a run from outside."""
        ...

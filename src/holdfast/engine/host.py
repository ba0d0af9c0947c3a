"""What a held run, and a step that is carried out, need of their engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.commands import Command
from holdfast.core.execution import Execution
from holdfast.core.patches import Patches
from holdfast.core.records import Attempt
from holdfast.engine.clock import Clock
from holdfast.engine.definitions import StepCall
from holdfast.engine.journal_writer import AnswerCallback, JournalWriter
from holdfast.engine.membership import Membership
from holdfast.engine.thread_pool import StepThreadPool
from holdfast.run_log import RunLog
from holdfast.stores.change_feed import ChangeFeed
from holdfast.stores.contract import History, Store
from holdfast.stores.operations import ClientOp, NewRun, Op, OpResult, OpStatus, Run, RunLink

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.live_events import LiveEventBuffer, LiveEventWriter
    from holdfast.engine.step_run import StepInterceptor


class OperationExecutor(Protocol):
    """What carries operations out in a store, one by one."""

    async def perform(self, op: Op) -> OpResult:
        """Carry it out, and return the answer."""
        ...


class StepEngine(Protocol):
    """What a step may need of the engine that carries it out: the same for all steps that it carries out."""

    close_callbacks: list[Callable[[], Coroutine[Any, Any, None]]]
    """Close what steps have opened for those that come after them: called when the engine closes."""

    @property
    def clock(self) -> Clock:
        """Time and chance."""
        ...

    @property
    def store(self) -> Store:
        """The store that it sees."""
        ...

    @property
    def writer(self) -> OperationExecutor:
        """The way to change something there."""
        ...

    @property
    def max_value(self) -> int:
        """The largest value that is recorded, in bytes."""
        ...


class StartedStep(Protocol):
    """A step command that a driver has begun."""

    command: Command
    is_withdrawn: bool
    """Nobody wants its outcome any more."""
    retry_at: float | None
    """When its next attempt is made, while it waits for that; ``None``: it does not wait."""

    @property
    def call(self) -> StepCall:
        """The step, with its arguments."""
        ...

    @property
    def has_prior_intent(self) -> bool:
        """Whether a ``once`` step was about to start before, and may have."""
        ...

    def launch(self) -> None:
        """Begin."""

    def cancel(self, *, detach: bool = False) -> None:
        """Nobody wants the outcome any more; or (``detach``) the run is not held here any more."""

    def make_intent(self) -> Attempt:
        """What is written before a ``once`` step starts."""
        ...

    def make_intent_withdrawal(self) -> Attempt:
        """What is written when it does not start after all."""
        ...

    def to_attempt(self) -> Attempt:
        """What is known of it: the next attempt goes on from this."""
        ...


class RunTimers(Protocol):
    """When something of one run is due."""

    is_deadline_recorded: bool
    """Whether it is recorded, or about to be, that the run's deadline has passed."""

    def arm(self) -> None:
        """Be woken when the next one is due."""

    def stop(self) -> None:
        """Be woken no more."""

    def get_next_due_at(self) -> float | None:
        """When the next one is due."""
        ...

    def record_due(self) -> bool:
        """Record what is due; true when there was anything."""
        ...


class OperationQueue(Protocol):
    """What takes operations, and answers later."""

    def submit(self, op: Op, on_answer: AnswerCallback) -> None:
        """Carry it out; ``on_answer`` gets the answer, or why there is none."""


class LiveEventSink(Protocol):
    """What tells others of commands in flight."""

    def start_attempt(self, buffer: LiveEventBuffer, attempt: int, at: float) -> None:
        """An attempt begins."""

    def discard(self, buffer: LiveEventBuffer) -> None:
        """There is nothing more to tell of it."""

    def flush_run(self, driver: Driver) -> None:
        """Hand in what has gathered of this run, without waiting."""

    def write_skipped_steps(self, driver: Driver) -> None:
        """The code of this run has ended: write which steps it has skipped."""


class RunHost(Protocol):
    """What a driver needs of whoever holds its run."""

    loop: asyncio.AbstractEventLoop
    worker_id: int
    is_draining: bool
    max_value: int
    """The largest value that is recorded, in bytes."""
    run_log: RunLog
    execution_factory: Callable[..., Execution]
    """What a run in memory is made of: the core's own class, or a testing kit's, which looks on."""

    @property
    def clock(self) -> Clock:
        """Time, as the run is told it."""
        ...

    @property
    def writer(self) -> OperationQueue:
        """Where what happens goes to."""
        ...

    @property
    def live_events(self) -> LiveEventSink:
        """What tells others of commands in flight."""
        ...

    @property
    def change_feed(self) -> ChangeFeed:
        """Who follows runs in this process."""
        ...

    def create_step(self, driver: Driver, command: Command, earlier_attempt: Attempt | None) -> StartedStep:
        """What carries a step out; ``earlier_attempt`` is what is left of an earlier holder's attempts."""
        ...

    def create_timers(self, driver: Driver) -> RunTimers:
        """What wakes a run when something is due."""
        ...

    def create_patches(self, history: History) -> Patches:
        """What a run with this history answers to code that asks which way to take."""
        ...

    def on_run_idle(self, driver: Driver) -> None:
        """The run waits for nothing but time and signals."""

    def on_run_busy(self, driver: Driver) -> None:
        """The run does not, any more."""

    def on_run_closed(self, driver: Driver, ended_run: Run | None) -> None:
        """The driver is gone; ``ended_run`` is the ended run, if it ended here."""

    def on_released(self, answer: OpResult | BaseException) -> None:
        """The store has been asked to give a run to another worker, or to this one again."""

    def on_park_refused(self, driver: Driver) -> None:
        """The store did not let the run leave memory: there is something to do for it."""

    def set_turn(self, run_id: str | None) -> None:
        """Workflow code of this run starts (or stops) to occupy the loop."""

    def wake(self) -> None:
        """Look at once what there is to do."""

    def start_child(self, new: NewRun, link: RunLink, on_answer: AnswerCallback) -> None:
        """Start a run for a held one."""


class StepHost(RunHost, Protocol):
    """What the journal engine is to the steps that it carries out itself, beside being their run's holder."""

    store: Store
    membership: Membership
    """Whether this worker may still begin something."""
    thread_pool: StepThreadPool
    step_interceptor: StepInterceptor | None
    lingering_tasks: set[asyncio.Task[Any]]
    """Steps that were cancelled and have not ended yet."""
    close_callbacks: list[Callable[[], Coroutine[Any, Any, None]]]
    """Close what steps have opened for those that come after them: called when the engine closes."""

    @property
    def is_stopping(self) -> bool:
        """Whether it has let go of its runs, or is about to because its event loop ends."""
        ...

    @property
    def writer(self) -> JournalWriter:
        """The one place through which the engine writes."""
        ...

    @property
    def live_events(self) -> LiveEventWriter:
        """What tells others of commands in flight."""
        ...

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """A run's row and journal, if there is such a run."""
        ...

    async def change_run(self, op: ClientOp) -> OpStatus:
        """Change another run from outside."""
        ...

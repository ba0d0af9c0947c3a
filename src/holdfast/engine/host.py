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
from holdfast.engine.journal_writer import Done, Writer
from holdfast.engine.membership import Membership
from holdfast.engine.thread_pool import Threads
from holdfast.run_log import RunLog
from holdfast.stores.change_feed import News
from holdfast.stores.contract import History, Store
from holdfast.stores.operations import Answer, Change, Link, NewRun, Op, Run, Verdict

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.live_events import Account, Teller
    from holdfast.engine.step_run import AroundStep


class Performs(Protocol):
    """What carries operations out in a store, one by one."""

    async def perform(self, op: Op) -> Answer:
        """Carry it out, and return the answer."""
        ...


class StepEngine(Protocol):
    """What a step may need of the engine that carries it out: the same for all steps that it carries out."""

    closers: list[Callable[[], Coroutine[Any, Any, None]]]
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
    def writer(self) -> Performs:
        """The way to change something there."""
        ...

    @property
    def max_value(self) -> int:
        """The largest value that is recorded, in bytes."""
        ...


class Begun(Protocol):
    """A step command that a driver has begun."""

    command: Command
    withdrawn: bool
    """Nobody wants its outcome any more."""
    retry_at: float | None
    """When its next attempt is made, while it waits for that; ``None``: it does not wait."""

    @property
    def call(self) -> StepCall:
        """The step, with its arguments."""
        ...

    @property
    def was_intended(self) -> bool:
        """Whether a ``once`` step was about to start before, and may have."""
        ...

    def launch(self) -> None:
        """Begin."""

    def cancel(self, *, lost: bool = False) -> None:
        """Nobody wants the outcome any more; or (``lost``) the run is not held here any more."""

    def note_intent(self) -> Attempt:
        """What is written before a ``once`` step starts."""
        ...

    def note_no_intent(self) -> Attempt:
        """What is written when it does not start after all."""
        ...

    def so_far(self) -> Attempt:
        """What is known of it: the next attempt goes on from this."""
        ...


class Alarms(Protocol):
    """When something of one run is due."""

    deadline_sent: bool
    """Whether it is recorded, or about to be, that the run's deadline has passed."""

    def set_alarm(self) -> None:
        """Be woken when the next one is due."""

    def stop(self) -> None:
        """Be woken no more."""

    def next_due(self) -> float | None:
        """When the next one is due."""
        ...

    def record_due(self) -> bool:
        """Record what is due; true when there was anything."""
        ...


class Submits(Protocol):
    """What takes operations, and answers later."""

    def submit(self, op: Op, done: Done) -> None:
        """Carry it out; ``done`` gets the answer, or why there is none."""


class Tells(Protocol):
    """What tells others of commands in flight."""

    def begin(self, account: Account, attempt: int, at: float) -> None:
        """An attempt begins."""

    def forget(self, account: Account) -> None:
        """There is nothing more to tell of it."""

    def tell_now(self, driver: Driver) -> None:
        """Hand in what has gathered of this run, without waiting."""

    def tell_skipped(self, driver: Driver) -> None:
        """The code of this run has ended: write which steps it has skipped."""


class RunHost(Protocol):
    """What a driver needs of whoever holds its run."""

    loop: asyncio.AbstractEventLoop
    worker: int
    draining: bool
    max_value: int
    """The largest value that is recorded, in bytes."""
    run_log: RunLog
    execution: Callable[..., Execution]
    """What a run in memory is made of: the core's own class, or a testing kit's, which looks on."""

    @property
    def clock(self) -> Clock:
        """Time, as the run is told it."""
        ...

    @property
    def writer(self) -> Submits:
        """Where what happens goes to."""
        ...

    @property
    def telling(self) -> Tells:
        """What tells others of commands in flight."""
        ...

    @property
    def news(self) -> News:
        """Who follows runs in this process."""
        ...

    def step_run(self, driver: Driver, command: Command, known: Attempt | None) -> Begun:
        """What carries a step out; ``known`` is what is left of an earlier holder's attempts."""
        ...

    def timers(self, driver: Driver) -> Alarms:
        """What wakes a run when something is due."""
        ...

    def patches(self, history: History) -> Patches:
        """What a run with this history answers to code that asks which way to take."""
        ...

    def run_idle(self, driver: Driver) -> None:
        """The run waits for nothing but time and signals."""

    def run_busy(self, driver: Driver) -> None:
        """The run does not, any more."""

    def run_over(self, driver: Driver, run: Run | None) -> None:
        """The driver is gone; ``run`` is the ended run, if it ended here."""

    def given_back(self, answer: Answer | BaseException) -> None:
        """The store has been asked to give a run to another worker, or to this one again."""

    def run_refused_park(self, driver: Driver) -> None:
        """The store did not let the run leave memory: there is something to do for it."""

    def turning(self, run_id: str | None) -> None:
        """Workflow code of this run starts (or stops) to occupy the loop."""

    def nudge(self) -> None:
        """Look at once what there is to do."""

    def start_child(self, new: NewRun, link: Link, done: Done) -> None:
        """Start a run for a held one."""


class Host(RunHost, Protocol):
    """What the journal engine is to the steps that it carries out itself, beside being their run's holder."""

    store: Store
    membership: Membership
    """Whether this worker may still begin something."""
    threads: Threads
    around_step: AroundStep | None
    stragglers: set[asyncio.Task[Any]]
    """Steps that were cancelled and have not ended yet."""
    closers: list[Callable[[], Coroutine[Any, Any, None]]]
    """Close what steps have opened for those that come after them: called when the engine closes."""

    @property
    def is_stopping(self) -> bool:
        """Whether it has let go of its runs, or is about to because its event loop ends."""
        ...

    @property
    def writer(self) -> Writer:
        """The one place through which the engine writes."""
        ...

    @property
    def telling(self) -> Teller:
        """What tells others of commands in flight."""
        ...

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """A run's row and journal, if there is such a run."""
        ...

    async def change(self, op: Change) -> Verdict:
        """Change another run from outside."""
        ...

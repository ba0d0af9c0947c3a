"""What a held run needs of the engine that holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.execution import Execution
from holdfast.engine.clock import Clock
from holdfast.engine.threads import Threads
from holdfast.engine.writer import Done, Writer
from holdfast.stores.contract import History, Store
from holdfast.stores.news import News
from holdfast.stores.operations import Change, Link, NewRun, Run, Verdict

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.steps import AroundStep
    from holdfast.engine.telling import Teller


class Host(Protocol):
    """What a driver needs of the engine that holds it."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    store: Store
    writer: Writer
    threads: Threads
    telling: Teller
    news: News
    """Who follows runs in this process."""
    worker: int
    draining: bool
    max_value: int
    """The largest value that is recorded, in bytes."""
    execution: Callable[..., Execution]
    """What a run in memory is made of: the core's own class, or a testing kit's, which looks on."""
    around_step: AroundStep | None
    stragglers: set[asyncio.Task[Any]]
    """Steps that were cancelled and have not ended yet."""
    closers: list[Callable[[], Coroutine[Any, Any, None]]]
    """Close what steps have opened for those that come after them: called when the engine closes."""

    def run_idle(self, driver: Driver) -> None:
        """The run waits for nothing but time and signals."""

    def run_busy(self, driver: Driver) -> None:
        """The run does not, any more."""

    def run_over(self, driver: Driver, run: Run | None) -> None:
        """The driver is gone; ``run`` is the ended run, if it ended here."""

    def run_refused_park(self, driver: Driver) -> None:
        """A signal that the run waits for is in the store already."""

    def turning(self, run_id: str | None) -> None:
        """Workflow code of this run starts (or stops) to occupy the loop."""

    def nudge(self) -> None:
        """Look at once what there is to do."""

    def holds_lease(self) -> bool:
        """Whether nobody else can hold this worker's runs yet, so that a step may begin."""
        ...

    def start_child(self, new: NewRun, link: Link, done: Done) -> None:
        """Start a run for a held one, and execute it here if this worker can."""

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """A run's row and journal, if there is such a run."""
        ...

    async def change(self, op: Change) -> Verdict:
        """Change another run from outside."""
        ...

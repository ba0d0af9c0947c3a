"""What a runtime needs of an engine: the journal engine over a store, or Temporal's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.engine.host import StepEngine
from holdfast.stores.change_feed import ChangeFeed
from holdfast.stores.contract import History
from holdfast.stores.operations import ClientOp, NewRun, OpResult, OpStatus, Run


class Engine(StepEngine, Protocol):
    """Starts runs, and executes those of the workflows that it was given."""

    worker_id: int
    """The id of this engine as a worker; 0 in Temporal, which has its own workers."""
    on_stuck: Callable[[], None]
    """Called in another thread when the event loop has been blocked for too long: see ``loop_watchdog``."""

    @property
    def change_feed(self) -> ChangeFeed:
        """The subscriptions to runs in this process."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether the engine has let go of its runs."""
        ...

    @property
    def not_ready_reason(self) -> str:
        """Why this engine takes no runs at the moment; empty if it does. Read from any thread."""
        ...

    async def open(self) -> None:
        """Connect, and start to take runs."""

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop: steps in flight get ``grace_s`` seconds to end; then every run is handed over to other workers."""

    def abandon(self) -> None:
        """The event loop is gone: let go of everything without it."""

    def skip_grace(self) -> None:
        """Let a ``close`` that is running stop waiting for steps in flight."""

    async def start(self, new: NewRun, *, join_orphan: bool) -> OpResult:
        """Create a run, or find the existing one."""
        ...

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """A run's row and journal, if there is such a run."""
        ...

    async def change_run(self, op: ClientOp) -> OpStatus:
        """Change a run from outside."""
        ...

    async def wait(self, run_id: str) -> Run:
        """The run's row, when it has ended, here or on another worker."""
        ...

"""What a step may know of itself, and ask for: ``current_step()``."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.admission.usage import Usage
from holdfast.engine.definitions import StepDefinition
from holdfast.errors import UsageError
from holdfast.stores.contract import History
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import ClientOp, OpStatus, Run

if TYPE_CHECKING:
    from holdfast.engine.host import StepEngine


class StepExecutor(Protocol):
    """Whoever carries a step out: what the step is told, and asks for, comes from here. See ``StepContext``."""

    memory_change: MemoryChange | None

    @property
    def step(self) -> StepDefinition:
        """The step."""
        ...

    @property
    def run(self) -> Run:
        """The row of its run."""
        ...

    @property
    def engine(self) -> StepEngine:
        """The engine that carries it out."""
        ...

    @property
    def idempotency_key(self) -> str:
        """Stable over attempts, crashes and replays."""
        ...

    def heartbeat(self, context: StepContext, progress: Any) -> None:
        """A heartbeat, from whatever thread the step runs in."""

    async def save_progress(self, context: StepContext, progress: Any) -> None:
        """A heartbeat that is waited for."""

    def publish_text(self, context: StepContext, text: str) -> None:
        """A piece of text for whoever follows the run, from whatever thread."""

    def get_text_appender(self, context: StepContext, request_number: int) -> Callable[[str], None]:
        """What takes the pieces of an answer."""
        ...

    async def reserve(self, expected: Usage) -> None:
        """Ask for a piece of the run's budgets."""

    async def get_previous_run_id(self) -> str:
        """The run before this one in its session."""
        ...

    async def remind_approval(
        self, approval_id: str, reminder_count: int, assignee: str, expires_at: float | None
    ) -> bool:
        """Note that people are told of a question again."""
        ...

    async def withdraw_approval(self, approval_id: str) -> bool:
        """Take a question back."""
        ...

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """Another run's row and journal."""
        ...

    async def change_run(self, op: ClientOp) -> OpStatus:
        """Change another run."""
        ...


class StepContext:
    """What a step may know of itself: see ``current_step()``."""

    def __init__(self, executor: StepExecutor, attempt: int, progress: Any, failing_since: float | None = None) -> None:
        self.name = executor.step.name
        self.run_id = executor.run.id
        self.workflow = executor.run.workflow
        self.attempt = attempt
        """1 for the first attempt; retries count on, also over a crash between two of them."""
        self.progress = progress
        """What an earlier attempt last passed to ``heartbeat``, or ``None``."""
        self.failing_since = failing_since
        """When the first attempt failed (seconds since 1970); ``None``: none has."""
        self._executor = executor
        self._connection: Any = None

    @property
    def connection(self) -> Any:
        """In a step with ``transaction=True``: a connection to the store's own database, in an open transaction.

        On PostgreSQL, a ``psycopg.AsyncConnection`` in an async step and a ``psycopg.Connection`` in a plain one; on
        SQLite, a ``sqlite3.Connection``. Holdfast commits what is done with it together with the step's outcome, when
        the step has returned, and rolls it back when the step has raised.
        """
        if self._connection is None:
            why = (
                "its transaction has ended"
                if self._executor.step.is_transactional
                else f"it has none: write @step(transaction=True) above {self.name!r}"
            )
            raise UsageError(f"step {self.name!r} has no connection to the store's database, because {why}")
        return self._connection

    def set_connection(self, connection: Any) -> None:
        """Hand the step its connection, or (``None``) take it back."""
        self._connection = connection

    @property
    def idempotency_key(self) -> str:
        """Stable over attempts, crashes and replays of this step: hand it to whatever you call."""
        return self._executor.idempotency_key

    def heartbeat(self, progress: Any = None) -> None:
        """Keep ``progress`` for the next attempt, should this one fail or its process die.

        May be called from any thread, as often as you like: it is written in the background at most ten times a second.
        Raises ``FenceLost`` or ``asyncio.CancelledError`` in a step that should stop. A transactional step has no
        ``progress``: of an attempt that fails, nothing stays.
        """
        self._executor.heartbeat(self, progress)

    async def save_progress(self, progress: Any) -> None:
        """Like ``heartbeat``, and it returns when ``progress`` is durable.

        For an async step that is about to do what it could not tell, after a crash, from not having done it.
        """
        await self._executor.save_progress(self, progress)

    def publish_text(self, text: str) -> None:
        """Hand a piece of text to whoever follows the run live, as a "text" event; from any thread.

        It is told in the background, a few times a second, and forgotten when the step has its outcome.
        """
        self._executor.publish_text(self, text)

    def get_text_appender(self, request_number: int) -> Callable[[str], None]:
        """To be called, on the loop, with each piece of the answer to one of this attempt's requests.

        What was told of the answer to an earlier one is void.
        """
        return self._executor.get_text_appender(self, request_number)

    @property
    def run(self) -> Run:
        """The row of its run, as it was when the run came into memory."""
        return self._executor.run

    @property
    def engine(self) -> StepEngine:
        """The engine that carries it out: the same for all steps that see the same store in this process."""
        return self._executor.engine

    async def reserve(self, expected: Usage) -> None:
        """Ask for what this step is about to use, if the run, or one above it, has a budget.

        Raises ``BudgetExceeded`` if that would pass one. Waits while it only does because of what others in flight may
        use.
        """
        await self._executor.reserve(expected)

    async def get_previous_run_id(self) -> str:
        """The id of the run that came before its own in the same session; ``""``: there was none."""
        return await self._executor.get_previous_run_id()

    async def remind_approval(
        self, approval_id: str, reminder_count: int, assignee: str, expires_at: float | None
    ) -> bool:
        """Note that people are told of a question of its run again; false when that is open no more."""
        return await self._executor.remind_approval(approval_id, reminder_count, assignee, expires_at)

    async def withdraw_approval(self, approval_id: str) -> bool:
        """Take a question of its run back; false when it has been answered, and the answer counts."""
        return await self._executor.withdraw_approval(approval_id)

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """Another run's row and journal, if there is such a run."""
        return await self._executor.read_run(run_id)

    def set_memory_change(self, change: MemoryChange) -> None:
        """Change what outlives runs, together with the record of this step: if the step succeeds, and once."""
        self._executor.memory_change = change

    async def change_run(self, op: ClientOp) -> OpStatus:
        """Signal, cancel, pause or resume another run: what workflow code does through a child's handle."""
        return await self._executor.change_run(op)


current_context: contextvars.ContextVar[StepContext] = contextvars.ContextVar("holdfast_step")

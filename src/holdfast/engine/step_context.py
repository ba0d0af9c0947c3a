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
from holdfast.stores.operations import Change, Run, Verdict

if TYPE_CHECKING:
    from holdfast.engine.host import StepEngine


class Carrier(Protocol):
    """Whoever carries a step out: what the step is told, and asks for, comes from here. See ``StepContext``."""

    memory: MemoryChange | None

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

    def beat(self, context: StepContext, progress: Any) -> None:
        """A heartbeat, from whatever thread the step runs in."""

    async def keep(self, context: StepContext, progress: Any) -> None:
        """A heartbeat that is waited for."""

    def tell_text(self, context: StepContext, text: str) -> None:
        """A piece of text for whoever follows the run, from whatever thread."""

    def listener(self, context: StepContext, request: int) -> Callable[[str], None]:
        """What takes the pieces of an answer."""
        ...

    async def reserve(self, expected: Usage) -> None:
        """Ask for a piece of the run's budgets."""

    async def previous_run(self) -> str:
        """The run before this one in its session."""
        ...

    async def remind_approval(self, id: str, reminders: int, asked_of: str, expires_at: float | None) -> bool:
        """Note that people are told of a question again."""
        ...

    async def withdraw_approval(self, id: str) -> bool:
        """Take a question back."""
        ...

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """Another run's row and journal."""
        ...

    async def change_run(self, op: Change) -> Verdict:
        """Change another run."""
        ...


class StepContext:
    """What a step may know of itself: see ``current_step()``."""

    def __init__(self, carrier: Carrier, attempt: int, progress: Any, failing_since: float | None = None) -> None:
        self.name = carrier.step.name
        self.run_id = carrier.run.id
        self.workflow = carrier.run.workflow
        self.attempt = attempt
        """1 for the first attempt; retries count on, also over a crash between two of them."""
        self.progress = progress
        """What an earlier attempt last passed to ``heartbeat``, or ``None``."""
        self.failing_since = failing_since
        """When the first attempt failed (seconds since 1970); ``None``: none has."""
        self._carrier = carrier
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
                if self._carrier.step.transaction
                else f"it has none: write @step(transaction=True) above {self.name!r}"
            )
            raise UsageError(f"step {self.name!r} has no connection to the store's database, because {why}")
        return self._connection

    def lend(self, connection: Any) -> None:
        """Hand the step its connection, or (``None``) take it back."""
        self._connection = connection

    @property
    def idempotency_key(self) -> str:
        """Stable over attempts, crashes and replays of this step: hand it to whatever you call."""
        return self._carrier.idempotency_key

    def heartbeat(self, progress: Any = None) -> None:
        """Keep ``progress`` for the next attempt, should this one fail or its process die.

        May be called from any thread, as often as you like: it is written in the background at most ten times a second.
        Raises ``FenceLost`` or ``asyncio.CancelledError`` in a step that should stop. A transactional step has no
        ``progress``: of an attempt that fails, nothing stays.
        """
        self._carrier.beat(self, progress)

    async def keep(self, progress: Any) -> None:
        """Like ``heartbeat``, and it returns when ``progress`` is durable.

        For an async step that is about to do what it could not tell, after a crash, from not having done it.
        """
        await self._carrier.keep(self, progress)

    def tell_text(self, text: str) -> None:
        """Hand a piece of text to whoever follows the run live, as a "text" event; from any thread.

        It is told in the background, a few times a second, and forgotten when the step has its outcome.
        """
        self._carrier.tell_text(self, text)

    def listener(self, request: int) -> Callable[[str], None]:
        """To be called, on the loop, with each piece of the answer to one of this attempt's requests.

        What was told of the answer to an earlier one is void.
        """
        return self._carrier.listener(self, request)

    @property
    def run(self) -> Run:
        """The row of its run, as it was when the run came into memory."""
        return self._carrier.run

    @property
    def engine(self) -> StepEngine:
        """The engine that carries it out: the same for all steps that see the same store in this process."""
        return self._carrier.engine

    async def reserve(self, expected: Usage) -> None:
        """Ask for what this step is about to use, if the run, or one above it, has a budget.

        Raises ``BudgetExceeded`` if that would pass one. Waits while it only does because of what others in flight may
        use.
        """
        await self._carrier.reserve(expected)

    async def previous_run(self) -> str:
        """The id of the run that came before its own in the same session; ``""``: there was none."""
        return await self._carrier.previous_run()

    async def remind_approval(self, id: str, reminders: int, asked_of: str, expires_at: float | None) -> bool:
        """Note that people are told of a question of its run again; false when that is open no more."""
        return await self._carrier.remind_approval(id, reminders, asked_of, expires_at)

    async def withdraw_approval(self, id: str) -> bool:
        """Take a question of its run back; false when it has been answered, and the answer counts."""
        return await self._carrier.withdraw_approval(id)

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """Another run's row and journal, if there is such a run."""
        return await self._carrier.read_run(run_id)

    def remember(self, change: MemoryChange) -> None:
        """Change what outlives runs, together with the record of this step: if the step succeeds, and once."""
        self._carrier.memory = change

    async def change_run(self, op: Change) -> Verdict:
        """Signal, cancel, pause or resume another run: what workflow code does through a child's handle."""
        return await self._carrier.change_run(op)


current: contextvars.ContextVar[StepContext] = contextvars.ContextVar("holdfast_step")

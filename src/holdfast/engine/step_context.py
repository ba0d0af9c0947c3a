"""The running step: what its own code sees of it (``StepContext``), and what Holdfast's code asks of its engine.

``current_step()`` returns the ``StepContext``. Tools, memory, approvals, and model calls run in steps, too, and need
more: they ask the ``StepExecutor``, through ``get_step_executor()``. Each engine has its own: ``step_run.StepRun`` and
``temporal.step_attempt.StepAttempt``.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.admission.usage import Usage
from holdfast.engine.definitions import ModelUsage, StepDefinition
from holdfast.errors import UsageError
from holdfast.services.model_prices import TokenCounts, make_usage
from holdfast.stores.contract import History
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import ClientOp, OpStatus, Run

if TYPE_CHECKING:
    from holdfast.engine.host import StepEngine


class StepExecutor(Protocol):
    """Executes a step. A ``context`` identifies the calling attempt: one that has ended must stop, or is ignored."""

    memory_change: MemoryChange | None
    """A change of memory, committed once with the record of this step, if the step succeeds."""
    reported_usage: ModelUsage | None
    """What the step's code has reported: see ``StepContext.report_usage``."""

    @property
    def step(self) -> StepDefinition:
        """The step."""
        ...

    @property
    def run(self) -> Run:
        """The row of its run, as it was when the run came into memory."""
        ...

    @property
    def engine(self) -> StepEngine:
        """The engine that executes it: the same for all steps that see the same store in this process."""
        ...

    @property
    def idempotency_key(self) -> str:
        """Stable over attempts, crashes, and replays."""
        ...

    @property
    def failing_since(self) -> float | None:
        """When the first attempt failed (seconds since 1970); ``None``: none has."""
        ...

    def heartbeat(self, context: StepContext, progress: Any) -> None:
        """See ``StepContext.heartbeat``."""

    async def save_progress(self, context: StepContext, progress: Any) -> None:
        """See ``StepContext.save_progress``."""

    def publish_text(self, context: StepContext, text: str) -> None:
        """See ``StepContext.publish_text``."""

    def get_text_appender(self, context: StepContext, request_number: int) -> Callable[[str], None]:
        """A function to call, on the loop, with each piece of the answer to one of this attempt's requests.

        It voids what was published of the answer to an earlier request.
        """
        ...

    async def reserve(self, expected: Usage) -> None:
        """Reserve what this step is about to use from the budgets of its run and of the runs above it.

        Raises ``BudgetExceeded`` if that would exceed one. Waits while only reservations of other calls in flight are
        in the way.
        """

    async def get_previous_run_id(self) -> str:
        """The id of the run before its own in the same session; ``""``: there is none."""
        ...

    async def remind_approval(
        self, approval_id: str, reminder_count: int, assignee: str, expires_at: float | None
    ) -> bool:
        """Note that people are reminded of an approval of its run; false when that is closed."""
        ...

    async def withdraw_approval(self, approval_id: str) -> bool:
        """Withdraw an approval of its run; false when it has been answered, and the answer counts."""
        ...

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """Another run's row and journal; ``None``: there is no such run."""
        ...

    async def change_run(self, op: ClientOp) -> OpStatus:
        """Signal, cancel, pause, or resume another run, as workflow code does through a child's handle."""
        ...


class StepContext:
    """The running step, as its own code sees it: see ``current_step()``."""

    __slots__ = ("__weakref__", "_connection", "_executor", "attempt", "progress")

    def __init__(self, executor: StepExecutor, attempt: int, progress: Any) -> None:
        self.attempt = attempt
        """1 for the first attempt, and one more for each retry, also after a crash between two attempts."""
        self.progress = progress
        """The progress that an earlier attempt last passed to ``heartbeat``, or ``None``."""
        self._executor = executor
        self._connection: Any = None

    @property
    def name(self) -> str:
        """The step's name."""
        return self._executor.step.name

    @property
    def run_id(self) -> str:
        """The id of its run."""
        return self._executor.run.id

    @property
    def workflow(self) -> str:
        """The name of its run's workflow."""
        return self._executor.run.workflow

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

    @property
    def idempotency_key(self) -> str:
        """Stable over attempts, crashes, and replays of this step: pass it to the services that you call."""
        return self._executor.idempotency_key

    def heartbeat(self, progress: Any = None) -> None:
        """Save ``progress`` for the next attempt, in case this one fails or its process dies.

        May be called from any thread, as often as you like: it is written in the background at most ten times a second.
        Raises ``FenceLost`` or ``asyncio.CancelledError`` in a step that should stop. A transactional step has no
        ``progress``, because nothing of a failed attempt is kept.
        """
        self._executor.heartbeat(self, progress)

    async def save_progress(self, progress: Any) -> None:
        """Like ``heartbeat``, but returns when ``progress`` is durable.

        For an async step that is about to do something, and could not tell after a crash whether it has.
        """
        await self._executor.save_progress(self, progress)

    def report_usage(
        self,
        model: str,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        cost: Decimal | float | None = None,
    ) -> None:
        """Report a model call that the step's own code has made: it counts in the usage and the budget of the run.

        May be called several times; the sum is recorded with the step's outcome, also if the step fails. Calls in an
        attempt that is repeated count as well.

        Args:
            model: the model, as in ``"openai:gpt-4o"``.
            input_tokens: all tokens that were sent, with the cached ones.
            output_tokens: all tokens of the answer.
            cached_tokens: the sent tokens that the provider had in its cache.
            cost: dollars; default: the tokens at the model's known price.
        """
        counts = TokenCounts(input_tokens, output_tokens, cached_tokens, cost=cost)
        for name, count in vars(counts).items():
            if count is not None and count < 0:
                raise UsageError(f"report_usage: {name}={count} is negative")
        usage = make_usage(model, counts)
        earlier = self._executor.reported_usage
        self._executor.reported_usage = ModelUsage(usage if earlier is None else earlier.usage + usage, model)

    def publish_text(self, text: str) -> None:
        """Publish a piece of text to the followers of the run, as a "text" event; from any thread.

        It is sent in the background, a few times a second, and dropped when the step has its outcome.
        """
        self._executor.publish_text(self, text)


current_context: contextvars.ContextVar[StepContext] = contextvars.ContextVar("holdfast_step")


def get_step_executor() -> StepExecutor:
    """The executor of the running step. Only for code that runs in a step."""
    return current_context.get()._executor  # pyright: ignore[reportPrivateUsage]


def find_step_executor() -> StepExecutor | None:
    """The executor of the running step; ``None`` outside of a step."""
    return None if current_context.get(None) is None else get_step_executor()


def set_connection(context: StepContext, connection: Any) -> None:
    """Give an attempt the connection of its transaction, or (``None``) take it back."""
    context._connection = connection  # pyright: ignore[reportPrivateUsage]

"""Commands that workflow code issues, and their outcomes."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.failure_origin import FailureOrigin
from holdfast.core.loop import RunLoop
from holdfast.core.records import Record, RecordKind, make_constructor
from holdfast.core.run_tasks import RunFuture, get_current_task

if TYPE_CHECKING:
    from holdfast.core.execution import Execution

UNDECODED = object()
"""The value of a delivered outcome that has not been decoded yet."""


class Outcome(NamedTuple):
    """The result of a command: the record, and its value if it is decoded already."""

    record: Record
    value: Any
    command_count: int
    """How many commands had been issued when the record was delivered."""
    timer_count: int
    """How many timers had been set by then."""

    @property
    def origin(self) -> FailureOrigin:
        """The origin of an exception that the workflow sees because of this outcome."""
        return FailureOrigin(self.record.seq, self.command_count, self.timer_count)


make_outcome = make_constructor(Outcome)
_init_future = asyncio.Future[Outcome].__init__  # each step makes a command: one call instead of two


class Command(RunFuture[Outcome]):
    """Something that the workflow has issued and waits for: the future of its outcome.

    Cancelling it withdraws it at once, in the same turn.
    """

    __slots__ = ("_execution", "call", "context", "kind", "name", "position", "task")

    def __init__(
        self, loop: RunLoop, execution: Execution, kind: RecordKind, position: int, name: str, call: Any
    ) -> None:
        self.number = loop.last_number = loop.last_number + 1
        _init_future(self, loop=loop)
        self._execution = execution
        self.kind = kind
        self.position = position
        self.name = name
        self.call = call
        """What the engine needs to execute it; opaque here."""
        # References that lead back to the command are kept only while it is open: otherwise only the garbage collector
        # would free it, with the arguments and the output of its step.
        self.context: contextvars.Context | None = contextvars.copy_context()
        """The caller's context variables."""
        self.task = get_current_task(loop)
        """The waiting task. If it were kept longer, an exception that no code has seen would never be reported."""

    def close(self) -> None:
        """The command is no longer open."""
        self.context = self.task = None

    def cancel(self, msg: Any | None = None) -> bool:
        """Withdraw the command."""
        if not self.done():
            self._execution.withdraw(self)
        return super().cancel(msg)

    def __repr__(self) -> str:
        return f"<{self.kind.label} {self.name!r} #{self.position + 1}>"

"""Commands that workflow code issues, and their outcomes."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.failure_origin import FailureOrigin
from holdfast.core.loop import RunFuture, RunLoop, get_current_task
from holdfast.core.records import Record, RecordKind

if TYPE_CHECKING:
    from holdfast.core.execution import Execution

UNDECODED = object()
"""The value of a delivered outcome that has not been decoded yet."""


class Outcome(NamedTuple):
    """The result of a command's future: the record, and its value if it is decoded already."""

    record: Record
    value: Any
    origin: FailureOrigin


class Command:
    """Something that the workflow has issued and waits for."""

    __slots__ = ("call", "context", "future", "kind", "name", "position", "task")

    def __init__(self, loop: RunLoop, kind: RecordKind, position: int, name: str, call: Any) -> None:
        self.kind = kind
        self.position = position
        self.name = name
        self.call = call
        """What the engine needs to execute it; opaque here."""
        # References that lead back to the command are kept only while it is open: otherwise only the garbage collector
        # would free it, with the arguments and the output of its step.
        self.context: contextvars.Context | None = contextvars.copy_context()
        """The caller's context variables."""
        self.future: CommandFuture | None = None
        self.task = get_current_task(loop)
        """The waiting task. If it were kept longer, an exception that no code has seen would never be reported."""

    def close(self) -> CommandFuture | None:
        """Close the command, and return the future of its outcome."""
        future, self.future = self.future, None
        self.context = self.task = None
        return future

    def __repr__(self) -> str:
        return f"<{self.kind.label} {self.name!r} #{self.position + 1}>"


class CommandFuture(RunFuture[Outcome]):
    """The future of a command's outcome. Cancelling it withdraws the command at once, in the same turn."""

    __slots__ = ("_command", "_execution")

    def __init__(self, loop: RunLoop, execution: Execution, command: Command) -> None:
        self._execution = execution
        self._command = command
        super().__init__(loop)

    def cancel(self, msg: Any | None = None) -> bool:
        """Withdraw the command."""
        if not self.done():
            self._execution.withdraw(self._command)
        return super().cancel(msg)

"""What the runs and the steps of one engine share in its process: the code, the settings, and who is at work on what.

Workflow code runs in threads of Temporal's workers, steps on the event loop of the program. Here they meet: a run puts
down the command that it has begun, and the activity that is to carry it out, if it comes to the same process, picks it
up, arguments and all. Whatever is put down here can be made again from the history (see ``rebuilt_runs``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.codec import DEFAULT_MAX_VALUE_BYTES
from holdfast.core.commands import Command
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import UsageError
from holdfast.run_log import RunLog
from holdfast.stores.operations import Run
from holdfast.stores.served_versions import make_served_name
from holdfast.stores.temporal.run_memo import BudgetOwner


@dataclass(frozen=True, slots=True)
class TemporalSettings:
    """How the engine uses Temporal."""

    heartbeat_timeout_s: float = 5.0
    """Seconds without a heartbeat after which an activity is taken to be lost with its worker."""
    max_value: int = DEFAULT_MAX_VALUE_BYTES
    continue_as_new_after: int | None = None
    """Events in its history after which a run continues as new, if Temporal does not suggest it before."""


class StartedCommand(NamedTuple):
    """A command that has been begun."""

    command: Command
    run: Run
    budgets: tuple[BudgetOwner, ...] = ()
    """Those that the run is under, the nearest first."""


@dataclass
class EngineContext:
    """Shared by all runs and steps of an engine."""

    definitions: Mapping[str, WorkflowDefinition]
    settings: TemporalSettings
    serve_task_queue: Callable[[str], None] = lambda _: None
    """A run was started in this task queue; called from any thread."""
    check_no_queue_limits: Callable[[str, str], None] = lambda _, __: None
    """Raises ``UsageError`` if a queue has limits, which nobody would keep; the second text says what is in it."""
    run_log: RunLog = field(default_factory=lambda: RunLog(is_encrypted=True))
    _commands: dict[str, dict[int, StartedCommand]] = field(default_factory=dict[str, dict[int, StartedCommand]])
    _running_steps: dict[tuple[str, int], Callable[[], None]] = field(
        default_factory=dict[tuple[str, int], Callable[[], None]]
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get_definition(self, workflow: str, version: str) -> WorkflowDefinition:
        """The code of a workflow."""
        found = self.definitions.get(make_served_name(workflow, version))
        if found is None:
            known = ", ".join(self.definitions) or "none"
            raise UsageError(
                f"a run of workflow {make_served_name(workflow, version)!r} has come to a worker that has no such "
                "workflow "
                f"(known: {known}). It goes on when a worker that has it polls its task queue."
            )
        return found

    # Commands, by Temporal's run id of their execution

    def add_command(self, execution_id: str, started_command: StartedCommand) -> None:
        """A run has begun this command."""
        with self._lock:
            self._commands.setdefault(execution_id, {})[started_command.command.position] = started_command

    def find_command(self, execution_id: str, position: int) -> StartedCommand | None:
        """The command at this position, if its run is in memory here."""
        with self._lock:
            return self._commands.get(execution_id, {}).get(position)

    def remove_commands(self, execution_id: str, position: int | None = None) -> None:
        """A command (or, without a position, a whole run) is over, or leaves memory."""
        with self._lock:
            if position is None:
                self._commands.pop(execution_id, None)
            elif (known := self._commands.get(execution_id)) is not None:
                known.pop(position, None)
                if not known:
                    del self._commands[execution_id]

    # Steps at work

    def add_running_step(self, execution_id: str, position: int, stop: Callable[[], None]) -> None:
        """A step is at work here; ``stop_step`` tells it that nobody wants its outcome, from any thread."""
        with self._lock:
            self._running_steps[execution_id, position] = stop

    def remove_running_step(self, execution_id: str, position: int) -> None:
        """It is not any more."""
        with self._lock:
            self._running_steps.pop((execution_id, position), None)

    def stop_step(self, execution_id: str, position: int) -> None:
        """Nobody wants the outcome of a step: tell it at once, if it is at work here. Else Temporal does, in time."""
        with self._lock:
            stop = self._running_steps.get((execution_id, position))
        if stop is not None:
            stop()

"""What the runs and steps of one engine share in its process: the workflows, the settings, commands, and running steps.

Workflow code runs in threads of Temporal's workers, steps on the program's event loop. Here they meet: a run adds the
command that it has started, and its activity, if it is delivered to the same process, finds it here with its arguments.
Everything here can be rebuilt from the history (see ``rebuilt_runs``).
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
from holdfast.telemetry.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class TemporalSettings:
    """The settings of an engine on Temporal."""

    heartbeat_timeout_s: float = 5.0
    """The time without a heartbeat after which Temporal gives an activity to another worker."""
    max_value: int = DEFAULT_MAX_VALUE_BYTES
    continue_as_new_after: int | None = None
    """Events in its history after which a run continues as new, if Temporal does not suggest it before."""


class StartedCommand(NamedTuple):
    """A command that a run has started."""

    command: Command
    run: Run
    budgets: tuple[BudgetOwner, ...] = ()
    """The budgets that apply to the run, the nearest first."""


@dataclass
class EngineContext:
    """Shared by all runs and steps of an engine."""

    definitions: Mapping[str, WorkflowDefinition]
    settings: TemporalSettings
    serve_task_queue: Callable[[str], None] = lambda _: None
    """Called from any thread when a run was started in this task queue."""
    check_no_queue_limits: Callable[[str, str], None] = lambda _, __: None
    """Raises ``UsageError`` if a queue has limits, which Temporal cannot enforce; the second text is the subject."""
    run_log: RunLog = field(default_factory=lambda: RunLog(is_encrypted=True))
    telemetry: Telemetry | None = None
    _commands: dict[str, dict[int, StartedCommand]] = field(default_factory=dict[str, dict[int, StartedCommand]])
    _running_steps: dict[tuple[str, int], Callable[[], None]] = field(
        default_factory=dict[tuple[str, int], Callable[[], None]]
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get_definition(self, workflow: str, version: str) -> WorkflowDefinition:
        """The definition of a workflow. Raises ``UsageError``."""
        name = make_served_name(workflow, version)
        definition = self.definitions.get(name)
        if definition is None:
            known = ", ".join(self.definitions) or "none"
            raise UsageError(
                f"a run of workflow {name!r} has come to a worker that has no such workflow (known: {known}). It goes "
                f"on when a worker that has it polls its task queue."
            )
        return definition

    # Commands, by Temporal's run id of their execution

    def add_command(self, execution_id: str, started_command: StartedCommand) -> None:
        """Add a command that a run has started."""
        with self._lock:
            self._commands.setdefault(execution_id, {})[started_command.command.position] = started_command

    def find_command(self, execution_id: str, position: int) -> StartedCommand | None:
        """The command at this position, if its run is in memory here."""
        with self._lock:
            return self._commands.get(execution_id, {}).get(position)

    def remove_commands(self, execution_id: str, position: int | None = None) -> None:
        """Remove a command (or, without a position, all commands of a run) that has ended or leaves memory."""
        with self._lock:
            if position is None:
                self._commands.pop(execution_id, None)
            elif (commands := self._commands.get(execution_id)) is not None:
                commands.pop(position, None)
                if not commands:
                    del self._commands[execution_id]

    # Running steps

    def add_running_step(self, execution_id: str, position: int, stop: Callable[[], None]) -> None:
        """Add a running step; ``stop_step`` calls ``stop`` from any thread."""
        with self._lock:
            self._running_steps[execution_id, position] = stop

    def remove_running_step(self, execution_id: str, position: int) -> None:
        """Remove a step that does not run any more."""
        with self._lock:
            self._running_steps.pop((execution_id, position), None)

    def stop_step(self, execution_id: str, position: int) -> None:
        """Stop a step at once, if it runs in this process. Otherwise it learns from Temporal that it is cancelled."""
        with self._lock:
            stop = self._running_steps.get((execution_id, position))
        if stop is not None:
            stop()

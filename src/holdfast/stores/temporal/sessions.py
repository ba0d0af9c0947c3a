"""Sessions of runs in Temporal: which run came before another one.

An entity workflow holds the order of the runs in a session (``entity_workflows``). A client that starts a run tells it
so, and each run asks in its first step which run came before it. A run that the entity does not know yet becomes the
last one when it asks. The answer is recorded, and shown in the run's memo (``Run.previous_run``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client

from holdfast.stores.operations import NewRun, Run
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.entity_workflows import EntityWorkflow, signal_entity, update_entity

MAX_REMEMBERED_RUNS = 1000
"""How many of a session's newest runs it remembers: another attempt of a step may ask again."""


@dataclass(slots=True)
class SessionOrder:
    """The runs of a session, in order."""

    newest: str = ""
    previous_runs: dict[str, str] = field(default_factory=dict[str, str])
    """The run before each of the newer ones."""

    def join(self, run_id: str) -> str:
        """Append a run unless it has joined before. Returns the run before it; ``""`` if it is the first."""
        if run_id not in self.previous_runs:
            self.previous_runs[run_id], self.newest = self.newest, run_id
            while len(self.previous_runs) > MAX_REMEMBERED_RUNS:
                del self.previous_runs[next(iter(self.previous_runs))]
        return self.previous_runs[run_id]

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        return {"newest": self.newest, "previous_runs": self.previous_runs}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SessionOrder:
        """Read the stored form."""
        return cls(data["newest"], dict(data["previous_runs"]))


def _get_session_entity(workflow: str, session: str) -> EntityWorkflow:
    return EntityWorkflow(
        identifiers.SESSION_TYPE, identifiers.format_session_id(workflow, session), SessionOrder().to_json()
    )


async def note_started(client: Client, new: NewRun) -> None:
    """Append a run to its session, if it has one, when it starts."""
    if new.session:
        await signal_entity(client, _get_session_entity(new.workflow, new.session), identifiers.JOINED_SIGNAL, new.id)


async def find_previous_run(client: Client, run: Run) -> str:
    """The run before this one in its session; ``""`` if it is the first."""
    return await update_entity(client, _get_session_entity(run.workflow, run.session), identifiers.JOIN_UPDATE, run.id)

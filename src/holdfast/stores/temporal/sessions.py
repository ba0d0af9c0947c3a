"""Sessions of runs that Temporal keeps: which run came before another one.

The runs of a session have an order, and that has a keeper (``entity_workflows``). It hears of a run when a client has
started it; and each run asks, in its first step, which one came before it. A run that nobody has told of comes last
when it asks. What it was answered is recorded, and shown in its memo (``Run.previous_run``).
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
"""Runs of a session of which it is known that they have joined: an attempt of a step may ask again."""


@dataclass(slots=True)
class SessionOrder:
    """The runs of a session, in order."""

    newest: str = ""
    previous_runs: dict[str, str] = field(default_factory=dict[str, str])
    """The run before each of the newer ones."""

    def join(self, run_id: str) -> str:
        """Put a run behind all others, unless it has its place: which one comes before it, ``""`` for none."""
        if run_id not in self.previous_runs:
            self.previous_runs[run_id], self.newest = self.newest, run_id
            while len(self.previous_runs) > MAX_REMEMBERED_RUNS:
                del self.previous_runs[next(iter(self.previous_runs))]
        return self.previous_runs[run_id]

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {"newest": self.newest, "before": self.previous_runs}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SessionOrder:
        """The same, read back."""
        return cls(data["newest"], dict(data["before"]))


def _get_session_entity(workflow: str, session: str) -> EntityWorkflow:
    return EntityWorkflow(
        identifiers.SESSION_TYPE, identifiers.format_session_id(workflow, session), SessionOrder().to_json()
    )


async def note_started(client: Client, new: NewRun) -> None:
    """Let a run have its place in its session, if it is in one, from when it was started."""
    if new.session:
        await signal_entity(client, _get_session_entity(new.workflow, new.session), identifiers.JOINED_SIGNAL, new.id)


async def find_previous_run(client: Client, run: Run) -> str:
    """The run before this one in its session; ``""``: it is the first."""
    return await update_entity(client, _get_session_entity(run.workflow, run.session), identifiers.JOIN_UPDATE, run.id)

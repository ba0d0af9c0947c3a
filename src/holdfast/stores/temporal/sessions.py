"""Sessions of runs that Temporal keeps: which run came before another one.

The runs of a session have an order, and that has a keeper (``entity_workflows``). It hears of a run when a client has
started it; and each run asks, in its first step, which one came before it. A run that nobody has told of comes last
when it asks. What it was answered is recorded, and shown in its memo (``Run.previous``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client

from holdfast.stores.operations import NewRun, Run
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.entity_workflows import Keeper, ask, tell

REMEMBERED = 1000
"""Runs of a session of which it is known that they have joined: an attempt of a step may ask again."""


@dataclass(slots=True)
class SessionOrder:
    """The runs of a session, in order."""

    newest: str = ""
    before: dict[str, str] = field(default_factory=dict[str, str])
    """The run before each of the newer ones."""

    def join(self, run_id: str) -> str:
        """Put a run behind all others, unless it has its place: which one comes before it, ``""`` for none."""
        if run_id not in self.before:
            self.before[run_id], self.newest = self.newest, run_id
            while len(self.before) > REMEMBERED:
                del self.before[next(iter(self.before))]
        return self.before[run_id]

    def kept(self) -> dict[str, Any]:
        """As JSON."""
        return {"newest": self.newest, "before": self.before}

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> SessionOrder:
        """The same, read back."""
        return cls(kept["newest"], dict(kept["before"]))


def _keeper(workflow: str, session: str) -> Keeper:
    return Keeper(identifiers.SESSION, identifiers.session_id(workflow, session), SessionOrder().kept())


async def note_started(client: Client, new: NewRun) -> None:
    """Let a run have its place in its session, if it is in one, from when it was started."""
    if new.session:
        await tell(client, _keeper(new.workflow, new.session), identifiers.JOINED, new.id)


async def run_before(client: Client, run: Run) -> str:
    """The run before this one in its session; ``""``: it is the first."""
    return await ask(client, _keeper(run.workflow, run.session), identifiers.JOIN, run.id)

"""``durable``: the one line that makes a crew of CrewAI survive the process."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from crewai import Crew

from holdfast.admission.durations import Duration
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.core.states import Effect
from holdfast.errors import UsageError
from holdfast.integrations.crewai.crew_runs import make_durable_crew

C = TypeVar("C", bound=Crew)


def durable(
    crew: C,
    *,
    effects: Mapping[str, Effect | str] | None = None,
    name: str | None = None,
    id: str | None = None,
    queue: str | Queue = "default",
    timeout: Duration | None = None,
    tags: Collection[str] = (),
    budget: Budget | None = None,
) -> C:
    """Make a crew durable. Returns the same crew: call it as before.

    Args:
        crew: the crew.
        effects: what its tools do to the world, by their names: ``"read"``, ``"idempotent"`` (the default), or
            ``"once"`` for a tool that must not run again if its process died while it ran.
        name: the name of its program (default: the crew's name).
        id: a template for the ids of its runs, such as ``"research-{topic}"``; its fields are the crew's inputs.
            Starting a run with an existing id joins that run.
        queue: the queue that its runs wait in.
        timeout: seconds after its start at which a run that has not ended fails.
        tags: labels to list its runs by.
        budget: what the model calls of a run may use.

    ``name`` and all that follow are for kickoffs outside of programs, which are runs of their own.
    """
    if not isinstance(crew, Crew):  # pyright: ignore[reportUnnecessaryIsInstance]
        given: Any = crew
        raise UsageError(
            f"durable() takes a Crew of CrewAI, not an object of type {type(given).__name__}. Flows, agents, and "
            "models need no durable(): call them in a @program, where their calls are recorded"
        )
    make_durable_crew(crew, effects or {}, name, id, queue, timeout, tags, budget)
    return crew

"""Whether agents and workflows are served, told by their workers' heartbeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from holdfast.core.states import RunState
from holdfast.services.input_validation import read_schema
from holdfast.services.stalls import is_alive
from holdfast.services.timestamps import moment
from holdfast.stores.contract import Store, Worker, WorkflowSpec
from holdfast.stores.served_versions import announced, served_name, versions_served, why_unserved

MOST_ENDED = 2000
"""So many runs of a workflow that have ended in the same way are counted, and no more: there may be millions."""


class HealthState(StrEnum):
    """How it is with an agent."""

    SERVING = "serving"
    """A worker that serves it has sent a heartbeat within its lease."""
    SILENT = "silent"
    """Workers that served it have fallen silent: they are dead, cut off or stand still."""
    UNSERVED = "unserved"
    """No worker serves it."""
    OFF = "off"
    """It is switched off: see ``Client.switch_off``."""


@dataclass(frozen=True, slots=True)
class UnservedRuns:
    """Unfinished runs that nobody takes up."""

    runs: int
    fact: str
    """Why."""
    remedy: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class Health:
    """How it is with one agent, or one workflow."""

    name: str
    is_agent: bool
    state: HealthState
    workers: int
    """How many live workers serve it."""
    beat_at: datetime | None
    """The newest heartbeat of those, or of the ones that have fallen silent."""
    off_since: datetime | None
    runs: Mapping[RunState, int]
    """How many runs it has in each state. Of those that have ended, no more than ``MOST_ENDED`` are counted."""
    versions: tuple[str, ...] = ()
    """The versions that live workers serve, without that of runs that have none."""
    more: tuple[RunState, ...] = ()
    """The states in which it may have more runs than were counted."""
    parameters: tuple[str, ...] = ()
    """What its newest version takes, by name."""
    inputs_schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """A JSON schema of that; empty if no worker has announced one."""
    unserved: tuple[UnservedRuns, ...] = ()
    """Why unfinished runs of it, or of some versions of it, are taken up by nobody; nothing while it is off."""
    off_by: str = ""
    """Who switched it off."""
    off_reason: str = ""


@dataclass(frozen=True, slots=True)
class Switch:
    """A workflow or an agent that is switched off."""

    name: str
    since: datetime
    by: str = ""
    """Who switched it off; ``policy`` for a policy."""
    reason: str = ""


async def read_health(store: Store) -> list[Health]:
    """The health of all that was ever announced, has runs or is switched off, by name."""
    specs, workers, off = await store.specs(), await store.workers(), await store.switched_off()
    counts, now = await store.count_runs(MOST_ENDED), store.now()
    alive = [worker for worker in workers if is_alive(worker, now)]
    names = {*(spec.name for spec in specs.values()), *(name for name, _ in counts), *off}
    # Versions stand in no index: runs are told apart by them only where that can matter.
    begun = {name for name, state in counts if not state.is_terminal}
    left = [name for name in begun - set(off) if not _is_served(announced(name, specs), alive)]
    unfinished: Mapping[tuple[str, str], int] = await store.count_unfinished(left) if left else {}
    found: list[Health] = []
    for name in sorted(names):
        versions = announced(name, specs)
        able = [worker for worker in workers if worker.state == "live" and _serves(worker, versions)]
        living = [worker for worker in able if worker in alive]
        state = HealthState.SERVING if living else HealthState.SILENT if able else HealthState.UNSERVED
        beat = max((worker.beat_at for worker in living or able), default=None)
        by_delivery = any(spec.by_delivery for spec in versions)
        waiting = {version: count for (workflow, version), count in unfinished.items() if workflow == name}
        found.append(
            Health(
                name=name,
                is_agent=any(spec.is_agent for spec in versions[:1]),
                state=HealthState.OFF if name in off else state,
                workers=len(living),
                beat_at=moment(beat),
                off_since=moment(off[name].since) if name in off else None,
                off_by=off[name].by if name in off else "",
                off_reason=off[name].reason if name in off else "",
                runs={kind: count for kind in RunState if (count := counts.get((name, kind), 0))},
                more=tuple(kind for kind in RunState if kind.is_terminal and counts.get((name, kind), 0) >= MOST_ENDED),
                parameters=versions[0].parameters if versions else (),
                inputs_schema=read_schema(versions[0].inputs_schema) if versions else {},
                versions=tuple(version for version in versions_served(name, living) if version),
                unserved=() if name in off else _unserved(name, waiting, alive, by_delivery=by_delivery),
            )
        )
    return found


def _is_served(versions: Sequence[WorkflowSpec], alive: Sequence[Worker]) -> bool:
    """Whether somebody takes up the runs of every version that was announced."""
    return bool(versions) and all(why_unserved(one.name, one.version, None, alive) is None for one in versions)


def _unserved(
    name: str, waiting: Mapping[str, int], alive: Sequence[Worker], *, by_delivery: bool
) -> tuple[UnservedRuns, ...]:
    """By the versions of what waits."""
    left: Counter[tuple[str, str]] = Counter()
    for version, count in waiting.items():
        why = why_unserved(name, version, None, alive)
        if why is not None and by_delivery:
            left[f"nobody listens to {name!r}", "start the program that does"] += count
        elif why is not None:
            left[why.fact, why.remedy] += count
    return tuple(UnservedRuns(count, fact, remedy) for (fact, remedy), count in sorted(left.items()))


def _serves(worker: Worker, versions: Sequence[WorkflowSpec]) -> bool:
    """Whether a worker takes up runs of one of these versions of a workflow, from the queue that they are put into."""
    return any(
        served_name(spec.name, spec.version) in worker.workflows
        and (worker.queues is None or spec.queue in worker.queues)
        for spec in versions
    )

"""Whether agents and workflows are served, told by their workers' heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from holdfast.core.states import RunState
from holdfast.stores.contract import Store, Worker, WorkflowSpec
from holdfast.stores.serving import announced, served_name, versions_served


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
    """How many runs it has in each state."""
    versions: tuple[str, ...] = ()
    """The versions that live workers serve, without that of runs that have none."""


async def read_health(store: Store, is_alive: Callable[[Worker, float], bool] | None = None) -> list[Health]:
    """The health of all that was ever announced, by name.

    ``is_alive`` may know more of a worker than its lease tells.
    """
    alive = is_alive or _has_lease
    specs, workers, off = await store.specs(), await store.workers(), await store.switched_off()
    counts, now = await store.count_runs(), store.now()
    found: list[Health] = []
    for name in sorted({spec.name for spec in specs.values()}):
        versions = announced(name, specs)
        able = [worker for worker in workers if worker.state == "live" and _serves(worker, versions)]
        living = [worker for worker in able if alive(worker, now)]
        state = HealthState.SERVING if living else HealthState.SILENT if able else HealthState.UNSERVED
        beat = max((worker.beat_at for worker in living or able), default=None)
        found.append(
            Health(
                name=name,
                is_agent=versions[0].is_agent,
                state=HealthState.OFF if name in off else state,
                workers=len(living),
                beat_at=_time(beat),
                off_since=_time(off.get(name)),
                runs={kind: count for kind in RunState if (count := counts.get((name, kind), 0))},
                versions=tuple(version for version in versions_served(name, living) if version),
            )
        )
    return found


def _has_lease(worker: Worker, now: float) -> bool:
    return worker.lease_until >= now


def _serves(worker: Worker, versions: Sequence[WorkflowSpec]) -> bool:
    """Whether a worker takes up runs of one of these versions of a workflow, from the queue that they are put into."""
    return any(
        served_name(spec.name, spec.version) in worker.workflows
        and (worker.queues is None or spec.queue in worker.queues)
        for spec in versions
    )


def _time(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)

"""Whether agents and workflows are served, told by their workers' heartbeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from holdfast.core.states import RunState
from holdfast.services.input_validation import parse_schema
from holdfast.services.json_form import UtcDatetime
from holdfast.services.stalls import is_alive
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.served_versions import (
    explain_unserved,
    list_announced_specs,
    list_served_versions,
    make_served_name,
)
from holdfast.stores.workers import Worker

MAX_COUNTED_RUNS = 2000
"""So many runs of a workflow that have ended in the same way are counted, and no more: there may be millions."""


class HealthState(StrEnum):
    """How it is with an agent."""

    SERVING = "serving"
    """A worker that serves it has sent a heartbeat within its lease."""
    SILENT = "silent"
    """Workers that served it have fallen silent: they are dead, cut off or stand still."""
    UNSERVED = "unserved"
    """No worker serves it."""
    DISABLED = "disabled"
    """It is disabled: see ``Client.disable``."""


@dataclass(frozen=True, slots=True)
class UnservedRuns:
    """Unfinished runs that nobody takes up."""

    run_count: int
    reason: str
    """Why."""
    remedy: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class Health:
    """How it is with one agent, or one workflow."""

    name: str
    is_agent: bool
    state: HealthState
    worker_count: int
    """How many live workers serve it."""
    heartbeat_at: UtcDatetime | None
    """The newest heartbeat of those, or of the ones that have fallen silent."""
    disabled_at: UtcDatetime | None
    run_counts: Mapping[RunState, int]
    """How many runs it has in each state. Of those that have ended, no more than ``MAX_COUNTED_RUNS`` are counted."""
    versions: tuple[str, ...] = ()
    """The versions that live workers serve, without that of runs that have none."""
    capped_states: tuple[RunState, ...] = ()
    """The states in which it may have more runs than were counted."""
    parameters: tuple[str, ...] = ()
    """What its newest version takes, by name."""
    inputs_schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """A JSON schema of that; empty if no worker has announced one."""
    unserved_runs: tuple[UnservedRuns, ...] = ()
    """Why unfinished runs of it, or of some versions of it, are taken up by nobody; nothing while it is off."""
    disabled_by: str = ""
    """Who disabled it."""
    disabled_reason: str = ""


@dataclass(frozen=True, slots=True)
class DisabledWorkflow:
    """A workflow or an agent that is disabled."""

    name: str
    since: UtcDatetime
    by: str = ""
    """Who disabled it; ``policy`` for a policy."""
    reason: str = ""


async def read_health(store: Store) -> list[Health]:
    """The health of all that was ever announced, has runs or is disabled, by name."""
    specs, workers, off = (
        await store.get_workflow_specs(),
        await store.list_workers(),
        await store.disabled_workflows.get_all(),
    )
    counts, now = await store.count_runs(MAX_COUNTED_RUNS), store.now()
    alive = [worker for worker in workers if is_alive(worker, now)]
    names = {*(spec.name for spec in specs.values()), *(name for name, _ in counts), *off}
    # Versions stand in no index: runs are told apart by them only where that can matter.
    begun = {name for name, state in counts if not state.is_terminal}
    left = [name for name in begun - set(off) if not _is_served(list_announced_specs(name, specs), alive)]
    unfinished: Mapping[tuple[str, str], int] = await store.count_unfinished_runs(left) if left else {}
    found: list[Health] = []
    for name in sorted(names):
        versions = list_announced_specs(name, specs)
        able = [worker for worker in workers if worker.state == "live" and _can_serve(worker, versions)]
        living = [worker for worker in able if worker in alive]
        state = HealthState.SERVING if living else HealthState.SILENT if able else HealthState.UNSERVED
        beat = max((worker.heartbeat_at for worker in living or able), default=None)
        by_delivery = any(spec.is_address for spec in versions)
        waiting = {version: count for (workflow, version), count in unfinished.items() if workflow == name}
        found.append(
            Health(
                name=name,
                is_agent=any(spec.is_agent for spec in versions[:1]),
                state=HealthState.DISABLED if name in off else state,
                worker_count=len(living),
                heartbeat_at=to_datetime(beat),
                disabled_at=to_datetime(off[name].disabled_at) if name in off else None,
                disabled_by=off[name].actor if name in off else "",
                disabled_reason=off[name].reason if name in off else "",
                run_counts={kind: count for kind in RunState if (count := counts.get((name, kind), 0))},
                capped_states=tuple(
                    kind for kind in RunState if kind.is_terminal and counts.get((name, kind), 0) >= MAX_COUNTED_RUNS
                ),
                parameters=versions[0].parameters if versions else (),
                inputs_schema=parse_schema(versions[0].inputs_schema) if versions else {},
                versions=tuple(version for version in list_served_versions(name, living) if version),
                unserved_runs=() if name in off else _find_unserved_runs(name, waiting, alive, by_delivery=by_delivery),
            )
        )
    return found


def _is_served(versions: Sequence[WorkflowSpec], live_workers: Sequence[Worker]) -> bool:
    """Whether somebody takes up the runs of every version that was announced."""
    return bool(versions) and all(
        explain_unserved(one.name, one.version, None, live_workers) is None for one in versions
    )


def _find_unserved_runs(
    name: str, waiting: Mapping[str, int], live_workers: Sequence[Worker], *, by_delivery: bool
) -> tuple[UnservedRuns, ...]:
    """By the versions of what waits."""
    left: Counter[tuple[str, str]] = Counter()
    for version, count in waiting.items():
        why = explain_unserved(name, version, None, live_workers)
        if why is not None and by_delivery:
            left[f"nobody listens to {name!r}", "start the program that does"] += count
        elif why is not None:
            left[why.fact, why.hint] += count
    return tuple(UnservedRuns(count, fact, remedy) for (fact, remedy), count in sorted(left.items()))


def _can_serve(worker: Worker, versions: Sequence[WorkflowSpec]) -> bool:
    """Whether a worker takes up runs of one of these versions of a workflow, from the queue that they are put into."""
    return any(
        make_served_name(spec.name, spec.version) in worker.workflows
        and (worker.queues is None or spec.queue in worker.queues)
        for spec in versions
    )

"""Whether agents and workflows are served, by the heartbeats of their workers."""

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
"""Maximum count of a workflow's runs in one terminal state: there may be millions."""


class HealthState(StrEnum):
    """Whether an agent or a workflow is served."""

    SERVING = "serving"
    """A worker that serves it sent a heartbeat within its lease."""
    SILENT = "silent"
    """Workers that served it stopped sending heartbeats: they are dead, cut off, or stuck."""
    UNSERVED = "unserved"
    """No worker serves it."""
    DISABLED = "disabled"
    """See ``Client.disable``."""


@dataclass(frozen=True, slots=True)
class UnservedRuns:
    """Unfinished runs that no worker claims."""

    run_count: int
    reason: str
    remedy: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class Health:
    """The health of an agent or a workflow."""

    name: str
    is_agent: bool
    state: HealthState
    worker_count: int
    """Live workers that serve it."""
    heartbeat_at: UtcDatetime | None
    """The newest heartbeat of these workers, or of the silent ones if none is live."""
    disabled_at: UtcDatetime | None
    run_counts: Mapping[RunState, int]
    """The number of its runs by state; for a terminal state, at most ``MAX_COUNTED_RUNS``."""
    versions: tuple[str, ...] = ()
    """The versions that live workers serve, without the empty one."""
    capped_states: tuple[RunState, ...] = ()
    """States in which it may have more runs than were counted."""
    parameters: tuple[str, ...] = ()
    """The parameters of its newest version."""
    inputs_schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Their JSON schema; empty if no worker announced one."""
    unserved_runs: tuple[UnservedRuns, ...] = ()
    """Why no worker claims unfinished runs of some of its versions; empty while it is disabled."""
    disabled_by: str = ""
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
    """The health of every workflow that was ever announced, has runs, or is disabled, by name."""
    specs, workers, off = (
        await store.get_workflow_specs(),
        await store.list_workers(),
        await store.disabled_workflows.get_all(),
    )
    counts, now = await store.count_runs(MAX_COUNTED_RUNS), store.now()
    alive = [worker for worker in workers if is_alive(worker, now)]
    names = {*(spec.name for spec in specs.values()), *(name for name, _ in counts), *off}
    # No index has versions: unfinished runs are counted by version only where a version may be unserved.
    with_unfinished = {name for name, state in counts if not state.is_terminal}
    doubtful = [name for name in with_unfinished - set(off) if not _is_served(list_announced_specs(name, specs), alive)]
    unfinished: Mapping[tuple[str, str], int] = await store.count_unfinished_runs(doubtful) if doubtful else {}
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
    """Whether live workers serve every announced version."""
    return bool(versions) and all(
        explain_unserved(one.name, one.version, None, live_workers) is None for one in versions
    )


def _find_unserved_runs(
    name: str, waiting: Mapping[str, int], live_workers: Sequence[Worker], *, by_delivery: bool
) -> tuple[UnservedRuns, ...]:
    """Unserved runs by reason; ``waiting`` has the number of unfinished runs of each version."""
    left: Counter[tuple[str, str]] = Counter()
    for version, count in waiting.items():
        why = explain_unserved(name, version, None, live_workers)
        if why is not None and by_delivery:
            left[f"nobody listens to {name!r}", "start the program that does"] += count
        elif why is not None:
            left[why.fact, why.hint] += count
    return tuple(UnservedRuns(count, fact, remedy) for (fact, remedy), count in sorted(left.items()))


def _can_serve(worker: Worker, versions: Sequence[WorkflowSpec]) -> bool:
    """Whether a worker serves one of these versions of a workflow, in the queue of its runs."""
    return any(
        make_served_name(spec.name, spec.version) in worker.workflows
        and (worker.queues is None or spec.queue in worker.queues)
        for spec in versions
    )

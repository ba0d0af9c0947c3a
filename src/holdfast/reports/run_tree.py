"""The tree of runs that a run is in: those that started it, one above the other, and all that these have started."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.core.states import RunState
from holdfast.reports.run_usage import load_usage
from holdfast.services.json_form import UsageWithCost, UtcDatetime
from holdfast.services.lookup import find_run
from holdfast.services.stalls import explain_stall, read_environment
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import RunFilter, RunUsage, Store
from holdfast.stores.operations import Run
from holdfast.stores.rules import can_be_parent

MAX_RUNS = 500
"""So many runs of a family are told."""


@dataclass(frozen=True, slots=True)
class RunTreeNode:
    """A run in a tree of runs."""

    id: str
    workflow: str
    state: RunState
    parent: str | None
    forked_from: str | None
    created_at: UtcDatetime
    finished_at: UtcDatetime | None
    usage: UsageWithCost | None
    """What it has used, with those below it; ``None``: nothing."""
    stall_reason: str | None


@dataclass(frozen=True, slots=True)
class RunTree:
    """The tree of runs that a run is in, from its topmost ancestor down."""

    root: str
    items: tuple[RunTreeNode, ...]
    has_more: bool
    """There are runs that are not told."""

    def __iter__(self) -> Iterator[RunTreeNode]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


async def read_run_tree(store: Store, run_id: str, max_runs: int = MAX_RUNS) -> RunTree:
    """The family of a run, level by level, each run behind the one that started it. Raises ``RunNotFound``."""
    run = await find_run(store, run_id)
    line = await _load_lineage(store, run)
    found, more = await _load_descendants(store, line, max_runs)
    around = await read_environment(store, found)
    usages = await load_usage(store, [one.id for one in found])
    members = tuple(_build_node(one, usages[one.id], explain_stall(one, around)) for one in found)
    return RunTree(line[0].id, members, more)


async def _load_lineage(store: Store, run: Run) -> list[Run]:
    """The run and those above it, the topmost one first."""
    line = [run]
    while line[0].parent:
        above = await store.get_run(line[0].parent)
        if above is None or not can_be_parent(
            above.key, line[0].key
        ):  # it was pruned, and its id may be another run's now
            break
        line.insert(0, above)
    return line


async def _load_descendants(store: Store, lineage: list[Run], max_runs: int) -> tuple[list[Run], bool]:
    """All that the topmost run has started, and these have, and so on; and whether there are more.

    Those above the run in question are told in any case, however many others there are beside them.
    """
    kept = {run.id: run for run in lineage}
    found = {lineage[0].id: lineage[0]}
    waiting, more = deque(lineage[:1]), False
    while waiting and not more:
        above = waiting.popleft()
        started = await store.list_runs(RunFilter(parent=above.id), limit=max_runs + 1)
        for run in reversed(started):
            if not can_be_parent(above.key, run.key):
                continue
            if run.id in kept or len(found.keys() | kept.keys()) < max_runs:
                found[run.id] = run
                waiting.append(run)
            else:
                more = True
    return list({**found, **kept}.values()), more


def _build_node(run: Run, usage: RunUsage, stall_reason: str | None) -> RunTreeNode:
    return RunTreeNode(
        id=run.id,
        workflow=run.workflow,
        state=run.state,
        parent=run.parent or None,
        forked_from=run.forked_from or None,
        created_at=to_datetime(run.created_at),
        finished_at=to_datetime(run.finished_at),
        usage=usage.used if usage.used.calls else None,
        stall_reason=stall_reason,
    )

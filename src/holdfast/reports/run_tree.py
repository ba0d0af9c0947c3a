"""The tree of runs that a run belongs to: its ancestors, and all runs that these started."""

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
"""Maximum number of runs in a tree."""


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
    """What it used, with the runs below it; ``None``: nothing."""
    stall_reason: str | None


@dataclass(frozen=True, slots=True)
class RunTree:
    """The tree of runs that a run belongs to, from its topmost ancestor down."""

    root: str
    items: tuple[RunTreeNode, ...]
    has_more: bool
    """There are runs that are not listed."""

    def __iter__(self) -> Iterator[RunTreeNode]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


async def read_run_tree(store: Store, run_id: str, max_runs: int = MAX_RUNS) -> RunTree:
    """The tree of a run, level by level, each run after the one that started it. Raises ``RunNotFound``."""
    lineage = await _load_lineage(store, await find_run(store, run_id))
    runs, has_more = await _load_descendants(store, lineage, max_runs)
    environment = await read_environment(store, runs)
    usages = await load_usage(store, [run.id for run in runs])
    nodes = tuple(_build_node(run, usages[run.id], explain_stall(run, environment)) for run in runs)
    return RunTree(lineage[0].id, nodes, has_more)


async def _load_lineage(store: Store, run: Run) -> list[Run]:
    """The run and its ancestors, the topmost one first."""
    lineage = [run]
    while lineage[0].parent:
        parent = await store.get_run(lineage[0].parent)
        if parent is None or not can_be_parent(parent.key, lineage[0].key):
            break  # it was pruned, and another run may have its id now
        lineage.insert(0, parent)
    return lineage


async def _load_descendants(store: Store, lineage: list[Run], max_runs: int) -> tuple[list[Run], bool]:
    """The topmost run with everything below it, level by level; and whether there are more.

    The lineage is always included, however many other runs there are.
    """
    required = {run.id: run for run in lineage}
    found = {lineage[0].id: lineage[0]}
    unvisited, has_more = deque(lineage[:1]), False
    while unvisited and not has_more:
        parent = unvisited.popleft()
        children = await store.list_runs(RunFilter(parent=parent.id), limit=max_runs + 1)
        for run in reversed(children):
            if not can_be_parent(parent.key, run.key):
                continue
            if run.id in required or len(found.keys() | required.keys()) < max_runs:
                found[run.id] = run
                unvisited.append(run)
            else:
                has_more = True
    return list({**found, **required}.values()), has_more


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

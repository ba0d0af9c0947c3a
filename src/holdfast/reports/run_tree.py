"""The tree of runs that a run is in: those that started it, one above the other, and all that these have started."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from holdfast.admission.usage import Usage
from holdfast.core.states import RunState
from holdfast.reports.run_usage import usage_of
from holdfast.services.lookup import find_run
from holdfast.services.stalls import look_around, why_stalled
from holdfast.services.timestamps import moment
from holdfast.stores.contract import RunFilter, RunUsage, Store
from holdfast.stores.operations import Run
from holdfast.stores.rules import is_above

MOST = 500
"""So many runs of a family are told."""


@dataclass(frozen=True, slots=True)
class Member:
    """A run in a family."""

    id: str
    workflow: str
    state: RunState
    parent: str | None
    forked_from: str | None
    created_at: datetime
    finished_at: datetime | None
    usage: Usage | None
    """What it has used, with those below it; ``None``: nothing."""
    stalled: str | None


@dataclass(frozen=True, slots=True)
class Family:
    """The tree of runs that a run is in, from its topmost ancestor down."""

    root: str
    items: tuple[Member, ...]
    more: bool
    """There are runs that are not told."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


async def read_family(store: Store, run_id: str, most: int = MOST) -> Family:
    """The family of a run, level by level, each run behind the one that started it. Raises ``RunNotFound``."""
    run = await find_run(store, run_id)
    line = await _line(store, run)
    found, more = await _below(store, line, most)
    around = await look_around(store, found)
    usages = await usage_of(store, [one.id for one in found])
    members = tuple(_member(one, usages[one.id], why_stalled(one, around)) for one in found)
    return Family(line[0].id, members, more)


async def _line(store: Store, run: Run) -> list[Run]:
    """The run and those above it, the topmost one first."""
    line = [run]
    while line[0].parent:
        above = await store.get(line[0].parent)
        if above is None or not is_above(above.key, line[0].key):  # it was pruned, and its id may be another run's now
            break
        line.insert(0, above)
    return line


async def _below(store: Store, line: list[Run], most: int) -> tuple[list[Run], bool]:
    """All that the topmost run has started, and these have, and so on; and whether there are more.

    Those above the run in question are told in any case, however many others there are beside them.
    """
    kept = {run.id: run for run in line}
    found = {line[0].id: line[0]}
    waiting, more = deque(line[:1]), False
    while waiting and not more:
        above = waiting.popleft()
        started = await store.list_runs(RunFilter(parent=above.id), limit=most + 1)
        for run in reversed(started):
            if not is_above(above.key, run.key):
                continue
            if run.id in kept or len(found.keys() | kept.keys()) < most:
                found[run.id] = run
                waiting.append(run)
            else:
                more = True
    return list({**found, **kept}.values()), more


def _member(run: Run, told: RunUsage, stalled: str | None) -> Member:
    return Member(
        id=run.id,
        workflow=run.workflow,
        state=run.state,
        parent=run.parent or None,
        forked_from=run.forked_from or None,
        created_at=moment(run.created_at),
        finished_at=moment(run.finished_at),
        usage=told.used if told.used.calls else None,
        stalled=stalled,
    )

"""Dead runs: those whose workers died too often while they held nothing else, and what was in flight."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from holdfast.codec import read_error_info
from holdfast.core.states import RunState
from holdfast.errors import CodecError
from holdfast.services.json_form import UtcDatetime
from holdfast.services.lookup import find_run
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.operations import Run


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step that had begun, and of which nothing was recorded."""

    name: str
    number: int
    """As ``holdfast show`` numbers it."""
    attempt: int
    since: UtcDatetime | None


@dataclass(frozen=True, slots=True)
class DeadRun:
    """A run that nobody takes up any more until a person retries it."""

    id: str
    workflow: str
    since: UtcDatetime
    death_count: int
    """Workers that died while they held nothing but this run, without anything new recorded."""
    worker: str
    """The last of them."""
    reason: str
    in_flight: tuple[StepInFlight, ...]
    """What it was doing. A step that kills its worker within a tenth of a second may not be known."""
    record_count: int
    """How many are in its journal."""
    last_step_name: str
    """The name of the last step that was recorded, or ``""``."""
    parent: str | None


async def list_dead_runs(store: Store, workflow: str | None, limit: int, before: str | None = None) -> list[DeadRun]:
    """Dead runs, those that were created last first. Raises ``RunNotFound`` for a ``before`` that is not there."""
    last = None if before is None else (await find_run(store, before)).key
    where = RunFilter(states=[RunState.DEAD], workflow=workflow)
    found = [await _read_dead_run(store, run) for run in await store.list_runs(where, limit=limit, before_key=last)]
    return [one for one in found if one is not None]


async def _read_dead_run(store: Store, run: Run) -> DeadRun | None:
    # A dead run may have a long journal: no more of it is read than what is told.
    first = await store.get_journal_page(run.id, limit=1, include_large_payloads=False)
    if first is None:
        return None  # it was deleted meanwhile
    newest = max((part.last_seq for part in first.segments), default=-1)
    last = await store.get_journal_page(run.id, newest - 1, 1, include_large_payloads=False) or first
    error = run.error or b""
    try:
        told: Any = json.loads(error)
        worker = str(told.get("worker") or "")
        doing = [(int(s["position"]), str(s["name"]), int(s["attempt"]), float(s["at"])) for s in told["in_flight"]]
    except (ValueError, AttributeError, KeyError, TypeError):  # it was written before that was noted
        worker, doing = "", []
    try:
        reason = read_error_info(error).message
    except CodecError as problem:
        reason = str(problem)
    steps = {step[0]: _make_step_in_flight(*step) for step in doing}
    for position, attempt in first.attempts.items():
        if position not in steps and attempt.outcome is None:
            steps[position] = _make_step_in_flight(position, attempt.name, attempt.attempt, attempt.at)
    return DeadRun(
        id=run.id,
        workflow=run.workflow,
        since=to_datetime(run.finished_at or 0.0),
        death_count=run.delivery_count,
        worker=worker,
        reason=reason,
        in_flight=tuple(step for _, step in sorted(steps.items())),
        record_count=sum(part.record_count for part in first.segments),
        last_step_name=last.records[-1].name if last.records else "",
        parent=run.parent or None,
    )


def _make_step_in_flight(position: int, name: str, attempt: int, at: float) -> StepInFlight:
    return StepInFlight(name, position + 1, attempt, to_datetime(at) if at else None)

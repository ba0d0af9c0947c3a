"""Dead runs: their workers died too often while they held nothing else. And what was in flight."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from holdfast.codec import read_error_info
from holdfast.core.records import RESTORED_POSITION
from holdfast.core.states import RunState
from holdfast.errors import CodecError
from holdfast.services.json_form import UtcDatetime
from holdfast.services.lookup import find_run
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.operations import Run


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step that had started, and has no recorded outcome."""

    name: str
    number: int
    """The number of the step in ``holdfast show``."""
    attempt: int
    since: UtcDatetime | None


@dataclass(frozen=True, slots=True)
class DeadRun:
    """A run that no worker executes until a person retries it."""

    id: str
    workflow: str
    since: UtcDatetime
    death_count: int
    """Number of workers that died while they held only this run, without a new record."""
    worker: str
    """The last of these workers."""
    reason: str
    in_flight: tuple[StepInFlight, ...]
    """The steps in flight. A step that kills its worker within a tenth of a second may be missing."""
    record_count: int
    """Number of records in its journal."""
    last_step_name: str
    """The name of the last step that was recorded, or ``""``."""
    parent: str | None


async def list_dead_runs(store: Store, workflow: str | None, limit: int, before: str | None = None) -> list[DeadRun]:
    """Dead runs, newest first. Raises ``RunNotFound`` if the run ``before`` does not exist."""
    before_key = None if before is None else (await find_run(store, before)).key
    run_filter = RunFilter(states=[RunState.DEAD], workflow=workflow)
    rows = await store.list_runs(run_filter, limit=limit, before_key=before_key)
    dead_runs = [await _read_dead_run(store, run) for run in rows]
    return [dead_run for dead_run in dead_runs if dead_run is not None]


async def _read_dead_run(store: Store, run: Run) -> DeadRun | None:
    # A dead run may have a long journal: only its first and its last record are read.
    first = await store.get_journal_page(run.id, limit=1, include_large_payloads=False)
    if first is None:
        return None  # it was deleted in the meantime
    last_seq = max((segment.last_seq for segment in first.segments), default=-1)
    last = await store.get_journal_page(run.id, last_seq - 1, 1, include_large_payloads=False) or first
    error = run.error or b""
    try:
        details: Any = json.loads(error)
        worker = str(details.get("worker") or "")
        steps = {
            int(step["position"]): _make_step_in_flight(
                int(step["position"]), str(step["name"]), int(step["attempt"]), float(step["at"])
            )
            for step in details["in_flight"]
        }
    except (ValueError, AttributeError, KeyError, TypeError):  # an older version recorded no details
        worker, steps = "", {}
    try:
        reason = read_error_info(error).message
    except CodecError as problem:
        reason = str(problem)
    for position, attempt in first.attempts.items():
        if position not in steps and attempt.outcome is None and position != RESTORED_POSITION:
            steps[position] = _make_step_in_flight(position, attempt.name, attempt.attempt, attempt.at)
    return DeadRun(
        id=run.id,
        workflow=run.workflow,
        since=to_datetime(run.finished_at or 0.0),
        death_count=run.delivery_count,
        worker=worker,
        reason=reason,
        in_flight=tuple(step for _, step in sorted(steps.items())),
        record_count=sum(segment.record_count for segment in first.segments),
        last_step_name=last.records[-1].name if last.records else "",
        parent=run.parent or None,
    )


def _make_step_in_flight(position: int, name: str, attempt: int, at: float) -> StepInFlight:
    return StepInFlight(name, position + 1, attempt, to_datetime(at) if at else None)

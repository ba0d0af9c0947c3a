"""Deleting ended runs in batches: each is a short transaction, and workers can write in between.

If pruning is interrupted, nothing is lost: finished batches stay deleted, and the next call continues from there.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.core.states import TERMINAL_STATES, RunState
from holdfast.errors import UsageError
from holdfast.stores.contract import Store
from holdfast.stores.retention import DEFAULT_STATES, PRUNE_START, PruneCursor, PruneRequest

BATCH_SIZE = 100
"""Runs per batch, with their run trees."""


@dataclass(slots=True)
class PruneReport:
    """What was deleted, or would be."""

    run_count: int = 0
    record_count: int = 0
    blob_count: int = 0
    """Large values that are stored as blobs."""
    size_bytes: int = 0
    """Stored size of the recorded values. A dry run does not count blobs."""
    kept_by_reason: Counter[str] = field(default_factory=Counter[str])
    """The number of matching runs that are kept, by reason."""
    kept_examples: dict[str, str] = field(default_factory=dict[str, str])
    """The reasons for some of these runs, by run id."""
    dry_run: bool = False


def make_prune_request(
    now: float,
    older_than: Duration,
    states: Collection[RunState] = (),
    *,
    workflow: str | None = None,
    keep: int = 0,
    unclaimed: bool = False,
    run_ids: Collection[str] | None = None,
    dry_run: bool = False,
) -> PruneRequest:
    """A request with checked values. Raises ``UsageError``."""
    seconds = duration_to_seconds(older_than, "older_than", may_be_zero=True)
    if keep < 0:
        raise UsageError(f"keep={keep} must be a whole number, not below 0")
    wanted = frozenset(states) or DEFAULT_STATES
    if unfinished := sorted(wanted - TERMINAL_STATES):
        raise UsageError(f"only ended runs are deleted, and runs that are {' or '.join(unfinished)} have not ended")
    ids = None if run_ids is None else tuple(run_ids)
    # The clock of the worker that ended a run may be ahead of ours; "any time" must include those runs.
    before = now - seconds if seconds else math.inf
    return PruneRequest(before, wanted, workflow, keep, unclaimed, ids, dry_run)


async def prune_runs(store: Store, request: PruneRequest, report: PruneReport) -> PruneReport:
    """Delete the runs. The report is updated after each batch."""
    report.dry_run = request.dry_run
    cursor: PruneCursor | None = PRUNE_START
    if not request.dry_run:
        await _sweep(store, report)
    while cursor is not None:
        began = time.monotonic()
        done = await store.retention.prune(request, cursor, BATCH_SIZE)
        report.run_count += len(done.run_ids)
        report.record_count += done.record_count
        report.size_bytes += done.size_bytes
        for run_id, why in done.keep_reasons.items():
            report.kept_by_reason[str(why)] += 1
            if len(report.kept_examples) < BATCH_SIZE:
                report.kept_examples[run_id] = str(why)
        cursor = done.cursor
        if not request.dry_run:
            await asyncio.sleep(time.monotonic() - began)
            if done.run_ids:
                await _sweep(store, report)
    return report


async def _sweep(store: Store, report: PruneReport) -> None:
    while True:
        began = time.monotonic()
        swept = await store.retention.sweep()
        report.record_count += swept.record_count
        report.blob_count += swept.blob_count
        report.size_bytes += swept.size_bytes
        if swept.is_done:
            return
        await asyncio.sleep(time.monotonic() - began)  # leave half of the time to others

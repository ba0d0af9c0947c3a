"""Deleting ended runs, piece by piece: each piece is a short transaction, and workers get their turn in between.

Whoever stops in the middle has lost nothing: what is decided is done, and the next one goes on from there.
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
"""Runs in a piece, and their families."""


@dataclass(slots=True)
class PruneReport:
    """What was deleted, or would be."""

    run_count: int = 0
    record_count: int = 0
    blob_count: int = 0
    """Large values that were kept apart."""
    size_bytes: int = 0
    """Bytes of recorded values, as they were kept. In a dry run, without large values."""
    kept_by_reason: Counter[str] = field(default_factory=Counter[str])
    """How many of those that were to be deleted are kept, by the reason."""
    kept_examples: dict[str, str] = field(default_factory=dict[str, str])
    """The same by id, for some of them."""
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
    """What is to be deleted, checked. Raises ``UsageError``."""
    seconds = duration_to_seconds(older_than, "older_than", may_be_zero=True)
    if keep < 0:
        raise UsageError(f"keep={keep} must be a whole number, not below 0")
    wanted = frozenset(states) or DEFAULT_STATES
    if unfinished := sorted(wanted - TERMINAL_STATES):
        raise UsageError(f"only ended runs are deleted, and runs that are {' or '.join(unfinished)} have not ended")
    ids = None if run_ids is None else tuple(run_ids)
    # Whoever ended a run may have a clock that is ahead of ours: "whenever they ended" is no question of clocks.
    before = now - seconds if seconds else math.inf
    return PruneRequest(before, wanted, workflow, keep, unclaimed, ids, dry_run)


async def prune_runs(store: Store, request: PruneRequest, report: PruneReport) -> PruneReport:
    """Delete them. The report is brought up to date after every piece."""
    report.dry_run = request.dry_run
    place: PruneCursor | None = PRUNE_START
    if not request.dry_run:
        await _sweep(store, report)
    while place is not None:
        began = time.monotonic()
        done = await store.retention.prune(request, place, BATCH_SIZE)
        report.run_count += len(done.run_ids)
        report.record_count += done.record_count
        report.size_bytes += done.size_bytes
        for run_id, why in done.keep_reasons.items():
            report.kept_by_reason[str(why)] += 1
            if len(report.kept_examples) < BATCH_SIZE:
                report.kept_examples[run_id] = str(why)
        place = done.cursor
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
        await asyncio.sleep(time.monotonic() - began)  # half of the time is for others

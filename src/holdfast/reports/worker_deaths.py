"""The worker deaths in the history of a run, found in its journal.

A run also changes its worker when it was parked; then the first new record is what it waited for. The first new record
is a step if its worker died in that step, or if a person reopened the run: then the run had ended, and the fate of its
last worker does not concern it. Only a record that a person settled proves a death by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.core.records import Record, RecordKind
from holdfast.reports.journal_entries import TIMED_KINDS
from holdfast.reports.types import RunWorker
from holdfast.services.settlement import is_outcome_unknown
from holdfast.stores.journal_pages import JournalSegment
from holdfast.stores.workers import Worker

_RECORDS_AFTER_DEATH = 50
"""Number of records after the death of a worker that are read."""
_MAX_CLOCK_SKEW_S = 1.0

RecordReader = Callable[[int, int], Awaitable[Sequence[Record]]]
"""Reads records after a ``seq``, at most a number of them."""


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """A worker died while it executed the run, and another one took the run over."""

    worker: RunWorker
    successor: RunWorker | None
    step_number: int
    """The number of the step that was in flight."""
    replayed_count: int
    """Number of steps that were recorded by then."""
    repeated_count: int
    """Number of steps that had started, so that the successor ran them again."""
    epoch: int
    """The epoch of the successor."""


async def find_worker_deaths(
    segments: Sequence[JournalSegment],
    workers: Mapping[int, Worker],
    run_workers: Sequence[RunWorker],
    reopened_at: Sequence[float],
    read_after: RecordReader,
) -> list[WorkerDeath]:
    """The deaths of workers in the middle of the run's steps, in order.

    Args:
        segments: of the whole journal.
        workers: the rows of the run's workers, by id.
        run_workers: the same workers, as the report shows them.
        reopened_at: when a person reopened the run.
        read_after: reads records of the run.
    """
    run_workers_by_id = {worker.id: worker for worker in run_workers}
    by_epoch: dict[int, list[JournalSegment]] = {}
    for segment in segments:
        by_epoch.setdefault(segment.epoch, []).append(segment)
    claims = [by_epoch[epoch] for epoch in sorted(by_epoch)]
    deaths: list[WorkerDeath] = []
    for number, (previous, claim) in enumerate(pairwise(claims), 1):
        worker, successor = run_workers_by_id.get(previous[0].worker), claim[0].worker
        if worker is None or worker.id not in workers or worker.id == successor:
            continue
        if worker.is_alive or worker.state == "retired":
            continue
        first_seq = min(segment.first_seq for segment in claim)
        records = await read_after(first_seq - 2, _RECORDS_AFTER_DEATH + 1)
        last_before = max((record.at for record in records if record.seq < first_seq), default=0.0)
        # The log of a program's call is written together with its outcome.
        records = [record for record in records if record.seq >= first_seq and record.kind is not RecordKind.CALL]
        if not records or not _is_after_death(records[0], workers[worker.id], last_before, reopened_at):
            continue
        first = records[0]
        step_counts = (
            segment.record_count
            for segments_before in claims[:number]
            for segment in segments_before
            if segment.kind is RecordKind.STEP
        )
        deaths.append(
            WorkerDeath(
                worker,
                run_workers_by_id.get(successor),
                first.position + 1,
                replayed_count=sum(step_counts),
                repeated_count=sum(_is_repeated(record, first) for record in records),
                epoch=claim[0].epoch,
            )
        )
    return deaths


def _is_after_death(first: Record, worker: Worker, last_before: float, reopened_at: Sequence[float]) -> bool:
    """Whether the first record of a claim shows that the worker before it died.

    ``last_before`` is the time of the record before it.
    """
    latest_start = first.started_at + _MAX_CLOCK_SKEW_S
    if first.kind not in TIMED_KINDS or worker.heartbeat_at > latest_start:
        return False
    return first.is_settled or not any(last_before <= at <= latest_start for at in reopened_at)


def _is_repeated(record: Record, first: Record) -> bool:
    """Whether the dead worker had started the step. It started before the first new outcome was known."""
    is_step = record.kind in TIMED_KINDS and record.started_at < first.at
    return is_step and not is_outcome_unknown(record) and not record.is_settled

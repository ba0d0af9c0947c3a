"""The report of a run, read from a store: with the whole journal, or with a page of it and totals of the rest.

Each claim increments the epoch of a run, also when the run was only parked. So a later epoch alone does not mean that a
record was replayed: it counts as replayed once for each later takeover from a worker that had died.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.codec import is_encrypted_value, mask_encrypted_text
from holdfast.core.records import RESTORED_POSITION, Record, RecordKind, Signal
from holdfast.core.states import RunState
from holdfast.errors import BudgetExceeded, UsageError
from holdfast.reports.advice import build_advice
from holdfast.reports.agent_result import is_agent_result
from holdfast.reports.event_offsets import EventCursor
from holdfast.reports.journal_entries import entry_from_record, is_internal
from holdfast.reports.model_replies import decode_budget_exceeded
from holdfast.reports.plans import PLAN_TOOL, Plan, find_plan, plan_from_record
from holdfast.reports.recorded_reply import AGENT_STEPS
from holdfast.reports.recorded_values import decode_for_display, decode_recorded_error
from holdfast.reports.retry_preview import find_rewound_records, load_related_runs, preview_retry
from holdfast.reports.run_info import get_values_size
from holdfast.reports.run_usage import budget_to_json, load_applicable_budgets, load_usage, remaining_to_json
from holdfast.reports.summary import JournalStats, summarize
from holdfast.reports.types import (
    BudgetRefusal,
    BudgetUsage,
    InFlightStep,
    JournalEntry,
    PendingSignal,
    RelatedRun,
    RetryReport,
    RunReport,
    RunWorker,
    SkippedStep,
    UnrecordedResult,
)
from holdfast.reports.worker_deaths import WorkerDeath, find_worker_deaths
from holdfast.services.approvals import decode_readable_rows
from holdfast.services.lookup import make_run_not_found
from holdfast.services.settlement import find_unsettled_steps
from holdfast.services.stalls import (
    find_stall,
    is_alive,
    is_cancelling,
    is_paused,
    is_waiting_for_budget,
    read_environment,
)
from holdfast.services.thread_offload import run_off_loop
from holdfast.services.timestamps import to_datetime
from holdfast.stores.approvals import Approval, ApprovalFilter, is_answer
from holdfast.stores.contract import RunFilter, RunUsage, Store
from holdfast.stores.journal_pages import JournalPage
from holdfast.stores.live_events import REOPENED, SKIPPED
from holdfast.stores.operations import CancelState, LiveEvent, Run
from holdfast.stores.served_versions import make_served_name
from holdfast.stores.workers import Worker

PAGE_SIZE = 500
"""Maximum number of records in a page of a report."""
MAX_LISTED_RUNS = 12
"""Up to this many related runs get a line each; a larger group shares one line."""
MAX_RELATED_RUNS = 20_000
"""Maximum number of runs, started by a run, that a full report reads."""

_BATCH_SIZE = 1000
_TAIL_RECORD_COUNT = 200
"""Number of last records that are searched for the reason why the run waits."""
_AFTER_ALL_LIVE_EVENTS = 2**62
_FORKABLE_KINDS = (RecordKind.STEP, RecordKind.CHILD, RecordKind.SIGNAL, RecordKind.APPROVAL)
"""The kinds of records that ``fork --at`` accepts."""


async def read_report(
    store: Store, run_id: str, after: int = -1, limit: int | None = None, *, brief: bool = False
) -> RunReport:
    """Everything known about a run now, with at most ``limit`` records after ``after``. Raises ``RunNotFound``.

    A ``brief`` report has only the beginning of large values, and of a long list of runs that the run started.
    """
    page = await store.get_journal_page(run_id, after, limit, include_large_payloads=not brief)
    if page is None:
        raise make_run_not_found(store, run_id)
    return await _ReportReader(store, page, after, brief=brief).read_report()


def check_limit(limit: int | None) -> None:
    """Raise ``UsageError`` for a limit that is below 1."""
    if limit is not None and limit < 1:
        raise UsageError(f"limit={limit} must be a whole number, 1 or more, or None for all records")


async def read_entry(store: Store, run_id: str, seq: int) -> JournalEntry | None:
    """One record with its whole value; ``None`` if no record has this ``seq``. Raises ``RunNotFound``."""
    page = await store.get_journal_page(run_id, seq - 1, 1, include_large_payloads=True)
    if page is None:
        raise make_run_not_found(store, run_id)
    record = next((record for record in page.records if record.seq == seq), None)
    return None if record is None else await _ReportReader(store, page, seq - 1).read_entry(record)


def _fields_from_run(run: Run, usage: RunUsage) -> dict[str, Any]:
    """The fields of a report that come from the run's row and its usage."""
    return {
        "id": run.id,
        "workflow": run.workflow,
        "version": run.version or None,
        "state": run.state,
        "queue": run.queue,
        "queue_key": run.queue_key or None,
        "tags": tuple(run.tags),
        "created_at": to_datetime(run.created_at),
        "finished_at": to_datetime(run.finished_at),
        "duration_s": None if run.finished_at is None else round(run.finished_at - run.created_at, 6),
        "waits_for": mask_encrypted_text(run.waits_for) if run.state is RunState.WAITING else None,
        "wake_at": to_datetime(run.wake_at),
        "is_paused": is_paused(run),
        "is_cancelling": is_cancelling(run),
        "parent": run.parent or None,
        "forked_from": run.forked_from or None,
        "usage": usage.used if usage.used.calls else None,
        "error": decode_recorded_error(run.error),
        "python_version": run.python_version,
        "deadline": to_datetime(run.deadline),
        "epoch": run.epoch,
        "delivery_count": run.delivery_count,
        "max_deliveries": run.max_deliveries,
        "claimed_by": run.owner,
        "paused_at": to_datetime(run.paused_at) if is_paused(run) else None,
        "cancel_state": None if run.cancel_state is CancelState.NONE else run.cancel_state.value,
        "inputs": decode_for_display(run.inputs),
        "output": decode_for_display(run.output),
        "output_size": None if run.output is None else len(run.output),
        "budget": budget_to_json(usage),
        "budget_remaining": remaining_to_json(usage),
        "clock_started_at": to_datetime(run.clock_started_at),
        "session": run.session or None,
        "previous_run": run.previous_run or None,
        "is_delivery_run": run.is_delivery,
    }


@dataclass(frozen=True, slots=True)
class _ReportReader:
    """Builds a report from a page of the journal, and reads from the store what else it needs."""

    store: Store
    page: JournalPage
    after_seq: int
    brief: bool = False

    async def read_entry(self, record: Record) -> JournalEntry:
        takeovers: list[int] = []
        if any(segment.epoch > record.epoch for segment in self.page.segments):  # else no worker can have replayed it
            workers = await self._read_workers()
            run_workers = self._build_run_workers(workers, self.store.now())
            reopened_at = _list_reopenings(await self._read_retained_events())
            takeovers = [death.epoch for death in await self._find_worker_deaths(workers, run_workers, reopened_at)]
        return await run_off_loop(len(record.payload or b""), lambda: self._build_entry(record, takeovers))

    async def read_report(self) -> RunReport:
        run, store, attempts = self.page.run, self.store, self.page.attempts
        environment = await read_environment(store, [run])
        workers = await self._read_workers()
        related_runs, has_more_related_runs = await self._read_related_runs()
        usages = await load_usage(store, [run.id, *(related_runs if len(related_runs) <= MAX_LISTED_RUNS else ())])
        budgets = await load_applicable_budgets(store, run)
        approvals = await store.list_approvals(ApprovalFilter(run.id, only_open=False))
        stall = find_stall(run, environment)
        rewound = await self._read_rewound()
        run_workers = self._build_run_workers(workers, environment.now)
        is_agent = await self._is_agent()
        retained_events = await self._read_retained_events()
        reopened_at = _list_reopenings(retained_events)
        worker_deaths = await self._find_worker_deaths(workers, run_workers, reopened_at)
        takeovers = tuple(death.epoch for death in worker_deaths)
        row = await run_off_loop(get_values_size(run), lambda: _fields_from_run(run, usages[run.id]))
        records = self.page.records
        size = sum(len(record.payload or b"") for record in records)
        report = RunReport(
            **row,
            is_disabled=run.workflow in environment.disabled,
            stall_reason=None if stall is None else stall.advice,
            retry=await self._build_retry(rewound, related_runs),
            budget_refusal=_build_budget_refusal(await self._find_budget_refusal()),
            journal=await run_off_loop(size, lambda: tuple(self._build_entry(record, takeovers) for record in records)),
            takeover_epochs=takeovers,
            in_flight=self._build_in_flight(),
            restored_from=None if RESTORED_POSITION not in attempts else attempts[RESTORED_POSITION].name,
            related_runs=tuple(_build_related_run(other, usages.get(other.id)) for other in related_runs.values()),
            pending_signals=await run_off_loop(
                sum(len(signal.payload) for signal in self._list_pending_signals()), self._build_pending_signals
            ),
            unrecorded_ends=self._build_unrecorded(answers=False),
            unrecorded_answers=self._build_unrecorded(answers=True),
            approvals=tuple(decode_readable_rows(approvals)),
            workers=run_workers,
            plan=tuple(await self._read_plan(is_agent=is_agent)),
            reported_at=to_datetime(environment.now),
            record_count=self._record_count,
            has_more=not self._is_last_page,
            has_more_related_runs=has_more_related_runs,
            is_agent=is_agent,
            reopened_at=tuple(map(to_datetime, reopened_at)),
            budget_changed_at=self._get_budget_changed_at(),
            budgets=tuple(BudgetUsage(id, budget_to_json(usage) or {}, usage.used) for id, usage in budgets),
            event_offset=EventCursor(self._last_seq).encode(run),
            summary="",
            advice=(),
            skipped_steps=self._build_skipped_steps(retained_events),
        )
        stats = JournalStats(
            record_counts=self._count_records(approvals, is_agent=is_agent),
            is_forkable=any(segment.kind in _FORKABLE_KINDS for segment in self.page.segments),
            worker_deaths=worker_deaths,
            reopen_count=len(reopened_at),
            unknown_steps=[(step.position + 1, step.name) for step in find_unsettled_steps(run, rewound)],
        )
        return replace(report, summary=summarize(report, stats), advice=build_advice(report, stats, stall))

    def _find_worker_deaths(
        self, workers: Mapping[int, Worker], run_workers: Sequence[RunWorker], reopened_at: Sequence[float]
    ) -> Awaitable[list[WorkerDeath]]:
        return find_worker_deaths(self.page.segments, workers, run_workers, reopened_at, self._read_after)

    def _build_pending_signals(self) -> tuple[PendingSignal, ...]:
        return tuple(
            PendingSignal(signal.id, signal.name, decode_for_display(signal.payload), to_datetime(signal.sent_at))
            for signal in self._list_pending_signals()
            if signal.name != BUDGET_SIGNAL
        )

    # The journal

    @property
    def _record_count(self) -> int:
        return sum(segment.record_count for segment in self.page.segments)

    @property
    def _last_seq(self) -> int:
        """The ``seq`` of the last record of the whole journal."""
        return max((segment.last_seq for segment in self.page.segments), default=-1)

    @property
    def _is_last_page(self) -> bool:
        """Whether the page reaches the end of the journal."""
        return self._last_seq <= (self.page.records[-1].seq if self.page.records else self.after_seq)

    @property
    def _is_complete(self) -> bool:
        """Whether the page is the whole journal with all its values."""
        return self.after_seq < 0 and self._is_last_page and not self.page.omitted_sizes

    def _build_entry(self, record: Record, takeover_epochs: Sequence[int]) -> JournalEntry:
        replay_count = sum(epoch > record.epoch for epoch in takeover_epochs)
        omitted_bytes = self.page.omitted_sizes.get(record.seq)
        return entry_from_record(record, self.page.run, omitted_bytes, brief=self.brief, replay_count=replay_count)

    async def _read_after(self, seq: int, limit: int) -> list[Record]:
        """Records after ``seq``, whether they are on the page or not."""
        if self._is_complete:
            return [record for record in self.page.records if record.seq > seq][:limit]
        updates = await self.store.get_run_updates(self.page.run.id, seq, _AFTER_ALL_LIVE_EVENTS, limit)
        return [] if updates is None else list(updates.records)

    async def _read_rewound(self) -> list[Record]:
        """The records that a retry removes."""
        run = self.page.run
        if run.rewind is None or not run.rewind.failed_seqs:
            return []
        return find_rewound_records(run, await self._read_after(min(run.rewind.failed_seqs) - 1, _BATCH_SIZE))

    async def _build_retry(self, rewound: Sequence[Record], related_runs: Mapping[str, Run]) -> RetryReport | None:
        unmatched_records = [record for record in rewound if record.preview not in related_runs]
        runs_by_id = {**await load_related_runs(self.store, unmatched_records), **related_runs}
        return preview_retry(self.page.run, rewound, self._record_count, runs_by_id)

    async def _find_budget_refusal(self) -> BudgetExceeded | None:
        """Why the next model call was not made, while the run waits for a higher budget."""
        run = self.page.run
        if run.state.is_terminal or any(signal.name == BUDGET_SIGNAL for signal in self._list_pending_signals()):
            return None
        refusal: BudgetExceeded | None = None
        is_parked = is_waiting_for_budget(run)  # then it waits, whatever signals it got before
        records = self.page.records
        if not self._is_complete:
            records = await self._read_after(self._last_seq - _TAIL_RECORD_COUNT, _TAIL_RECORD_COUNT)
        for record in records:
            if record.kind is RecordKind.SIGNAL and record.name == BUDGET_SIGNAL and not is_parked:
                refusal = None
            else:
                refusal = decode_budget_exceeded(record) or refusal
        return refusal

    async def _read_plan(self, *, is_agent: bool) -> Plan:
        if self._is_complete:
            return find_plan(self.page.records)
        if not is_agent:
            return Plan()  # a search would read the whole journal
        newest = await self.store.get_last_record(self.page.run.id, PLAN_TOOL)
        return Plan() if newest is None else plan_from_record(newest) or Plan()

    async def _is_agent(self) -> bool:
        """Whether it is an agent's run: by its result, its announced workflow, or its model calls."""
        run = self.page.run
        if run.output is not None and is_agent_result(run.output):
            return True
        spec = (await self.store.get_workflow_specs(run.workflow)).get(make_served_name(run.workflow, run.version))
        if spec is not None and spec.is_agent:
            return True
        return any(record.name in AGENT_STEPS for record in self.page.records)

    # Steps in flight, and the mailbox

    def _build_in_flight(self) -> tuple[InFlightStep, ...]:
        """Steps that have no outcome, unless the run completed without them."""
        if self.page.run.state is RunState.COMPLETED:
            return ()
        return tuple(
            InFlightStep(
                number=attempt.position + 1,
                name=attempt.name,
                attempt=attempt.attempt,
                is_once=attempt.intent,
                error=mask_encrypted_text(attempt.error) or None,
                progress=decode_for_display(attempt.progress),
                updated_at=to_datetime(attempt.at),
                retry_at=to_datetime(attempt.retry_at),
            )
            for attempt in sorted(self.page.attempts.values(), key=lambda attempt: attempt.position)
            if attempt.position != RESTORED_POSITION
        )

    def _list_pending_signals(self) -> list[Signal]:
        return [signal for signal in self.page.signals if signal.position is None]

    def _build_unrecorded(self, *, answers: bool) -> tuple[UnrecordedResult, ...]:
        return tuple(
            UnrecordedResult(signal.position + 1, "answered" if answers else signal.name, to_datetime(signal.sent_at))
            for signal in self.page.signals
            if signal.position is not None and is_answer(signal.name) is answers
        )

    def _get_budget_changed_at(self) -> datetime | None:
        changed_at = [signal.sent_at for signal in self._list_pending_signals() if signal.name == BUDGET_SIGNAL]
        return to_datetime(max(changed_at, default=None)) if self.page.run.state is RunState.WAITING else None

    # Workers and related runs

    async def _read_workers(self) -> dict[int, Worker]:
        ids = {segment.worker for segment in self.page.segments}
        return {worker.id: worker for worker in await self.store.list_workers(extra_ids=ids)}

    def _build_run_workers(self, workers: Mapping[int, Worker], now: float) -> tuple[RunWorker, ...]:
        record_counts: Counter[int] = Counter()
        for segment in self.page.segments:
            record_counts[segment.worker] += segment.record_count
        known = [_build_run_worker(worker, record_counts[worker.id], now) for worker in workers.values()]
        missing = sorted({*record_counts, self.page.run.owner or 0} - {0} - workers.keys())
        forgotten = [RunWorker(id, "", "", None, False, False, "unknown", record_counts[id]) for id in missing]
        return (*known, *forgotten)

    async def _read_related_runs(self) -> tuple[dict[str, Run], bool]:
        """The runs that it started, recorded or not, and those that it joined; and whether there are more."""
        max_count = PAGE_SIZE if self.brief else MAX_RELATED_RUNS
        batch_size = min(_BATCH_SIZE, max_count)
        started: list[Run] = []
        while len(started) < max_count:
            before = started[-1].key if started else None
            batch = await self.store.list_runs(RunFilter(parent=self.page.run.id), limit=batch_size, before_key=before)
            started += batch
            if len(batch) < batch_size:
                break
        found = {run.id: run for run in reversed(started)}
        unmatched_records = [record for record in self.page.records if record.preview not in found]
        return {**await load_related_runs(self.store, unmatched_records), **found}, len(started) >= max_count

    # History

    async def _read_retained_events(self) -> list[LiveEvent]:
        """The live events that a run keeps, oldest first: that it was reopened, and which steps it skipped."""
        run = self.page.run
        if run.epoch < 2 and not run.state.is_terminal:
            return []  # it has not ended before
        updates = await self.store.get_run_updates(run.id, self._last_seq, 0, _BATCH_SIZE)
        return [] if updates is None else [event for _, event in updates.live_events]

    def _build_skipped_steps(self, events: Sequence[LiveEvent]) -> tuple[SkippedStep, ...]:
        """The steps that an ended run skipped, in the order of its code, excluding steps skipped before a retry."""
        run = self.page.run
        if not run.state.is_terminal:
            return ()
        steps: list[SkippedStep] = []
        for event in events:
            if event.kind == SKIPPED and event.stream == str(run.epoch) and not is_encrypted_value(event.data):
                data = json.loads(event.data)
                steps.append(SkippedStep(event.number, data["name"], data["position"] + 1))
        return tuple(sorted(steps, key=lambda step: (step.next_number, step.step_number)))

    def _count_records(self, approvals: Sequence[Approval], *, is_agent: bool) -> Counter[RecordKind]:
        """The number of records of each kind, without internal ones."""
        run = self.page.run
        if self.after_seq < 0 and self._is_last_page:
            return Counter(record.kind for record in self.page.records if not is_internal(record, run))
        counts: Counter[RecordKind] = Counter()
        for segment in self.page.segments:
            counts[segment.kind] += segment.record_count
        del counts[RecordKind.CALL]
        # Records outside the page are not loaded, so internal ones are counted by what causes them.
        internal_count = sum(1 + approval.reminder_count for approval in approvals)
        counts[RecordKind.STEP] -= internal_count + (is_agent and bool(run.session))
        counts[RecordKind.CHILD] -= is_agent and bool(run.previous_run)
        return counts


def _list_reopenings(events: Sequence[LiveEvent]) -> list[float]:
    return [event.at for event in events if event.kind == REOPENED]


def _build_budget_refusal(refusal: BudgetExceeded | None) -> BudgetRefusal | None:
    return None if refusal is None else BudgetRefusal(refusal.run_id, refusal.limit, str(refusal))


def _build_related_run(run: Run, usage: RunUsage | None) -> RelatedRun:
    used = None if usage is None or not usage.used.calls else usage.used
    return RelatedRun(run.id, run.workflow, run.state, run.parent or None, used, is_waiting_for_budget(run))


def _build_run_worker(worker: Worker, record_count: int, now: float) -> RunWorker:
    return RunWorker(
        worker.id,
        worker.name,
        worker.host,
        None if worker.is_listener else worker.pid,
        worker.is_listener,
        is_alive(worker, now),
        worker.state,
        record_count,
    )

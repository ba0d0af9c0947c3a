"""A run's story, read from a store: all of it, or a page of its journal with what the rest amounts to.

Each claim increments the epoch of a run, also when the run was only parked. So a later epoch alone does not mean that a
record was replayed: it counts as replayed once for each later takeover from a worker that had died.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.codec import is_encrypted_value, mask_encrypted_text
from holdfast.core.records import Record, RecordKind, Signal
from holdfast.core.states import RunState
from holdfast.errors import BudgetExceeded, UsageError
from holdfast.reports.advice import build_advice
from holdfast.reports.agent_result import is_agent_result
from holdfast.reports.event_offsets import EventCursor
from holdfast.reports.journal_entries import TIMED_KINDS, entry_from_record, is_internal
from holdfast.reports.model_replies import decode_budget_exceeded
from holdfast.reports.plans import PLAN_TOOL, Plan, find_plan, plan_from_record
from holdfast.reports.recorded_reply import MODEL_CALL_STEP
from holdfast.reports.recorded_values import decode_for_display, decode_recorded_error
from holdfast.reports.retry_preview import find_rewound_records, load_related_runs, preview_retry
from holdfast.reports.run_info import get_values_size
from holdfast.reports.run_usage import budget_to_json, load_applicable_budgets, load_usage, remaining_to_json
from holdfast.reports.summary import JournalStats, WorkerDeath, summarize
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
from holdfast.services.approvals import decode_readable_rows
from holdfast.services.lookup import make_run_not_found
from holdfast.services.settlement import find_unsettled_steps, is_outcome_unknown
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
from holdfast.stores.journal_pages import JournalPage, JournalSegment
from holdfast.stores.live_events import REOPENED, SKIPPED
from holdfast.stores.operations import CancelState, LiveEvent, Run
from holdfast.stores.served_versions import make_served_name
from holdfast.stores.workers import Worker

PAGE_SIZE = 500
"""So many records are told at once, at most, where a story is told page by page."""
MAX_LISTED_RUNS = 12
"""So many runs that a run has started, or waited for, are told in a line each; more are told in one."""
MAX_RELATED_RUNS = 20_000
"""So many runs that a run has started are looked at, where all of it is told."""

_BATCH_SIZE = 1000
_TAIL_RECORD_COUNT = 200
"""So many of the last records are looked through for why the run waits."""
_RECORDS_AFTER_DEATH = 50
"""So many records behind the death of a worker are looked at."""
_MAX_CLOCK_SKEW_S = 1.0
"""Seconds by which clocks may differ."""
_AFTER_ALL_LIVE_EVENTS = 2**62
"""Behind all of them."""
_FORKABLE_KINDS = (RecordKind.STEP, RecordKind.CHILD, RecordKind.SIGNAL, RecordKind.APPROVAL)
"""What ``fork --at`` can name."""


async def read_report(
    store: Store, run_id: str, after: int = -1, limit: int | None = None, *, brief: bool = False
) -> RunReport:
    """What is known of a run now, with the records behind ``after_seq``, at most ``limit``. Raises ``RunNotFound``.

    When it is ``brief``, large values are told by their beginning; and so are the runs that it has started, if there
    are many.
    """
    outline = await store.get_journal_page(run_id, after, limit, include_large_payloads=not brief)
    if outline is None:
        raise make_run_not_found(store, run_id)
    return await _ReportReader(store, outline, after, brief=brief).read_report()


def check_limit(limit: int | None) -> None:
    """Raise ``UsageError`` for a limit that is below 1."""
    if limit is not None and limit < 1:
        raise UsageError(f"limit={limit} must be a whole number, 1 or more, or None for all records")


async def read_entry(store: Store, run_id: str, seq: int) -> JournalEntry | None:
    """One record, whole; ``None`` if there is none of this number. Raises ``RunNotFound``."""
    outline = await store.get_journal_page(run_id, seq - 1, 1, include_large_payloads=True)
    if outline is None:
        raise make_run_not_found(store, run_id)
    found = next((record for record in outline.records if record.seq == seq), None)
    return None if found is None else await _ReportReader(store, outline, seq - 1).read_entry(found)


def _fields_from_run(run: Run, usage: RunUsage) -> dict[str, Any]:
    """What its row tells of a run, and the sums of what it has used; by the names of a story's fields."""
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
    """A story in the making: what was read, and the way to what else is needed."""

    store: Store
    page: JournalPage
    after_seq: int
    brief: bool = False

    async def read_entry(self, record: Record) -> JournalEntry:
        takeovers: list[int] = []
        if any(part.epoch > record.epoch for part in self.page.segments):  # else nobody can have replayed it
            workers = await self._read_workers()
            run_workers = self._build_run_workers(workers, self.store.now())
            reopened_at = _list_reopenings(await self._read_retained_events())
            takeovers = [one.epoch for one in await self._find_worker_deaths(workers, run_workers, reopened_at)]
        return await run_off_loop(len(record.payload or b""), lambda: self._build_entry(record, takeovers))

    async def read_report(self) -> RunReport:
        run, store = self.page.run, self.store
        around = await read_environment(store, [run])
        workers = await self._read_workers()
        family, more_family = await self._read_related_runs()
        usages = await load_usage(store, [run.id, *(family if len(family) <= MAX_LISTED_RUNS else ())])
        budgets = await load_applicable_budgets(store, run)
        rows = await store.list_approvals(ApprovalFilter(run.id, only_open=False))
        stall = find_stall(run, around)
        taken = await self._read_rewound()
        told = usages[run.id]
        hands = self._build_run_workers(workers, around.now)
        is_agent = await self._is_agent()
        notices = await self._read_retained_events()
        reopened = _list_reopenings(notices)
        falls = await self._find_worker_deaths(workers, hands, reopened)
        takeovers = tuple(fall.epoch for fall in falls)
        row = await run_off_loop(get_values_size(run), lambda: _fields_from_run(run, told))
        records = self.page.records
        size = sum(len(record.payload or b"") for record in records)
        story = RunReport(
            **row,
            is_disabled=run.workflow in around.disabled,
            stall_reason=None if stall is None else stall.advice,
            retry=await self._build_retry(taken, family),
            budget_refusal=_build_budget_refusal(await self._find_budget_refusal()),
            journal=await run_off_loop(size, lambda: tuple(self._build_entry(one, takeovers) for one in records)),
            takeover_epochs=takeovers,
            in_flight=self._build_in_flight(),
            related_runs=tuple(_build_related_run(one, usages.get(one.id)) for one in family.values()),
            pending_signals=await run_off_loop(
                sum(len(one.payload) for one in self._list_pending_signals()), self._build_pending_signals
            ),
            unrecorded_ends=self._build_unrecorded(answers=False),
            unrecorded_answers=self._build_unrecorded(answers=True),
            approvals=tuple(decode_readable_rows(rows)),
            workers=hands,
            plan=tuple(await self._read_plan(is_agent=is_agent)),
            reported_at=to_datetime(around.now),
            record_count=self._record_count,
            has_more=not self._is_last_page,
            has_more_related_runs=more_family,
            is_agent=is_agent,
            reopened_at=tuple(map(to_datetime, reopened)),
            budget_changed_at=self._get_budget_changed_at(),
            budgets=tuple(BudgetUsage(id, budget_to_json(one) or {}, one.used) for id, one in budgets),
            event_offset=EventCursor(self._last_seq).encode(run),
            summary="",
            advice=(),
            skipped_steps=self._build_skipped_steps(notices),
        )
        course = self._build_stats(falls, taken, rows, reopened, is_agent=is_agent)
        return replace(story, summary=summarize(story, course), advice=build_advice(story, course, stall))

    def _build_pending_signals(self) -> tuple[PendingSignal, ...]:
        sent = (one for one in self._list_pending_signals() if one.name != BUDGET_SIGNAL)
        return tuple(
            PendingSignal(one.id, one.name, decode_for_display(one.payload), to_datetime(one.sent_at)) for one in sent
        )

    # The journal

    @property
    def _record_count(self) -> int:
        return sum(part.record_count for part in self.page.segments)

    @property
    def _last_seq(self) -> int:
        """The ``seq`` of the last record of the whole journal."""
        return max((part.last_seq for part in self.page.segments), default=-1)

    @property
    def _is_last_page(self) -> bool:
        """Whether the page goes up to the end of the journal."""
        return self._last_seq <= (self.page.records[-1].seq if self.page.records else self.after_seq)

    @property
    def _is_complete(self) -> bool:
        """Whether the page is the whole journal, and none of its values is left out."""
        return self.after_seq < 0 and self._is_last_page and not self.page.omitted_sizes

    def _build_entry(self, record: Record, takeover_epochs: Sequence[int]) -> JournalEntry:
        replays = sum(epoch > record.epoch for epoch in takeover_epochs)
        left_out = self.page.omitted_sizes.get(record.seq)
        return entry_from_record(record, self.page.run, left_out, brief=self.brief, replay_count=replays)

    async def _read_after(self, seq: int, limit: int) -> list[Record]:
        """Records behind that number, whether they are on the page or not."""
        if self._is_complete:
            return [record for record in self.page.records if record.seq > seq][:limit]
        feed = await self.store.get_run_updates(self.page.run.id, seq, _AFTER_ALL_LIVE_EVENTS, limit)
        return [] if feed is None else list(feed.records)

    async def _read_rewound(self) -> list[Record]:
        """What a retry takes back."""
        run = self.page.run
        if run.rewind is None or not run.rewind.failed_seqs:
            return []
        return find_rewound_records(run, await self._read_after(min(run.rewind.failed_seqs) - 1, _BATCH_SIZE))

    async def _build_retry(self, rewound: Sequence[Record], related_runs: Mapping[str, Run]) -> RetryReport | None:
        missing = [record for record in rewound if record.preview not in related_runs]
        others = {**await load_related_runs(self.store, missing), **related_runs}
        found = preview_retry(self.page.run, rewound, self._record_count, others)
        if found is None:
            return None
        takes_back = tuple(record.seq for record in rewound)
        return RetryReport(found.is_possible, found.needs_run_again, takes_back, found.message)

    async def _find_budget_refusal(self) -> BudgetExceeded | None:
        """Why its next model call was not made, while it waits for a higher budget."""
        run = self.page.run
        if run.state.is_terminal or any(signal.name == BUDGET_SIGNAL for signal in self._list_pending_signals()):
            return None
        refusal: BudgetExceeded | None = None
        parked = is_waiting_for_budget(run)  # then it waits, however often it was told before that it may ask again
        for record in (
            self.page.records
            if self._is_complete
            else await self._read_after(self._last_seq - _TAIL_RECORD_COUNT, _TAIL_RECORD_COUNT)
        ):
            if record.kind is RecordKind.SIGNAL and record.name == BUDGET_SIGNAL and not parked:
                refusal = None
            elif (refused := decode_budget_exceeded(record)) is not None:
                refusal = refused
        return refusal

    async def _read_plan(self, *, is_agent: bool) -> Plan:
        if self._is_complete:
            return find_plan(self.page.records)
        if not is_agent:
            return Plan()  # to look for one would be to look through the whole journal
        newest = await self.store.get_last_record(self.page.run.id, PLAN_TOOL)
        return Plan() if newest is None else plan_from_record(newest) or Plan()

    async def _is_agent(self) -> bool:
        """Whether it is an agent's run: by its result, what was announced of its workflow, or that it asks a model."""
        run = self.page.run
        if run.output is not None and is_agent_result(run.output):
            return True
        spec = (await self.store.get_workflow_specs()).get(make_served_name(run.workflow, run.version))
        if spec is not None:
            return spec.is_agent
        return any(record.name == MODEL_CALL_STEP for record in self.page.records)

    # What is in flight, and in its mailbox

    def _build_in_flight(self) -> tuple[InFlightStep, ...]:
        """Steps that have no outcome, unless the run went on without them."""
        if self.page.run.state is RunState.COMPLETED:
            return ()
        return tuple(
            InFlightStep(
                number=one.position + 1,
                name=one.name,
                attempt=one.attempt,
                is_once=one.intent,
                error=mask_encrypted_text(one.error) or None,
                progress=decode_for_display(one.progress),
                updated_at=to_datetime(one.at),
                retry_at=to_datetime(one.retry_at),
            )
            for one in sorted(self.page.attempts.values(), key=lambda one: one.position)
        )

    def _list_pending_signals(self) -> list[Signal]:
        return [signal for signal in self.page.signals if signal.position is None]

    def _build_unrecorded(self, *, answers: bool) -> tuple[UnrecordedResult, ...]:
        found = [one for one in self.page.signals if one.position is not None and is_answer(one.name) is answers]
        return tuple(
            UnrecordedResult((one.position or 0) + 1, "answered" if answers else one.name, to_datetime(one.sent_at))
            for one in found
        )

    def _get_budget_changed_at(self) -> datetime | None:
        told = [signal.sent_at for signal in self._list_pending_signals() if signal.name == BUDGET_SIGNAL]
        return to_datetime(max(told, default=None)) if self.page.run.state is RunState.WAITING else None

    # Who is around

    async def _read_workers(self) -> dict[int, Worker]:
        return {
            one.id: one for one in await self.store.list_workers(extra_ids={part.worker for part in self.page.segments})
        }

    def _build_run_workers(self, workers: Mapping[int, Worker], now: float) -> tuple[RunWorker, ...]:
        recorded: dict[int, int] = {}
        for part in self.page.segments:
            recorded[part.worker] = recorded.get(part.worker, 0) + part.record_count
        known = [_build_run_worker(one, recorded.get(one.id, 0), now) for one in workers.values()]
        gone = [id for id in sorted({*recorded, self.page.run.owner or 0} - {0}) if id not in workers]
        forgotten = [RunWorker(id, "", "", None, False, False, "unknown", recorded.get(id, 0)) for id in gone]
        return (*known, *forgotten)

    async def _read_related_runs(self) -> tuple[dict[str, Run], bool]:
        """The runs that it has started, also those of which nothing is recorded yet, and those that it has joined."""
        most = PAGE_SIZE if self.brief else MAX_RELATED_RUNS
        started: list[Run] = []
        while len(started) < most:
            before = started[-1].key if started else None
            page = await self.store.list_runs(
                RunFilter(parent=self.page.run.id), limit=min(_BATCH_SIZE, most), before_key=before
            )
            started += page
            if len(page) < min(_BATCH_SIZE, most):
                break
        found = {one.id: one for one in reversed(started)}
        missing = [record for record in self.page.records if record.preview not in found]
        return {**await load_related_runs(self.store, missing), **found}, len(started) >= most

    # How it went

    async def _read_retained_events(self) -> list[LiveEvent]:
        """The notices that a run keeps, oldest first: that it was reopened, and which steps it skipped."""
        run = self.page.run
        if run.epoch < 2 and not run.state.is_terminal:
            return []  # it has not ended before
        feed = await self.store.get_run_updates(run.id, self._last_seq, 0, _BATCH_SIZE)
        return [] if feed is None else [notice for _, notice in feed.live_events]

    def _build_skipped_steps(self, events: Sequence[LiveEvent]) -> tuple[SkippedStep, ...]:
        """The steps that an ended run has skipped, in the order of its code; not those of an earlier end."""
        run = self.page.run
        if not run.state.is_terminal:
            return ()
        last = [one for one in events if one.kind == SKIPPED and one.stream == str(run.epoch)]
        told = [(one.number, json.loads(one.data)) for one in last if not is_encrypted_value(one.data)]
        found = [SkippedStep(step, data["name"], data["position"] + 1) for step, data in told]
        return tuple(sorted(found, key=lambda one: (one.next_number, one.step_number)))

    def _build_stats(
        self,
        worker_deaths: Sequence[WorkerDeath],
        rewound: Sequence[Record],
        approvals: Sequence[Approval],
        reopened_at: Sequence[float],
        *,
        is_agent: bool,
    ) -> JournalStats:
        return JournalStats(
            record_counts=self._count_records(approvals, is_agent=is_agent),
            is_forkable=any(part.kind in _FORKABLE_KINDS for part in self.page.segments),
            worker_deaths=worker_deaths,
            reopen_count=len(reopened_at),
            unknown_steps=[(one.position + 1, one.name) for one in find_unsettled_steps(self.page.run, rewound)],
        )

    def _count_records(self, approvals: Sequence[Approval], *, is_agent: bool) -> Counter[RecordKind]:
        """The number of records of each kind, without internal ones."""
        run = self.page.run
        if self.after_seq < 0 and self._is_last_page:
            return Counter(record.kind for record in self.page.records if not is_internal(record, run))
        counts: Counter[RecordKind] = Counter()
        for part in self.page.segments:
            counts[part.kind] += part.record_count
        # The names of records outside the page are not known here; what causes internal ones is.
        counts[RecordKind.STEP] -= sum(1 + one.reminder_count for one in approvals) + (is_agent and bool(run.session))
        counts[RecordKind.CHILD] -= is_agent and bool(run.previous_run)
        return counts

    async def _find_worker_deaths(
        self, workers: Mapping[int, Worker], run_workers: Sequence[RunWorker], reopened_at: Sequence[float]
    ) -> list[WorkerDeath]:
        """The deaths of workers in the midst of its steps, as far as the journal tells.

        A run changes hands also when it was parked; then the first that is recorded is what it waited for. A step comes
        first where its holder died over it, or where a person let the run go on: then it had ended, and whatever became
        of its last holder is no part of its story. Only what a person has settled tells of a death itself.
        """
        hands = {hand.id: hand for hand in run_workers}
        by_epoch: dict[int, list[JournalSegment]] = {}
        for part in self.page.segments:
            by_epoch.setdefault(part.epoch, []).append(part)
        leases = [by_epoch[epoch] for epoch in sorted(by_epoch)]
        falls: list[WorkerDeath] = []
        for number, (before, lease) in enumerate(pairwise(leases), 1):
            fallen, heir = before[0].worker, lease[0].worker
            if fallen == heir or fallen not in workers or hands[fallen].is_alive or hands[fallen].state == "retired":
                continue
            begins = min(part.first_seq for part in lease)
            around = await self._read_after(begins - 2, _RECORDS_AFTER_DEATH + 1)
            records = [one for one in around if one.seq >= begins]
            first = records[0] if records else None
            if (
                first is None
                or first.kind not in TIMED_KINDS
                or workers[fallen].heartbeat_at > first.started_at + _MAX_CLOCK_SKEW_S
            ):
                continue
            since = max((one.at for one in around if one.seq < begins), default=0.0)
            if not first.is_settled and any(since <= at <= first.started_at + _MAX_CLOCK_SKEW_S for at in reopened_at):
                continue
            # What began before anything new was known had been asked for before, by whoever died.
            begun = [
                one
                for one in records
                if one.kind in TIMED_KINDS
                and one.started_at < first.at
                and not is_outcome_unknown(one)
                and not one.is_settled
            ]
            steps = sum(
                part.record_count for lease in leases[:number] for part in lease if part.kind is RecordKind.STEP
            )
            falls.append(
                WorkerDeath(hands[fallen], hands.get(heir), first.position + 1, steps, len(begun), lease[0].epoch)
            )
        return falls


def _list_reopenings(events: Sequence[LiveEvent]) -> list[float]:
    return [notice.at for notice in events if notice.kind == REOPENED]


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

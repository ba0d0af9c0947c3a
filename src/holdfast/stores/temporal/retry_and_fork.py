"""Retrying and forking: a new execution that brings the records of another one along.

Temporal never opens an execution again that has ended. So a run that is retried goes on in a new execution under the
same id: it brings along what was recorded, without what the retry takes back, and its code is replayed over that, as
the journal engine does. A fork does the same under another id, with the records up to a point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import Priority

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.core.records import Record, RecordKind, Rewind, Signal
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.stores import rules
from holdfast.stores.operations import ForkRun, OpStatus, ReopenRun, Settlement, StartResult
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.carried_records import is_carried, pack_records, pack_signal_ids, pack_signals
from holdfast.stores.temporal.history_cache import HistoryCache
from holdfast.stores.temporal.outcomes import Outcomes
from holdfast.stores.temporal.requests import find_run
from holdfast.stores.temporal.rows import (
    RETRIES_KEY,
    Ending,
    ExecutionDescription,
    describe_execution,
    read_ending,
    read_row,
    rewind_from_json,
)
from holdfast.stores.temporal.run_details import query_journal, read_exact_records, read_own_usage, read_signal_ids
from holdfast.stores.temporal.run_events import CancelRequested
from holdfast.stores.temporal.run_memo import EXTERNAL_PAYLOADS_KEY, RUN_MEMO_KEY
from holdfast.stores.temporal.run_start import make_created_row, start_execution, start_new_run


async def reopen_run(client: Client, histories: HistoryCache, op: ReopenRun, now: float, *, has_tags: bool) -> OpStatus:
    """Let a run go on that has failed, was cancelled or is dead."""
    told = await find_run(client, op.run_id)
    if told is None:
        return OpStatus.UNKNOWN_RUN
    if told.is_open:
        return OpStatus.ENDED
    ending = await read_ending(client, told)
    if ending.state not in rules.REOPENABLE:
        return OpStatus.ENDED
    rewind = await _find_rewind(client, histories, told, ending)
    if op.settlement is not None:
        if not _is_settlement_current(op.settlement, rewind):
            return OpStatus.ENDED
        rewind = op.settlement.rewind
    verdict = rules.decide_reopen(ending.state, rewind, rerun_once_steps=op.rerun_once_steps)
    if verdict is not OpStatus.DONE:
        return verdict
    records, signals = await read_exact_records(client, histories, told, ending)
    taken = [record for record in records if rewind is not None and rewind.should_remove(record)]
    verdict = await _reopen_children(client, histories, op, told, taken, now, has_tags=has_tags)
    if verdict is not OpStatus.DONE:
        return verdict
    kept = [record for record in records if record not in taken]
    brought = [*kept, *_make_settled_records(op.settlement, kept)]
    is_new = await start_execution(
        client,
        workflow=told.info.type.name,
        id=told.id,
        task_queue=_choose_task_queue(told, op.version),
        args=[
            *await _read_inputs(histories, told),
            *pack_records(brought),
            *pack_signals(_rebuild_mailbox(signals, taken, kept, now)),
            *pack_signal_ids(await read_signal_ids(histories, told)),
        ],
        memo={
            RUN_MEMO_KEY: {
                **_make_run_memo(client, told, rewind, op.version, now),
                "used": asdict(await read_own_usage(histories, told)),
            },
            RETRIES_KEY: _make_retry_log(told, kept),
        },
        priority=Priority(told.info.priority.priority_key or None, told.info.priority.fairness_key or None),
        tags=tuple(told.run_memo.get("tags", ())) if has_tags else (),
        allow_ended=True,
    )
    return OpStatus.DONE if is_new else OpStatus.ENDED


def _is_settlement_current(settlement: Settlement, rewind: Rewind | None) -> bool:
    """Whether the run has ended as it had when the person looked who settles a step of it. Temporal has no epochs."""
    return rewind is not None and {*settlement.rewind.failed_seqs} <= {*rewind.failed_seqs}


def _make_settled_records(settlement: Settlement | None, kept: Sequence[Record]) -> list[Record]:
    if settlement is None or settlement.record is None:
        return []
    return [settlement.record._replace(seq=kept[-1].seq + 1 if kept else 0)]


async def _find_rewind(
    client: Client, histories: HistoryCache, execution: ExecutionDescription, ending: Ending
) -> Rewind | None:
    """What a retry takes back. Temporal keeps no details of a cancellation, so that of a cancelled run is found out."""
    if ending.state is not RunState.CANCELLED:
        return ending.rewind
    outcomes = await histories.get_outcomes(execution)
    try:
        known = (await query_journal(client, execution)).get("rewind")
    except UsageError:
        known = None
    if known is not None:
        return rewind_from_json(known)
    records, _ = await read_exact_records(client, histories, execution, ending)
    return _rewind_from_cancel(outcomes, records)


def _rewind_from_cancel(outcomes: Outcomes, records: Sequence[Record]) -> Rewind | None:
    """The cancel goes, and what was done because of it: whatever was issued in its workflow task, or later."""
    cancel = next((record for record in records if record.kind is RecordKind.CANCEL), None)
    if cancel is None:
        return None
    before = {record.position for record in outcomes.carried_records if record.kind.has_position}
    timers = {record.position for record in outcomes.carried_records if record.kind is RecordKind.TIMER}
    for batch in outcomes.batches:
        if any(isinstance(happening, CancelRequested) for happening in batch.events):
            break
        before |= outcomes.issued_positions.get(batch.completed_event_id, set())
        timers |= outcomes.timer_positions.get(batch.completed_event_id, set())
    undone = any(record.kind is RecordKind.COMPENSATION for record in records)
    return Rewind((cancel.seq,), max(before, default=-1) + 1, max(timers, default=-1) + 1, undone)


async def _reopen_children(
    client: Client,
    histories: HistoryCache,
    op: ReopenRun,
    execution: ExecutionDescription,
    rewound: Sequence[Record],
    now: float,
    *,
    has_tags: bool,
) -> OpStatus:
    """Let the runs go on, too, that it had started, and whose end without a result is taken back."""
    for record in rewound:
        if record.kind is not RecordKind.CHILD or record.ok or not record.preview:
            continue
        child = await describe_execution(client, record.preview)
        if child is None or child.is_open or child.run_memo.get("parent") != execution.id:
            continue
        again = ReopenRun(child.id, op.at, op.rerun_once_steps)
        verdict = await reopen_run(client, histories, again, now, has_tags=has_tags)
        if verdict in (OpStatus.COMPENSATED, OpStatus.REFUSED):
            return verdict
    return OpStatus.DONE


def _choose_task_queue(execution: ExecutionDescription, version: str | None) -> str:
    head = execution.run_memo
    if version is None:
        return execution.info.task_queue
    return identifiers.format_task_queue(head.get("queue", "default"), execution.info.type.name, version)


async def _read_inputs(histories: HistoryCache, execution: ExecutionDescription) -> list[Payload]:
    """What the workflow was started with."""
    first = (await histories.get_events(execution))[0].workflow_execution_started_event_attributes
    return [payload for payload in first.input.payloads if not is_carried(payload)]


def _make_run_memo(
    client: Client, execution: ExecutionDescription, rewind: Rewind | None, version: str | None, now: float
) -> dict[str, Any]:
    head = dict(execution.run_memo)
    head.pop(EXTERNAL_PAYLOADS_KEY, None)
    if client.data_converter.external_storage is not None:
        head[EXTERNAL_PAYLOADS_KEY] = True  # perhaps that was what the run lacked
    head.pop("available_at", None)
    if head.get("deadline") is not None and head["deadline"] <= now:
        del head["deadline"]
    if rewind is not None and rewind.failed_seqs:
        head["rewind_points"] = [*head.get("rewind_points", ()), list(rewind.point)]
    if version is not None:
        head["version"] = version
    head.setdefault("clock_started_at", execution.info.start_time.ToNanoseconds() / 1e9)
    return head


def _make_retry_log(execution: ExecutionDescription, kept: Sequence[Record]) -> list[list[float]]:
    """What those who follow the run have to know: that it goes on behind its last record, since just after its end."""
    before: list[list[float]] = execution.memo.get(RETRIES_KEY) or []
    ended = execution.info.close_time.ToNanoseconds() / 1e9
    return [*before, [ended + 1e-6, kept[-1].seq if kept else -1]]


def _rebuild_mailbox(
    signals: Sequence[Signal], rewound: Sequence[Record], kept: Sequence[Record], now: float
) -> list[Signal]:
    """What is in the mailbox of a run that is retried: also what was consumed by records that are taken back, and
    what lets model calls be asked for again that were refused."""
    back = [
        Signal(0, record.name, record.payload or b"null", record.started_at)
        for record in rewound
        if record.kind is RecordKind.SIGNAL
    ]
    found = sorted([*signals, *back], key=lambda signal: signal.sent_at)
    short = rules.count_short_calls(kept) - sum(signal.name == BUDGET_SIGNAL for signal in found)
    return [*found, *(Signal(0, BUDGET_SIGNAL, b"null", now) for _ in range(short))]


async def fork_run(
    client: Client, histories: HistoryCache, op: ForkRun, now: float, *, has_tags: bool
) -> StartResult | OpStatus:
    """Create a run that shares the beginning of another's journal."""
    new = op.run
    present = await find_run(client, new.id)
    if present is None:
        source = await find_run(client, op.source_run)
        if source is None:
            return OpStatus.UNKNOWN_RUN
        records, _ = await read_exact_records(client, histories, source)
        kept = [record for record in records if record.seq < op.before_seq]
        if op.record is not None:
            kept.append(op.record)
        new = replace(new, clock_started_at=new.clock_started_at or source.info.start_time.ToNanoseconds() / 1e9)
        if await start_new_run(client, new, now, has_tags=has_tags, carried=pack_records(kept)):
            return StartResult(make_created_row(new, now), is_new=True)
        present = await find_run(client, new.id)
    if present is None:
        return await fork_run(client, histories, op, now, has_tags=has_tags)
    run = await read_row(client, present)
    return StartResult(run, is_new=run.seed == new.seed)

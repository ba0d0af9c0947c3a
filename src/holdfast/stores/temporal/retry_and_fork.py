"""Retries and forks: a new execution that carries the records of another one.

Temporal never reopens an execution that has ended. So a retried run continues in a new execution under the same id. It
carries the recorded journal without the records that the retry takes back, and its code is replayed over them, as in
the journal engine. A fork does the same under another id, with the records up to a point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import Priority

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.core.program_execution import NOTHING_ISSUED_LATER
from holdfast.core.records import Record, RecordKind, Rewind, Signal
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.stores import rules
from holdfast.stores.operations import ForkRun, OpStatus, ReopenRun, Settlement, StartResult
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.carried_records import (
    is_carried,
    pack_intents,
    pack_records,
    pack_signal_ids,
    pack_signals,
)
from holdfast.stores.temporal.history_cache import HistoryCache
from holdfast.stores.temporal.outcomes import Outcomes
from holdfast.stores.temporal.rows import (
    RETRIES_KEY,
    Ending,
    ExecutionDescription,
    describe_execution,
    find_run,
    read_ending,
    read_row,
    rewind_from_json,
)
from holdfast.stores.temporal.run_details import query_journal, read_exact_records, read_own_usage
from holdfast.stores.temporal.run_events import CancelRequested
from holdfast.stores.temporal.run_memo import EXTERNAL_PAYLOADS_KEY, RUN_MEMO_KEY
from holdfast.stores.temporal.run_start import make_created_row, start_execution, start_new_run


async def reopen_run(histories: HistoryCache, op: ReopenRun, now: float, *, has_tags: bool) -> OpStatus:
    """Retry a run that failed, was cancelled, or is dead."""
    client = histories.client
    execution = await find_run(client, op.run_id)
    if execution is None:
        return OpStatus.UNKNOWN_RUN
    if execution.is_open:
        return OpStatus.ENDED
    ending = await read_ending(client, execution)
    if ending.state not in rules.REOPENABLE:
        return OpStatus.ENDED
    rewind = await _find_rewind(histories, execution, ending)
    if op.settlement is not None:
        if not _is_settlement_current(op.settlement, rewind):
            return OpStatus.ENDED
        rewind = op.settlement.rewind
    verdict = rules.decide_reopen(ending.state, rewind, rerun_once_steps=op.rerun_once_steps)
    if verdict is not OpStatus.DONE:
        return verdict
    records, signals = await read_exact_records(histories, execution, ending)
    removed = [record for record in records if rewind is not None and rewind.should_remove(record)]
    verdict = await _reopen_children(histories, op, execution, removed, now, has_tags=has_tags)
    if verdict is not OpStatus.DONE:
        return verdict
    remaining = [record for record in records if record not in removed]
    outcomes = await histories.get_outcomes(execution)
    carried = list(remaining)
    if op.settlement is not None and op.settlement.record is not None:
        carried.append(op.settlement.record._replace(seq=remaining[-1].seq + 1 if remaining else 0))
    priority = execution.info.priority
    is_new = await start_execution(
        client,
        workflow=execution.workflow,
        id=execution.id,
        task_queue=_choose_task_queue(execution, op.version),
        args=[
            *await _read_inputs(histories, execution),
            *pack_records(carried),
            *pack_signals(_rebuild_mailbox(signals, removed, remaining, now)),
            *pack_signal_ids(outcomes.signal_ids),
            *pack_intents(() if outcomes.program is None else outcomes.program.attempts.values()),
        ],
        memo={
            RUN_MEMO_KEY: {
                **_make_run_memo(client, execution, rewind, op.version, now),
                "used": asdict(await read_own_usage(histories, execution)),
            },
            RETRIES_KEY: _make_retry_log(execution, remaining),
        },
        priority=Priority(priority.priority_key or None, priority.fairness_key or None),
        tags=tuple(execution.run_memo.get("tags", ())) if has_tags else (),
        allow_ended=True,
    )
    return OpStatus.DONE if is_new else OpStatus.ENDED


def _is_settlement_current(settlement: Settlement, rewind: Rewind | None) -> bool:
    """Whether the run still has the end that the person saw who settles a step of it. Temporal has no epochs."""
    return rewind is not None and {*settlement.rewind.failed_seqs} <= {*rewind.failed_seqs}


async def _find_rewind(histories: HistoryCache, execution: ExecutionDescription, ending: Ending) -> Rewind | None:
    """What a retry takes back. Temporal stores no details of a cancellation, so for a cancelled run it is derived."""
    if ending.state is not RunState.CANCELLED:
        return ending.rewind
    outcomes = await histories.get_outcomes(execution)
    try:
        rewind = (await query_journal(histories.client, execution)).get("rewind")
    except UsageError:
        rewind = None
    if rewind is not None:
        return rewind_from_json(rewind)
    records, _ = await read_exact_records(histories, execution, ending)
    return _rewind_from_cancel(outcomes, records)


def _rewind_from_cancel(outcomes: Outcomes, records: Sequence[Record]) -> Rewind | None:
    """Takes back the cancel and its consequences: everything issued in its workflow task or later."""
    cancel = next((record for record in records if record.kind is RecordKind.CANCEL), None)
    if cancel is None:
        return None
    if outcomes.program is not None:
        return _rewind_program(cancel, records)
    before = {record.position for record in outcomes.carried_records if record.kind.has_position}
    timers = {record.position for record in outcomes.carried_records if record.kind is RecordKind.TIMER}
    for batch in outcomes.batches:
        if any(isinstance(event, CancelRequested) for event in batch.events):
            break
        before |= outcomes.issued_positions.get(batch.completed_event_id, set())
        timers |= outcomes.timer_positions.get(batch.completed_event_id, set())
    has_compensated = any(record.kind is RecordKind.COMPENSATION for record in records)
    return Rewind((cancel.seq,), max(before, default=-1) + 1, max(timers, default=-1) + 1, has_compensated)


def _rewind_program(cancel: Record, records: Sequence[Record]) -> Rewind:
    """The same for a program: nothing else follows from the cancel alone."""
    has_compensated = any(record.kind is RecordKind.COMPENSATION for record in records)
    return Rewind((cancel.seq,), NOTHING_ISSUED_LATER, NOTHING_ISSUED_LATER, has_compensated)


async def _reopen_children(
    histories: HistoryCache,
    op: ReopenRun,
    execution: ExecutionDescription,
    removed: Sequence[Record],
    now: float,
    *,
    has_tags: bool,
) -> OpStatus:
    """Also retry the children that ended without a result, if the retry removes the records of their ends."""
    for record in removed:
        if record.kind is not RecordKind.CHILD or record.ok or not record.preview:
            continue
        child = await describe_execution(histories.client, record.preview)
        if child is None or child.is_open or child.run_memo.get("parent") != execution.id:
            continue
        child_op = ReopenRun(child.id, op.at, op.rerun_once_steps)
        verdict = await reopen_run(histories, child_op, now, has_tags=has_tags)
        if verdict in (OpStatus.COMPENSATED, OpStatus.REFUSED):
            return verdict
    return OpStatus.DONE


def _choose_task_queue(execution: ExecutionDescription, version: str | None) -> str:
    if version is None:
        return execution.info.task_queue
    return identifiers.format_task_queue(execution.run_memo.get("queue", "default"), execution.workflow, version)


async def _read_inputs(histories: HistoryCache, execution: ExecutionDescription) -> list[Payload]:
    first = (await histories.get_events(execution))[0].workflow_execution_started_event_attributes
    return [payload for payload in first.input.payloads if not is_carried(payload)]


def _make_run_memo(
    client: Client, execution: ExecutionDescription, rewind: Rewind | None, version: str | None, now: float
) -> dict[str, Any]:
    head = dict(execution.run_memo)
    head.pop(EXTERNAL_PAYLOADS_KEY, None)
    if client.data_converter.external_storage is not None:
        head[EXTERNAL_PAYLOADS_KEY] = True  # the run may have failed for the lack of it
    head.pop("available_at", None)
    if head.get("deadline") is not None and head["deadline"] <= now:
        del head["deadline"]
    if rewind is not None and rewind.failed_seqs:
        head["rewind_points"] = [*head.get("rewind_points", ()), list(rewind.point)]
    if version is not None:
        head["version"] = version
    head.setdefault("clock_started_at", execution.started_at)
    return head


def _make_retry_log(execution: ExecutionDescription, remaining: Sequence[Record]) -> list[list[float]]:
    """For followers of the run: it continues after its last remaining record, since just after its end."""
    earlier: list[list[float]] = execution.memo.get(RETRIES_KEY) or []
    return [*earlier, [execution.ended_at + 1e-6, remaining[-1].seq if remaining else -1]]


def _rebuild_mailbox(
    signals: Sequence[Signal], removed: Sequence[Record], remaining: Sequence[Record], now: float
) -> list[Signal]:
    """The mailbox of a retried run.

    It also has the signals that the removed records consumed, and those that let refused model calls ask again.
    """
    consumed = [
        Signal(0, record.name, record.payload or b"null", record.started_at)
        for record in removed
        if record.kind is RecordKind.SIGNAL
    ]
    mailbox = sorted([*signals, *consumed], key=lambda signal: signal.sent_at)
    missing_count = rules.count_refused_calls(remaining) - sum(signal.name == BUDGET_SIGNAL for signal in mailbox)
    return [*mailbox, *(Signal(0, BUDGET_SIGNAL, b"null", now) for _ in range(missing_count))]


async def fork_run(histories: HistoryCache, op: ForkRun, now: float, *, has_tags: bool) -> StartResult | OpStatus:
    """Create a run that shares the beginning of another's journal."""
    client, new = histories.client, op.run
    execution = await find_run(client, new.id)
    if execution is None:
        source = await find_run(client, op.source_run)
        if source is None:
            return OpStatus.UNKNOWN_RUN
        records, _ = await read_exact_records(histories, source)
        carried = [record for record in records if record.seq < op.before_seq]
        if op.record is not None:
            carried.append(op.record)
        new = replace(new, clock_started_at=new.clock_started_at or source.started_at)
        if await start_new_run(client, new, now, has_tags=has_tags, carried=pack_records(carried)):
            return StartResult(make_created_row(new, now), is_new=True)
        execution = await find_run(client, new.id)
    if execution is None:
        return await fork_run(histories, op, now, has_tags=has_tags)
    run = await read_row(client, execution)
    return StartResult(run, is_new=run.seed == new.seed)

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
from holdfast.core.records import Kind, Record, Rewind, Signal
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.stores import rules
from holdfast.stores.operations import ForkRun, ReopenRun, Settlement, Started, Verdict
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.carried_records import is_carried, pack, pack_seen, pack_signals
from holdfast.stores.temporal.history_cache import Histories
from holdfast.stores.temporal.outcomes import Outcomes
from holdfast.stores.temporal.requests import find_run
from holdfast.stores.temporal.rows import REOPENED, Described, Ending, describe, ending_of, rewind_of, row_of
from holdfast.stores.temporal.run_details import ask_journal, exact_history, own_usage, sent_ids
from holdfast.stores.temporal.run_events import CancelAsked
from holdfast.stores.temporal.run_memo import APART, HEAD
from holdfast.stores.temporal.run_start import begin, created, start_execution


async def reopen_run(client: Client, histories: Histories, op: ReopenRun, now: float, *, has_tags: bool) -> Verdict:
    """Let a run go on that has failed, was cancelled or is dead."""
    told = await find_run(client, op.run_id)
    if told is None:
        return Verdict.UNKNOWN_RUN
    if told.is_open:
        return Verdict.ENDED
    ending = await ending_of(client, told)
    if ending.state not in rules.REOPENABLE:
        return Verdict.ENDED
    rewind = await _rewind(client, histories, told, ending)
    if op.settles is not None:
        if not _is_still_so(op.settles, rewind):
            return Verdict.ENDED
        rewind = op.settles.rewind
    verdict = rules.answer_to_reopen(ending.state, rewind, run_again=op.run_again)
    if verdict is not Verdict.DONE:
        return verdict
    records, signals = await exact_history(client, histories, told, ending)
    taken = [record for record in records if rewind is not None and rewind.takes(record)]
    verdict = await _reopen_children(client, histories, op, told, taken, now, has_tags=has_tags)
    if verdict is not Verdict.DONE:
        return verdict
    kept = [record for record in records if record not in taken]
    brought = [*kept, *_settled(op.settles, kept)]
    is_new = await start_execution(
        client,
        workflow=told.info.type.name,
        id=told.id,
        task_queue=_task_queue(told, op.version),
        args=[
            *await _inputs(histories, told),
            *pack(brought),
            *pack_signals(_mailbox(signals, taken, kept, now)),
            *pack_seen(await sent_ids(histories, told)),
        ],
        memo={
            HEAD: {**_head(client, told, rewind, op.version, now), "used": asdict(await own_usage(histories, told))},
            REOPENED: _retries(told, kept),
        },
        priority=Priority(told.info.priority.priority_key or None, told.info.priority.fairness_key or None),
        tags=tuple(told.head.get("tags", ())) if has_tags else (),
        again=True,
    )
    return Verdict.DONE if is_new else Verdict.ENDED


def _is_still_so(settled: Settlement, rewind: Rewind | None) -> bool:
    """Whether the run has ended as it had when the person looked who settles a step of it. Temporal has no epochs."""
    return rewind is not None and {*settled.rewind.failed} <= {*rewind.failed}


def _settled(settled: Settlement | None, kept: Sequence[Record]) -> list[Record]:
    if settled is None or settled.record is None:
        return []
    return [settled.record._replace(seq=kept[-1].seq + 1 if kept else 0)]


async def _rewind(client: Client, histories: Histories, told: Described, ending: Ending) -> Rewind | None:
    """What a retry takes back. Temporal keeps no details of a cancellation, so that of a cancelled run is found out."""
    if ending.state is not RunState.CANCELLED:
        return ending.rewind
    outcomes = await histories.outcomes(told)
    try:
        known = (await ask_journal(client, told)).get("rewind")
    except UsageError:
        known = None
    if known is not None:
        return rewind_of(known)
    records, _ = await exact_history(client, histories, told, ending)
    return _of_cancel(outcomes, records)


def _of_cancel(outcomes: Outcomes, records: Sequence[Record]) -> Rewind | None:
    """The cancel goes, and what was done because of it: whatever was issued in its workflow task, or later."""
    cancel = next((record for record in records if record.kind is Kind.CANCEL), None)
    if cancel is None:
        return None
    before = {record.position for record in outcomes.carried if record.kind.has_position}
    timers = {record.position for record in outcomes.carried if record.kind is Kind.TIMER}
    for batch in outcomes.batches:
        if any(isinstance(happening, CancelAsked) for happening in batch.happenings):
            break
        before |= outcomes.issued.get(batch.completed, set())
        timers |= outcomes.set_in.get(batch.completed, set())
    undone = any(record.kind is Kind.COMPENSATION for record in records)
    return Rewind((cancel.seq,), max(before, default=-1) + 1, max(timers, default=-1) + 1, undone)


async def _reopen_children(
    client: Client,
    histories: Histories,
    op: ReopenRun,
    told: Described,
    taken: Sequence[Record],
    now: float,
    *,
    has_tags: bool,
) -> Verdict:
    """Let the runs go on, too, that it had started, and whose end without a result is taken back."""
    for record in taken:
        if record.kind is not Kind.CHILD or record.ok or not record.preview:
            continue
        child = await describe(client, record.preview)
        if child is None or child.is_open or child.head.get("parent") != told.id:
            continue
        again = ReopenRun(child.id, op.at, op.run_again)
        verdict = await reopen_run(client, histories, again, now, has_tags=has_tags)
        if verdict in (Verdict.UNDONE, Verdict.REFUSED):
            return verdict
    return Verdict.DONE


def _task_queue(told: Described, version: str | None) -> str:
    head = told.head
    if version is None:
        return told.info.task_queue
    return identifiers.task_queue(head.get("queue", "default"), told.info.type.name, version)


async def _inputs(histories: Histories, told: Described) -> list[Payload]:
    """What the workflow was started with."""
    first = (await histories.events(told))[0].workflow_execution_started_event_attributes
    return [payload for payload in first.input.payloads if not is_carried(payload)]


def _head(client: Client, told: Described, rewind: Rewind | None, version: str | None, now: float) -> dict[str, Any]:
    head = dict(told.head)
    head.pop(APART, None)
    if client.data_converter.external_storage is not None:
        head[APART] = True  # perhaps that was what the run lacked
    head.pop("available_at", None)
    if head.get("deadline") is not None and head["deadline"] <= now:
        del head["deadline"]
    rewound = rules.rewound_by(tuple(head.get("rewound", ())), rewind)
    if rewound:
        head["rewound"] = list(rewound)
    if version is not None:
        head["version"] = version
    head.setdefault("began_at", told.info.start_time.ToNanoseconds() / 1e9)
    return head


def _retries(told: Described, kept: Sequence[Record]) -> list[list[float]]:
    """What those who follow the run have to know: that it goes on behind its last record, since just after its end."""
    before: list[list[float]] = told.memo.get(REOPENED) or []
    ended = told.info.close_time.ToNanoseconds() / 1e9
    return [*before, [ended + 1e-6, kept[-1].seq if kept else -1]]


def _mailbox(signals: Sequence[Signal], taken: Sequence[Record], kept: Sequence[Record], now: float) -> list[Signal]:
    """What is in the mailbox of a run that is retried: also what was consumed by records that are taken back, and
    what lets model calls be asked for again that were refused."""
    back = [
        Signal(0, record.name, record.payload or b"null", record.started_at)
        for record in taken
        if record.kind is Kind.SIGNAL
    ]
    found = sorted([*signals, *back], key=lambda signal: signal.sent_at)
    short = rules.calls_short(kept) - sum(signal.name == BUDGET_SIGNAL for signal in found)
    return [*found, *(Signal(0, BUDGET_SIGNAL, b"null", now) for _ in range(short))]


async def fork_run(
    client: Client, histories: Histories, op: ForkRun, now: float, *, has_tags: bool
) -> Started | Verdict:
    """Create a run that shares the beginning of another's journal."""
    new = op.run
    present = await find_run(client, new.id)
    if present is None:
        source = await find_run(client, op.source)
        if source is None:
            return Verdict.UNKNOWN_RUN
        records, _ = await exact_history(client, histories, source)
        kept = [record for record in records if record.seq < op.keep]
        if op.record is not None:
            kept.append(op.record)
        new = replace(new, began_at=new.began_at or source.info.start_time.ToNanoseconds() / 1e9)
        if await begin(client, new, now, has_tags=has_tags, brought=pack(kept)):
            return Started(created(new, now), created=True)
        present = await find_run(client, new.id)
    if present is None:
        return await fork_run(client, histories, op, now, has_tags=has_tags)
    run = await row_of(client, present)
    return Started(run, created=run.seed == new.seed)

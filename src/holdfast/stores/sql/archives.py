"""Reading what belongs to a run, and restoring archived runs: see ``stores.archives``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.admission.usage import Usage
from holdfast.stores.approvals import Approval
from holdfast.stores.archives import (
    NOT_ACTIVATED,
    ArchivedLink,
    ArchivedRun,
    Archives,
    RunExtras,
    list_payloads,
    to_new_run,
    to_restored_run,
)
from holdfast.stores.contract import RunUsage
from holdfast.stores.rules import LinkState
from holdfast.stores.sql.approval_operations import live_event_to_row, request_to_json
from holdfast.stores.sql.blobs import NO_BLOBS, BlobBatch, is_large, pack_blobs
from holdfast.stores.sql.database import Database, Row, WriteConflict
from holdfast.stores.sql.database_access import SqlCapability
from holdfast.stores.sql.limited_queues import STARTED, UNSTARTED
from holdfast.stores.sql.queue_placement import TurnAllocator
from holdfast.stores.sql.ready_states import ReadyState
from holdfast.stores.sql.rows import (
    UNLIMITED_POSITION,
    QueuePosition,
    RowReader,
    account_to_row,
    attempt_to_row,
    record_to_row,
    rewind_to_json,
    run_to_row,
)
from holdfast.stores.sql.usage_accounts import parse_positions, read_parent_key
from holdfast.stores.usage_accounts import UsageAccount


class SqlArchives(SqlCapability, Archives):
    """Moving runs out of a database and into it."""

    async def get_extras(self, key: int) -> RunExtras:
        return await self._database.read_for_client(lambda db: _read_extras(db, key))

    async def restore(self, archived: ArchivedRun) -> bool:
        database = self._database
        large = [payload for payload in list_payloads(archived) if is_large(payload)]
        blob_batch = await asyncio.to_thread(pack_blobs, large) if large else NO_BLOBS
        return await database.write(lambda db: _restore_run(db, archived, database.now(), blob_batch), is_slow=True)

    async def mark_restored(self, source: str) -> int:
        return await self._database.write(
            lambda db: db.execute(db.sql.MARK_RESTORED, (source, self._database.now())), is_slow=True
        )

    async def activate(self, archived: ArchivedRun) -> None:
        database = self._database
        await database.write(lambda db: _activate_run(db, database.reader, archived, database.now()), is_slow=True)


def _read_extras(db: Database, key: int) -> RunExtras:
    db.begin_snapshot()
    [result_claim] = db.query_one(db.sql.RESULT_CLAIM, key) or (0,)
    keys = tuple(row[0] for row in db.query(db.sql.SIGNAL_KEYS, (key,)))
    links = tuple(ArchivedLink(row[0], row[1], row[2] == LinkState.LATE) for row in db.query(db.sql.RUN_LINKS, (key,)))
    account = db.lookup(db.sql.ACCOUNT, key)
    short_positions = parse_positions(account[0][12]) if account else ()
    db.commit()
    return RunExtras(result_claim != 0, result_claim == 1, keys, links, short_positions)


def _restore_run(db: Database, archived: ArchivedRun, now: float, blob_batch: BlobBatch) -> bool:
    """Write a run, unless its id exists; returns whether it was written. An unfinished run is not activated yet."""
    try:
        db.begin()
        if list(db.read_fences((), [archived.run.id])):
            db.commit()
            return False
        [key] = db.allocate_keys(1)
        if blob_batch.rows:
            db.write(db.sql.PUT_BLOB, blob_batch.rows)
        _write_run(db, archived, key, now, blob_batch)
        _write_extras(db, archived, key, blob_batch)
        db.commit()
    except WriteConflict:
        db.roll_back()
        return False
    return True


def _to_column(blob_batch: BlobBatch, payload: bytes | None) -> bytes | None:
    return None if payload is None else blob_batch.references.get(payload, payload)


def _write_run(db: Database, archived: ArchivedRun, key: int, now: float, blob_batch: BlobBatch) -> None:
    run = to_restored_run(archived.run, key, now)
    turns = TurnAllocator(db, now)
    position = UNLIMITED_POSITION
    if turns.is_limited(run.queue):
        db.lock_turns({(run.queue, run.priority, run.queue_key)})
        turn = turns.allocate(run.queue, run.priority, run.queue_key)
        position = QueuePosition(STARTED if run.epoch else UNSTARTED, turn)
        turns.flush()
    new, inputs = to_new_run(archived), _to_column(blob_batch, run.inputs)
    row = run_to_row(new, None, now, inputs, run.previous_run, run.has_budget, position)
    db.write(db.sql.START_RUN, [(key, *row)])
    if run.tags:
        db.write(db.sql.TAG_RUN, [(tag, key) for tag in run.tags])
    restored: Row = (
        run.state, run.epoch, run.delivery_count, run.wake_at, run.waits_for, run.cancel_state,
        None if run.state.is_terminal else NOT_ACTIVATED, run.finished_at, rewind_to_json(run.rewind),
        _to_column(blob_batch, run.output), _to_column(blob_batch, run.error),
        1 if archived.extras.has_unclaimed_result else 2 if archived.extras.has_generated_id else 0, key,
    )  # fmt: skip
    db.write(db.sql.RESTORE_RUN, [restored])


def _write_extras(db: Database, archived: ArchivedRun, key: int, blob_batch: BlobBatch) -> None:
    records = [record_to_row(key, record, _to_column(blob_batch, record.payload)) for record in archived.records]
    attempts = [(*attempt_to_row(key, attempt), attempt.outcome) for attempt in archived.attempts]
    signals = [(key, s.name, s.sent_at, _to_column(blob_batch, s.payload), s.position) for s in archived.signals]
    live_events = [live_event_to_row(key, event, is_permanent=1) for event in archived.live_events]
    rows: Sequence[tuple[str, Sequence[Row]]] = (
        (db.sql.APPEND_RECORD, records),
        (db.sql.RESTORE_ATTEMPT, attempts),
        (db.sql.SEND_SIGNAL, signals),
        (db.sql.ADD_SIGNAL_KEY, [(key, dedup) for dedup in archived.extras.signal_dedup_keys]),
        (db.sql.ADD_LIVE_EVENT, live_events),
        (db.sql.RESTORE_APPROVAL, [_approval_to_row(approval, key, blob_batch) for approval in archived.approvals]),
    )
    for statement, values in rows:
        if values:
            db.write(statement, values)
    if archived.usage != RunUsage() or archived.extras.short_positions:
        usage, short_positions = archived.usage, archived.extras.short_positions
        account = UsageAccount(key, read_parent_key(db, key), usage.used, Usage(), usage.budget, short_positions)
        db.write(db.sql.PUT_ACCOUNT, [account_to_row(account)])


def _approval_to_row(a: Approval, key: int, blob_batch: BlobBatch) -> Row:
    return (
        a.id, key, a.position, a.state, a.requested_at, a.expires_at, a.assignee, a.reminder_count, a.reminded_at,
        a.answered_by, a.answered_at, request_to_json(a.request), _to_column(blob_batch, a.request.form_schema),
        _to_column(blob_batch, a.request.arguments), _to_column(blob_batch, a.answer),
    )  # fmt: skip


def _activate_run(db: Database, reader: RowReader, archived: ArchivedRun, now: float) -> None:
    """Write the links of a restored run, and make it claimable."""
    db.begin()
    run_id = archived.run.id
    known = {row[1]: row for row in db.read_fences((), [run_id, *(link.child_id for link in archived.extras.links)])}
    if run_id in known:
        key = known[run_id][0]
        links: list[Row] = []
        for link in archived.extras.links:
            if link.child_id in known:
                child_state = reader.read_state(known[link.child_id][3], link.child_id)
                links.append((key, link.position, known[link.child_id][0], int(link.get_link_state(child_state))))
        if links:
            db.write(db.sql.PUT_LINK, links)
        if not archived.run.state.is_terminal:
            run = to_restored_run(archived.run, key, now)
            ready = None if run.paused_at is not None or run.wake_at is None else int(ReadyState.TIMER)
            db.write(db.sql.ACTIVATE_RUN, [(ready, run.paused_at, key)])
    db.commit()

"""Reading what belongs to a run, and restoring runs from elsewhere: see ``stores.archives``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from holdfast.admission.usage import Usage
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
from holdfast.stores.operations import SaveAttempt
from holdfast.stores.rules import LinkState, can_be_parent
from holdfast.stores.sql.approval_operations import live_event_to_row, request_to_json
from holdfast.stores.sql.blobs import NO_BLOBS, BlobBatch, is_large, pack_blobs
from holdfast.stores.sql.database import Database, Row, WriteConflict
from holdfast.stores.sql.database_access import SqlCapability
from holdfast.stores.sql.queue_placement import TurnAllocator
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
from holdfast.stores.usage_accounts import UsageAccount


class SqlArchives(SqlCapability, Archives):
    """Runs that leave a database, and come into it."""

    async def get_extras(self, key: int) -> RunExtras:
        return await self._database.read_for_client(lambda db: _read_extras(db, key))

    async def restore(self, archived: ArchivedRun) -> bool:
        database = self._database
        large = [payload for payload in list_payloads(archived) if is_large(payload)]
        parcel = await asyncio.to_thread(pack_blobs, large) if large else NO_BLOBS
        return await database.write(lambda db: _restore_run(db, archived, database.now(), parcel), is_slow=True)

    async def activate(self, archived: ArchivedRun) -> None:
        database = self._database
        await database.write(lambda db: _activate_run(db, database.reader, archived, database.now()), is_slow=True)


def _read_extras(db: Database, key: int) -> RunExtras:
    """What belongs to a run, all as of one moment."""
    db.begin_snapshot()
    row = db.query_one(db.sql.HAS_UNCLAIMED_RESULT, key)
    unclaimed = 0 if row is None else row[0]
    keys = tuple(row[0] for row in db.query(db.sql.SIGNAL_KEYS, (key,)))
    links = tuple(ArchivedLink(row[0], row[1], row[2] == LinkState.LATE) for row in db.query(db.sql.RUN_LINKS, (key,)))
    account = db.lookup(db.sql.ACCOUNT, key)
    short = tuple(json.loads(account[0][12])) if account and account[0][12] else ()
    db.commit()
    return RunExtras(unclaimed != 0, unclaimed == 1, keys, links, short)


def _restore_run(db: Database, archived: ArchivedRun, now: float, blob_batch: BlobBatch) -> bool:
    """Put a run into the database; false: there is one under its id. One that has not ended is held back."""
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
    place = UNLIMITED_POSITION
    if turns.is_limited(run.queue):
        db.lock_turns({(run.queue, run.priority, run.queue_key)})
        place = QueuePosition(3 if run.epoch else 2, turns.allocate(run.queue, run.priority, run.queue_key))
        turns.flush()
    new, inputs = to_new_run(archived), _to_column(blob_batch, run.inputs)
    started = run_to_row(new, None, now, inputs, run.previous_run, run.has_budget, place)
    db.write(db.sql.START_RUN, [(key, *started)])
    if run.tags:
        db.write(db.sql.TAG_RUN, [(tag, key) for tag in run.tags])
    told = archived.extras
    row: Row = (
        run.state, run.epoch, run.delivery_count, run.wake_at, run.waits_for, run.cancel_state,
        None if run.state.is_terminal else NOT_ACTIVATED, run.finished_at, rewind_to_json(run.rewind),
        _to_column(blob_batch, run.output), _to_column(blob_batch, run.error),
        1 if told.has_unclaimed_result else 2 if told.has_generated_id else 0, key,
    )  # fmt: skip
    db.write(db.sql.RESTORE_RUN, [row])


def _write_extras(db: Database, archived: ArchivedRun, key: int, blob_batch: BlobBatch) -> None:
    records = [record_to_row(key, record, _to_column(blob_batch, record.payload)) for record in archived.records]
    attempts = [(*attempt_to_row(SaveAttempt(key, 0, attempt)), attempt.outcome) for attempt in archived.attempts]
    signals = [(key, s.name, s.sent_at, _to_column(blob_batch, s.payload), s.position) for s in archived.signals]
    live_events = [live_event_to_row(key, event, is_permanent=1) for event in archived.live_events]
    rows: Sequence[tuple[str, Sequence[Row]]] = (
        (db.sql.APPEND_RECORD, records),
        (db.sql.RESTORE_ATTEMPT, attempts),
        (db.sql.SEND_SIGNAL, signals),
        (db.sql.ADD_SIGNAL_KEY, [(key, dedup) for dedup in archived.extras.signal_dedup_keys]),
        (db.sql.ADD_LIVE_EVENT, live_events),
        (
            db.sql.RESTORE_APPROVAL,
            [_approval_to_row(archived, at, key, blob_batch) for at in range(len(archived.approvals))],
        ),
    )
    for statement, values in rows:
        if values:
            db.write(statement, values)
    if archived.usage != RunUsage() or archived.extras.short_positions:
        above = db.lookup(db.sql.PARENT_KEY, key)
        account = UsageAccount(
            key, above[0][0] if above and can_be_parent(above[0][0], key) else None, archived.usage.used, Usage(),
            archived.usage.budget, archived.extras.short_positions,
        )  # fmt: skip
        db.write(db.sql.PUT_ACCOUNT, [account_to_row(account)])


def _approval_to_row(archived: ArchivedRun, index: int, key: int, blob_batch: BlobBatch) -> Row:
    a = archived.approvals[index]
    q = a.request
    return (
        a.id, key, a.position, a.state, a.requested_at, a.expires_at, a.assignee, a.reminder_count, a.reminded_at,
        a.answered_by, a.answered_at, request_to_json(q), _to_column(blob_batch, q.form_schema),
        _to_column(blob_batch, q.arguments), _to_column(blob_batch, a.answer),
    )  # fmt: skip


def _activate_run(db: Database, reader: RowReader, archived: ArchivedRun, now: float) -> None:
    """Make the links of a run that was restored, and hold it back no more."""
    db.begin()
    run_id = archived.run.id
    known = {row[1]: row for row in db.read_fences((), [run_id, *(link.child_id for link in archived.extras.links)])}
    if run_id in known:
        key = known[run_id][0]
        links = [
            (
                key,
                link.position,
                known[link.child_id][0],
                int(link.get_link_state(reader.read_state(known[link.child_id][3], link.child_id))),
            )
            for link in archived.extras.links
            if link.child_id in known
        ]
        if links:
            db.write(db.sql.PUT_LINK, links)
        if not archived.run.state.is_terminal:
            run = to_restored_run(archived.run, key, now)
            ready = None if run.paused_at is not None or run.wake_at is None else 0
            db.write(db.sql.ACTIVATE_RUN, [(ready, run.paused_at, key)])
    db.commit()

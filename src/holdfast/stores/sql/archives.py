"""Reading what belongs to a run, and restoring runs from elsewhere: see ``stores.archives``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.admission.usage import Usage
from holdfast.stores.archives import HELD_BACK, Archived, ArchivedLink, Belongings, as_new, as_restored
from holdfast.stores.contract import RunUsage
from holdfast.stores.operations import NoteAttempt
from holdfast.stores.rules import Told, is_above
from holdfast.stores.sql.approval_operations import question_text
from holdfast.stores.sql.blobs import Parcel
from holdfast.stores.sql.database import Collision, Database, Row
from holdfast.stores.sql.queue_placement import Turns
from holdfast.stores.sql.rows import (
    NO_LIMITS,
    Place,
    Reader,
    account_row,
    attempt_row,
    record_row,
    rewind_text,
    run_row,
)
from holdfast.stores.usage_accounts import Account


def belongings(db: Database, key: int) -> Belongings:
    """What belongs to a run, all as of one moment."""
    db.begin_reading()
    row = db.one(db.sql.UNCLAIMED, key)
    unclaimed = 0 if row is None else row[0]
    keys = tuple(row[0] for row in db.ask(db.sql.SIGNAL_KEYS, (key,)))
    links = tuple(ArchivedLink(row[0], row[1], row[2] == Told.LATE) for row in db.ask(db.sql.LINKS_OF, (key,)))
    account = db.lookup(db.sql.ACCOUNT, key)
    short = tuple(json.loads(account[0][12])) if account and account[0][12] else ()
    db.commit()
    return Belongings(unclaimed != 0, unclaimed == 1, keys, links, short)


def restore(db: Database, archived: Archived, now: float, parcel: Parcel) -> bool:
    """Put a run into the database; false: there is one under its id. One that has not ended is held back."""
    try:
        db.begin()
        if list(db.fences((), [archived.run.id])):
            db.commit()
            return False
        [key] = db.new_keys(1)
        if parcel.rows:
            db.write(db.sql.KEEP_BLOB, parcel.rows)
        _write_run(db, archived, key, now, parcel)
        _write_belongings(db, archived, key, parcel)
        db.commit()
    except Collision:
        db.roll_back()
        return False
    return True


def _stored(parcel: Parcel, payload: bytes | None) -> bytes | None:
    return None if payload is None else parcel.references.get(payload, payload)


def _write_run(db: Database, archived: Archived, key: int, now: float, parcel: Parcel) -> None:
    run = as_restored(archived.run, key, now)
    turns = Turns(db, now)
    place = NO_LIMITS
    if turns.is_limited(run.queue):
        db.lock_turns({(run.queue, run.priority, run.queue_key)})
        place = Place(3 if run.epoch else 2, turns.next(run.queue, run.priority, run.queue_key))
        turns.flush()
    new, inputs = as_new(archived), _stored(parcel, run.inputs)
    started = run_row(new, None, now, inputs, run.previous, run.has_budget, place)
    db.write(db.sql.START_RUN, [(key, *started)])
    if run.tags:
        db.write(db.sql.TAG_RUN, [(tag, key) for tag in run.tags])
    told = archived.belongings
    row: Row = (
        run.state, run.epoch, run.deliveries, run.wake_at, run.waits_for, run.cancel,
        None if run.state.is_terminal else HELD_BACK, run.finished_at, rewind_text(run.rewind),
        _stored(parcel, run.output), _stored(parcel, run.error),
        1 if told.is_unclaimed else 2 if told.is_generated else 0, key,
    )  # fmt: skip
    db.write(db.sql.RESTORE_RUN, [row])


def _write_belongings(db: Database, archived: Archived, key: int, parcel: Parcel) -> None:
    records = [record_row(key, record, _stored(parcel, record.payload)) for record in archived.records]
    attempts = [(*attempt_row(NoteAttempt(key, 0, attempt)), attempt.outcome) for attempt in archived.attempts]
    signals = [(key, s.name, s.sent_at, _stored(parcel, s.payload), s.position) for s in archived.signals]
    notices = [(key, n.position, n.part, n.number, 1, n.kind, n.at, n.data) for n in archived.notices]
    rows: Sequence[tuple[str, Sequence[Row]]] = (
        (db.sql.APPEND, records),
        (db.sql.RESTORE_ATTEMPT, attempts),
        (db.sql.SEND_SIGNAL, signals),
        (db.sql.NOTE_SIGNAL_KEY, [(key, dedup) for dedup in archived.belongings.signal_keys]),
        (db.sql.TELL, notices),
        (db.sql.RESTORE_APPROVAL, [_approval_row(archived, at, key, parcel) for at in range(len(archived.approvals))]),
    )
    for statement, values in rows:
        if values:
            db.write(statement, values)
    if archived.usage != RunUsage() or archived.belongings.short:
        above = db.lookup(db.sql.ABOVE, key)
        account = Account(
            key, above[0][0] if above and is_above(above[0][0], key) else None, archived.usage.used, Usage(),
            archived.usage.budget, archived.belongings.short,
        )  # fmt: skip
        db.write(db.sql.KEEP_ACCOUNT, [account_row(account)])


def _approval_row(archived: Archived, at: int, key: int, parcel: Parcel) -> Row:
    a = archived.approvals[at]
    q = a.question
    return (
        a.id, key, a.position, a.state, a.asked_at, a.expires_at, a.asked_of, a.reminders, a.reminded_at,
        a.answered_by, a.answered_at, question_text(q), _stored(parcel, q.form), _stored(parcel, q.arguments),
        _stored(parcel, a.answer),
    )  # fmt: skip


def set_going(db: Database, reader: Reader, archived: Archived, now: float) -> None:
    """Make the links of a run that was restored, and hold it back no more."""
    db.begin()
    run_id = archived.run.id
    known = {row[1]: row for row in db.fences((), [run_id, *(link.child for link in archived.belongings.links)])}
    if run_id in known:
        key = known[run_id][0]
        links = [
            (key, link.position, known[link.child][0], int(link.told(reader.state(known[link.child][3], link.child))))
            for link in archived.belongings.links
            if link.child in known
        ]
        if links:
            db.write(db.sql.LINK, links)
        if not archived.run.state.is_terminal:
            run = as_restored(archived.run, key, now)
            ready = None if run.paused_at is not None or run.wake_at is None else 0
            db.write(db.sql.SET_GOING, [(ready, run.paused_at, key)])
    db.commit()

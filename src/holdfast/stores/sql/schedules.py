"""Schedules in a database, each a function of a db."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.stores.schedules import NewSchedule, Schedule, merged, read_options
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.rows import Reader, read_each


def put(
    db: Database, reader: Reader, new: Sequence[NewSchedule], worker: int | None, replace: bool, now: float
) -> list[Schedule]:
    """Keep schedules; nothing is written of those that are known as they are."""
    names = [one.name for one in new]
    db.begin()
    known = {one.what.name: one for one in read(db, reader, names, now)}
    for one in sorted(new, key=lambda one: one.name):  # so that two who announce the same wait in the same order
        before = known.get(one.name)
        is_new = before is None and db.change(db.sql.ADD_SCHEDULE, _row(one, merged(None, one, now))) == 1
        if not is_new and replace and (before is None or before.what != one):
            db.change(db.sql.PUT_SCHEDULE, _row(one, merged(before, one, now)))
        if worker is not None:
            db.change(db.sql.ANNOUNCE_SCHEDULE, (one.name, worker))
    if worker is not None:
        db.change(db.sql.DROP_ANNOUNCEMENTS)
    kept = {one.what.name: one for one in read(db, reader, names, now)}
    db.commit()
    return [kept[name] for name in names if name in kept]


def read(db: Database, reader: Reader, names: Collection[str] | None, now: float) -> list[Schedule]:
    """All schedules, or those of these names; without those that cannot be read."""
    if names is None:
        rows = db.ask(db.sql.SCHEDULES, (now,))
    else:
        rows = db.ask(db.sql.SCHEDULES_NAMED, (now, db.listed(names)))
    return read_each(rows, lambda row: _schedule(reader, row))


def settle(db: Database, name: str, if_was: float, fired_up_to: float, run: str, skipped: float | None) -> bool:
    """Note how far a schedule has come."""
    return db.change(db.sql.SETTLE_SCHEDULE, (max(if_was, fired_up_to), run, skipped, name, if_was)) == 1


def delete(db: Database, name: str) -> bool:
    """Forget a schedule."""
    db.begin()
    is_deleted = db.change(db.sql.DELETE_SCHEDULE, (name,)) == 1
    db.change(db.sql.FORGET_ANNOUNCEMENTS, (name,))
    db.commit()
    return is_deleted


def _row(new: NewSchedule, kept: Schedule) -> Row:
    """The columns of ``statements.PUT_SCHEDULE``."""
    return (
        new.name, new.workflow, new.timing, new.catch_up, new.most, new.overlap, 1 if new.by_code else 0,
        new.options(), new.inputs, kept.created_at, kept.fired_up_to,
    )  # fmt: skip


def _schedule(reader: Reader, row: Row) -> Schedule:
    """A row of ``statements.SCHEDULES``."""
    name, workflow, timing, catch_up, most, overlap, by_code, options, inputs, *rest = [*row]
    plain = NewSchedule(name, workflow, timing, inputs, catch_up, most, overlap, by_code=by_code == 1)
    what = read_options(plain, options)
    if what is None:
        raise reader.unreadable(f"schedule {name!r}", f"{options!r} is not how runs are started")
    *rest, announced = rest
    return Schedule(what, *rest, announced=bool(announced))

"""Schedules in a database."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.stores.schedules import Schedule, ScheduleDefinition, Schedules, merge_schedule
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.database_access import SqlCapability
from holdfast.stores.sql.rows import RowReader, read_each


class SqlSchedules(SqlCapability, Schedules):
    """The tables ``schedules`` and ``announcements``."""

    async def put(
        self, schedules: Sequence[ScheduleDefinition], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        if not schedules:
            return []
        database = self._database
        stored = await database.write(
            lambda db: _put_schedules(db, database.reader, schedules, worker, replace, database.now()), len(schedules)
        )
        database.notify_work()
        return stored

    async def advance(
        self,
        name: str,
        expected_fired_up_to: float,
        fired_up_to: float,
        *,
        run_id: str = "",
        skipped_at: float | None = None,
    ) -> bool:
        row = (max(expected_fired_up_to, fired_up_to), run_id, skipped_at, name, expected_fired_up_to)
        return await self._database.write(lambda db: db.execute(db.sql.ADVANCE_SCHEDULE, row) == 1)

    async def pause(self, name: str) -> bool:
        now = self._database.now()
        return await self._write_and_notify(lambda db: db.execute(db.sql.PAUSE_SCHEDULE, (now, name)) == 1)

    async def resume(self, name: str) -> bool:
        return await self._write_and_notify(lambda db: db.execute(db.sql.RESUME_SCHEDULE, (name,)) == 1)

    async def delete(self, name: str) -> bool:
        return await self._database.write(lambda db: _delete_schedule(db, name))

    async def list(self, names: Collection[str] | None = None) -> list[Schedule]:
        database = self._database
        return await database.read(
            lambda db: _read_schedules(db, database.reader, names, database.now()), is_slow=False
        )


def _put_schedules(
    db: Database,
    reader: RowReader,
    definitions: Sequence[ScheduleDefinition],
    worker: int | None,
    replace: bool,
    now: float,
) -> list[Schedule]:
    """Write schedules, except those that are stored already."""
    names = [new.name for new in definitions]
    db.begin()
    known = {schedule.definition.name: schedule for schedule in _read_schedules(db, reader, names, now)}
    for new in sorted(definitions, key=lambda new: new.name):  # in one order, so that two processes cannot deadlock
        before = known.get(new.name)
        row = _schedule_to_row(new, merge_schedule(before, new, now))
        is_new = before is None and db.execute(db.sql.ADD_SCHEDULE, row) == 1
        if not is_new and replace and (before is None or before.definition != new):
            db.execute(db.sql.PUT_SCHEDULE, row)
        if worker is not None:
            db.execute(db.sql.ANNOUNCE_SCHEDULE, (new.name, worker))
    if worker is not None:
        db.execute(db.sql.DELETE_STALE_ANNOUNCEMENTS)
    stored = {schedule.definition.name: schedule for schedule in _read_schedules(db, reader, names, now)}
    db.commit()
    return [stored[name] for name in names if name in stored]


def _read_schedules(db: Database, reader: RowReader, names: Collection[str] | None, now: float) -> list[Schedule]:
    """All schedules, or those with these names. Unreadable ones are left out."""
    if names is None:
        rows = db.query(db.sql.SCHEDULES, (now,))
    else:
        rows = db.query(db.sql.SCHEDULES_NAMED, (now, db.to_list_parameter(names)))
    return read_each(rows, lambda row: _read_schedule(reader, row))


def _delete_schedule(db: Database, name: str) -> bool:
    db.begin()
    is_deleted = db.execute(db.sql.DELETE_SCHEDULE, (name,)) == 1
    db.execute(db.sql.DELETE_ANNOUNCEMENTS, (name,))
    db.commit()
    return is_deleted


def _schedule_to_row(definition: ScheduleDefinition, schedule: Schedule) -> Row:
    """The columns of ``statements.PUT_SCHEDULE``."""
    return (
        definition.name, definition.workflow, definition.timing, definition.catch_up, definition.max_catch_up,
        definition.overlap, 1 if definition.is_declared_in_code else 0, definition.options_to_json(),
        definition.inputs, schedule.created_at, schedule.fired_up_to,
    )  # fmt: skip


def _read_schedule(reader: RowReader, row: Row) -> Schedule:
    """A row of ``statements.SCHEDULES``."""
    name, workflow, timing, catch_up, max_catch_up, overlap, is_declared, options, inputs, *times, is_announced = row
    without_options = ScheduleDefinition(
        name, workflow, timing, inputs, catch_up, max_catch_up, overlap, is_declared_in_code=is_declared == 1
    )
    definition = without_options.with_options_json(options)
    if definition is None:
        raise reader.make_unreadable_error(f"schedule {name!r}", f"{options!r} is not how runs are started")
    return Schedule(definition, *times, is_announced=bool(is_announced))

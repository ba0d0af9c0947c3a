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
        kept = await database.write(
            lambda db: _put_schedules(db, database.reader, schedules, worker, replace, database.now()), len(schedules)
        )
        database.notify_work()
        return kept

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
        is_changed = await self._database.write(lambda db: db.execute(db.sql.PAUSE_SCHEDULE, (now, name)) == 1)
        self._database.notify_work()
        return is_changed

    async def resume(self, name: str) -> bool:
        is_changed = await self._database.write(lambda db: db.execute(db.sql.RESUME_SCHEDULE, (name,)) == 1)
        self._database.notify_work()
        return is_changed

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
    """Keep schedules; nothing is written of those that are known as they are."""
    names = [one.name for one in definitions]
    db.begin()
    known = {one.definition.name: one for one in _read_schedules(db, reader, names, now)}
    for one in sorted(
        definitions, key=lambda one: one.name
    ):  # so that two who announce the same wait in the same order
        before = known.get(one.name)
        is_new = (
            before is None
            and db.execute(db.sql.ADD_SCHEDULE, _schedule_to_row(one, merge_schedule(None, one, now))) == 1
        )
        if not is_new and replace and (before is None or before.definition != one):
            db.execute(db.sql.PUT_SCHEDULE, _schedule_to_row(one, merge_schedule(before, one, now)))
        if worker is not None:
            db.execute(db.sql.ANNOUNCE_SCHEDULE, (one.name, worker))
    if worker is not None:
        db.execute(db.sql.DELETE_STALE_ANNOUNCEMENTS)
    kept = {one.definition.name: one for one in _read_schedules(db, reader, names, now)}
    db.commit()
    return [kept[name] for name in names if name in kept]


def _read_schedules(db: Database, reader: RowReader, names: Collection[str] | None, now: float) -> list[Schedule]:
    """All schedules, or those of these names; without those that cannot be read."""
    if names is None:
        rows = db.query(db.sql.SCHEDULES, (now,))
    else:
        rows = db.query(db.sql.SCHEDULES_NAMED, (now, db.to_list_parameter(names)))
    return read_each(rows, lambda row: _read_schedule(reader, row))


def _delete_schedule(db: Database, name: str) -> bool:
    """Forget a schedule."""
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
    name, workflow, timing, catch_up, most, overlap, by_code, options, inputs, *rest = [*row]
    plain = ScheduleDefinition(
        name, workflow, timing, inputs, catch_up, most, overlap, is_declared_in_code=by_code == 1
    )
    what = plain.with_options_json(options)
    if what is None:
        raise reader.make_unreadable_error(f"schedule {name!r}", f"{options!r} is not how runs are started")
    *rest, announced = rest
    return Schedule(what, *rest, is_announced=bool(announced))

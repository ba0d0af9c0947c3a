"""Settings of queues from code and from people, and how they apply to runs in the queue: see ``stores.queues``.

A queue that gets its row may have runs already. They become limited in batches, each in its own transaction, so that
no other transaction waits for long. ``is_complete`` says whether that has finished; if it was interrupted, the next
change of the queue finishes it. A queue that no longer needs its row has no limits from then on, but keeps the row
until its runs are unlimited, also in batches: the row is deleted with the last of them. A transaction that starts a run
locks the row, so no run is missed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

from holdfast.admission.queue_limits import QueueAdmission, QueueLimits
from holdfast.errors import StoreCorrupt
from holdfast.stores.queues import MAX_LISTED_KEYS, NewQueue, QueueKeyStatus, Queues, QueueStatus
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.database_access import DatabaseWork, SqlCapability
from holdfast.stores.sql.limited_queues import STARTED, UNSTARTED, parse_limits, parse_rate_usage
from holdfast.stores.sql.queue_placement import TurnAllocator
from holdfast.stores.sql.rows import RowReader, read_each

BATCH_SIZE = 1000
"""Runs that become limited or unlimited in one transaction."""
_UNFINISHED_STATES = ("pending", "waiting", "running")
_KEY_RETENTION_S = 86_400.0
"""Seconds after which a key is checked for being in use."""


class QueueSettings(NamedTuple):
    """What code and people have set for a queue."""

    declared_limits: QueueLimits | None = None
    override: QueueLimits | None = None
    paused_at: float | None = None

    @property
    def limits(self) -> QueueLimits:
        """The limits in effect."""
        return self.override or self.declared_limits or QueueLimits()

    @property
    def is_needed(self) -> bool:
        """Whether anything is set, so that the queue needs its row."""
        return any(setting is not None for setting in self)


class QueueChange(NamedTuple):
    """The result of a change."""

    has_changed: bool
    is_complete: bool = True
    """The runs of the queue need no change any more."""


class SqlQueues(SqlCapability, Queues):
    """The table ``queues``, and the runs in these queues."""

    async def declare(self, queues: Sequence[NewQueue]) -> None:
        database = self._database
        for name in await database.write(lambda db: _declare_queues(db, database.reader, queues), len(queues)):
            await self._finish_change(name)
        database.notify_work()

    async def set_limits(self, name: str, limits: QueueLimits | None) -> bool:
        return await self._change(name, lambda db: _change_settings(db, self._database.reader, name, override=limits))

    async def pause(self, name: str) -> bool:
        database = self._database
        return await self._change(
            name, lambda db: _change_settings(db, database.reader, name, paused_at=database.now())
        )

    async def resume(self, name: str) -> bool:
        return await self._change(name, lambda db: _change_settings(db, self._database.reader, name, paused_at=None))

    async def _change(self, name: str, work: DatabaseWork[QueueChange]) -> bool:
        change = await self._database.write(work)
        if not change.is_complete:
            await self._finish_change(name)
        self._database.notify_work()
        return change.has_changed

    async def _finish_change(self, name: str) -> None:
        """Make the runs of a queue limited or unlimited, in batches."""
        database = self._database
        for _ in range(2):  # the second time for runs that workers have released in the meantime
            keys = await database.read_for_client(lambda db: _find_runs_to_limit(db, database.reader, name))
            for at in range(0, len(keys), BATCH_SIZE):
                batch = keys[at : at + BATCH_SIZE]
                await database.write(
                    partial(_limit_runs, name=name, keys=batch, now=database.now()), len(batch), is_slow=True
                )
        while not await database.write(lambda db: _finish_change(db, database.reader, name), is_slow=True):
            pass

    async def list(self, names: Collection[str] | None = None) -> list[QueueStatus]:
        database = self._database
        return await database.read_for_client(lambda db: _read_queues(db, database.reader, names, database.now()))


# Changing


def _declare_queues(db: Database, reader: RowReader, new: Sequence[NewQueue]) -> list[str]:
    """Write the announced limits, except those that are stored already. Returns the queues to finish."""
    declared = {queue.name: queue.limits for queue in new}
    known = {row[0]: row for row in db.query(db.sql.QUEUES)}
    # Queues that are not needed any more, whose deletion was interrupted.
    incomplete = [name for name, row in known.items() if name not in declared and row[2:5] == (None, 0, None)]
    for name, limits in sorted(declared.items()):  # in one order, so that two processes cannot deadlock
        row = known.get(name)
        settings = [] if row is None else read_each([row], partial(_read_settings, reader))
        if row is not None and row[5] == 1 and settings and settings[0].declared_limits == limits:
            continue
        if not _change_settings(db, reader, name, declared_limits=limits).is_complete:
            incomplete.append(name)
    return incomplete


_UNCHANGED = object()


def _change_settings(
    db: Database,
    reader: RowReader,
    name: str,
    *,
    declared_limits: QueueLimits | object = _UNCHANGED,
    override: QueueLimits | object | None = _UNCHANGED,
    paused_at: float | object | None = _UNCHANGED,
) -> QueueChange:
    """Write some settings of a queue."""
    given = {"declared_limits": declared_limits, "override": override, "paused_at": paused_at}
    changes = {field: value for field, value in given.items() if value is not _UNCHANGED}
    db.begin()
    row = db.query_one(db.sql.LOCK_QUEUE, name)
    if row is None and any(value is not None for value in changes.values()):
        db.write(db.sql.ADD_QUEUE, [(name, QueueLimits().to_json(), 0, 0, "{}", "{}", 0.0, 0)])
        row = db.query_one(db.sql.LOCK_QUEUE, name)
    if row is None:
        db.commit()
        return QueueChange(False)
    is_broken = False
    try:
        before = _read_settings(reader, row)
    except StoreCorrupt:  # unreadable settings are overwritten
        before, is_broken = QueueSettings(paused_at=row[4]), True
    after = before._replace(**changes)
    if paused_at is not _UNCHANGED and paused_at is not None and before.paused_at is not None:
        after = before
    if after != before or is_broken:
        limits = after.limits
        values: Row = (
            limits.to_json(), _dump_limits(after.declared_limits), 0 if after.override is None else 1, after.paused_at,
            limits.concurrency, limits.key_concurrency, 1 if limits.has_token_rate else 0, name,
        )  # fmt: skip
        db.execute(db.sql.UPDATE_QUEUE, values)
        db.execute(db.sql.RECHECK_KEYS, (name,))
    db.commit()
    return QueueChange(after != before or is_broken, row[5] == 1 and after.is_needed)


def _dump_limits(limits: QueueLimits | None) -> str | None:
    return None if limits is None else limits.to_json()


def _read_settings(reader: RowReader, row: Row) -> QueueSettings:
    name, limits_text, declared_text, is_overridden, paused_at, *_ = row
    limits = parse_limits(limits_text)
    declared = None if declared_text is None else parse_limits(declared_text)
    if limits is None or (declared is None and declared_text is not None):
        raise reader.make_unreadable_error(f"queue {name!r}", f"{limits_text!r} or {declared_text!r} are not limits")
    return QueueSettings(declared, limits if is_overridden == 1 else None, paused_at)


# Runs of the queue


def _find_runs_to_limit(db: Database, reader: RowReader, name: str) -> list[int]:
    """The keys of the unfinished runs of a queue that must become limited, oldest first."""
    found: list[int] = []
    if not any(row[0] == name and _read_settings(reader, row).is_needed for row in db.query(db.sql.QUEUES)):
        return found
    for (workflow,) in db.query(db.sql.KNOWN_WORKFLOWS):
        for state in _UNFINISHED_STATES:
            last = 0
            while True:
                rows = db.query(db.sql.UNLIMITED_RUNS, (workflow, state, last, name, BATCH_SIZE))
                found += [row[0] for row in rows]
                if len(rows) < BATCH_SIZE:
                    break
                last = found[-1]
    return sorted(found)


def _limit_runs(db: Database, name: str, keys: Sequence[int], now: float) -> None:
    """Make runs limited, if the queue still has limits."""
    db.begin()
    turns = TurnAllocator(db, now)
    if turns.is_limited(name):
        rows = db.query(db.sql.LOCK_UNLIMITED, (db.to_list_parameter(keys),))
        db.lock_turns({(name, priority, queue_key) for _, queue_key, _, priority in rows})
        new: list[Row] = [
            (STARTED if epoch else UNSTARTED, turns.allocate(name, priority, queue_key), key)
            for key, queue_key, epoch, priority in rows
        ]
        if new:
            db.write(db.sql.LIMIT_RUN, new)
        turns.flush()
    db.commit()


def _finish_change(db: Database, reader: RowReader, name: str) -> bool:
    """Note that the runs of a queue are limited; or make a batch of them unlimited, if it does not need its row.

    Returns whether that was all.
    """
    db.begin()
    row = db.query_one(db.sql.LOCK_QUEUE, name)
    is_done = True
    if row is not None and _read_settings(reader, row).is_needed:
        db.execute(db.sql.SET_QUEUE_COMPLETE, (name,))
    elif row is not None:
        keys = db.query(db.sql.LOCK_LIMITED_RUNS, (name, BATCH_SIZE))
        if keys:
            db.write(db.sql.UNLIMIT_RUN, keys)
        is_done = len(keys) < BATCH_SIZE
        if is_done:
            db.execute(db.sql.DELETE_TURNS, (name,))
            db.execute(db.sql.DELETE_QUEUE_KEYS, (name,))
            db.execute(db.sql.DELETE_CHARGES, (name,))
            db.execute(db.sql.DELETE_QUEUE, (name,))
    db.commit()
    return is_done


# Reading


def _read_queues(db: Database, reader: RowReader, names: Collection[str] | None, now: float) -> list[QueueStatus]:
    """All limited queues, or those with these names."""
    db.begin_snapshot()
    rows = [row for row in db.query(db.sql.QUEUES) if names is None or row[0] in names]
    found = read_each(rows, lambda row: _read_status(db, row, _read_settings(reader, row), now))
    db.commit()
    return found


def _read_status(db: Database, row: Row, settings: QueueSettings, now: float) -> QueueStatus:
    name = row[0]
    keys = [QueueKeyStatus(*counts) for counts in db.query(db.sql.QUEUE_COUNTS, (now, name)) if counts[1] or counts[2]]
    keys.sort(key=lambda key: (-key.waiting_count, -key.running_count, key.key))
    gate = QueueAdmission(settings.limits, now, running_by_key={}, rate_usage=parse_rate_usage(row[6]))
    if settings.limits.has_token_rate:
        for key, tokens, at in sorted(db.query(db.sql.CHARGES, (name,)), key=lambda charge: charge[2]):
            gate.charge_tokens(key, tokens, min(at, now))
    return QueueStatus(
        name, settings.limits, settings.declared_limits, settings.override is not None, settings.paused_at,
        sum(key.running_count for key in keys), sum(key.waiting_count for key in keys),
        0.0 if gate.has_rate_capacity else gate.get_next_start_at(), tuple(keys[:MAX_LISTED_KEYS]),
    )  # fmt: skip


# Unused keys


def delete_idle_keys(db: Database, now: float, limit: int) -> None:
    """Delete keys without runs and without rate usage. Keys in use are checked again later."""
    for lock, extend, delete, before, extended_to in (
        (db.sql.LOCK_OLD_TURNS, db.sql.EXTEND_TURN, db.sql.DELETE_TURN, now - _KEY_RETENTION_S, now),
        (db.sql.LOCK_OLD_KEYS, db.sql.EXTEND_KEY, db.sql.DELETE_QUEUE_KEY, now, now + _KEY_RETENTION_S),
    ):
        rows = db.query(lock, (before, limit))
        in_use = [(extended_to, *key) for *key, is_used in rows if is_used]
        idle = [tuple(key) for *key, is_used in rows if not is_used]
        if in_use:
            db.write(extend, in_use)
        if idle:
            db.write(delete, idle)

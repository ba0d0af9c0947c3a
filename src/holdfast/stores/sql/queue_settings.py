"""What code and people say of queues, and the runs that are in them then: see ``stores.queues``.

A queue that gets its row may have runs already. They become limited in pieces, each in a transaction of its own, so
that nobody waits for long; ``settled`` tells whether that was finished, and whoever speaks of the queue next does what
is left. A queue that needs its row no more has no limits from then on, but keeps the row until its runs are limited no
more, in pieces as well: the row goes with the last of them. Whoever starts a run holds the row, and so no run is left
behind.
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
from holdfast.stores.sql.limited_queues import parse_limits, parse_rate_usage
from holdfast.stores.sql.queue_placement import TurnAllocator
from holdfast.stores.sql.rows import RowReader, read_each

BATCH_SIZE = 1000
"""So many runs become limited in a transaction, or limited no more."""
_UNFINISHED_STATES = ("pending", "waiting", "running")
_KEY_RETENTION_S = 86_400.0
"""Seconds after which it is looked whether a key is still in use."""


class QueueSettings(NamedTuple):
    """The row of a queue, as far as somebody has said something of it."""

    declared_limits: QueueLimits | None = None
    override: QueueLimits | None = None
    paused_at: float | None = None

    @property
    def limits(self) -> QueueLimits:
        """Those that hold."""
        return self.override or self.declared_limits or QueueLimits()

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to be kept."""
        return any(one is not None for one in self)


class QueueChange(NamedTuple):
    """What came of a change."""

    has_changed: bool
    is_complete: bool = True
    """There is nothing left to be done with its runs."""


class SqlQueues(SqlCapability, Queues):
    """The table ``queues``, and the runs that are in them."""

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
        outcome = await self._database.write(work)
        if not outcome.is_complete:
            await self._finish_change(name)
        self._database.notify_work()
        return outcome.has_changed

    async def _finish_change(self, name: str) -> None:
        """Make the runs of a queue limited, or limited no more, a few at a time."""
        database = self._database
        for _ in range(2):  # once more, for those that have come back from a worker meanwhile
            keys = await database.read_for_client(lambda db: _find_runs_to_limit(db, database.reader, name))
            for at in range(0, len(keys), BATCH_SIZE):
                piece = keys[at : at + BATCH_SIZE]
                await database.write(
                    partial(_limit_runs, name=name, keys=piece, now=database.now()), len(piece), is_slow=True
                )
        while not await database.write(lambda db: _finish_change(db, database.reader, name), is_slow=True):
            pass

    async def list(self, names: Collection[str] | None = None) -> list[QueueStatus]:
        database = self._database
        return await database.read_for_client(lambda db: _read_queues(db, database.reader, names, database.now()))


# Changing


def _declare_queues(db: Database, reader: RowReader, new: Sequence[NewQueue]) -> list[str]:
    """Announce queues; nothing is written of those that are known as they are. Those that are to be settled."""
    last = {one.name: one.limits for one in new}
    known = {row[0]: row for row in db.query(db.sql.QUEUES)}
    # Whoever was to see to those that are not needed any more was interrupted.
    unsettled = [name for name, row in known.items() if name not in last and row[2:5] == (None, 0, None)]
    for name, limits in sorted(last.items()):  # so that two who announce the same wait in the same order
        row = known.get(name)
        said = [] if row is None else read_each([row], partial(_read_settings, reader))
        if row is not None and row[5] == 1 and said and said[0].declared_limits == limits:
            continue
        if not _change_settings(db, reader, name, declared_limits=limits).is_complete:
            unsettled.append(name)
    return unsettled


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
    """Write something that was said of a queue."""
    given = {"declared_limits": declared_limits, "override": override, "paused_at": paused_at}
    news = {field: value for field, value in given.items() if value is not _UNCHANGED}
    db.begin()
    row = db.query_one(db.sql.LOCK_QUEUE, name)
    if row is None and any(value is not None for value in news.values()):
        db.write(db.sql.ADD_QUEUE, [(name, QueueLimits().to_json(), 0, 0, "{}", "{}", 0.0, 0)])
        row = db.query_one(db.sql.LOCK_QUEUE, name)
    if row is None:
        db.commit()
        return QueueChange(False)
    is_broken = False
    try:
        before = _read_settings(reader, row)
    except StoreCorrupt:  # what cannot be read is written anew
        before, is_broken = QueueSettings(paused_at=row[4]), True
    after = before._replace(**news)
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
    name, limits, declared, by_hand, paused_at, *_ = row
    holding = parse_limits(limits)
    announced = None if declared is None else parse_limits(declared)
    if holding is None or (announced is None and declared is not None):
        raise reader.make_unreadable_error(f"queue {name!r}", f"{limits!r} or {declared!r} are not limits")
    return QueueSettings(announced, holding if by_hand == 1 else None, paused_at)


# The runs that are in it


def _find_runs_to_limit(db: Database, reader: RowReader, name: str) -> list[int]:
    """The keys of the unfinished runs of a queue that are not limited, and are to be, the oldest first."""
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
    """Make runs limited, if the queue still is."""
    db.begin()
    turns = TurnAllocator(db, now)
    if turns.is_limited(name):
        rows = db.query(db.sql.LOCK_UNLIMITED, (db.to_list_parameter(keys),))
        db.lock_turns({(name, priority, queue_key) for _, queue_key, _, priority in rows})
        new: list[Row] = [
            (3 if epoch else 2, turns.allocate(name, priority, queue_key), key)
            for key, queue_key, epoch, priority in rows
        ]
        if new:
            db.write(db.sql.LIMIT_RUN, new)
        turns.flush()
    db.commit()


def _finish_change(db: Database, reader: RowReader, name: str) -> bool:
    """Note that a queue's runs are limited; or, if it needs its row no more, make some of them limited no more.

    False: there are more.
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
            for statement in (
                db.sql.DELETE_TURNS,
                db.sql.DELETE_QUEUE_KEYS,
                db.sql.DELETE_CHARGES,
                db.sql.DELETE_QUEUE,
            ):
                db.execute(statement, (name,))
    db.commit()
    return is_done


# Reading


def _read_queues(db: Database, reader: RowReader, names: Collection[str] | None, now: float) -> list[QueueStatus]:
    """All limited queues, or those of these names."""
    db.begin_snapshot()
    rows = [row for row in db.query(db.sql.QUEUES) if names is None or row[0] in names]
    found = read_each(rows, lambda row: _read_status(db, row, _read_settings(reader, row), now))
    db.commit()
    return found


def _read_status(db: Database, row: Row, settings: QueueSettings, now: float) -> QueueStatus:
    name = row[0]
    content = [
        QueueKeyStatus(key, running, waiting) for key, running, waiting in db.query(db.sql.QUEUE_COUNTS, (now, name))
    ]
    keys = [one for one in content if one.running_count or one.waiting_count]
    keys.sort(key=lambda one: (-one.waiting_count, -one.running_count, one.key))
    gate = QueueAdmission(settings.limits, now, running_by_key={}, rate_usage=parse_rate_usage(row[6]))
    if settings.limits.has_token_rate:
        for key, tokens, at in sorted(db.query(db.sql.CHARGES, (name,)), key=lambda charge: charge[2]):
            gate.charge_tokens(key, tokens, min(at, now))
    return QueueStatus(
        name, settings.limits, settings.declared_limits, settings.override is not None, settings.paused_at,
        sum(one.running_count for one in keys), sum(one.waiting_count for one in keys),
        0.0 if gate.has_rate_capacity else gate.get_next_start_at(), tuple(keys[:MAX_LISTED_KEYS]),
    )  # fmt: skip


# Keys that are in no use any more


def delete_idle_keys(db: Database, now: float, limit: int) -> None:
    """Forget keys that have no runs, nor anything used of their rates. Those that have are looked at later again."""
    for old, keep, drop, before, again in (
        (db.sql.LOCK_OLD_TURNS, db.sql.EXTEND_TURN, db.sql.DELETE_TURN, now - _KEY_RETENTION_S, now),
        (db.sql.LOCK_OLD_KEYS, db.sql.EXTEND_KEY, db.sql.DELETE_QUEUE_KEY, now, now + _KEY_RETENTION_S),
    ):
        rows = db.query(old, (before, limit))
        in_use = [(again, *place) for *place, is_used in rows if is_used]
        idle = [tuple(place) for *place, is_used in rows if not is_used]
        if in_use:
            db.write(keep, in_use)
        if idle:
            db.write(drop, idle)

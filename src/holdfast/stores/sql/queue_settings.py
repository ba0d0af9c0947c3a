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

from holdfast.admission.queue_limits import Gate, QueueLimits
from holdfast.errors import StoreCorrupt
from holdfast.stores.queues import MOST_KEYS, KeptQueue, NewQueue, QueueKey
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.limited_queues import read_limits, read_used
from holdfast.stores.sql.queue_placement import Turns
from holdfast.stores.sql.rows import Reader, read_each

AT_A_TIME = 1000
"""So many runs become limited in a transaction, or limited no more."""
_UNFINISHED = ("pending", "waiting", "running")
_FORGET_AFTER = 86_400.0
"""Seconds after which it is looked whether a key is still in use."""


class Said(NamedTuple):
    """The row of a queue, as far as somebody has said something of it."""

    declared: QueueLimits | None = None
    by_hand: QueueLimits | None = None
    paused_at: float | None = None

    @property
    def limits(self) -> QueueLimits:
        """Those that hold."""
        return self.by_hand or self.declared or QueueLimits()

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to be kept."""
        return any(one is not None for one in self)


class Outcome(NamedTuple):
    """What came of a change."""

    has_changed: bool
    is_settled: bool = True
    """There is nothing left to be done with its runs."""


# Changing


def put(db: Database, reader: Reader, new: Sequence[NewQueue]) -> list[str]:
    """Announce queues; nothing is written of those that are known as they are. Those that are to be settled."""
    last = {one.name: one.limits for one in new}
    known = {row[0]: row for row in db.ask(db.sql.QUEUES)}
    # Whoever was to see to those that are not needed any more was interrupted.
    unsettled = [name for name, row in known.items() if name not in last and row[2:5] == (None, 0, None)]
    for name, limits in sorted(last.items()):  # so that two who announce the same wait in the same order
        row = known.get(name)
        said = [] if row is None else read_each([row], partial(_said, reader))
        if row is not None and row[5] == 1 and said and said[0].declared == limits:
            continue
        if not change(db, reader, name, declared=limits).is_settled:
            unsettled.append(name)
    return unsettled


def set_by_hand(db: Database, reader: Reader, name: str, limits: QueueLimits | None) -> Outcome:
    """Set the limits of a queue, or take those back that were set."""
    return change(db, reader, name, by_hand=limits)


def pause(db: Database, reader: Reader, name: str, now: float) -> Outcome:
    """Let nothing be taken from a queue."""
    return change(db, reader, name, paused_at=now)


def resume(db: Database, reader: Reader, name: str) -> Outcome:
    """Let runs be taken from it again."""
    return change(db, reader, name, paused_at=None)


_SAME = object()


def change(
    db: Database,
    reader: Reader,
    name: str,
    *,
    declared: QueueLimits | object = _SAME,
    by_hand: QueueLimits | object | None = _SAME,
    paused_at: float | object | None = _SAME,
) -> Outcome:
    """Write something that was said of a queue."""
    given = {"declared": declared, "by_hand": by_hand, "paused_at": paused_at}
    news = {field: value for field, value in given.items() if value is not _SAME}
    db.begin()
    row = db.one(db.sql.QUEUE, name)
    if row is None and any(value is not None for value in news.values()):
        db.write(db.sql.ADD_QUEUE, [(name, QueueLimits().dump(), 0, 0, "{}", "{}", 0.0, 0)])
        row = db.one(db.sql.QUEUE, name)
    if row is None:
        db.commit()
        return Outcome(False)
    is_broken = False
    try:
        before = _said(reader, row)
    except StoreCorrupt:  # what cannot be read is written anew
        before, is_broken = Said(paused_at=row[4]), True
    after = before._replace(**news)
    if paused_at is not _SAME and paused_at is not None and before.paused_at is not None:
        after = before
    if after != before or is_broken:
        limits = after.limits
        values: Row = (
            limits.dump(), _dumped(after.declared), 0 if after.by_hand is None else 1, after.paused_at,
            limits.concurrency, limits.key_concurrency, 1 if limits.counts_tokens else 0, name,
        )  # fmt: skip
        db.change(db.sql.PUT_QUEUE, values)
        db.change(db.sql.OPEN_KEYS, (name,))
    db.commit()
    return Outcome(after != before or is_broken, row[5] == 1 and after.is_needed)


def _dumped(limits: QueueLimits | None) -> str | None:
    return None if limits is None else limits.dump()


def _said(reader: Reader, row: Row) -> Said:
    name, limits, declared, by_hand, paused_at, *_ = row
    holding = read_limits(limits)
    announced = None if declared is None else read_limits(declared)
    if holding is None or (announced is None and declared is not None):
        raise reader.unreadable(f"queue {name!r}", f"{limits!r} or {declared!r} are not limits")
    return Said(announced, holding if by_hand == 1 else None, paused_at)


# The runs that are in it


def to_be_limited(db: Database, reader: Reader, name: str) -> list[int]:
    """The keys of the unfinished runs of a queue that are not limited, and are to be, the oldest first."""
    found: list[int] = []
    if not any(row[0] == name and _said(reader, row).is_needed for row in db.ask(db.sql.QUEUES)):
        return found
    for (workflow,) in db.ask(db.sql.KNOWN_WORKFLOWS):
        for state in _UNFINISHED:
            last = 0
            while True:
                rows = db.ask(db.sql.UNLIMITED_STRETCH, (workflow, state, last, name, AT_A_TIME))
                found += [row[0] for row in rows]
                if len(rows) < AT_A_TIME:
                    break
                last = found[-1]
    return sorted(found)


def limit(db: Database, name: str, keys: Sequence[int], now: float) -> None:
    """Make runs limited, if the queue still is."""
    db.begin()
    turns = Turns(db, now)
    if turns.is_limited(name):
        rows = db.ask(db.sql.LOCK_UNLIMITED, (db.listed(keys),))
        db.lock_turns({(name, priority, queue_key) for _, queue_key, _, priority in rows})
        new: list[Row] = [
            (3 if epoch else 2, turns.next(name, priority, queue_key), key) for key, queue_key, epoch, priority in rows
        ]
        if new:
            db.write(db.sql.LIMIT_RUN, new)
        turns.flush()
    db.commit()


def settle(db: Database, reader: Reader, name: str) -> bool:
    """Note that a queue's runs are limited; or, if it needs its row no more, make some of them limited no more.

    False: there are more.
    """
    db.begin()
    row = db.one(db.sql.QUEUE, name)
    is_done = True
    if row is not None and _said(reader, row).is_needed:
        db.change(db.sql.SETTLE_QUEUE, (name,))
    elif row is not None:
        keys = db.ask(db.sql.LIMITED_RUNS, (name, AT_A_TIME))
        if keys:
            db.write(db.sql.UNLIMIT_RUN, keys)
        is_done = len(keys) < AT_A_TIME
        if is_done:
            for statement in (db.sql.DROP_TURNS, db.sql.DROP_KEYS, db.sql.DROP_CHARGES, db.sql.DROP_QUEUE):
                db.change(statement, (name,))
    db.commit()
    return is_done


# Reading


def read(db: Database, reader: Reader, names: Collection[str] | None, now: float) -> list[KeptQueue]:
    """All limited queues, or those of these names."""
    db.begin_reading()
    rows = [row for row in db.ask(db.sql.QUEUES) if names is None or row[0] in names]
    found = read_each(rows, lambda row: _kept(db, row, _said(reader, row), now))
    db.commit()
    return found


def _kept(db: Database, row: Row, said: Said, now: float) -> KeptQueue:
    name = row[0]
    content = [QueueKey(key, running, waiting) for key, running, waiting in db.ask(db.sql.QUEUE_CONTENT, (now, name))]
    keys = [one for one in content if one.running or one.waiting]
    keys.sort(key=lambda one: (-one.waiting, -one.running, one.key))
    gate = Gate(said.limits, now, running={}, used=read_used(row[6]))
    if said.limits.counts_tokens:
        for key, tokens, at in sorted(db.ask(db.sql.SEE_CHARGES, (name,)), key=lambda charge: charge[2]):
            gate.charge(key, tokens, min(at, now))
    return KeptQueue(
        name, said.limits, said.declared, said.by_hand is not None, said.paused_at,
        sum(one.running for one in keys), sum(one.waiting for one in keys),
        0.0 if gate.has_rate else gate.next_at(), tuple(keys[:MOST_KEYS]),
    )  # fmt: skip


# Keys that are in no use any more


def forget_keys(db: Database, now: float, limit: int) -> None:
    """Forget keys that have no runs, nor anything used of their rates. Those that have are looked at later again."""
    for old, keep, drop, before, again in (
        (db.sql.OLD_TURNS, db.sql.KEEP_TURN_LONGER, db.sql.DROP_TURN, now - _FORGET_AFTER, now),
        (db.sql.OLD_KEYS, db.sql.KEEP_KEY_LONGER, db.sql.DROP_KEY, now, now + _FORGET_AFTER),
    ):
        rows = db.ask(old, (before, limit))
        in_use = [(again, *place) for *place, is_used in rows if is_used]
        idle = [tuple(place) for *place, is_used in rows if not is_used]
        if in_use:
            db.write(keep, in_use)
        if idle:
            db.write(drop, idle)

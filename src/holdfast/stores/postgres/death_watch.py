"""How a fleet notices the death of a worker within a tenth of a second: one elected worker watches all locks.

The **leader** holds a lock of its own (``LEADER_LOCK_ID``). Every ``READ_INTERVAL_S`` seconds it reads which locks of
this schema are held. A lock that was held before and is not any more may be that of a dead worker, and the leader then
checks all workers (see ``workers``, which decides). While it is the only worker, it reads rarely; a new worker notifies
it.

**The other workers** watch only the leader: each tries to take the leader's lock now and then. The one that gets it is
the next leader, and checks all workers at once, since more than one may have died. The more workers there are, the less
often each of them tries: whatever the size of the fleet, one of them tries every ``TRY_INTERVAL_S`` seconds, also when
several workers die together with the leader.

A leader that is suspended (SIGSTOP) keeps its lock and reads nothing. Until it continues, or its connection ends,
deaths are found by the workers' ordinary polls. All of this only says when to check, and never that a worker is dead.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection

from holdfast.stores.sql.database import Database

FOLLOWER_LOCK_ID = 0
"""The number of the lock that all followers of runs share; workers' ids start at 1."""
LEADER_LOCK_ID = -(2**31)
"""The number of the leader's lock."""
READ_INTERVAL_S = 0.05
"""Seconds between two readings of the leader."""
LONE_READ_INTERVAL_S = 5.0
"""Seconds between two readings of a leader that has seen no other worker."""
TRY_INTERVAL_S = 0.08
"""Seconds after which some worker of the fleet tries to become the leader, on average."""
_TRY_LEADER_LOCK = "SELECT pg_try_advisory_lock(%s::int4, %s::int4)"
_RELEASE_LEADER_LOCK = "SELECT pg_advisory_unlock(%s::int4, %s::int4)"
_READ_LOCKS = (
    "SELECT objid::int8 FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND classid = %s::int8::oid "
    "AND objsubid = 2 AND granted "
    "AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"
)


class DeathWatch:
    """The part of one session in the watch. It is used by the session's thread only.

    ``lock_class`` is the first half of the numbers of all locks.
    """

    def __init__(self, lock_class: int, now: Callable[[], float] = time.monotonic) -> None:
        self.fleet_size = 2
        """How many workers there are, counted now and then."""
        self._lock_class = lock_class
        self._now = now
        self.is_leader = False
        self._held_locks: frozenset[int] = frozenset()
        """The locks of workers that were held at the last reading."""
        self._next_at = 0.0

    def reset(self) -> None:
        """The session is a new one, which has no locks."""
        self.is_leader = False
        self._held_locks = frozenset()
        self._next_at = 0.0

    def expedite(self) -> None:
        """A worker has registered: the leader reads at once, since it misses only locks that it has seen."""
        if self.is_leader:
            self._next_at = self._now()

    def get_wait_s(self) -> float:
        """Seconds until ``check`` is due."""
        return max(0.0, self._next_at - self._now())

    def check(self, db: Database, own_workers: Collection[int]) -> bool:
        """Read the locks, or try to become the leader. Returns whether a worker may have died. Blocking."""
        self._next_at = self._now() + LONE_READ_INTERVAL_S  # if this fails
        if self.is_leader:
            return bool(self._held_locks - self._read(db, own_workers))
        [(self.is_leader,)] = db.query(_TRY_LEADER_LOCK, (self._lock_class, LEADER_LOCK_ID))
        if self.is_leader:
            self._read(db, own_workers)
        else:
            interval = TRY_INTERVAL_S * max(1, self.fleet_size - 1)
            self._next_at = self._now() + interval * random.uniform(0.5, 1.5)
        return self.is_leader

    def _read(self, db: Database, own_workers: Collection[int]) -> frozenset[int]:
        """The locks of workers that are held, and when to read them again."""
        numbers = {_to_signed(row[0]) for row in db.query(_READ_LOCKS, (self._lock_class & 0xFFFFFFFF,))}
        self._held_locks = held = frozenset(numbers - {FOLLOWER_LOCK_ID, LEADER_LOCK_ID})
        is_alone = held <= {number for worker in own_workers for number in (worker, -worker)}
        self._next_at = self._now() + (LONE_READ_INTERVAL_S if is_alone else READ_INTERVAL_S)
        return held

    def stop_leading(self, db: Database) -> None:
        """This session has no worker any more: let another one lead."""
        self.reset()
        db.query(_RELEASE_LEADER_LOCK, (self._lock_class, LEADER_LOCK_ID))


def _to_signed(number: int) -> int:
    """The second half of a lock's number, which ``pg_locks`` shows without its sign."""
    return number - 2**32 if number >= 2**31 else number

"""Workers on a PostgreSQL database: registering, and finding out which of them are dead.

A worker holds a session lock (see ``worker_session``), and its row says when the server started on which it took the
lock. The lock is free as soon as the process or its connection is gone: then the worker is presumed dead. Perhaps only
the connection was cut; a live worker takes its lock again in a moment. So such a worker is checked twice.

Without a lock of its own (behind a pooler), or on a server that has been restarted since, the lease decides, by the
database's clock, and as far as the caller's window reaches (see ``leases``). A listener never has a lock: only
``reap_dead_workers`` with ``include_listeners`` looks for listeners whose lease has passed.

**Neighbors.** Each worker watches the few that come after it in a circle, so a check costs the same in a fleet of any
size. Whichever workers die, at least one live worker watches one of them. It then checks all workers, since deaths come
in groups.

**One poll for everything.** A worker that has nothing to do sends one query now and then, about everything that may
concern it without a notification: workers that seem to be dead, runs that are due, signals and requests for the runs
that it holds, workflows that were disabled or enabled, and whether a newer Holdfast has migrated the schema.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from holdfast.stores.contract import NewWorker
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.postgres.migrations import quote_identifier
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.postgres.worker_session import SERVER_STARTED_AT
from holdfast.stores.sql.claims import ClaimScope
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.workers import PresumedDeadWorker, worker_to_row

FOLLOWER_LOCK_ID = 0
"""The number of the lock that whoever follows runs shares; workers' ids begin at 1."""
_DATABASE_CLOCK = "extract(epoch FROM clock_timestamp())::float8"
_LEASE_TIME = f"coalesce(%(time)s::float8, {_DATABASE_CLOCK})"
"""The database's clock, unless a test has its own."""


NEIGHBOR_COUNT = 3
"""How many workers each one watches: those with the next higher ids, as if all stood in a circle."""


def _make_lock_test(number: int | str, shared: str = "") -> str:
    """Whether nobody holds a lock, or, if ``shared``, nobody but those who share it. It is not kept.

    ``pg_locks`` would tell it as well, but it copies all locks of the server, while everybody else waits.
    """
    which = f"(%(class)s::int4, {number}::int4)"
    return f"CASE WHEN pg_try_advisory_lock{shared}{which} THEN pg_advisory_unlock{shared}{which} ELSE false END"


_IS_LOCK_FREE = (
    f"CASE WHEN server_started_at = {SERVER_STARTED_AT} THEN {_make_lock_test('id', '_shared')} ELSE false END"
)
"""Whether the lock of a worker is free, and that means something."""


def compute_lock_class(schema: str) -> int:
    """The first half of the numbers of all locks of a schema."""
    return int.from_bytes(hashlib.blake2b(schema.encode(), digest_size=4).digest(), signed=True)


class DeathEvidence(NamedTuple):
    """A worker that may be dead."""

    worker: PresumedDeadWorker
    heartbeat_at: float
    lease_expires_at: float
    has_lost_lock: bool
    """Its lock is free, and that means something."""


class PollResult(NamedTuple):
    """What a look has found."""

    presumed_dead: list[DeathEvidence]
    has_due_runs: bool
    """Something may be claimed."""
    has_run_changes: bool
    """Something was sent to, or asked of, runs that the worker holds."""
    disabled_workflows: str
    """Which workflows are disabled, as one text."""
    is_followed: bool
    """Somebody follows runs, perhaps those that are executed here."""
    compatible_from: int
    """The version of the schema that a Holdfast must know to use it."""
    database_time: float
    """The database's clock."""


class WorkerQueries:
    """The statements about workers, for one schema."""

    def __init__(self, statements: PgStatements) -> None:
        schema = quote_identifier(statements.schema)
        self._lock_class = compute_lock_class(statements.schema)
        workers, signals, runs, disabled_workflows, meta = (
            f"{schema}.{name}" for name in ("workers", "signals", "runs", "disabled_workflows", "meta")
        )
        self._register_sql = (
            f"INSERT INTO {workers} "
            f"(token, name, host, pid, workflows, queues, is_listener, state, started_at, lease_expires_at, "
            "heartbeat_at) "
            f"SELECT %(token)s, %(name)s, %(host)s, %(pid)s, %(workflows)s, %(queues)s, %(is_listener)s, 'live', "
            "t.now, "
            f"t.now + %(lease)s, t.now FROM (SELECT {_LEASE_TIME} AS now) t RETURNING id"
        )
        self._renew_sql = (
            f"UPDATE {workers} SET lease_expires_at = t.now + %(lease)s, heartbeat_at = t.now "
            f"FROM (SELECT {_LEASE_TIME} AS now) t WHERE id = %(worker)s AND state = 'live'"
        )
        self._renew_listener_sql = f"{self._renew_sql} AND is_listener = 1"
        self._expired_listeners_sql = (
            f"SELECT id, name, host, pid FROM {workers} "
            f"WHERE state = 'live' AND is_listener = 1 "
            f"AND greatest(heartbeat_at, %(since)s) + lease_expires_at - heartbeat_at < %(until)s ORDER BY id"
        )
        self._save_server_start_sql = f"UPDATE {workers} SET server_started_at = %s WHERE id = %s AND state = 'live'"
        self._has_lost_lock_sql = f"SELECT {_IS_LOCK_FREE} FROM {workers} WHERE id = %(worker)s"
        serving = f"SELECT * FROM {workers} WHERE state = 'live' AND is_listener = 0"
        self.neighbors_sql = (
            f"SELECT * FROM ((SELECT *, 0 AS lap FROM ({serving} AND id > %(me)s) w ORDER BY id LIMIT "
            f"{NEIGHBOR_COUNT}) "
            f"UNION ALL (SELECT *, 1 FROM ({serving} AND id < %(me)s) w ORDER BY id LIMIT {NEIGHBOR_COUNT})) w "
            f"ORDER BY lap, id LIMIT {NEIGHBOR_COUNT}"
        )
        """The neighbors of a worker."""
        self._presumed_dead_sql, nearby = (
            f"SELECT json_agg(json_build_array(id, name, host, pid, heartbeat_at, lease_expires_at, lost)) FROM "
            "(SELECT w.*, "
            f"{_IS_LOCK_FREE} AS lost FROM ({some}) w) w WHERE lost OR lease_expires_at < {_LEASE_TIME}"
            for some in (f"{serving} AND id <> %(me)s", self.neighbors_sql)
        )
        self._poll_sql = (
            f"SELECT ({nearby}), ({statements.HAS_DUE}), "
            f"EXISTS (SELECT 1 FROM {signals} s CROSS JOIN LATERAL (SELECT 1 FROM {runs} r WHERE r.key = s.run "
            f"AND r.owner + 0 = %(me)s OFFSET 0) r WHERE s.xid >= %(cursor)s::text::xid8) "
            f"OR EXISTS ({statements.REQUESTS.replace('%s', '%(me)s')}), "
            f"(SELECT coalesce(string_agg(workflow, ' ' ORDER BY workflow), '') FROM {disabled_workflows}), "
            f"NOT {_make_lock_test(FOLLOWER_LOCK_ID)}, (SELECT value::int FROM {meta} WHERE name = 'compatible_from'), "
            f"{_LEASE_TIME}"
        )

    def register_worker(
        self, db: Database, worker: NewWorker, token: str, lease_time: float | None, lease_s: float
    ) -> int:
        """Write a worker's row. Its lease decides whether it lives, until its lock is noted."""
        names = ("token", "name", "host", "pid", "workflows", "queues", "is_listener")
        values = dict(zip(names, worker_to_row(worker, token), strict=True))
        [(number,)] = db.query(self._register_sql, {**values, "time": lease_time, "lease": lease_s})
        return number

    def renew_lease(self, db: Database, worker: int, lease_time: float | None, lease_s: float) -> bool:
        """Prolong a lease. False: the worker is live no more."""
        return db.execute(self._renew_sql, {"worker": worker, "time": lease_time, "lease": lease_s}) == 1

    def renew_listener_lease(self, db: Database, worker: int, lease_time: float | None, lease_s: float) -> bool:
        """The same for a worker by lease; false as well if it is none."""
        return db.execute(self._renew_listener_sql, {"worker": worker, "time": lease_time, "lease": lease_s}) == 1

    def find_expired_listeners(self, db: Database, window: LeaseWindow) -> list[PresumedDeadWorker]:
        """Workers by lease whose lease has passed within ``window``."""
        return [
            PresumedDeadWorker(*row, is_listener=True)
            for row in db.query(self._expired_listeners_sql, window._asdict())
        ]

    def save_server_start(self, db: Database, worker: int, server_started_at: float | None) -> None:
        """A worker has its lock, on a server that has begun then. ``None``: its lease decides, not its lock."""
        db.execute(self._save_server_start_sql, (server_started_at, worker))

    def poll(
        self, db: Database, me: int, scope: ClaimScope, cursor: int, now: float, lease_time: float | None
    ) -> PollResult:
        """Look for all that might have become a worker's business.

        ``lease_time`` is given where the clock is not trusted.
        """
        values = {"class": self._lock_class, "now": now, "time": lease_time, "me": me, "cursor": cursor}
        [row] = db.query(self._poll_sql, {**scope.to_parameters(db), **values})
        return PollResult(_parse_evidence(row[0]), *row[1:])

    def find_presumed_dead(self, db: Database, me: int, lease_time: float | None) -> list[DeathEvidence]:
        """All workers that may be dead."""
        return _parse_evidence(
            db.query(self._presumed_dead_sql, {"class": self._lock_class, "time": lease_time, "me": me})[0][0]
        )

    def set_following(self, db: Database, is_following: bool) -> None:
        """Let others see, by a lock, that somebody here follows runs; or no more."""
        change = "lock" if is_following else "unlock"
        db.query(f"SELECT pg_advisory_{change}_shared(%s::int4, %s::int4)", (self._lock_class, FOLLOWER_LOCK_ID))

    def has_lost_lock(self, db: Database, worker: PresumedDeadWorker) -> bool:
        """Whether a worker's lock is free, and that means something."""
        return db.query(self._has_lost_lock_sql, {"worker": worker.id, "class": self._lock_class}) == [(True,)]


def _parse_evidence(found: list[list[Any]] | None) -> list[DeathEvidence]:
    return [DeathEvidence(PresumedDeadWorker(*one[:4]), *one[4:]) for one in found or ()]

"""Workers on a PostgreSQL database: registering, and finding out which of them are dead.

A worker holds a session lock (see ``worker_session``), and its row says when the server started on which it took the
lock. The lock is free as soon as the process or its connection is gone: then the worker is presumed dead. Perhaps only
the connection was cut; a live worker takes its lock again in a moment. So such a worker is checked twice.

Without a lock of its own (behind a pooler), or on a server that has been restarted since, the lease decides, by the
database's clock, and as far as the caller's window reaches (see ``leases``). A listener never has a lock: only
``reap_dead`` with ``include_listeners`` looks for listeners whose lease has passed.

**Neighbors.** Each worker watches the few that come after it in a circle, so a check costs the same in a fleet of any
size. Whichever workers die, at least one live worker watches one of them. It then checks all workers, since deaths come
in groups.

**One poll for everything.** A worker that has nothing to do sends one query now and then, about everything that may
concern it without a notification: workers that seem to be dead, runs that are due, signals and requests for the runs
that it holds, workflows that were disabled or enabled, and whether a newer Holdfast has migrated the schema.

**Cut off.** The server drops the locks of all workers when it loses its connections to them, as when a network is away.
A process that could not connect itself knows that others could not either, and gives them time to come back
(``REJOIN_GRACE_S``) before it takes a free lock for a death.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import StoreError, StoreLocked, StoreUnavailable, UsageError
from holdfast.stores.claims import NewSignals
from holdfast.stores.clocks import monotonic
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.operations import Run
from holdfast.stores.postgres.connection_worker import ConnectionWorker
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.postgres.migrations import quote_identifier
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.postgres.worker_session import SERVER_STARTED_AT
from holdfast.stores.sql.claims import ClaimScope, SqlClaims
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.workers import PresumedDeadWorker, declare_dead, retire_worker, worker_to_row
from holdfast.stores.workers import NewWorker, ReapResult, Workers

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PgStore

log = logging.getLogger("holdfast.stores")

DEATH_RECHECK_DELAY_S = 0.1
"""Seconds after which a suspect is looked at again: by then, a worker that lives has its lock again."""
DECLARE_DEAD_TIMEOUT_S = 0.25
"""Seconds to wait for rows of a worker that seems to be dead. It may be a process that was suspended with these rows
locked, and all who see that would wait for as long as the server lets it be."""
REJOIN_GRACE_S = 5.0
"""Seconds after the last failed attempt to connect in which free locks mean nothing. Others pause for up to a second
between two attempts, and an attempt takes its time where packets get lost."""

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


class PgClaims(SqlClaims):
    """The runs that workers take from a PostgreSQL database."""

    def __init__(self, store: PgStore) -> None:
        super().__init__(store)
        self._store = store
        self.scope = ClaimScope((), ())
        """What this process's workers serve, as far as they have asked for it."""
        self.signal_cursor = 0
        """Where the last look for signals ended."""

    async def claim(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        runs = await super().claim(
            worker, workflows=workflows, queues=queues, limit=limit, suspect_delay_s=suspect_delay_s
        )
        for run in runs:
            if run.is_limited:
                self._store.notifier.track_limited(run)
        return runs

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        self.scope = ClaimScope(workflows, queues)
        return await super().get_next_wake_at(workflows=workflows, queues=queues)

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        found = await super().get_new_signals(worker, after)
        self.signal_cursor = found.cursor
        return found


class PgWorkers(Workers):
    """The workers on a PostgreSQL database."""

    def __init__(self, store: PgStore, claims: PgClaims, poll_interval_s: float) -> None:
        self.queries = WorkerQueries(PgStatements(store.schema))
        self._store = store
        self._claims = claims
        self._poll_interval_s = poll_interval_s
        self._own_workers: set[int] = set()
        """Workers registered through this object that have not retired."""
        self._dead_workers: set[int] = set()
        """Those that were declared dead, and whose locks are still held here."""
        self._disabled_workflows = ""
        self._presumed_dead: list[DeathEvidence] = []
        """Workers that the last look has found to be perhaps dead."""
        self._polled_at = 0.0
        """The database's clock at the last look."""
        self._poll_task: asyncio.Task[None] | None = None
        self._has_polled = False

    def stop_polling(self) -> None:
        """The store is being closed."""
        if self._poll_task is not None:
            self._poll_task.cancel()
            self._poll_task = None

    def abandon(self, writer: ConnectionWorker) -> None:
        """Retire this object's workers without a loop."""
        for worker in self._own_workers:
            with suppress(StoreError, UsageError):
                writer.run_blocking(partial(retire_worker, worker=worker, now=self._store.now()))

    def clear(self) -> None:
        """The store is closed: the locks of whoever has not retired are gone with the connection that had them."""
        self._poll_task = None
        self._own_workers.clear()

    async def register(self, worker: NewWorker, lease_s: float) -> int:
        token = secrets.token_hex(8)
        if worker.is_listener:  # it is none of this process's: there is nothing to lock, and to look for
            return await self._store.write(
                lambda db: self.queries.register_worker(db, worker, token, self._store.lease_time, lease_s)
            )
        while self._dead_workers:
            await self._store.session.unlock_worker(self._dead_workers.pop())
        number = await self._store.write(
            lambda db: self.queries.register_worker(db, worker, token, self._store.lease_time, lease_s)
        )
        self._own_workers.add(number)
        began = await self._store.session.lock_worker(number)
        if began is not None:
            await self._store.write(lambda db: self.queries.save_server_start(db, number, began))
        if self._poll_interval_s and self._poll_task is None:
            self._poll_task = asyncio.get_running_loop().create_task(self._poll_forever())
        return number

    def save_server_starts(self, db: PgDatabase, workers: Collection[int], server_started_at: float | None) -> None:
        """The keeper has locks again, or has got them late, or cannot have any."""
        for worker in workers:
            self.queries.save_server_start(db, worker, server_started_at)

    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        return await self._store.session.run(
            lambda db: self.queries.renew_listener_lease(db, worker, self._store.lease_time, lease_s)
        )

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        held = self._store.session.run_blocking(
            lambda db: self.queries.renew_lease(db, worker, self._store.lease_time, lease_s)
        )
        if not held:
            self._own_workers.discard(worker)
            self._dead_workers.add(worker)
        return held

    async def retire(self, worker: int) -> None:
        await self._store.write(lambda db: retire_worker(db, worker, self._store.now()))
        self._own_workers.discard(worker)
        self._store.notifier.notify_work()
        with suppress(StoreUnavailable):  # then it is free already
            await self._store.session.unlock_worker(worker)

    async def reap_dead(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        if self._poll_task is None or not self._has_polled:
            await self._poll(except_worker)
        doubtful, self._presumed_dead = self._presumed_dead, []
        # Of two times the earlier one: the database's clock may have been set since the window was made.
        until = self._polled_at if window is None else min(window.until, self._polled_at)
        counted = LeaseWindow(0.0 if window is None else window.since, until)
        suspects = [
            one.worker
            for one in doubtful
            if (one.has_lost_lock and self._can_trust_locks())
            or counted.has_expired(one.heartbeat_at, one.lease_expires_at)
        ]
        if include_listeners:
            listeners = await self._store.read(lambda db: self.queries.find_expired_listeners(db, counted))
            suspects += [one for one in listeners if one.id != except_worker]
        reaped = ReapResult()
        for suspect in suspects:
            try:
                one = await self._store.writer.run_in_thread(partial(self._declare_dead, suspect, counted))
            except StoreLocked:
                continue  # another worker is at it, or it was stopped in the middle of a commit: the next look tells
            reaped = ReapResult(
                reaped.worker_ids + one.worker_ids,
                reaped.released_count + one.released_count,
                reaped.dead_run_ids + one.dead_run_ids,
            )
        if reaped.worker_ids:
            self._store.notifier.notify_all()  # also what the dead ones have not told any more
        return reaped

    def _can_trust_locks(self) -> bool:
        """Whether a free lock means that a worker is dead, and not that all were cut off a moment ago."""
        return monotonic() - self._store.unreachable_at > REJOIN_GRACE_S

    def _declare_dead(self, worker: PresumedDeadWorker, window: LeaseWindow, db: PgDatabase) -> ReapResult:
        """Bury a worker, unless somebody holds what that needs: commits must not have to wait for long behind it."""

        def is_dead(suspect: PresumedDeadWorker, beat_at: float, lease_until: float) -> bool:
            if window.has_expired(beat_at, lease_until):
                return True
            return not suspect.is_listener and self._can_trust_locks() and self.queries.has_lost_lock(db, suspect)

        db.lock_timeout_s = DECLARE_DEAD_TIMEOUT_S
        try:
            return declare_dead(db, [worker], is_dead, self._store.now())
        finally:
            db.lock_timeout_s = None

    # Polling

    async def _poll_forever(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(self._poll_interval_s)
            try:
                await self._poll(max(self._own_workers, default=None))
                failing = False
            except StoreError as error:
                if not failing:
                    log.warning("the store cannot be read; trying again: %s", error)
                failing = True
            except Exception:
                log.exception("looking for what has changed failed; trying again")

    async def _poll(self, me: int | None) -> None:
        seen = await self._run_poll_query(me)
        if seen.presumed_dead or me is None or not self._poll_interval_s:  # else only the worker's neighbors matter
            seen = seen._replace(presumed_dead=await self._find_presumed_dead(me))
        if seen.presumed_dead and self._poll_interval_s:
            await asyncio.sleep(DEATH_RECHECK_DELAY_S)
            known = {one.worker for one in seen.presumed_dead}
            seen = seen._replace(
                presumed_dead=[one for one in await self._find_presumed_dead(me) if one.worker in known]
            )
        self._has_polled = True
        self._presumed_dead, self._polled_at = seen.presumed_dead, seen.database_time
        self._store.notifier.is_followed = seen.is_followed
        if (
            seen.presumed_dead
            or seen.has_due_runs
            or seen.has_run_changes
            or seen.disabled_workflows != self._disabled_workflows
        ):
            self._disabled_workflows = seen.disabled_workflows
            self._store.report_change()

    async def _find_presumed_dead(self, me: int | None) -> list[DeathEvidence]:
        return await self._store.read(lambda db: self.queries.find_presumed_dead(db, me or 0, self._store.lease_time))

    async def _run_poll_query(self, me: int | None) -> PollResult:
        def look(db: Database) -> tuple[PollResult, float, float]:
            asked = monotonic()
            seen = self.queries.poll(
                db, me or 0, self._claims.scope, self._claims.signal_cursor, self._store.now(), self._store.lease_time
            )
            return seen, asked, monotonic()

        seen, asked, answered = await self._store.read(look)
        self._store.sync_clock(seen.database_time, asked, answered)
        self._store.check_schema(seen.compatible_from)
        return seen


def _parse_evidence(found: list[list[Any]] | None) -> list[DeathEvidence]:
    return [DeathEvidence(PresumedDeadWorker(*one[:4]), *one[4:]) for one in found or ()]

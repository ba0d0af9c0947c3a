"""Workers on a PostgreSQL database: registering, and finding out which of them are dead.

A worker holds two locks, each in a session of its own: one in the worker session (see ``worker_session``), and one in
the session that writes. Its row says when the server started on which it took them. The server frees both as soon as
the process is gone: then the worker is presumed dead. A lost connection frees only one. Perhaps all of its connections
were cut; a live worker takes its locks again in a moment. So such a worker is checked twice, and the time in between is
a multiple of how long it takes to connect.

Without a lock of its own (behind a pooler), or on a server that has been restarted since, the lease decides, by the
database's clock, and as far as the caller's window reaches (see ``leases``). A listener never has a lock: only
``reap_dead`` with ``include_listeners`` looks for listeners whose lease has passed.

**Deaths** are noticed by the worker that watches all locks (see ``death_watch``). Where that one fails, and for expired
leases, each worker's poll checks its neighbors, the few that come after it in a circle, so a check costs the same in a
fleet of any size. Whichever workers die, at least one live worker watches one of them. It then checks all workers,
since deaths come in groups.

**One poll for everything.** A worker that has nothing to do sends one query now and then, about everything that may
concern it without a notification: workers that seem to be dead, runs that are due, signals and requests for the runs
that it holds, workflows that were disabled or enabled, and whether a newer Holdfast has migrated the schema.

**Cut off.** The server drops the locks of all workers when it loses its connections to them, as when a network is away.
A process that lost its own session, or could not connect, knows that others may be cut off as well, and gives them time
to come back (``REJOIN_GRACE_S``) before it takes a free lock for a death.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import StoreError, StoreLocked, StoreUnavailable, UsageError
from holdfast.stores.claims import EventFactory, NewSignals
from holdfast.stores.clocks import monotonic
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.operations import Run
from holdfast.stores.postgres.adapters import IntArray
from holdfast.stores.postgres.connection_worker import ConnectionWorker
from holdfast.stores.postgres.connections import SERVER_STARTED_AT
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.postgres.death_watch import FOLLOWER_LOCK_ID
from holdfast.stores.postgres.migrations import quote_identifier
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.sql.claims import ClaimScope, SqlClaims
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.workers import PresumedDeadWorker, declare_dead, retire_worker, worker_to_row
from holdfast.stores.workers import NewWorker, ReapResult, Workers

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PgStore

log = logging.getLogger("holdfast.stores")

MIN_DEATH_RECHECK_DELAY_S = 0.03
"""Minimum seconds after which a presumed dead worker is checked again: by then, a live worker has its lock again."""
_RECHECK_CONNECT_FACTOR = 3
"""The delay as a multiple of the time that connecting takes from here."""
DECLARE_DEAD_TIMEOUT_S = 0.25
"""Seconds to wait for the rows of a worker that seems to be dead. It may be a process that was suspended while it had
these rows locked, and every worker that notices would wait until the server ends its session."""
FLEET_COUNT_INTERVAL_S = 30.0
"""Seconds between two counts of the workers: see ``death_watch``. A poll must not read a row for each of them."""
REJOIN_GRACE_S = 5.0
"""Seconds after this process was cut off in which free locks mean nothing. Other processes pause for up to a second
between two attempts, and an attempt is slow where packets get lost."""

_DATABASE_CLOCK = "extract(epoch FROM clock_timestamp())::float8"
_LEASE_TIME = f"coalesce(%(time)s::float8, {_DATABASE_CLOCK})"
"""The database's clock, unless a test has its own."""


FIRST_POLL_DELAY_S = 0.1
"""Maximum seconds before the first poll. It takes long, because the server has no plan for it yet, and must not delay
the first claim."""
_LISTENING_POLL_FACTOR = 1.5
"""How much longer the interval between two polls is while notifications arrive, and deaths are noticed without it."""
NEIGHBOR_COUNT = 3
"""How many workers each one watches: those with the next higher ids, in a circle."""


def _make_lock_test(number: int | str, shared: str = "") -> str:
    """SQL for whether a lock is free; with ``shared``, whether at most sharers hold it. The lock is not kept.

    ``pg_locks`` would show it too, but copies all locks of the server while everyone else waits.
    """
    lock_key = f"(%(class)s::int4, {number}::int4)"
    return f"CASE WHEN pg_try_advisory_lock{shared}{lock_key} THEN pg_advisory_unlock{shared}{lock_key} ELSE false END"


_IS_LOCK_FREE = (
    f"CASE WHEN server_started_at = {SERVER_STARTED_AT} AND {_make_lock_test('id', '_shared')} "
    f"THEN {_make_lock_test('(-id)', '_shared')} ELSE false END"
)
"""SQL for whether both locks of a worker are free on the server on which the worker took them. A Holdfast that takes
only the first one is compatible. The test takes shared locks, so any number of workers can make it at once."""


_LOCK_FROM_WRITER = "pg_try_advisory_lock(%(class)s::int4, (-{})::int4)"
"""SQL that takes the second lock of a worker, unless an earlier session of this process still has it."""


def compute_lock_class(schema: str) -> int:
    """The first half of the numbers of all locks of a schema."""
    return int.from_bytes(hashlib.blake2b(schema.encode(), digest_size=4).digest(), signed=True)


class DeathEvidence(NamedTuple):
    """A worker that may be dead."""

    worker: PresumedDeadWorker
    heartbeat_at: float
    lease_expires_at: float
    has_lost_lock: bool
    """Its lock is free on the server on which it took it."""


class PollResult(NamedTuple):
    """What a poll found."""

    presumed_dead: list[DeathEvidence]
    has_due_runs: bool
    """There may be runs to claim."""
    has_run_changes: bool
    """There are signals or requests for runs that the worker holds."""
    disabled_workflows: str
    """The disabled workflows, as one text."""
    is_followed: bool
    """A reader in some process follows runs, perhaps those that are executed here."""
    compatible_from: int
    """The schema version that a Holdfast must know to use this schema."""
    database_time: float
    """The database's clock."""


class WorkerStatements:
    """The statements about workers, for one schema."""

    def __init__(self, statements: PgStatements) -> None:
        schema = quote_identifier(statements.schema)
        workers, signals, runs, disabled_workflows, meta = (
            f"{schema}.{name}" for name in ("workers", "signals", "runs", "disabled_workflows", "meta")
        )
        self.register = (
            f"INSERT INTO {workers} (token, name, host, pid, workflows, queues, is_listener, state, started_at, "
            "lease_expires_at, heartbeat_at) SELECT %(token)s, %(name)s, %(host)s, %(pid)s, %(workflows)s, "
            "%(queues)s, %(is_listener)s, 'live', t.now, t.now + %(lease)s, t.now "
            f"FROM (SELECT {_LEASE_TIME} AS now) t RETURNING id, "
            f"CASE WHEN %(has_session)s THEN {_LOCK_FROM_WRITER.format('id')} END"
        )
        self.lock_from_writer = f"SELECT {_LOCK_FROM_WRITER.format('q.id')} FROM unnest(%(workers)s) q(id)"
        self.renew_lease = (
            f"UPDATE {workers} SET lease_expires_at = t.now + %(lease)s, heartbeat_at = t.now "
            f"FROM (SELECT {_LEASE_TIME} AS now) t WHERE id = %(worker)s AND state = 'live'"
        )
        self.renew_listener_lease = f"{self.renew_lease} AND is_listener = 1"
        self.expired_listeners = (
            f"SELECT id, name, host, pid FROM {workers} "
            f"WHERE state = 'live' AND is_listener = 1 "
            f"AND greatest(heartbeat_at, %(since)s) + lease_expires_at - heartbeat_at < %(until)s ORDER BY id"
        )
        self.save_server_start = f"UPDATE {workers} SET server_started_at = %s WHERE id = %s AND state = 'live'"
        self.has_lost_lock = f"SELECT {_IS_LOCK_FREE} FROM {workers} WHERE id = %(worker)s"
        serving = f"SELECT * FROM {workers} WHERE state = 'live' AND is_listener = 0"
        self.neighbors = (
            f"SELECT * FROM ((SELECT *, 0 AS lap FROM ({serving} AND id > %(me)s) w ORDER BY id LIMIT "
            f"{NEIGHBOR_COUNT}) "
            f"UNION ALL (SELECT *, 1 FROM ({serving} AND id < %(me)s) w ORDER BY id LIMIT {NEIGHBOR_COUNT})) w "
            f"ORDER BY lap, id LIMIT {NEIGHBOR_COUNT}"
        )
        presumed_dead, presumed_dead_neighbors = (
            f"(SELECT json_agg(json_build_array(id, name, host, pid, heartbeat_at, lease_expires_at, lost)) FROM "
            f"(SELECT w.*, {_IS_LOCK_FREE} AS lost FROM ({chosen}) w) w WHERE lost OR lease_expires_at < {_LEASE_TIME})"
            for chosen in (f"{serving} AND id <> %(me)s", self.neighbors)
        )
        self.presumed_dead = f"SELECT {presumed_dead}, {_LEASE_TIME}"
        self.fleet_size = f"SELECT count(*) FROM ({serving}) w"
        self.poll = (
            f"SELECT {presumed_dead_neighbors}, ({statements.HAS_DUE}), "
            f"EXISTS (SELECT 1 FROM {signals} s CROSS JOIN LATERAL (SELECT 1 FROM {runs} r WHERE r.key = s.run "
            f"AND r.owner + 0 = %(me)s OFFSET 0) r WHERE s.xid >= %(cursor)s::text::xid8) "
            f"OR EXISTS ({statements.REQUESTS.replace('%s', '%(me)s')}), "
            f"(SELECT coalesce(string_agg(workflow, ' ' ORDER BY workflow), '') FROM {disabled_workflows}), "
            f"NOT {_make_lock_test(FOLLOWER_LOCK_ID)}, (SELECT value::int FROM {meta} WHERE name = 'compatible_from'), "
            f"{_LEASE_TIME}"
        )


class PgClaims(SqlClaims):
    """The runs that workers take from a PostgreSQL database."""

    reads_histories = True

    def __init__(self, store: PgStore) -> None:
        super().__init__(store)
        self._store = store
        self.scope = ClaimScope((), ())
        """What this process's workers serve, from their last request."""
        self.signal_cursor = 0
        """The cursor after the last read of signals."""
        self._server_started_at: float | None = None
        self.fruitless_change_count = 0
        """How many changes were reported since a claim has last returned runs."""

    def note_server(self, started_at: float) -> None:
        """Any connection is a new one. Blocking."""
        if self._server_started_at not in (None, started_at):
            self.server_change_count += 1
            self.signal_cursor = 0  # until the engine has read the signals again
        self._server_started_at = started_at

    async def _claim(
        self,
        workers: Sequence[int],
        scope: ClaimScope,
        suspect_delay_s: float | None,
        *,
        max_suspects: int,
        with_histories: bool = False,
        make_event: EventFactory | None = None,
    ) -> list[Run]:
        intact_keys = self._store.failover_check.intact_keys
        runs = await super()._claim(
            workers, scope, suspect_delay_s, max_suspects=max_suspects, with_histories=with_histories,
            make_event=make_event,
        )  # fmt: skip
        if runs:
            self.fruitless_change_count = 0
            self._store.failover_check.track_claimed(runs, intact_keys)
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
        self.statements = WorkerStatements(PgStatements(store.schema))
        self._lock_class = compute_lock_class(store.schema)
        self._store = store
        self._claims = claims
        self._poll_interval_s = poll_interval_s
        self._own_workers: set[int] = set()
        """Workers registered through this object that have not retired."""
        self._dead_workers: set[int] = set()
        """Own workers that were declared dead, and whose locks are still held here."""
        self._disabled_workflows = ""
        self._presumed_dead: list[DeathEvidence] = []
        """Workers that the last check found to be perhaps dead."""
        self._checked_at = 0.0
        """The database's clock at the last check."""
        self._is_checked = False
        """Whether ``reap_dead`` has looked for dead workers itself."""
        self._poll_task: asyncio.Task[None] | None = None
        self._death_check: asyncio.Task[None] | None = None
        self._fleet_counted_at = float("-inf")

    def stop_polling(self) -> None:
        """The store is being closed."""
        for task in (self._poll_task, self._death_check):
            if task is not None:
                task.cancel()
        self._poll_task = self._death_check = None

    def abandon(self, writer: ConnectionWorker) -> None:
        """Retire this object's workers without a loop."""
        for worker in self._own_workers:
            with suppress(StoreError, UsageError):
                writer.run_blocking(partial(retire_worker, worker=worker, now=self._store.now()))

    def clear(self) -> None:
        """The store is closed. The locks of workers that have not retired ended with their connection."""
        self._poll_task = None
        self._own_workers.clear()

    async def register(self, worker: NewWorker, lease_s: float) -> int:
        while self._dead_workers and not worker.is_listener:
            await self._store.session.unlock_worker(self._dead_workers.pop())
        names = ("token", "name", "host", "pid", "workflows", "queues", "is_listener")
        row = dict(zip(names, worker_to_row(worker, secrets.token_hex(8)), strict=True))
        values = {**row, "time": self._store.lease_time, "lease": lease_s, "class": self._lock_class}
        number = await self._store.writer.run_in_thread(partial(self._insert_worker, values))
        if worker.is_listener:  # a process elsewhere: there is nothing to lock, and nothing to poll for
            return number
        self._own_workers.add(number)
        if await self._store.session.lock_worker(number) is not None:  # until this is saved, the lease decides
            await self._store.session.run(partial(self._save_server_start, number))
        self._store.notifier.notify_new_worker()
        if self._poll_interval_s and self._poll_task is None:
            self._poll_task = asyncio.get_running_loop().create_task(self._poll_forever())
        return number

    def _insert_worker(self, values: dict[str, Any], db: PgDatabase) -> int:
        has_session = not (values["is_listener"] or db.connection.is_pooled)
        return db.query(self.statements.register, {**values, "has_session": has_session})[0][0]

    def lock_from_writer(self, db: PgDatabase) -> None:
        """The session that writes is a new one: take the second lock of every worker again."""
        if self._own_workers and not db.connection.is_pooled:
            db.query(
                self.statements.lock_from_writer, {"class": self._lock_class, "workers": IntArray(self._own_workers)}
            )

    def unlock_from_writer(self, worker: int, db: PgDatabase) -> None:
        """Release the second lock of a worker."""
        if not db.connection.is_pooled:
            db.query("SELECT pg_advisory_unlock(%s::int4, %s::int4)", (self._lock_class, -worker))

    def _save_server_start(self, worker: int, db: PgDatabase) -> None:
        """In the session's thread. A pooler may have been detected after the lock was taken: then it says nothing."""
        if (server_started_at := self._store.session.get_lock_server(worker)) is not None:
            self.save_server_starts(db, [worker], server_started_at)

    def save_server_starts(self, db: Database, workers: Collection[int], server_started_at: float | None) -> None:
        """Save under which start of the server workers hold their locks. ``None``: their leases decide."""
        for worker in workers:
            db.execute(self.statements.save_server_start, (server_started_at, worker))

    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        return await self._store.session.run(
            partial(self._renew, self.statements.renew_listener_lease, worker, lease_s)
        )

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        is_live = self._store.session.run_blocking(partial(self._renew, self.statements.renew_lease, worker, lease_s))
        if not is_live:
            self._own_workers.discard(worker)
            self._dead_workers.add(worker)
        return is_live

    def _renew(self, statement: str, worker: int, lease_s: float, db: Database) -> bool:
        return db.execute(statement, {"worker": worker, "time": self._store.lease_time, "lease": lease_s}) == 1

    async def retire(self, worker: int, *, only_if_idle: bool = False) -> bool:
        if not await self._store.write(
            lambda db: retire_worker(db, worker, self._store.now(), only_if_idle=only_if_idle)
        ):
            return False
        self._own_workers.discard(worker)
        await self._store.writer.run_in_thread(partial(self.unlock_from_writer, worker))
        self._store.notifier.notify_work()
        with suppress(StoreUnavailable):  # then the lock is free already
            await self._store.session.unlock_worker(worker)
        return True

    async def reap_dead(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        if self._poll_task is None:
            await self._poll(except_worker)
        elif not self._is_checked:
            # Whether a run is an orphan depends on it, so this does not leave it to a check that has begun meanwhile.
            self._presumed_dead = await self._confirm_presumed_dead(except_worker)
        self._is_checked = True
        presumed_dead, self._presumed_dead = self._presumed_dead, []
        # The earlier of two times: the database's clock may have been set since the window was made.
        until = self._checked_at if window is None else min(window.until, self._checked_at)
        counted = LeaseWindow(0.0 if window is None else window.since, until)
        suspects = [
            evidence.worker
            for evidence in presumed_dead
            if (evidence.has_lost_lock and self._can_trust_locks())
            or counted.has_expired(evidence.heartbeat_at, evidence.lease_expires_at)
        ]
        if include_listeners:
            rows = await self._store.read(lambda db: db.query(self.statements.expired_listeners, counted._asdict()))
            listeners = [PresumedDeadWorker(*row, is_listener=True) for row in rows]
            suspects += [listener for listener in listeners if listener.id != except_worker]
        reaped = ReapResult()
        for suspect in suspects:
            try:
                found = await self._store.writer.run_in_thread(partial(self._declare_dead, suspect, counted))
            except StoreLocked:
                continue  # another worker is doing it, or the suspect was stopped in a commit: the next poll decides
            reaped = ReapResult(
                reaped.worker_ids + found.worker_ids,
                reaped.released_count + found.released_count,
                reaped.dead_run_ids + found.dead_run_ids,
            )
        if reaped.worker_ids:
            self._store.notifier.notify_all()  # also of what the dead workers did not notify any more
        return reaped

    def _can_trust_locks(self) -> bool:
        """Whether a free lock means that a worker is dead, and not that all workers were cut off a moment ago."""
        return monotonic() - self._store.cut_off_at > REJOIN_GRACE_S

    def _declare_dead(self, worker: PresumedDeadWorker, window: LeaseWindow, db: PgDatabase) -> ReapResult:
        """Declare a worker dead, unless another session holds the rows for long: commits must not wait for that."""

        def is_dead(suspect: PresumedDeadWorker, heartbeat_at: float, lease_expires_at: float) -> bool:
            if window.has_expired(heartbeat_at, lease_expires_at):
                return True
            if suspect.is_listener or not self._can_trust_locks():
                return False
            values = {"worker": suspect.id, "class": self._lock_class}
            return db.query(self.statements.has_lost_lock, values) == [(True,)]

        db.lock_timeout_s = DECLARE_DEAD_TIMEOUT_S
        try:
            return declare_dead(db, [worker], is_dead, self._store.now())
        finally:
            db.lock_timeout_s = None

    def set_following(self, db: Database, is_following: bool) -> None:
        """Show other processes by a lock that a reader here follows runs, or stop showing it."""
        change = "lock" if is_following else "unlock"
        notify = ", pg_notify(%(channel)s, '')" if is_following else ""  # else they learn of it with their next poll
        db.query(
            f"SELECT pg_advisory_{change}_shared(%(class)s::int4, %(number)s::int4){notify}",
            {"class": self._lock_class, "number": FOLLOWER_LOCK_ID, "channel": self._store.notifier.follower_channel},
        )

    # Polling

    async def _poll_forever(self) -> None:
        is_failing = False
        delay_s = min(FIRST_POLL_DELAY_S, self._poll_interval_s)
        while True:
            await asyncio.sleep(delay_s)
            delay_s = self._poll_interval_s * (_LISTENING_POLL_FACTOR if self._store.session.is_listening else 1)
            try:
                await self._poll(max(self._own_workers, default=None))
                is_failing = False
            except StoreError as error:
                if not is_failing:
                    log.warning("the store cannot be read; trying again: %s", error)
                is_failing = True
            except Exception:
                log.exception("looking for what has changed failed; trying again")

    def check_deaths(self) -> None:
        """Check all workers soon: one of them may have died."""
        if self._poll_task is not None and (self._death_check is None or self._death_check.done()):
            self._death_check = asyncio.get_running_loop().create_task(self._check_deaths())

    async def _check_deaths(self) -> None:
        try:
            presumed_dead = await self._confirm_presumed_dead(max(self._own_workers, default=None))
        except StoreError as error:
            log.debug("dead workers could not be looked for; the next poll does: %s", error)
            return
        if presumed_dead:
            self._presumed_dead = presumed_dead
            self._store.report_change()

    async def _confirm_presumed_dead(self, me: int | None) -> list[DeathEvidence]:
        """The workers that seem to be dead, and still do after a while."""
        presumed_dead = await self._find_presumed_dead(me)
        if presumed_dead and self._poll_interval_s:
            await asyncio.sleep(max(MIN_DEATH_RECHECK_DELAY_S, _RECHECK_CONNECT_FACTOR * self._store.connect_s))
            workers = {evidence.worker for evidence in presumed_dead}
            presumed_dead = [evidence for evidence in await self._find_presumed_dead(me) if evidence.worker in workers]
        return presumed_dead

    async def _poll(self, me: int | None) -> None:
        polled = await self._run_poll_query(me)
        presumed_dead = polled.presumed_dead
        if presumed_dead or me is None or not self._poll_interval_s:  # otherwise only the worker's neighbors matter
            presumed_dead = await self._confirm_presumed_dead(me)
        if monotonic() - self._fleet_counted_at > FLEET_COUNT_INTERVAL_S:
            await self._count_fleet()
        self._presumed_dead = presumed_dead or self._presumed_dead  # perhaps another check has found some meanwhile
        self._checked_at = polled.database_time
        self._store.notifier.is_followed = polled.is_followed
        if (
            presumed_dead
            or polled.has_due_runs
            or polled.has_run_changes
            or polled.disabled_workflows != self._disabled_workflows
        ):
            self._disabled_workflows = polled.disabled_workflows
            self._store.report_change()

    async def _count_fleet(self) -> None:
        [(self._store.session.death_watch.fleet_size,)] = await self._store.read(
            lambda db: db.query(self.statements.fleet_size)
        )
        self._fleet_counted_at = monotonic()

    async def _find_presumed_dead(self, me: int | None) -> list[DeathEvidence]:
        values = {"class": self._lock_class, "time": self._store.lease_time, "me": me or 0}
        [(found, self._checked_at)] = await self._store.read(lambda db: db.query(self.statements.presumed_dead, values))
        return _parse_evidence(found)

    async def _run_poll_query(self, me: int | None) -> PollResult:
        def poll(db: Database) -> tuple[PollResult, float, float]:
            values = {
                **self._claims.scope.to_parameters(db), "class": self._lock_class, "now": self._store.now(),
                "time": self._store.lease_time, "me": me or 0, "cursor": self._claims.signal_cursor,
            }  # fmt: skip
            sent_at = monotonic()
            [row] = db.query(self.statements.poll, values)
            return PollResult(_parse_evidence(row[0]), *row[1:]), sent_at, monotonic()

        polled, sent_at, received_at = await self._store.read(poll)
        self._store.sync_clock(polled.database_time, sent_at, received_at)
        self._store.check_schema(polled.compatible_from)
        return polled


def _parse_evidence(rows: list[list[Any]] | None) -> list[DeathEvidence]:
    return [DeathEvidence(PresumedDeadWorker(*row[:4]), *row[4:]) for row in rows or ()]

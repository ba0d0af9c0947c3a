# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""The PostgreSQL store: which connection does what, and how a fleet of workers learns of each other.

A process has three connections: one that writes, one that reads, and the *keeper*, which lives as long as the store and
does what depends on a session. A fourth one is opened for the lists that people ask for.

**News.** After a commit that may concern others, they are notified (see ``notifier``). Notifying is never part of a
commit, and goes through the keeper. What a process that dies in between has not told is found all the same: by those
that look for dead workers, and by the look that every worker takes now and then (see ``workers``).

**Time.** Machines disagree; the database's clock is the same for all. ``now`` is an estimate of it (see ``clocks``),
which every new connection and every look correct. Renewals of leases are written with the database's own time.

**Cut off.** The server drops the locks of all workers when it loses its connections to them, as when a network is away.
A process that could not connect itself knows that others could not either, and gives them time to come back
(``REJOIN_GRACE_S``) before it takes a free lock for a death.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat

import psycopg

from holdfast.core.records import Attempt
from holdfast.core.states import RunState
from holdfast.errors import SchemaTooNew, StoreError, StoreLocked, StoreUnavailable, UsageError
from holdfast.stores.clocks import DatabaseClock, monotonic
from holdfast.stores.contract import DEFAULT_NAMESPACE, NewSignals, NewWorker, ReapResult
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.operations import Op, OpResult, OpStatus, Run
from holdfast.stores.postgres import step_transactions
from holdfast.stores.postgres.connection_worker import ConnectionWorker
from holdfast.stores.postgres.connections import Connection, connect, split_url
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.postgres.errors import to_store_error
from holdfast.stores.postgres.migrations import check_compatible, migrate, read_compatible_from
from holdfast.stores.postgres.notifier import Notifier
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.postgres.step_transactions import PgStepTransaction, StepSessionPool
from holdfast.stores.postgres.worker_session import WorkerSession
from holdfast.stores.postgres.workers import DeathEvidence, PollResult, WorkerQueries, compute_lock_class
from holdfast.stores.queues import NewQueue
from holdfast.stores.schedules import Schedule, ScheduleDefinition
from holdfast.stores.sql.batch import get_plain_record_rows
from holdfast.stores.sql.claims import ClaimScope
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.queue_settings import QueueChange
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.sql.step_transactions import resolve_attempt
from holdfast.stores.sql.store import DatabaseWork, SqlStore, T
from holdfast.stores.sql.workers import PresumedDeadWorker, declare_dead, retire_worker
from holdfast.stores.urls import redact_url, validate_namespace, with_namespace

POLL_INTERVAL_S = 0.66
"""Seconds between two looks of a worker that has nothing to do. With the renewals of its lease, that makes less than
two queries a second."""
DEATH_RECHECK_DELAY_S = 0.1
"""Seconds after which a suspect is looked at again: by then, a worker that lives has its lock again."""
DECLARE_DEAD_TIMEOUT_S = 0.25
"""Seconds to wait for rows of a worker that seems to be dead. It may be a process that was suspended with these rows
locked, and all who see that would wait for as long as the server lets it be."""
REJOIN_GRACE_S = 5.0
"""Seconds after the last failed attempt to connect in which free locks mean nothing. Others pause for up to a second
between two attempts, and an attempt takes its time where packets get lost."""
FOLLOW_POLL_INTERVAL_S = 0.25
"""Seconds after which whoever follows runs looks again, where news cannot be heard."""
FOLLOW_FALLBACK_S = 5.0
"""Seconds after which whoever follows runs looks again, although there was no news."""
MAX_LOOP_RECORDS = 500
"""How many records are sent from the event loop; to make more of them ready would keep it for too long."""
MAX_LOOP_BYTES = 1_000_000
"""The same, of their payloads."""
_MAX_CHANGE_PAUSE_S = 0.02
"""Seconds between two changes that are told to the engine, at most: news comes in bursts."""
_CHANGE_PAUSE_FACTOR = 4
"""So many times as long as it took the engine to see to a change, it is left in peace: it need not look without end,
and a server that is slow is asked less often."""
_CAN_WATCH_SOCKETS = sys.platform != "win32"
"""Whether the usual event loops can wait for a socket of libpq."""

log = logging.getLogger("holdfast.stores")


def schema_for_namespace(namespace: str) -> str:
    """The schema in which a namespace is kept."""
    name = validate_namespace(namespace)
    return "holdfast" if name == DEFAULT_NAMESPACE else f"holdfast_{name}"


class PgStore(SqlStore):
    """Journals in one schema of a PostgreSQL database, shared by all processes that can reach it."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str | None = None,
        clock: Callable[[], float] | None = None,
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        self._libpq_url, in_url = split_url(url)
        self.namespace = validate_namespace(namespace or in_url or "")
        self.url = with_namespace(redact_url(self._libpq_url), self.namespace)
        self.schema = schema_for_namespace(self.namespace)
        self._given_clock = clock
        self._clock = DatabaseClock(self.url)
        self._reader = RowReader(self.url)
        self._worker_queries = WorkerQueries(PgStatements(self.schema))
        self._poll_interval_s = poll_interval_s
        self._write_worker: ConnectionWorker[PgDatabase] | None = None
        self._read_worker: ConnectionWorker[PgDatabase] | None = None
        self._client_read_worker: ConnectionWorker[PgDatabase] | None = None
        self._worker_session: WorkerSession[PgDatabase] | None = None
        self._step_sessions: StepSessionPool | None = None
        """The connections of transactional steps."""
        self._is_migrated = False
        self._schema_error: SchemaTooNew | None = None
        """A newer Holdfast has migrated the schema: nothing more is done here."""
        self._own_workers: set[int] = set()
        """Workers registered through this object that have not retired."""
        self._dead_workers: set[int] = set()
        """Those that were declared dead, and whose locks are still held here."""
        self._claim_scope = ClaimScope((), ())
        """What they serve, as far as they have asked for it."""
        self._signal_cursor = 0
        """Where the last look for signals ended."""
        self._disabled_workflows = ""
        self._presumed_dead: list[DeathEvidence] = []
        """Workers that the last look has found to be perhaps dead."""
        self._polled_at = 0.0
        """The database's clock at the last look."""
        self._unreachable_at = float("-inf")
        """When an attempt to connect last failed, in ``elapsed`` time."""
        self._poll_task: asyncio.Task[None] | None = None
        self._has_polled = False
        self._change_event = asyncio.Event()
        self._change_reported_at = 0.0
        self._is_following = False
        """Whether others know that the end or the progress of runs matters here."""
        self._followed_at = 0.0
        self._notifier = Notifier(self.schema, self._notify)

    # Opening and closing

    async def open(self) -> None:
        if self._write_worker is not None:
            return
        self._change_event, self._notifier = (
            asyncio.Event(),
            Notifier(self.schema, self._notify),
        )  # not those of another loop
        self._is_following = self._is_migrated = False
        self._schema_error = None
        writing = self._make_connection_worker("writer")
        keeping = WorkerSession(
            partial(self._connect, durable=False),
            self._make_database,
            self.url,
            lock_class=compute_lock_class(self.schema),
            channels=(self._notifier.work_channel, self._notifier.run_channel),
            on_notification=self._on_notification,
            on_relocked=self._save_server_starts,
        )
        try:
            await writing.run_in_thread(
                lambda db: migrate(db.connection, self.schema, is_pooled=db.connection.is_pooled)
            )
            self._is_migrated = True
            await keeping.start()
        except BaseException:
            writing.close()
            keeping.close()
            raise
        self._write_worker, self._worker_session = writing, keeping
        self._read_worker = self._make_connection_worker("reader")

    def _make_connection_worker(self, name: str) -> ConnectionWorker[PgDatabase]:
        return ConnectionWorker(self._connect, self._make_database, self.url, name)

    def _connect(self, *, durable: bool = True) -> Connection:
        try:
            return connect(self._libpq_url, durable=durable)
        except StoreUnavailable:
            self._unreachable_at = monotonic()
            raise

    def _make_database(self, connection: Connection) -> PgDatabase:
        self._clock.sync(*connection.clock_sample)
        if self._is_migrated:
            try:
                self._check_schema(read_compatible_from(connection, self.schema))
            except psycopg.Error as error:
                raise to_store_error(error, self.url) from error
        return PgDatabase(connection, self.schema)

    def _check_schema(self, needed: int) -> None:
        """Refuse everything from now on if a newer Holdfast has migrated the schema."""
        try:
            check_compatible(self.schema, needed)
        except SchemaTooNew as error:
            self._schema_error = error
            raise

    def _notify(self, channel: str) -> None:
        if self._worker_session is not None:
            self._worker_session.notify(channel)

    async def close(self) -> None:
        if self._poll_task is not None:
            self._poll_task.cancel()
            self._poll_task = None
        if self._write_worker is not None:
            self._write_worker.leave_loop()
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        """Close the connections; with the keeper's go the locks of whoever has not retired."""
        lines = (self._client_read_worker, self._read_worker, self._write_worker, self._worker_session)
        self._client_read_worker = self._read_worker = self._write_worker = self._worker_session = None
        for line in lines:
            if line is not None:
                line.close()
        if self._step_sessions is not None:
            self._step_sessions.close()
            self._step_sessions = None
        self._own_workers.clear()

    def abandon(self) -> None:
        """Retire this object's workers as well: the process lives, so nothing took them down."""
        self._poll_task = None
        if self._write_worker is not None:
            for worker in self._own_workers:
                with suppress(StoreError, UsageError):
                    self._write_worker.run_blocking(partial(retire_worker, worker=worker, now=self.now()))
        self._close()

    # Which connection does what

    async def _write(self, work: DatabaseWork[T], op_count: int = 1, *, is_slow: bool = False) -> T:
        return await self._require_open(self._write_worker).run_in_thread(work)

    async def _read(self, work: DatabaseWork[T], *, is_slow: bool = True) -> T:
        return await self._require_open(self._read_worker).run_in_thread(work)

    async def _read_for_client(self, work: DatabaseWork[T]) -> T:
        self._require_open(self._read_worker)
        if self._client_read_worker is None:
            self._client_read_worker = self._make_connection_worker("browser")
        return await self._client_read_worker.run_in_thread(work)

    @property
    def _session(self) -> WorkerSession[PgDatabase]:
        return self._require_open(self._worker_session)

    def _require_open(self, resource: T | None) -> T:
        if self._schema_error is not None:
            raise SchemaTooNew(*self._schema_error.args)
        if resource is None:
            raise StoreUnavailable(f"{self.url} is not open: call open() first (or it has been closed)")
        return resource

    # Time

    def now(self) -> float:
        return self._clock.now() if self._given_clock is None else self._given_clock()

    def _resolve_time(self, server_time: float | None) -> float:
        return self.now() if server_time is None or self._given_clock is not None else server_time

    @property
    def _lease_time(self) -> float | None:
        """What leases are measured by: the database's clock, unless a test has its own."""
        return None if self._given_clock is None else self._given_clock()

    # Writing, and telling others

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        answers = await self._append_on_loop(ops)
        if answers is None:
            answers = await super().commit(ops)
        self._notifier.notify_commit(ops, answers)
        return answers

    async def _append_on_loop(self, ops: Sequence[Op]) -> list[OpResult] | None:
        """Append records if there is nothing else to it; ``None``: there is, and nothing was done."""
        if (
            not _CAN_WATCH_SOCKETS
            or not 0 < len(ops) <= MAX_LOOP_RECORDS
            or (rows := get_plain_record_rows(ops)) is None
        ):
            return None
        if sum(len(row[-1] or b"") for row in rows) > MAX_LOOP_BYTES:
            return None
        appended = self._require_open(self._write_worker).run_on_loop(lambda db: db.append_nonblocking(rows))
        return [*repeat(OpStatus.DONE, len(rows))] if appended is not None and await appended else None

    async def claim_runs(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        runs = await super().claim_runs(
            worker, workflows=workflows, queues=queues, limit=limit, suspect_delay_s=suspect_delay_s
        )
        for run in runs:
            if run.is_limited:
                self._notifier.track_limited(run)
        return runs

    async def get_run(self, run_id: str) -> Run | None:
        run = await super().get_run(run_id)
        if run is not None and run.is_delivery and run.is_limited and run.state is RunState.RUNNING:
            self._notifier.track_limited(run)  # taken through another server, perhaps, and given back through this one
        return run

    async def expire_runs(self, limit: int = 100) -> list[str]:
        ended = await super().expire_runs(limit)
        if ended:
            self._notifier.notify_all()
        return ended

    async def disable_workflow(
        self, workflow: str, actor: str = "", reason: str = "", *, is_temporary: bool = False
    ) -> bool:
        done = await super().disable_workflow(workflow, actor, reason, is_temporary=is_temporary)
        self._notifier.notify_work()
        return done

    async def enable_workflow(self, workflow: str, *, only_temporary: bool = False) -> bool:
        done = await super().enable_workflow(workflow, only_temporary=only_temporary)
        self._notifier.notify_work()
        return done

    async def put_schedules(
        self, schedules: Sequence[ScheduleDefinition], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        kept = await super().put_schedules(schedules, worker=worker, replace=replace)
        self._notifier.notify_work()
        return kept

    async def pause_schedule(self, name: str) -> bool:
        done = await super().pause_schedule(name)
        self._notifier.notify_work()
        return done

    async def resume_schedule(self, name: str) -> bool:
        done = await super().resume_schedule(name)
        self._notifier.notify_work()
        return done

    async def declare_queues(self, queues: Sequence[NewQueue]) -> None:
        await super().declare_queues(queues)
        self._notifier.notify_work()

    async def _change_queue(self, name: str, work: DatabaseWork[QueueChange]) -> bool:
        done = await super()._change_queue(name, work)
        self._notifier.notify_work()
        return done

    # Steps

    async def begin_step_transaction(
        self, run: Run, attempt: Attempt, *, is_sync: bool, timeout_s: float | None = None
    ) -> PgStepTransaction | None:
        self._require_open(self._write_worker)
        if self._step_sessions is None:
            self._step_sessions = StepSessionPool(self._libpq_url, self.schema, self.url)

        def ask() -> Awaitable[OpStatus]:
            return self._write(lambda db: resolve_attempt(db, run, attempt, self.now()))

        return await step_transactions.begin_transaction(
            self._step_sessions, self.schema, self.url, run, attempt, ask, is_sync=is_sync, timeout_s=timeout_s
        )

    # Workers

    async def register_worker(self, worker: NewWorker, lease_s: float) -> int:
        token = secrets.token_hex(8)
        if worker.is_listener:  # it is none of this process's: there is nothing to lock, and to look for
            return await self._write(
                lambda db: self._worker_queries.register_worker(db, worker, token, self._lease_time, lease_s)
            )
        while self._dead_workers:
            await self._session.unlock_worker(self._dead_workers.pop())
        number = await self._write(
            lambda db: self._worker_queries.register_worker(db, worker, token, self._lease_time, lease_s)
        )
        self._own_workers.add(number)
        began = await self._session.lock_worker(number)
        if began is not None:
            await self._write(lambda db: self._worker_queries.save_server_start(db, number, began))
        if self._poll_interval_s and self._poll_task is None:
            self._poll_task = asyncio.get_running_loop().create_task(self._poll_forever())
        return number

    def _save_server_starts(self, db: PgDatabase, workers: Collection[int], server_started_at: float | None) -> None:
        """The keeper has locks again, or has got them late, or cannot have any."""
        for worker in workers:
            self._worker_queries.save_server_start(db, worker, server_started_at)

    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        return await self._session.run(
            lambda db: self._worker_queries.renew_listener_lease(db, worker, self._lease_time, lease_s)
        )

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        held = self._session.run_blocking(
            lambda db: self._worker_queries.renew_lease(db, worker, self._lease_time, lease_s)
        )
        if not held:
            self._own_workers.discard(worker)
            self._dead_workers.add(worker)
        return held

    async def retire_worker(self, worker: int) -> None:
        await self._write(lambda db: retire_worker(db, worker, self.now()))
        self._own_workers.discard(worker)
        self._notifier.notify_work()
        with suppress(StoreUnavailable):  # then it is free already
            await self._session.unlock_worker(worker)

    async def reap_dead_workers(
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
            listeners = await self._read(lambda db: self._worker_queries.find_expired_listeners(db, counted))
            suspects += [one for one in listeners if one.id != except_worker]
        reaped = ReapResult()
        for suspect in suspects:
            try:
                one = await self._require_open(self._write_worker).run_in_thread(
                    partial(self._declare_dead, suspect, counted)
                )
            except StoreLocked:
                continue  # another worker is at it, or it was stopped in the middle of a commit: the next look tells
            reaped = ReapResult(
                reaped.worker_ids + one.worker_ids,
                reaped.released_count + one.released_count,
                reaped.dead_run_ids + one.dead_run_ids,
            )
        if reaped.worker_ids:
            self._notifier.notify_all()  # also what the dead ones have not told any more
        return reaped

    def _can_trust_locks(self) -> bool:
        """Whether a free lock means that a worker is dead, and not that all were cut off a moment ago."""
        return monotonic() - self._unreachable_at > REJOIN_GRACE_S

    def _declare_dead(self, worker: PresumedDeadWorker, window: LeaseWindow, db: PgDatabase) -> ReapResult:
        """Bury a worker, unless somebody holds what that needs: commits must not have to wait for long behind it."""

        def is_dead(suspect: PresumedDeadWorker, beat_at: float, lease_until: float) -> bool:
            if window.has_expired(beat_at, lease_until):
                return True
            return (
                not suspect.is_listener and self._can_trust_locks() and self._worker_queries.has_lost_lock(db, suspect)
            )

        db.lock_timeout_s = DECLARE_DEAD_TIMEOUT_S
        try:
            return declare_dead(db, [worker], is_dead, self.now())
        finally:
            db.lock_timeout_s = None

    # Looking

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
        self._notifier.is_followed = seen.is_followed
        if (
            seen.presumed_dead
            or seen.has_due_runs
            or seen.has_run_changes
            or seen.disabled_workflows != self._disabled_workflows
        ):
            self._disabled_workflows = seen.disabled_workflows
            self._change_event.set()

    async def _find_presumed_dead(self, me: int | None) -> list[DeathEvidence]:
        return await self._read(lambda db: self._worker_queries.find_presumed_dead(db, me or 0, self._lease_time))

    async def _run_poll_query(self, me: int | None) -> PollResult:
        def look(db: Database) -> tuple[PollResult, float, float]:
            asked = monotonic()
            seen = self._worker_queries.poll(
                db, me or 0, self._claim_scope, self._signal_cursor, self.now(), self._lease_time
            )
            return seen, asked, monotonic()

        seen, asked, answered = await self._read(look)
        self._clock.sync(seen.database_time, asked, answered)
        if self._given_clock is None:
            self._clock.warn_if_skewed()
        self._check_schema(seen.compatible_from)
        return seen

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        self._claim_scope = ClaimScope(workflows, queues)
        return await super().get_next_wake_at(workflows=workflows, queues=queues)

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        found = await super().get_new_signals(worker, after)
        self._signal_cursor = found.cursor
        return found

    # Change

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        loop = asyncio.get_running_loop()
        calm = min(_MAX_CHANGE_PAUSE_S, _CHANGE_PAUSE_FACTOR * (loop.time() - self._change_reported_at))
        await self._set_following(follow_runs)
        deadline = loop.time() + timeout_s
        if follow_runs and not self._session.is_listening:
            timeout_s = min(timeout_s, FOLLOW_POLL_INTERVAL_S)
        if follow_runs:
            timeout_s = min(timeout_s, max(0.0, self._change_reported_at + FOLLOW_FALLBACK_S - loop.time()))
        try:
            async with asyncio.timeout(timeout_s):
                await self._change_event.wait()
        except TimeoutError:
            if loop.time() >= deadline:
                return False
        await asyncio.sleep(min(self._change_reported_at + calm, deadline) - loop.time())
        self._change_event.clear()
        self._change_reported_at = loop.time()
        return True

    async def _set_following(self, is_following: bool) -> None:
        """Let others know whether somebody here follows runs, or has done so a moment ago."""
        now = asyncio.get_running_loop().time()
        if is_following:
            self._followed_at = now
        is_right = self._is_following == is_following or (
            self._is_following and now < self._followed_at + FOLLOW_FALLBACK_S
        )
        if is_right or not self._session.is_listening:
            return
        self._is_following = is_following
        with suppress(StoreUnavailable):
            await self._session.run(lambda db: self._worker_queries.set_following(db, is_following))

    def _on_notification(self, channel: str | None) -> None:
        if channel is None:  # the keeper has another session, and no lock in it
            self._is_following = False
        if channel != self._notifier.run_channel or self._is_following:
            self._change_event.set()

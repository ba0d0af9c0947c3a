"""The PostgreSQL store: which connection does what, and how processes learn of each other's changes.

A process has three connections: one that writes, one that reads, and the worker session, which lives as long as the
store and does everything that depends on a session. A few more are opened for lists that people request (see
``connection_pool``).

**Notifications.** A commit that may concern other processes notifies them (see ``notifier``). The notification is never
part of the commit, and goes through the worker session. If a process dies in between, others still find its changes:
they check for dead workers, and every worker polls now and then (see ``workers``).

**Time.** Machines disagree; the database's clock is the same for all. ``now`` is an estimate of it (see ``clocks``),
which every new connection and every poll correct. Lease renewals are written with the database's own time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from holdfast.core.states import RunState
from holdfast.errors import SchemaTooNew, StoreUnavailable
from holdfast.stores.clocks import DatabaseClock, monotonic
from holdfast.stores.contract import DEFAULT_NAMESPACE
from holdfast.stores.grouped_calls import GroupedCalls
from holdfast.stores.operations import (
    AppendRecord,
    FinishRun,
    Op,
    OpResult,
    OpStatus,
    Run,
    SendSignal,
    StartResult,
    StartRun,
)
from holdfast.stores.postgres import run_reads
from holdfast.stores.postgres.connection_pool import ConnectionPool
from holdfast.stores.postgres.connection_worker import ConnectionWorker
from holdfast.stores.postgres.connections import close_on_error, connect, split_url
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.postgres.erasure import PgErasure
from holdfast.stores.postgres.failover_check import FailoverCheck
from holdfast.stores.postgres.migrations import check_compatible, migrate, read_compatible_from
from holdfast.stores.postgres.notifier import Notifier
from holdfast.stores.postgres.step_transactions import PgStepTransactions
from holdfast.stores.postgres.worker_session import WorkerSession
from holdfast.stores.postgres.workers import PgClaims, PgWorkers, compute_lock_class
from holdfast.stores.rules import make_run
from holdfast.stores.sql.batch import split_plain_ops
from holdfast.stores.sql.database import Row, Values
from holdfast.stores.sql.database_access import DatabaseWork, T
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.urls import redact_url, validate_namespace, with_namespace

POLL_INTERVAL_S = 0.66
"""Seconds between two polls of an idle worker that gets no notifications. With the renewals of its lease, this is less
than two queries a second."""
MAX_CLIENT_READ_CONNECTIONS = 4
"""Maximum number of connections for clients' reads."""
FOLLOW_POLL_INTERVAL_S = 0.25
"""Seconds between two reads of a follower of runs while notifications do not arrive."""
FOLLOW_FALLBACK_S = 5.0
"""Seconds after which a follower of runs reads again without a notification."""
SCHEMA_CHECK_INTERVAL_S = 1.0
"""Seconds after which a process that writes or waits checks whether a newer Holdfast has migrated the schema. The polls
of a worker do that anyway."""
MAX_LOOP_OPS = 500
"""Maximum number of operations to send from the event loop; encoding more would block it for too long."""
MAX_LOOP_BYTES = 1_000_000
"""Maximum size of their payloads."""
_MAX_CHANGE_PAUSE_S = 0.02
"""Maximum seconds between two changes reported to the engine: notifications come in bursts."""
_MIN_FRUITLESS_CHANGES = 2
"""The number of changes in a row that gave this process no run, after which the engine pauses. A worker that found
nothing leaves the next run to those that are quicker. One change without a run is usual: it was claimed with the run
before."""
_CHANGE_PAUSE_FACTOR = 4
"""The least time between two changes, as a multiple of how long the engine took to handle the first: the engine need
not read all the time, and reads less often from a slow server."""
_PLAIN_START_DELAY_S = 1.0
"""Seconds in which starts read first what there is, after one that did not was refused: its id existed, a workflow is
disabled, or its queue has limits. The next start is probably like it."""
_PLAIN_USAGE_DELAY_S = 1.0
"""Seconds in which records with a usage are appended after reading accounts, because the loop could not append some:
their runs have a parent, a budget, or a limited queue. The next ones are probably like them."""
_CAN_WATCH_SOCKETS = sys.platform != "win32"
"""Whether the usual event loops can wait for a socket of libpq."""


class PgStore(SqlStore):
    """Journals in one schema of a PostgreSQL database, shared by all processes that can reach it."""

    min_overlap_count = 8

    def __init__(
        self,
        url: str,
        *,
        namespace: str | None = None,
        clock: Callable[[], float] | None = None,
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        super().__init__()
        self._libpq_url, in_url = split_url(url)
        self.namespace = validate_namespace(namespace or in_url or "")
        self.url = with_namespace(redact_url(self._libpq_url), self.namespace)
        self.schema = "holdfast" if self.namespace == DEFAULT_NAMESPACE else f"holdfast_{self.namespace}"
        self._given_clock = clock
        self._clock = DatabaseClock(self.url)
        self.reader = RowReader(self.url)
        self._write_worker: ConnectionWorker | None = None
        self._read_worker: ConnectionWorker | None = None
        self._client_readers: ConnectionPool | None = None
        self._worker_session: WorkerSession | None = None
        self.failover_check = FailoverCheck()
        self._is_migrated = False
        self._schema_error: SchemaTooNew | None = None
        """Set when a newer Holdfast has migrated the schema: every operation raises it from then on."""
        self._schema_checked_at = float("-inf")
        """When the version of the schema was last checked, in ``monotonic`` time."""
        self.cut_off_at = float("-inf")
        """When this process last could not connect, or lost the worker session, in ``monotonic`` time."""
        self.connect_s = float("inf")
        """The least seconds that connecting has taken."""
        self._plain_starts_after = float("-inf")
        """When, in ``monotonic`` time, a start is tried again without reading first."""
        self._plain_usages_after = float("-inf")
        """When, in ``monotonic`` time, records with a usage are tried again without reading first."""
        self._run_reads = GroupedCalls(self._read_each_run)
        """Many callers that begin to wait for runs at once read them together."""
        self._signal_commits = GroupedCalls(self._commit_and_notify)
        """Signals of many callers share a transaction. An engine collects its operations itself."""
        self._change_event = asyncio.Event()
        self._change_reported_at = 0.0
        self._is_following = False
        """Whether other processes see that this one follows runs."""
        self._followed_at = 0.0
        self.notifier = Notifier(self.schema, self._notify)
        self.claims = self._claims = PgClaims(self)
        self.erasure = PgErasure(self, self._libpq_url)
        self.workers = self._workers = PgWorkers(self, self._claims, poll_interval_s)
        self.step_transactions = self._step_transactions = PgStepTransactions(self, self._libpq_url)

    # Opening and closing

    async def open(self) -> None:
        if self._write_worker is not None:
            return
        self._change_event = asyncio.Event()  # these belong to the current loop
        self._run_reads = GroupedCalls(self._read_each_run)
        self._signal_commits = GroupedCalls(self._commit_and_notify)
        self.notifier = Notifier(self.schema, self._notify)
        self._is_following = self._is_migrated = False
        self._schema_error = None
        writer = ConnectionWorker(self._connect_writer, self.url, "writer")
        reader = ConnectionWorker(self._connect, self.url, "reader")
        session = WorkerSession(
            partial(self._connect, durable=False),
            self.url,
            lock_class=compute_lock_class(self.schema),
            channels=(self.notifier.work_channel, self.notifier.run_channel, self.notifier.follower_channel),
            worker_channel=self.notifier.worker_channel,
            on_notification=self._on_notification,
            on_relocked=self._workers.save_server_starts,
        )
        try:
            await writer.run_in_thread(
                lambda db: migrate(db.connection, self.schema, is_pooled=db.connection.is_pooled)
            )
            self._is_migrated = True
            connects = session.start(), reader.run_in_thread(lambda _: None)  # at the same time
            for error in await asyncio.gather(*connects, return_exceptions=True):
                if error is not None:
                    raise error
        except BaseException:
            for connection in (writer, reader, session):
                connection.close()
            raise
        self._write_worker, self._read_worker, self._worker_session = writer, reader, session
        self._client_readers = ConnectionPool(
            lambda: ConnectionWorker(self._connect, self.url, "browser"), MAX_CLIENT_READ_CONNECTIONS
        )

    def _connect(self, *, durable: bool = True) -> PgDatabase:
        began_at = monotonic()
        try:
            connection = connect(self._libpq_url, durable=durable)
        except StoreUnavailable:
            self.cut_off_at = monotonic()
            raise
        self.connect_s = min(self.connect_s, monotonic() - began_at)
        self._clock.sync(*connection.clock_sample)
        self._claims.note_server(connection.server_started_at)
        if self._is_migrated:
            with close_on_error(connection, self.url):
                self.check_schema(read_compatible_from(connection, self.schema))
        return PgDatabase(connection, self.schema)

    def _connect_writer(self) -> PgDatabase:
        database = self._connect()
        with close_on_error(database.connection, self.url):
            self._workers.lock_from_writer(database)
        self.failover_check.note_server(database.connection.server_started_at)
        database.failover_check = self.failover_check
        return database

    def check_schema(self, compatible_from: int) -> None:
        """Refuse all operations from now on if a newer Holdfast has migrated the schema."""
        self._schema_checked_at = monotonic()
        try:
            check_compatible(self.schema, compatible_from)
        except SchemaTooNew as error:
            self._schema_error = error
            raise

    async def _check_schema_if_due(self) -> None:
        """Check the schema of a process without a worker: it has no polls."""
        if monotonic() >= self._schema_checked_at + SCHEMA_CHECK_INTERVAL_S:
            self._schema_checked_at = monotonic()  # for those who come meanwhile, and if this fails
            self.check_schema(await self._read(lambda db: read_compatible_from(db.connection, self.schema)))

    def _notify(self, channel: str) -> None:
        if self._worker_session is not None:
            self._worker_session.notify(channel)

    async def close(self) -> None:
        self._workers.stop_polling()
        self._block_loop_queries()
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _block_loop_queries(self) -> None:
        """Let the event loop stop watching sockets before they are closed.

        Otherwise it never reports anything on the next socket that gets the same number.
        """
        for connection in (self._write_worker, self._read_worker):
            if connection is not None:
                connection.block_loop_queries()

    def _close(self) -> None:
        """Close the connections. The locks of workers that have not retired end with the worker session."""
        connections = (self._client_readers, self._read_worker, self._write_worker, self._worker_session)
        self._client_readers = self._read_worker = self._write_worker = self._worker_session = None
        for connection in connections:
            if connection is not None:
                connection.close()
        self._step_transactions.close()
        self._workers.clear()

    def abandon(self) -> None:
        """Retire this object's workers as well: the process lives, so they have not died."""
        if self._write_worker is not None:
            self._workers.abandon(self._write_worker)
        self._block_loop_queries()
        self._close()

    # Which connection does what

    async def write(self, work: DatabaseWork[T], op_count: int = 1, *, is_slow: bool = False) -> T:
        return await self.writer.run_in_thread(work)

    async def read(self, work: DatabaseWork[T], *, is_slow: bool = True) -> T:
        return await self._read(work)

    async def _read(self, work: Callable[[PgDatabase], T]) -> T:
        return await self._require_open(self._read_worker).run_in_thread(work)

    async def query(self, bind: DatabaseWork[tuple[str, Values]]) -> list[Row]:
        if _CAN_WATCH_SOCKETS:
            reading = self._require_open(self._read_worker).run_on_loop(lambda db: db.query_nonblocking(*bind(db)))
            rows = None if reading is None else await reading
            if rows is not None:
                return rows
        return await self._read(lambda db: db.query(*bind(db)))

    async def read_for_client(self, work: DatabaseWork[T]) -> T:
        return await self._require_open(self._client_readers).run(work)

    @property
    def writer(self) -> ConnectionWorker:
        """The connection that writes."""
        return self._require_open(self._write_worker)

    @property
    def session(self) -> WorkerSession:
        """The connection that holds the workers' locks."""
        return self._require_open(self._worker_session)

    def check_open(self) -> None:
        """Raise ``StoreUnavailable`` unless the store is open."""
        self._require_open(self._write_worker)

    def _require_open(self, resource: T | None) -> T:
        if self._schema_error is not None:
            raise SchemaTooNew(*self._schema_error.args)
        if resource is None:
            raise StoreUnavailable(f"{self.url} is not open: call open() first (or it has been closed)")
        return resource

    # Time

    def now(self) -> float:
        return self._clock.now() if self._given_clock is None else self._given_clock()

    def sync_clock(self, database_time: float, sent_at: float, received_at: float) -> None:
        """Correct the clock: the database reported its time between these two moments of ``monotonic``."""
        self._clock.sync(database_time, sent_at, received_at)
        if self._given_clock is None:
            self._clock.warn_if_skewed()

    def resolve_time(self, server_time: float | None) -> float:
        return self.now() if server_time is None or self._given_clock is not None else server_time

    @property
    def lease_time(self) -> float | None:
        """The time to write into leases; ``None``: the database's own. Only tests have another clock."""
        return None if self._given_clock is None else self._given_clock()

    # Writing, and notifying others

    def notify_work(self) -> None:
        self.notifier.notify_work()

    def notify_all(self) -> None:
        self.notifier.notify_all()

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        if len(ops) == 1 and isinstance(ops[0], SendSignal):
            return await self._signal_commits.call(ops)
        return await self._commit_and_notify(ops)

    async def _commit_and_notify(self, ops: Sequence[Op]) -> list[OpResult]:
        await self._check_schema_if_due()
        intact_keys = self.failover_check.intact_keys
        answers = await self._commit_on_loop(ops)
        others = [op for op, answer in zip(ops, answers, strict=True) if answer is None]
        if others:
            remaining = iter(await super().commit(others))
            answers = [next(remaining) if answer is None else answer for answer in answers]
        done = cast("list[OpResult]", answers)
        self.notifier.notify_commit(ops, done)
        self.failover_check.track(ops, done, intact_keys)
        return done

    async def _commit_on_loop(self, ops: Sequence[Op]) -> list[OpResult | None]:
        """Append plain records, end runs, and start runs without a thread, as far as that is possible; else the answer
        is ``None``.

        Runs do not depend on each other here, so some of the operations may be done without the others.
        """
        none: list[OpResult | None] = [None] * len(ops)
        if not _CAN_WATCH_SOCKETS or not 0 < len(ops) <= MAX_LOOP_OPS or (plain := split_plain_ops(ops)) is None:
            return none
        if plain.size > MAX_LOOP_BYTES or (plain.starts and monotonic() < self._plain_starts_after):
            return none
        if plain.usages and monotonic() < self._plain_usages_after:
            return none
        now = self.now()
        committing = self.writer.run_on_loop(lambda db: db.commit_nonblocking(plain, now))
        committed = None if committing is None else await committing
        if committed is None:
            return none
        finished, appended = committed.finished_keys, OpStatus.DONE if committed.has_records else None
        if plain.usages and not committed.has_records:
            self._plain_usages_after = monotonic() + _PLAIN_USAGE_DELAY_S
        if len(plain.records) == len(ops):
            return [appended] * len(ops)
        answers: list[OpResult | None] = []
        for op in cast("Sequence[AppendRecord | FinishRun | StartRun]", ops):
            if isinstance(op, AppendRecord):
                answers.append(appended)
            elif isinstance(op, FinishRun):
                answers.append(OpStatus.DONE if op.key in finished else None)
            elif (key := committed.started_keys.get(op.run.id)) is not None:
                run = make_run(op.run, key, op.claim_as, now, op.run.previous_run, has_budget=False)
                answers.append(StartResult(run, is_new=True))
            else:
                answers.append(None)
                self._plain_starts_after = monotonic() + _PLAIN_START_DELAY_S
        return answers

    async def get_run(self, run_id: str) -> Run | None:
        [run] = await self._run_reads.call([run_id])
        if run is not None and run.is_delivery and run.is_limited and run.state is RunState.RUNNING:
            self.notifier.track_limited(run)  # perhaps claimed through another server, and released through this one
        return run

    async def _read_each_run(self, run_ids: Sequence[str]) -> list[Run | None]:
        return await run_reads.read_each_run(self, run_ids)

    async def get_ended_runs(self, run_ids: Sequence[str]) -> tuple[list[Run], Collection[str]]:
        return await run_reads.read_ended_runs(self, run_ids)

    # Change

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        await self._check_schema_if_due()
        loop = asyncio.get_running_loop()
        elapsed = loop.time() - self._change_reported_at
        pause = min(_MAX_CHANGE_PAUSE_S, _CHANGE_PAUSE_FACTOR * elapsed)
        if self._claims.fruitless_change_count < _MIN_FRUITLESS_CHANGES:
            pause = 0.0
        if await self._set_following(follow_runs):
            self._change_event.set()  # what happened until now was perhaps not notified: the caller reads again
        deadline = loop.time() + timeout_s
        if follow_runs and not self.session.is_listening:
            timeout_s = min(timeout_s, FOLLOW_POLL_INTERVAL_S)
        if follow_runs:
            timeout_s = min(timeout_s, max(0.0, self._change_reported_at + FOLLOW_FALLBACK_S - loop.time()))
        try:
            async with asyncio.timeout(timeout_s):
                await self._change_event.wait()
        except TimeoutError:
            if loop.time() >= deadline:
                return False
        await asyncio.sleep(min(self._change_reported_at + pause, deadline) - loop.time())
        self._change_event.clear()
        self._change_reported_at = loop.time()
        self._claims.fruitless_change_count += 1
        return True

    async def _set_following(self, is_following: bool) -> bool:
        """Let other processes know whether a reader here follows runs, or did so a moment ago.

        Returns whether it follows runs only from now on.
        """
        now = asyncio.get_running_loop().time()
        if is_following:
            self._followed_at = now
        is_current = self._is_following == is_following or (
            self._is_following and now < self._followed_at + FOLLOW_FALLBACK_S
        )
        if is_current or not self.session.is_listening:
            return False
        self._is_following = is_following
        with suppress(StoreUnavailable):
            await self.session.run(lambda db: self._workers.set_following(db, is_following))
        return is_following

    def report_change(self) -> None:
        """End the wait for a change."""
        self._change_event.set()

    def _on_notification(self, channel: str | None) -> None:
        if channel == self.notifier.worker_channel:
            self._workers.check_deaths()
            return
        if channel == self.notifier.follower_channel:
            self.notifier.set_followed()
            return
        if channel is None:  # the session is gone, or it is a new one, without the followers' lock
            self._is_following = False
            self.cut_off_at = monotonic()
        if channel != self.notifier.run_channel or self._is_following:
            self._change_event.set()

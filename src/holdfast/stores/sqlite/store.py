"""The SQLite store: which connection does what, and how processes on one file notice each other's writes.

A process that has committed something that others may wait for (a new run, a signal, the end of a run) notifies them:
see ``notifications``. It does not notify them of the progress of runs. So a process also polls ``PRAGMA data_version``,
which changes when another connection has written: every ``POLL_INTERVAL_S`` seconds, and less often when nothing has
changed for ``IDLE_AFTER_S``.

After a change, a process looks for work, signals, and ended runs. While another process commits all the time, changes
are reported at most every ``POLL_INTERVAL_S`` seconds. Notifications are reported earlier, but not before the process
has had three times as long for other work as it took to look.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from holdfast.core.states import RunState
from holdfast.errors import StoreUnavailable
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.claims import ClaimedRun, ClaimNext
from holdfast.stores.contract import DEFAULT_NAMESPACE
from holdfast.stores.grouped_calls import GroupedCalls
from holdfast.stores.operations import (
    AppendLiveEvents,
    AppendRecord,
    Op,
    OpResult,
    ParkRun,
    ReserveUsage,
    SaveAttempt,
    StartResult,
)
from holdfast.stores.sql.batch import BeforeCommit
from holdfast.stores.sql.database_access import DatabaseWork, T
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sqlite import connections
from holdfast.stores.sqlite.connection_worker import ConnectionWorker
from holdfast.stores.sqlite.database import register_search_function
from holdfast.stores.sqlite.erasure import SqliteErasure
from holdfast.stores.sqlite.errors import to_store_error
from holdfast.stores.sqlite.next_claims import NextClaims
from holdfast.stores.sqlite.notifications import ChangeListener, ChangeNotifier
from holdfast.stores.sqlite.step_transactions import SqliteStepTransactions
from holdfast.stores.sqlite.worker_locks import get_process_folder
from holdfast.stores.sqlite.workers import SqliteWorkers
from holdfast.stores.urls import validate_namespace, with_namespace

POLL_INTERVAL_S, IDLE_POLL_INTERVAL_S, IDLE_AFTER_S = 0.02, 0.05, 1.0
"""Poll intervals of ``wait_for_change`` in seconds: longer when nothing has changed for a while, to idle cheaply."""
NOTIFIED_IDLE_POLL_INTERVAL_S = 0.1
"""The same for a process that gets notifications: a poll has less to find, and waiting for both costs more."""
UNFOLLOWED_POLL_INTERVAL_S = 0.2
"""The interval of a process that gets notifications and follows no runs: usually, a poll finds nothing new."""
_MIN_IDLE_RATIO = 3.0
"""After a notification, the minimum time until the next one is reported, as a multiple of the time that the caller
took."""
_QUIET_OPS = frozenset({AppendRecord, AppendLiveEvents, SaveAttempt, ReserveUsage, ParkRun, AuditEvent})
"""Operations of which no other process is notified."""


def path_for_namespace(default_path: Path, namespace: str) -> Path:
    """The file of a namespace of the database at ``default_path``: in the same folder, with the same extension."""
    if namespace == DEFAULT_NAMESPACE:
        return default_path
    return default_path.with_name(f"{default_path.stem}.{namespace}{default_path.suffix}").resolve()


class SqliteStore(SqlStore):
    """Journals in one SQLite file, shared by the processes of one machine."""

    def __init__(
        self, path: str | Path, *, namespace: str = DEFAULT_NAMESPACE, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        base = Path(path).expanduser().resolve()
        self.namespace = validate_namespace(namespace)
        self.path = path_for_namespace(base, self.namespace)
        self.url = with_namespace(f"sqlite:///{base}", self.namespace)
        self._clock = clock
        self.reader = RowReader(str(self.path))
        self._write_worker: ConnectionWorker | None = None
        self._read_worker: ConnectionWorker | None = None
        self._client_read_worker: ConnectionWorker | None = None
        self._group_commit = GroupedCalls(self._commit_group)
        self.workers = self._workers = SqliteWorkers(self)
        self.erasure = SqliteErasure(self, self.path)
        self.step_transactions = self._step_transactions = SqliteStepTransactions(self)
        folder = get_process_folder(self.path)
        self._listener = ChangeListener(folder)
        self._notifier = ChangeNotifier(folder, self._listener)
        self._seen_data_version: int | None = None
        self._changed_at = float("-inf")
        self._is_notified = False
        """There was a notification that is not reported yet."""

    # Opening and closing

    async def open(self) -> None:
        if self._write_worker is None:
            await asyncio.get_running_loop().run_in_executor(None, self._open)

    def _open(self) -> None:
        connections.prepare_folder(self.path)
        with ExitStack() as opened:
            try:
                writer = connections.open_writer(self.path)  # first: it creates the file
                opened.callback(writer.close)
                reader = connections.open_reader(self.path)
                opened.callback(reader.close)
                client_reader = connections.open_reader(self.path)
            except sqlite3.DatabaseError as error:
                raise to_store_error(error, self.path) from error
            opened.pop_all()
        register_search_function(client_reader)
        self._group_commit = GroupedCalls(self._commit_group)  # the old one may wait for a closed loop
        self._write_worker = ConnectionWorker(writer, self.path, "writer", is_writer=True)
        self._read_worker = ConnectionWorker(reader, self.path, "reader")
        self._client_read_worker = ConnectionWorker(client_reader, self.path, "browser")
        self._seen_data_version = self._write_worker.read_data_version()

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._notifier.close()
        self._listener.close()
        self._workers.close_renewer()
        connection_workers = (self._client_read_worker, self._read_worker, self._write_worker)
        self._client_read_worker = self._read_worker = self._write_worker = None
        for connection_worker in connection_workers:
            if connection_worker is not None:
                connection_worker.close()
        self._workers.release_locks()
        self._step_transactions.reset()

    def abandon(self) -> None:
        """Retire this object's workers as well: the process lives, so they did not die."""
        if self._write_worker is not None:
            self._workers.abandon(self._write_worker)
        self._close()

    @property
    def writer(self) -> ConnectionWorker:
        """The connection that writes."""
        return self._require_open(self._write_worker)

    @property
    def _engine_reader(self) -> ConnectionWorker:
        return self._require_open(self._read_worker)

    @property
    def _client_reader(self) -> ConnectionWorker:
        return self._require_open(self._client_read_worker)

    def _require_open(self, connection_worker: ConnectionWorker | None) -> ConnectionWorker:
        if connection_worker is None:
            raise StoreUnavailable(f"{self.path} is not open: call open() first (or it has been closed)")
        return connection_worker

    # Which connection does what

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        return cast("list[OpResult]", await self._group_commit.call(ops)) if ops else []

    async def commit_and_claim(self, items: Sequence[Op | ClaimNext]) -> list[OpResult | ClaimedRun | None]:
        return await self._group_commit.call(items) if items else []

    async def _commit_group(self, items: Sequence[Op | ClaimNext]) -> list[OpResult | ClaimedRun | None]:
        if ClaimNext not in map(type, items):
            return [*await self._commit_and_notify(cast("Sequence[Op]", items))]
        claims = NextClaims(items, self.reader)
        return claims.merge_answers(await self._commit_and_notify(claims.ops, claims.claim))

    async def _commit_and_notify(self, ops: Sequence[Op], before_commit: BeforeCommit | None = None) -> list[OpResult]:
        answers = await self._commit(ops, before_commit)
        if any(map(_concerns_others, ops, answers)):
            self._notifier.notify()
        return answers

    async def write(self, work: DatabaseWork[T], op_count: int = 1, *, is_slow: bool = False) -> T:
        return await self.writer.write(work, op_count, slow=is_slow)

    async def read(self, work: DatabaseWork[T], *, is_slow: bool = True) -> T:
        reader = self._engine_reader
        return await (reader.run_inline_if_short(work) if is_slow else reader.run_inline_if_free(work))

    async def read_for_client(self, work: DatabaseWork[T]) -> T:
        return await self._client_reader.run_inline_if_short(work)

    # Change

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        """Poll ``data_version`` on the connection that writes: there it does not change with its own commits."""
        loop = asyncio.get_running_loop()
        entered_at = loop.time()
        deadline = entered_at + timeout_s
        min_gap_s = min(POLL_INTERVAL_S, _MIN_IDLE_RATIO * (entered_at - self._changed_at))
        while True:
            now = loop.time()
            due_at = self._changed_at + (min_gap_s if self._is_notified else POLL_INTERVAL_S)
            if now >= min(due_at, deadline):
                if self._has_changed():
                    self._changed_at = loop.time()
                    return True
                if now >= deadline:
                    return False
                due_at = now + self._get_poll_interval_s(now, follow_runs)
            if await self._listener.wait(min(due_at, deadline) - now, self._notifier.watch_peers()):
                self._is_notified = True
            if self._notifier.forget_dead_peers():
                self._changed_at = loop.time()
                return True

    def _get_poll_interval_s(self, now: float, follow_runs: bool) -> float:
        if self._listener.is_open and not follow_runs:
            return UNFOLLOWED_POLL_INTERVAL_S
        if now - self._changed_at < IDLE_AFTER_S:
            return POLL_INTERVAL_S
        return NOTIFIED_IDLE_POLL_INTERVAL_S if self._listener.is_open else IDLE_POLL_INTERVAL_S

    def _has_changed(self) -> bool:
        """Whether another process has written since this was last true."""
        version = self.writer.read_data_version()
        is_notified, self._is_notified = self._is_notified, False
        if version is None:  # in use, so the notification says it
            return is_notified
        has_changed, self._seen_data_version = version != self._seen_data_version, version
        return has_changed

    def notify_work(self) -> None:
        self._notifier.notify()

    def notify_all(self) -> None:
        self._notifier.notify()

    def now(self) -> float:
        return self._clock()


def _concerns_others(op: Op, answer: OpResult) -> bool:
    """Whether other processes are notified of an operation. A run that is begun here is no work for them."""
    if isinstance(answer, StartResult):
        return answer.run.state is RunState.PENDING
    return type(op) not in _QUIET_OPS

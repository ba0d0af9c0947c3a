# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""The SQLite store: which line does what, and how workers on one file learn of each other."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from holdfast.core.records import Attempt
from holdfast.errors import StoreError, StoreReadOnly, StoreUnavailable, UsageError
from holdfast.stores.contract import DEFAULT_NAMESPACE, NewWorker, Reaped
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.operations import Answer, Op, Run, Verdict
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.group_commit import Gathering
from holdfast.stores.sql.rows import Reader
from holdfast.stores.sql.step_transactions import find_out
from holdfast.stores.sql.store import SqlStore, T, Work
from holdfast.stores.sql.workers import Suspect, bury, retire
from holdfast.stores.sqlite import connections, step_transactions
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite import workers as registry
from holdfast.stores.sqlite.connection_worker import Line
from holdfast.stores.sqlite.database import add_search
from holdfast.stores.sqlite.errors import store_error
from holdfast.stores.sqlite.step_transactions import SqliteStepTransaction
from holdfast.stores.sqlite.worker_locks import WorkerLocks
from holdfast.stores.urls import checked_namespace, in_namespace

TICK, QUIET_TICK, QUIET_AFTER = 0.02, 0.05, 1.0
"""How often ``changed`` looks, in seconds: less often when nothing has changed for a while, to idle cheaply."""
RENEWAL_PATIENCE = 2.0
"""How long a lease renewal waits for the lock: well below a lease, since the renewer has to try again."""
ABANDON_PATIENCE = 1.0
"""How long ``abandon`` waits for the lock: it holds up whoever calls it, and leases end by themselves."""
_LIVE_LIST_AGE = 1.0


def file_of(base: Path, namespace: str) -> Path:
    """The file in which a namespace of the database at ``base`` is kept: beside it, and of the same kind."""
    if namespace == DEFAULT_NAMESPACE:
        return base
    return base.with_name(f"{base.stem}.{namespace}{base.suffix}").resolve()


class SqliteStore(SqlStore):
    """Journals in one SQLite file, shared by the processes of one machine."""

    def __init__(
        self, path: str | Path, *, namespace: str = DEFAULT_NAMESPACE, clock: Callable[[], float] = time.time
    ) -> None:
        base = Path(path).expanduser().resolve()
        self.namespace = checked_namespace(namespace)
        self.path = file_of(base, self.namespace)
        self.url = in_namespace(f"sqlite:///{base}", self.namespace)
        self._clock = clock
        self._reader = Reader(str(self.path))
        self._locks = WorkerLocks(self.path)
        self._writing: Line | None = None
        self._reading: Line | None = None
        self._browsing: Line | None = None
        self._renewing: Line | None = None
        self._renewer_guard = threading.Lock()
        self._gathering = Gathering(self._commit)
        self._stepping = asyncio.Lock()
        """Held while a step of this process has the file's write lock."""
        self._mine: dict[int, str] = {}
        """Workers registered through this object that have not retired: id -> token."""
        self._seen_version: int | None = None
        self._changed_at = 0.0
        self._live: list[registry.LiveWorker] | None = None
        self._live_version: int | None = None
        self._live_read_at = 0.0

    # Opening and closing

    async def open(self) -> None:
        if self._writing is None:
            await asyncio.get_running_loop().run_in_executor(None, self._open)

    def _open(self) -> None:
        connections.prepare_folder(self.path)
        with ExitStack() as opened:
            try:
                writer = connections.open_writer(self.path)  # first: it makes sure that there is something to read
                opened.callback(writer.close)
                reader = connections.open_reader(self.path)
                opened.callback(reader.close)
                browser = connections.open_reader(self.path)
            except sqlite3.DatabaseError as error:
                raise store_error(error, self.path) from error
            opened.pop_all()
        add_search(browser)
        self._gathering = Gathering(self._commit)  # not that of a loop that was closed in the middle of a commit
        self._writing = Line(writer, self.path, "writer", writes=True)
        self._reading = Line(reader, self.path, "reader")
        self._browsing = Line(browser, self.path, "browser")
        self._seen_version = self._writing.data_version()

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        """Close the lines; whoever has not retired lets go of its lock, so that others need not wait for its lease."""
        lines = (self._renewing, self._browsing, self._reading, self._writing)
        self._renewing = self._browsing = self._reading = self._writing = None
        for line in lines:
            if line is not None:
                line.close()
        for token in self._mine.values():
            self._locks.drop(token)
        self._mine.clear()
        self._live = None
        self._stepping = asyncio.Lock()  # whoever still holds the old one belongs to a loop that may be gone

    def abandon(self) -> None:
        """Retire this object's workers as well: the process lives, so nothing took them down."""
        if self._writing is not None:
            for worker, token in list(self._mine.items()):
                with suppress(StoreError, UsageError):
                    self._writing.blocking(partial(retire, worker=worker, now=self._clock()), ABANDON_PATIENCE)
                    self._locks.remove(token)
        self._close()

    @property
    def _writer(self) -> Line:
        return self._opened(self._writing)

    @property
    def _readers(self) -> Line:
        return self._opened(self._reading)

    @property
    def _browsers(self) -> Line:
        return self._opened(self._browsing)

    def _opened(self, line: Line | None) -> Line:
        if line is None:
            raise StoreUnavailable(f"{self.path} is not open: call open() first (or it has been closed)")
        return line

    # Which line does what

    async def commit(self, ops: Sequence[Op]) -> list[Answer]:
        return await self._gathering.commit(ops) if ops else []

    async def _write(self, work: Work[T], size: int = 1, *, slow: bool = False) -> T:
        return await self._writer.write(work, size, slow=slow)

    async def _read(self, work: Work[T], *, slow: bool = True) -> T:
        return await (self._readers.in_thread(work) if slow else self._readers.prefer_inline(work))

    async def _browse(self, work: Work[T]) -> T:
        return await self._browsers.in_thread(work)

    # Steps

    async def begin_step(
        self, run: Run, attempt: Attempt, *, plain: bool, limit: float | None = None
    ) -> SqliteStepTransaction | None:
        self._writer.check_in_place()  # a new connection would make new files
        await self._stepping.acquire()  # they would only wait for each other in the database, and less fairly
        connection = None
        try:
            connection = await asyncio.to_thread(step_transactions.begin, self.path, run)
        except sqlite3.DatabaseError as error:
            raise await asyncio.to_thread(store_error, error, self.path) from error
        finally:
            if connection is None:
                self._stepping.release()
        if connection is None:
            return None

        def ask() -> Awaitable[Verdict]:
            return self._write(lambda db: find_out(db, run, attempt, self._clock()))

        return SqliteStepTransaction(connection, self.path, run, attempt, self._stepping.release, ask)

    # Workers

    async def register_worker(self, worker: NewWorker, lease: float) -> int:
        token = secrets.token_hex(8)
        if worker.by_lease:  # no process of this machine: there is nothing to lock
            return await self._write(lambda db: registry.register(db, worker, token, self._clock(), lease))
        try:
            self._locks.take(token)
        except OSError as error:
            raise StoreReadOnly(
                f"the lock file of this worker cannot be made in {self._locks.folder} ({error.strerror}). Give this "
                f"process write access to the folder of {self.path.name}."
            ) from error
        try:
            now = self._clock()
            number = await self._write(lambda db: registry.register(db, worker, token, now, lease))
        except BaseException:
            self._locks.remove(token)
            raise
        self._mine[number] = token
        self._live = None
        return number

    async def keep_worker(self, worker: int, lease: float) -> bool:
        def keep(db: Database) -> bool:
            now = self._clock()
            return db.change(sql.KEEP_WORKER, (now + lease, now, worker)) == 1

        return await self._write(keep)

    def renew_lease(self, worker: int, lease: float) -> bool:
        def renew(db: Database) -> bool:
            now = self._clock()
            return db.change(sql.RENEW_LEASE, (now + lease, now, worker)) == 1

        return self._renewer().blocking(renew, RENEWAL_PATIENCE)

    def _renewer(self) -> Line:
        """The heartbeat's own connection, opened by its thread when it first needs it."""
        with self._renewer_guard:
            if self._renewing is None:
                self._writer.check_in_place()
                try:
                    self._renewing = Line(connections.open_renewer(self.path), self.path, "renewer", writes=True)
                except sqlite3.DatabaseError as error:
                    raise store_error(error, self.path) from error
            return self._renewing

    async def retire_worker(self, worker: int) -> None:
        await self._write(lambda db: retire(db, worker, self._clock()))
        self._live = None
        token = self._mine.pop(worker, None)
        if token is not None:
            self._locks.remove(token)

    async def reap(self, me: int | None = None, window: LeaseWindow | None = None, *, by_lease: bool = False) -> Reaped:
        now = self._clock()
        counted = window or LeaseWindow(0.0, now)
        suspects = registry.suspects(await self._live_workers(), self._locks, me, counted)
        listeners: list[Suspect] = []
        if by_lease:
            found = await self._read(lambda db: registry.listeners_over(db, counted), slow=False)
            listeners = [one for one in found if one.id != me]
        if not suspects and not listeners:
            return Reaped()

        def is_dead(suspect: Suspect, beat_at: float, lease_until: float) -> bool:
            if counted.has_passed(beat_at, lease_until):
                return True
            return not suspect.by_lease and self._locks.is_free(suspects[suspect].token)

        reaped = await self._write(lambda db: bury(db, [*suspects, *listeners], is_dead, now))
        self._live = None
        for worker in suspects.values():
            if worker.id in reaped.workers:
                self._locks.remove(worker.token)
        return reaped

    async def _live_workers(self) -> list[registry.LiveWorker]:
        version = self._writer.data_version()
        stale = time.monotonic() - self._live_read_at > _LIVE_LIST_AGE
        if self._live is None or version != self._live_version or stale:
            self._live = await self._read(registry.live_workers, slow=False)
            self._live_version = version
            self._live_read_at = time.monotonic()
        return self._live

    # Change

    async def changed(self, timeout: float, *, follows: bool = True) -> bool:
        """Poll ``data_version`` on the writing line, where it does not move with this object's own commits."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            version, now = self._writer.data_version(), loop.time()
            if version is not None and version != self._seen_version:
                self._seen_version = version
                self._changed_at = now
                return True
            if now >= deadline:
                return False
            tick = TICK if now - self._changed_at < QUIET_AFTER else QUIET_TICK
            await asyncio.sleep(min(tick, deadline - now))

    def now(self) -> float:
        return self._clock()

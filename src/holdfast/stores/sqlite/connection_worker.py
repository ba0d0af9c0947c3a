"""One SQLite connection, the lock that guards it, and a thread in which to wait for it.

Work is a function of the database. There are two ways to do it:

- **inline**, on the event loop. It saves two thread hops (about 60 µs, as much as a quick commit), but stops the loop
  while the disk syncs. So inline is for small work on a quick disk, and never waits: if the connection is in use, or
  another process holds the database lock, the work goes to the thread instead.
- **in the thread**, which waits for locks for up to ``LOCK_TIMEOUT_S``, without blocking the loop.

Reads of unknown duration are tried inline, and interrupted after ``MAX_INLINE_READ_S``: most are short, and a thread
hop costs more than they do. One that was interrupted starts again in the thread. SQLite can be interrupted between two
of its instructions, but not while it waits for the disk. So after a read that took long nevertheless, reads go to the
thread for a while.

The connection that writes chooses by measuring: it keeps a moving average of the time that small commits take.

A newer Holdfast may migrate the file while it is open here. So a connection that writes checks the schema's version
first whenever another process has written since the last check.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from holdfast.errors import StoreUnavailable, UsageError
from holdfast.stores.sql.database import Database, InvalidText
from holdfast.stores.sqlite.connections import LOCK_TIMEOUT_S, retry_while_busy, roll_back, validate_schema_version
from holdfast.stores.sqlite.database import BlobRefused, SqliteDatabase
from holdfast.stores.sqlite.errors import is_busy, is_interrupted, to_store_error
from holdfast.stores.utf8 import make_surrogate_error

T = TypeVar("T")
Work = Callable[[Database], T]

MAX_INLINE_OPS = 64
"""More operations than this are never committed inline."""
MAX_INLINE_COMMIT_S = 0.0015
"""While small commits take longer than this on average, the loop does not wait for them."""
MAX_INLINE_READ_S = 0.001
"""Seconds after which a read is interrupted, and goes to the thread."""
_CHECK_INTERVAL = 1000
"""Instructions of SQLite between two looks at the clock: some 50 µs."""
MAX_READ_STALL_S, READ_STALL_PAUSE_S = 0.01, 1.0
"""Seconds that an inline read may take, and seconds for which reads go to the thread after one that took longer."""
_AVERAGE_WEIGHT = 0.2


class ConnectionWorker:
    """One connection, used by one caller at a time."""

    def __init__(self, connection: sqlite3.Connection, path: Path, name: str, *, is_writer: bool = False) -> None:
        self._connection = connection
        self._db = SqliteDatabase(connection)
        self._path = path
        self._file_ids = {file: _get_file_id(file) for file in _list_files(path)}
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"holdfast-{name}")
        self._pid = os.getpid()
        self._is_closed = False
        self._average_commit_s = 0.0
        self._inline_reads_resume_at = 0.0
        self._is_writer = is_writer
        self._checked_data_version: int | None = None
        """The ``data_version`` at which the schema's version was last checked."""

    async def write(self, work: Work[T], size: int = 1, *, slow: bool = False) -> T:
        """Do work that may commit ``size`` operations: inline if that is likely to be quick, else in the thread."""
        self.check_files_unchanged()
        if slow:
            return await self.run_in_thread(work, sample=False)
        if size <= MAX_INLINE_OPS and self._average_commit_s < MAX_INLINE_COMMIT_S:
            return await self.run_inline_if_free(work)
        return await self.run_in_thread(work, sample=size <= MAX_INLINE_OPS)

    async def run_inline_if_free(self, work: Work[T]) -> T:
        """Do small work inline if no lock is in the way, else in the thread."""
        if self._lock.acquire(blocking=False):
            try:
                return self._run(work, sample=True)
            except sqlite3.DatabaseError as error:
                failure = error
            finally:
                self._lock.release()
            if not is_busy(failure):
                # In a thread: to tell damage from a failed read may take a check of the whole file.
                raise await asyncio.to_thread(_translate_error, failure, self._path) from failure
        return await self.run_in_thread(work)

    async def run_inline_if_short(self, work: Work[T]) -> T:
        """Do work that only reads: inline if that is short and no lock is in the way, else in the thread."""
        started_at = time.perf_counter()
        if started_at >= self._inline_reads_resume_at and self._lock.acquire(blocking=False):
            failure: sqlite3.DatabaseError | None = None
            deadline = started_at + MAX_INLINE_READ_S
            self._connection.set_progress_handler(lambda: time.perf_counter() > deadline, _CHECK_INTERVAL)
            self._db.allows_blobs = False
            try:
                return self._run(work, sample=False)
            except BlobRefused:
                pass
            except sqlite3.DatabaseError as error:
                failure = error
            finally:
                self._db.allows_blobs = True
                self._connection.set_progress_handler(None, 0)
                self._lock.release()
                if (ended_at := time.perf_counter()) - started_at > MAX_READ_STALL_S:
                    self._inline_reads_resume_at = ended_at + READ_STALL_PAUSE_S
            if failure is not None and not is_busy(failure) and not is_interrupted(failure):
                raise await asyncio.to_thread(_translate_error, failure, self._path) from failure
        return await self.run_in_thread(work)

    async def run_in_thread(self, work: Work[T], *, sample: bool = True) -> T:
        self._check_usable()
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, self.run_blocking, work, LOCK_TIMEOUT_S, sample
        )

    def run_blocking(self, work: Work[T], timeout_s: float = LOCK_TIMEOUT_S, sample: bool = True) -> T:
        """Do work here and now, waiting for other processes up to ``timeout_s`` seconds."""

        def attempt() -> T:
            with self._lock:  # free while waiting for another process
                return self._run(work, sample=sample)

        try:
            return retry_while_busy(attempt, timeout_s)
        except sqlite3.DatabaseError as error:
            raise _translate_error(error, self._path) from error

    def read_data_version(self) -> int | None:
        """A number that changes when another connection has written; ``None``: this connection is in use."""
        self.check_files_unchanged()
        if not self._lock.acquire(blocking=False):
            return None
        try:
            self._check_usable()
            return self._validate_schema()
        except sqlite3.DatabaseError as error:
            if is_busy(error):
                return None
            raise _translate_error(error, self._path) from error
        finally:
            self._lock.release()

    def close(self, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        """Close the connection. In a forked child it stays open, because it belongs to the parent."""
        self._executor.shutdown(wait=False)
        if os.getpid() != self._pid:
            _parent_connections.append(self._connection)
            self._is_closed = True
            return
        if self._lock.acquire(timeout=timeout_s):
            try:
                self._is_closed = True
                self._connection.close()
            finally:
                self._lock.release()

    def _run(self, work: Work[T], *, sample: bool) -> T:
        self._check_usable()
        if self._is_writer:
            self._validate_schema()
        connection = self._connection
        changes, began = connection.total_changes, time.perf_counter()
        try:
            result = work(self._db)
        except BaseException as error:
            connection.set_progress_handler(None, 0)  # it would interrupt this, too, and leave the transaction open
            roll_back(connection)
            if isinstance(error, InvalidText) and error.__cause__ is not None:
                raise error.__cause__ from None  # no caller knew which row it is, so the file counts as damaged
            if isinstance(error, UnicodeEncodeError):
                raise make_surrogate_error(error) from None
            raise
        if sample and connection.total_changes != changes:
            self._average_commit_s += _AVERAGE_WEIGHT * (time.perf_counter() - began - self._average_commit_s)
        return result

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"{self._path} is not open: this store has been closed")
        if os.getpid() != self._pid:
            raise UsageError(
                f"{self._path} was opened before this process was forked, and a SQLite connection cannot cross a "
                f"fork. Open a runtime in the child, or start it with the 'spawn' method."
            )

    def _validate_schema(self) -> int:
        """The ``data_version``. Raises ``SchemaTooNew`` after a newer Holdfast has migrated the file."""
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._checked_data_version:
            validate_schema_version(self._connection, self._path)
            self._checked_data_version = version
        return version

    def check_files_unchanged(self) -> None:
        """Raise ``StoreUnavailable`` if a file of the database is not the one that was opened.

        What is written to a deleted file is lost with this process. If the ``-wal`` or ``-shm`` file is deleted, the
        next process that opens the database creates new ones, and both sides overwrite each other's pages.
        """
        for file, identity in self._file_ids.items():
            if identity is None or _get_file_id(file) == identity:
                continue
            if file == os.fspath(self._path):
                raise StoreUnavailable(
                    f"{self._path} was deleted, moved or replaced while it was open. Put it back (with its -wal "
                    f"file), or start this process again to go on with what is there now."
                )
            raise StoreUnavailable(
                f"{file} was deleted or replaced while {self._path} was in use, and nothing more is written to it. "
                f"Stop all processes that use it, with SIGTERM, and start new ones only afterwards: the last one to "
                f"close it writes what the deleted file held back to the database."
            )


_parent_connections: list[sqlite3.Connection] = []
"""Connections of parent processes, kept so that they are not closed here."""


def _list_files(database: Path) -> tuple[str, ...]:
    """The database, and the files that SQLite keeps next to it while it is open."""
    name = os.fspath(database)
    return name, f"{name}-wal", f"{name}-shm"


def _get_file_id(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _translate_error(error: sqlite3.DatabaseError, database: Path) -> Exception:
    """The store error for an error of SQLite. A misuse of SQLite is a bug, and stays as it is."""
    if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.NotSupportedError):
        return error
    return to_store_error(error, database)

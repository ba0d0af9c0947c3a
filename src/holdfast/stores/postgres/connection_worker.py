"""One PostgreSQL connection, the thread that waits for it, and recovery when it breaks.

Work is a function that takes a ``PgDatabase``. It uses psycopg's blocking calls, so SQLite and PostgreSQL share the
same code. It runs in a thread of its own, never on the event loop: a server that does not answer must not block
anything else. The thread takes its work from a queue and gives the results straight to the loop. That costs about 80 µs
a call, against 130 µs for ``run_in_executor``, which matters for a commit over a local socket (some 300 µs).

Work that is only one round trip, as most commits are, needs no thread. It is sent from the event loop; the socket
signals when the answer is there, and the loop does other things meanwhile. That takes half the time, and no other
thread needs a turn in a busy process. It is done only if the connection is good and not in use; otherwise the thread
does it, which can wait to connect and for its turn.

A connection is made when it is first needed. If it has broken meanwhile, for example because the server was restarted,
this is noticed before it gets any work, and it is replaced. If it breaks in the middle, ``StoreUnavailable`` is raised,
since only the caller knows what to repeat; commits are harmless to repeat. There are pauses between attempts to
connect, so that processes do not storm a server that is just coming up. A server that refuses a write is left as well:
it may have been demoted, and the next connection finds the new primary.

A forked child would keep the session open after this process dies, and with it the locks that show others this process
is alive. So a child drops everything that it inherits, without a message to the server.

Work that was aborted because of other transactions (a deadlock, or ``WriteConflict``) is rolled back and repeated from
its beginning, after a short random delay, so that the same two do not meet again.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.waiting import Ready, Wait

from holdfast.errors import SchemaTooNew, StoreError, StoreLocked, StoreUnavailable, UsageError
from holdfast.stores.postgres.connections import LOCK_TIMEOUT_S, Connection
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.postgres.errors import is_conflict, is_connection_lost, is_write_refused, translate_error
from holdfast.stores.postgres.pipeline import SocketGenerator
from holdfast.stores.sql.database import WriteConflict

T = TypeVar("T")

MAX_ATTEMPTS = 8
"""How often work is attempted while other transactions conflict with it."""
_CONFLICT_BACKOFF_S = 0.002
_RECONNECT_DELAY_BASE_S = 0.025
_MAX_RECONNECT_DELAY_S = 1.0


class ReconnectingConnection:
    """A connection that is replaced when it breaks. Used by one thread at a time."""

    def __init__(self, connect: Callable[[], PgDatabase], display_url: str) -> None:
        self._connect = connect
        self.display_url = display_url
        self._database: PgDatabase | None = None
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._has_connected = False
        self._failure_count = 0
        self._next_attempt_at = 0.0
        _all_connections.add(self)

    @property
    def connection(self) -> Connection | None:
        """The current connection, broken or not."""
        return None if self._database is None else self._database.connection

    def ensure_connected(self, wait: bool = True) -> PgDatabase:
        """Return a database with a live connection, connecting if needed. Raises ``StoreUnavailable``."""
        database = self.get_if_alive()
        if database is not None:
            return database
        self.disconnect()
        pause = self._next_attempt_at - time.monotonic()
        if pause > 0 and (not wait or self._closed.wait(pause)):
            self.check_usable()
            raise StoreUnavailable(f"{self.display_url} cannot be reached: the next attempt is in {pause:.1f} seconds")
        try:
            self._database = database = self._connect()
        except StoreError as error:
            self.back_off()
            if self._has_connected and not isinstance(error, StoreUnavailable | SchemaTooNew):
                # It has worked before: servers change roles, and passwords are changed.
                raise StoreUnavailable(str(error)) from error
            raise
        self._next_attempt_at = 0.0
        self._has_connected = True
        return database

    def get_if_alive(self) -> PgDatabase | None:
        """The database, if its connection seems to be good."""
        self.check_usable()
        database = self._database
        return database if database is not None and _is_alive(database.connection) else None

    def run(self, work: Callable[[PgDatabase], T], wait: bool = True) -> T:
        """Do work once, and leave the connection usable. Raises psycopg's errors as they are."""
        database = self.ensure_connected(wait)
        try:
            result = work(database)
        except BaseException as error:
            self.recover(error)
            raise
        self._failure_count = 0
        return result

    def recover(self, error: BaseException) -> None:
        """Roll back after an error; disconnect if the connection is not usable after that."""
        database = self._database
        if database is None:
            return
        if not (database.connection.closed or is_connection_lost(error) or is_write_refused(error)):
            try:
                database.roll_back()
            except psycopg.Error:
                self.disconnect()
                return
            pgconn = database.connection.pgconn
            is_idle = pgconn.transaction_status == TransactionStatus.IDLE
            if is_idle and pgconn.pipeline_status == PipelineStatus.OFF:
                return
        self.disconnect()

    def disconnect(self) -> None:
        """Close the current connection, if there is one."""
        database, self._database = self._database, None
        if database is not None:
            database.connection.close()

    def close(self) -> None:
        """Close the connection for good. In a forked child it is left alone: it belongs to the parent."""
        self._closed.set()
        if self.is_own_process:
            self.disconnect()
        elif self.connection is not None:
            _parent_connections.append(self.connection)

    def stop_waiting(self) -> None:
        """Make every wait for a connection fail, now and later."""
        self._closed.set()

    @property
    def is_own_process(self) -> bool:
        """Whether this object was made in this process, and not in the one that this process was forked from."""
        return os.getpid() == self._pid

    def check_usable(self) -> None:
        """Raise unless this is open and was opened in this process."""
        if not self.is_own_process:
            raise UsageError(
                f"{self.display_url} was opened before this process was forked, and a connection cannot cross a fork. "
                f"Open a runtime in the child, or start it with the 'spawn' method."
            )
        if self._closed.is_set():
            raise StoreUnavailable(f"{self.display_url} is not open: this store has been closed")

    def back_off(self) -> None:
        """Delay the next attempt to connect. Each failed attempt makes the delay longer."""
        self._failure_count += 1
        doublings = min(self._failure_count, 16)  # 2**1024 is not a float
        pause = min(_RECONNECT_DELAY_BASE_S * 2**doublings, _MAX_RECONNECT_DELAY_S)
        self._next_attempt_at = time.monotonic() + pause * random.uniform(0.5, 1.0)

    def get_backoff_s(self) -> float:
        """Seconds until the next attempt to connect."""
        return max(0.0, self._next_attempt_at - time.monotonic())


class ConnectionWorker:
    """One connection, used by one caller at a time."""

    def __init__(self, connect: Callable[[], PgDatabase], display_url: str, name: str) -> None:
        self._reconnecting = ReconnectingConnection(connect, display_url)
        self._lock = threading.Lock()
        self._thread = JobThread(f"holdfast-{name}")
        self._pending_query: PendingQuery | None = None
        """The query in progress on an event loop; it holds the lock."""
        self._watcher: SocketWatcher | None = None
        """Kept between two queries, since starting and stopping it takes as long as the rest of a query. Stopped while
        the thread reads the socket."""
        self._thread_job_count = 0

    @property
    def job_count(self) -> int:
        """How many callers use the connection, or wait for it."""
        return self._thread_job_count

    def run_on_loop(self, work: Callable[[PgDatabase], SocketGenerator[T] | None]) -> asyncio.Future[T | None] | None:
        """Do work that only waits for the socket, without a thread.

        If this returns ``None``, or the future resolves to ``None``, use ``run_in_thread``. Once the work has begun, it
        runs to its end, even if its caller is cancelled.
        """
        if self._thread_job_count or not self._lock.acquire(blocking=False):
            return None
        query: PendingQuery | None = None
        try:
            database = self._reconnecting.get_if_alive()
            generator = None if database is None else work(database)
            if database is None or generator is None:
                return None
            watcher = self._get_watcher(asyncio.get_running_loop(), database.connection.pgconn.socket)
            self._pending_query = query = PendingQuery(watcher, generator, self._finish_query)
            query.advance(None)
            return query.future
        finally:
            if query is None:
                self._lock.release()

    def _get_watcher(self, loop: asyncio.AbstractEventLoop, fd: int) -> SocketWatcher:
        watcher = self._watcher
        if watcher is None or watcher.loop is not loop or watcher.fd != fd:
            self._stop_watching()
            self._watcher = watcher = SocketWatcher(loop, fd, self._on_socket_ready)
        return watcher

    def _on_socket_ready(self, ready: Ready) -> None:
        if self._pending_query is not None:
            self._pending_query.advance(ready)
        else:
            self._stop_watching()  # an unexpected message of the server: the next query reads it

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None

    def _finish_query(self, error: BaseException | None) -> BaseException | None:
        """Release the connection after a query.

        Returns the error to report; ``None`` on success, or if the thread repeats the work.
        """
        self._pending_query = None
        try:
            if self._thread_job_count or error is not None:
                self._stop_watching()
            if error is None:
                return None
            self._reconnecting.recover(error)
            if isinstance(error, psycopg.Error):
                # After any other database error, the thread repeats the work and reports what is wrong.
                return translate_error(error, self._reconnecting.display_url) if is_connection_lost(error) else None
            return error
        finally:
            self._lock.release()

    def block_loop_queries(self) -> None:
        """Let no more queries run on the loop. A query in progress still runs to its end.

        This is for good: only ``run_in_thread`` undoes its own call, when its job is done.
        """
        self._thread_job_count += 1
        if self._pending_query is None:
            self._stop_watching()

    def _end_orphaned_query(self) -> None:
        """End a query whose event loop is closed and cannot advance it any more."""
        query = self._pending_query
        if query is not None and query.watcher.loop.is_closed():
            self._watcher = None
            query.abort(StoreUnavailable(f"{self._reconnecting.display_url}: the event loop was closed meanwhile"))

    async def run_in_thread(self, work: Callable[[PgDatabase], T]) -> T:
        """Do work in the thread of this connection."""
        self._reconnecting.check_usable()
        self.block_loop_queries()
        try:
            return await self._thread.run(lambda: self.run_blocking(work))
        finally:
            self._thread_job_count -= 1

    def run_blocking(self, work: Callable[[PgDatabase], T]) -> T:
        """Do work in the calling thread."""
        self._end_orphaned_query()
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                with self._lock:
                    return self._reconnecting.run(work)
            except WriteConflict as error:
                if attempt == MAX_ATTEMPTS:
                    raise StoreLocked(
                        f"{self._reconnecting.display_url}: others wrote the same rows first, {MAX_ATTEMPTS} times in "
                        "a row"
                    ) from error
            except psycopg.Error as error:
                if not is_conflict(error) or attempt == MAX_ATTEMPTS:
                    raise translate_error(error, self._reconnecting.display_url) from error
            time.sleep(_CONFLICT_BACKOFF_S * 2**attempt * random.random())
        raise AssertionError  # every attempt ends above

    def close(self, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        """Close the connection. In a forked child it is left alone: it belongs to the parent."""
        self._reconnecting.stop_waiting()
        if not self._reconnecting.is_own_process:
            self._reconnecting.close()  # the lock and the thread belong to the parent, too
            return
        self._thread.stop()
        self._end_orphaned_query()
        if self._lock.acquire(timeout=timeout_s):
            try:
                self._reconnecting.close()
            finally:
                self._lock.release()


class SocketWatcher:
    """Calls back on an event loop when a socket is ready."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, on_ready: Callable[[Ready], None]) -> None:
        self.loop = loop
        self.fd = fd
        self._on_ready = on_ready
        self._is_watching_writes = False
        loop.add_reader(fd, on_ready, Ready.R)

    def set_wait(self, wait: Wait) -> None:
        """Watch for writes as well, or only for reads."""
        if (wait == Wait.RW) is not self._is_watching_writes:
            self._is_watching_writes = not self._is_watching_writes
            if self._is_watching_writes:
                self.loop.add_writer(self.fd, self._on_ready, Ready.W)
            else:
                self.loop.remove_writer(self.fd)

    def stop(self) -> None:
        """Stop watching."""
        if not self.loop.is_closed():
            with suppress(OSError):  # libpq has closed the socket: the loop removes it nonetheless
                self.set_wait(Wait.R)
            self.loop.remove_reader(self.fd)


class PendingQuery:
    """Work in progress on an event loop, waiting for a socket."""

    def __init__(
        self,
        watcher: SocketWatcher,
        generator: SocketGenerator[Any],
        on_finish: Callable[[BaseException | None], BaseException | None],
    ) -> None:
        self.watcher = watcher
        self.future: asyncio.Future[Any] = watcher.loop.create_future()
        self._generator = generator
        self._on_finish = on_finish

    def advance(self, ready: Ready | None) -> None:
        """Continue until the work waits again or ends; ``None`` starts it."""
        result, error = None, None
        try:
            wait = next(self._generator) if ready is None else self._generator.send(ready)
        except StopIteration as end:
            result = end.value
        except BaseException as raised:
            error = raised
        else:
            self.watcher.set_wait(wait)
            return
        if error is None:
            self.watcher.set_wait(Wait.R)
        _resolve_future(self.future, result, self._on_finish(error))

    def abort(self, error: BaseException) -> None:
        """End the work before it is done."""
        self._generator.close()
        self._on_finish(error)


class JobThread:
    """A thread that does one job after the other, for an event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Run a job, and wait for its result. If the caller is cancelled, a job that has begun continues."""
        if self._thread is None:
            # A daemon: it may be waiting for a server, and the process need not.
            self._thread = threading.Thread(target=self._run_jobs, name=self._name, daemon=True)
            self._thread.start()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((future, work))
        return await future

    def stop(self) -> None:
        """End the thread after the jobs that were submitted so far."""
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            if future.cancelled():
                continue
            try:
                result, error = work(), None
            except BaseException as raised:
                result, error = None, raised
            try:
                future.get_loop().call_soon_threadsafe(_resolve_future, future, result, error)
            except RuntimeError:
                pass  # the loop is closed
            del job, future, work, result, error  # keep nothing alive while the thread is idle


_parent_connections: list[Connection] = []
"""Connections of parent processes, kept so that they are not closed here."""
_all_connections: WeakSet[ReconnectingConnection] = WeakSet()


def _detach_inherited_sockets() -> None:
    """In a forked child: replace the sockets that libpq believes lead to the server."""
    null_device = os.open(os.devnull, os.O_RDWR)
    for reconnecting in _all_connections:
        connection = reconnecting.connection
        if connection is not None and not connection.closed:
            os.dup2(null_device, connection.pgconn.socket, inheritable=False)
    os.close(null_device)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_detach_inherited_sockets)


def _resolve_future(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _is_alive(connection: Connection) -> bool:
    """Whether the server has not closed the connection, as far as this can be told without a query.

    Before it closes, the server says why: that message is read first, and only then the end. If there are other
    servers, one that refuses writes counts as closed: another one has probably been promoted.
    """
    if connection.closed or connection.should_leave:
        return False
    try:
        connection.pgconn.consume_input()
        connection.pgconn.is_busy()
        connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return not connection.broken

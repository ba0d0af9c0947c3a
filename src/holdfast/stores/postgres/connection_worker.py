"""One PostgreSQL connection, the thread that waits for it, and what to do when it breaks.

Work is a function of what ``wrap`` makes of the connection, once for each connection. It uses psycopg's blocking calls,
so SQLite and PostgreSQL share the same code. It runs in a thread of its own, never on the event loop: a server that
does not answer must not block anything else. The thread takes its work from a queue and gives the results straight to
the loop. That costs about 80 µs a call, against 130 µs for ``run_in_executor``, which matters for a commit over a local
socket (some 300 µs).

Work that is only one round trip, as most commits are, needs no thread. It is sent from the event loop; the socket
signals when the answer is there, and the loop does other things meanwhile. That takes half the time, and no other
thread needs a turn in a busy process. It is done only if the connection is good and not in use; otherwise the thread
does it, because it can wait for both.

A connection is made when it is first needed. One that has broken meanwhile, for example because the server was
restarted, is noticed before any work is given to it, and replaced. If it breaks in the middle, ``StoreUnavailable`` is
raised, since only the caller knows what to repeat; commits are harmless to repeat. There are pauses between attempts to
connect, so that processes do not storm a server that is just coming up.

A forked child process would keep the session alive after this process is dead, and with it the locks by which others
see that it lives. So a child drops everything that it inherits, without a message to the server.

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
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.waiting import Ready, Wait

from holdfast.errors import SchemaTooNew, StoreError, StoreLocked, StoreUnavailable, UsageError
from holdfast.stores.postgres.connections import LOCK_TIMEOUT_S, Connection
from holdfast.stores.postgres.errors import is_conflict, is_connection_lost, translate_error
from holdfast.stores.postgres.pipeline import SocketGenerator
from holdfast.stores.sql.database import WriteConflict

MAX_ATTEMPTS = 8
"""How often work is begun that others get in the way of."""
_CONFLICT_BACKOFF_S = 0.002
_FIRST_RECONNECT_DELAY_S = 0.025
_MAX_RECONNECT_DELAY_S = 1.0


class TransactionalDatabase(Protocol):
    """What work is a function of."""

    def roll_back(self) -> None:
        """Leave whatever transaction is open, so that the connection can be used again."""
        ...


T = TypeVar("T")
D = TypeVar("D", bound=TransactionalDatabase)


class ReconnectingConnection(Generic[D]):
    """A connection that is made again when it is broken. Used by one thread at a time."""

    def __init__(self, connect: Callable[[], Connection], wrap: Callable[[Connection], D], display_url: str) -> None:
        self._connect = connect
        self._wrap = wrap
        self.display_url = display_url
        self.connection: Connection | None = None
        self._database: D | None = None
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._has_connected = False
        self._failure_count = 0
        self._next_attempt_at = 0.0
        _all_connections.add(self)

    def ensure_connected(self, wait: bool = True) -> D:
        """Make sure of a connection. Raises ``StoreUnavailable`` if there is none to be had."""
        self.check_usable()
        if self.connection is not None and not _is_alive(self.connection):
            self.disconnect()
        if self.connection is None:
            pause = self._next_attempt_at - time.monotonic()
            if pause > 0 and (not wait or self._closed.wait(pause)):
                self.check_usable()
                raise StoreUnavailable(
                    f"{self.display_url} cannot be reached: the next attempt is in {pause:.1f} seconds"
                )
            self._open()
        assert self._database is not None
        return self._database

    def get_if_alive(self) -> D | None:
        """The connection, if there is one that seems to be good."""
        self.check_usable()
        good = self.connection is not None and _is_alive(self.connection)
        return self._database if good else None

    def run(self, work: Callable[[D], T], wait: bool = True) -> T:
        """Do work once, and see to it that the connection can be used afterwards. Raises psycopg's errors as such."""
        database = self.ensure_connected(wait)
        try:
            result = work(database)
        except BaseException as error:
            self.recover(database, error)
            raise
        self._failure_count = 0
        return result

    def disconnect(self) -> None:
        """Have no connection."""
        connection, self.connection, self._database = self.connection, None, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Have none any more."""
        self._closed.set()
        if self.is_own_process:
            self.disconnect()
        elif self.connection is not None:
            _parent_connections.append(self.connection)

    def stop_waiting(self) -> None:
        """Whoever waits for a connection gives up, now and from now on."""
        self._closed.set()

    @property
    def is_own_process(self) -> bool:
        """Whether it was made here, and not in the process that this one was forked from."""
        return os.getpid() == self._pid

    def check_usable(self) -> None:
        """Raises unless this is open, and was opened in this process."""
        if not self.is_own_process:
            raise UsageError(
                f"{self.display_url} was opened before this process was forked, and a connection cannot cross a fork. "
                "Open a "
                f"runtime in the child, or start it with the 'spawn' method."
            )
        if self._closed.is_set():
            raise StoreUnavailable(f"{self.display_url} is not open: this store has been closed")

    def back_off(self) -> None:
        """Let some time pass before the next attempt to connect: the longer, the more of them have failed."""
        self._failure_count += 1
        pause = min(_FIRST_RECONNECT_DELAY_S * 2**self._failure_count, _MAX_RECONNECT_DELAY_S)
        self._next_attempt_at = time.monotonic() + pause * random.uniform(0.5, 1.0)

    def get_backoff_s(self) -> float:
        """Seconds until the next attempt to connect makes sense."""
        return max(0.0, self._next_attempt_at - time.monotonic())

    def _open(self) -> None:
        try:
            connection = self._connect()
            try:
                self._database = self._wrap(connection)
            except BaseException:
                connection.close()
                raise
        except StoreError as error:
            self.back_off()
            if self._has_connected and not isinstance(error, StoreUnavailable | SchemaTooNew):
                # It has worked before: servers change roles, and passwords are changed.
                raise StoreUnavailable(str(error)) from error
            raise
        self.connection = connection
        self._next_attempt_at = 0.0
        self._has_connected = True

    def recover(self, database: D, error: BaseException) -> None:
        """After an error: let the connection be usable, or have none."""
        connection = self.connection
        if connection is None:
            return
        if not (connection.closed or is_connection_lost(error)):
            try:
                database.roll_back()
            except psycopg.Error:
                self.disconnect()
                return
            pgconn = connection.pgconn
            is_idle = pgconn.transaction_status == TransactionStatus.IDLE
            if is_idle and pgconn.pipeline_status == PipelineStatus.OFF:
                return
        self.disconnect()


class ConnectionWorker(Generic[D]):
    """One connection, used by one caller at a time."""

    def __init__(
        self, connect: Callable[[], Connection], wrap: Callable[[Connection], D], display_url: str, name: str
    ) -> None:
        self._reconnecting = ReconnectingConnection(connect, wrap, display_url)
        self._lock = threading.Lock()
        self._thread = JobThread(f"holdfast-{name}")
        self._pending_query: PendingQuery | None = None
        """What is under way on an event loop; it holds the lock."""
        self._watcher: SocketWatcher | None = None
        """Stays between two trips, since to begin and to end it takes as long as the rest of one; but nobody watches a
        socket that a thread reads."""
        self._thread_job_count = 0

    def run_on_loop(self, work: Callable[[D], SocketGenerator[T] | None]) -> asyncio.Future[T | None] | None:
        """Do work that only waits for the socket, without a thread. ``None``, now or later: the thread has to do it.

        Once it has begun, it is brought to its end, whether anybody waits for it or not.
        """
        if self._thread_job_count or not self._lock.acquire(blocking=False):
            return None
        trip: PendingQuery | None = None
        try:
            database = self._reconnecting.get_if_alive()
            waits = None if database is None else work(database)
            if database is None or waits is None:
                return None
            assert self._reconnecting.connection is not None
            watch = self._get_watcher(asyncio.get_running_loop(), self._reconnecting.connection.pgconn.socket)
            self._pending_query = trip = PendingQuery(watch, waits, partial(self._finish_query, database))
            trip.advance(None)
            return trip.future
        finally:
            if trip is None:
                self._lock.release()

    def _get_watcher(self, loop: asyncio.AbstractEventLoop, socket: int) -> SocketWatcher:
        watch = self._watcher
        if watch is None or watch.loop is not loop or watch.socket != socket:
            self._stop_watching()
            self._watcher = watch = SocketWatcher(loop, socket, self._on_socket_ready)
        return watch

    def _on_socket_ready(self, ready: Ready) -> None:
        """There is something at the socket. Without a trip, the server has something to say: the next one will see."""
        if self._pending_query is not None:
            self._pending_query.advance(ready)
        else:
            self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None

    def _finish_query(self, database: D, error: BaseException | None) -> BaseException | None:
        """A trip has come to its end: make the line free again. Returns what is to be told of the error."""
        self._pending_query = None
        try:
            if self._thread_job_count or error is not None:
                self._stop_watching()
            if error is None:
                return None
            self._reconnecting.recover(database, error)
            if isinstance(error, psycopg.Error):
                # Whatever else went wrong, the thread does it again, and knows what to say.
                return translate_error(error, self._reconnecting.display_url) if is_connection_lost(error) else None
            return error
        finally:
            self._lock.release()

    def leave_loop(self) -> None:
        """Watch nothing any more, on the loop; a trip that is under way still comes to its end."""
        self._thread_job_count += 1
        if self._pending_query is None:
            self._stop_watching()

    def _end_orphaned_query(self) -> None:
        """End what is under way on a loop that is closed: nobody else will."""
        trip = self._pending_query
        if trip is not None and trip.watcher.loop.is_closed():
            self._watcher = None
            trip.abort(StoreUnavailable(f"{self._reconnecting.display_url}: the event loop was closed meanwhile"))

    async def run_in_thread(self, work: Callable[[D], T]) -> T:
        """Do work in the line's own thread."""
        self._reconnecting.check_usable()
        self.leave_loop()
        try:
            return await self._thread.run(lambda: self.run_blocking(work))
        finally:
            self._thread_job_count -= 1

    def run_blocking(self, work: Callable[[D], T]) -> T:
        """Do work here and now."""
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
            self._reconnecting.close()  # the lock and the thread are the parent's, too
            return
        self._thread.stop()
        self._end_orphaned_query()
        if self._lock.acquire(timeout=timeout_s):
            try:
                self._reconnecting.close()
            finally:
                self._lock.release()


class SocketWatcher:
    """What an event loop knows of a socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: int, on_ready: Callable[[Ready], None]) -> None:
        self.loop = loop
        self.socket = socket
        self._on_ready = on_ready
        self._is_watching_writes = False
        loop.add_reader(socket, on_ready, Ready.R)

    def set_wait(self, wait: Wait) -> None:
        """Wait for this as well; to read is always waited for."""
        if (wait == Wait.RW) is not self._is_watching_writes:
            self._is_watching_writes = not self._is_watching_writes
            if self._is_watching_writes:
                self.loop.add_writer(self.socket, self._on_ready, Ready.W)
            else:
                self.loop.remove_writer(self.socket)

    def stop(self) -> None:
        """Look at it no more."""
        if not self.loop.is_closed():
            self.set_wait(Wait.R)
            self.loop.remove_reader(self.socket)


class PendingQuery:
    """Work that waits for a socket, on an event loop."""

    def __init__(
        self,
        watcher: SocketWatcher,
        steps: SocketGenerator[Any],
        on_finish: Callable[[BaseException | None], BaseException | None],
    ) -> None:
        self.watcher = watcher
        self.future: asyncio.Future[Any] = watcher.loop.create_future()
        self._steps = steps
        self._on_finish = on_finish

    def advance(self, ready: Ready | None) -> None:
        """Go on as far as is possible; ``None``: from the beginning."""
        result, error = None, None
        try:
            wait = next(self._steps) if ready is None else self._steps.send(ready)
        except StopIteration as end:
            result = end.value
        except BaseException as raised:
            error = raised
        else:
            self.watcher.set_wait(wait)
            return
        self.watcher.set_wait(Wait.R)
        _resolve_future(self.future, result, self._on_finish(error))

    def abort(self, error: BaseException) -> None:
        """End it in the middle."""
        self._steps.close()
        self._on_finish(error)


class JobThread:
    """A thread that does one thing after the other, for an event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Have it done, and wait for it. If the wait is cancelled, work that has begun goes on."""
        if self._thread is None:
            # A daemon: it may be waiting for a server, and the process need not.
            self._thread = threading.Thread(target=self._run_jobs, name=self._name, daemon=True)
            self._thread.start()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((future, work))
        return await future

    def stop(self) -> None:
        """End when everything is done that was asked for."""
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        while (asked := self._jobs.get()) is not None:
            future, work = asked
            if future.cancelled():
                continue
            try:
                result, error = work(), None
            except BaseException as raised:
                result, error = None, raised
            try:
                future.get_loop().call_soon_threadsafe(_resolve_future, future, result, error)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more
            del asked, future, work, result, error  # nothing is kept alive while there is nothing to do


_parent_connections: list[Connection] = []
"""Connections of parent processes, kept so that they are not closed here."""
_all_connections: WeakSet[ReconnectingConnection[Any]] = WeakSet()


def _detach_inherited_sockets() -> None:
    """In a forked child: have nothing that leads to the server, where libpq believes that it has."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for link in _all_connections:
        connection = link.connection
        if connection is not None and not connection.closed:
            os.dup2(nowhere, connection.pgconn.socket, inheritable=False)
    os.close(nowhere)


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
    """Whether the server has not hung up, as far as it can be told without asking.

    It says why before it does so: what it said is read first, and only then the end.
    """
    if connection.closed:
        return False
    try:
        connection.pgconn.consume_input()
        connection.pgconn.is_busy()
        connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return not connection.broken

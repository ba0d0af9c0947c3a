"""The worker session: one connection that lives as long as the store, for everything that depends on a session.

- It holds a **session lock** for each worker of this store. The server frees the lock when the session ends, so
  everyone can see at once that a worker is dead. After a lost connection, the locks are taken again.
- It **renews leases**: ``run_blocking`` is called from the heartbeat's thread, and works while the event loop is
  blocked.
- It **listens**, and passes notifications of other processes to the event loop.
- It takes part in the **watch** for dead workers (see ``death_watch``), whatever the event loop is doing.
- It **notifies** other processes, and never makes the loop wait for that. The first notification goes out at once;
  those that follow soon after are sent together, at most 20 ms later.

One thread does all of this. It waits both for the connection and for requests, so nothing on this connection needs a
lock, and a lost connection is noticed at once, even when there is no work. Then the thread reconnects, with pauses,
takes the locks again, and tells the loop that it may have missed something.

Nothing here must survive a power failure, so the connection does not wait for the disk (``connect(durable=False)``;
otherwise each notification would cost a sync).

**A free lock** proves that its worker is dead, unless the server has lost its sessions since the lock was taken. So the
worker's row has the time at which the server last started with no sessions (``SERVER_STARTED_AT``). If it differs from
the current one, the lease decides. The time changes when the server is started, and when it recovers from the crash of
one of its processes and continues without its sessions: after a crash its start time is unchanged but its statistics
are reset, and the reset time shows it.

Behind a pooler there are no locks and no notifications from others, and leases decide (``is_pooled``); this process
still notifies others.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.postgres.adapters import IntArray, TextArray
from holdfast.stores.postgres.connection_worker import ReconnectingConnection
from holdfast.stores.postgres.connections import LOCK_TIMEOUT_S, SERVER_STARTED_AT, Connection
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.postgres.death_watch import DeathWatch
from holdfast.stores.postgres.errors import translate_error

log = logging.getLogger("holdfast.stores")

T = TypeVar("T")

MAX_NOTIFY_PAUSE_S = 0.02
"""Maximum pause after a notification before the next is sent, in seconds."""
MIN_NOTIFY_PAUSE_S = 0.0005
_NOTIFY_PAUSE_FACTOR = 2
"""The pause after a notification, as a multiple of how long it took: all notifying sessions share one server lock, so a
slow notification means that many sessions are notifying."""
_RELOCK_DELAY_S = 0.02
"""Seconds until a lock that another session holds is tried again. Most likely that is an earlier session of this
process that has not ended yet, or a worker that tests whether the lock is free. It must be tried again before others
test it a second time."""
_LOCK_WORKERS = f"SELECT q.id, pg_try_advisory_lock(%s::int4, q.id::int4), {SERVER_STARTED_AT} FROM unnest(%s) q(id)"
_UNLOCK_WORKER = "SELECT pg_advisory_unlock(%s::int4, %s::int4)"
_NOTIFY = "SELECT pg_notify(q.channel, '') FROM unnest(%s) q(channel)"


class WorkerSession:
    """A session with a thread of its own.

    ``lock_class`` is the first half of the session locks' numbers; the other half is the worker's id.
    ``on_notification`` is called on the event loop with the channel on which another process has notified, or with
    ``None`` if notifications may be missed from now on (the connection is lost) or may have been missed (it is back).
    It is called with ``worker_channel`` when a worker may have died; new workers notify the leader on that channel.
    ``on_relocked`` is called in the session's thread, with ids of workers whose locks were taken after ``lock_worker``
    had returned, and with the ``SERVER_STARTED_AT`` under which they are held now; ``None``: they are no longer held,
    because the connection turned out to be pooled.
    """

    def __init__(
        self,
        connect: Callable[[], PgDatabase],
        display_url: str,
        *,
        lock_class: int,
        channels: Collection[str],
        worker_channel: str,
        on_notification: Callable[[str | None], None],
        on_relocked: Callable[[PgDatabase, Collection[int], float | None], None],
    ) -> None:
        self._reconnecting = ReconnectingConnection(connect, display_url)
        self._lock_class = lock_class
        self._channels = (*channels, worker_channel)
        self._worker_channel = worker_channel
        self.death_watch = DeathWatch(lock_class)
        self._on_notification = on_notification
        self._on_relocked = on_relocked
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pending_work: deque[tuple[Future[Any], Callable[[PgDatabase], Any]]] = deque()
        self._pending_channels: set[str] = set()
        self._scheduled_channels: set[str | None] = set()
        self._next_notify_at = float("-inf")
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._wanted_locks: set[int] = set()
        self._held_locks: set[int] = set()
        self._unreported_locks: set[int] = set()
        self._relock_at = 0.0
        self._ready_connection: Connection | None = None
        self._backend_pid = 0
        self._server_started_at = 0.0
        self._last_error: BaseException | None = None
        self._is_closing = False

    @property
    def is_pooled(self) -> bool:
        """Whether the connection goes through a pooler: then there are no locks, and no notifications from others."""
        connection = self._reconnecting.connection
        return connection is not None and connection.is_pooled

    @property
    def is_listening(self) -> bool:
        """Whether notifications arrive at the moment; if not, the store must poll more often."""
        return self._ready_connection is not None and not self.is_pooled

    async def start(self) -> None:
        """Connect, and start listening."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run_thread, name="holdfast-worker-session", daemon=True)
        self._thread.start()
        try:
            await self.run(lambda _: None)
        except BaseException:
            self.close()
            raise

    # For the event loop

    async def lock_worker(self, worker: int) -> float | None:
        """Take a worker's lock. Returns the ``SERVER_STARTED_AT`` under which it is held.

        ``None``: it is not held, because of a pooler, or because another session has it. In the latter case it is tried
        again, as after a lost connection, and ``on_relocked`` is called.
        """

        def lock(_: PgDatabase) -> float | None:
            self._wanted_locks.add(worker)
            if worker not in self._held_locks:
                self._try_lock([worker])
            return self.get_lock_server(worker)

        return await self.run(lock)

    async def unlock_worker(self, worker: int) -> None:
        """Release a worker's lock, if it is held."""

        def unlock(db: PgDatabase) -> None:
            if worker in self._held_locks:
                db.connection.execute(_UNLOCK_WORKER, (self._lock_class, worker))
            self._held_locks.discard(worker)

        self._reconnecting.check_usable()
        self._wanted_locks.discard(worker)  # whatever happens to the connection
        try:
            await self.run(unlock)
        except StoreUnavailable:
            pass  # without a session, there is no lock

    async def run(self, work: Callable[[PgDatabase], T]) -> T:
        """Do work on this connection. Raises ``StoreUnavailable`` while there is none."""
        return await asyncio.wrap_future(self._submit(work))

    def notify(self, channel: str) -> None:
        """Notify other processes soon. Never waits and never fails: without a connection, they are notified later."""
        if channel not in self._pending_channels:
            self._pending_channels.add(channel)
            self._wake_thread()

    # For other threads

    def run_blocking(self, work: Callable[[PgDatabase], T]) -> T:
        """Do work on this connection. Raises ``StoreUnavailable`` while there is none. Blocking."""
        return self._submit(work).result()

    def close(self, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        """Release everything. In a forked child it is all left alone: it belongs to the parent."""
        if not self._reconnecting.is_own_process:
            self._reconnecting.close()
            return
        self._is_closing = True  # first: the thread checks it when a wait fails
        self._reconnecting.stop_waiting()
        self._wake_thread()
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._thread is None or not self._thread.is_alive():
            self._shut_down()

    def _submit(self, work: Callable[[PgDatabase], T]) -> Future[T]:
        self._reconnecting.check_usable()
        future: Future[T] = Future()
        self._pending_work.append((future, work))
        self._wake_thread()
        if self._is_closing:
            self._reject_pending_work()
        return future

    def _wake_thread(self) -> None:
        try:
            self._wake_sender.send(b"\0")
        except OSError:
            pass  # the buffer is full of wake-ups already, or closed

    # In the thread

    def get_lock_server(self, worker: int) -> float | None:
        """The ``SERVER_STARTED_AT`` under which a worker's lock is held; ``None``: it is not. Only for ``run``."""
        return self._server_started_at if worker in self._held_locks else None

    def _run_thread(self) -> None:
        while not self._is_closing:
            try:
                is_connected = self._ensure_connected()
                if is_connected and self._has_pending_locks() and time.monotonic() >= self._relock_at:
                    self._relock()
                self._send_notifications()
                self._run_pending_work()
                self._check_pooled()
                self._watch_deaths()  # after the work, which may have taken or released locks
                self._wait()
            except Exception as error:
                if self._is_closing:
                    break  # the connection may still be good for the last notifications
                if self._ready_connection is not None:  # else it was logged already
                    log.warning(
                        "the session that holds locks: %s", translate_error(error, self._reconnecting.display_url)
                    )
                self._handle_failure(error)
        self._flush_notifications()
        self._shut_down()

    def _flush_notifications(self) -> None:
        """Send pending notifications: a program that starts a run and ends should not keep a worker waiting."""
        self._next_notify_at = float("-inf")
        try:
            self._send_notifications()
        except Exception as error:
            log.debug("others were not notified any more: %s", error)

    def _ensure_connected(self) -> bool:
        """Connect if needed; false while it is too early to connect again."""
        reconnecting = self._reconnecting
        if reconnecting.connection is None and reconnecting.get_backoff_s():
            return False
        database = reconnecting.ensure_connected(wait=False)
        if database.connection is not self._ready_connection:
            self._set_up_session(database.connection)
        self._check_pooled()
        return True

    def _set_up_session(self, connection: Connection) -> None:
        is_reconnect = self._last_error is not None or self._ready_connection is not None
        self._clear_locks()
        self._backend_pid = connection.info.backend_pid
        if not self.is_pooled:
            connection.add_notify_handler(self._handle_notify)
            listens = [sql.SQL("LISTEN {}").format(sql.Identifier(channel)) for channel in self._channels]
            connection.execute(sql.SQL("; ").join(listens))  # in one round trip
        self._relock_at = 0.0
        self._ready_connection, self._last_error = connection, None
        if is_reconnect:
            self._schedule_callback(None)

    def _has_pending_locks(self) -> bool:
        """Whether there are locks to take, or to report."""
        return not self.is_pooled and bool(self._wanted_locks - self._held_locks or self._unreported_locks)

    def _relock(self) -> None:
        """Take all wanted locks, and report those that no caller waits for."""
        self._relock_at = time.monotonic() + _RELOCK_DELAY_S
        self._unreported_locks.update(self._try_lock(self._wanted_locks - self._held_locks))
        if unreported := self._unreported_locks & self._wanted_locks:
            self._reconnecting.run(lambda db: self._on_relocked(db, unreported, self._server_started_at), wait=False)
        self._unreported_locks.clear()

    def _check_pooled(self) -> None:
        """If a pooler was detected, abandon the locks: they are in sessions that it closes at will, so they say nothing
        about this process."""
        if self._held_locks and self.is_pooled:
            self._reconnecting.run(lambda db: self._on_relocked(db, self._held_locks, None), wait=False)
            self._clear_locks()

    def _watch_deaths(self) -> None:
        """Do this session's part in the watch for dead workers, if it has a worker itself."""
        watch = self.death_watch
        if self._ready_connection is None:
            return
        if not self._held_locks:
            if watch.is_leader:
                self._reconnecting.run(watch.stop_leading, wait=False)
        elif not watch.get_wait_s() and self._reconnecting.run(
            lambda db: watch.check(db, self._held_locks), wait=False
        ):
            self._schedule_callback(self._worker_channel)

    def _clear_locks(self) -> None:
        self.death_watch.reset()
        self._held_locks.clear()
        self._unreported_locks.clear()

    def _try_lock(self, workers: Collection[int]) -> list[int]:
        """Returns the workers whose locks could be taken."""
        if self.is_pooled or not workers:
            return []
        connection = self._reconnecting.connection
        assert connection is not None  # both callers are connected
        rows = connection.execute(_LOCK_WORKERS, (self._lock_class, IntArray(sorted(workers)))).fetchall()
        taken = [worker for worker, is_taken, _ in rows if is_taken]
        self._held_locks.update(taken)
        self._server_started_at = rows[0][2]
        return taken

    def _run_pending_work(self) -> None:
        while self._pending_work:
            future, work = self._pending_work.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if not self._ensure_connected():
                    raise self._unreachable_error()
                result = self._reconnecting.run(work, wait=False)
            except BaseException as error:
                self._handle_failure(error)
                future.set_exception(translate_error(error, self._reconnecting.display_url))
            else:
                future.set_result(result)

    def _unreachable_error(self) -> StoreError:
        """The error for work that arrives while it is too early to connect again."""
        error = self._last_error
        if isinstance(error, StoreError):
            return type(error)(*error.args)
        return StoreUnavailable(f"{self._reconnecting.display_url} cannot be reached at the moment: {error}")

    def _send_notifications(self) -> None:
        connection = self._reconnecting.connection
        if not self._pending_channels or connection is None or self._get_notify_delay_s() > 0:
            return
        channels = [*self._pending_channels]
        self._pending_channels.difference_update(channels)  # before sending: a later request is sent again
        sent_at = time.monotonic()
        try:
            connection.execute(_NOTIFY, (TextArray(channels),))
        except psycopg.Error:
            self._pending_channels.update(channels)
            raise
        now = time.monotonic()
        self._next_notify_at = now + min(
            MAX_NOTIFY_PAUSE_S, max(MIN_NOTIFY_PAUSE_S, _NOTIFY_PAUSE_FACTOR * (now - sent_at))
        )

    def _get_notify_delay_s(self) -> float:
        return self._next_notify_at - time.monotonic()

    def _wait(self) -> None:
        """Wait until there is work, a message from the server, or something is due."""
        connection = self._reconnecting.connection
        files: list[Any] = [self._wake_receiver]
        waits: list[float] = []
        if connection is None:
            waits.append(self._reconnecting.get_backoff_s())
        else:
            self._drain_notifications(connection)  # the last statement may have brought some along
            files.append(connection.pgconn.socket)
            if self._pending_channels:
                waits.append(max(0.0, self._get_notify_delay_s()))
            if self._has_pending_locks():
                waits.append(max(0.0, self._relock_at - time.monotonic()))
            if self._held_locks:
                waits.append(self.death_watch.get_wait_s())
        readable = _poll_readable(files, min(waits, default=None))
        if self._wake_receiver in readable:
            try:
                while self._wake_receiver.recv(4096):
                    pass
            except BlockingIOError:
                pass
        if connection is not None and connection.pgconn.socket in readable:
            connection.pgconn.consume_input()
            self._drain_notifications(connection)

    def _drain_notifications(self, connection: Connection) -> None:
        while notification := connection.pgconn.notifies():
            if connection.pgconn.notify_handler:
                connection.pgconn.notify_handler(notification)

    def _handle_notify(self, notification: psycopg.Notify) -> None:
        if notification.pid == self._backend_pid:
            return  # this store knows its own changes
        if notification.channel == self._worker_channel:
            self.death_watch.expedite()
        else:
            self._schedule_callback(notification.channel)

    def _schedule_callback(self, channel: str | None) -> None:
        """Call back on the loop, once for all notifications that arrive before the loop gets to it."""
        if channel not in self._scheduled_channels and self._loop is not None:
            self._scheduled_channels.add(channel)
            try:
                self._loop.call_soon_threadsafe(self._run_callback, channel)
            except RuntimeError:
                pass  # the loop is closed

    def _run_callback(self, channel: str | None) -> None:
        self._scheduled_channels.discard(channel)
        if not self._is_closing:
            self._on_notification(channel)

    def _handle_failure(self, error: BaseException) -> None:
        """After an error: disconnect if the connection is broken, or could not be set up."""
        reconnecting, connection = self._reconnecting, self._reconnecting.connection
        if connection is not None and connection is not self._ready_connection:
            reconnecting.disconnect()
            reconnecting.back_off()
        elif connection is not None and connection.closed:
            reconnecting.disconnect()
        if reconnecting.connection is None:
            self._last_error = error
            self._clear_locks()
            if self._ready_connection is not None:
                self._ready_connection = None
                self._schedule_callback(None)

    def _shut_down(self) -> None:
        self._ready_connection = None
        self._reconnecting.close()
        self._reject_pending_work()
        self._wake_receiver.close()
        self._wake_sender.close()

    def _reject_pending_work(self) -> None:
        while self._pending_work:
            try:
                future, _ = self._pending_work.popleft()
            except IndexError:
                return  # another thread was quicker
            if future.set_running_or_notify_cancel():
                future.set_exception(
                    StoreUnavailable(f"{self._reconnecting.display_url} is not open: this store has been closed")
                )


def _poll_readable(files: list[Any], timeout_s: float | None) -> list[Any]:
    """The files that can be read. ``poll`` takes descriptors above 1023, and Windows has only ``select``."""
    if not hasattr(select, "poll"):
        return select.select(files, [], [], timeout_s)[0]
    numbers = {file if isinstance(file, int) else file.fileno(): file for file in files}
    poll = select.poll()
    for number in numbers:
        poll.register(number, select.POLLIN)
    return [numbers[number] for number, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]

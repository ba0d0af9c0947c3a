"""The *keeper*: one connection that lives as long as the store, for what depends on a session.

- It holds a **session lock** for each worker of this store. The server lets go of it when the session ends, and so
  everybody can see at once that a worker is dead. They are taken again after the connection was lost.
- It **renews leases**: ``run`` is called from the heartbeat's thread, and works while the event loop does not.
- It **listens**: what others notify is told to the event loop.
- It **notifies** others, and never makes the loop wait for it. The first notification goes out at once; those that come
  soon after it are sent together, a few hundredths of a second later.

All of that is done by one thread, which waits for the connection and for whoever wants something of it: so nothing on
this connection needs a lock, and a connection that is cut is noticed at once, also when nothing is asked of it. Then it
is made again, with pauses; the locks are taken again, and the loop is told that it may have missed something.

Nothing here must survive a power cut, so the connection is one that does not wait for the disk
(``connect(durable=False)``; each notification would be a sync otherwise).

**A free lock** means that a worker is dead only if the server has not lost its sessions by itself since that worker
took it. So the worker's row tells when the server had last begun with no sessions (``SERVER_BEGAN``): if it is not the
same now, the lease decides. That is when the server was started, and when it recovered from the crash of one of its
processes: then it goes on as the same server, but without its sessions and with fresh statistics, whose age shows it.

Behind a pooler there are neither locks nor news, and leases decide (``is_pooled``); others are notified all the same.
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
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import sql

from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.postgres.adapters import Ints, Texts
from holdfast.stores.postgres.connection_worker import D, Link
from holdfast.stores.postgres.connections import PATIENCE, Connection
from holdfast.stores.postgres.errors import translated

log = logging.getLogger("holdfast.stores")

T = TypeVar("T")

SERVER_BEGAN = (
    "extract(epoch FROM greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_bgwriter)))::float8"
)
"""When the server last began with no sessions. To be compared for equality: another server may have begun earlier."""
NOTIFY_PAUSE = 0.02
"""Seconds between two notifications, at most."""
SHORTEST_PAUSE = 0.002
_PAUSE_AFTER = 4
"""So many times as long as a notification took, there is none: all who notify wait for one lock of the server's, and
where that takes long, there are many."""
_RETAKE_PAUSE = 0.05
"""Seconds until a lock is tried again that somebody else has: most likely a session of ours that has not ended yet, or
somebody who looks whether it is free. It must be tried again before others look a second time."""
_TAKE = f"SELECT q.id, pg_try_advisory_lock(%s::int4, q.id::int4), {SERVER_BEGAN} FROM unnest(%s) q(id)"
_LET_GO = "SELECT pg_advisory_unlock(%s::int4, %s::int4)"
_NOTIFY = "SELECT pg_notify(q.channel, '') FROM unnest(%s) q(channel)"


class Keeper(Generic[D]):
    """See above.

    ``lock_class`` is the first half of the session locks' numbers; the other half are the workers' ids. ``heard`` is
    called on the event loop with a channel on which somebody else has notified, or with ``None`` if news may be missed
    (now the connection is lost) or may have been missed (now there is one again). ``retaken`` is called in the keeper's
    thread, with ids of workers whose locks were taken after ``hold`` had returned, and with the ``SERVER_BEGAN`` under
    which they are held now; ``None``: they are not held any more, because a pooler has shown up.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        wrap: Callable[[Connection], D],
        shown: str,
        *,
        lock_class: int,
        channels: Collection[str] = (),
        heard: Callable[[str | None], None] | None = None,
        retaken: Callable[[D, Collection[int], float | None], None] | None = None,
    ) -> None:
        self._link = Link(connect, wrap, shown)
        self._lock_class = lock_class
        self._channels = tuple(channels)
        self._heard = heard
        self._retaken = retaken
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._asked: deque[tuple[Future[Any], Callable[[D], Any]]] = deque()
        self._to_notify: set[str] = set()
        self._to_tell: set[str | None] = set()
        self._not_to_notify_before = float("-inf")
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._wanted: set[int] = set()
        self._held: set[int] = set()
        self._untold: set[int] = set()
        self._retake_at = 0.0
        self._set_up: Connection | None = None
        self._pid = 0
        self._began = 0.0
        self._why: BaseException | None = None
        self._closing = False

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler stands between: no locks and no news then."""
        connection = self._link.connection
        return connection is not None and connection.is_pooled

    @property
    def is_listening(self) -> bool:
        """Whether news is heard at the moment; if not, the store has to look for itself more often."""
        return self._set_up is not None and not self.is_pooled and bool(self._channels)

    async def start(self) -> None:
        """Connect, and listen from now on."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._keep, name="holdfast-keeper", daemon=True)
        self._thread.start()
        try:
            await self.do(lambda _: None)
        except BaseException:
            self.close()
            raise

    # For the event loop

    async def hold(self, worker: int) -> float | None:
        """Take a worker's lock. Returns the ``SERVER_BEGAN`` under which it is held.

        ``None``: it is not held, because of a pooler, or because somebody else has it. In the latter case it is tried
        again, as after a lost connection, and ``retaken`` is called.
        """

        def take(_: D) -> float | None:
            self._wanted.add(worker)
            if worker not in self._held:
                self._take([worker])
            return self._began if worker in self._held else None

        return await self.do(take)

    async def let_go(self, worker: int) -> None:
        """Let go of a worker's lock, if it is held."""

        def let_go(_: D) -> None:
            connection = self._link.connection
            if worker in self._held and connection is not None:
                connection.execute(_LET_GO, (self._lock_class, worker))
            self._held.discard(worker)

        self._link.check_usable()
        self._wanted.discard(worker)  # whatever happens to the connection
        try:
            await self.do(let_go)
        except StoreUnavailable:
            pass  # without a session, there is no lock

    async def do(self, work: Callable[[D], T]) -> T:
        """Do work on this connection. Raises ``StoreUnavailable`` while there is none."""
        return await asyncio.wrap_future(self._ask(work))

    def notify(self, channel: str) -> None:
        """Tell others that there is news, soon. Never waits, never fails: without a connection, it is told later."""
        if channel not in self._to_notify:
            self._to_notify.add(channel)
            self._poke()

    # For other threads

    def run(self, work: Callable[[D], T]) -> T:
        """Do work on this connection. Raises ``StoreUnavailable`` while there is none. Blocking."""
        return self._ask(work).result()

    def close(self, patience: float = PATIENCE) -> None:
        """Let go of everything. In a forked child it is all left alone: it belongs to the parent."""
        if not self._link.is_of_this_process:
            self._link.close()
            return
        self._link.stop_waiting()
        self._closing = True
        self._poke()
        if self._thread is not None:
            self._thread.join(patience)
        if self._thread is None or not self._thread.is_alive():
            self._give_up()

    def _ask(self, work: Callable[[D], T]) -> Future[T]:
        self._link.check_usable()
        future: Future[T] = Future()
        self._asked.append((future, work))
        self._poke()
        if self._closing:
            self._refuse_all()
        return future

    def _poke(self) -> None:
        try:
            self._wake.send(b"\0")
        except OSError:
            pass  # it has plenty to read already, or is closed

    # In the thread

    def _keep(self) -> None:
        while not self._closing:
            try:
                if self._connected() is not None and self._is_behind() and time.monotonic() >= self._retake_at:
                    self._take_locks()
                if self._held and self.is_pooled:
                    self._disown_locks()
                self._notify_others()
                self._answer()
                self._wait()
            except Exception as error:
                if self._set_up is not None:  # else it is known already
                    log.warning("the session that holds locks: %s", translated(error, self._link.shown))
                self._lose(error)
        self._notify_last()
        self._give_up()

    def _notify_last(self) -> None:
        """Tell what is still to be told: a program that starts a run and ends should not keep a worker waiting."""
        self._not_to_notify_before = float("-inf")
        try:
            self._notify_others()
        except Exception as error:
            log.debug("others were not notified any more: %s", error)

    def _connected(self) -> D | None:
        """What work is a function of; ``None`` while it is too early to try again."""
        link = self._link
        if link.connection is None and link.pause_left():
            return None
        database = link.ready(wait=False)
        if link.connection is not self._set_up:
            self._begin()
        return database

    def _begin(self) -> None:
        connection = self._link.connection
        assert connection is not None
        is_again = self._why is not None or self._set_up is not None
        self._forget_locks()
        self._pid = connection.info.backend_pid
        if not self.is_pooled:
            connection.add_notify_handler(self._note)
            for channel in self._channels:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self._retake_at = 0.0
        self._set_up, self._why = connection, None
        if is_again:
            self._tell(None)

    def _is_behind(self) -> bool:
        """Whether there are locks to take, or to tell of."""
        return not self.is_pooled and bool(self._wanted - self._held or self._untold)

    def _take_locks(self) -> None:
        """All that are wanted, and tell of those that nobody waits for."""
        self._retake_at = time.monotonic() + _RETAKE_PAUSE
        self._untold.update(self._take(self._wanted - self._held))
        untold = self._untold & self._wanted
        if untold and self._retaken:
            retaken, began = self._retaken, self._began
            self._link.do(lambda database: retaken(database, untold, began), wait=False)
        self._untold.clear()

    def _disown_locks(self) -> None:
        """A pooler has shown up: the locks are in sessions that it closes when it likes, and say nothing of us."""
        held, retaken = set(self._held), self._retaken
        if retaken:
            self._link.do(lambda database: retaken(database, held, None), wait=False)
        self._forget_locks()

    def _forget_locks(self) -> None:
        self._held.clear()
        self._untold.clear()

    def _take(self, workers: Collection[int]) -> list[int]:
        """Those of them whose locks could be taken."""
        connection = self._link.connection
        if self.is_pooled or not workers or connection is None:
            return []
        rows = connection.execute(_TAKE, (self._lock_class, Ints(sorted(workers)))).fetchall()
        taken = [worker for worker, is_taken, _ in rows if is_taken]
        self._held.update(taken)
        self._began = rows[0][2]
        return taken

    def _answer(self) -> None:
        while self._asked:
            future, work = self._asked.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if self._connected() is None:
                    raise self._out_of_reach()
                result = self._link.do(work, wait=False)
            except BaseException as error:
                self._lose(error)
                future.set_exception(translated(error, self._link.shown))
            else:
                future.set_result(result)

    def _out_of_reach(self) -> StoreError:
        """Why there is no connection; it is too early to try again."""
        why = self._why
        if isinstance(why, StoreError):
            return type(why)(*why.args)
        return StoreUnavailable(f"{self._link.shown} cannot be reached at the moment: {why}")

    def _notify_others(self) -> None:
        connection = self._link.connection
        if not self._to_notify or connection is None or self._until_notify() > 0:
            return
        channels = [*self._to_notify]
        self._to_notify.difference_update(channels)  # before it is sent: whoever comes later has it sent again
        began = time.monotonic()
        try:
            connection.execute(_NOTIFY, (Texts(channels),))
        except psycopg.Error:
            self._to_notify.update(channels)
            raise
        now = time.monotonic()
        self._not_to_notify_before = now + min(NOTIFY_PAUSE, max(SHORTEST_PAUSE, _PAUSE_AFTER * (now - began)))

    def _until_notify(self) -> float:
        return self._not_to_notify_before - time.monotonic()

    def _wait(self) -> None:
        """Until somebody wants something, the server says something, or it is time for something."""
        connection = self._link.connection
        files: list[Any] = [self._woken]
        waits: list[float] = []
        if connection is None:
            waits.append(self._link.pause_left())
        else:
            self._listen(connection)  # the last statement may have brought news along
            files.append(connection.pgconn.socket)
            if self._to_notify:
                waits.append(max(0.0, self._until_notify()))
            if self._is_behind():
                waits.append(max(0.0, self._retake_at - time.monotonic()))
        readable = _wait_for(files, min(waits, default=None))
        if self._woken in readable:
            try:
                while self._woken.recv(4096):
                    pass
            except BlockingIOError:
                pass
        if connection is not None and connection.pgconn.socket in readable:
            connection.pgconn.consume_input()
            self._listen(connection)

    def _listen(self, connection: Connection) -> None:
        while notification := connection.pgconn.notifies():
            self._hear(notification.relname.decode(), notification.be_pid)

    def _note(self, notification: psycopg.Notify) -> None:
        self._hear(notification.channel, notification.pid)

    def _hear(self, channel: str, sender: int) -> None:
        if sender != self._pid:  # what this store has changed, it knows
            self._tell(channel)

    def _tell(self, channel: str | None) -> None:
        """Have it heard on the loop, once for all that come before the loop gets to it."""
        if channel not in self._to_tell and self._loop is not None:
            self._to_tell.add(channel)
            try:
                self._loop.call_soon_threadsafe(self._be_heard, channel)
            except RuntimeError:
                pass  # the loop is closed: nobody listens any more

    def _be_heard(self, channel: str | None) -> None:
        self._to_tell.discard(channel)
        if not self._closing and self._heard:
            self._heard(channel)

    def _lose(self, error: BaseException) -> None:
        """After an error: have no connection if this one is broken, or could not be set up."""
        link, connection = self._link, self._link.connection
        if connection is not None and connection is not self._set_up:
            link.drop()
            link.hold_off()
        elif connection is not None and connection.closed:
            link.drop()
        if link.connection is None:
            self._why = error
            self._forget_locks()
            if self._set_up is not None:
                self._set_up = None
                self._tell(None)

    def _give_up(self) -> None:
        self._set_up = None
        self._link.close()
        self._refuse_all()
        self._woken.close()
        self._wake.close()

    def _refuse_all(self) -> None:
        while self._asked:
            try:
                future, _ = self._asked.popleft()
            except IndexError:
                return  # another thread was quicker
            if future.set_running_or_notify_cancel():
                future.set_exception(StoreUnavailable(f"{self._link.shown} is not open: this store has been closed"))


def _wait_for(files: list[Any], timeout: float | None) -> list[Any]:
    """Which of these can be read. ``poll`` takes descriptors above 1023, and Windows has only ``select``."""
    if not hasattr(select, "poll"):
        return select.select(files, [], [], timeout)[0]
    numbers = {file if isinstance(file, int) else file.fileno(): file for file in files}
    poll = select.poll()
    for number in numbers:
        poll.register(number, select.POLLIN)
    return [numbers[number] for number, _ in poll.poll(None if timeout is None else timeout * 1000)]

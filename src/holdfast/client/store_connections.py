"""A client's connections to its store: opened on first use, one for each event loop that the client is used under."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager

from typing_extensions import override

from holdfast.background_tasks import keep_running
from holdfast.errors import SchemaTooNew, StoreError, StoreNotFound, UsageError
from holdfast.services.store_provider import POLL_INTERVAL_S, StoreProvider
from holdfast.stores.change_feed import ChangeFeed, Subscription
from holdfast.stores.contract import Store
from holdfast.stores.operations import ClientOp, OpStatus, Run
from holdfast.stores.run_waiters import RunEnds, RunWaiters
from holdfast.stores.urls import create_store

log = logging.getLogger("holdfast.client")


class LoopConnections(StoreProvider):
    """A connection for each event loop that the client is used under: threads may have loops of their own."""

    def __init__(self, url: str, opener: Callable[[str], Store] = create_store) -> None:
        self.url = url
        self._opener = opener
        self._by_loop: dict[asyncio.AbstractEventLoop, StoreConnection] = {}

    def for_url(self, url: str) -> LoopConnections:
        """Connections to another namespace of the same database."""
        return self if url == self.url else LoopConnections(url, self._opener)

    def _current(self) -> StoreConnection:
        loop = asyncio.get_running_loop()
        connection = self._by_loop.get(loop)
        if connection is None:
            for other in [other for other in list(self._by_loop) if other.is_closed()]:
                self._by_loop.pop(other).abandon()
            connection = self._by_loop[loop] = StoreConnection(self.url, self._opener)
        return connection

    @override
    async def store(self) -> Store:
        return await self._current().store()

    @override
    async def created_store(self) -> Store:
        return await self._current().created_store()

    async def close(self) -> None:
        """Disconnect this loop."""
        connection = self._by_loop.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.close()

    @override
    async def wait_for_end(self, run_id: str) -> Run:
        return await self._current().wait_for_end(run_id)

    def watch_ends(self, run_ids: Sequence[str]) -> AbstractAsyncContextManager[RunEnds]:
        """These runs as they end."""
        return self._current().watch_ends(run_ids)

    def note_end(self, run: Run) -> None:
        """A run was ended through this connection, which a store does not report. Those who wait get it at once."""
        self._current().note_end(run)

    @override
    def subscribe(self, run_id: str) -> AbstractContextManager[Subscription]:
        return self._current().subscribe(run_id)

    @override
    async def change(self, op: ClientOp) -> OpStatus:
        return await self._current().change(op)


class StoreConnection(StoreProvider):
    """An open store, and one task that watches it for all callers that wait for a run or follow one."""

    def __init__(self, url: str, opener: Callable[[str], Store] = create_store) -> None:
        self._url = url
        self._opener = opener
        self._store: Store | None = None
        self._open_lock = asyncio.Lock()
        self._arrivals = RunWaiters()
        self._change_feed = ChangeFeed()
        self._watcher: asyncio.Task[None] | None = None

    @override
    async def store(self) -> Store:
        return await self._open(may_create=False)

    @override
    async def created_store(self) -> Store:
        return await self._open(may_create=True)

    async def _open(self, *, may_create: bool) -> Store:
        async with self._open_lock:
            if self._store is None:
                store = self._opener(self._url)
                if not may_create:
                    await asyncio.to_thread(_check_exists, store)
                await store.open()
                self._store = store
        return self._store

    async def close(self) -> None:
        """Disconnect."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()
        closed = UsageError("the client was closed; the run goes on without it")
        self._arrivals.fail_all(closed)
        self._change_feed.notify_all(closed)

    def abandon(self) -> None:
        """Drop the connection after its event loop was closed."""
        if self._store is not None:
            self._store.abandon()

    @override
    async def wait_for_end(self, run_id: str) -> Run:
        await self.store()
        future = self._arrivals.add(run_id)
        try:
            run = await self.read(run_id)
            if run.state.is_terminal:
                return run
            self._start_watcher()
            return await future
        finally:
            self._arrivals.remove(run_id, future)

    @asynccontextmanager
    async def watch_ends(self, run_ids: Sequence[str]) -> AsyncGenerator[RunEnds]:
        """These runs as they end."""
        store = await self.store()
        ends = RunEnds(self._arrivals, run_ids)
        try:
            await self._arrivals.poll_runs(store, run_ids)
            self._start_watcher()
            yield ends
        finally:
            ends.close()

    def note_end(self, run: Run) -> None:
        """A run was ended through this connection: those who wait for it get it as it is now."""
        self._change_feed.notify(run.id)
        self._arrivals.resolve(run)

    @override
    @contextmanager
    def subscribe(self, run_id: str) -> Generator[Subscription]:
        with self._change_feed.subscribe(run_id) as subscription:
            self._start_watcher()
            yield subscription

    @override
    async def change(self, op: ClientOp) -> OpStatus:
        status = await super().change(op)
        self._change_feed.notify_all()  # a store does not report what was written through it
        return status

    def _start_watcher(self) -> None:
        if self._watcher is None or self._watcher.done():
            watch = keep_running(self._watch, "watching the store for those who wait", log)
            self._watcher = asyncio.get_running_loop().create_task(watch, name="holdfast-watcher")

    async def _watch(self) -> None:
        is_failing = False
        while self._arrivals.list_awaited_ids(exclude=()) or self._change_feed:
            try:
                store = await self.store()
                await self._arrivals.poll(store)
                if await store.wait_for_change(POLL_INTERVAL_S):
                    self._change_feed.notify_all()
                is_failing = False
            except SchemaTooNew as error:  # for good: this process has to be replaced
                self._arrivals.fail_all(error)
                self._change_feed.notify_all(error)
                return
            except StoreError as error:
                if not is_failing:
                    log.warning("the store cannot be read; calls that wait for a run keep waiting: %s", error)
                is_failing = True
                await asyncio.sleep(POLL_INTERVAL_S)


def _check_exists(store: Store) -> None:
    """Raise ``StoreNotFound`` for a SQLite file that does not exist: opening it would create an empty one."""
    if not store.url.startswith("sqlite:"):
        return
    from holdfast.stores.encrypted import unwrap_store
    from holdfast.stores.sqlite import SqliteStore

    database = unwrap_store(store)
    if isinstance(database, SqliteStore) and not database.path.exists():
        raise StoreNotFound(
            f"there is no database at {database.path} yet. The first run of a workflow creates it, or `holdfast "
            f"worker`. If the path is wrong, pass another URL or set HOLDFAST_URL"
        )

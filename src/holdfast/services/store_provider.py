"""``StoreProvider``: a way to a store and to the runs in it.

A client's connection, an open runtime, a test, and workflow code reach runs in different ways: each is a subclass.
What a subclass does not override happens directly in the store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from holdfast.services.lookup import find_run
from holdfast.services.run_outcome import EndedRun
from holdfast.stores.change_feed import ChangeFeed, Subscription
from holdfast.stores.contract import History, Store
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import ClientOp, OpStatus, Run

POLL_INTERVAL_S = 0.5
"""Seconds after which the store is read again if no notification has come."""


class StoreProvider(ABC):
    """A way to a store and to the runs in it."""

    can_read = True
    """Whether runs can be read. Workflow code can only change them and wait for their end."""

    @abstractmethod
    async def store(self) -> Store:
        """The store, open."""

    async def created_store(self) -> Store:
        """The same, for a change that may be the first one: a database that does not exist yet is created."""
        return await self.store()

    async def now(self) -> float:
        """The store's time."""
        return (await self.store()).now()

    async def read(self, run_id: str) -> Run:
        """The run's row now. Raises ``RunNotFound``."""
        return await find_run(await self.store(), run_id)

    async def read_journal(self, run_id: str) -> tuple[Run, History]:
        """The run's row and journal now. Raises ``RunNotFound``."""
        run = await self.read(run_id)
        [history] = await (await self.store()).get_histories([run.key])
        return run, history

    async def change(self, op: ClientOp) -> OpStatus:
        """Change a run."""
        [status] = await (await self.store()).commit([op])
        assert isinstance(status, OpStatus)
        return status

    async def change_memory(self, change: MemoryChange) -> None:
        """Change a memory."""
        await (await self.store()).commit([change])

    async def wait_for_end(self, run_id: str) -> Run | EndedRun:
        """The run, once it has ended."""
        store = await self.store()
        while not (run := await find_run(store, run_id)).state.is_terminal:
            await store.wait_for_change(POLL_INTERVAL_S)
        return run

    def subscribe(self, run_id: str) -> AbstractContextManager[Subscription]:
        """A subscription to changes of the run. By default nothing notifies it, and its reader polls."""
        return ChangeFeed().subscribe(run_id)


class OpenStoreProvider(StoreProvider):
    """A way to an open store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def store(self) -> Store:
        """The store."""
        return self._store

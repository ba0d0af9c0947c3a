"""How a test changes runs from outside: as a client does it, straight in the store."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import RunNotFound
from holdfast.stores.contract import Store
from holdfast.stores.operations import ClientOp, OpStatus, Run

DEFAULT_ACTOR = "tester"
"""Who answers the questions of runs in a test, unless the test says somebody else does."""


class TestingStoreProvider:
    """See ``services.run_control.RunAccess``."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now

    async def read(self, run_id: str) -> Run:
        """The run's row now."""
        run = await self._store.get_run(run_id)
        if run is None:
            raise RunNotFound(f"there is no run {run_id!r}", run_id)
        return run

    async def change(self, op: ClientOp) -> OpStatus:
        """Carry out a change."""
        [verdict] = await self._store.commit([op])
        assert isinstance(verdict, OpStatus)
        return verdict

    async def store(self) -> Store:
        """The store, open."""
        return self._store

    async def now(self) -> float:
        """The store's time, for a change that is made now."""
        return self._now()

"""Who waits in this process for which run of a store to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from holdfast.errors import RunNotFound, StoreUnavailable
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run

log = logging.getLogger("holdfast.stores")

AT_ONCE = 500
"""Runs that are read together."""


class Arrivals:
    """Futures by run id, resolved with the run's row once it has ended."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[Run]]] = {}

    def expect(self, run_id: str) -> asyncio.Future[Run]:
        """A future for the end of this run."""
        future: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, set()).add(future)
        return future

    def forget(self, run_id: str, future: asyncio.Future[Run]) -> None:
        """Nobody waits for this future any more."""
        waiting = self._waiting.get(run_id)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[run_id]

    def arrived(self, run: Run) -> None:
        """The run has ended."""
        for future in self._waiting.pop(run.id, ()):
            if not future.done():
                future.set_result(run)

    def awaited(self, *, except_for: Collection[str]) -> list[str]:
        """Runs that somebody waits for and that are not executed here."""
        return [run_id for run_id in self._waiting if run_id not in except_for]

    async def look(self, store: Store, *, except_for: Collection[str] = ()) -> None:
        """See which of the runs that somebody waits for have ended.

        Those who wait for a run that cannot be read, or is no longer there, are told so: it keeps nobody else waiting.
        """
        awaited = self.awaited(except_for=except_for)
        for at in range(0, len(awaited), AT_ONCE):
            some = awaited[at : at + AT_ONCE]
            try:
                found = await store.get_many(some)
            except StoreUnavailable:
                raise
            except Exception as error:
                log.warning("%d runs could not be read together: %s", len(some), error)
                found = []
            for run in found:
                if run.state.is_terminal:
                    self.arrived(run)
            for run_id in {*some} - {run.id for run in found}:
                await self._look_alone(store, run_id)

    async def _look_alone(self, store: Store, run_id: str) -> None:
        try:
            run = await store.get(run_id)
            if run is None:
                raise RunNotFound(f"run {run_id!r} is no longer in {store.url}", run_id)
        except StoreUnavailable:
            raise
        except Exception as error:
            _fail(self._waiting.pop(run_id, ()), error)
        else:
            if run.state.is_terminal:
                self.arrived(run)

    def give_up(self, error: BaseException) -> None:
        """Nobody will get an answer from here any more."""
        waiting, self._waiting = self._waiting, {}
        for futures in waiting.values():
            _fail(futures, error)


def _fail(futures: Collection[asyncio.Future[Run]], error: BaseException) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)

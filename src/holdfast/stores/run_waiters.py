"""Waiting in this process for runs of a store to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from functools import partial

from holdfast.errors import RunNotFound, StoreUnavailable
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run

log = logging.getLogger("holdfast.stores")

BATCH_SIZE = 500
"""Number of runs to read together."""


class RunWaiters:
    """Futures by run id, resolved with the run's row once the run has ended."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[Run]]] = {}

    def add(self, run_id: str) -> asyncio.Future[Run]:
        """A future for the end of this run."""
        future: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, set()).add(future)
        return future

    def remove(self, run_id: str, future: asyncio.Future[Run]) -> None:
        """Forget a future that is no longer awaited."""
        waiting = self._waiting.get(run_id)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[run_id]

    def resolve(self, run: Run) -> None:
        """Resolve the futures of a run that has ended."""
        for future in self._waiting.pop(run.id, ()):
            if not future.done():
                future.set_result(run)

    def list_awaited_ids(self, *, exclude: Collection[str]) -> list[str]:
        """The ids of awaited runs, except those in ``exclude``."""
        return [run_id for run_id in self._waiting if run_id not in exclude]

    async def poll(self, store: Store, *, exclude: Collection[str] = ()) -> None:
        """Check which awaited runs have ended.

        The futures of a run that cannot be read or no longer exists get the error; this does not affect other runs.
        """
        await self.poll_runs(store, self.list_awaited_ids(exclude=exclude))

    async def poll_runs(self, store: Store, awaited: Sequence[str]) -> None:
        """Check which of these runs have ended."""
        for at in range(0, len(awaited), BATCH_SIZE):
            batch = awaited[at : at + BATCH_SIZE]
            try:
                ended, missing = await store.get_ended_runs(batch)
            except StoreUnavailable:
                raise
            except Exception as error:
                log.warning("%d runs could not be read together: %s", len(batch), error)
                ended, missing = [], batch
            for run in ended:
                self.resolve(run)
            for run_id in missing:
                await self._poll_one(store, run_id)

    async def _poll_one(self, store: Store, run_id: str) -> None:
        try:
            run = await store.get_run(run_id)
            if run is None:
                raise RunNotFound(f"run {run_id!r} is no longer in {store.url}", run_id)
        except StoreUnavailable:
            raise
        except Exception as error:
            _fail_futures(self._waiting.pop(run_id, ()), error)
        else:
            if run.state.is_terminal:
                self.resolve(run)

    def fail_all(self, error: BaseException) -> None:
        """Fail all futures."""
        waiting, self._waiting = self._waiting, {}
        for futures in waiting.values():
            _fail_futures(futures, error)


class RunEnds:
    """Runs as they end, in groups: those that end together are returned together."""

    def __init__(self, waiters: RunWaiters, run_ids: Sequence[str]) -> None:
        self._waiters = waiters
        self._futures = {run_id: waiters.add(run_id) for run_id in run_ids}
        self._ended: list[str] = []
        self._changed = asyncio.Event()
        for run_id, future in self._futures.items():
            future.add_done_callback(partial(self._note_end, run_id))

    def _note_end(self, run_id: str, _: asyncio.Future[Run]) -> None:
        self._ended.append(run_id)
        self._changed.set()

    @property
    def is_complete(self) -> bool:
        """Whether all of them were returned."""
        return not self._futures

    async def next(self) -> list[tuple[str, Run | BaseException]]:
        """Runs that have ended, or the errors of runs that cannot be read; an empty list after the last one."""
        if self._futures:
            await self._changed.wait()
        self._changed.clear()
        ended, self._ended = self._ended, []
        futures = [(run_id, self._futures.pop(run_id)) for run_id in ended]
        return [(run_id, future.exception() or future.result()) for run_id, future in futures]

    def close(self) -> None:
        """Wait no longer."""
        for run_id, future in self._futures.items():
            self._waiters.remove(run_id, future)


def _fail_futures(futures: Collection[asyncio.Future[Run]], error: BaseException) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)

"""Who waits in this process for which run of a store to end."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from holdfast.stores.operations import Run


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

    def give_up(self, error: BaseException) -> None:
        """Nobody will get an answer from here any more."""
        waiting, self._waiting = self._waiting, {}
        for futures in waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)

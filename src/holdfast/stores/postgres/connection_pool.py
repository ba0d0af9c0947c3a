"""A few connections for reads, so that a slow one does not delay the others.

A connection is added when all others are in use, and stays: the next slow read is likely to come from the same caller.
When there are as many as there may be, reads queue where the fewest wait.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.stores.postgres.connection_worker import ConnectionWorker
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.sql.database_access import T


class ConnectionPool:
    """Connections that are made by ``make_worker`` when they are needed."""

    def __init__(self, make_worker: Callable[[], ConnectionWorker], max_size: int) -> None:
        self._make_worker = make_worker
        self._max_size = max_size
        self._workers: list[ConnectionWorker] = []

    async def run(self, work: Callable[[PgDatabase], T]) -> T:
        """Do work in the thread of some connection."""
        worker = min(self._workers, key=lambda one: one.job_count, default=None)
        if worker is None or (worker.job_count and len(self._workers) < self._max_size):
            worker = self._make_worker()
            self._workers.append(worker)
        return await worker.run_in_thread(work)

    def close(self) -> None:
        """Close all connections."""
        for worker in self._workers:
            worker.close()

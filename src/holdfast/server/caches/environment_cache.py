"""What decides whether runs continue, remembered for a moment: to read it costs more than to read a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.core.states import RunState
from holdfast.services.stalls import RunEnvironment, read_environment
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run

CACHE_TTL_S = 0.1


class EnvironmentCache:
    """Remembers the workers and the disabled workflows of one namespace.

    A change through this server takes effect at once (see ``clear``), and so does a worker that holds a run.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._environment: RunEnvironment | None = None
        self._read_at = 0.0
        self._clear_count = 0

    async def read(self, runs: Sequence[Run]) -> RunEnvironment:
        """The environment of these runs."""
        environment = self._environment
        if environment is None or not self._is_fresh(environment) or not _has_owners(environment, runs):
            self._read_at, clear_count = asyncio.get_running_loop().time(), self._clear_count
            environment = await read_environment(self._store)
            if clear_count == self._clear_count:
                self._environment = environment
        return await environment.with_queues(self._store, runs)

    def clear(self) -> None:
        """Read it anew: it may have changed."""
        self._environment = None
        self._clear_count += 1

    def _is_fresh(self, environment: RunEnvironment) -> bool:
        age_s = asyncio.get_running_loop().time() - self._read_at
        return age_s < CACHE_TTL_S and abs(self._store.now() - environment.now) < CACHE_TTL_S  # or a clock was set


def _has_owners(environment: RunEnvironment, runs: Sequence[Run]) -> bool:
    """Whether the environment has the workers that hold these runs: another may have started since."""
    return all(run.state is not RunState.RUNNING or run.owner in environment.live_workers for run in runs)

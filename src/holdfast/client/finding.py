"""A run's row by the run's id, and the error of an id that no run has."""

from __future__ import annotations

from holdfast.errors import RunNotFound
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run


async def find_run(store: Store, run_id: str) -> Run:
    """The row of this run, as it is now. Raises ``RunNotFound``."""
    run = await store.get(run_id)
    if run is None:
        raise no_run(store, run_id)
    return run


def no_run(store: Store, run_id: str) -> RunNotFound:
    """The error of an id that no run has."""
    return RunNotFound(f"there is no run {run_id!r} in {store.url}", run_id)

"""Opening the store that a command is about, and finding the run that it names.

Reading commands never create a database: on a mistyped URL they would leave an empty one behind and report no runs.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from holdfast.errors import RunNotFound, UsageError
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import Run
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.urls import open_store, store_url

_LOOKED_THROUGH = 500


@asynccontextmanager
async def existing_store(url: str | None) -> AsyncGenerator[Store, None]:
    """The open store at ``url``, which must be there already."""
    store = open_store(store_url(url))
    if isinstance(store, MemoryStore):
        raise UsageError("memory:// lives inside the process that opened it: there is nothing to look at from here")
    if isinstance(store, SqliteStore) and not store.path.exists():
        raise UsageError(
            f"there is no database at {store.path} yet. The first run of a workflow creates it, or `holdfast worker`. "
            f"To look at another one, pass --url or set HOLDFAST_URL."
        )
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def find_run(store: Store, run_id: str) -> Run:
    """The run with this id; if there is none, the error names ids like it."""
    run = await store.get(run_id)
    if run is not None:
        return run
    near = await _near_ids(store, run_id)
    hint = f" Did you mean {' or '.join(near)}?" if near else " `holdfast runs` lists those that are there."
    raise RunNotFound(f"there is no run {run_id!r} in {store.url}.{hint}", run_id)


async def _near_ids(store: Store, run_id: str) -> list[str]:
    begins = [run.id for run in await store.list_runs(RunFilter(id_prefix=run_id), limit=3)] if run_id else []
    recent = [run.id for run in await store.list_runs(RunFilter(), limit=_LOOKED_THROUGH)]
    return list(dict.fromkeys([*begins, *difflib.get_close_matches(run_id, recent, 3)]))[:3]

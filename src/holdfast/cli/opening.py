"""Opening the store that a command is about, and finding the run that it names.

Reading commands never create a database: on a mistyped URL they would leave an empty one behind and report no runs.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from holdfast.cli.wording import listed
from holdfast.errors import RunNotFound, UsageError
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import Run
from holdfast.stores.sealing import beneath
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.urls import is_temporal, open_store, shown_url, split_namespace, store_url

_LOOKED_THROUGH = 500
_HOW_IT_BEGINS = (
    "The first run of a workflow creates it, or `holdfast worker`. To look at another one, pass --url and --namespace, "
    "or set HOLDFAST_URL and HOLDFAST_NAMESPACE."
)


def where(url: str | None) -> list[tuple[str, str]]:
    """The options by which another command finds the store of this one, without a password."""
    if url is None:
        return []
    place, namespace = split_namespace(url)
    if namespace is None:
        return [("--url", shown_url(url))]
    is_usual = place == split_namespace(store_url())[0]
    return [*([] if is_usual else [("--url", shown_url(place))]), ("--namespace", namespace)]


def existing(url: str | None) -> tuple[Store, str]:
    """The store at ``url``, which somebody else can see as well, not opened; and its whole URL."""
    target = store_url(url)
    store = open_store(target)
    if isinstance(beneath(store), MemoryStore):
        raise UsageError("memory:// lives inside the process that opened it: there is nothing to look at from here")
    return store, target


@asynccontextmanager
async def existing_store(url: str | None) -> AsyncGenerator[Store, None]:
    """The open store at ``url``, which must be there already."""
    store, target = existing(url)
    if isinstance(database := beneath(store), SqliteStore):
        if not database.path.exists():
            raise UsageError(f"there is no database at {database.path} yet. {_HOW_IT_BEGINS}")
    elif not is_temporal(target):  # it says so itself
        await _check_that_it_is_there(store, target)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _check_that_it_is_there(store: Store, target: str) -> None:
    from holdfast.cli.postgres_database import is_there

    found, known = await asyncio.to_thread(is_there, target)
    if not found:
        place = split_namespace(store.url)[0]
        others = f" (there are {listed(known)})" if known else ""
        raise UsageError(f"there is no namespace {store.namespace!r} in {place} yet{others}. {_HOW_IT_BEGINS}")


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

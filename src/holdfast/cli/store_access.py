"""Reaching the store or the server that a command is about, and finding the run that it names.

A command is a client: what it tells and changes, it asks a ``Client`` for, and so it works alike on a store and over
HTTP. What no server can do needs the store itself.

Reading commands never create a database: on a mistyped URL they would leave an empty one behind and report no runs.
"""

from __future__ import annotations

import asyncio
import difflib
import re
import shlex
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from holdfast.cli.event_loop import with_progress
from holdfast.cli.formatting import command, listed
from holdfast.cli.sqlite_file import is_file_there
from holdfast.client.backend import Backend
from holdfast.client.backend_factory import choose_backend, is_server
from holdfast.client.client import Client
from holdfast.codec import LARGEST
from holdfast.errors import NotAllowed, RunNotFound, UsageError
from holdfast.reports.run_info import RunInfo
from holdfast.stores.contract import Store
from holdfast.stores.encrypted import beneath
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.urls import is_temporal, open_store, shown_url, split_namespace, store_url

if TYPE_CHECKING:
    from holdfast.client.http.backend import HttpBackend

_LOOKED_THROUGH = 500
_COMMAND = re.compile(r"`holdfast (\w+)[^`]*`")
_ELSEWHERE = ("check", "replay", "demo")
"""Commands that are about no store."""
_BESIDE_THE_STORE = ("worker", "serve", "import", "namespaces")
"""Commands that no server can carry out."""
PATIENCE = 5.0
"""Seconds that a server is given to answer for the first time: whoever has typed a wrong address is waiting."""
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


def command_at(url: str | None, *words: str) -> str:
    """A command to be copied into a shell, which is about the same store as this one."""
    return command(*words, *(word for option in where(url) for word in option))


def placed(url: str | None, text: str) -> str:
    """What a client says, with the commands in it made to be about the same store as this one."""
    place = shlex.join(word for option in where(url) for word in option)
    without = (*_ELSEWHERE, *(_BESIDE_THE_STORE if is_server(url) else ()))

    def at_place(found: re.Match[str]) -> str:
        return found[0] if found[1] in without else f"{found[0][:-1]} {place}`"

    return _COMMAND.sub(at_place, text) if place else text


def existing(url: str | None) -> tuple[Store, str]:
    """The store at ``url``, which somebody else can see as well, not opened; and its whole URL."""
    target = store_url(url)
    store = open_store(target)
    if isinstance(beneath(store), MemoryStore):
        raise UsageError("memory:// lives inside the process that opened it: there is nothing to look at from here")
    return store, target


def server_backend(url: str | None) -> HttpBackend:
    """The way to the server at ``url``."""
    from holdfast.client.http.backend import HttpBackend

    backend = _backend(url)
    assert isinstance(backend, HttpBackend)
    return backend


def _backend(url: str | None) -> Backend:
    """Whatever else a client can be told, the environment tells a command."""
    return choose_backend(url, None, max_value=LARGEST, encryption=None, api_key=None, insecure=False)


@asynccontextmanager
async def reached(url: str | None) -> AsyncGenerator[Client]:
    """A client of the store at ``url``, which must be there already, or of a server."""
    if not is_server(url):
        store, url = existing(url)
        await _while_waiting(url, _check_that_it_is_there(store, url))
    backend = _backend(url)
    client = Client.over(backend)
    try:
        await _while_waiting(url, backend.open(PATIENCE))
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def existing_store(url: str | None) -> AsyncGenerator[Store, None]:
    """The open store at ``url``, which must be there already: for what no server can do."""
    store, target = existing(url)
    await _while_waiting(target, _check_that_it_is_there(store, target))
    await _while_waiting(target, store.open())
    try:
        yield store
    finally:
        await store.close()


async def _while_waiting(url: str | None, opening: Coroutine[Any, Any, None]) -> None:
    await with_progress(opening, lambda: f"waiting for {shown_url(store_url(url))} …")


async def is_there(store: Store, target: str) -> bool:
    """Whether the store, which is not opened, was ever made; of a Temporal server, that tells itself."""
    return (await _look(store, target))[0]


async def _look(store: Store, target: str) -> tuple[bool, list[str]]:
    """Whether it is there, and which namespaces are, where that is known."""
    if isinstance(database := beneath(store), SqliteStore):
        return is_file_there(database.path), []
    if is_temporal(target):
        return True, []
    from holdfast.cli.postgres_database import known_namespaces

    known = await asyncio.to_thread(known_namespaces, target)
    return store.namespace in known, known


async def _check_that_it_is_there(store: Store, target: str) -> None:
    found, known = await _look(store, target)
    if found:
        return
    if isinstance(database := beneath(store), SqliteStore):
        raise UsageError(f"there is no database at {database.path} yet. {_HOW_IT_BEGINS}")
    place = split_namespace(store.url)[0]
    others = f" (there are {listed(known)})" if known else ""
    raise UsageError(f"there is no namespace {store.namespace!r} in {place} yet{others}. {_HOW_IT_BEGINS}")


async def get_run(client: Client, run_id: str) -> RunInfo:
    """The run with this id; if there is none, the error names ids like it."""
    try:
        return await client.get(run_id)
    except RunNotFound:
        raise await not_found(client, run_id) from None


async def not_found(client: Client, run_id: str) -> RunNotFound:
    """That there is no such run, with ids like it, if whoever asks may look at runs."""
    told = f"there is no run {run_id!r} in {client.url}."
    try:
        begins = await client.list(id_prefix=run_id, limit=3) if run_id else []
        recent = [run.id for run in await client.list(limit=_LOOKED_THROUGH)]
    except NotAllowed:
        return RunNotFound(told, run_id)
    alike = [*(run.id for run in begins), *difflib.get_close_matches(run_id, recent, 3)]
    near = list(dict.fromkeys(alike))[:3]
    hint = f"Did you mean {' or '.join(near)}?" if near else "`holdfast runs` lists those that are there."
    return RunNotFound(f"{told} {hint}", run_id)


async def seen(client: Client, run_id: str) -> RunInfo | None:
    """The run as it is now; none if this key may start runs and send, and not look at them."""
    try:
        return await client.get(run_id)
    except NotAllowed:
        return None

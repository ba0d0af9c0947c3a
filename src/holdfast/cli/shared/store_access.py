"""Access to the store or the server that a command is about, and to the run that it names.

A command reads and changes everything through a ``Client``, so it works alike on a store and over HTTP. A few commands
need the store itself.

Commands that read never create a database: on a mistyped URL they would leave an empty one behind and report no runs.
"""

from __future__ import annotations

import asyncio
import difflib
import re
import shlex
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from holdfast.cli.shared.event_loop import await_with_progress, run_in_loop
from holdfast.cli.shared.formatting import format_command, format_list
from holdfast.client.client import Client
from holdfast.client.http.server_endpoint import is_server_url
from holdfast.errors import NotAllowed, RunNotFound, StoreError, UsageError
from holdfast.reports.run_info import RunInfo
from holdfast.stores.contract import Store
from holdfast.stores.encrypted import unwrap_store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.urls import create_store, is_temporal, redact_url, resolve_store_url, split_namespace

T = TypeVar("T")

_MAX_SUGGESTION_RUNS = 500
_COMMAND_PATTERN = re.compile(r"`holdfast (\w+)[^`]*`")
_STORELESS_COMMANDS = ("check", "replay", "demo")
"""Commands that need no store."""
_STORE_ONLY_COMMANDS = ("worker", "serve", "import", "namespaces", "backup", "restore", "mark-restored")
"""Commands that a server cannot execute."""
OPEN_TIMEOUT_S = 5.0
"""How long to wait for the first answer of a server. Short, because the address may be mistyped."""
_CREATION_HINT = (
    "The first run of a workflow creates it, or `holdfast worker`. To look at another one, pass --url and --namespace, "
    "or set HOLDFAST_URL and HOLDFAST_NAMESPACE."
)


def store_options(url: str | None) -> list[tuple[str, str]]:
    """The options with which another command uses the same store, without a password."""
    if url is None:
        return []
    place, namespace = split_namespace(url)
    if namespace is None:
        return [("--url", redact_url(url))]
    is_usual = place == split_namespace(resolve_store_url())[0]
    return [*([] if is_usual else [("--url", redact_url(place))]), ("--namespace", namespace)]


def format_store_command(url: str | None, *words: str) -> str:
    """A command to copy into a shell, with the options that select the same store."""
    return format_command(*words, *(word for option in store_options(url) for word in option))


def with_store_options(url: str | None, text: str) -> str:
    """``text`` with the options that select the same store in each command that it mentions."""
    place = shlex.join(word for option in store_options(url) for word in option)
    without = (*_STORELESS_COMMANDS, *(_STORE_ONLY_COMMANDS if is_server_url(url) else ()))

    def at_place(found: re.Match[str]) -> str:
        return found[0] if found[1] in without else f"{found[0][:-1]} {place}`"

    return _COMMAND_PATTERN.sub(at_place, text) if place else text


def resolve_store(url: str | None) -> tuple[Store, str]:
    """The store at ``url``, not opened, and its resolved URL. Refuses a store that exists in this process only."""
    target = resolve_store_url(url)
    store = create_store(target)
    if isinstance(unwrap_store(store), MemoryStore):
        raise UsageError("memory:// lives inside the process that opened it: there is nothing to look at from here")
    return store, target


@asynccontextmanager
async def open_client(url: str | None) -> AsyncGenerator[Client]:
    """A client of the store at ``url``, which must exist, or of a server.

    A ``RunNotFound`` that is raised with it names similar ids.
    """
    if not is_server_url(url):
        store, url = resolve_store(url)
        await _await_opening(url, _check_store_present(store, url))
    client = Client(url)
    try:
        await _await_opening(url, client.open(OPEN_TIMEOUT_S))
        yield client
    except RunNotFound as error:
        raise await build_run_not_found(client, error.run_id) from None
    finally:
        await client.close()


def run_client(
    url: str | None,
    request: Callable[[Client], Coroutine[Any, Any, T]],
    *,
    format_progress: Callable[[], str] | None = None,
) -> T:
    """Open a client of the store or the server at ``url``, and await what ``request`` asks of it."""

    async def run() -> T:
        async with open_client(url) as client:
            return await request(client)

    return run_in_loop(run(), format_progress=format_progress)


@asynccontextmanager
async def open_existing_store(url: str | None) -> AsyncGenerator[Store, None]:
    """The open store at ``url``, which must exist: for commands that a server cannot execute."""
    store, target = resolve_store(url)
    await _await_opening(target, _check_store_present(store, target))
    await _await_opening(target, store.open())
    try:
        yield store
    finally:
        await store.close()


async def _await_opening(url: str | None, opening: Coroutine[Any, Any, None]) -> None:
    await await_with_progress(opening, lambda: f"waiting for {redact_url(resolve_store_url(url))} …")


async def is_store_present(store: Store, url: str) -> bool:
    """Whether the store was created. It is not opened. A Temporal server always counts as created."""
    return (await _inspect_store(store, url))[0]


async def _inspect_store(store: Store, url: str) -> tuple[bool, list[str]]:
    """Whether it exists, and which namespaces exist where that is known."""
    if isinstance(database := unwrap_store(store), SqliteStore):
        return is_existing_file(database.path), []
    if is_temporal(url):
        return True, []
    from holdfast.stores.postgres.inspection import fetch_namespaces

    known = await asyncio.to_thread(fetch_namespaces, url)
    return store.namespace in known, known


async def _check_store_present(store: Store, url: str) -> None:
    found, known = await _inspect_store(store, url)
    if found:
        return
    if isinstance(database := unwrap_store(store), SqliteStore):
        raise UsageError(f"there is no database at {database.path} yet. {_CREATION_HINT}")
    place = split_namespace(store.url)[0]
    others = f" (there are {format_list(known)})" if known else ""
    raise UsageError(f"there is no namespace {store.namespace!r} in {place} yet{others}. {_CREATION_HINT}")


async def build_run_not_found(client: Client, run_id: str, listing: str = "`holdfast runs`") -> RunNotFound:
    """The error for a missing run, with similar ids if the key may read runs; ``listing`` is what lists all runs."""
    message = f"there is no run {run_id!r} in {client.url}."
    try:
        begins = await client.list(id_prefix=run_id, limit=3) if run_id else []
        recent = [run.id for run in await client.list(limit=_MAX_SUGGESTION_RUNS)]
    except NotAllowed:
        return RunNotFound(message, run_id)
    alike = [*(run.id for run in begins), *difflib.get_close_matches(run_id, recent, 3)]
    near = list(dict.fromkeys(alike))[:3]
    hint = f"Did you mean {' or '.join(near)}?" if near else f"{listing} lists those that are there."
    return RunNotFound(f"{message} {hint}", run_id)


async def try_get_run(client: Client, run_id: str) -> RunInfo | None:
    """The run, or ``None`` if the key may not read runs."""
    try:
        return await client.get(run_id)
    except NotAllowed:
        return None


def is_existing_file(path: Path) -> bool:
    """Whether the file exists. Raises ``StoreError`` if its folder may not be entered."""
    try:
        path.stat()  # since Python 3.14, `exists` says nothing about permissions
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as error:
        raise StoreError(
            f"{path} cannot be looked at: its folder may not be entered by this user. Allow it, or name another place "
            f"with --url or HOLDFAST_URL."
        ) from error
    return True

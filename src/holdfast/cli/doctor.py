"""``holdfast doctor``: is this machine fit, is the store well, is there work that nobody does?

Each check is a line with a verdict, and with what to do when it is not ``ok``. Nothing is changed: a database that is
not there is not created, one of an older schema is not migrated, dead workers are not buried. What a commit costs is
measured in a file of its own beside the database, which is removed again.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast import __version__
from holdfast.cli.checks import FAIL, OK, WARN, Check, commit_check, namespace_check
from holdfast.cli.namespaces import namespaces_beside
from holdfast.cli.opening import reached
from holdfast.cli.providers import installed_providers, mcp_version
from holdfast.cli.sqlite_file import (
    FileFacts,
    commit_times,
    is_newer,
    is_ours,
    is_outdated,
    read_facts,
    write_settings,
)
from holdfast.cli.switching import unfinished
from holdfast.cli.wording import ago, command, console, counted, echo_json, one_line
from holdfast.client.choosing import is_server
from holdfast.client.health import Health
from holdfast.client.queues import QueueInfo
from holdfast.client.stalls import how_to_switch_on
from holdfast.client.workers import WorkerInfo
from holdfast.codec import AesEncryption
from holdfast.codec.encryption import VARIABLE
from holdfast.core.states import UNFINISHED, RunState
from holdfast.errors import HoldfastError, StoreError
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sealing import SealedStore, beneath
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.urls import is_temporal, open_store, shown_url, split_namespace, store_url

_STYLES = {OK: "green", WARN: "yellow", FAIL: "red"}

LITTLE_SPACE = 1 << 30
NO_SPACE = 50 << 20


def examine(url: str | None, *, as_json: bool) -> int:
    """Carry out all checks and tell; the exit code is 1 if one of them failed."""
    checks = list(_checks(url))
    healthy = all(check.status != FAIL for check in checks)
    if as_json:
        echo_json({"ok": healthy, "checks": [asdict(check) for check in checks]})
    else:
        _tell(console(), checks)
    return 0 if healthy else 1


def _tell(out: Console, checks: Sequence[Check]) -> None:
    table = Table.grid(padding=(0, 2))
    for check in checks:
        told = Text(one_line(check.message))
        if check.advice:
            told.append(f"\n→ {one_line(check.advice)}", "dim")
        table.add_row(Text(check.status, _STYLES[check.status]), check.name, told)
    out.print(table)


def _checks(url: str | None) -> Iterator[Check]:
    yield Check("python", OK, f"{platform.python_implementation()} {platform.python_version()}")
    yield Check("holdfast", OK, f"{__version__}, with SQLite {sqlite3.sqlite_version}")
    yield _models()
    yield _mcp()
    try:
        yield _origin(url)
        if is_server(url):
            yield from _server(url)
            return
        store = open_store(store_url(url))
    except HoldfastError as error:
        yield Check("store", FAIL, str(error))
        return
    yield _encryption(store)
    database = beneath(store)
    if isinstance(database, MemoryStore):
        yield Check("store", WARN, "memory:// keeps runs only as long as the process lives", "use a sqlite:/// URL")
    elif isinstance(database, SqliteStore):
        yield from _sqlite(database, url)
    elif is_temporal(store_url(url)):
        yield from _temporal(store_url(url))
    else:
        yield from _postgres(store_url(url), database)


def _models() -> Check:
    known = installed_providers()
    if known:
        return Check("models", OK, f"packages for {', '.join(known)}")
    advice = "an agent needs one of its model's provider: pip install 'holdfast[openai]', or [anthropic], [google]…"
    return Check("models", OK, "no provider's package is installed", advice)


def _mcp() -> Check:
    found = mcp_version()
    if found is not None:
        return Check("mcp", OK, f"the package for MCP servers is installed ({found})")
    return Check(
        "mcp", OK, "the package for MCP servers is not installed", "to use their tools: pip install 'holdfast[mcp]'"
    )


def _encryption(store: Store) -> Check:
    if not isinstance(store, SealedStore):
        return Check("encryption", OK, f"off: {VARIABLE} is not set")
    assert isinstance(store.encryption, AesEncryption)  # nobody but the environment gives this command one
    first, *others = store.encryption.key_ids
    also = f", and key {', '.join(others)} can be read" if others else ""
    return Check("encryption", OK, f"what is recorded is sealed with key {first}{also}")


def _origin(url: str | None) -> Check:
    place = split_namespace(url)[0] if url else None
    is_given = place is not None and place != split_namespace(store_url())[0]
    source = "--url" if is_given else "HOLDFAST_URL" if os.environ.get("HOLDFAST_URL") else "the default in this folder"
    return Check("store url", OK, f"{shown_url(store_url(url))} (from {source})")


# The SQLite file


def _sqlite(store: SqliteStore, url: str | None) -> Iterator[Check]:
    path = store.path
    folder = _nearest_folder(path)
    base = Path(split_namespace(store.url)[0].removeprefix("sqlite:///"))
    others = [name for name in namespaces_beside(base) if name != store.namespace]
    yield namespace_check(store.namespace, path.name, others)
    yield _space(folder)
    if not path.exists():
        yield Check("database", OK, f"none is there yet: the first run, or `holdfast worker`, creates {path}")
        yield _writable_folder(path, folder)
        yield _commit(folder)
        return
    try:
        facts = read_facts(path)
    except StoreError as error:
        yield Check("database", FAIL, str(error))
        return
    yield _schema(path, facts)
    if not is_ours(facts) or is_newer(facts) or is_outdated(facts):
        return
    try:
        settings = write_settings(path)
    except StoreError as error:
        yield Check("writable", FAIL, str(error))
        return
    yield Check("writable", OK, f"{path} and its folder")
    yield _durability(settings)
    yield _commit(folder)
    yield from _work(url)


def _nearest_folder(path: Path) -> Path:
    """The folder of the database, or the nearest one above it that is there."""
    return next(folder for folder in path.parents if folder.exists())


def _space(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    message = f"{free / (1 << 30):.1f} GiB free" if free >= 1 << 30 else f"{free / (1 << 20):.0f} MiB free"
    advice = f"free space on the device of {folder}: without room, runs stop until there is some"
    if free < NO_SPACE:
        return Check("disk", FAIL, message, advice)
    return Check("disk", WARN, message, advice) if free < LITTLE_SPACE else Check("disk", OK, message)


def _writable_folder(path: Path, folder: Path) -> Check:
    if os.access(folder, os.W_OK | os.X_OK):
        return Check("writable", OK, f"{path.parent} can be created" if folder != path.parent else str(folder))
    return Check(
        "writable", FAIL, f"{folder} is not writable for this user", "allow it, or point HOLDFAST_URL elsewhere"
    )


def _schema(path: Path, facts: FileFacts) -> Check:
    size = f"{facts.size / (1 << 20):.1f} MiB"
    if not is_ours(facts):
        advice = "point HOLDFAST_URL at another file: Holdfast keeps its runs in one of their own"
        return Check("database", FAIL, f"{path} is not a Holdfast database", advice)
    if is_newer(facts):
        advice = "upgrade this one (pip install -U holdfast), or use another file"
        return Check("database", FAIL, f"schema version {facts.version} is from a newer Holdfast", advice)
    if is_outdated(facts):
        what = f"schema version {facts.version} is from an older Holdfast" if facts.version else f"{path} is empty"
        return Check("database", WARN, what, "the next worker or program that opens it sets it up; then ask again")
    return Check("database", OK, f"opens; schema version {facts.version}, {size}")


def _durability(settings: Mapping[str, str]) -> Check:
    message = ", ".join(f"{name}={value}" for name, value in settings.items())
    if settings == {"journal_mode": "wal", "synchronous": "full"}:
        return Check("durability", OK, message)
    return Check("durability", FAIL, message, "a recorded outcome could be lost with the power: please report this")


def _commit(folder: Path) -> Check:
    try:
        times = commit_times(folder)
    except (StoreError, OSError) as error:
        return Check("commit", FAIL, f"a test commit in {folder} failed: {error}")
    return commit_check(times, "a slow disk bounds steps a second; a local SSD takes about a millisecond")


# The PostgreSQL database


def _postgres(url: str, store: Store) -> Iterator[Check]:
    from holdfast.cli.postgres_checks import database_checks
    from holdfast.stores.postgres import PgStore

    assert isinstance(store, PgStore)
    is_ready = False
    for check in database_checks(url, store):
        yield check
        is_ready = (is_ready or check.name == "tables") and check.status != FAIL
    if is_ready:
        yield from _work(url)


# The Temporal server


def _temporal(url: str) -> Iterator[Check]:
    from holdfast.cli.temporal_server import server_checks

    checks = asyncio.run(server_checks(url))
    yield from checks
    if not any(check.status == FAIL for check in checks):
        yield from _work(url)


# A Holdfast server


def _server(url: str | None) -> Iterator[Check]:
    from holdfast.cli.server_checks import server_checks

    checks = asyncio.run(server_checks(url))
    yield from checks
    if not any(check.status == FAIL for check in checks):
        yield from _work(url)


# Workers and runs


def _work(url: str | None) -> Iterator[Check]:
    try:
        found = asyncio.run(_read(url))
    except HoldfastError as error:
        yield Check("runs", FAIL, str(error))
        return
    states: Counter[RunState] = Counter()
    for one in found.health:
        states.update(one.runs)
    yield _workers(found.workers, any(states[state] for state in UNFINISHED))
    yield from _listeners(found.workers)
    more = {state for one in found.health for state in one.more}
    told = ", ".join(f"{states[state]}{'+' if state in more else ''} {state}" for state in RunState if states[state])
    yield Check("runs", OK, told or "none yet")
    yield from _unserved(found.health)
    yield from _switched_off(found.health)
    yield from _paused_queues(found.queues)
    yield from _unsuccessful(states)


class _Found(NamedTuple):
    """What is told of workers and runs."""

    health: Sequence[Health]
    workers: Sequence[WorkerInfo]
    queues: Sequence[QueueInfo]


async def _read(url: str | None) -> _Found:
    async with reached(url) as client:
        return _Found(await client.health(), await client.workers(), await client.queues.list())


def _workers(workers: Sequence[WorkerInfo], work: bool) -> Check:
    alive = [worker for worker in workers if worker.alive]
    own = [worker for worker in alive if not worker.listener]
    gone = sum(worker.state == "live" and not worker.listener for worker in workers) - len(own)
    message = _how_many(own)
    if gone:
        message += f"; {counted(gone, 'dead one')} whose runs the next worker takes over"
    if not alive and work:
        return Check("workers", WARN, message, "start one with `holdfast worker module`, or run your program again")
    return Check("workers", OK, message)


def _listeners(workers: Sequence[WorkerInfo]) -> Iterator[Check]:
    """Those that a server speaks for, if there are any."""
    known = [worker for worker in workers if worker.listener and worker.state == "live"]
    own = [worker for worker in known if worker.alive]
    if known:
        gone = len(known) - len(own)
        lost = f"; {counted(gone, 'silent one')} whose runs a server gives to others" if gone else ""
        yield Check("listeners", OK, _how_many(own) + lost)


def _how_many(workers: Sequence[WorkerInfo]) -> str:
    places = ", ".join(worker.place for worker in workers[:4]) + (" …" if len(workers) > 4 else "")
    return f"{len(workers)} alive" + (f" ({places})" if workers else "")


def _unserved(health: Sequence[Health]) -> Iterator[Check]:
    for left in sorted((left for one in health for left in one.unserved), key=lambda left: left.fact):
        yield Check("unserved", WARN, f"{left.fact} ({counted(left.runs, 'unfinished run')})", left.remedy)


def _switched_off(health: Sequence[Health]) -> Iterator[Check]:
    for one in health:
        if one.off_since is not None:
            since = ago(time.time() - one.off_since.timestamp())
            message = f"workflow {one.name!r}, {since} ({counted(unfinished(one), 'unfinished run')})"
            yield Check("switched off", WARN, message, how_to_switch_on(one.name).partition(": ")[2])


def _paused_queues(queues: Sequence[QueueInfo]) -> Iterator[Check]:
    for queue in queues:
        if queue.paused_at is not None:
            waiting = f"{counted(queue.waiting, 'run')} {'waits' if queue.waiting == 1 else 'wait'} in it"
            message = f"queue {queue.name!r}, {ago(time.time() - queue.paused_at.timestamp())} ({waiting})"
            yield Check("paused", WARN, message, f"`{command('queues', 'resume', queue.name)}` lets its runs go on")


def _unsuccessful(states: Mapping[RunState, int]) -> Iterator[Check]:
    for state in (RunState.FAILED, RunState.DEAD):
        if count := states.get(state):
            advice = f"see them with `holdfast runs --state {state}`; `holdfast retry ID` lets one go on"
            yield Check(state.value, WARN, counted(count, "run"), advice)

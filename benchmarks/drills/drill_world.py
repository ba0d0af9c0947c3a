"""What the drills share: a world on either store, its workers, and cheap questions about many runs."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import postgres_server
from app_processes import Service, World
from ledger import ENDED, Journal
from postgres_processes import PgWorld

from benchmarks.drills import ROOT
from holdfast import Client
from waits import wait_until_sync

APPS = Path(__file__).parent / "apps"
MEMORY = Path("/dev/shm")
START_BATCH_SIZE = 200
"""Runs that are started at once."""
POLL_INTERVAL_S = 0.02


@contextmanager
def open_world(store: str) -> Iterator[World]:
    """A world on ``sqlite`` or ``postgres``, with the database on disk and synced, as in production."""
    if store == "postgres":
        # Only the ledger and the output of processes are in this folder.
        folder = tempfile.TemporaryDirectory(prefix="holdfast-drill-", dir=MEMORY if MEMORY.is_dir() else None)
        with folder as name, postgres_server.database(durable=True) as url:
            yield from _use_world(PgWorld(Path(name), url))
        return
    with tempfile.TemporaryDirectory(prefix=".drill-", dir=ROOT, ignore_cleanup_errors=True) as name:
        yield from _use_world(World(Path(name)))


def _use_world(world: World) -> Iterator[World]:
    try:
        yield world
    finally:
        world.client.close_sync()
        world.clean_up()


def get_store_title(world: World) -> str:
    return "Postgres" if isinstance(world, PgWorld) else "SQLite"


# Workers


def start_workers(world: World, app: str, count: int, *options: str, **settings: object) -> list[Service]:
    """Start ``holdfast worker`` this many times, and wait until each serves."""
    workers = [world.service("worker", str(APPS / app), *options, **settings) for _ in range(count)]
    for worker in workers:
        worker.wait_for_log("serves ")
    return workers


def find_worker_numbers(world: World, pids: set[int]) -> set[int]:
    """The numbers in the store of the live workers in these processes."""
    return {number for number, pid in world.live_workers().items() if pid in pids}


# Runs


def start_runs(world: World, workflow: str, arguments: Sequence[Sequence[Any]]) -> list[str]:
    """Start a run for each list of arguments; returns their ids."""

    async def start() -> list[str]:
        ids: list[str] = []
        async with Client(world.url) as client:
            for first in range(0, len(arguments), START_BATCH_SIZE):
                batch = arguments[first : first + START_BATCH_SIZE]
                handles = await asyncio.gather(*[client.start(workflow, *each) for each in batch])
                ids += [handle.run_id for handle in handles]
        return ids

    return asyncio.run(start())


def query(world: World, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a statement, read without Holdfast's own code."""
    if isinstance(world, PgWorld):
        return world.tables.ask(statement, *values)
    with closing(sqlite3.connect(f"file:{world.database}?mode=ro", uri=True, timeout=10)) as connection:
        return connection.execute(statement, values).fetchall()


def count_states(world: World) -> Mapping[str, int]:
    """Number of runs in each state."""
    return dict(query(world, "SELECT state, count(*) FROM runs GROUP BY state"))


def wait_until_ended(world: World, *, timeout_s: float) -> None:
    """Wait until no run is unfinished."""

    def has_ended() -> bool:
        return set(count_states(world)) <= set(ENDED)

    wait_until_sync(has_ended, "all runs end", timeout_s=timeout_s, describe=lambda: count_states(world))


def check_completed(world: World, count: int) -> None:
    """No run was lost: each of them has completed."""
    assert count_states(world) == {"completed": count}, f"{count} runs were started: {count_states(world)}"


def count_unknown_outcomes(journals: Iterable[Journal]) -> int:
    """Number of `once` steps whose outcome is unknown: their worker died with them in flight."""
    steps = (record for journal in journals for record in journal.steps.values())
    return sum(not record.ok and b"StepOutcomeUnknown" in (record.payload or b"") for record in steps)

"""A world of its own for every test, and nothing left of it afterwards."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import postgres_server
import pytest
from agent_processes import ForkServer
from app_processes import World
from postgres_processes import PgWorld
from temporal_processes import TemporalWorld

import temporal_server

collect_ignore_glob = ["test_*"] if sys.platform == "win32" else []
"""Windows has neither these signals nor fork."""

MEMORY = Path("/dev/shm")
ENOUGH = 50_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be had: processes die here, not machines, and a disk may take seconds to sync."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ENOUGH:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=MEMORY, ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def agent_forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """From which the agents' processes are forked: one for all tests, because its imports take seconds."""
    forks = ForkServer(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What is marked ``on_postgres`` runs there as well; with ``--stores all``, everything in such a module does."""
    if "world" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--stores") == "all" and hasattr(metafunc.module, "ON_POSTGRES")
        is_wanted = everything or metafunc.function.__name__ in getattr(metafunc.module, "ON_POSTGRES", ())
        metafunc.parametrize("world", ["sqlite", *(["postgres"] if is_wanted else [])], indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest, folder: Path) -> Iterator[World]:
    with postgres_server.database() if request.param == "postgres" else nullcontext("") as url:
        world = PgWorld(folder, url) if url else World(folder)
        yield world
        world.clean_up()


@pytest.fixture
def pg_world(folder: Path) -> Iterator[PgWorld]:
    """For what is only about PostgreSQL."""
    with postgres_server.database() as url:
        world = PgWorld(folder, url)
        yield world
        world.clean_up()


@pytest.fixture
def temporal_world(folder: Path, agent_forks: ForkServer) -> Iterator[TemporalWorld]:
    """A world on Temporal."""
    world = TemporalWorld(folder, temporal_server.fresh_url(), agent_forks)
    yield world
    world.clean_up()

"""A world of its own for every test, and nothing left of it afterwards."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_processes import ForkServer
from app_processes import World

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


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    world = World(folder)
    yield world
    world.clean_up()

"""How long the soak lasts, which faults it makes, and where its files are."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

collect_ignore_glob = ["test_*"] if sys.platform == "win32" else []
"""Windows has neither these signals nor the file locks that tell of a death at once."""

SECONDS, SECONDS_ON_POSTGRES, SEED = 10.0, 6.0, 7
"""Unless others are asked for."""
AROUND = 180.0
"""Seconds for what comes before and after the faults, on a slow machine."""
MEMORY = Path("/dev/shm")
PER_SECOND = 2_000_000
"""More bytes than the journals and the ledger of a second take."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("soak")
    group.addoption("--soak-seconds", type=float, help="how long the soak faults its workers")
    group.addoption("--soak-seed", type=int, default=SEED, help="which faults it makes, and when")


# Pytest asks a conftest for options only if its folder was named on the command line: else there are the defaults.


def soak_seconds_of(config: pytest.Config) -> float:
    return config.getoption("--soak-seconds", default=None) or SECONDS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "soak_seconds" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(soak_seconds_of(config) + AROUND))


@pytest.fixture
def soak_seconds(request: pytest.FixtureRequest) -> float:
    return soak_seconds_of(request.config)


@pytest.fixture
def soak_seconds_on_postgres(request: pytest.FixtureRequest, soak_seconds: float) -> float:
    """As long as is asked for; if nothing is, not as long as on SQLite."""
    is_given = request.config.getoption("--soak-seconds", default=None) is not None
    return soak_seconds if is_given else SECONDS_ON_POSTGRES


@pytest.fixture
def soak_seed(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--soak-seed", default=SEED)


@pytest.fixture
def soak_folder(tmp_path: Path, soak_seconds: float) -> Iterator[Path]:
    """In memory where there is room: processes die here, not machines, and a slow disk would be all it tests."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < (30 + soak_seconds) * PER_SECOND:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-", dir=MEMORY, ignore_cleanup_errors=True) as name:
        yield Path(name)

"""How many seeds to run: ``pytest tests/simulation --simulation-seeds 100000``, or ``HOLDFAST_SIMULATION_SEEDS``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent))  # the simulator lies beside the library, not in it

SEEDS = 2_000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--simulation-seeds", type=int, default=None, help="how many seeds the simulation runs")


@pytest.fixture(scope="session")
def seeds(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--simulation-seeds", default=None)
    return given or int(os.environ.get("HOLDFAST_SIMULATION_SEEDS", SEEDS))

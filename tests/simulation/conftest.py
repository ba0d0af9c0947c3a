"""How many seeds to run: ``pytest tests/simulation --simulation-seeds 100000``, or ``HOLDFAST_SIMULATION_SEEDS``."""

from __future__ import annotations

import os

import pytest

SEEDS = 250
SHARE = 20
"""Of so many seeds that are asked for, one is lived through on each store on SQL as well: it takes that much longer."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--simulation-seeds", type=int, default=None, help="how many seeds the simulation runs")


@pytest.fixture(scope="session")
def seeds(request: pytest.FixtureRequest) -> int:
    return _get_seed_option(request) or SEEDS


@pytest.fixture(scope="session")
def twin_seeds(request: pytest.FixtureRequest) -> int:
    """How many on each store on SQL; 0: nobody has asked for a number."""
    return -(-_get_seed_option(request) // SHARE)


def _get_seed_option(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--simulation-seeds", default=None)
    return given or int(os.environ.get("HOLDFAST_SIMULATION_SEEDS", 0))

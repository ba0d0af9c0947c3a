"""The server restarts of the process tests, many more of them: only when a soak of a certain length is asked for.

``python -m pytest tests/soak --soak-seconds 600 -k restarts``
"""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_faults import Server
from postgres_processes import PgWorld
from test_process_postgres_restarts import survive_restarts

EVERY = 2.0
"""Seconds, or longer if runs take longer to go on."""


@pytest.mark.slow
def test_many_restarts_lose_and_double_nothing(
    request: pytest.FixtureRequest, soak_folder: Path, soak_seconds: float
) -> None:
    if request.config.getoption("--soak-seconds", default=None) is None:
        pytest.skip("the process tests restart it a few times already")
    server = Server()
    world = PgWorld(soak_folder, server.url)
    try:
        survive_restarts(world, server, int(soak_seconds / EVERY))
    finally:
        world.clean_up()
        server.stop()

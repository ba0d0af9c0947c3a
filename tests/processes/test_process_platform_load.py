"""Many listeners and many submissions over HTTP, while the server is killed and started again.

No listener dies, so each run's one step is done once: what the server had not recorded when it was killed is recorded
after it is back. The ledger is a file that the listeners write, outside the database.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.platform import run_load

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]


async def test_nothing_is_lost_or_doubled_when_the_server_is_killed_twice(tmp_path: Path):
    load = await run_load(tmp_path, listeners=200, runs=1000, kills=2)
    assert (load.runs, load.completed) == (1000, 1000)
    assert sorted(load.handled) == sorted(f"load-{number}" for number in range(1000))
    assert set(load.handled.values()) == {1}

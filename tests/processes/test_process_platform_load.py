"""Many listeners and many submissions over HTTP, while the server is killed and started again.

No listener dies, so each run's one step is done once: what the server had not recorded when it was killed is recorded
after it is back. The ledger is a file that the listeners write, outside the database. The gate has a fifth of the load;
``--full-load`` has all of it: 200 listeners and 1,000 submissions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.platform_load import run_load

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]


async def test_nothing_is_lost_or_doubled_when_the_server_is_killed_twice(tmp_path: Path, pytestconfig: pytest.Config):
    listeners, runs = (200, 1000) if pytestconfig.getoption("--full-load") else (40, 200)
    load = await run_load(tmp_path, listener_count=listeners, run_count=runs, kill_count=2)
    assert (load.run_count, load.completed_count) == (runs, runs)
    assert sorted(load.step_counts) == sorted(f"load-{number}" for number in range(runs))
    assert set(load.step_counts.values()) == {1}

"""A tool that leaks until its process is killed, under ``holdfast worker --processes 2`` with a memory limit.

Whoever takes the run over is killed, too. The run must end ``dead`` after a few deaths, an operator must see which
step did it, and the other runs of these workers must complete.
"""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
import time

from app_processes import Service, World
from ledger import LedgerLine, Snapshot, check_end

from benchmarks.drills.drill_world import (
    APPS,
    count_states,
    get_store_title,
    query,
    start_runs,
    wait_until_ended,
)
from benchmarks.drills.memory_limit import MemoryLimit
from benchmarks.sqlite_benchmarks import Measurement
from waits import wait_until_sync

PROCESS_COUNT = 2
DEAD_TIMEOUT_S = 300.0
END_TIMEOUT_S = 300.0
MAX_DEATHS = 10
"""Far more than it takes: one death with all runs, a few with fewer of them, three with the leaking one alone."""
_DEATH = re.compile(r"worker process (\d+) was killed by SIGKILL")


def leak_until_killed(
    world: World, *, neighbor_count: int, step_count: int, max_mb: int = 500, max_deliveries: int = 3
) -> list[Measurement]:
    """Raises ``AssertionError`` if the run goes on killing workers, or if another run is lost or repeats a record."""
    app, settings = str(APPS / "leaking_agent.py"), {"MAX_DELIVERIES": max_deliveries}
    service = world.service("worker", app, "--processes", f"{PROCESS_COUNT}", **settings)
    limit = MemoryLimit("holdfast-drill", max_mb, lambda: [service.pid, *service.process_pids])
    with limit:
        wait_until_sync(lambda: count_ready(service) == PROCESS_COUNT, "both serve", describe=lambda: service)
        start_runs(world, "neighbor", [[number, step_count] for number in range(neighbor_count)])
        [run] = start_runs(world, "leaky", [["Convert the report."]])
        started_at = time.time()
        wait_until_dead(world, service, run)
        dead_at = time.time()
        wait_until_ended(world, timeout_s=END_TIMEOUT_S)
        wait_until_sync(lambda: count_ready(service) == PROCESS_COUNT, "both serve again", describe=lambda: service)
    check_report(world, run)
    died = [int(pid) for pid in _DEATH.findall(service.stderr_text)]
    end = world.snapshot()
    assert count_states(world) == {"completed": neighbor_count, "dead": 1}, count_states(world)
    others = end.without_run(run)
    check_end(others, killed=died)
    service.send(signal.SIGTERM)
    service.ends()
    title = f"{get_store_title(world)}: a tool that leaks up to {max_mb} MB"
    return [
        Measurement(f"{title}, worker deaths", len(died), "deaths", limit.enforced_by, f"<= {MAX_DEATHS}", True),
        Measurement(f"{title}, until its run is dead", dead_at - started_at, "s"),
        Measurement(
            f"{title}, other runs completed", neighbor_count, "runs", f"of {neighbor_count}, "
            f"{count_repeated(others)} steps in flight executed again", "all", True,
        ),
        Measurement(f"{title}, longest pause of all other runs", find_longest_pause(others.lines), "s"),
    ]  # fmt: skip


def count_ready(service: Service) -> int:
    """Number of living worker processes that serve."""
    assert service.exit_code is None, f"the supervisor has ended: {service}"
    return sum(f"worker process {pid} is ready" in service.stderr_text for pid in service.process_pids)


def wait_until_dead(world: World, service: Service, run: str) -> None:
    def is_dead() -> bool:
        deaths = _DEATH.findall(service.stderr_text)
        assert len(deaths) <= MAX_DEATHS, f"it kills one worker after the other: {service}"
        [[state]] = query(world, "SELECT state FROM runs WHERE id = ?", run)
        return state == "dead"

    wait_until_sync(is_dead, "the run that leaks is dead", timeout_s=DEAD_TIMEOUT_S, describe=lambda: service)


def check_report(world: World, run: str) -> None:
    """``holdfast dead`` names the run and the step that was in flight."""
    command = [sys.executable, "-m", "holdfast.cli", "dead", "--url", world.url]
    report = subprocess.run(command, cwd=world.folder, capture_output=True, text=True, check=True).stdout
    assert run in report, report
    assert re.search(r"in flight\s.*convert", report), report


def count_repeated(others: Snapshot) -> int:
    starts: dict[str, int] = {}
    for line in others.lines:
        if line.phase == "start":
            starts[line.key] = starts.get(line.key, 0) + 1
    return sum(count > 1 for count in starts.values())


def find_longest_pause(lines: list[LedgerLine]) -> float:
    """The longest time in which no step of any run finished."""
    times = sorted(line.at for line in lines if line.phase == "finish")
    return max(later - earlier for earlier, later in itertools.pairwise(times))

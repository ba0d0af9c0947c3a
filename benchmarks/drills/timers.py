"""Timers: thousands of runs sleep until the same second, out of memory, and all of them wake up once.

A worker holds at most 1,000 runs, so it wakes them in several rounds. The ledger has when each run was resumed.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter

from app_processes import World
from soak_reader import Tail

from benchmarks.drills.drill_world import (
    check_completed,
    count_states,
    get_store_title,
    start_runs,
    start_workers,
    wait_until_ended,
)
from benchmarks.drills.process_samples import read_sample
from benchmarks.sqlite_benchmarks import Measurement
from waits import wait_until_sync

MAX_EARLY_S = 0.005
"""The clocks of workers are estimates of the database's clock."""
END_TIMEOUT_S = 300.0


def ring_at_once(world: World, *, run_count: int, sleep_s: float, worker_count: int = 1) -> list[Measurement]:
    """Raises ``AssertionError`` if a timer is lost, fires twice, or fires early."""
    workers = start_workers(world, "timers.py", worker_count)
    due = time.time() + sleep_s
    start_runs(world, "launch", [[run_count, due]])
    wait_until_sync(
        lambda: count_states(world) == {"waiting": run_count, "completed": 1},
        "all runs are parked",
        timeout_s=sleep_s,
        describe=lambda: count_states(world),
    )
    assert time.time() < due, f"{sleep_s:g} s were too short to start and park {run_count} runs"
    parked = [read_sample(worker.pid) for worker in workers]
    wait_until_ended(world, timeout_s=sleep_s + END_TIMEOUT_S)
    ended_at = time.time()
    done = [read_sample(worker.pid) for worker in workers]

    check_completed(world, run_count + 1)
    rings = Tail(world.folder / "ledger").read()
    assert Counter(number for number, _, _ in rings) == dict.fromkeys(range(run_count), 1), "lost or doubled"
    late = sorted(at - due for _, at, _ in rings)
    assert late[0] >= -MAX_EARLY_S, f"a timer fired {-late[0]:.3f} s early"
    percentiles = statistics.quantiles(late, n=100)
    cpu_s = sum(after.cpu_s - before.cpu_s for before, after in zip(parked, done, strict=True) if before and after)
    workers_title = "one worker" if worker_count == 1 else f"{worker_count} workers"
    title = f"{get_store_title(world)}, {workers_title}: {run_count:,} timers"
    return [
        Measurement(f"{title}, last one resumed", late[-1], "s late", f"{run_count / late[-1]:,.0f} runs/s"),
        Measurement(f"{title}, half of them resumed", percentiles[49], "s late", f"99 %: {percentiles[98]:.2f} s"),
        Measurement(f"{title}, all completed", ended_at - due, "s late"),
        Measurement(f"{title}, CPU of the workers", cpu_s, "s", f"{cpu_s / run_count * 1000:.2f} ms a run"),
        Measurement(f"{title}, lost or fired twice", 0, "timers", "", "0", True),
    ]

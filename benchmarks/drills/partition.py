"""Partition: one worker loses its network to the database, and gets it back when others have finished its work.

``black hole``: packets vanish, so neither side learns of it, and the database keeps the worker's sessions and locks.
``reset``: the connections break, and none can be made. Either way, the worker's process lives: its steps in flight end,
and it must neither record that nor begin another step once its runs are with others.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from app_processes import Service, World
from ledger import Journal, check_end
from soak_reader import Tail

from benchmarks.drills.drill_world import (
    check_completed,
    count_unknown_outcomes,
    find_worker_numbers,
    query,
    start_runs,
    start_workers,
    wait_until_ended,
)
from benchmarks.drills.partition_proxy import PartitionProxy
from benchmarks.sqlite_benchmarks import Measurement
from waits import wait_until_sync

END_TIMEOUT_S = 300.0
BEFORE_FINISH_COUNT = 25
"""Steps that the worker finishes before it is partitioned."""
AFTER_RUN_COUNT = 30
"""Runs that are started when its network is back."""


class Outage(NamedTuple):
    """A partition of one worker, from the side of the others."""

    began_at: float
    held_runs: tuple[str, ...]
    """The runs that the worker held."""
    number: int
    """The worker's number in the store."""


def partition_worker(
    world: World, mode: str, *, run_count: int = 400, lease_s: float = 10.0, concurrency: int = 10, step_s: float = 0.25
) -> list[Measurement]:
    """Raises ``AssertionError`` if the partitioned worker changed anything after the takeover, or stays away."""
    proxy = PartitionProxy(world.url)
    try:
        options = ("--lease", f"{lease_s:g}", "--concurrency", f"{concurrency}")
        peers = start_workers(world, "orders.py", 2, *options, STEP_S=step_s)
        [worker] = start_workers(world, "orders.py", 1, *options, STEP_S=step_s, HOLDFAST_URL=proxy.url)
        start_runs(world, "order", [[number] for number in range(run_count)])
        outage = cut_off(world, proxy, mode, worker)
        wait_until_ended(world, timeout_s=END_TIMEOUT_S)
        continued_at = check_takeover(world, outage, worker, run_count)
        before_heal = world.journals()

        healed_at = time.time()
        proxy.heal()
        back_at = wait_until_back(world, worker, outage)
        late_runs = start_runs(world, "order", [[run_count + number] for number in range(AFTER_RUN_COUNT)])
        wait_until_ended(world, timeout_s=END_TIMEOUT_S)
        check_back(world, outage, worker, before_heal, late_runs)
    finally:
        proxy.close()
    assert [one.exit_code for one in (worker, *peers)] == [None] * 3, (worker, *peers)
    end = world.snapshot()
    check_completed(world, run_count + AFTER_RUN_COUNT)
    check_end(end, killed=[worker.pid])
    repeated = {
        line.key for line in end.lines if line.pid != worker.pid and line.phase == "start"
    } & {line.key for line in end.lines if line.pid == worker.pid}  # fmt: skip
    title = f"{mode}, lease of {lease_s:g} s"
    delays = [at - outage.began_at for at in continued_at.values()]
    return [
        Measurement(f"{title}: first run taken over after", min(delays), "s", f"{len(delays)} runs"),
        Measurement(f"{title}: last run taken over after", max(delays), "s"),
        Measurement(f"{title}: steps executed again", len(repeated), "steps", "", "only those in flight", True),
        Measurement(
            f"{title}: `once` steps of unknown outcome", count_unknown_outcomes(end.journals.values()), "steps",
            "", "none twice", True,
        ),
        Measurement(f"{title}: recorded by the partitioned worker after the takeover", 0, "records", "", "0", True),
        Measurement(f"{title}: it works again after", back_at - healed_at, "s", "by itself"),
    ]  # fmt: skip


def cut_off(world: World, proxy: PartitionProxy, mode: str, worker: Service) -> Outage:
    """Partition the worker while it is busy."""
    tail = Tail(world.folder / "ledger")
    finished: list[object] = []

    def is_busy() -> bool:
        finished.extend(line for line in tail.read() if line[3] == "finish" and line[5] == worker.pid)
        return len(finished) >= BEFORE_FINISH_COUNT

    wait_until_sync(is_busy, "the worker is busy", describe=lambda: worker)
    [number] = find_worker_numbers(world, {worker.pid})
    held = query(world, "SELECT id FROM runs WHERE owner = ? AND state = 'running'", number)
    assert held, "the worker held nothing"
    began_at = time.time()
    if mode == "black hole":
        proxy.black_hole()
    else:
        proxy.reset()
    return Outage(began_at, tuple(run for [run] in held), number)


def check_takeover(world: World, outage: Outage, worker: Service, run_count: int) -> dict[str, float]:
    """Others have finished everything. Returns when each run of the worker was continued."""
    check_completed(world, run_count)
    assert outage.number not in world.live_workers(), "the partitioned worker counts as live"
    lines = world.lines()
    continued_at: dict[str, float] = {}
    for line in lines:
        if line.run in outage.held_runs and line.pid != worker.pid and line.at > outage.began_at:
            continued_at.setdefault(line.run, line.at)
    assert continued_at, "nothing was taken over"
    taken_at = min(continued_at.values())
    late = [line for line in lines if line.pid == worker.pid and line.phase == "start" and line.at > taken_at]
    assert not late, f"begun by a worker whose runs were with others: {late}"
    return continued_at


def wait_until_back(world: World, worker: Service, outage: Outage) -> float:
    """Wait until the process is a live worker under another number."""
    wait_until_sync(
        lambda: find_worker_numbers(world, {worker.pid}) - {outage.number},
        "the worker registers again",
        describe=lambda: worker,
    )
    return time.time()


def check_back(
    world: World, outage: Outage, worker: Service, before_heal: dict[str, Journal], late_runs: list[str]
) -> None:
    """The worker changed nothing of what others had finished, and has its part of the new runs."""
    now = world.journals()
    changed = [run for run, journal in before_heal.items() if now[run] != journal]
    assert not changed, f"changed after the takeover: {changed}"
    own = {line.run for line in world.lines(pid=worker.pid)} & set(late_runs)
    assert own, f"the worker takes no new runs: {worker}"

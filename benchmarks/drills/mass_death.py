"""Mass death: most workers of a busy fleet are killed at the same moment, and the few that are left finish the work.

Each worker has room for a few runs, so the fleet does more than its survivors can. The ledger says what happened: which
steps were in flight, when another worker continued each of their runs, and how much was done in each second.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from typing import NamedTuple

from app_processes import Service, World
from ledger import LedgerLine, Snapshot, check_end
from soak_reader import Tail

from benchmarks.drills.drill_world import (
    check_completed,
    count_unknown_outcomes,
    start_runs,
    start_workers,
    wait_until_ended,
)
from benchmarks.sqlite_benchmarks import Measurement
from waits import wait_until_sync

STEPS_PER_RUN = 4
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 300.0
WINDOW_S = 1.0
RECOVERED_SHARE = 0.9
"""The part of their later rate at which the survivors count as being back at it."""


class Takeover(NamedTuple):
    """What became of the work of the dead."""

    continued_at: dict[str, float]
    """When a survivor first did something for a run of theirs."""
    in_flight_count: int
    repeated_count: int
    unknown_count: int


def kill_most_workers(
    world: World, *, worker_count: int, survivor_count: int, run_count: int, concurrency: int = 10, step_s: float = 0.25
) -> list[Measurement]:
    """Raises ``AssertionError`` if a run or an effect was lost, or if one that was recorded happened again."""
    workers = start_workers(world, "orders.py", worker_count, "--concurrency", f"{concurrency}", STEP_S=step_s)
    start_runs(world, "launch", [[run_count]])
    # The rest is enough for the survivors to be busy for a while after they have taken over.
    left_count = concurrency * (worker_count + 5 * survivor_count)
    tail = Tail(world.folder / "ledger")
    shipped: list[object] = []

    def has_progressed() -> bool:
        shipped.extend(line for line in tail.read() if line[0] == "ship" and line[3] == "finish")
        return len(shipped) >= run_count - left_count

    wait_until_sync(has_progressed, "most orders are shipped", timeout_s=START_TIMEOUT_S)
    victims, survivors = workers[survivor_count:], workers[:survivor_count]
    killed_at, noticed_at = kill_at_once(world, victims)
    wait_until_ended(world, timeout_s=END_TIMEOUT_S)
    assert all(one.exit_code is None for one in survivors), survivors

    end = world.snapshot()
    check_completed(world, run_count + 1)
    check_end(end, killed=[one.pid for one in victims])
    takeover = read_takeover(end, {one.pid for one in victims}, killed_at)
    assert takeover.repeated_count <= takeover.in_flight_count, takeover
    return [
        *describe_takeover(takeover, worker_count, len(victims), run_count, noticed_at - killed_at, killed_at),
        *describe_rates(end.lines, {one.pid for one in survivors}, killed_at),
    ]


def kill_at_once(world: World, victims: list[Service]) -> tuple[float, float]:
    """SIGKILL all of them; returns when that was, and when the last one was declared dead."""
    pids = {one.pid for one in victims}
    killed_at = time.time()
    for victim in victims:
        victim.send(signal.SIGKILL)
    wait_until_sync(lambda: not pids & set(world.live_workers().values()), "all deaths are noticed")
    return killed_at, time.time()


def read_takeover(end: Snapshot, dead: set[int], killed_at: float) -> Takeover:
    """What the ledger and the journals say about the runs that dead workers held."""
    held = {line.run for line in end.lines if line.pid in dead}
    continued_at: dict[str, float] = {}
    for line in end.lines:
        if line.run in held and line.pid not in dead and line.at >= killed_at:
            continued_at.setdefault(line.run, line.at)
    # An effect that had ended, and whose outcome was not recorded, was in flight, too.
    recorded = {
        key
        for journal in end.journals.values()
        for key, record in journal.steps.items()
        if end.pids[record.worker] in dead
    }
    in_flight = {line.key for line in end.lines if line.pid in dead and line.key not in recorded}
    assert in_flight, "nothing was in flight: the drill shows nothing"
    starts = Counter(line.key for line in end.lines if line.phase == "start")
    repeated = {key for key, count in starts.items() if count > 1}
    assert repeated <= in_flight, f"repeated, and not in flight: {repeated - in_flight}"
    return Takeover(continued_at, len(in_flight), len(repeated), count_unknown_outcomes(end.journals.values()))


def describe_takeover(
    takeover: Takeover, worker_count: int, victim_count: int, run_count: int, noticed_s: float, killed_at: float
) -> list[Measurement]:
    delays = sorted(at - killed_at for at in takeover.continued_at.values())
    title = f"{victim_count} of {worker_count} workers killed"
    return [
        Measurement(f"{title}: all deaths noticed after", noticed_s, "s"),
        Measurement(
            f"{title}: the last of their runs continued after", delays[-1], "s",
            f"{len(delays)} runs, median {delays[len(delays) // 2]:.2f} s",
        ),
        Measurement(f"{title}: runs lost", 0, "runs", f"of {run_count:,}", "0", True),
        Measurement(
            f"{title}: steps executed again", takeover.repeated_count, "steps",
            f"{takeover.in_flight_count} were in flight", "only those in flight", True,
        ),
        Measurement(
            f"{title}: `once` steps of unknown outcome", takeover.unknown_count, "steps", "", "none twice", True,
        ),
    ]  # fmt: skip


def describe_rates(lines: list[LedgerLine], survivors: set[int], killed_at: float) -> list[Measurement]:
    """The rate of the survivors before and after, and when they were back at it."""
    finished = [line for line in lines if line.phase == "finish"]
    times = sorted(line.at for line in finished if line.pid in survivors)
    last = times[-1]

    def count_between(since: float, until: float) -> int:
        return sum(since <= at < until for at in times)

    before = [line for line in finished if killed_at - 3 * WINDOW_S <= line.at < killed_at]
    own_before = sum(line.pid in survivors for line in before) / (3 * WINDOW_S)
    # The last second is left out: the work runs out.
    middle = killed_at + (last - killed_at) / 2
    after = count_between(middle, last - WINDOW_S) / max(WINDOW_S, last - WINDOW_S - middle)
    steps = [killed_at + n * WINDOW_S / 10 for n in range(int((last - killed_at) / WINDOW_S * 10))]
    back = next(at for at in steps if count_between(at, at + WINDOW_S) >= RECOVERED_SHARE * after * WINDOW_S)
    return [
        Measurement("the fleet before", len(before) / (3 * WINDOW_S), "steps/s", f"its survivors {own_before:.0f}"),
        Measurement("its survivors afterwards", after, "steps/s", f"at that rate after {back - killed_at:.1f} s"),
    ]  # fmt: skip

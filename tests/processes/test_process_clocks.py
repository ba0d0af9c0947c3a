"""Wall clocks that are wrong, or are set while workers run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from app_processes import World
from postgres_processes import PgWorld

HOUR = 3600.0


def set_clock(file: Path, ahead: float) -> Path:
    """Let the wall clock of whoever reads this file be ahead."""
    partial = file.with_suffix(".new")
    partial.write_text(f"{ahead}")
    partial.rename(file)
    return file


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, 30.0, -30.0])
def test_what_is_due_is_decided_by_the_databases_clock(pg_world: PgWorld, ahead: float):
    """A worker whose clock is wrong takes runs, wakes them in time, and fails none for a deadline that is to come."""
    world = pg_world
    worker = world.worker(HOLDFAST_TEST_CLOCK=set_clock(world.folder / "clock", ahead))
    began = time.time()
    run = world.client.start_sync("on_time")
    world.wait_for_run(run, lambda journal: len(journal.records) == 2, "has slept")
    slept = time.time() - began
    assert 1.5 <= slept < 10
    time.sleep(2)  # it is parked again, and its signal's time-out is not over
    world.client.signal_sync(run, "go", "now")
    assert world.wait_for_end(run).output == ["before", "now", "after"]
    for (at,) in world.tables.ask("SELECT at FROM records"):
        assert began - 1 < at < time.time() + 1
    direction = "ahead of" if ahead > 0 else "behind"
    warning = f"the clock of this machine is {abs(ahead):.1f} s {direction} the clock of postgresql://"
    assert worker.stderr_messages.count(warning) == 1, str(worker)


def test_workers_whose_clocks_disagree_hand_runs_to_each_other(pg_world: PgWorld):
    world = pg_world
    for ahead in (HOUR, -HOUR):
        world.worker(HOLDFAST_TEST_CLOCK=set_clock(world.folder / f"clock{ahead}", ahead))
    runs = [world.client.start_sync("on_time") for _ in range(6)]
    for run in runs:
        world.client.signal_sync(run, "go", "now")
    for run in runs:
        ended = world.wait_for_end(run)
        assert (ended.output, ended.deliveries) == (["before", "now", "after"], 0)


@pytest.mark.parametrize("ahead", [60.0, HOUR, -60.0])
def test_a_wall_clock_that_is_set_makes_nobody_on_a_file_declare_the_others_dead(world: World, ahead: float):
    clock = set_clock(world.folder / "clock", 0.0)
    workers = [world.worker(HOLDFAST_TEST_CLOCK=clock, LEASE=6) for _ in range(3)]
    runs = [world.client.start_sync("held_payment", "x") for _ in range(6)]
    for run in runs:
        world.wait_for_line("pay_at", "start", run=run)
    before = world.live_workers()
    set_clock(clock, ahead)
    time.sleep(3)  # every worker has renewed its lease under the new time, and has looked at the others
    world.open_gate("x")
    for run in runs:
        assert world.wait_for_end(run).epoch == 1
    assert len(world.lines("pay_at", "start")) == len(runs)
    assert world.live_workers() == before
    assert [worker.exit_code for worker in workers] == [None] * len(workers)

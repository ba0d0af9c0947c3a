"""A run that kills its worker again and again ends dead, and none of its neighbors does."""

from __future__ import annotations

import pytest
from app_processes import World, retry_run
from ledger import ENDED, Journal, check_end

from holdfast import RunDead
from waits import wait_until_sync

ON_POSTGRES = ("test_one_bad_run_ends_dead_and_its_ten_innocent_neighbors_complete",)
"""What always runs on PostgreSQL, too."""


def check_all_but(world: World, dead: str) -> None:
    """The invariant, for all runs but the dead one."""
    check_end(world.snapshot().without_run(dead), killed=[app.pid for app in world.apps if app.exit_code == -9])


def test_a_step_that_kills_its_process_three_times_makes_its_run_dead_until_a_person_retries_it(world: World):
    workers = [world.worker() for _ in range(4)]
    for gate in ("x", "x-death-1", "x-death-2", "x-death-3"):
        world.open_gate(gate)
    run = world.client.start_sync("deadly", "x", 3)
    dead = world.wait_for_end(run, "dead")
    assert "died 3 times while this was the only run it held" in dead.error
    assert f"holdfast retry {run}" in dead.error
    assert dead.deliveries == 3
    assert len(world.lines("die", "start", run=run)) == 3
    fallen = [worker.pid for worker in workers if worker.exit_code == -9]
    assert len(fallen) == 3
    with pytest.raises(RunDead, match="died 3 times"):
        world.client.wait_sync(run)
    assert "died 3 times" in str(world.client.get_sync(run).error)

    retry_run(world, run)
    ended = world.wait_for_end(run)
    assert (ended.deliveries, ended.output) == (0, ["x before", "x", "x", "x after"])
    assert ended.records[:1] == dead.records
    check_end(world.snapshot(), killed=fallen)


def test_a_death_is_forgotten_with_the_next_record(world: World):
    workers = [world.worker() for _ in range(2)]
    world.open_gate("x-death-1")
    run = world.client.start_sync("deadly", "x", 1)
    world.wait_for_line("hold", "start", run=run)
    assert world.journal(run).deliveries == 0
    (fallen,) = [worker for worker in workers if worker.exit_code == -9]
    (survivor,) = [worker for worker in workers if worker is not fallen]
    assert [line.pid for line in world.lines("die", "start", run=run)] == [fallen.pid, survivor.pid]
    world.open_gate("x")
    assert world.wait_for_end(run).deliveries == 0
    check_end(world.snapshot(), killed=[fallen.pid])


def test_deaths_are_counted_while_nothing_new_is_recorded(world: World):
    victim = world.worker()
    run = world.client.start_sync("held", "x")
    for death_count in (1, 2):
        world.wait_for_line("hold", "start", run=run, pid=victim.pid)
        victim.kill()
        victim = world.worker()
        world.wait_for_line("hold", "start", run=run, pid=victim.pid)
        assert world.journal(run).deliveries == death_count
    world.open_gate("x")
    assert world.wait_for_end(run).deliveries == 0


def restart_until_dead(world: World, run: str, **settings: object) -> list[int]:
    """Start another worker whenever one has died, until the run has ended; the pids of those that died."""
    died: list[int] = []
    while world.journal(run).state not in ENDED:
        worker = world.worker(**settings)
        wait_until_sync(
            lambda worker=worker: worker.exit_code is not None or world.journal(run).state in ENDED,
            "the worker dies, or the run is dead",
            describe=world.describe,
        )
        if worker.exit_code is not None:
            died.append(worker.pid)
        assert len(died) < 20, world.describe()
    return died


def test_one_bad_run_ends_dead_and_its_ten_innocent_neighbors_complete(world: World):
    world.worker().kill()  # it has announced the workflows
    for death in range(1, 20):
        world.open_gate(f"x-death-{death}")
    others = [world.client.start_sync("busy", f"{n}", 10) for n in range(5)]
    deadly = world.client.start_sync("deadly", "x", 100)
    others += [world.client.start_sync("busy", f"{n}", 10) for n in range(5, 10)]
    died = restart_until_dead(world, deadly)
    dead = world.wait_for_end(deadly, "dead")
    assert "died 3 times while this was the only run it held" in dead.error
    assert dead.deliveries == 3
    for other in others:
        ended: Journal = world.wait_for_end(other)
        assert (ended.output, ended.deliveries) == (10, 0)
    assert 5 <= len(died) <= 8
    check_all_but(world, deadly)


def test_runs_with_a_long_step_in_flight_outlive_a_bad_one(world: World):
    """They record nothing while workers die, so nothing clears them; still, no death counts against them."""
    world.worker().kill()  # it has announced the workflows
    for death in range(1, 20):
        world.open_gate(f"x-death-{death}")
    others = [world.client.start_sync("held", f"other-{n}") for n in range(2)]
    deadly = world.client.start_sync("deadly", "x", 100)
    restart_until_dead(world, deadly, LEASE=0.5)
    world.wait_for_end(deadly, "dead")
    for n, other in enumerate(others):
        assert world.journal(other).deliveries == 0
        world.open_gate(f"other-{n}")
    for other in others:
        world.wait_for_end(other)
    check_all_but(world, deadly)

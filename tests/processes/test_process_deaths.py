"""A run that takes its worker down again and again is left alone, and only that run."""

from __future__ import annotations

import asyncio

import pytest
from app_processes import World, until
from ledger import Journal, check_end

from holdfast import RunDead


def retry(world: World, run: str) -> None:
    async def retry() -> None:
        async with world.client as client:
            await client.retry(run)

    asyncio.run(retry())


def check_all_but(world: World, dead: str) -> None:
    """The invariant, for all runs but the dead one."""
    check_end(world.moment().without(dead), killed=[app.pid for app in world.apps if app.exit_code == -9])


def test_a_step_that_kills_its_process_three_times_makes_its_run_dead_until_a_person_retries_it(world: World):
    workers = [world.worker() for _ in range(4)]
    for gate in ("x", "x-death-1", "x-death-2", "x-death-3"):
        world.open_gate(gate)
    run = world.client.start_sync("deadly", "x", 3)
    dead = world.wait_for_end(run, "dead")
    assert "took its worker down 3 times in a row" in dead.error
    assert f"holdfast retry {run}" in dead.error
    assert dead.deliveries == 3
    assert len(world.lines("die", "start", run=run)) == 3
    fallen = [worker.pid for worker in workers if worker.exit_code == -9]
    assert len(fallen) == 3
    with pytest.raises(RunDead, match="3 times in a row"):
        world.client.wait_sync(run)
    assert "3 times in a row" in str(world.client.get_sync(run).error)

    retry(world, run)
    ended = world.wait_for_end(run)
    assert (ended.deliveries, ended.output) == (0, ["x before", "x", "x", "x after"])
    assert ended.records[:1] == dead.records
    check_end(world.moment(), killed=fallen)


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
    check_end(world.moment(), killed=[fallen.pid])


def test_deaths_are_counted_while_nothing_new_is_recorded(world: World):
    victim = world.worker()
    run = world.client.start_sync("held", "x")
    for deaths in (1, 2):
        world.wait_for_line("hold", "start", run=run, pid=victim.pid)
        victim.kill()
        victim = world.worker()
        world.wait_for_line("hold", "start", run=run, pid=victim.pid)
        assert world.journal(run).deliveries == deaths
    world.open_gate("x")
    assert world.wait_for_end(run).deliveries == 0


def test_runs_that_record_something_between_the_deaths_of_their_workers_are_unaffected_by_a_deadly_one(world: World):
    world.worker()
    deadly = world.client.start_sync("deadly", "x", 3)
    others = [world.client.start_sync("busy", f"{n}", 60) for n in range(3)]

    def go_on(seen: dict[str, int]) -> bool:
        journals = world.moment().journals
        return all(len(journals[other].records) > seen[other] for other in others)

    for death in (1, 2, 3):
        worker = world.apps[-1]
        seen = {other: len(world.journal(other).records) for other in others}
        world.wait_for_line("die", "start", run=deadly, pid=worker.pid)
        until(lambda seen=seen: go_on(seen), "the others go on", seen=world.describe)
        world.open_gate(f"x-death-{death}")
        until(lambda worker=worker: worker.exit_code is not None, "the worker falls", seen=world.describe)
        world.worker()
    world.wait_for_end(deadly, "dead")
    for other in others:
        ended: Journal = world.wait_for_end(other)
        assert (ended.output, ended.deliveries) == (60, 0)
    check_all_but(world, deadly)


def test_runs_with_a_long_step_in_flight_share_the_fate_of_a_deadly_one_until_a_person_retries_them(world: World):
    # Nobody can tell which of the runs in memory took the worker down, so a death counts for each that got no further.
    world.worker()
    others = [world.client.start_sync("held", f"other-{n}") for n in range(2)]
    deadly = world.client.start_sync("deadly", "x", 3)
    for death in (1, 2, 3):
        worker = world.apps[-1]
        world.wait_for_line("die", "start", run=deadly, pid=worker.pid)
        for other in others:
            world.wait_for_line("hold", "start", run=other, pid=worker.pid)
        world.open_gate(f"x-death-{death}")
        until(lambda worker=worker: worker.exit_code is not None, "the worker falls", seen=world.describe)
        world.worker()
    for run in (deadly, *others):
        world.wait_for_end(run, "dead")
    for n, other in enumerate(others):
        world.open_gate(f"other-{n}")
        retry(world, other)
        world.wait_for_end(other)
    check_all_but(world, deadly)

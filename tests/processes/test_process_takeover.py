"""A worker dies, and another one goes on with its runs at once."""

from __future__ import annotations

import os
import signal
import statistics
import time

import pytest
from app_processes import World
from ledger import ENDED, TIMER, check_crash, check_end

from waits import wait_until_sync

ON_POSTGRES = ("test_children_that_a_step_left_behind_do_not_keep_its_dead_worker_alive",)
"""What always runs on PostgreSQL, too."""


def test_a_peer_goes_on_with_the_runs_of_a_killed_worker_within_a_second(world: World):
    delays: list[float] = []
    victims: list[int] = []
    victim = world.worker()
    for number in range(5):
        runs = [world.client.start_sync("held", f"{number}-{n}") for n in range(3)]
        for run in runs:
            world.wait_for_line("hold", "start", run=run, pid=victim.pid)
        peer = world.worker()
        before = world.snapshot()
        killed_at = victim.kill()
        victims.append(victim.pid)
        lines = [world.wait_for_line("hold", "start", run=run, pid=peer.pid) for run in runs]
        delays.append(max(line.at for line in lines) - killed_at)
        for n in range(3):
            world.open_gate(f"{number}-{n}")
        for run in runs:
            world.wait_for_end(run)
        check_crash(before, world.snapshot(), max_in_flight=3)
        victim = peer
    check_end(world.snapshot(), killed=victims)
    assert statistics.median(delays) < 1.0, delays


def test_children_that_a_step_left_behind_do_not_keep_its_dead_worker_alive(world: World):
    victim = world.worker()
    run = world.client.start_sync("children", "x")
    world.wait_for_line("hold", "start", run=run, pid=victim.pid)
    peer = world.worker()
    orphans = [int(pid) for pid in world.journal(run).records[0].payload.decode().strip('"').split()]
    try:
        killed_at = victim.kill()
        line = world.wait_for_line("hold", "start", run=run, pid=peer.pid)
        assert all(is_alive(pid) for pid in orphans), "the children were to outlive their worker"
        # One try, so more than the second that it takes at most; far less than the lease of 10 s that would decide
        # otherwise.
        assert line.at - killed_at < 3.0
        world.open_gate("x")
        world.wait_for_end(run)
        check_end(world.snapshot(), killed=[victim.pid])
    finally:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_client_that_waits_gets_its_result_although_the_worker_died(world: World):
    victim = world.worker()
    run = world.client.start_sync("held", "x")
    world.wait_for_line("hold", "start", run=run, pid=victim.pid)
    waiting = world.spawn("wait_for_run.py", run).wait_for_output("ready")
    victim.kill()
    world.worker()
    world.open_gate("x")
    assert waiting.read_answers() == [["x before", "x", "x after"]]
    assert waiting.stderr_messages == ""


@pytest.mark.parametrize("how", ["in memory", "parked"])
def test_a_timer_that_was_set_before_the_crash_fires_at_its_time_and_not_later(world: World, how: str):
    seconds = 3.0
    victim = world.worker()
    run = world.client.start_sync("alarm", "x", seconds)
    set_at = world.wait_for_run(run, lambda journal: journal.records, "has its first record").records[0].at
    if how == "parked":
        world.wait_for_run(run, lambda journal: journal.state == "waiting", "is parked")
    before = world.snapshot()
    victim.kill()
    peer = world.worker()
    ready_at = time.time()
    # The second worker parks it (again), unless it is so slow that the timer is due by then.
    parked = world.wait_for_run(run, lambda journal: journal.state in ("waiting", *ENDED), "is parked or over")
    assert parked.state in ENDED or parked.wake_at == pytest.approx(set_at + seconds, abs=0.001)
    (timer,) = world.wait_for_end(run).list_records(TIMER)
    assert world.snapshot().pids[timer.worker] == peer.pid
    assert set_at + seconds <= timer.at < max(set_at + seconds, ready_at) + 1.5
    check_crash(before, world.snapshot(), max_in_flight=0)
    check_end(world.snapshot())


def test_a_timer_that_came_due_while_no_worker_lived_fires_as_soon_as_one_does(world: World):
    victim = world.worker()
    run = world.client.start_sync("alarm", "x", 1.0)
    set_at = world.wait_for_run(run, lambda journal: journal.records, "has its first record").records[0].at
    victim.kill()
    assert not world.journal(run).list_records(TIMER)
    wait_until_sync(lambda: time.time() > set_at + 1.0, "the timer is due", describe=world.describe)
    peer = world.worker()
    ready_at = time.time()
    (timer,) = world.wait_for_end(run).list_records(TIMER)
    assert world.snapshot().pids[timer.worker] == peer.pid
    assert set_at + 1.0 <= timer.at < ready_at + 0.8
    check_end(world.snapshot())

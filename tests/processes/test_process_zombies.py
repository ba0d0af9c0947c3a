"""A worker that is stopped for longer than its lease (SIGSTOP, a long pause of the machine) comes back too late.

Its runs belong to somebody else by then: what it still does for them must change nothing, and must end.
"""

from __future__ import annotations

import signal

import pytest
from app_processes import App, World
from ledger import check_crash, check_end

from waits import wait_until_sync

ON_POSTGRES = ("test_an_outcome_that_a_stopped_worker_was_about_to_write_changes_nothing_after_the_takeover",)
"""What always runs on PostgreSQL, too."""

LEASE = 1.0
"""Of the worker that is stopped; the others keep the usual one, so that a slow machine does not stop them, too."""


def wait_until_registered_anew(world: World, app: App, numbers: set[int]) -> None:
    """Wait until the process is a live worker under another number."""
    wait_until_sync(
        lambda: {number for number, pid in world.live_workers().items() if pid == app.pid} - numbers,
        f"{app.name} registers as a new worker",
        describe=world.describe,
    )


@pytest.mark.parametrize(("workflow", "step"), [("held", "hold"), ("held_plain", "hold_plain")])
def test_a_worker_stopped_past_its_lease_stops_its_step_drops_the_run_and_works_on_as_a_new_worker(
    world: World, workflow: str, step: str
):
    zombie = world.worker(LEASE=LEASE, STUCK=1)
    run = world.client.start_sync(workflow, "x")
    world.wait_for_line(step, "start", run=run, pid=zombie.pid)
    numbers = set(world.live_workers())
    peer = world.worker()
    world.open_gate("x")
    world.suspend(zombie)
    before = world.snapshot()

    ended = world.wait_for_end(run)
    assert [line.pid for line in world.lines(step, "finish", run=run)] == [peer.pid]
    zombie.send(signal.SIGCONT)
    world.wait_for_line(step, "stopped", run=run, pid=zombie.pid)
    wait_until_registered_anew(world, zombie, numbers)
    assert not world.lines(step, "finish", run=run, pid=zombie.pid)
    assert world.journal(run) == ended, "the zombie changed the run"
    check_crash(before, world.snapshot())

    peer.kill()
    other = world.client.start_sync("shared", "y")
    assert world.wait_for_end(other).output == zombie.pid
    assert world.journal(run) == ended


def test_an_outcome_that_a_stopped_worker_was_about_to_write_changes_nothing_after_the_takeover(world: World):
    # The first commit of this worker is the outcome of the step before, the second that of the held one.
    zombie = world.worker(LEASE=LEASE, HOLDFAST_TEST_STOP="before-commit:2")
    run = world.client.start_sync("held", "x")
    world.wait_for_line("hold", "start", run=run)
    world.open_gate("x")
    zombie.wait_until_suspended()
    before = world.snapshot()
    assert before.lines[-1].phase == "finish", "the effect has happened, and is not recorded"

    # The peer holds the run, and has written nothing for it yet: only the fence is in the zombie's way.
    world.close_gate("x")
    peer = world.worker()
    world.wait_for_line("hold", "start", run=run, pid=peer.pid)
    numbers = set(world.live_workers())
    taken = world.journal(run)
    zombie.send(signal.SIGCONT)
    wait_until_registered_anew(world, zombie, numbers)
    assert world.journal(run) == taken, "the zombie changed the run"

    world.open_gate("x")
    ended = world.wait_for_end(run)
    end = world.snapshot()
    assert [end.pids[record.worker] for record in ended.records] == [zombie.pid, peer.pid, peer.pid]
    check_crash(before, end)
    check_end(end, killed=[zombie.pid])
    assert (zombie.exit_code, peer.exit_code) == (None, None)


def test_a_worker_that_comes_back_after_its_commit_does_not_begin_the_next_step(world: World):
    # Stopped when the outcome of the first step is durable, it wakes up with the answer and the wish to go on.
    zombie = world.worker(LEASE=LEASE, HOLDFAST_TEST_STOP="after-commit:1")
    run = world.client.start_sync("held", "x")
    zombie.wait_until_suspended()
    before = world.snapshot()
    assert len(before.journals[run].records) == 1
    world.open_gate("x")
    world.worker()
    numbers = set(world.live_workers())

    ended = world.wait_for_end(run)
    zombie.send(signal.SIGCONT)
    wait_until_registered_anew(world, zombie, numbers)
    end = world.snapshot()
    assert end.journals[run] == ended
    check_crash(before, end)
    check_end(end)


def test_a_worker_that_takes_long_to_register_anew_does_so_once(world: World):
    # Its heartbeat finds the old registration gone three times a second meanwhile.
    zombie = world.worker(LEASE=LEASE, HOLDFAST_TEST_SLOW="before-register:2")
    peer = world.worker()
    numbers = set(world.live_workers())
    world.suspend(zombie)
    wait_until_sync(
        lambda: zombie.pid not in world.live_workers().values(), "the peer buries the zombie", describe=world.describe
    )
    zombie.send(signal.SIGCONT)
    wait_until_registered_anew(world, zombie, numbers)
    assert zombie.stderr_messages.count("registers anew") == 1
    peer.kill()
    run = world.client.start_sync("shared", "x")
    assert world.wait_for_end(run).output == zombie.pid


def test_a_worker_that_comes_back_to_a_run_that_nobody_else_could_take_goes_on_with_it(world: World):
    zombie = world.worker(LEASE=LEASE)
    run = world.client.start_sync("held", "x")
    world.wait_for_line("hold", "start", run=run, pid=zombie.pid)
    numbers = set(world.live_workers())
    peer = world.worker(WORKFLOWS="shared")
    world.suspend(zombie)
    recorded = world.wait_for_run(run, lambda journal: journal.state == "pending", "is free").records
    zombie.send(signal.SIGCONT)
    wait_until_registered_anew(world, zombie, numbers)
    world.open_gate("x")
    world.wait_for_end(run)
    assert {line.pid for line in world.lines(run=run)} == {zombie.pid}
    assert [line.phase for line in world.lines("hold", run=run)] == ["start", "stopped", "start", "finish"]
    assert world.journal(run).records[:1] == recorded
    assert peer.exit_code is None

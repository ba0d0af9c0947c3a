"""An async step that never yields: it is named, its neighbors are taken over, and SIGTERM ends its process."""

from __future__ import annotations

import signal
import time

import pytest
from app_processes import App, World
from ledger import check_end

from waits import wait_until_sync

ON_POSTGRES = ("test_the_runs_of_a_blocked_worker_are_taken_over_and_it_is_fenced_when_it_comes_back",)
"""What always runs on PostgreSQL, too."""


def has_complained(world: World, app: App, words: str) -> None:
    wait_until_sync(lambda: words in app.stderr_messages, f"{app.name} logs {words!r}", describe=world.describe)


def test_it_is_logged_where_a_step_blocks_the_event_loop(world: World):
    worker = world.worker()
    run = world.client.start_sync("stalling", "x", "sleep")
    has_complained(world, worker, f"step 'stall' of run '{run}' has blocked the event loop")
    has_complained(world, worker, "flows.py")
    has_complained(world, worker, "in stall")
    world.open_gate("x")
    world.wait_for_end(run)
    has_complained(world, worker, "the event loop runs again")


def test_the_runs_of_a_blocked_worker_are_taken_over_and_it_is_fenced_when_it_comes_back(world: World):
    blocked = world.worker(LEASE=1, MAX_BLOCKED=2)
    held = world.client.start_sync("held", "y")
    world.wait_for_line("hold", "start", run=held)
    run = world.client.start_sync("stalling", "x", "sleep")
    world.wait_for_line("stall", "start", run=run, pid=blocked.pid)
    heir = world.worker(LEASE=1, MAX_BLOCKED=1000)
    world.wait_for_line("hold", "start", run=held, pid=heir.pid)
    world.wait_for_line("stall", "start", run=run, pid=heir.pid)
    has_complained(world, blocked, "no longer renews its lease")
    for gate in "xy":
        world.open_gate(gate)
    for name in (held, run):
        assert world.wait_for_end(name).epoch == 2
    has_complained(world, blocked, "was declared dead")
    other = world.client.start_sync("shared", "z")
    world.wait_for_end(other)
    for app in (blocked, heir):
        app.send(signal.SIGTERM)
        app.ends()
    check_end(world.snapshot(), killed=[blocked.pid])


def test_a_once_step_that_blocks_its_worker_past_the_bound_has_an_unknown_outcome(world: World):
    blocked = world.worker(LEASE=1, MAX_BLOCKED=1)
    run = world.client.start_sync("stalling_payment", "x")
    world.wait_for_line("pay_stalling", "start", run=run, pid=blocked.pid)
    world.worker()
    assert world.wait_for_end(run).output == ["unknown", "look into it"]
    assert len(world.lines("pay_stalling", "start", run=run)) == 1


def test_a_run_that_blocks_each_worker_ends_dead_and_its_neighbors_complete(world: World):
    """Being blocked past the bound counts like a death."""
    settings = {"LEASE": 0.5, "MAX_BLOCKED": 0.5}
    first = world.worker(**settings)
    run = world.client.start_sync("stalling", "x", "sleep")
    others = [world.client.start_sync("busy", f"{n}", 100) for n in range(3)]
    world.wait_for_line("stall", "start", run=run, pid=first.pid)
    workers = [first]
    while world.journal(run).state != "dead":
        workers.append(world.worker(**settings))
        wait_until_sync(
            lambda: world.lines("stall", "start", run=run, pid=workers[-1].pid) or world.journal(run).state == "dead",
            "the next worker blocks, or the run is dead",
            describe=world.describe,
        )
        assert len(workers) < 12, world.describe()
    assert "died 3 times while this was the only run it held" in world.journal(run).error
    for other in others:
        assert world.wait_for_end(other).deliveries == 0


def test_a_process_that_does_nothing_else_ends_when_it_is_blocked_past_the_bound(world: World):
    worker = world.worker(MAX_BLOCKED=2, EXIT_IF_BLOCKED=1)
    run = world.client.start_sync("stalling", "x", "sleep")
    world.wait_for_line("stall", "start", run=run, pid=worker.pid)
    wait_until_sync(lambda: worker.exit_code is not None, "the worker ends", describe=world.describe)
    assert worker.exit_code == 1
    assert "blocked the event loop of this process for too long" in worker.stderr_messages
    world.open_gate("x")
    world.worker()
    world.wait_for_end(run)


@pytest.mark.parametrize("how", ["busy", "sleep", "native"])
def test_sigterm_ends_a_process_whose_event_loop_is_blocked_after_the_grace(world: World, how: str):
    worker = world.worker(GRACE=1)
    run = world.client.start_sync("stalling", "x", how)
    world.wait_for_line("stall", "start", run=run, pid=worker.pid)
    told = time.monotonic()
    worker.send(signal.SIGTERM)
    wait_until_sync(lambda: worker.exit_code is not None, "the worker ends", describe=world.describe)
    assert worker.exit_code == 1
    assert 1.0 <= time.monotonic() - told < 20
    assert "the event loop is blocked" in worker.stderr_messages
    heir = world.worker()
    world.wait_for_line("stall", "start", run=run, pid=heir.pid)
    world.open_gate("x")


@pytest.mark.parametrize("signals", [1, 2])
def test_sigterm_ends_a_process_in_which_no_thread_can_run(world: World, signals: int):
    worker = world.worker(GRACE=1 if signals == 1 else 1000)
    run = world.client.start_sync("stalling", "x", "regex")
    world.wait_for_line("stall", "start", run=run, pid=worker.pid)
    for _ in range(signals):
        worker.send(signal.SIGTERM)
        time.sleep(0.3)  # two signals that arrive together are one
    wait_until_sync(lambda: worker.exit_code is not None, "the worker ends", describe=world.describe)
    assert worker.exit_code == 1
    assert "in stall" in worker.stderr_messages


def test_a_second_sigterm_ends_a_blocked_process_at_once(world: World):
    worker = world.worker(GRACE=1000)
    run = world.client.start_sync("stalling", "x", "sleep")
    world.wait_for_line("stall", "start", run=run, pid=worker.pid)
    worker.send(signal.SIGTERM)
    time.sleep(0.3)  # two signals that arrive together are one
    worker.send(signal.SIGTERM)
    wait_until_sync(lambda: worker.exit_code is not None, "the worker ends", describe=world.describe)
    assert worker.exit_code == 1

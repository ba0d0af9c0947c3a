"""SIGTERM: a worker finishes what is in flight, hands its runs over, and leaves nothing for others to repeat."""

from __future__ import annotations

import signal
import time

import pytest
from app_processes import World, begin_drain
from ledger import check_end

from waits import wait_until_sync

ON_POSTGRES = ("test_a_stopping_worker_finishes_its_step_and_hands_the_run_over",)
"""What always runs on PostgreSQL, too."""


@pytest.mark.parametrize(("workflow", "step"), [("relay", "hold"), ("relay_plain", "hold_plain")])
def test_a_stopping_worker_finishes_its_step_and_hands_the_run_over(world: World, workflow: str, step: str):
    leaver = world.worker()
    run = world.client.start_sync(workflow, "x")
    world.wait_for_line(step, "start", run=run, pid=leaver.pid)
    peer = world.worker()
    begin_drain(leaver)
    other = world.client.start_sync("shared", "y")
    assert world.wait_for_end(other).output == peer.pid, "a worker that stops takes no new runs"
    assert leaver.exit_code is None

    world.open_gate("x-1")
    leaver.ends()
    second = wait_until_sync(
        lambda: world.lines(step, "start", run=run)[1:], "the peer goes on", describe=world.describe
    )[0]
    assert (second.pid, second.label) == (peer.pid, "x-2"), "the finished step is not repeated"
    handed_over = world.journal(run)
    assert (handed_over.state, handed_over.deliveries, len(handed_over.records)) == ("running", 0, 1)

    world.open_gate("x-2")
    assert world.wait_for_end(run).deliveries == 0
    check_end(world.snapshot())


def test_a_second_sigterm_hands_over_at_once_and_counts_no_delivery(world: World):
    leaver = world.worker(GRACE=1000, STUCK=1)
    run = world.client.start_sync("relay", "x")
    world.wait_for_line("hold", "start", run=run, pid=leaver.pid)
    peer = world.worker()
    begin_drain(leaver)
    leaver.send(signal.SIGTERM)
    leaver.ends()
    assert [line.phase for line in world.lines("hold", run=run, pid=leaver.pid)] == ["start", "stopped"]
    world.wait_for_line("hold", "start", run=run, pid=peer.pid)
    assert world.journal(run).deliveries == 0
    world.open_gate("x-1")
    world.open_gate("x-2")
    world.wait_for_end(run)
    check_end(world.snapshot(), killed=[leaver.pid])


def test_a_step_that_outlasts_the_grace_is_handed_over_unfinished_and_counts_no_delivery(world: World):
    leaver = world.worker(GRACE=0.3, STUCK=1)
    run = world.client.start_sync("relay", "x")
    world.wait_for_line("hold", "start", run=run, pid=leaver.pid)
    peer = world.worker()
    told = time.monotonic()
    begin_drain(leaver)
    leaver.ends()
    assert time.monotonic() - told >= 0.3
    world.wait_for_line("hold", "start", run=run, pid=peer.pid)
    assert world.journal(run).deliveries == 0
    assert leaver.exit_code == 0


@pytest.mark.parametrize("moment", ["before-retire:1", "before-flush:1"])
def test_a_second_sigterm_in_the_middle_of_the_hand_over_does_not_break_it_off(world: World, moment: str):
    leaver = world.worker(GRACE=1000, HOLDFAST_TEST_TERM=moment)
    run = world.client.start_sync("relay", "x")
    world.wait_for_line("hold", "start", run=run, pid=leaver.pid)
    begin_drain(leaver)
    world.open_gate("x-1")
    leaver.ends()
    world.worker()
    handed_over = world.wait_for_run(run, lambda journal: journal.epoch == 2, "is taken over")
    assert (handed_over.deliveries, handed_over.state) == (0, "running")


def test_a_sigterm_finds_either_a_worker_that_listens_or_one_that_has_handed_over(world: World):
    # It strikes when the worker stops listening: what it kills then must hold nothing any more.
    leaver = world.worker(GRACE=1000, HOLDFAST_TEST_TERM="after-__exit__:1")
    run = world.client.start_sync("relay", "x")
    world.wait_for_line("hold", "start", run=run, pid=leaver.pid)
    begin_drain(leaver)
    world.open_gate("x-1")
    wait_until_sync(lambda: leaver.exit_code is not None, "the worker ends", describe=world.describe)
    world.worker()
    handed_over = world.wait_for_run(run, lambda journal: journal.epoch == 2, "is taken over")
    assert handed_over.deliveries == 0


def test_a_worker_that_stops_while_it_claims_another_run_finishes_its_step_and_ends(world: World):
    leaver = world.worker(GRACE=1000, HOLDFAST_TEST_TERM="before-claim:2")
    run = world.client.start_sync("relay", "x")
    world.wait_for_line("hold", "start", run=run, pid=leaver.pid)
    other = world.client.start_sync("shared", "y")
    wait_until_sync(lambda: "stopping: " in leaver.stderr_messages, "the worker drains", describe=world.describe)
    world.wait_for_run(other, lambda journal: journal.state == "running", "is taken")
    world.open_gate("x-1")
    leaver.ends()
    assert not world.lines(run=other), "a worker that stops begins nothing new"
    assert {(journal.state, journal.deliveries) for journal in world.snapshot().journals.values()} == {("pending", 0)}
    world.worker()
    world.open_gate("x-2")
    for each in (run, other):
        world.wait_for_end(each)
    check_end(world.snapshot())


def test_a_script_that_ends_while_a_signal_is_on_its_way_to_the_store_writes_it_and_ends(world: World):
    world.spawn("exit_while_writing.py", "signal").ends()
    handed_over = world.journal("letters-x")
    assert (handed_over.state, handed_over.deliveries, handed_over.signals) == ("pending", 0, ("letter",))
    world.worker()
    world.open_gate("x")
    assert world.wait_for_end("letters-x").output == ["x", "the last word"]
    check_end(world.snapshot(), killed=[world.apps[0].pid])


def test_a_script_that_ends_while_an_outcome_is_on_its_way_to_the_store_does_not_lose_it(world: World):
    # The first commit starts the run, the second is the outcome of its first step, and takes a while.
    world.spawn("exit_while_writing.py", "outcome", HOLDFAST_TEST_SLOW="before-commit:2").ends()
    handed_over = world.journal("held-x")
    assert (handed_over.state, handed_over.deliveries, len(handed_over.records)) == ("pending", 0, 1)
    world.worker()
    world.open_gate("x")
    world.wait_for_end("held-x")
    check_end(world.snapshot())

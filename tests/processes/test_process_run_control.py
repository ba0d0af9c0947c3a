"""Workers die while runs are undone, cancelled, forked, and while they wait for their children."""

from __future__ import annotations

import signal
from collections import Counter

from app_processes import World
from ledger import CANCEL, CHILD, COMPENSATION, check_crash, check_end

from waits import wait_until_sync


def test_a_worker_killed_while_a_run_is_undone_is_followed_by_one_that_goes_on_undoing(world: World):
    victim = world.worker()
    world.open_gate("undo-x-2")
    run = world.client.start_sync("undone", "x")
    wait_until_sync(
        lambda: [line for line in world.lines("release", "start") if line.label == "x-1"],
        "x-1",
        describe=world.describe,
    )
    before = world.snapshot()
    victim.kill()
    world.open_gate("undo-x-1")
    world.open_gate("undo-x-0")
    world.worker()
    journal = world.wait_for_end(run, "failed")
    check_crash(before, world.snapshot())
    check_end(world.snapshot(), killed=[victim.pid])
    began = [line.label for line in world.lines("release", "start")]
    assert began == ["x-2", "x-1", "x-1", "x-0"]
    assert [record.name for record in journal.list_records(COMPENSATION)] == ["release"] * 3
    assert journal.error == "x is refused"
    assert Counter(line.label for line in world.lines("acquire", "start")) == {"x-0": 1, "x-1": 1, "x-2": 1}


def test_a_worker_killed_with_parent_and_child_is_followed_by_one_that_goes_on_with_both(world: World):
    victim = world.worker()
    run = world.client.start_sync("parent", "x")
    world.wait_for_line("hold", "start", run="child-x")
    peer = world.worker()
    before = world.snapshot()
    victim.kill()
    world.wait_for_line("hold", "start", run="child-x", pid=peer.pid)
    world.open_gate("x")
    journal = world.wait_for_end(run)
    assert journal.output == ["x before", "x", "x after"]
    check_crash(before, world.snapshot())
    check_end(world.snapshot(), killed=[victim.pid])
    assert sorted(world.snapshot().journals) == ["child-x", "parent-x"]
    assert [record.name for record in journal.list_records(CHILD)] == ["child"]


def test_the_end_of_a_child_in_another_process_reaches_a_parent_whose_worker_died(world: World):
    world.worker(WORKFLOWS="child")
    victim = world.worker(WORKFLOWS="parent")
    run = world.client.start_sync("parent", "x")
    world.wait_for_line("hold", "start", run="child-x")
    victim.kill()
    world.open_gate("x")
    world.wait_for_end("child-x")
    world.worker(WORKFLOWS="parent")
    assert world.wait_for_end(run).output == ["x before", "x", "x after"]
    check_end(world.snapshot(), killed=[victim.pid])


def test_a_worker_killed_while_it_cancels_is_followed_by_one_that_goes_on_cancelling(world: World):
    victim = world.worker()
    run = world.client.start_sync("cleaned", "x")
    world.wait_for_line("hold", "start", run=run)
    assert world.client.cancel_sync(run)
    wait_until_sync(
        lambda: [line for line in world.lines("hold", "start") if line.label == "x-clean"],
        "the clean-up begins",
        describe=world.describe,
    )
    before = world.snapshot()
    victim.kill()
    world.open_gate("x-clean")
    world.open_gate("undo-x-0")
    world.worker()
    journal = world.wait_for_end(run, "cancelled")
    assert [record.kind for record in journal.records if record.kind in (CANCEL, COMPENSATION)] == [
        CANCEL,
        COMPENSATION,
    ]
    after = world.snapshot()
    interrupted = [line.phase for line in after.lines if line.label == "x"]
    assert interrupted == ["start", "stopped"], "what was cancelled is not begun again"
    assert not [line for line in after.lines[len(before.lines) :] if line.step == "acquire"]
    assert not world.client.get_sync(run).is_cancelling


def test_a_child_is_cancelled_with_its_parent_also_when_their_workers_die(world: World):
    first = world.worker(WORKFLOWS="child")
    second = world.worker(WORKFLOWS="parent")
    run = world.client.start_sync("parent", "x")
    world.wait_for_line("hold", "start", run="child-x")
    second.kill()
    world.suspend(first)
    assert world.client.cancel_sync(run)
    world.worker(WORKFLOWS="parent")
    world.wait_for_end(run, "cancelled")
    first.kill()
    world.worker(WORKFLOWS="child")
    world.wait_for_end("child-x", "cancelled")


def test_a_fork_whose_maker_and_first_worker_died_shares_what_was_recorded(world: World):
    world.worker()
    run = world.client.start_sync("long", "x")
    world.open_gate("x")
    world.wait_for_end(run)
    world.apps[0].send(signal.SIGTERM)
    world.apps[0].ends()
    world.close_gate("x")
    world.spawn("fork_and_die.py", run, "hold", "forked").wait_for_kill()
    victim = world.worker()
    world.wait_for_line("hold", "start", run="forked")
    before = world.snapshot()
    victim.kill()
    world.open_gate("x")
    world.worker()
    journal = world.wait_for_end("forked")
    assert journal.output == ["x first", "x second", "x"]
    check_crash(before, world.snapshot())
    assert [line for line in world.lines("call") if line.run == "forked"] == [], "the beginning is shared, not repeated"
    assert len(world.lines("hold", "finish", run="forked")) == 1
    assert world.lines("hold", "finish", run="forked")[0].key != world.lines("hold", "finish", run=run)[0].key


def test_of_a_simultaneous_cancel_and_end_one_wins_and_the_other_learns_of_it(world: World):
    world.worker()
    runs = [world.client.start_sync("short", f"x-{number}") for number in range(12)]
    for run in runs:
        world.wait_for_line("hold", "start", run=run)
    cancellers = [world.spawn("cancel_runs.py", *order).wait_for_output("ready") for order in (runs, runs[::-1])]
    world.open_gate("cancel")
    for number in range(len(runs)):
        world.open_gate(f"x-{number}")
    told: dict[str, list[str]] = {}
    for canceller in cancellers:
        for run, word in canceller.read_answers():
            told.setdefault(run, []).append(word)
    for run in runs:
        journal = world.wait_for_run(run, lambda journal: journal.state in ("completed", "cancelled"), "ends")
        if journal.state == "completed":
            assert told[run] == ["ended", "ended"], f"{run} completed although somebody was told {told[run]}"
        else:
            # Who comes when it is over is told so; at least one was told that it will be.
            assert "asked" in told[run], f"{run} was cancelled, and nobody had asked: {told[run]}"
            assert journal.output is None


def test_a_disabled_workflow_stops_in_all_processes(world: World):
    world.worker()
    world.worker()
    runs = [world.client.start_sync("held_then", f"x-{number}") for number in range(4)]
    for run in runs:
        world.wait_for_line("hold", "start", run=run)
    assert world.client.disable_sync("held_then")
    other = world.client.start_sync("sequential")
    world.wait_for_end(other)  # by now both workers have looked
    assert {world.journal(run).state for run in runs} == {"running"}
    for number in range(len(runs)):
        world.open_gate(f"x-{number}")
    for run in runs:
        standing = world.wait_for_run(run, lambda journal: journal.state == "pending", "stands still")
        assert [record.name for record in standing.records] == ["hold"]
    assert len(world.lines("hold", "finish")) == len(runs)
    assert not world.lines("hold", "stopped")
    assert world.client.enable_sync("held_then")
    for run in runs:
        name = run.removeprefix("then-")
        assert world.wait_for_end(run).output == [name, f"{name} after"]
    assert len(world.lines("hold", "start")) == len(runs)


def test_a_pause_outlives_the_worker(world: World):
    victim = world.worker()
    run = world.client.start_sync("long", "x")
    world.wait_for_line("hold", "start", run=run)
    assert world.client.pause_sync(run)
    victim.kill()
    world.open_gate("x")
    world.worker()
    other = world.client.start_sync("sequential")
    world.wait_for_end(other)
    assert world.journal(run).state in ("pending", "running")
    assert not world.lines("hold", "finish")
    assert world.client.resume_sync(run)
    assert world.wait_for_end(run).output == ["x first", "x second", "x"]


def test_a_payment_of_unknown_outcome_that_a_person_settles_happens_once_and_stays_settled(world: World):
    victim = world.worker()
    run = world.client.start_sync("settled_payment", "x")
    world.wait_for_line("pay_slowly", "start", run=run, pid=victim.pid)
    victim.kill()
    second = world.worker()
    assert "may or may not have happened" in (world.wait_for_end(run, "failed").error or "")
    world.client.settle_sync(run, 1, "paid by hand", by="ada")
    world.wait_for_run(run, lambda journal: journal.state == "waiting", "has gone on, to where it waits")
    before = world.snapshot()
    second.kill()
    world.open_gate("x")  # of the payment, if anybody made it again
    world.worker()
    world.client.signal_sync(run, "go", "on")
    journal = world.wait_for_end(run)
    assert journal.output == ["paid by hand", "on"]
    check_crash(before, world.snapshot())
    check_end(world.snapshot(), killed=[victim.pid, second.pid])
    assert [line.phase for line in world.lines("pay_slowly")] == ["start"]
    assert [(record.ok, record.payload, record.attempts) for record in journal.records[:1]] == [
        (True, b'"paid by hand"', 0)
    ]

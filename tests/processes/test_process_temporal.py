"""Workers on Temporal are killed, stopped and told to leave: what was finished is not done again, and all runs end."""

from __future__ import annotations

import signal

import pytest
from app_processes import begin_drain, retry_run
from ledger import Journal, LedgerLine, check_crash
from temporal_processes import TemporalWorld, check_repeats, check_steps

from holdfast import RunDead
from waits import wait_until_sync


def noted(journal: Journal, position: int) -> bytes | None:
    """The progress that a step has told of, as far as Temporal knows."""
    return journal.attempts[position].progress if position in journal.attempts else None


def phases(lines: list[LedgerLine]) -> list[str]:
    return [line.phase for line in lines]


# SIGKILL


def test_what_a_killed_worker_had_in_flight_is_done_once_more_and_nothing_else(temporal_world: TemporalWorld):
    world = temporal_world
    names = "held held_plain slow_payment settled_payment stumbling crunched signalled"
    victim = world.worker(names, STUCK=1)
    held, held_plain = world.client.start_sync("held", "x"), world.client.start_sync("held_plain", "y")
    stumbling, payment = world.client.start_sync("stumbling", "z"), world.client.start_sync("slow_payment", "p")
    crunched, signalled = world.client.start_sync("crunched", "c"), world.client.start_sync("signalled")
    settled = world.client.start_sync("settled_payment", "s")
    for step in ("hold", "hold_plain"):
        world.wait_for_line(step, "start")
    for run in (payment, settled):
        world.wait_for_line("pay_slowly", "start", run=run)
    wait_until_sync(
        lambda: len(world.lines("stumble", "start")) == 2, "the second attempt is made", describe=world.describe
    )
    world.wait_for_run(crunched, lambda journal: noted(journal, 1) == b"98000", "tells how far it is")
    world.wait_for_run(signalled, lambda journal: journal.records, "waits for a signal")
    before = world.snapshot()
    victim.kill()

    world.worker(names)
    for gate in "xyzp":
        world.open_gate(gate)
    for word in ("one", "two"):
        world.client.signal_sync(signalled, "go", word)
    world.wait_for_end(settled, "failed")
    expected = {
        held: ["x before", "x", "x after"],
        held_plain: ["y before", "y", "y after"],
        stumbling: "attempt 4 fails",
        payment: ["unknown", "look into it"],
        crunched: ["before", 100_000, "after"],
        signalled: ["before", "one", "after 0", "two", "after 1"],
    }
    assert {run: world.wait_for_end(run).output for run in expected} == expected
    end = world.snapshot()
    check_crash(before, end, max_in_flight=6)
    check_steps(end, killed=[victim.pid])
    assert phases(world.lines("pay_slowly")) == ["start", "start"], "what may happen once is not begun again"
    assert [line.attempt for line in world.lines("stumble", "start")] == [1, 2, 2, 3, 4], "a death is no failure"
    assert [line.label for line in world.lines("crunch", "start")] == ["from 0", "from 98000"]
    assert len(world.lines("hold", "start", run=held)) == 2

    world.client.settle_sync(settled, "pay_slowly", "paid by hand")
    world.client.signal_sync(settled, "go", "on")
    assert world.wait_for_end(settled).output == ["paid by hand", "on"]
    assert phases(world.lines("pay_slowly")) == ["start", "start"], "nor when a person has said what came of it"


def test_a_worker_with_other_code_does_nothing_in_the_name_of_a_step_and_that_counts_for_nothing(
    temporal_world: TemporalWorld,
):
    world = temporal_world
    world.lease = 4.0
    victim = world.worker("deployed")
    run = world.client.start_sync("deployed", "x")
    world.wait_for_line("hold", "start", run=run)
    victim.kill()
    other = world.worker("deployed", CODE="new")
    wait_until_sync(
        lambda: "cannot be found again" in other.stderr_messages,
        "it finds another step there",
        describe=world.describe,
    )
    other.kill()
    world.open_gate("x")
    world.worker("deployed")
    assert world.wait_for_end(run).output == "x"
    assert [(line.step, line.phase) for line in world.lines()] == [
        ("hold", "start"),
        ("hold", "start"),
        ("hold", "finish"),
    ]


def test_a_step_that_takes_its_worker_down_each_time_makes_its_run_dead_until_a_person_retries_it(
    temporal_world: TemporalWorld,
):
    world = temporal_world
    world.lease = 3.0
    workers = world.workers_for("deadly", 4)
    for gate in ("x", "x-death-1", "x-death-2", "x-death-3"):
        world.open_gate(gate)
    run = world.client.start_sync("deadly", "x", 3)
    dead = world.wait_for_end(run, "dead")
    assert "died 3 times while step 'die' was in flight" in dead.error
    assert f"holdfast retry {run}" in dead.error
    fallen = [worker.pid for worker in workers if worker.exit_code == -9]
    assert len(world.lines("die", "start", run=run)) == len(fallen) == 3
    assert {line.pid for line in world.lines("die", "start", run=run)} == set(fallen)
    with pytest.raises(RunDead, match="died 3 times"):
        world.client.wait_sync(run)
    status = world.histories.ask(lambda client: client.get_workflow_handle(run).query("status"))
    assert status == {"state": "dead", "waits_for": [], "approvals": []}

    retry_run(world, run)
    assert world.client.wait_sync(run) == ["x before", "x", "x", "x after"]
    assert len(world.lines("call", "start", run=run)) == 2, "what was recorded is carried along"


def test_a_step_that_blocks_its_worker_past_the_bound_is_handed_to_another(temporal_world: TemporalWorld):
    world = temporal_world
    world.lease = 3.0
    blocked = world.worker("stalling", MAX_BLOCKED=2)
    run = world.client.start_sync("stalling", "x", "sleep")
    world.wait_for_line("stall", "start", run=run, pid=blocked.pid)
    # As long as there is no other worker, the blocked one is given the step again, and declines.
    world.wait_for_run(run, lambda journal: journal.deliveries > 4, "is handed out again and again")
    heir = world.worker("stalling", MAX_BLOCKED=1000)
    world.wait_for_line("stall", "start", run=run, pid=heir.pid)
    assert f"step 'stall' of run '{run}' has blocked the event loop" in blocked.stderr_messages
    world.open_gate("x")
    assert world.wait_for_end(run).output == ["x before", "x", "x after"]


def test_the_runs_of_a_worker_that_falls_are_finished_by_the_other_on_its_task_queue(temporal_world: TemporalWorld):
    world = temporal_world
    victim, heir = world.workers_for("stairs", 2)
    names = [f"{number}" for number in range(20)]
    runs = [world.client.start_sync("stairs", name) for name in names]
    wait_until_sync(
        lambda: len(world.lines("hold", "start")) == len(runs), "all are half way up", describe=world.describe
    )
    lost = {line.run for line in world.lines("hold", "start", pid=victim.pid)}
    assert 0 < len(lost) < len(runs), "both are at work"
    wait_until_sync(
        lambda: all(len(one.records) == 2 for one in world.journals().values()),
        "that is known",
        describe=world.describe,
    )
    before = world.snapshot()
    victim.kill()
    for name in names:
        world.open_gate(name)
    for run, name in zip(runs, names, strict=True):
        assert world.wait_for_end(run).output == [f"{name} 1", f"{name} 2", name, f"{name} 4", f"{name} 5"]
    end = world.snapshot()
    check_repeats(before, end)
    check_steps(end, killed=[victim.pid])
    # The other one has never had these runs: it has found out from the history what it was to do.
    taken_over = [line for line in world.lines("hold", "finish", pid=heir.pid) if line.run in lost]
    assert {(line.run, line.label) for line in taken_over} == {(run, run.removeprefix("stairs-")) for run in lost}


# SIGTERM


def test_a_stopping_worker_ends_its_steps_or_hands_them_over_and_no_death_is_counted(
    temporal_world: TemporalWorld,
):
    world = temporal_world
    world.lease = 100.0  # nothing here comes from a worker that was not heard of
    leaver = world.worker("relay")
    relay = world.client.start_sync("relay", "x")
    world.wait_for_line("hold", "start", run=relay, pid=leaver.pid)
    workers = world.workers_for("relay held joining slow_payment", 5, GRACE=0.1)
    begin_drain(leaver)
    assert leaver.exit_code is None
    world.open_gate("x-1")
    leaver.ends()
    assert phases(world.lines("hold", run=relay, pid=leaver.pid)) == ["start", "finish"]
    second = wait_until_sync(
        lambda: world.lines("hold", "start", run=relay)[1:], "another goes on", describe=world.describe
    )[0]
    assert (second.label, second.pid != leaver.pid) == ("x-2", True)
    world.open_gate("x-2")
    world.wait_for_end(relay)

    held = world.client.start_sync("held", "y")
    joined = world.client.start_sync("joining", "y")
    payment = world.client.start_sync("slow_payment", "p")
    by_pid = {worker.pid: worker for worker in workers}
    world.wait_for_line("pay_slowly", "start", run=payment)
    left: list[int] = []
    for number in range(4):  # more often than a step may take its worker down
        begun = wait_until_sync(
            lambda number=number: world.lines("hold", "start", run=held)[number:],
            "it is taken",
            describe=world.describe,
        )
        left.append(begun[0].pid)
        begin_drain(by_pid[begun[0].pid])
        by_pid[begun[0].pid].ends()
    assert len(set(left)) == 4
    [stays] = [worker for worker in workers if worker.pid not in left]
    world.wait_for_line("hold", "start", run=held, pid=stays.pid)
    world.open_gate("y")
    for run in (held, joined):
        assert world.wait_for_end(run).output == ["y before", "y", "y after"]
    assert phases(world.lines("hold", run=held)) == ["start", "stopped"] * 4 + ["start", "finish"]
    assert {line.attempt for line in world.lines("hold", run=held)} == {1}, "to be handed over is no failure"

    if phases(world.lines("pay_slowly")) == ["start"]:
        world.open_gate("p")
        assert world.wait_for_end(payment).output == ["paid"]
    else:
        assert phases(world.lines("pay_slowly")) == ["start", "stopped"], "what may happen once is not handed over"
        assert world.wait_for_end(payment).output == ["unknown", "look into it"]


# Workers that live, and are not heard of


def test_a_step_that_blocks_its_loop_for_longer_than_temporal_is_patient_is_not_begun_again(
    temporal_world: TemporalWorld,
):
    world = temporal_world
    world.lease = 3.0
    world.workers_for("blocking", 2)
    run = world.client.start_sync("blocking", "x", 4.0)
    assert world.wait_for_end(run).output == 4.0
    assert phases(world.lines("block")) == ["start", "finish"]
    [record] = world.journal(run).records
    assert record.attempts == 1


def test_what_a_worker_does_that_was_stopped_for_too_long_changes_nothing(temporal_world: TemporalWorld):
    world = temporal_world
    world.lease = 4.0
    names = "held held_plain relay"
    zombie = world.worker(names)
    stuck = [
        world.client.start_sync("held", "x"),
        world.client.start_sync("held_plain", "y"),
    ]
    late = world.client.start_sync("relay", "z")
    for run, step in zip((*stuck, late), ("hold", "hold_plain", "hold"), strict=True):
        world.wait_for_line(step, "start", run=run, pid=zombie.pid)
    before = world.snapshot()
    zombie.suspend()
    peer = world.worker(names)
    for run, step in zip((*stuck, late), ("hold", "hold_plain", "hold"), strict=True):
        world.wait_for_line(step, "start", run=run, pid=peer.pid)
    # It comes back while the other one is at work, finds the gate open for one of the steps, and brings its outcome.
    world.open_gate("z-1")
    ended = wait_until_sync(
        lambda: world.lines("hold", "finish", run=late, pid=peer.pid), "one ends", describe=world.describe
    )
    assert ended
    zombie.send(signal.SIGCONT)
    for run, step in zip(stuck, ("hold", "hold_plain"), strict=True):
        world.wait_for_line(step, "stopped", run=run, pid=zombie.pid)
    for gate in ("x", "y", "z-2"):
        world.open_gate(gate)
    for run in (*stuck, late):
        world.wait_for_end(run)
    end = world.snapshot()
    check_crash(before, end, max_in_flight=3)
    check_steps(end, killed=[zombie.pid])
    for run, step in zip(stuck, ("hold", "hold_plain"), strict=True):
        assert phases(world.lines(step, run=run, pid=zombie.pid)) == ["start", "stopped"]
        assert phases(world.lines(step, run=run, pid=peer.pid)) == ["start", "finish"]
    assert (zombie.exit_code, peer.exit_code) == (None, None)


# Steps that are not to go on


def test_a_run_that_is_cancelled_stops_its_step_in_whatever_process_that_is(temporal_world: TemporalWorld):
    world = temporal_world
    world.lease = 4.0
    names = "held held_plain"
    victim = world.worker(names)
    runs = [world.client.start_sync("held", f"x{number}") for number in range(4)]
    runs += [world.client.start_sync("held_plain", f"y{number}") for number in range(4)]

    def in_flight(pids: set[int]) -> bool:
        begun = [line.run for line in world.lines(phase="start") if line.step != "call" and line.pid in pids]
        return sorted(begun) == sorted(runs)

    wait_until_sync(lambda: in_flight({victim.pid}), "all are held back", describe=world.describe)
    # Two others share what it had. A run that is cancelled goes to either, whichever of them has its step.
    victim.kill()
    heirs = world.workers_for(names, 2)
    wait_until_sync(lambda: in_flight({heir.pid for heir in heirs}), "all are taken over", describe=world.describe)
    for run in runs:
        assert world.client.cancel_sync(run)
    for run in runs:
        world.wait_for_end(run, "cancelled")
        wait_until_sync(
            lambda run=run: world.lines(phase="stopped", run=run), "its step is stopped", describe=world.describe
        )
        assert phases(world.lines(run=run)) == ["start", "finish", "start", "start", "stopped"]
    for heir in heirs:
        assert "Traceback" not in heir.stderr_messages, str(heir)


def test_what_is_not_to_be_tried_again_is_not(temporal_world: TemporalWorld):
    world = temporal_world
    world.worker("hopeless")
    run = world.client.start_sync("hopeless", "z")
    assert world.wait_for_end(run).output == ["z is wrong", "never"]
    assert phases(world.lines("give_up_at_once")) == ["start", "fail"]
    assert [(line.phase, line.attempt) for line in world.lines("refuse_twice")] == [
        ("start", 1), ("fail", 1), ("start", 2), ("fail", 2),
    ]  # fmt: skip
    assert [record.attempts for record in world.journal(run).records] == [1, 2], "nor by Temporal"

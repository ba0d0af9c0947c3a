"""Who starts what: the same run from many processes at once, and a script without ids that is started again."""

from __future__ import annotations

import signal

import pytest
from app_processes import App, World
from ledger import check_crash, check_end

from waits import wait_until_sync


def test_two_processes_that_start_the_same_id_at_the_same_moment_share_one_run(world: World):
    starters = [world.spawn("start_together.py", "shared", "x") for _ in range(2)]
    for starter in starters:
        starter.wait_for_output("ready")
    world.open_gate("go")
    results = [starter.read_answers()[0]["x"] for starter in starters]
    assert results[0] == results[1]
    assert results[0] in [starter.pid for starter in starters]
    assert list(world.snapshot().journals) == ["shared-x"]
    check_end(world.snapshot())
    assert len(world.lines(phase="start")) == 2


def test_a_process_that_joined_a_run_finishes_it_and_gets_its_result_when_the_other_is_killed(world: World):
    starters = [world.spawn("start_together.py", "held", "x").wait_for_output("ready") for _ in range(2)]
    world.open_gate("go")
    line = world.wait_for_line("hold", "start")
    (first,) = [starter for starter in starters if starter.pid == line.pid]
    (second,) = [starter for starter in starters if starter.pid != line.pid]
    world.suspend(second)  # it may take over before the snapshot
    first.kill()
    before = world.snapshot()
    second.send(signal.SIGCONT)
    world.open_gate("x")
    assert second.read_answers() == [{"x": ["x before", "x", "x after"]}]
    check_crash(before, world.snapshot())
    check_end(world.snapshot(), killed=[first.pid])


def test_eight_processes_on_one_file_complete_their_own_and_their_common_runs_without_an_error(world: World):
    common = [f"common-{n}" for n in range(5)]
    own = [[f"{number}-{n}" for n in range(25)] for number in range(8)]
    starters = [world.spawn("start_together.py", "shared", *names, *common) for names in own]
    for starter in starters:
        starter.wait_for_output("ready")
    world.open_gate("go")
    results = [starter.read_answers()[0] for starter in starters]
    assert [starter.stderr_messages for starter in starters] == [""] * 8
    for names, result, starter in zip(own, results, starters, strict=True):
        assert all(result[name] == starter.pid for name in names), "it carries out what it starts"
        assert all(result[name] == results[0][name] for name in common)
    end = world.snapshot()
    assert {run.state for run in end.journals.values()} == {"completed"}
    assert len(end.journals) == 8 * 25 + 5
    check_end(end)
    assert len(world.lines(phase="start")) == len(world.lines(phase="finish")) == 2 * len(end.journals)


# A script without ids


def kill_during_bill(world: World, **settings: object) -> App:
    """Run the script until it has charged and waits for the rest of the bill; then kill it."""
    script = world.spawn("script_without_ids.py", **settings)
    if "QUOTE" in settings:
        world.open_gate("quote-acme")
    wait_until_sync(lambda: is_held(world, "bill-acme"), "the bill is held", describe=world.describe)
    script.kill()
    return script


def is_held(world: World, gate: str) -> bool:
    return any(line.label == gate for line in world.lines("hold", "start"))


def bills(world: World) -> list[str]:
    """The ids of all bills, the oldest first."""
    return [run.id for run in world.snapshot().journals.values() if run.workflow == "bill"]


def test_a_script_without_ids_that_is_killed_and_run_again_pays_once(world: World):
    first = kill_during_bill(world)
    before = world.snapshot()
    second = world.spawn("script_without_ids.py")
    world.wait_for_line("hold", "start", pid=second.pid)
    world.open_gate("bill-acme")
    assert second.read_answers() == [["acme charged", "bill-acme", "receipt"]]
    assert len(bills(world)) == len(world.lines("charge", "start")) == 1
    check_crash(before, world.snapshot())
    check_end(world.snapshot(), killed=[first.pid])

    third = world.spawn("script_without_ids.py")
    assert third.read_answers() == [["acme charged", "bill-acme", "receipt"]]
    # The bill was complete: another call is another bill.
    assert len(bills(world)) == len(world.lines("charge", "start")) == 2


def test_a_new_run_can_be_forced_while_an_equal_one_is_orphaned(world: World):
    first = kill_during_bill(world)
    world.open_gate("bill-acme")
    second = world.spawn("script_without_ids.py", NEW=1).ends()
    assert len(bills(world)) == 2
    assert len(world.lines("charge", "start")) == 2
    # It goes on with the orphan while it is there, and hands it over when it has what it came for.
    world.worker()
    for run in bills(world):
        world.wait_for_end(run)
    check_end(world.snapshot(), killed=[first.pid, second.pid])


@pytest.mark.parametrize("orphan", ["still runs", "has ended"])
def test_a_call_in_the_middle_of_a_script_that_is_killed_in_it_and_run_again_pays_once(world: World, orphan: str):
    kill_during_bill(world, QUOTE=1)
    before = world.snapshot()
    # The second time, the script opens its runtime for the quote; the orphaned bill goes on at once beside it.
    world.close_gate("quote-acme")
    second = world.spawn("script_without_ids.py", QUOTE=1)
    (run,) = bills(world)
    world.wait_for_line("hold", "start", run=run, pid=second.pid)
    if orphan == "has ended":
        world.open_gate("bill-acme")
        world.wait_for_end(run)
        world.open_gate("quote-acme")
    else:
        world.open_gate("quote-acme")
        quotes = [run.id for run in world.snapshot().journals.values() if run.workflow == "quote"]
        world.wait_for_end(quotes[-1])
        world.open_gate("bill-acme")
    assert second.read_answers() == [["acme charged", "bill-acme", "receipt"]]
    assert len(world.lines("charge", "start")) == len(bills(world)) == 1
    check_crash(before, world.snapshot())

"""Signals: sent before, during and after a crash, never lost, each consumed once."""

from __future__ import annotations

import pytest
from app_processes import World
from ledger import SIGNAL, check_crash, check_end

from holdfast import RunEnded


def test_signals_sent_around_crashes_are_each_consumed_once_and_in_order(world: World):
    send = world.client.signal_sync
    first = world.worker()
    run = world.client.start_sync("letters", "x", 3)
    world.wait_for_line("hold", "start", run=run, pid=first.pid)
    assert send(run, "letter", "before the wait", id="1")
    first.kill()
    assert send(run, "letter", "during the crash", id="2")
    assert not send(run, "letter", "during the crash, again", id="2")

    second = world.worker()
    world.open_gate("x")
    parked = world.wait_for_run(run, lambda journal: journal.state == "waiting", "is parked on the third letter")
    assert len(parked.list_records(SIGNAL)) == 2
    assert not parked.signals
    second.kill()
    before = world.snapshot()
    assert not send(run, "letter", "before the wait, again", id="1")
    assert send(run, "letter", "while nobody lived", id="3")
    assert not send(run, "letter", "while nobody lived, again", id="3")

    world.worker()
    ended = world.wait_for_end(run)
    assert ended.output == ["x", "before the wait", "during the crash", "while nobody lived"]
    assert len(ended.list_records(SIGNAL)) == 3
    assert not ended.signals
    assert ended.deliveries == 0
    check_crash(before, world.snapshot(), max_in_flight=0)
    check_end(world.snapshot(), killed=[first.pid])
    assert not send(run, "letter", "again", id="3"), "a repeat is a repeat, also when the run has ended"
    with pytest.raises(RunEnded):
        send(run, "letter", "another", id="4")


def test_a_run_parked_when_its_worker_was_killed_is_woken_in_another_by_a_signal(world: World):
    first = world.worker()
    world.open_gate("x")
    run = world.client.start_sync("letters", "x", 1)
    world.wait_for_run(run, lambda journal: journal.state == "waiting", "is parked")
    second = world.worker()
    first.kill()
    before = world.snapshot()
    assert world.client.signal_sync(run, "letter", "hello")
    ended = world.wait_for_end(run)
    assert ended.output == ["x", "hello"]
    assert [line.pid for line in world.lines("call", "finish", run=run)] == [second.pid]
    check_crash(before, world.snapshot(), max_in_flight=0)
    check_end(world.snapshot())

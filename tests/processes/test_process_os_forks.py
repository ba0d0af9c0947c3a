"""Steps that fork: the child does its own work and ends. It executes nothing of the worker that it is a copy of."""

from __future__ import annotations

import os
import signal

import pytest
from app_processes import World

from waits import wait_until_sync

ON_POSTGRES = ("test_a_forked_child_ends_and_touches_nothing_of_its_parent",)
"""What always runs on PostgreSQL, too."""

NEIGHBORS = 10


@pytest.mark.parametrize(
    ("how", "exit_code"),
    [("returns", 0), ("awaits", 0), ("raises", 1), ("exits", 7), ("in a thread", 0), ("in a task", 0)],
)
def test_a_forked_child_ends_and_touches_nothing_of_its_parent(world: World, how: str, exit_code: int):
    worker = world.spawn("forking_worker.py").wait_for_output("ready")
    neighbors = [world.client.start_sync("neighbor", number) for number in range(NEIGHBORS)]
    for run in neighbors:
        world.wait_for_line("hold", "start", run=run)
    forked = world.client.start_sync("forks", how)
    assert world.wait_for_end(forked).output == exit_code
    world.open_gate("neighbors")
    for run in neighbors:
        world.wait_for_end(run)
        assert [line.pid for line in world.lines("hold", run=run)] == [worker.pid] * 2, "it starts and finishes once"
    assert [line.pid for line in world.lines("call", "finish")] == [worker.pid]
    worker.send(signal.SIGTERM)
    worker.ends()
    if how == "raises":
        assert "ValueError: from the child" in worker.stderr_messages
    if how in ("returns", "awaits"):
        assert "it ends here. End it with os._exit()" in worker.stderr_messages


def test_a_signal_to_a_forked_child_ends_the_child_and_not_its_parent(world: World):
    worker = world.spawn("forking_worker.py").wait_for_output("ready")
    forked = world.client.start_sync("forks", "works")
    [child] = wait_until_sync(lambda: children_of(worker.pid), "the child is there", describe=world.describe)
    os.kill(child, signal.SIGTERM)
    assert world.wait_for_end(forked).output == -signal.SIGTERM
    assert worker.exit_code is None
    assert "stopping" not in worker.stderr_messages
    worker.send(signal.SIGTERM)
    worker.ends()


def test_a_child_of_multiprocessing_may_use_a_runtime_of_its_own(world: World):
    worker = world.spawn("forking_worker.py").wait_for_output("ready")
    forked = world.client.start_sync("forks", "multiprocessing")
    assert world.wait_for_end(forked).output == ["32 characters", 0]
    assert len(world.lines("", "child")) == 1
    worker.send(signal.SIGTERM)
    worker.ends()


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return [int(child) for child in children.read().split()]

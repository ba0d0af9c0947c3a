"""Listeners that are killed at every step, and a server that is killed while others go on with their work."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from delivery_processes import APPS, Platform, kill

from waits import wait_until_sync

STEPS = ("extract", "validate", "load", "report")


@pytest.fixture
def platform(folder: Path) -> Iterator[Platform]:
    platform = Platform(folder)
    yield platform
    platform.close()


def test_whatever_is_killed_each_run_goes_on_at_the_step_where_it_stopped(platform: Platform):
    """Eight runs. Each takes its first listener down, in a step (whose effect was had) or behind one.

    Then one listener has all of them, and the server is killed meanwhile.
    """
    deaths = [(where, step) for where in ("in", "behind") for step in STEPS]
    listener = [sys.executable, APPS / "delivery_listener.py", "killed"]
    dying = [platform.start([*listener, "1", str(len(deaths))]) for _ in deaths]
    wait_until_sync(lambda: platform.listeners() == len(deaths))
    runs = {platform.client.send_sync("killed", death): death for death in deaths}
    for process in dying:
        assert process.wait(60) == -signal.SIGKILL, platform.output()
    before = len(platform.lines())
    assert before == 2 * (1 + 2 + 3 + 4)

    platform.start([*listener, "8"])
    wait_until_sync(lambda: len(platform.lines()) >= before + 5)
    kill(platform.server)
    platform.start_server()
    for run in runs:
        assert platform.client.wait_sync(run, 60) == [step.upper() for step in STEPS], platform.output()
    for run, (where, step) in runs.items():
        # Who came second began at the step where the first had stopped.
        stop = STEPS.index(step)
        assert platform.steps_of(run) == [*STEPS[: stop + 1], *STEPS[stop + (where == "behind") :]], (where, step)

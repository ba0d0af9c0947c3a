"""A fleet in which workers die: every tick of a schedule starts one run, and none is left out."""

from __future__ import annotations

import time

from app_processes import World

from holdfast.admission.calendars import make_tick_id
from waits import wait_until_sync

ON_POSTGRES = ("test_every_tick_starts_one_run_while_workers_are_killed",)
"""What always runs on PostgreSQL, too."""

SECONDS = 7


def test_every_tick_starts_one_run_while_workers_are_killed(world: World):
    workers = [world.spawn("schedule_worker.py") for _ in range(4)]
    for worker in workers:
        worker.wait_for_output("ready")
    first = int(time.time()) + 1
    killed: list[int] = []
    for number, worker in enumerate(workers[:3], 1):
        # As the tick is due, when they all look at it; and a bit later each time.
        sleep_until(first + 2 * number + 0.05 * number)
        worker.kill()
        killed.append(worker.pid)
        if number < 3:
            world.spawn("schedule_worker.py")
    sleep_until(first + SECONDS)
    wanted = [make_tick_id("pulse", tick) for tick in range(first, first + SECONDS)]
    wait_until_sync(
        lambda: {line.run for line in world.lines("beat", "finish")} >= set(wanted),
        "every tick has had its effect",
        describe=world.describe,
    )
    for run in wanted:
        world.wait_for_end(run)
        lines = world.lines("beat", run=run)
        assert len({line.key for line in lines}) == 1, f"{run} is one run:\n{lines}"
        # Once; what a killed worker had begun is begun again.
        begun = [line for line in lines if line.phase == "start" and line.pid not in killed]
        ended = [line for line in lines if line.phase == "finish"]
        assert len(begun) <= 1, lines
        assert begun or ended, lines
    others = [run for run in world.journals() if run not in wanted]
    assert all(run < wanted[0] or run > wanted[-1] for run in others), others
    [schedule] = world.client.schedules.list_sync()
    assert (schedule.is_declared_in_code, schedule.is_announced) == (True, True)
    for worker in world.apps:
        assert "Traceback" not in worker.stderr_messages, worker


def sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.time()))

"""Many runs on a few workers that are killed, and told to stop, one after the other in no particular order."""

from __future__ import annotations

import random
import signal

from app_processes import World
from ledger import check_end

from waits import wait_until_sync

ON_POSTGRES = ()
"""The soak on PostgreSQL does more of this; here only with ``--stores all``."""


def test_runs_of_all_sorts_come_through_one_death_after_the_other(world: World):
    chance = random.Random(7)
    workers = {app.pid: app for app in [world.spawn("worker.py") for _ in range(7)]}
    for worker in workers.values():
        worker.wait_for_output("ready")
    runs = [world.client.start_sync("mixed", f"{n}") for n in range(8)]
    killed: list[int] = []
    for strike in [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]:
        # Three deaths in a row would be the end of a run that had no time to go on in between.
        wait_until_sync(lambda: holders(world) <= workers.keys(), "all runs are under way", describe=world.describe)
        victim = workers.pop(chance.choice(sorted(holders(world) & workers.keys())))
        victim.send(strike)
        wait_until_sync(lambda victim=victim: victim.exit_code is not None, "the worker ends", describe=world.describe)
        if strike is signal.SIGKILL:
            killed.append(victim.pid)
        assert victim.exit_code == (-signal.SIGKILL if strike is signal.SIGKILL else 0), str(victim)
        assert "ERROR" not in victim.stderr_messages, str(victim)
    for n, run in enumerate(runs):
        world.open_gate(f"{n}")
        ended = world.wait_for_end(run)
        assert ended.output == sum(record.name == "is_over" for record in ended.records) - 1
    check_end(world.snapshot(), killed=killed)
    (survivor,) = workers.values()
    assert survivor.stderr_messages == "", str(survivor)


def holders(world: World) -> set[int]:
    """The processes that hold runs and have recorded something for them; 0 stands for runs that nobody went on with."""
    now = world.snapshot()
    list_in_progress = [run for run in now.journals.values() if run.state == "running" and run.records]
    is_progressing = [run.records[-1] for run in list_in_progress if run.records[-1].epoch == run.epoch]
    missing = {0} if len(is_progressing) < len(now.journals) else set()
    return {now.pids[record.worker] for record in is_progressing} | missing

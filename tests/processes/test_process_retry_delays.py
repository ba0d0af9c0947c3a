"""A process is killed while its run waits for the next attempt of a model call: the wait and the count survive it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from agent_processes import RUN, AgentWorld, ForkServer, turn

from waits import wait_until_sync

WAIT = 6
"""Seconds that the provider asks for: enough for a run to leave memory, and for another process to begin."""

BUSY = {"kind": "rate_limit", "retry_after": WAIT}


@pytest.mark.parametrize("where", ["in memory", "parked"])
def test_the_next_attempt_is_made_by_another_process_and_not_earlier(folder: Path, agent_forks: ForkServer, where: str):
    script = {"killed-talker": [{**turn("Hello."), "faults": [BUSY]}]}
    with AgentWorld(folder, agent_forks, script) as world:
        first = world.serve("talker")
        world.client.options(id=RUN).start_sync("killed-talker", "Hi.")
        wait_until_sync(lambda: noted(world), "the attempt is noted", describe=world.describe)
        if where == "parked":
            wait_until_sync(
                lambda: world.client.get_sync(RUN).state == "waiting", "the run leaves memory", describe=world.describe
            )
        first.kill()
        world.serve("talker")
        assert world.wait_for_end(RUN).output["output"] == "Hello."
        refused, answered = world.provider.address.calls
        assert answered.at - refused.at >= WAIT
        [record] = [one for one in world.client.export_sync(RUN).records if one.name == "model call"]
        assert record.attempts == 2


def noted(world: AgentWorld) -> bool:
    attempts = world.client.export_sync(RUN).attempts
    return bool(attempts) and attempts[0].attempt == 1 and attempts[0].retry_at is not None


def test_an_outage_is_outlived_by_workers_that_die_in_it(folder: Path, agent_forks: ForkServer):
    """Nobody answers for several attempts; each worker is killed as soon as one more of them has failed."""
    script = {"killed-talker": [{**turn("Hello."), "faults": [{"kind": "server_error", "times": 4}]}]}
    with AgentWorld(folder, agent_forks, script) as world:
        world.serve("talker")
        world.client.options(id=RUN).start_sync("killed-talker", "Hi.")
        for failed in (1, 2):  # a third death in a row would make the run dead
            wait_until_sync(
                lambda failed=failed: made(world) == failed, f"attempt {failed} fails", describe=world.describe
            )
            world.apps[-1].kill()
            world.serve("talker")
        assert world.wait_for_end(RUN).output["output"] == "Hello."
        times = [call.at for call in world.provider.address.calls]
        assert len(times) == 5, "a death adds no attempt"
        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(wait >= 0.5 * 2**retry for retry, wait in enumerate(waits)), waits


def made(world: AgentWorld) -> int:
    attempts = world.client.export_sync(RUN).attempts
    return attempts[0].attempt if attempts and attempts[0].retry_at is not None else 0

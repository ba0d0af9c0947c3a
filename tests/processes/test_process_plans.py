"""An agent that plans is killed, its plan is read while no process has it, and another process goes on with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_processes import RUN, AgentTurn, AgentWorld, ForkServer, call, turn

from holdfast import Client

AGENT = "killed-planner"


def plan(**tasks: str) -> tuple[str, dict[str, object]]:
    return call("write_plan", items=[{"task": task, "status": status} for task, status in tasks.items()])


SCRIPT = {
    AGENT: [
        turn("", plan(look="working", tell="open"), call("load_skill", name="looking")),
        turn("", call("look", place="north")),
        turn("Too early."),
        turn("", plan(look="done", tell="working")),
        turn("Too early again."),
        turn("", plan(look="done", tell="done")),
        turn("All is told."),
    ]
}


@pytest.mark.parametrize("number", [1, 4])
def test_a_plan_outlives_the_process_that_wrote_it(folder: Path, agent_forks: ForkServer, number: int):
    with AgentWorld(folder, agent_forks, SCRIPT) as world:
        world.hold(AGENT, number)
        process = world.fork("program", AGENT="planner")
        world.wait_until_held(AGENT, number)
        process.kill()
        left = Client(world.url).plan_sync(RUN)
        wanted = ["working", "open"] if number < 4 else ["done", "working"]
        assert [item.status for item in left] == wanted, world.describe()
        world.release(AGENT, number)

        assert world.fork("peer").result()["output"] == "All is told.", world.describe()
        assert Client(world.url).plan_sync(RUN).done_count == 2
        assert world.count_turns() == {AgentTurn(AGENT, at): 2 if at == number else 1 for at in range(7)}, (
            world.describe()
        )
        assert len(world.lines("load_skill", "start")) == 1, world.describe()
        assert len(world.lines("look", "start")) == 1, world.describe()

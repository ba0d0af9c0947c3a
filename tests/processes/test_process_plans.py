"""An agent that plans is killed, its plan is read while no process has it, and another process goes on with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_processes import RUN, Asked, ForkServer, Scene, call, turn

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
    with Scene(folder, agent_forks, SCRIPT) as scene:
        scene.hold(AGENT, number)
        life = scene.live("program", AGENT="planner")
        scene.wait_until_held(AGENT, number)
        life.kill()
        left = Client(scene.url).plan_sync(RUN)
        wanted = ["working", "open"] if number < 4 else ["done", "working"]
        assert [item.status for item in left] == wanted, scene.describe()
        scene.release(AGENT, number)

        assert scene.live("peer").result()["output"] == "All is told.", scene.describe()
        assert Client(scene.url).plan_sync(RUN).done_count == 2
        assert scene.asked() == {Asked(AGENT, at): 2 if at == number else 1 for at in range(7)}, scene.describe()
        assert len(scene.lines("load_skill", "start")) == 1, scene.describe()
        assert len(scene.lines("look", "start")) == 1, scene.describe()

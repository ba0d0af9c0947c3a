"""A family of agents on Temporal is killed with SIGKILL at its last step: nothing that was finished is done again.

Each agent is a Temporal workflow of its own, on a task queue of its own. The models are asked over HTTP with the
providers' SDKs, and whoever counts the calls is outside of every process that is killed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_processes import RUN, AgentTurn, ForkServer, call, turn
from temporal_processes import TemporalAgentWorld, check_repeats

import temporal_server

PROMISED = 15.0
"""Seconds from the death of the worker to the result."""

AGENTS = "killed-chief killed-scout killed-writer killed-checker killed-slow-payer"
FAMILY = {
    "killed-chief": [
        turn("First I look.", call("look", place="north"), call("count", things="stones")),
        turn(
            "Then I ask.",
            call("killed-scout", task="Scout."),
            call("killed-writer", task="Write."),
            call("killed-checker", task="Check."),
        ),
        turn("All: {results}."),
    ],
    "killed-scout": [turn("", call("look", place="east"), call("count", things="trees")), turn("scouted: {results}")],
    "killed-writer": [turn("", call("look", place="paper")), turn("", call("look", place="ink")), turn("{results}")],
    "killed-checker": [turn("", call("count", things="words")), turn("checked: {results}")],
}
PAYER = {"killed-slow-payer": [turn("", call("pay_at_gate", amount=5)), turn("{results}")]}
LAST = AgentTurn("killed-chief", 2)


@pytest.fixture
def world(folder: Path, agent_forks: ForkServer) -> Iterator[TemporalAgentWorld]:
    with TemporalAgentWorld(folder, agent_forks, FAMILY | PAYER, temporal_server.fresh_url()) as world:
        yield world


def test_an_orchestrator_killed_at_its_last_step_goes_on_there_and_its_caller_gets_the_result(
    world: TemporalAgentWorld,
):
    world.hold(*LAST)
    victim = world.fork("servant", WORKFLOWS=AGENTS).wait_for_output("ready")
    caller = world.fork("caller", AGENT="killed-chief", RUN_ID=RUN)
    payer = world.fork("caller", AGENT="killed-slow-payer", RUN_ID="the-payment")
    world.wait_for_line("pay_at_gate", "start")
    world.wait_until_held(*LAST)
    before, asked = world.snapshot(), world.count_turns()
    everything = Counter(AgentTurn(agent, turn) for agent, turns in FAMILY.items() for turn in range(len(turns)))
    assert asked == everything + Counter([AgentTurn("killed-slow-payer", 0)])

    victim.kill()
    died = time.monotonic()
    world.release(*LAST)
    world.fork("servant", WORKFLOWS=AGENTS)
    assert caller.result()["output"] == "All: scouted: east seen, 5, ink seen, checked: 5."
    took = time.monotonic() - died
    assert took < PROMISED, f"it took {took:.1f} s"
    # What may happen once has happened once, or not at all: the model is told that nobody knows.
    assert "may or may not have happened" in payer.result()["output"]

    asked_again = world.count_turns() - asked
    assert asked_again == Counter([LAST, AgentTurn("killed-slow-payer", 1)]), (
        "only what was in flight is asked for again"
    )
    end = world.snapshot()
    later = end.lines[len(before.lines) :]
    assert {line.step for line in later} == {"model call"}, "no tool is called again"
    assert len(world.lines("pay_at_gate", "start")) == 1
    check_repeats(before, end)
    assert {journal.workflow for journal in end.journals.values()} == {*FAMILY, *PAYER}
    assert {journal.state for journal in end.journals.values()} == {"completed"}

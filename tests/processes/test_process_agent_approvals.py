"""Agents whose tools need an approval are killed before, while and after people are asked.

Whoever answers need not know: the question is in the store, and so is the answer. People are asked once about a call,
and what they approve of happens once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent_processes import RUN, AgentProcess, AgentTurn, AgentWorld, ForkServer, call, turn
from ledger import read_journals

import forked_python
from holdfast import ApprovalInfo
from waits import wait_until_sync

AGENT = "killed-cashier"


def questions(world: AgentWorld, *, all: bool = False) -> list[ApprovalInfo]:
    """What is asked in a scene."""
    return world.client.approvals_sync(all=all) if read_journals(world.database) else []


# Answered while nobody is there


def holdfast(world: AgentWorld, *arguments: str) -> subprocess.Popen[str]:
    """What a person does."""
    command = [sys.executable, "-m", "holdfast.cli", *arguments, "--by", "ana"]
    environment = {**os.environ, "HOLDFAST_URL": world.url}
    return forked_python.start(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_answers_from_the_command_line_reach_a_run_whose_process_is_dead(folder: Path, agent_forks: ForkServer):
    calls = [call("transfer", amount=amount) for amount in (1, 2, 3)]
    with AgentWorld(folder, agent_forks, {AGENT: [turn("", *calls), turn("{results}")]}) as world:
        process = world.fork("program", AGENT="cashier")
        asked = wait_until_sync(
            lambda: len(found := questions(world)) == 3 and found, "people are asked", describe=world.describe
        )
        process.kill()
        assert [(one.arguments, one.reason) for one in asked] == [
            ({"amount": 1}, "more than 0"),
            ({"amount": 2}, "more than 1"),
            ({"amount": 3}, "more than 2"),
        ]
        commands = [
            holdfast(world, "approve", asked[2].id),
            holdfast(world, "approve", asked[1].id, "--arguments", '{"amount": 20}'),
            holdfast(world, "deny", asked[0].id, "--reason", "Not enough."),
        ]
        for command in commands:
            said, _ = command.communicate(timeout=60)
            assert command.returncode == 0, said

        result = world.fork("peer").result()
        denied, changed, approved = world.journal(RUN).output["output"].split(", ", 2)
        assert result["output"].startswith(denied)
        assert "ana denied the call. The reason: Not enough." in denied
        assert "transferred 20" in changed + approved
        assert "transferred 3" in approved
        assert Counter(line.label for line in world.lines("transfer", "start")) == {
            "20 transferred": 1,
            "3 transferred": 1,
        }
        assert [one.id for one in questions(world, all=True)] == [one.id for one in asked]
        assert world.count_turns() == {AgentTurn(AGENT, 0): 1, AgentTurn(AGENT, 1): 1}


# Killed at every point

POINTS = [
    *(f"{when}-commit:{number}" for number in range(2, 9) for when in ("before", "after")),
    *(f"{place}:{number}" for place in ("before-change", "after-half_way") for number in (1, 2)),
]


def answer_until_ended(world: AgentWorld, process: AgentProcess) -> int:
    """Approve of all that is asked while a process lives; returns its exit code."""

    def ended() -> bool:
        for one in questions(world):
            world.client.approve_sync(one.id, by="ana")
        return process.exit_code is not None

    wait_until_sync(ended, f"{process.name} ends", describe=world.describe)
    return process.ended()


def play(folder: Path, forks: ForkServer, point: str) -> bool:
    """Kill the agent there, and let another process go on; false when it never came to this point."""
    script = {AGENT: [turn("", call("transfer", amount=5), call("wire", amount=7)), turn("{results}")]}
    with AgentWorld(folder / point.replace(":", "-"), forks, script) as world:
        was_killed = answer_until_ended(world, world.fork("program", AGENT="cashier", HOLDFAST_TEST_KILL=point)) != 0
        if was_killed:
            process = world.fork("peer" if read_journals(world.database) else "program", AGENT="cashier")
            assert answer_until_ended(world, process) == 0, world.describe()
        try:
            check(world)
        except AssertionError as error:
            raise AssertionError(f"killed at {point}: {error}\n{world.describe()}") from error
        return was_killed


def check(world: AgentWorld) -> None:
    told = world.wait_for_end(RUN).output["output"]
    assert [one.arguments for one in questions(world, all=True)] == [{"amount": 5}, {"amount": 7}], "asked once each"
    assert "transferred 5" in told
    transfers = world.lines("transfer", "finish")
    assert 1 <= len(transfers) <= 2
    assert len({line.key for line in transfers}) == 1
    wired = len(world.lines("wire", "start"))
    assert wired == 1 if "wired 7" in told else wired <= 1
    assert ("wired 7" in told) != ("may or may not have happened" in told)


def test_killed_anywhere_people_are_asked_once_and_what_they_approve_of_is_done(folder: Path, agent_forks: ForkServer):
    with ThreadPoolExecutor(4) as pool:
        killed = dict(zip(POINTS, pool.map(lambda point: play(folder, agent_forks, point), POINTS), strict=True))
    assert [point for point in POINTS if not killed[point]] == [], "each of these is on the way"

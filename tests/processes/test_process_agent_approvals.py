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

from agent_processes import RUN, Asked, ForkServer, Life, Scene, call, turn
from ledger import read_journals

import forked_python
from holdfast import ApprovalInfo
from waits import wait_until_sync

AGENT = "killed-cashier"


def questions(scene: Scene, *, all: bool = False) -> list[ApprovalInfo]:
    """What is asked in a scene."""
    return scene.client.approvals_sync(all=all) if read_journals(scene.database) else []


# Answered while nobody is there


def holdfast(scene: Scene, *arguments: str) -> subprocess.Popen[str]:
    """What a person does."""
    command = [sys.executable, "-m", "holdfast.cli", *arguments, "--by", "ana"]
    environment = {**os.environ, "HOLDFAST_URL": scene.url}
    return forked_python.start(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_answers_from_the_command_line_reach_a_run_whose_process_is_dead(folder: Path, agent_forks: ForkServer):
    calls = [call("transfer", amount=amount) for amount in (1, 2, 3)]
    with Scene(folder, agent_forks, {AGENT: [turn("", *calls), turn("{results}")]}) as scene:
        life = scene.live("program", AGENT="cashier")
        asked = wait_until_sync(
            lambda: len(found := questions(scene)) == 3 and found, "people are asked", describe=scene.describe
        )
        life.kill()
        assert [(one.arguments, one.reason) for one in asked] == [
            ({"amount": 1}, "more than 0"),
            ({"amount": 2}, "more than 1"),
            ({"amount": 3}, "more than 2"),
        ]
        commands = [
            holdfast(scene, "approve", asked[2].id),
            holdfast(scene, "approve", asked[1].id, "--arguments", '{"amount": 20}'),
            holdfast(scene, "deny", asked[0].id, "--reason", "Not enough."),
        ]
        for command in commands:
            said, _ = command.communicate(timeout=60)
            assert command.returncode == 0, said

        result = scene.live("peer").result()
        denied, changed, approved = scene.journal(RUN).output["output"].split(", ", 2)
        assert result["output"].startswith(denied)
        assert "ana denied the call. The reason: Not enough." in denied
        assert "transferred 20" in changed + approved
        assert "transferred 3" in approved
        assert Counter(line.label for line in scene.lines("transfer", "start")) == {
            "20 transferred": 1,
            "3 transferred": 1,
        }
        assert [one.id for one in questions(scene, all=True)] == [one.id for one in asked]
        assert scene.asked() == {Asked(AGENT, 0): 1, Asked(AGENT, 1): 1}


# Killed at every point

POINTS = [
    *(f"{when}-commit:{number}" for number in range(2, 9) for when in ("before", "after")),
    *(f"{place}:{number}" for place in ("before-change", "after-half_way") for number in (1, 2)),
]


def answer_until_it_ends(scene: Scene, life: Life) -> int:
    """Approve of all that is asked while a process lives; returns its exit code."""

    def ended() -> bool:
        for one in questions(scene):
            scene.client.approve_sync(one.id, by="ana")
        return life.exit_code is not None

    wait_until_sync(ended, f"{life.name} ends", describe=scene.describe)
    return life.ended()


def play(folder: Path, forks: ForkServer, point: str) -> bool:
    """Kill the agent there, and let another process go on; false when it never came to this point."""
    script = {AGENT: [turn("", call("transfer", amount=5), call("wire", amount=7)), turn("{results}")]}
    with Scene(folder / point.replace(":", "-"), forks, script) as scene:
        was_killed = answer_until_it_ends(scene, scene.live("program", AGENT="cashier", HOLDFAST_TEST_KILL=point)) != 0
        if was_killed:
            life = scene.live("peer" if read_journals(scene.database) else "program", AGENT="cashier")
            assert answer_until_it_ends(scene, life) == 0, scene.describe()
        try:
            check(scene)
        except AssertionError as error:
            raise AssertionError(f"killed at {point}: {error}\n{scene.describe()}") from error
        return was_killed


def check(scene: Scene) -> None:
    told = scene.wait_for_end(RUN).output["output"]
    assert [one.arguments for one in questions(scene, all=True)] == [{"amount": 5}, {"amount": 7}], "asked once each"
    assert "transferred 5" in told
    transfers = scene.lines("transfer", "finish")
    assert 1 <= len(transfers) <= 2
    assert len({line.key for line in transfers}) == 1
    wired = len(scene.lines("wire", "start"))
    assert wired == 1 if "wired 7" in told else wired <= 1
    assert ("wired 7" in told) != ("may or may not have happened" in told)


def test_killed_anywhere_people_are_asked_once_and_what_they_approve_of_is_done(folder: Path, agent_forks: ForkServer):
    with ThreadPoolExecutor(4) as pool:
        killed = dict(zip(POINTS, pool.map(lambda point: play(folder, agent_forks, point), POINTS), strict=True))
    assert [point for point in POINTS if not killed[point]] == [], "each of these is on the way"

"""Agents of Pydantic AI are killed with SIGKILL wherever they are, and go on in another process.

The real library and the real SDK ask a provider on this machine, which counts. What was recorded is neither asked for
nor done again; what was in flight is, once more, and no more.
"""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from agent_processes import RUN, AgentTurn, AgentWorld, CrashLog, ForkServer, call, turn
from ledger import read_journals

from waits import wait_until_sync

AT_ONCE = 3
HALF_WAY = 3
"""Events of a stream."""

OWN = {
    "library-own": [
        turn("First I look.", call("look", place="north"), call("count", things="stones"), used=(101, 11)),
        turn("", call("look", place="west"), used=(103, 13)),
        turn("", call("look", place="east"), call("look", place="south"), used=(107, 17)),
        turn("All: {results}.", used=(109, 19)),
    ]
}
JOURNEY = {
    "library-scout": [
        turn("", call("look", place="hill"), call("count", things="trees"), used=(211, 23)),
        turn("scouted: {results}", used=(223, 29)),
    ],
    "library-writer": [
        turn("", call("look", place="paper"), used=(307, 37)),
        turn("written: {results}", used=(313, 43)),
    ],
}
SCOUT = "library-scout"
SCOUTING = {
    SCOUT: [
        turn("", call("look", place="hill"), call("count", things="trees"), used=(211, 23)),
        turn("scouted hill and wood, and found: {results}", used=(223, 29)),
    ]
}
SCOUTED = "scouted hill and wood, and found: hill seen, 5"
SITUATIONS = {
    "library": (OWN, "All: east seen, south seen."),
    "library_flow": (JOURNEY, "written: paper seen"),
}
POINTS = [
    *(f"before-commit:{number}" for number in range(1, 16)),
    *(f"after-commit:{number}" for number in range(1, 16, 2)),
    *(f"{moment}-library_request:{number}" for moment in ("before", "after") for number in range(1, 5)),
    *(f"after-half_way:{number}" for number in range(1, 5)),
    "after-half_way_plain:1",
]


def play(folder: Path, forks: ForkServer, main: str, point: str) -> bool:
    """Kill an agent at one point, and let another process go on; whether the point was reached."""
    script, output = SITUATIONS[main]
    with AgentWorld(folder / f"{main}-{point.replace(':', '-')}", forks, script) as world:
        crash_log = CrashLog(world, max_in_flight=2)
        try:
            if point.startswith("held"):
                _, agent, number = point.split(":")
                world.hold(agent, int(number))
                process = world.fork(main, RUN_ID=RUN)
                world.wait_until_held(agent, int(number))
                process.kill()
                world.release(agent, int(number))
                assert crash_log.record_crash(process)[AgentTurn(agent, int(number))] == 1
            else:
                process = world.fork(main, RUN_ID=RUN, HOLDFAST_TEST_KILL=point)
                if process.ended() == 0:
                    return False
                crash_log.record_crash(process)
            # Another worker finds the run; if its start was not recorded, only the program itself can begin it again.
            last = world.fork("peer" if read_journals(world.database) else main, RUN_ID=RUN)
            assert last.result() == {"output": output, "usage": world.usage()}
            crash_log.check_end()
            asked = world.count_turns()
            again = world.fork(main, RUN_ID=RUN).result()
            assert again["output"] == output
            assert world.count_turns() == asked, "the recorded result is read"
        except AssertionError as error:
            raise AssertionError(f"{main} killed at {point}: {error}\n{world.describe()}") from error
    return True


@pytest.mark.timeout(300)
@pytest.mark.parametrize("main", SITUATIONS)
def test_an_agent_of_the_library_killed_at_any_point_goes_on_and_repeats_nothing_that_was_recorded(
    folder: Path, agent_forks: ForkServer, main: str
) -> None:
    script, _ = SITUATIONS[main]
    held = [f"held:{agent}:{number}" for agent, turns in script.items() for number in range(len(turns))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        points = [*held, *POINTS]
        reached = Counter(
            point.partition(":")[0]
            for point, was_reached in zip(
                points, pool.map(lambda point: play(folder, agent_forks, main, point), points), strict=True
            )
            if was_reached
        )
    assert reached["held"] == len(held)
    assert reached["before-library_request"] == reached["after-library_request"] == 4
    assert reached["before-commit"] >= 7
    assert reached["after-half_way_plain"] == 1


@pytest.mark.parametrize("point", ["before-commit:4", "after-library_request:2", "after-half_way:1"])
def test_a_script_without_ids_that_is_killed_and_started_again_pays_once(
    folder: Path, agent_forks: ForkServer, point: str
) -> None:
    with AgentWorld(folder, agent_forks, OWN) as world:
        crash_log = CrashLog(world, max_in_flight=2)
        crash_log.record_crash(world.fork("library", HOLDFAST_TEST_KILL=point).wait_for_kill())
        assert world.fork("library").result()["output"] == SITUATIONS["library"][1]
        crash_log.check_end()
        assert len(read_journals(world.database)) == 1


def test_a_script_that_is_started_again_brings_its_deps_to_the_run_that_it_goes_on_with(
    folder: Path, agent_forks: ForkServer
) -> None:
    script = {"library-asker": [turn("", call("ask_who")), turn("{results}")]}
    with AgentWorld(folder, agent_forks, script) as world:
        crash_log = CrashLog(world, max_in_flight=1)
        first = world.fork("library", AGENT="asker", DEPS="first", HOLDFAST_TEST_KILL="after-library_request:1")
        crash_log.record_crash(first.wait_for_kill())
        assert world.fork("library", AGENT="asker", DEPS="second").result()["output"] == "second"
        crash_log.check_end()
        assert len(read_journals(world.database)) == 1


def test_a_script_that_is_started_again_brings_what_cannot_be_recorded(folder: Path, agent_forks: ForkServer) -> None:
    with AgentWorld(folder, agent_forks, SCOUTING) as world:
        crash_log = CrashLog(world, max_in_flight=2)
        first = world.fork("library", AGENT="scout", BOUND="yes", HOLDFAST_TEST_KILL="after-library_request:2")
        crash_log.record_crash(first.wait_for_kill())
        assert world.fork("library", AGENT="scout", BOUND="yes").result()["output"] == SCOUTED
        crash_log.check_end()
        assert len(read_journals(world.database)) == 1


@pytest.mark.parametrize("point", ["after-half_way:1", "after-change:1"])
def test_a_once_tool_of_the_library_killed_in_flight_happens_once(
    folder: Path, agent_forks: ForkServer, point: str
) -> None:
    script = {"library-payer": [turn("", call("pay", amount=5)), turn("{results}")]}
    with AgentWorld(folder, agent_forks, script) as world:
        crash_log = CrashLog(world, max_in_flight=1)
        crash_log.record_crash(
            world.fork("library", AGENT="payer", RUN_ID=RUN, HOLDFAST_TEST_KILL=point).wait_for_kill()
        )
        assert "may or may not have happened" in world.fork("peer").result()["output"]
        assert len(world.lines("pay", "start")) == 1


def test_a_stream_killed_in_the_middle_of_an_answer_is_finished_by_another_process(
    folder: Path, agent_forks: ForkServer
) -> None:
    with AgentWorld(folder, agent_forks, SCOUTING) as world:
        crash_log = CrashLog(world, max_in_flight=2)
        world.hold(SCOUT, 1, after=HALF_WAY)
        process = world.fork("library_stream", AGENT="scout")
        wait_until_sync(
            lambda: process.stdout_lines, "the first words arrive while the model is silent", describe=world.describe
        )
        world.wait_until_held(SCOUT, 1)
        heard = "".join(json.loads(line)["heard"] for line in process.stdout_lines)
        assert SCOUTED.startswith(heard)
        assert heard != SCOUTED
        process.kill()
        world.release(SCOUT, 1)
        assert crash_log.record_crash(process) == {AgentTurn(SCOUT, 1): 1}
        assert world.fork("peer").result() == {"output": SCOUTED, "usage": world.usage()}
        crash_log.check_end()
        asked = world.count_turns()
        assert world.fork("library_stream", AGENT="scout").result() == {"output": SCOUTED}
        assert world.count_turns() == asked, "the recorded result is streamed"


@pytest.mark.parametrize("node", ["UserPromptNode", "ModelRequestNode", "CallToolsNode"])
def test_an_iteration_killed_at_a_node_is_finished_by_another_process(
    folder: Path, agent_forks: ForkServer, node: str
) -> None:
    with AgentWorld(folder, agent_forks, SCOUTING) as world:
        crash_log = CrashLog(world, max_in_flight=2)
        process = world.fork("library_iter", AGENT="scout", STAY_AT=node)
        wait_until_sync(
            lambda: json.dumps({"node": node}) in process.stdout_lines,
            "the node is handed out",
            describe=world.describe,
        )
        assert world.lines("look", "start") == [], "no tool is called before the caller asks for it"
        process.kill()
        crash_log.record_crash(process)
        assert world.fork("peer").result()["output"] == SCOUTED
        crash_log.check_end()
        assert len(world.lines("look", "start")) == 1
        again = world.fork("library_iter", AGENT="scout")
        assert again.result() == {"output": SCOUTED}
        kinds = [one.get("node") for one in again.read_answers()]
        assert kinds[:-1] == ["UserPromptNode", *["ModelRequestNode", "CallToolsNode"] * 2, "End"]

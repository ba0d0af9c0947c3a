"""Agents are killed with SIGKILL wherever they are, and go on in another process.

Nothing that was recorded is asked for or done again; what was in flight is asked for or done once more, and no more.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from agent_processes import RUN, AgentTurn, AgentWorld, CrashLog, ForkServer, call, turn
from ledger import STEP, read_journals

from waits import wait_until_sync

AT_ONCE = 4
"""How many scenes are played at the same time, each in a folder of its own."""

FAMILY = {
    "killed-chief": [
        turn("First I look.", call("look", place="north"), call("count", things="stones"), used=(101, 11)),
        turn(
            "Then I ask.",
            call("killed-scout", task="Scout."),
            call("killed-writer", task="Write."),
            call("look", place="west"),
            used=(103, 13),
        ),
        turn("Let me check: {results}.", call("killed-checker", task="Check."), used=(107, 17)),
        turn("All: {results}.", used=(109, 19)),
    ],
    "killed-scout": [
        turn("", call("look", place="east"), call("count", things="trees"), used=(211, 23)),
        turn("", call("look", place="south"), used=(223, 29)),
        turn("scouted: {results}", used=(227, 31)),
    ],
    "killed-writer": [
        turn("", call("look", place="paper"), call("look", place="pen"), used=(307, 37)),
        turn("", call("look", place="ink"), used=(311, 41)),
        turn("written: {results}", used=(313, 43)),
    ],
    "killed-checker": [
        turn("", call("count", things="words"), used=(401, 47)),
        turn("checked: {results}", used=(409, 53)),
    ],
}
"""Twelve turns, ten tool calls and three sub-agents, two of them side by side; the writer's model is Anthropic's."""
CHECK = ("killed-chief", 2)
"""The turn that is told what came of the sub-agents side by side."""
IN_FLIGHT = 5
"""At most: two tools or the model call of the scout, as many of the writer, and the chief's tool."""


# Killed at every point


class Play:
    """The family is killed, once or more often, and another process takes over each time."""

    def __init__(self, world: AgentWorld) -> None:
        self.world = world
        self.crash_log = CrashLog(world, max_in_flight=IN_FLIGHT)

    def next_process(self) -> str:
        """Another worker finds the run; if its start was not recorded, only the program itself can begin it again."""
        return "peer" if read_journals(self.world.database) else "program"

    def kill_at(self, point: str) -> bool:
        """Whether a process came to this point, and was killed there."""
        if point.startswith("held"):
            _, agent, number = point.split(":")
            return self._kill_while_held(agent, int(number))
        process = self.world.fork(self.next_process(), HOLDFAST_TEST_KILL=point)
        if process.ended() == 0:
            return False
        self.crash_log.record_crash(process)
        return True

    def _kill_while_held(self, agent: str, number: int) -> bool:
        """Kill a process while the provider is silent."""
        self.world.hold(agent, number)
        process = self.world.fork(self.next_process())
        self.world.wait_until_held(agent, number)
        process.kill()
        assert self.crash_log.record_crash(process)[AgentTurn(agent, number)] == 1
        self.world.release(agent, number)
        return True

    def run_to_end(self) -> None:
        """The last process brings the right answer, and all that there is agrees."""
        result = self.world.fork(self.next_process()).result()
        assert result == {"output": "All: checked: 5.", "usage": self.world.usage()}
        end = self.crash_log.check_end()
        said = [one.answered for one in self.world.provider.address.calls if (one.agent, one.turn) == CHECK]
        assert said[-1] is not None
        assert said[-1]["text"] == "Let me check: scouted: south seen, written: ink seen, west seen."
        assert sorted(journal.workflow for journal in end.journals.values()) == sorted(FAMILY)


def play(folder: Path, forks: ForkServer, *points: str) -> list[str]:
    """Kill the family at these points, one after the other; returns those that were reached."""
    with AgentWorld(folder / "-".join(points).replace(":", "-"), forks, FAMILY) as world:
        played = Play(world)
        try:
            reached = [point for point in points if played.kill_at(point)]
            played.run_to_end()
        except AssertionError as error:
            raise AssertionError(f"killed at {points}: {error}\n{world.describe()}") from error
    return reached


def play_all(folder: Path, forks: ForkServer, worlds: list[tuple[str, ...]]) -> Counter[str]:
    """Play scenes side by side; returns how often each place was reached."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        played = pool.map(lambda points: play(folder, forks, *points), worlds)
        return Counter(point.partition(":")[0] for reached in played for point in reached)


def numbered(place: str, numbers: range) -> list[tuple[str, ...]]:
    return [(f"{place}:{number}",) for number in numbers]


TURNS = [f"held:{agent}:{number}" for agent, turns in FAMILY.items() for number in range(len(turns))]
COMMITS = 36
"""More than the family makes."""


@pytest.mark.timeout(300)
def test_an_agent_killed_at_any_point_goes_on_and_repeats_nothing_that_was_recorded(
    folder: Path, agent_forks: ForkServer
):
    worlds = [
        *((point,) for point in TURNS),
        *numbered("before-commit", range(1, COMMITS)),
        *numbered("after-commit", range(1, COMMITS, 2)),
        *numbered("before-request", range(1, 13, 3)),
        *numbered("after-request", range(2, 13, 3)),
        *numbered("after-half_way", range(1, 8)),
        *numbered("after-half_way_plain", range(1, 4)),
    ]
    reached = play_all(folder, agent_forks, worlds)
    assert [reached[place] for place in ("held", "before-request", "after-request")] == [12, 4, 4]
    assert [reached[place] for place in ("after-half_way", "after-half_way_plain")] == [7, 3]
    # Outcomes of one moment may share a commit.
    assert 20 <= reached["before-commit"] < COMMITS - 1, "the end of the run must have been reached"
    assert reached["after-commit"] >= 10


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_agent_whose_processes_are_killed_again_and_again_goes_on_each_time(folder: Path, agent_forks: ForkServer):
    draw = random.Random(5)
    places = [f"{moment}-{place}" for moment in ("before", "after") for place in ("commit", "request", "change")]
    later = [f"{place}:{number}" for place in places for number in (1, 2, 3)]
    # Twice, and not more often: the third death without a new record would be taken for the run's own fault.
    worlds = [(point, draw.choice(later)) for point in TURNS]
    reached = play_all(folder, agent_forks, worlds)
    assert reached["held"] == len(TURNS)
    assert reached.total() >= 1.5 * len(TURNS), "some come to their end before they are struck a second time"


# A tool that may not be repeated


@pytest.mark.parametrize(
    "point", ["before-change:1", "after-half_way:1", "after-change:1", "before-commit:3", "after-commit:3"]
)
def test_a_once_tool_killed_in_flight_happens_once_and_the_model_learns_of_it(
    folder: Path, agent_forks: ForkServer, point: str
):
    script = {"killed-payer": [turn("", call("pay", amount=5)), turn("{results}")]}
    with AgentWorld(folder, agent_forks, script) as world:
        crash_log = CrashLog(world, max_in_flight=1)
        process = world.fork("program", AGENT="payer", HOLDFAST_TEST_KILL=point).wait_for_kill()
        crash_log.record_crash(process)
        [before] = [moment.journals[RUN] for moment in crash_log.moments]
        result = world.fork("peer").result()
        crash_log.check_end()

        begun = world.lines("pay", "start")
        in_doubt = any(noted.intent for noted in before.attempts.values())
        assert in_doubt == (point != "before-commit:3"), "what is struck there is the commit of the intent"
        if in_doubt:
            assert "may or may not have happened" in result["output"]
            assert len(begun) == (point not in ("before-change:1", "after-commit:3"))
        else:
            assert (result["output"], len(begun)) == ("paid 5", 1)
        assert world.count_turns() == {AgentTurn("killed-payer", 0): 1, AgentTurn("killed-payer", 1): 1}


# Sessions


@pytest.mark.parametrize(
    "point",
    ["after-go_on:1", "held:killed-talker:2", "held:killed-talker:3", "after-half_way:2", "before-request:3"],
)
def test_the_second_run_of_a_session_killed_anywhere_goes_on_with_the_whole_conversation(
    folder: Path, agent_forks: ForkServer, point: str
):
    script = {
        "killed-talker": [
            turn("", call("look", place="door")),
            turn("Hello Ada: {results}"),
            turn("", call("look", place="book")),
            turn("You are Ada: {results}"),
        ]
    }
    with AgentWorld(folder, agent_forks, script) as world:
        crash_log = CrashLog(world, max_in_flight=1)
        if point.startswith("held"):
            number = int(point[-1])
            world.hold("killed-talker", number)
            process = world.fork("session", AGENT="talker")
            world.wait_until_held("killed-talker", number)
            process.kill()
            world.release("killed-talker", number)
        else:
            process = world.fork("session", AGENT="talker", HOLDFAST_TEST_KILL=point).wait_for_kill()
        crash_log.record_crash(process)
        assert world.journal("first").state == "completed"

        result = world.fork("session", AGENT="talker").result()
        assert result == {"outputs": ["Hello Ada: door seen", "You are Ada: book seen"], "messages": 8}
        # The provider counts the answers in what it is sent: the turns of the second run are the third and the fourth.
        crash_log.check_end()


# Deps


@pytest.mark.parametrize(("first", "second"), [("program", "worker"), ("worker", "worker"), ("program", "program")])
def test_a_run_that_another_process_takes_over_is_handed_the_deps_of_that_process(
    folder: Path, agent_forks: ForkServer, first: str, second: str
):
    script = {
        "killed-asking-chief": [
            turn("", call("ask_who")),
            turn("", call("killed-asker", task="Ask.")),
            turn("", call("ask_who")),
            turn("{results}"),
        ],
        "killed-asker": [turn("", call("ask_who")), turn("", call("ask_who")), turn("asked")],
    }
    with AgentWorld(folder, agent_forks, script) as world:
        crash_log = CrashLog(world, max_in_flight=1)
        world.hold("killed-asker", 1)
        if first == "program":
            process = world.fork("program", AGENT="asking_chief", DEPS="one")
        else:
            process = world.serve("asking_chief", DEPS="one")
            world.client.options(id=RUN).start_sync("killed-asking-chief", "Go.")
        world.wait_until_held("killed-asker", 1)
        process.kill()
        crash_log.record_crash(process)
        world.release("killed-asker", 1)

        if second == "program":
            world.fork("program", AGENT="asking_chief", DEPS="two")
        else:
            world.serve("asking_chief", DEPS="two")
        assert world.wait_for_end(RUN).output["output"] == "two"
        assert [line.label for line in world.lines("ask_who", "finish")] == ["one", "one", "two", "two"]
        crash_log.check_end()


# SIGTERM


def test_a_stopping_worker_lets_the_model_call_in_flight_end_and_records_it(folder: Path, agent_forks: ForkServer):
    with AgentWorld(folder, agent_forks, FAMILY) as world:
        world.hold("killed-scout", 1)
        leaver = world.serve("chief")
        world.client.options(id=RUN).start_sync("killed-chief", "Go.")
        world.wait_until_held("killed-scout", 1)
        leaver.send(signal.SIGTERM)
        wait_until_sync(lambda: "stopping: " in leaver.stderr_messages, "it drains", describe=lambda: leaver)
        world.release("killed-scout", 1)
        leaver.ends()
        moment = world.snapshot()
        scout = next(journal for journal in moment.journals.values() if journal.workflow == "killed-scout")
        assert [record.name for record in scout.list_records(STEP)].count("model call") == 2, "the answer was recorded"
        assert world.count_turns()[AgentTurn("killed-scout", 2)] == 0, "and nothing was begun after it"
        assert not moment.in_flight()

        world.serve("chief")
        assert world.wait_for_end(RUN).output["output"] == "All: checked: 5."
        CrashLog(world, max_in_flight=IN_FLIGHT).check_end()
        assert {journal.deliveries for journal in world.snapshot().journals.values()} == {0}

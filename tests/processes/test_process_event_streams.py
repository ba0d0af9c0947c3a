"""Readers of events and workers are killed with SIGKILL: nothing is missed, nothing is told twice, nothing is untrue.

A reader writes each event down, and another process goes on behind the last one that is written down. The provider
stops in the middle of its answers until the test lets it go on, so that there is always a half answer to be read.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from agent_processes import RUN, AgentProcess, AgentTurn, AgentWorld, CrashLog, ForkServer, call, turn

from holdfast import Client
from waits import wait_until_sync

TALKER = "killed-talker"
FIRST = "First I look at the north, because the wind comes from there, and then at all the others."
LAST = "Having looked at all of them: {results}. There is nothing more to be seen, and so I am done with it."
TALK = {
    TALKER: [
        turn(FIRST, call("look", place="north"), call("look", place="east"), used=(101, 11)),
        turn("Then the south.", call("look", place="south"), used=(103, 13)),
        turn(LAST, used=(107, 17)),
    ]
}
SAID = [FIRST, "Then the south.", LAST.replace("{results}", "south seen")]
HALF_WAY = 8
"""Events of a stream, of which the first says nothing."""


class Reading:
    """What readers, one after the other, have written down."""

    def __init__(self, world: AgentWorld, name: str = "notes") -> None:
        self.world = world
        self._notes = world.folder / name

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self._notes.read_text().splitlines(keepends=True) if self._notes.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def begin(self) -> AgentProcess:
        return self.world.fork("reader", NOTES=self._notes)

    def wait_for(self, kind: str, step: int | None, times: int = 1) -> None:
        """Until so many such events are written down."""

        def there() -> bool:
            return sum((one["kind"], one["step"]) == (kind, step) for one in self.events) >= times

        wait_until_sync(
            there, f"{kind} of step {step} is read", describe=lambda: f"{self.events}\n{self.world.describe()}"
        )

    def texts(self) -> dict[int, str]:
        """What was said in each answered step; checks what every reader may rely on."""
        so_far: dict[int, str] = {}
        answered: dict[int, str] = {}
        for event in self.events:
            step = event["step"]
            match event["kind"]:
                case "text":
                    assert step not in answered
                    so_far[step] = so_far.get(step, "") + event["text"]
                case "retracted":
                    assert len(so_far.pop(step)) == event["data"]["char_count"] > 0
                case "answered":
                    assert step not in answered
                    assert so_far.pop(step, "") == event["text"]
                    answered[step] = event["text"]
        assert not so_far
        return answered

    def check(self) -> None:
        """The readers together have all events, each once."""
        events = self.events
        assert len({event["offset"] for event in events}) == len(events)
        assert list(self.texts().values()) == SAID
        kinds = Counter(event["kind"] for event in events)
        assert (kinds["answered"], kinds["step"], kinds["ended"]) == (3, 3, 1)
        assert events[-1]["kind"] == "ended"
        late = Reading(self.world, "late")
        late.begin().ends()
        assert list(late.texts().values()) == SAID
        assert durable(late.events) == durable(events)
        assert Counter(event["kind"] for event in late.events)["text"] == 3, "one for each answer"


def durable(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What is told of records, whenever one reads it."""
    return [
        (event["kind"], event["step"], event["at"], event["text"], json.dumps(event["data"]))
        for event in events
        if event["kind"] not in ("started", "text", "retracted")
    ]


def test_a_killed_reader_continues_where_it_was_and_a_late_one_gets_all_events(folder: Path, agent_forks: ForkServer):
    with AgentWorld(folder / "reader", agent_forks, TALK) as world:
        world.hold(TALKER, 0, after=HALF_WAY)
        world.hold(TALKER, 2, after=HALF_WAY)
        reading = Reading(world)
        reader = reading.begin()
        program = world.fork("program", AGENT="talker")
        reading.wait_for("text", 1)
        reader.kill()  # in the middle of an answer that still comes
        world.release(TALKER, 0)
        world.wait_until_held(TALKER, 2)
        reader = reading.begin()  # that answer is recorded by now
        reading.wait_for("text", 6)
        reader.kill()
        reader = reading.begin()
        reader.kill()  # perhaps before it has read anything
        reader = reading.begin()
        world.release(TALKER, 2)
        reader.ends()
        assert program.result()["output"] == SAID[-1]
        assert "retracted" not in {event["kind"] for event in reading.events}
        reading.check()


def test_live_text_of_a_killed_worker_is_retracted_and_only_what_was_in_flight_is_paid_again(
    folder: Path, agent_forks: ForkServer
):
    with AgentWorld(folder / "worker", agent_forks, TALK) as world:
        world.hold(TALKER, 2, after=HALF_WAY)
        crash_log = CrashLog(world, max_in_flight=2)
        reading = Reading(world)
        reader = reading.begin()
        program = world.fork("program", AGENT="talker")
        reading.wait_for("text", 6)
        program.kill()
        assert crash_log.record_crash(program) == {AgentTurn(TALKER, 2): 1}
        world.release(TALKER, 2)
        peer = world.fork("peer", AGENT="talker")
        assert peer.result()["output"] == SAID[-1]
        reader.ends()
        told = [event for event in reading.events if event["step"] == 6]
        kinds = [event["kind"] for event in told if event["kind"] != "started"]
        at = kinds.index("retracted")
        assert set(kinds[:at]) == {"text"}
        assert set(kinds[at + 1 :]) == {"text", "answered"}
        partial = "".join(event["text"] for event in told if event["kind"] == "text")
        assert partial.endswith(SAID[-1])
        assert SAID[-1].startswith(partial.removesuffix(SAID[-1]))
        reading.check()
        crash_log.check_end()
        assert world.count_turns() == {AgentTurn(TALKER, 0): 1, AgentTurn(TALKER, 1): 1, AgentTurn(TALKER, 2): 2}
        assert Client(world.url).usage_sync(RUN).input_tokens == 101 + 103 + 107

"""A conversation of 200 turns that is compacted twice, and killed with SIGKILL at every point of each compaction.

Another process goes on each time. No answer and no summary that was recorded is asked for again, and what the model is
sent is the same as if nobody had died.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from agent_processes import COMPACTION, MODEL_CALL, RUN, AgentTurn, AgentWorld, CrashLog, ForkServer, call, turn
from ledger import STEP

from holdfast import Runtime
from holdfast.agents.conversation import Conversation, rebuild_conversation

AGENT, SUMMARY = "killed-long-talker", "killed-long-talker~summary"
TURNS = 200
PATIENCE = 120
"""Seconds, which one process may take for as many turns as are left."""
FULL = (75, 130)
"""The turns before which the context is full: the agent's window is 1,000 tokens, and its limit 80 % of it."""


def tokens(number: int) -> int:
    """What the provider counts for a turn: a summary and what is kept are about 250 tokens."""
    if number < FULL[0]:
        return 50 + 10 * number
    return 250 + 10 * (number - FULL[0]) if number < FULL[1] else 250


SCRIPT = {
    AGENT: [
        *(turn("", call("look", place=f"p{number}"), used=(tokens(number), 10)) for number in range(TURNS - 1)),
        turn("All seen, the last: {results}", used=(250, 10)),
    ],
    SUMMARY: [
        turn("summary:1 p0 to p50 were seen.", used=(811, 31)),
        turn("summary:2 p0 to p100 were seen.", used=(823, 37)),
    ],
}


def points(nth: int) -> list[str]:
    """All points of the nth compaction. The third death without a new record would be taken for the run's own fault."""
    return [
        "after-find_cut:1",  # found to be full, and not recorded
        f"after-SummaryTask:{nth}",  # recorded; the summary is not asked for yet
        f"held:{SUMMARY}:{nth - 1}",  # it is asked for
        f"after-apply_compaction:{nth}",  # it is recorded; the model is not asked yet
        f"held:{AGENT}:{FULL[nth - 1]}",  # it is asked
    ]


def go(world: AgentWorld, crash_log: CrashLog, point: str, main: str) -> None:
    """A process comes to this point, and is killed there."""
    if point.startswith("held"):
        _, agent, number = point.split(":")
        world.hold(agent, int(number))
        process = world.fork(main, AGENT="long_talker", PATIENCE=PATIENCE)
        world.wait_until_held(agent, int(number))
        process.kill()
        assert crash_log.record_crash(process)[AgentTurn(agent, int(number))] == 1
        world.release(agent, int(number))
        return
    process = world.fork(main, AGENT="long_talker", PATIENCE=PATIENCE, HOLDFAST_TEST_KILL=point)
    assert process.ended() != 0, f"it never came to {point}"
    crash_log.record_crash(process)


async def rebuilt(url: str) -> Conversation:
    async with Runtime(url) as runtime:
        run, history = await runtime.store_provider.read_journal(RUN)
        return rebuild_conversation(run.inputs, run.clock_started_at, history.records)


@pytest.mark.timeout(300)
def test_a_long_conversation_killed_at_every_point_of_its_compactions_goes_on(folder: Path, agent_forks: ForkServer):
    with AgentWorld(folder, agent_forks, SCRIPT) as world:
        crash_log = CrashLog(world, max_in_flight=1)
        go(world, crash_log, points(1)[0], "program")
        for point in [*points(1)[1:], *points(2)]:
            go(world, crash_log, point, "peer")
        result = world.fork("peer", PATIENCE=PATIENCE).result()
        assert result == {"output": "All seen, the last: p198 seen", "usage": world.usage()}
        end = crash_log.check_end()
        conversation = asyncio.run(rebuilt(world.url))
    assert len(crash_log.pids) == 10
    assert crash_log.lost == Counter(
        [AgentTurn(SUMMARY, 0), AgentTurn(SUMMARY, 1), *(AgentTurn(AGENT, number) for number in FULL)]
    )

    steps = [(record.name, record.ok) for record in end.journals[RUN].list_records(STEP)]
    full = [at for at, step in enumerate(steps) if step == (MODEL_CALL, False)]
    assert full == [2 * FULL[0], 2 * FULL[1] + 2]
    assert all(steps[at + 1 : at + 3] == [(COMPACTION, True), (MODEL_CALL, True)] for at in full)
    assert steps.count((MODEL_CALL, True)) == TURNS

    assert len(conversation.messages) == 2 * TURNS
    seen = [part.content for message in conversation.messages[2:-1:2] for part in message.parts]
    assert seen == [f"p{number} seen" for number in range(TURNS - 1)]
    head, *kept = conversation.context
    task, summary = (part.content for part in head.parts)
    assert task == "Go."
    assert summary.endswith("summary:2 p0 to p100 were seen.")
    later = 2 * (TURNS - FULL[1])
    assert later < len(kept) < later + 100, "some of the turns before the compaction, and all after it"
    assert kept == conversation.messages[-len(kept) :]

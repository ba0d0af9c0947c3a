"""A budget holds for a family of agents over crashes and over processes side by side."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from agent_processes import MODEL_CALL, RUN, AgentProcess, AgentTurn, AgentWorld, ForkServer, call, recorded_turns, turn
from ledger import STEP, Journal, Snapshot, check_end, read_journals

import forked_python
from holdfast import Budget
from waits import wait_until_sync

DIGGERS = 4
DIGGER, FOREMAN = "budget-digger", "budget-foreman"
SCRIPT = {
    FOREMAN: [
        turn("", *[call(DIGGER, task=f"Hole {number}.") for number in range(DIGGERS)], used=(40, 5)),
        turn("dug: {results}", used=(60, 5)),
    ],
    DIGGER: [turn("", call("look", place="hole"), used=(40, 5)), turn("{task}", used=(50, 5))],
}
CALLS = 2 + 2 * DIGGERS
ANSWER = "dug: Hole 0., Hole 1., Hole 2., Hole 3."


def refused(journal: Journal) -> bool:
    """Whether its last model call was not allowed."""
    calls = [record for record in journal.list_records(STEP) if record.name == MODEL_CALL]
    return bool(calls) and not calls[-1].ok and b"BudgetExceeded" in (calls[-1].payload or b"")


def wait_until_parked(world: AgentWorld) -> Snapshot:
    """Wait until nobody of the family goes on: whoever has not ended waits, and somebody for a higher budget."""

    def parked() -> bool:
        journals = read_journals(world.database).values()
        states = {journal.state for journal in journals}
        return states <= {"waiting", "completed"} and any(map(refused, journals))

    wait_until_sync(parked, "the family waits for a higher budget", describe=world.describe)
    return world.snapshot()


def raise_budget(world: AgentWorld, limit: str, amount: int) -> None:
    """What a person does."""
    command = [sys.executable, "-m", "holdfast.cli", "budget", RUN, f"--{limit}", str(amount)]
    environment = {**os.environ, "HOLDFAST_URL": world.url}
    done = forked_python.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done


def lost_calls(moment: Snapshot, *dead: AgentProcess) -> int:
    """How many model calls these processes have begun that they have not recorded."""
    recorded = {
        (key, moment.pids[record.worker])
        for journal in moment.journals.values()
        for key, record in journal.steps.items()
    }
    pids = {process.pid for process in dead}
    begun = {(line.key, line.pid) for line in moment.lines if line.step == MODEL_CALL and line.pid in pids}
    return len(begun - recorded)


def check_completed(world: AgentWorld, *dead: AgentProcess) -> None:
    """All is dug, every call is counted once, and only those in flight at a death were made again."""
    assert world.wait_for_end(RUN).output["output"] == ANSWER
    end = world.snapshot()
    check_end(end, killed=[process.pid for process in dead])
    assert recorded_turns(end.journals).total() == world.usage()[0] == CALLS
    assert world.usage()[1:] == [40 + 60 + DIGGERS * 90, 5 * CALLS]
    assert CALLS <= world.count_turns().total() <= CALLS + lost_calls(end, *dead)


def two_workers(world: AgentWorld, budget: Budget, **settings: object) -> tuple[AgentProcess, AgentProcess]:
    """The first takes the foreman and two of the diggers, and has no room for more."""
    first = world.serve("foreman", CONCURRENCY=3, **settings)
    world.client.options(id=RUN, budget=budget).start_sync(FOREMAN, "Dig.")
    world.wait_for_line(MODEL_CALL, "start", pid=first.pid)
    return first, world.serve("foreman")


def test_a_worker_killed_with_a_call_in_flight_has_used_nothing_of_the_budget(folder: Path, agent_forks: ForkServer):
    turns = 2 + DIGGERS
    with AgentWorld(folder, agent_forks, SCRIPT) as world:
        world.hold(DIGGER, 1)
        workers = two_workers(world, Budget(turns=turns))
        # As many diggers are at their second turn as the budget allows. The others wait for what comes of them.
        wait_until_sync(
            lambda: world.count_turns().total() == turns,
            "all turns of the budget are asked for",
            describe=world.describe,
        )
        assert all(world.lines(MODEL_CALL, pid=process.pid) for process in workers), "both are at work"
        held = world.count_turns()[AgentTurn(DIGGER, 1)]
        wait_until_sync(lambda: world.usage()[0] == turns - held, "all others are answered", describe=world.describe)
        victim = next(process for process in workers if lost_calls(world.snapshot(), process))
        lost = lost_calls(world.snapshot(), victim)
        victim.kill()
        world.serve("foreman")
        wait_until_sync(
            lambda: world.count_turns().total() == turns + lost, "others ask in its place", describe=world.describe
        )
        world.release(DIGGER, 1)

        parked = wait_until_parked(world)
        assert (world.usage()[0], world.count_turns().total()) == (turns, turns + lost)
        assert recorded_turns(parked.journals).total() == turns
        raise_budget(world, "turns", CALLS)
        check_completed(world, victim)
        assert world.count_turns().total() == CALLS + lost


@pytest.mark.parametrize("point", ["after-commit:3", "before-commit:5", "after-request:2", "before-request:2"])
def test_workers_side_by_side_keep_to_a_budget_whenever_one_is_killed(
    folder: Path, agent_forks: ForkServer, point: str
):
    turns = 3 + DIGGERS
    with AgentWorld(folder, agent_forks, SCRIPT) as world:
        first, second = two_workers(world, Budget(turns=turns), HOLDFAST_TEST_KILL=point)
        first.wait_for_kill()
        parked = wait_until_parked(world)
        assert world.usage()[0] == recorded_turns(parked.journals).total() == turns
        assert turns <= world.count_turns().total() <= turns + lost_calls(parked, first)

        second.kill()  # nothing is in flight: it loses nothing
        raise_budget(world, "turns", CALLS)
        world.serve("foreman")
        check_completed(world, first, second)
        assert lost_calls(world.snapshot(), second) == 0


def test_a_budget_in_tokens_holds_when_all_processes_are_killed(folder: Path, agent_forks: ForkServer):
    tokens = 300
    with AgentWorld(folder, agent_forks, SCRIPT) as world:
        first, second = two_workers(world, Budget(tokens=tokens), HOLDFAST_TEST_KILL="after-request:2")
        first.wait_for_kill()
        second.kill()
        last = world.serve("foreman")
        parked = wait_until_parked(world)
        _, sent, received = world.usage()
        assert sent + received <= tokens
        calls = recorded_turns(parked.journals).total()
        assert calls <= world.count_turns().total() <= calls + lost_calls(parked, first, second)
        assert calls < CALLS

        raise_budget(world, "tokens", 10_000)
        check_completed(world, first, second)
        assert lost_calls(world.snapshot(), last) == 0


def test_what_a_dead_worker_had_reserved_holds_nobody_up(folder: Path, agent_forks: ForkServer):
    with AgentWorld(folder, agent_forks, SCRIPT) as world:
        world.hold(DIGGER, 0)
        victim = world.serve("foreman", CONCURRENCY=2)
        world.client.options(id=RUN, budget=Budget(turns=2)).start_sync(FOREMAN, "Dig.")
        world.wait_until_held(DIGGER, 0)
        # The one turn that is left is that of a digger in the first process. Those in the second wait for what comes of
        # it, and there is no room for more of them.
        second = world.serve("foreman", CONCURRENCY=2)
        wait_until_sync(lambda: running(world, second) == 2, "the second process is full", describe=world.describe)
        victim.kill()
        wait_until_sync(
            lambda: world.count_turns()[AgentTurn(DIGGER, 0)] == 2,
            "somebody else has its turn",
            describe=world.describe,
        )
        world.release(DIGGER, 0)
        wait_until_parked(world)
        assert (world.usage()[0], world.count_turns().total()) == (2, 3)
        raise_budget(world, "turns", CALLS)
        check_completed(world, victim)


def running(world: AgentWorld, process: AgentProcess) -> int:
    """How many runs a process holds."""
    query = "SELECT count(*) FROM runs JOIN workers ON owner = workers.id WHERE runs.state = 'running' AND pid = ?"
    with closing(sqlite3.connect(f"file:{world.database}?mode=ro", uri=True)) as connection:
        return connection.execute(query, (process.pid,)).fetchone()[0]

"""A budget holds for a family of agents over crashes and over processes side by side."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from agent_processes import MODEL_CALL, RUN, Asked, ForkServer, Life, Scene, call, recorded_turns, turn
from ledger import STEP, Journal, Moment, check_end, read_journals

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
    calls = [record for record in journal.of_kind(STEP) if record.name == MODEL_CALL]
    return bool(calls) and not calls[-1].ok and b"BudgetExceeded" in (calls[-1].payload or b"")


def wait_until_parked(scene: Scene) -> Moment:
    """Wait until nobody of the family goes on: whoever has not ended waits, and somebody for a higher budget."""

    def parked() -> bool:
        journals = read_journals(scene.database).values()
        states = {journal.state for journal in journals}
        return states <= {"waiting", "completed"} and any(map(refused, journals))

    wait_until_sync(parked, "the family waits for a higher budget", describe=scene.describe)
    return scene.moment()


def give_more(scene: Scene, limit: str, amount: int) -> None:
    """What a person does."""
    command = [sys.executable, "-m", "holdfast.cli", "budget", RUN, f"--{limit}", str(amount)]
    environment = {**os.environ, "HOLDFAST_URL": scene.url}
    done = forked_python.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done


def lost_calls(moment: Moment, *dead: Life) -> int:
    """How many model calls these processes have begun that they have not recorded."""
    recorded = {
        (key, moment.pids[record.worker])
        for journal in moment.journals.values()
        for key, record in journal.steps.items()
    }
    pids = {life.pid for life in dead}
    begun = {(line.key, line.pid) for line in moment.lines if line.step == MODEL_CALL and line.pid in pids}
    return len(begun - recorded)


def check_completed(scene: Scene, *dead: Life) -> None:
    """All is dug, every call is counted once, and only those in flight at a death were made again."""
    assert scene.wait_for_end(RUN).output["output"] == ANSWER
    end = scene.moment()
    check_end(end, killed=[life.pid for life in dead])
    assert recorded_turns(end.journals).total() == scene.usage()[0] == CALLS
    assert scene.usage()[1:] == [40 + 60 + DIGGERS * 90, 5 * CALLS]
    assert CALLS <= scene.asked().total() <= CALLS + lost_calls(end, *dead)


def two_workers(scene: Scene, budget: Budget, **settings: object) -> tuple[Life, Life]:
    """The first takes the foreman and two of the diggers, and has no room for more."""
    first = scene.serve("foreman", CONCURRENCY=3, **settings)
    scene.client.options(id=RUN, budget=budget).start_sync(FOREMAN, "Dig.")
    scene.wait_for_line(MODEL_CALL, "start", pid=first.pid)
    return first, scene.serve("foreman")


def test_a_worker_killed_with_a_call_in_flight_has_used_nothing_of_the_budget(folder: Path, agent_forks: ForkServer):
    turns = 2 + DIGGERS
    with Scene(folder, agent_forks, SCRIPT) as scene:
        scene.hold(DIGGER, 1)
        workers = two_workers(scene, Budget(turns=turns))
        # As many diggers are at their second turn as the budget allows. The others wait for what comes of them.
        wait_until_sync(
            lambda: scene.asked().total() == turns, "all turns of the budget are asked for", describe=scene.describe
        )
        assert all(scene.lines(MODEL_CALL, pid=life.pid) for life in workers), "both are at work"
        held = scene.asked()[Asked(DIGGER, 1)]
        wait_until_sync(lambda: scene.usage()[0] == turns - held, "all others are answered", describe=scene.describe)
        victim = next(life for life in workers if lost_calls(scene.moment(), life))
        lost = lost_calls(scene.moment(), victim)
        victim.kill()
        scene.serve("foreman")
        wait_until_sync(
            lambda: scene.asked().total() == turns + lost, "others ask in its place", describe=scene.describe
        )
        scene.release(DIGGER, 1)

        parked = wait_until_parked(scene)
        assert (scene.usage()[0], scene.asked().total()) == (turns, turns + lost)
        assert recorded_turns(parked.journals).total() == turns
        give_more(scene, "turns", CALLS)
        check_completed(scene, victim)
        assert scene.asked().total() == CALLS + lost


@pytest.mark.parametrize("point", ["after-commit:3", "before-commit:5", "after-request:2", "before-request:2"])
def test_workers_side_by_side_keep_to_a_budget_whenever_one_is_killed(
    folder: Path, agent_forks: ForkServer, point: str
):
    turns = 3 + DIGGERS
    with Scene(folder, agent_forks, SCRIPT) as scene:
        first, second = two_workers(scene, Budget(turns=turns), HOLDFAST_TEST_KILL=point)
        first.dies()
        parked = wait_until_parked(scene)
        assert scene.usage()[0] == recorded_turns(parked.journals).total() == turns
        assert turns <= scene.asked().total() <= turns + lost_calls(parked, first)

        second.kill()  # nothing is in flight: it loses nothing
        give_more(scene, "turns", CALLS)
        scene.serve("foreman")
        check_completed(scene, first, second)
        assert lost_calls(scene.moment(), second) == 0


def test_a_budget_in_tokens_holds_when_all_processes_are_killed(folder: Path, agent_forks: ForkServer):
    tokens = 300
    with Scene(folder, agent_forks, SCRIPT) as scene:
        first, second = two_workers(scene, Budget(tokens=tokens), HOLDFAST_TEST_KILL="after-request:2")
        first.dies()
        second.kill()
        last = scene.serve("foreman")
        parked = wait_until_parked(scene)
        _, sent, received = scene.usage()
        assert sent + received <= tokens
        calls = recorded_turns(parked.journals).total()
        assert calls <= scene.asked().total() <= calls + lost_calls(parked, first, second)
        assert calls < CALLS

        give_more(scene, "tokens", 10_000)
        check_completed(scene, first, second)
        assert lost_calls(scene.moment(), last) == 0


def test_what_a_dead_worker_had_reserved_holds_nobody_up(folder: Path, agent_forks: ForkServer):
    with Scene(folder, agent_forks, SCRIPT) as scene:
        scene.hold(DIGGER, 0)
        victim = scene.serve("foreman", CONCURRENCY=2)
        scene.client.options(id=RUN, budget=Budget(turns=2)).start_sync(FOREMAN, "Dig.")
        scene.wait_until_held(DIGGER, 0)
        # The one turn that is left is that of a digger in the first process. Those in the second wait for what comes of
        # it, and there is no room for more of them.
        second = scene.serve("foreman", CONCURRENCY=2)
        wait_until_sync(lambda: running(scene, second) == 2, "the second process is full", describe=scene.describe)
        victim.kill()
        wait_until_sync(
            lambda: scene.asked()[Asked(DIGGER, 0)] == 2, "somebody else has its turn", describe=scene.describe
        )
        scene.release(DIGGER, 0)
        wait_until_parked(scene)
        assert (scene.usage()[0], scene.asked().total()) == (2, 3)
        give_more(scene, "turns", CALLS)
        check_completed(scene, victim)


def running(scene: Scene, life: Life) -> int:
    """How many runs a process holds."""
    query = "SELECT count(*) FROM runs JOIN workers ON owner = workers.id WHERE runs.state = 'running' AND pid = ?"
    with closing(sqlite3.connect(f"file:{scene.database}?mode=ro", uri=True)) as connection:
        return connection.execute(query, (life.pid,)).fetchone()[0]

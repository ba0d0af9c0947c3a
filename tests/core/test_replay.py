"""Replay equality: from any prefix of its journal, a workflow does what it did the first time."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from replay_flows import FLOWS
from scripted_execution import Live, Replay, World

from holdfast.core.commands import Command
from holdfast.core.records import Record, RecordKind

HERE = Path(__file__).parent
SEEDS = range(12)
PREFIXES = 250
"""Of each workflow, over as many seeds as that takes."""


@pytest.fixture(autouse=True)
def _collections_are_quick() -> Iterator[None]:
    """Some replays collect garbage between any two records: leave out all that was there before."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_a_replay_frees_each_command_as_soon_as_it_has_its_outcome():
    """A journal of thousands of records must not leave as many objects for the garbage collector."""

    async def flow(world: World) -> None:
        for number in range(200):
            await world.step(f"s{number}")
        await world.signal("go")

    records = [Record(n, RecordKind.STEP, n, f"s{n}", True, b'""', 1.0) for n in range(200)]
    replay = Replay(flow, records)
    assert sum(isinstance(found, Command) for found in gc.get_objects()) == 1
    assert [command.name for command in replay.execution.take_issued()] == ["go"]
    replay.leave()


def live(name: str, seed: int | str) -> Live:
    run = Live(FLOWS[name], f"{name}:{seed}")
    assert run.ending is not None
    assert run.ending[0] != "fault", run.ending
    return run


@pytest.mark.parametrize("name", FLOWS)
def test_every_prefix_of_a_journal_replays_to_the_same_commands_and_the_same_end(name: str):
    prefixes = seed = 0
    while prefixes < PREFIXES:
        run = live(name, seed)
        for length in range(len(run.journal) + 1):
            replay = Replay(FLOWS[name], run.journal[:length])
            assert replay.marks == run.marks[: length + 1]
            replay.execution.go_live()  # from here on the same outcomes are new ones
            for record in run.journal[length:]:
                replay.deliver(record)
            assert replay.story == run.story
            replay.leave()
            prefixes += 1
        run.leave()
        seed += 1


@pytest.mark.parametrize("name", FLOWS)
def test_a_run_that_continues_differently_after_a_crash_replays_too(name: str):
    draw = random.Random(name)
    for seed in SEEDS:
        first = live(name, seed)
        cut = draw.randrange(len(first.journal))
        second = Live(FLOWS[name], f"{name}:{seed}:again", prefix=first.journal[:cut])
        assert second.marks[: cut + 1] == first.marks[: cut + 1]
        third = Replay(FLOWS[name], second.journal, collect=seed == 0)
        assert third.story == second.story
        for world in (first, second, third):
            world.leave()


def test_the_scripted_world_reaches_the_cases_that_are_hard_to_replay():
    """Whoever changes the driver or the workflows learns here that the suite above has become toothless."""
    seen: set[str] = set()
    for name in FLOWS:
        for seed in SEEDS:
            run = live(name, seed)
            execution = run.execution
            for record in run.journal:
                seen.add(record.kind.label)
                if record.position in execution._holes and record.kind.label in ("step", "signal"):
                    seen.add(f"{record.kind.label} for a cancelled position")
            seen.add("timed out" if "RunTimedOut" in str(run.ending) else "")
            run.leave()
    assert seen >= {
        "step", "timer", "signal", "deadline", "timed out", "step for a cancelled position",
        "signal for a cancelled position",
    }  # fmt: skip


def digest_of_all() -> str:
    """One number for what every workflow did under a few seeds."""
    total = hashlib.sha256()
    for name in sorted(FLOWS):
        for seed in range(4):
            run = live(name, seed)
            total.update(repr((name, seed, run.story, [record[1:] for record in run.journal])).encode())
            run.leave()
    return total.hexdigest()


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_another_process_with_another_hash_seed_does_the_same(hash_seed: str):
    code = "import test_replay; print(test_replay.digest_of_all())"
    path = os.pathsep.join([str(HERE), str(HERE.parents[1] / "src")])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == digest_of_all()

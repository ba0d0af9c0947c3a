"""Many lives of a fleet of workers, each drawn by a seed; and bugs that the simulator must find."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import pytest
from simulation.mutants import MUTANTS, Mutant, find_seed, find_seed_by_name
from simulation.seed_runner import SeedTotals, run_parallel
from simulation.world import InvariantBroken, run_seed

ROOT = Path(__file__).parent.parent.parent
JOBS = min(2, os.cpu_count() or 1)
REPLAYED = (3, 17, 45)
MAX_SEEDS = 2500
"""How many seeds a planted bug may take to be found."""


# Not bounded by the suite's time-out: the long run is asked for on purpose.
@pytest.mark.timeout(0)
def test_every_promise_holds_in_every_seed(seeds: int) -> None:
    tally = SeedTotals()
    for tally in run_parallel(1, seeds, JOBS):
        assert not tally.failures, "\n".join(str(broken) for broken in tally.failures)
    assert tally.counts["seeds"] == seeds
    # A simulation in which nothing goes wrong proves nothing.
    for fault in (
        "crashes",
        "pauses",
        "closes",
        "outages",
        "cuts",
        "clock changes",
        "unknown outcomes",
        "late requests",
        "children",
        "forks",
        "retries",
        "steps undone",
        "people: cancel",
        "people: pause",
        "people: switch",
        "places taken",
        "kills by a step",
        "isolated claims",
        "overlapping commits",
        "looked at again",
    ):
        assert tally.counts[fault] > 0, fault
    for end in ("completed", "failed", "cancelled", "dead"):
        assert tally.counts[f"runs {end}"] > 0, end


def describe_seed(seed: int) -> str:
    digest = hashlib.sha256()
    run_seed(seed, lambda line: digest.update(f"{line}\n".encode()))
    return digest.hexdigest()


def test_a_seed_replays_to_the_same_story() -> None:
    told = [describe_seed(seed) for seed in REPLAYED]
    assert told == [describe_seed(seed) for seed in REPLAYED]
    assert len(set(told)) == len(REPLAYED)


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_a_seed_runs_the_same_way_in_another_process(hash_seed: str) -> None:
    code = f"import test_simulation as t; print(*[t.describe_seed(seed) for seed in {REPLAYED}])"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), str(Path(__file__).parent)])
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [describe_seed(seed) for seed in REPLAYED]


@pytest.fixture(scope="module")
def list_hunts() -> Iterator[dict[str, Future[InvariantBroken | None]]]:
    """All hunts, spread over this machine's processors."""
    with ProcessPoolExecutor(JOBS, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield {mutant.name: pool.submit(find_seed_by_name, mutant.name, MAX_SEEDS) for mutant in MUTANTS}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant, list_hunts: dict[str, Future[InvariantBroken | None]]) -> None:
    found = list_hunts[mutant.name].result()
    assert isinstance(found, InvariantBroken), f"nobody noticed that {mutant.description}"


def test_a_broken_seed_names_the_line_that_reproduces_it() -> None:
    [first, *_] = [mutant for mutant in MUTANTS if mutant.name == "fence_not_checked"]
    found = find_seed(first, 500)
    assert found is not None
    assert f"python -m simulation --seed {found.seed}" in str(found)

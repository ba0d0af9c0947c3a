"""The soak: thousands of runs of every sort, on workers that are struck all the time, held against the ledger.

``python -m pytest tests/soak --soak-seconds 60 --soak-seed 7 -s`` prints what was done, and how fast.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import postgres_server
import pytest
from app_processes import App, World
from postgres_processes import PgWorld
from soak_checker import Checker
from soak_expectations import FLOWS, LETTERS
from soak_reader import PgReader, SqliteReader, StoreReader
from soak_workers import KINDS, LEASE, WORKERS, Crew

from waits import wait_until_sync

SLOTS = 150
"""So many runs are under way at a time."""
TURN = 0.02
LOOK_EVERY = 0.5
WIND_DOWN = 30.0
"""Seconds after the last strike in which everything ends."""

LEAST_RUNS, LEAST_STEPS = 5.0, 20.0
"""A second: far below what the slowest machine does, and above what one does where everything fails."""
LEAST_STRIKES, LEAST_TAKEOVERS = 1 / 20, 1 / 5
"""Of every kind, a second; takeovers of steps in flight, a second."""


@pytest.mark.slow
def test_thousands_of_runs_come_through_random_strikes_as_the_ledger_says(
    soak_folder: Path, soak_seconds: float, soak_seed: int
):
    world = World(soak_folder)
    try:
        soak(world, soak_seconds, soak_seed, lambda: SqliteReader(world.database))
    finally:
        world.clean_up()


@pytest.mark.slow
def test_on_postgres_they_do_so_as_well(soak_folder: Path, soak_seconds_on_postgres: float, soak_seed: int):
    with postgres_server.database() as url:
        world = PgWorld(soak_folder, url)
        try:
            soak(world, soak_seconds_on_postgres, soak_seed, lambda: PgReader(world.tables))
        finally:
            world.clean_up()


def soak(world: World, seconds: float, seed: int, reader: Callable[[], StoreReader]) -> None:
    crew = Crew(world, seed)
    with told_of_strikes(crew, seconds, seed):
        wait_until_sync(lambda: len(world.live_workers()) == WORKERS, "the workers are there", describe=crew.stacks)
        starter = world.spawn("soak_starter.py", SEED=seed, SLOTS=SLOTS, FLOWS=" ".join(FLOWS))
        wait_until_sync((world.folder / "starts").exists, "the starter begins", describe=lambda: starter)
        signaller = world.spawn("soak_signal_sender.py", SEED=seed, LETTERS=LETTERS)
        checker = Checker(world.folder, crew, reader())
        began = time.time()
        crew.begin()
        for _ in turns(until=began + seconds, checker=checker, world=world):
            crew.turn(striking=True)
            are_well(starter, signaller)
        struck = time.time() - began

        world.open_gate("over")
        quiet = time.time()
        for _ in turns(until=quiet + WIND_DOWN, checker=checker, world=world):
            crew.turn(striking=False)
            if starter.exit_code is not None and signaller.exit_code is not None:
                break
        checker.look()
        assert not checker.open, f"not ended {WIND_DOWN} s after the last strike:\n{checker.explain_open()}"
        (duplicates,) = signaller.answers()
        starter.ends()
        wound_down = time.time() - quiet
        crew.dismiss()
        checker.finish()

        report(crew, checker, seconds=struck, wound_down=wound_down, duplicates=duplicates, seed=seed)
        check_that_it_was_a_soak(crew, checker, seconds=struck, wound_down=wound_down, duplicates=duplicates)
        checker.store.close()


def turns(*, until: float, checker: Checker, world: World) -> Iterator[None]:
    """Turns of the soak until this time, with a look at what has happened every now and then."""
    looked = 0.0
    while (now := time.time()) < until:
        yield
        if now - looked > LOOK_EVERY:
            checker.look()
            looked = now
            retried, checker.retried = checker.retried, []
            if retried:
                asyncio.run(let_go_on(world, retried))
        time.sleep(TURN)


async def let_go_on(world: World, runs: list[str]) -> None:
    """What a person does who finds that a run is dead through no fault of its own."""
    async with world.client as client:
        for run in runs:
            await client.retry(run)


def are_well(*apps: App) -> None:
    for app in apps:
        assert app.exit_code is None, f"it ended before its time: {app}"


@contextmanager
def told_of_strikes(crew: Crew, seconds: float, seed: int) -> Iterator[None]:
    """Add to whatever fails what had been done to the workers, and how to do it again."""
    began = time.time()
    try:
        yield
    except BaseException:
        print(f"\nIt failed {time.time() - began:.2f} s after its beginning (at {time.time():.2f}). The last strikes:")
        for strike in crew.recent:
            stopped = f" for {strike.end - strike.at:.2f} s" if strike.kind == "stop" else ""
            print(f"  {strike.at - began:7.2f} s (at {strike.at:.2f}): {strike.kind} process {strike.pid}{stopped}")
        print(f"To do it again: python -m pytest tests/soak --soak-seconds {seconds:g} --soak-seed {seed}")
        raise


def report(crew: Crew, checker: Checker, *, seconds: float, wound_down: float, duplicates: int, seed: int) -> None:
    counts, all_of_it = checker.counts, seconds + wound_down
    leaving = sorted(crew.leaving)
    print(f"\nsoak of {seconds:.0f} s, seed {seed}, {WORKERS} workers, lease {LEASE} s")
    print(f"  {counts['runs']} runs ({counts['runs'] / all_of_it:.0f}/s), {counts['steps']} steps ", end="")
    print(f"({counts['steps'] / all_of_it:.0f}/s), {counts['signals']} signals and {duplicates} duplicates of them")
    print(f"  strikes: {', '.join(f'{crew.made[kind]} {kind}' for kind in KINDS)}")
    print(f"  runs that more than one worker recorded something for: {counts['taken over']}; steps begun ", end="")
    print(f"again: {counts['begun again']}; `once` steps of unknown outcome: {counts['unknown']}; runs found ", end="")
    print(f"dead, and retried: {counts['dead']}; leases lost without a strike: {counts['unprovoked']}", end="")
    print(f" (stopped with the write lock, and made to go on: {crew.in_the_way})")
    for kind, sample in checker.takeovers.items():
        print(f"  a step in flight goes on after {kind}: p50 {sample.at(0.5) * 1000:.0f} ms, ", end="")
        print(f"p95 {sample.at(0.95) * 1000:.0f} ms, longest {sample.at(1) * 1000:.0f} ms ({sample.count})")
    print(f"  steps that a stopped worker was about to begin, and began too late: {counts['late']}")
    for words in (*checker.late, *checker.unprovoked):
        print(f"    {words[:500]}")
    if leaving:
        print(f"  a worker told to stop ends: p50 {leaving[len(leaving) // 2]:.2f} s, longest {leaving[-1]:.2f} s")
    print(f"  everything had ended {wound_down:.1f} s after the last strike")


def check_that_it_was_a_soak(
    crew: Crew, checker: Checker, *, seconds: float, wound_down: float, duplicates: int
) -> None:
    """Enough was done, and enough was struck, for all this to mean something."""
    runs, steps = (checker.counts[what] / (seconds + wound_down) for what in ("runs", "steps"))
    assert runs >= LEAST_RUNS, f"only {runs:.1f} runs a second"
    assert steps >= LEAST_STEPS, f"only {steps:.1f} steps a second"
    for kind in KINDS:
        assert crew.made[kind] >= int(seconds * LEAST_STRIKES), f"too few strikes: {crew.made}"
    taken = sum(sample.count for sample in checker.takeovers.values())
    assert taken >= int(seconds * LEAST_TAKEOVERS), f"too few takeovers: {checker.counts}"
    assert duplicates >= int(seconds), f"only {duplicates} signals were sent twice"
    late = checker.counts["late"]
    assert late <= crew.made["stop"], f"{late} steps were begun by workers that had just come back"
    busy = "\n".join(checker.unprovoked)
    assert checker.counts["unprovoked"] <= sum(crew.made.values()), f"workers die by themselves: {busy}"

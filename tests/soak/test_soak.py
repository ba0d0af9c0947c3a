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
from soak_workers import KINDS, LEASE, WORKER_COUNT, WorkerFleet

from waits import wait_until_sync

RUN_COUNT = 150
"""So many runs are under way at a time."""
POLL_INTERVAL_S = 0.02
CHECK_INTERVAL_S = 0.5
WIND_DOWN_S = 30.0
"""Seconds after the last fault in which everything ends."""

MIN_RUNS, MIN_STEPS = 5.0, 20.0
"""A second: far below what the slowest machine does, and above what one does where everything fails."""
MIN_FAULTS, MIN_TAKEOVERS = 1 / 20, 1 / 5
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
    fleet = WorkerFleet(world, seed)
    with print_faults_on_failure(fleet, seconds, seed):
        wait_until_sync(
            lambda: len(world.live_workers()) == WORKER_COUNT, "the workers are there", describe=fleet.dump_stacks
        )
        starter = world.spawn("soak_starter.py", SEED=seed, SLOTS=RUN_COUNT, FLOWS=" ".join(FLOWS))
        wait_until_sync((world.folder / "starts").exists, "the starter begins", describe=lambda: starter)
        signaller = world.spawn("soak_signal_sender.py", SEED=seed, LETTERS=LETTERS)
        checker = Checker(world.folder, fleet, reader())
        began = time.time()
        fleet.schedule_first_fault()
        for _ in poll_until(until=began + seconds, checker=checker, world=world):
            fleet.poll(inject_faults=True)
            check_running(starter, signaller)
        fault_seconds = time.time() - began

        world.open_gate("over")
        wind_down_began = time.time()
        for _ in poll_until(until=wind_down_began + WIND_DOWN_S, checker=checker, world=world):
            fleet.poll(inject_faults=False)
            if starter.exit_code is not None and signaller.exit_code is not None:
                break
        checker.poll()
        assert not checker.open, f"not ended {WIND_DOWN_S} s after the last fault:\n{checker.explain_open()}"
        (duplicates,) = signaller.read_answers()
        starter.ends()
        wound_down = time.time() - wind_down_began
        fleet.shut_down()
        checker.finish()

        report(fleet, checker, seconds=fault_seconds, wound_down=wound_down, duplicates=duplicates, seed=seed)
        check_load(fleet, checker, seconds=fault_seconds, wound_down=wound_down, duplicates=duplicates)
        checker.store.close()


def poll_until(*, until: float, checker: Checker, world: World) -> Iterator[None]:
    """Turns of the soak until this time, with a look at what has happened every now and then."""
    polled_at = 0.0
    while (now := time.time()) < until:
        yield
        if now - polled_at > CHECK_INTERVAL_S:
            checker.poll()
            polled_at = now
            retried, checker.retried = checker.retried, []
            if retried:
                asyncio.run(retry_runs(world, retried))
        time.sleep(POLL_INTERVAL_S)


async def retry_runs(world: World, runs: list[str]) -> None:
    """What a person does who finds that a run is dead through no fault of its own."""
    async with world.client as client:
        for run in runs:
            await client.retry(run)


def check_running(*apps: App) -> None:
    for app in apps:
        assert app.exit_code is None, f"it ended before its time: {app}"


@contextmanager
def print_faults_on_failure(fleet: WorkerFleet, seconds: float, seed: int) -> Iterator[None]:
    """Add to whatever fails what had been done to the workers, and how to do it again."""
    began = time.time()
    try:
        yield
    except BaseException:
        print(f"\nIt failed {time.time() - began:.2f} s after its beginning (at {time.time():.2f}). The last faults:")
        for fault in fleet.recent_faults:
            stopped = f" for {fault.end - fault.at:.2f} s" if fault.kind == "stop" else ""
            print(f"  {fault.at - began:7.2f} s (at {fault.at:.2f}): {fault.kind} process {fault.pid}{stopped}")
        print(f"To do it again: python -m pytest tests/soak --soak-seconds {seconds:g} --soak-seed {seed}")
        raise


def report(
    fleet: WorkerFleet, checker: Checker, *, seconds: float, wound_down: float, duplicates: int, seed: int
) -> None:
    counts, all_of_it = checker.counts, seconds + wound_down
    durations = sorted(fleet.shutdown_durations)
    print(f"\nsoak of {seconds:.0f} s, seed {seed}, {WORKER_COUNT} workers, lease {LEASE} s")
    print(f"  {counts['runs']} runs ({counts['runs'] / all_of_it:.0f}/s), {counts['steps']} steps ", end="")
    print(f"({counts['steps'] / all_of_it:.0f}/s), {counts['signals']} signals and {duplicates} duplicates of them")
    print(f"  faults: {', '.join(f'{fleet.fault_counts[kind]} {kind}' for kind in KINDS)}")
    print(f"  runs that more than one worker recorded something for: {counts['taken over']}; steps begun ", end="")
    print(f"again: {counts['begun again']}; `once` steps of unknown outcome: {counts['unknown']}; runs found ", end="")
    print(f"dead, and retried: {counts['dead']}; leases lost without a fault: {counts['unprovoked']}", end="")
    print(f" (stopped with the write lock, and made to go on: {fleet.lock_stop_count})")
    for kind, sample in checker.takeovers.items():
        print(f"  a step in flight goes on after {kind}: p50 {sample.at(0.5) * 1000:.0f} ms, ", end="")
        print(f"p95 {sample.at(0.95) * 1000:.0f} ms, longest {sample.at(1) * 1000:.0f} ms ({sample.count})")
    print(f"  steps that a stopped worker was about to begin, and began too late: {counts['late']}")
    for words in (*checker.late, *checker.unprovoked):
        print(f"    {words[:500]}")
    if durations:
        print(
            f"  a worker told to stop ends: p50 {durations[len(durations) // 2]:.2f} s, longest {durations[-1]:.2f} s"
        )
    print(f"  everything had ended {wound_down:.1f} s after the last fault")


def check_load(fleet: WorkerFleet, checker: Checker, *, seconds: float, wound_down: float, duplicates: int) -> None:
    """Enough was done, and enough was struck, for all this to mean something."""
    runs, steps = (checker.counts[what] / (seconds + wound_down) for what in ("runs", "steps"))
    assert runs >= MIN_RUNS, f"only {runs:.1f} runs a second"
    assert steps >= MIN_STEPS, f"only {steps:.1f} steps a second"
    for kind in KINDS:
        assert fleet.fault_counts[kind] >= int(seconds * MIN_FAULTS), f"too few faults: {fleet.fault_counts}"
    taken = sum(sample.count for sample in checker.takeovers.values())
    assert taken >= int(seconds * MIN_TAKEOVERS), f"too few takeovers: {checker.counts}"
    assert duplicates >= int(seconds), f"only {duplicates} signals were sent twice"
    late = checker.counts["late"]
    assert late <= fleet.fault_counts["stop"], f"{late} steps were begun by workers that had just come back"
    busy = "\n".join(checker.unprovoked)
    assert checker.counts["unprovoked"] <= sum(fleet.fault_counts.values()), f"workers die by themselves: {busy}"

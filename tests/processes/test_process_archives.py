"""Runs that were killed on one store go on in another; and old runs are deleted while workers go on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from app_processes import World
from ledger import check_end, read_journals
from postgres_processes import PgWorld

import forked_python


def holdfast(*words: str) -> subprocess.CompletedProcess[str]:
    done = forked_python.run([sys.executable, "-m", "holdfast.cli", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def test_runs_killed_on_sqlite_are_completed_on_postgres_and_nothing_is_repeated(folder: Path, pg_world: PgWorld):
    """A step in flight, a run that waits for others, one that waits for a signal, and one that has ended."""
    here = World(folder)
    try:
        worker = here.worker()
        held = here.client.start_sync("held", "x")
        family = here.client.start_sync("parent", "y")
        waits = here.client.start_sync("signalled")
        done = here.client.start_sync("sequential")
        here.wait_for_line("hold", "start", run=held)
        here.wait_for_line("hold", "start", run="child-y")
        here.wait_for_end(done)
        here.wait_for_run(waits, lambda run: run.state == "waiting", "it is parked")
        worker.kill()
        before = here.journals()
        file = str(folder / "runs.jsonl")
        holdfast("export", "--all", "-o", file, "--url", here.url)
        assert "imported 5 runs" in holdfast("import", file, "--url", pg_world.url).stdout
        for gate in ("x", "y"):
            here.open_gate(gate)
        there = pg_world
        there.worker()
        for word in ("1", "2"):
            there.client.signal_sync(waits, "go", word)
        for run_id in before:
            there.wait_for_end(run_id)
    finally:
        here.clean_up()
    after = there.journals()
    for run_id, was in before.items():
        assert after[run_id].records[: len(was.records)] == was.records
        recorded = {was.derive_key(record.position, record.name) for record in was.records}
        for key in recorded:  # what was recorded has happened once, before the move
            assert [line.pid for line in there.lines() if line.key == key and line.phase == "finish"] in (
                [],
                [worker.pid],
            )
    assert after[held].output == ["x before", "x", "x after"]
    assert after[family].output == ["y before", "y", "y after"]
    assert after[waits].output == ["before", "1", "after 0", "2", "after 1"]
    assert after[done] == before[done]
    assert read_journals(here.database) == before


def test_old_runs_are_deleted_while_workers_go_on(world: World):
    """What is unfinished goes on, and what is deleted was complete."""
    for _ in range(2):
        world.worker()
    old = [world.client.start_sync("sequential") for _ in range(30)]
    held = world.client.start_sync("held", "x")
    family = world.client.start_sync("parent", "y")
    for run_id in old:
        world.wait_for_end(run_id)
    world.wait_for_line("hold", "start", run="child-y")
    ended = world.snapshot().without_run(held)
    check_end(
        type(ended)(
            [line for line in ended.lines if line.run in old],
            {run_id: journal for run_id, journal in ended.journals.items() if run_id in old},
            ended.pids,
        )
    )
    until = time.monotonic() + 1.5
    new: list[str] = []
    told = ""
    while time.monotonic() < until:
        new += [world.client.start_sync("gathered") for _ in range(5)]
        told = holdfast("prune", "--older-than", "0s", "--yes", "--url", world.url).stdout
    assert "deleted" in told
    for gate in ("x", "y"):
        world.open_gate(gate)
    assert world.wait_for_end(held).output == ["x before", "x", "x after"]
    world.wait_for_end(family)
    for run_id in new:
        assert len(world.lines("call", "finish", run=run_id)) <= 5
        if run_id in world.journals():
            world.wait_for_end(run_id)
    assert not set(old) & set(world.journals())


ON_POSTGRES = ["test_old_runs_are_deleted_while_workers_go_on"]

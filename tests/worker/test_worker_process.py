from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from pathlib import Path

import pytest
from worker_project import Project, line_with

from holdfast import Runtime, UsageError
from waits import wait_until_sync


def stop(worker: subprocess.Popen[str], timeout: float = 20) -> str:
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=timeout)
    return err


def test_a_worker_prints_what_it_serves_executes_runs_and_stops_cleanly(project: Project):
    worker = project.worker("app")
    said = line_with(worker, "serves")
    assert "serves etl, report, stuck from all queues of sqlite:///" in said
    assert f"(pid {worker.pid})" in said
    assert project.client("client.run_sync('etl', 'one')") == "'one'"
    assert "handed over" in stop(worker)
    assert worker.returncode == 0
    assert (project.folder / "one").exists()


def test_only_the_chosen_workflow_is_served(project: Project):
    project.python("from holdfast.worker.workflow_loader import load_workflows; load_workflows('app')")
    worker = project.worker("app:etl")
    assert "serves etl from all queues" in line_with(worker, "serves")
    done = project.python("from holdfast import Client; Client().start_sync('report', 'x')")
    assert "no worker has announced a workflow 'report'" in done.stderr
    stop(worker)


def test_only_the_chosen_queues_are_served(project: Project):
    worker = project.worker("app", "--queue", "nightly")
    assert "from queue nightly of" in line_with(worker, "serves")
    left = project.client("client.start_sync('etl', 'left')")
    assert project.client("client.run_sync('report', 'done')") == "'done'"
    assert project.client(f"client.get_sync({left}).state.value") == "'pending'"
    stop(worker)
    assert not (project.folder / "left").exists()


def test_a_worker_whose_step_hangs_in_a_thread_hands_over_and_exits_anyway(project: Project):
    worker = project.worker("app:stuck", "--grace", "0.2")
    line_with(worker, "serves")
    project.client("client.start_sync('stuck')")
    wait_until_sync((project.folder / "hanging").exists)
    began = time.monotonic()
    stop(worker)
    assert worker.returncode == 0
    assert time.monotonic() - began < 8
    assert project.client("client.get_sync('stuck').state.value") == "'pending'"


def test_a_target_that_cannot_be_loaded_ends_the_worker_with_one_message(project: Project):
    worker = project.worker("app:nope")
    _, err = worker.communicate(timeout=20)
    assert worker.returncode == 1
    assert err.startswith("error: module 'app' has no 'nope'")
    assert "Traceback" not in err
    assert not (project.folder / "runs.db").exists()


@pytest.mark.parametrize("option", [["--concurrency", "0"], ["--lease", "0.1"], ["--grace", "-1"]])
def test_options_out_of_range_are_usage_errors(project: Project, option: list[str]):
    worker = project.worker("app", *option)
    _, err = worker.communicate(timeout=20)
    assert worker.returncode == 2
    assert option[0] in err


def test_a_runtime_refuses_to_serve_a_workflow_that_is_not_defined_here():
    with pytest.raises(UsageError, match="no workflow 'nope' is defined in this process"):
        Runtime("memory://", workflows=["nope"])


@pytest.mark.asyncio
async def test_a_worker_that_has_stopped_leaves_the_signal_handlers_as_they_were(tmp_path: Path):
    def mine(*_: object) -> None: ...

    before, of_asyncio = signal.signal(signal.SIGTERM, mine), signal.getsignal(signal.SIGINT)
    try:
        told = asyncio.Event()
        told.set()
        runtime = Runtime(f"sqlite:///{tmp_path / 'runs.db'}")
        await runtime.open()
        await runtime.run_worker(stop=told)
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGINT) is of_asyncio
    finally:
        signal.signal(signal.SIGTERM, before)

"""Versions of workflows on the command line: what is told of runs that nobody serves, and moving one to other code."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
from cli_project import Project

from holdfast.core.states import RunState
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.operations import FinishRun, NewRun, StartResult, StartRun
from holdfast.stores.run_errors import encode_corrupt_error
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.workers import NewWorker

UNSERVED = "no live worker serves version '1' of workflow 'etl' (served: '2')"


@pytest.fixture
def deployed(project: Project) -> Project:
    """A worker that serves version 2, as the store knows it; a run of version 1, one of version 2, and a failed one."""

    async def fill() -> None:
        store = SqliteStore(project.database)
        await store.open()
        now = store.now()
        worker = await store.workers.register(NewWorker("w", socket.gethostname(), os.getpid()), 1000.0)
        await store.announce_workflows([WorkflowSpec("etl", (), version="1")])  # by one that is gone
        await store.announce_workflows([WorkflowSpec("etl", (), version="2")], worker)

        def new(run_id: str, version: str) -> NewRun:
            return NewRun(run_id, "etl", b"{}", b"d", run_id.encode().ljust(16), now, version=version)

        await store.commit([StartRun(new("old", "1")), StartRun(new("new", "2"))])
        [failed] = await store.commit([StartRun(new("failed", "1"), claim_as=worker)])
        assert isinstance(failed, StartResult)
        await store.commit([FinishRun(failed.run.key, 1, RunState.FAILED, None, encode_corrupt_error("a bug"), now)])
        await store.close()

    asyncio.run(fill())
    return project


def test_a_run_of_an_unserved_version_is_shown_with_the_reason(deployed: Project):
    lines = {line.split()[0]: line for line in deployed.here("runs").out.splitlines()}
    assert "no live worker serves version '1'" in lines["old"]
    assert "no live worker" not in lines["new"]
    assert {run["id"]: run["version"] for run in deployed.here("runs", "--json").json} == {
        "old": "1",
        "new": "2",
        "failed": "1",
    }
    shown = deployed.here("show", "old")
    assert "etl (version 1)" in shown.out
    advice = " ".join((shown.out + shown.err).split())
    assert f"{UNSERVED}: start a worker with the code of that version, or let other code take these runs" in advice
    assert deployed.here("show", "new", "--json").json["stall_reason"] is None
    [agent] = deployed.here("agents", "--all", "--json").json
    assert (agent["name"], agent["state"], agent["versions"]) == ("etl", "serving", ["2"])


def test_doctor_reports_how_many_runs_wait_for_an_unserved_version(deployed: Project):
    [found] = [check for check in deployed.here("doctor", "--json").json["checks"] if check["name"] == "unserved"]
    assert found["message"] == f"{UNSERVED} (1 unfinished run)"
    assert found["advice"].startswith("start a worker with the code of that version")


def test_a_retry_can_hand_a_run_to_the_code_of_another_version(deployed: Project):
    stays = deployed.here("retry", "failed", "--json").json
    assert stays["stall_reason"].startswith(UNSERVED)
    asyncio.run(_fail(deployed, "1"))
    moved = deployed.here("retry", "failed", "--version", "2", "--json").json
    assert (moved["state"], moved["stall_reason"]) == ("pending", None)
    assert deployed.here("show", "failed", "--json").json["version"] == "2"


async def _fail(project: Project, version: str) -> None:
    """A worker of this version has taken the run up once more, and it has failed again."""
    store = SqliteStore(project.database)
    await store.open()
    worker = await store.workers.register(NewWorker("x", "elsewhere", 1), 1000.0)
    runs = await store.claims.claim(worker, workflows=[f"etl@{version}"], queues=None, limit=9)
    for run in runs:
        await store.commit(
            [FinishRun(run.key, run.epoch, RunState.FAILED, None, encode_corrupt_error("a bug"), store.now())]
        )
    await store.workers.retire(worker)
    await store.close()

"""What the query ``status`` answers, as Temporal's Web UI and other clients see it, in every state of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from continue_as_new_flows import continuing_steps
from temporal_engines import client_of, engine_of, serving
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionStatus

from holdfast import RunState, Runtime, ask, step, wait_for_signal, workflow
from holdfast.errors import HoldfastError
from holdfast.stores.temporal import identifiers

pytestmark = pytest.mark.asyncio

ENDED: dict[str, Any] = {"waits_for": [], "approvals": []}
is_open: set[str] = set()


@step
async def query_work() -> str:
    while "gate" not in is_open:  # noqa: ASYNC110 - steps run on the loops of several tests
        await asyncio.sleep(0.01)
    return "worked"


@workflow
async def query_working() -> str:
    return await query_work()


@workflow
async def query_waiting() -> str:
    return await wait_for_signal("go")


@workflow
async def query_sleeping() -> None:
    await asyncio.sleep(3600)


@workflow
async def query_asking() -> Any:
    return await ask("Deploy?")


@workflow
async def query_joining() -> str:
    return await query_waiting.options(id="joined")()


@workflow
async def query_delaying() -> str:
    return await query_working.options(id="delayed", delay=3600)()


@workflow
async def query_failing() -> None:
    raise ValueError("broken")


FLOWS = (
    query_working, query_waiting, query_sleeping, query_asking, query_joining, query_delaying, query_failing,
)  # fmt: skip


@pytest_asyncio.fixture
async def runtime(temporal_url: str) -> AsyncIterator[Runtime]:
    is_open.clear()
    async with serving(temporal_url, *FLOWS) as runtime:
        yield runtime
        is_open.add("gate")


@pytest_asyncio.fixture
async def temporal(temporal_url: str) -> TemporalClient:
    return await client_of(temporal_url)


async def status(temporal: TemporalClient, run_id: str, execution: str | None = None) -> dict[str, Any]:
    return await temporal.get_workflow_handle(run_id, run_id=execution).query(identifiers.STATUS_QUERY)


async def until_status(temporal: TemporalClient, run_id: str, **wanted: Any) -> dict[str, Any]:
    """Wait until the query answers with this."""
    last_answer: Any = None
    for _ in range(300):
        try:
            last_answer = await status(temporal, run_id)
            if last_answer.items() >= wanted.items():
                return last_answer
        except Exception as error:  # the run is not there yet
            last_answer = error
        await asyncio.sleep(0.05)
    pytest.fail(f"{run_id}: {last_answer!r}")


async def until_state(handle: Any, state: str) -> None:
    """Wait until a client of Holdfast's sees the same: it counts a workflow task that is under way as running."""
    for _ in range(300):
        if (await handle.info()).state == state:
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"{handle.run_id}: {await handle.info()}")


@pytest.mark.parametrize(
    ("flow", "state", "waits_for"),
    [
        (query_working, "running", ["step query_work"]),
        (query_waiting, "waiting", ["signal go"]),
        (query_sleeping, "waiting", ["a timer"]),
    ],
)
async def test_the_status_of_a_run_under_way(
    runtime: Runtime, temporal: TemporalClient, flow: Any, state: str, waits_for: list[str]
) -> None:
    handle = await runtime.start(flow.options(id="r"))
    assert await until_status(temporal, "r", waits_for=waits_for) == {
        "state": state, "waits_for": waits_for, "approvals": [],
    }  # fmt: skip
    await until_state(handle, state)


async def test_the_status_of_a_run_that_waits_for_people_or_another_run(
    runtime: Runtime, temporal: TemporalClient
) -> None:
    await runtime.start(query_asking.options(id="asks"))
    await until_status(temporal, "asks", approvals=["Deploy?"], state="waiting")
    await runtime.start(query_waiting.options(id="joined"))
    await until_status(temporal, "joined", state="waiting")
    joining = await runtime.start(query_joining.options(id="joins"))
    answer = await until_status(temporal, "joins", state="waiting")
    assert "query_waiting" in answer["waits_for"][0]
    await until_state(joining, RunState.WAITING)


async def test_a_runtime_that_closes_while_a_run_waits_for_another_one_leaves_no_task_behind(
    temporal_url: str, temporal: TemporalClient
) -> None:
    async with serving(temporal_url, *FLOWS) as runtime:
        await runtime.start(query_waiting.options(id="joined"))
        await runtime.start(query_joining.options(id="joins"))
        await until_status(temporal, "joins", state="waiting")
        inside = engine_of(runtime)._worker_store
        assert inside is not None
        async with asyncio.timeout(10):
            while not (waits := list(inside._end_watcher._polls.values())):  # noqa: ASYNC110 - in the workers' thread
                await asyncio.sleep(0.01)
    assert all(wait.done() for wait in waits)  # else asyncio logs that a pending task was destroyed


async def test_the_status_of_a_run_that_has_not_started(runtime: Runtime, temporal: TemporalClient) -> None:
    await runtime.start(query_delaying.options(id="delays"))
    assert await until_status(temporal, "delayed") == {"state": "pending", **ENDED}


async def test_the_status_of_a_paused_run(runtime: Runtime, temporal: TemporalClient) -> None:
    handle = await runtime.start(query_waiting.options(id="r"))
    await until_status(temporal, "r", state="waiting")
    assert await handle.pause()
    await until_status(temporal, "r", state="paused")
    assert await handle.resume()
    await until_status(temporal, "r", state="waiting", waits_for=["signal go"])


async def test_the_status_of_a_run_that_has_ended(
    runtime: Runtime, temporal: TemporalClient, temporal_url: str
) -> None:
    is_open.add("gate")
    completed = await runtime.start(query_working.options(id="completed"))
    failed = await runtime.start(query_failing.options(id="failed"))
    cancelled = await runtime.start(query_asking.options(id="cancelled"))
    await until_status(temporal, "cancelled", approvals=["Deploy?"])
    await cancelled.cancel()
    for handle in (completed, failed, cancelled):
        try:
            await handle.result()
        except HoldfastError:
            pass

    async def check() -> None:
        for handle in (completed, failed, cancelled):
            assert await status(temporal, handle.run_id) == {"state": handle.run_id, **ENDED}
            assert (await handle.info()).state == handle.run_id

    await check()
    await runtime.close()
    async with serving(temporal_url, *FLOWS):  # reads it from the history
        for run in ("completed", "failed", "cancelled"):
            assert await status(temporal, run) == {"state": run, **ENDED}


async def test_the_status_of_an_execution_that_went_on_in_a_new_one(
    temporal: TemporalClient, temporal_url: str
) -> None:
    async with serving(temporal_url, continuing_steps, continue_as_new_after=30) as runtime:
        await (await runtime.start(continuing_steps.options(id="long"), 10)).result()
        first = [one async for one in temporal.list_workflows("WorkflowId = 'long'")][-1]
        described = await temporal.get_workflow_handle("long", run_id=first.run_id).describe()
        assert described.status is WorkflowExecutionStatus.CONTINUED_AS_NEW
        assert await status(temporal, "long", first.run_id) == {"state": "continued", **ENDED}
        assert await status(temporal, "long") == {"state": "completed", **ENDED}

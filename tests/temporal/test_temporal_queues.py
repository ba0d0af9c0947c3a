"""Which task queues a worker polls, and queues that are refused."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.worker import Worker

from holdfast import Client, Queue, RunFailed, Runtime, workflow
from holdfast.errors import UsageError
from holdfast.temporal import worker_thread
from temporal_server import own

pytestmark = pytest.mark.asyncio


@workflow
async def queued_elsewhere(word: str) -> str:
    return word


@workflow
async def queued_parent(queue: str) -> str:
    return await queued_elsewhere.options(queue=queue)("child")


async def test_a_process_that_is_started_again_serves_the_queues_that_runs_wait_in(temporal_url: str) -> None:
    names = ["queued_elsewhere"]
    async with Runtime(temporal_url, workflows=names):
        pass  # so that the workflow is announced
    async with Client(temporal_url) as client:
        handles = [
            await client.options(id=own("waiting"), queue=queue).start("queued_elsewhere", queue)
            for queue in ("gpu", "slow lane", "gpu")
        ]
        while len(await client.list(workflow="queued_elsewhere")) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        async with Runtime(temporal_url, workflows=names):
            assert await asyncio.gather(*(handle.result() for handle in handles)) == ["gpu", "slow lane", "gpu"]


async def test_queues_with_limits_are_refused_wherever_they_are_named(temporal_url: str) -> None:
    limited = Queue(own("limited"), concurrency=1)
    async with (
        Runtime(temporal_url, workflows=["queued_elsewhere", "queued_parent"]) as runtime,
        Client(temporal_url) as client,
    ):
        with pytest.raises(UsageError, match="limits"):
            await runtime.start(queued_elsewhere.options(queue=limited), "one")
        with pytest.raises(UsageError, match="limits"):
            await client.options(queue=limited).start("queued_elsewhere", "one")
        with pytest.raises(RunFailed, match="limits"):
            await (await runtime.start(queued_parent, limited.name)).result()


async def test_a_worker_that_fails_is_followed_by_another(temporal_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[str] = []
    run = Worker.run

    async def failing_once(worker: Worker) -> None:
        if worker.task_queue not in failed:
            failed.append(worker.task_queue)
            running = asyncio.create_task(run(worker))
            await asyncio.sleep(0.1)
            await worker.shutdown()
            await running
            raise RuntimeError("polling failed for good")
        await run(worker)

    monkeypatch.setattr(Worker, "run", failing_once)
    monkeypatch.setattr(worker_thread, "RESTART_DELAY_S", 0.05)
    async with Runtime(temporal_url, workflows=["queued_elsewhere"]) as runtime:
        assert await (await runtime.start(queued_elsewhere, "served")).result() == "served"
    assert "default/queued_elsewhere" in failed

"""Following runs from elsewhere: waiting, several at once, several loops, and without a loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast import Client, RunDead, RunFailed, Runtime, UnknownWorkflow, UsageError, step, wait_for_signal, workflow
from holdfast.stores.sqlite import SqliteStore

URL = "sqlite:///runs.db"


@step
async def double(n: int) -> int:
    return n * 2


@workflow(id="doubling-{n}", name="doubling")
async def doubling_flow(n: int) -> int:
    return await double(n)


@workflow(name="waiting")
async def waiting_flow() -> str:
    return await wait_for_signal("go")


class Broken(Exception):
    pass


@workflow(name="breaking")
async def breaking_flow() -> None:
    raise Broken("as it should")


@asynccontextmanager
async def both() -> AsyncIterator[tuple[Runtime, Client]]:
    async with Runtime(URL) as runtime, Client(URL) as client:
        yield runtime, client


def test_many_may_wait_for_one_run_and_one_for_many():
    async def main() -> None:
        async with both() as (_, client):
            handle = await client.start("waiting")
            waiting = [asyncio.ensure_future(client.wait(handle.run_id)) for _ in range(5)]
            others = [await client.start("doubling", n) for n in range(10)]
            assert [await other.result(timeout=10) for other in others] == [n * 2 for n in range(10)]
            await handle.signal("go", "now")
            assert await asyncio.gather(*waiting) == ["now"] * 5

    asyncio.run(main())


def test_waiting_for_a_while_leaves_the_run_alone():
    async def main() -> None:
        async with both() as (_, client):
            handle = await client.start("waiting")
            with pytest.raises(TimeoutError):
                await client.wait(handle.run_id, timeout=0.05)
            await client.signal(handle.run_id, "go", "still there")
            assert await client.wait(handle.run_id, timeout=10) == "still there"

    asyncio.run(main())


def test_a_failed_run_raises_with_its_words_and_its_cause_where_that_is_known():
    async def main() -> None:
        async with both() as (_, client):
            with pytest.raises(RunFailed, match="Broken: as it should") as failed:
                await client.run("breaking")
            assert failed.value.state == "failed"
            info = await client.get(failed.value.run_id)
            assert info.error is not None
            assert str(info.error).endswith("Broken: as it should")

    asyncio.run(main())


def test_a_dead_run_can_be_retried_by_name():
    async def main() -> None:
        async with Client(URL) as client:
            async with Runtime(URL):
                pass  # announces the workflows
            handle = await client.start("doubling", 4)
            store = SqliteStore("runs.db")
            await store.open()
            for _ in range(3):
                from holdfast.stores.workers import NewWorker

                worker = await store.workers.register(NewWorker("w", "h", 1), 10)
                assert await store.claims.claim(worker, workflows=["doubling"], queues=None, limit=1)
                store.workers._locks.release(store.workers._own_workers[worker])
                await store.workers.reap_dead()
            await store.close()
            with pytest.raises(RunDead, match="died 3 times while this was the only run"):
                await handle.result(timeout=10)
            await client.retry(handle.run_id)
            async with Runtime(URL):
                assert await handle.result(timeout=10) == 8

    asyncio.run(main())


def test_an_unknown_workflow_is_refused_with_the_known_ones():
    async def main() -> None:
        async with Client(URL) as client:
            with pytest.raises(UnknownWorkflow, match="none yet"):
                await client.start("doubling")
        async with Runtime(URL, workflows=["doubling", "waiting"]), Client(URL) as client:
            with pytest.raises(UnknownWorkflow, match="there are: 'doubling', 'waiting'"):
                await client.start("zzz")

    asyncio.run(main())


def test_a_client_that_is_closed_connects_again_when_it_is_used():
    async def main() -> None:
        async with both() as (_, client):
            assert await client.run("doubling", 1) == 2
            await client.close()
            assert await client.run("doubling", 2) == 4

    asyncio.run(main())


def test_closing_the_client_ends_its_waits_with_an_error():
    async def main() -> None:
        async with both() as (_, client):
            handle = await client.start("waiting")
            waiting = asyncio.ensure_future(handle.result())
            await asyncio.sleep(0.05)
            await client.close()
            async with asyncio.timeout(5):
                with pytest.raises(UsageError, match="the client was closed"):
                    await waiting

    asyncio.run(main())


def test_a_view_with_options_shares_the_connection_and_leaves_the_client_as_it_is():
    async def main() -> None:
        async with both() as (_, client):
            urgent = client.options(id="by-hand", priority=5, tags=["urgent"], queue="fast")
            assert (await urgent.start("waiting")).run_id == "by-hand"
            info = await client.get("by-hand")
            assert (info.queue, info.tags) == ("fast", ("urgent",))
            assert (await client.start("waiting")).run_id != "by-hand"

    asyncio.run(main())


# Without a loop, and under several


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("call", ["run_sync", "start_sync", "wait_sync", "get_sync"])
def test_a_sync_facade_under_a_running_loop_names_await(call: str):
    import gc

    async def main() -> None:
        with pytest.raises(UsageError, match="`await`"):
            getattr(Client(URL), call)("doubling")

    asyncio.run(main())
    gc.collect()


def test_the_sync_facades_do_what_the_coroutines_do():
    stop, ready = threading.Event(), threading.Event()

    def serve() -> None:
        async def main() -> None:
            async with Runtime(URL):
                ready.set()
                while not stop.is_set():  # noqa: ASYNC110 - set from another thread
                    await asyncio.sleep(0.01)

        asyncio.run(main())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(10)
        client = Client(URL)
        assert client.run_sync("doubling", 3) == 6
        run_id = client.options(id="w").start_sync("waiting")
        assert client.get_sync(run_id).state in ("running", "waiting", "pending")
        assert client.signal_sync(run_id, "go", "done", id="a") is True
        assert client.signal_sync(run_id, "go", "done", id="a") is False
        assert client.wait_sync(run_id, 10) == "done"
    finally:
        stop.set()
        thread.join()


def test_one_client_can_wait_under_two_event_loops_at_once():
    """An async program waits for a run while a thread of it asks something with the same client."""

    async def main() -> None:
        async with both() as (_, client):
            handle = await client.start("waiting")
            waiting = asyncio.ensure_future(client.wait(handle.run_id))
            await asyncio.sleep(0.05)
            info = await asyncio.to_thread(client.get_sync, handle.run_id)
            assert info.id == handle.run_id
            await client.signal(handle.run_id, "go", "heard")
            async with asyncio.timeout(5):
                assert await waiting == "heard"

    asyncio.run(main())


def test_a_client_sees_runs_end_in_another_process(tmp_path: Path):
    code = """
import asyncio
from holdfast import Runtime, step, workflow

@step
async def double(n: int) -> int:
    return n * 2

@workflow(id="doubling-{n}")
async def doubling(n: int) -> int:
    return await double(n)

async def main():
    async with Runtime("sqlite:///runs.db"):
        print("ready", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"

        async def main() -> None:
            async with Client(URL) as client:
                assert await asyncio.gather(*[client.run("doubling", n) for n in range(10)]) == [
                    n * 2 for n in range(10)
                ]

        asyncio.run(main())
    finally:
        worker.kill()
        worker.communicate()

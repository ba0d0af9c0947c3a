"""Loops that end: in good order, without a word, or in the middle of everything."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from pathlib import Path

import pytest
from shared_flows import define_calling, define_waiting

from holdfast import Runtime, UsageError, step, wait_for_signal, workflow
from holdfast.authoring import runtime as runtimes
from waits import wait_until


@pytest.fixture(autouse=True)
def _no_runtime_is_left() -> None:
    runtimes._open_runtimes.clear()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("HOLDFAST_URL", url)
    return url


def test_two_loops_one_after_the_other_use_one_store(url: str):
    calls: list[int] = []

    @step
    async def work(n: int) -> int:
        calls.append(n)
        return n

    @workflow(id="flow-{n}")
    async def flow(n: int) -> int:
        return await work(n)

    assert asyncio.run(flow(1)) == 1
    assert asyncio.run(flow(1)) == 1
    assert asyncio.run(flow(2)) == 2
    assert calls == [1, 2]
    assert all(runtime.is_closed for runtime in runtimes._open_runtimes)


def test_a_run_cut_off_by_the_end_of_its_loop_continues_in_the_next(url: str):
    calls: list[str] = []

    @step
    async def work(name: str) -> str:
        calls.append(name)
        if calls == ["a", "b"]:
            await asyncio.sleep(60)
        return name

    @workflow(id="flow")
    async def flow() -> list[str]:
        return [await work("a"), await work("b")]

    async def cut_off() -> None:
        await flow.start()
        await wait_until(lambda: calls == ["a", "b"])

    asyncio.run(cut_off())
    assert asyncio.run(flow()) == ["a", "b"]
    assert calls == ["a", "b", "b"]


def test_a_loop_that_is_closed_without_a_word_is_abandoned(url: str):
    """As notebooks and some frameworks do it: nothing is cancelled, the loop is just closed."""
    calls: list[str] = []
    undone: list[str] = []

    @step
    async def work(name: str) -> str:
        calls.append(name)
        if calls == ["a", "b"]:
            await asyncio.sleep(60)
        return name

    @step
    async def undo() -> None:
        undone.append("undone")

    @workflow(id="flow")
    async def flow() -> list[str]:
        try:
            return [await work("a"), await work("b")]
        finally:
            await undo()

    async def cut_off() -> None:
        await flow.start()
        await wait_until(lambda: calls == ["a", "b"])

    loop = asyncio.new_event_loop()
    loop.run_until_complete(cut_off())
    loop._default_executor = None  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loop.close()
        assert [runtime.is_closed for runtime in runtimes._open_runtimes] == [False]
        assert asyncio.run(flow()) == ["a", "b"]
        gc.collect()
    assert all(runtime.is_closed for runtime in runtimes._open_runtimes)
    assert calls == ["a", "b", "b"]
    assert undone == ["undone"]


def test_a_caller_that_waits_when_the_runtime_closes_gets_an_error(url: str):
    flow = define_waiting(signal="never")

    async def main() -> None:
        async with Runtime(url) as runtime:
            handle = await runtime.start(flow)
            waiting = asyncio.ensure_future(handle.result())
            await asyncio.sleep(0.01)
        with pytest.raises(UsageError, match="the runtime was closed"):
            await waiting

    asyncio.run(main())


def test_a_runtime_can_be_opened_only_once(url: str):
    async def main() -> None:
        runtime = Runtime(url)
        async with runtime:
            with pytest.raises(UsageError, match="make a new one"):
                await runtime.open()
        await runtime.close()

    asyncio.run(main())


def test_closing_in_the_middle_of_everything_says_nothing(url: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)

    @step
    async def work(n: int) -> int:
        await asyncio.sleep(60)
        return n

    @step
    def plain(n: int) -> int:
        return n

    @workflow
    async def flow(n: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(work(n))
            group.create_task(plain(n))
            group.create_task(wait_for_signal("go"))
            group.create_task(asyncio.sleep(30))

    async def main() -> None:
        async with Runtime(url) as runtime:
            for n in range(20):
                await runtime.start(flow, n)
            await asyncio.sleep(0.05)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


def test_a_store_that_cannot_be_opened_is_a_plain_error_and_nothing_stays_open(tmp_path: Path):
    from holdfast.errors import StoreError

    (tmp_path / "runs.db").write_text("this is not a database, but a text of more than a few words " * 50)

    @workflow
    async def flow() -> None: ...

    async def main() -> None:
        with pytest.raises(StoreError):
            await Runtime(f"sqlite:///{tmp_path}/runs.db").open()

    asyncio.run(main())
    assert all(runtime.is_closed for runtime in runtimes._open_runtimes)


def test_threads_of_closed_runtimes_do_not_pile_up(url: str):
    import threading

    @step
    def work() -> int:
        return 1

    flow = define_calling(work)

    async def once() -> None:
        async with Runtime(url) as runtime:
            assert await (await runtime.start(flow.options(new=True))).result() == 1

    asyncio.run(once())
    before = threading.active_count()
    for _ in range(5):
        asyncio.run(once())
    assert threading.active_count() <= before + 1

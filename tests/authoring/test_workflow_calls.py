"""Calling steps and workflows: inside a run, outside one, from sync code, under other loops."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvloop

from holdfast import (
    RunFailed,
    Runtime,
    UsageError,
    current_run,
    current_step,
    map,
    now,
    random,
    step,
    uuid4,
    wait_for_signal,
    workflow,
)
from holdfast.authoring import runtime as runtimes

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@step
async def double(n: int) -> int:
    return n * 2


@step
def triple(n: int) -> int:
    return n * 3


# Outside a run


def test_a_step_outside_a_run_is_a_plain_call():
    assert triple(2) == 6
    assert asyncio.run(double(2)) == 4  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_step_called_by_a_step_is_a_plain_call(url: str):
    @step
    async def six_times(n: int) -> int:
        return await double(triple(n))  # type: ignore[arg-type]

    @workflow
    async def flow() -> int:
        return await six_times(1)

    async with Runtime(url) as runtime:
        handle = await flow.start()
        assert await handle.result() == 6
        [history] = await runtime._engine.store.get_histories([(await runtime.store_provider.read(handle.run_id)).key])
        assert [record.name for record in history.records] == ["six_times"]


def test_time_and_chance_outside_a_run_are_the_real_ones():
    assert abs((now() - datetime.now(UTC)).total_seconds()) < 5
    assert uuid4() != uuid4()
    assert isinstance(uuid4(), uuid.UUID)
    assert 0 <= random() < 1


@pytest.mark.asyncio
async def test_what_is_only_for_runs_says_so_elsewhere():
    with pytest.raises(UsageError, match="inside a workflow, a program, or a step"):
        current_run()
    with pytest.raises(UsageError, match="inside a step"):
        current_step()
    with pytest.raises(UsageError, match="only in workflow code"):
        await wait_for_signal("go")
    with pytest.raises(UsageError, match="only in workflow code"):
        await map(double, [1])


# Inside


@pytest.mark.asyncio
async def test_a_run_knows_itself_in_workflow_code_and_in_steps(url: str):
    @step
    async def look() -> list[str]:
        return [current_run().id, current_run().workflow, str(current_run().is_replaying), current_step().name]

    @step
    def look_in_a_thread() -> list[str]:
        return [current_run().id, current_run().workflow, str(current_run().is_replaying), current_step().name]

    @workflow(id="me")
    async def flow() -> list[Any]:
        with pytest.raises(UsageError):
            current_step()
        return [current_run().id, current_run().workflow, await look(), await look_in_a_thread()]

    async with Runtime(url):
        assert await flow() == [
            "me",
            "flow",
            ["me", "flow", "False", "look"],
            ["me", "flow", "False", "look_in_a_thread"],
        ]


@pytest.mark.asyncio
async def test_signals_and_map_are_not_for_steps(url: str):
    @step
    async def bad() -> str:
        try:
            await wait_for_signal("go")
        except UsageError as error:
            return str(error)
        return ""

    @workflow
    async def flow() -> str:
        return await bad()

    async with Runtime(url):
        assert "not in a step" in await flow()


@pytest.mark.asyncio
async def test_context_variables_of_the_caller_reach_its_steps(url: str):
    @step
    async def ask() -> str:
        seen = who.get()
        who.set("changed in the step")
        return seen

    @step
    def ask_in_a_thread() -> str:
        return who.get()

    async def branch(name: str) -> list[str]:
        who.set(name)
        return [await ask(), await ask_in_a_thread(), who.get()]

    @workflow
    async def flow() -> list[Any]:
        return [who.get(), *await asyncio.gather(branch("ann"), branch("bob")), who.get()]

    async with Runtime(url):
        who.set("the starter")  # of no importance: it would not be there on replay
        assert await flow() == ["nobody", ["ann"] * 3, ["bob"] * 3, "nobody"]


@pytest.mark.asyncio
async def test_a_workflow_called_in_a_workflow_is_a_run_of_its_own(url: str):
    @workflow
    async def inner() -> str:
        return current_run().id

    @workflow(id="outer-of-inner")
    async def outer() -> str:
        return await inner()

    async with Runtime(url) as runtime:
        assert await outer() == "outer-of-inner:inner-1"
        assert (await runtime.store_provider.read("outer-of-inner:inner-1")).parent == "outer-of-inner"


@pytest.mark.asyncio
async def test_a_step_that_was_not_awaited_fails_nothing_but_is_not_run(url: str):
    @workflow
    async def flow() -> str:
        forgotten = double(1)
        forgotten.close()
        return "done"

    async with Runtime(url):
        assert await flow() == "done"


# From code without a loop


def test_what_run_sync_raises_has_no_unrelated_context(url: str):
    @workflow
    async def flow() -> int:
        raise ValueError("no")

    with pytest.raises(RunFailed) as failed:
        flow.run_sync()
    assert failed.value.__context__ is None
    assert isinstance(failed.value.__cause__, ValueError)


def test_run_sync_runs_it_from_plain_code(url: str):
    @workflow(id="once")
    async def flow(n: int) -> int:
        return await double(n) + await triple(n)

    assert flow.run_sync(2) == 10
    assert flow.run_sync(2) == 10


@pytest.mark.asyncio
@pytest.mark.filterwarnings("error")
async def test_run_sync_under_a_running_loop_names_await():
    @workflow
    async def flow() -> int:
        return 1

    with pytest.raises(UsageError, match="`await`"):
        flow.run_sync()


def test_run_sync_in_a_thread_next_to_a_running_loop(url: str):
    @workflow
    async def flow(n: int) -> int:
        return await double(n)

    async def main() -> list[int]:
        return list(await asyncio.gather(*[asyncio.to_thread(flow.run_sync, n) for n in range(3)], flow(9)))

    assert asyncio.run(main()) == [0, 2, 4, 18]


# Loops


def test_uvloop_outside(url: str):
    @workflow
    async def flow() -> list[int]:
        await asyncio.sleep(0.01)
        return list(await asyncio.gather(*[double(n) for n in range(5)], triple(3)))

    async def main() -> list[int]:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        return await flow()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [0, 2, 4, 6, 8, 9]


def test_a_loop_in_debug_mode(url: str):
    @workflow
    async def flow() -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(double(n)) for n in range(3)]
        return sum(task.result() for task in tasks) + await triple(1)

    assert asyncio.run(flow(), debug=True) == 9


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="Python 3.12")
def test_a_loop_that_starts_tasks_eagerly(url: str):
    @workflow
    async def flow() -> int:
        return sum(await asyncio.gather(*[double(n) for n in range(4)])) + await triple(1)

    async def main() -> int:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        return await flow()

    assert asyncio.run(main()) == 15


def test_anyio_outside(url: str):
    @workflow
    async def flow(n: int) -> int:
        return await double(n)

    async def main() -> list[int]:
        results: list[int] = []

        async def one(n: int) -> None:
            results.append(await flow(n))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for n in range(3):
                    group.start_soon(one, n)
        return sorted(results)

    assert anyio.run(main) == [0, 2, 4]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_under_anyios_pytest_plugin(url: str, anyio_backend: str):
    @workflow
    async def flow() -> int:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(double, 1)
        return await double(3)

    async with Runtime(url):
        assert await flow() == 6


@pytest.mark.asyncio
async def test_the_default_runtime_is_opened_once_for_everybody(url: str):
    @workflow
    async def flow(n: int) -> int:
        return await double(n)

    assert await asyncio.gather(*[flow(n) for n in range(10)]) == [n * 2 for n in range(10)]
    assert len([runtime for runtime in runtimes._open_runtimes if not runtime.is_closed]) == 1
    for runtime in list(runtimes._open_runtimes):
        await runtime.close()


@pytest.mark.asyncio
async def test_the_runtime_opened_last_is_the_one_that_is_used(url: str, tmp_path: Path):
    @workflow
    async def flow() -> int:
        return await double(1)

    async with Runtime(url) as outer:
        async with Runtime(f"sqlite:///{tmp_path}/inner.db") as inner:
            handle = await flow.start()
            assert await handle.result() == 2
            assert await inner._engine.store.get_run(handle.run_id) is not None
            assert await outer._engine.store.get_run(handle.run_id) is None
        handle = await flow.start()
        assert await handle.result() == 2
        assert await outer._engine.store.get_run(handle.run_id) is not None


def test_the_default_store_is_a_file_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HOLDFAST_URL")
    monkeypatch.chdir(tmp_path)

    @workflow
    async def flow() -> int:
        return await double(1)

    assert asyncio.run(flow()) == 2
    assert (tmp_path / ".holdfast" / "runs.db").exists()
    assert os.stat(tmp_path / ".holdfast").st_mode & 0o077 == 0


def test_holdfast_url_names_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/elsewhere.db")

    @workflow
    async def flow() -> int:
        return await double(1)

    assert asyncio.run(flow()) == 2
    assert (tmp_path / "elsewhere.db").exists()


def test_memory_is_a_store_as_well(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_URL", "memory://")

    @workflow
    async def flow() -> int:
        return await double(1) + await triple(1)

    assert asyncio.run(flow()) == 5


def test_runtimes_of_two_threads_do_not_see_each_other(url: str):
    @workflow
    async def flow(n: int) -> int:
        await asyncio.sleep(0.01)
        return await double(n)

    results: list[int] = []

    def work(n: int) -> None:
        results.append(asyncio.run(flow(n)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 2, 4]


@pytest.mark.asyncio
async def test_a_runtime_that_is_opened_again_picks_up_what_is_unfinished(url: str):
    calls: list[int] = []

    @step
    async def work(n: int) -> int:
        calls.append(n)
        return n

    @workflow(id="flow")
    async def flow() -> int:
        first = await work(1)
        await wait_for_signal("go")
        return first + await work(2)

    async with Runtime(url):
        handle = await flow.start()
        await asyncio.sleep(0.05)
    async with Runtime(url) as again:
        await flow.get_handle(again.store_provider, handle.run_id).signal("go")
        assert await flow.get_handle(again.store_provider, handle.run_id).result(timeout=20) == 3
    assert calls == [1, 2]

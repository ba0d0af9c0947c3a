"""What workflow code may not do: it is told so, and the run fails even if it does not listen."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import anyio.to_thread
import pytest
from scripted import Replay, World

from holdfast.core import execution as execution_module
from holdfast.core.loop import RunLoop
from holdfast.core.records import Kind, Record
from holdfast.errors import (
    ForbiddenInWorkflow,
    HoldfastError,
    WorkflowNeverYields,
    WorkflowStuck,
)

HERE = Path(__file__)


def fault_of(flow: Callable[[World], Awaitable[Any]]) -> HoldfastError:
    """Why a workflow cannot go on, after its first turn."""
    world = Replay(flow, [])  # type: ignore[arg-type]
    fault = world.execution.fault
    world.leave()
    assert fault is not None, world.execution.ending
    return fault


def line_of(marker: str) -> int:
    """The line of this file that ends in ``# marker``."""
    [number] = [n for n, line in enumerate(HERE.read_text().splitlines(), 1) if line.endswith(f"# {marker}")]
    return number


async def nothing() -> None: ...


FORBIDDEN: dict[str, tuple[Callable[[], Any], str]] = {
    "open_connection": (lambda: asyncio.open_connection("localhost", 80), "in a step"),
    "start_server": (lambda: asyncio.start_server(lambda r, w: None, "localhost", 0), "in a step"),
    "to_thread": (lambda: asyncio.to_thread(print), "run blocking code in a step"),
    "run_in_executor": (
        lambda: asyncio.get_running_loop().run_in_executor(None, print),
        "a plain `def` step runs in a thread",
    ),
    "add_reader": (lambda: asyncio.get_running_loop().add_reader(0, print), "in a step"),
    "create_subprocess_exec": (lambda: asyncio.create_subprocess_exec("true"), "in a step"),
    "create_subprocess_shell": (lambda: asyncio.create_subprocess_shell("true"), "in a step"),
    "getaddrinfo": (lambda: asyncio.get_running_loop().getaddrinfo("localhost", 80), "in a step"),
    "sock_recv": (lambda: asyncio.get_running_loop().sock_recv(cast("socket.socket", None), 1), "in a step"),
    "add_signal_handler": (
        lambda: asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print),
        "outside the workflow",
    ),
    "set_exception_handler": (lambda: asyncio.get_running_loop().set_exception_handler(None), "catch exceptions"),
    "set_task_factory": (lambda: asyncio.get_running_loop().set_task_factory(None), "made by Holdfast"),
    "stop": (lambda: asyncio.get_running_loop().stop(), "return from the workflow"),
    "close": (lambda: asyncio.get_running_loop().close(), "return from the workflow"),
    "run_forever": (lambda: asyncio.get_running_loop().run_forever(), "await instead"),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_only_a_step_may_do_is_refused_with_the_way_out(name: str):
    call, way_out = FORBIDDEN[name]

    async def flow(w: World) -> None:
        result = call()
        if inspect.isawaitable(result):
            await result

    fault = fault_of(flow)
    assert isinstance(fault, ForbiddenInWorkflow)
    assert "run 'run-7'" in str(fault)
    assert way_out in str(fault)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_broad_except_does_not_hide_what_is_forbidden(name: str):
    call, _ = FORBIDDEN[name]

    async def flow(w: World) -> str:
        try:
            result = call()
            if inspect.isawaitable(result):
                await result
        except Exception:
            pass  # as code around an HTTP client does
        return await w.step("never started")

    assert isinstance(fault_of(flow), ForbiddenInWorkflow)


def test_no_method_of_a_loop_is_left_to_say_not_implemented():
    inherited = [
        name
        for name in dir(asyncio.AbstractEventLoop)
        if not name.startswith("_") and getattr(RunLoop, name) is getattr(asyncio.AbstractEventLoop, name)
    ]
    assert inherited == []


def test_every_method_that_is_not_for_workflows_poisons_the_run():
    allowed = {
        "call_at", "call_exception_handler", "call_later", "call_soon", "call_soon_threadsafe", "create_future",
        "create_task", "default_exception_handler", "get_debug", "get_exception_handler", "get_task_factory",
        "is_closed", "is_running", "set_debug", "time",
    }  # fmt: skip
    refused = sorted({name for name in dir(asyncio.AbstractEventLoop) if not name.startswith("_")} - allowed)
    assert len(refused) > 35
    for name in refused:

        async def flow(w: World, name: str = name) -> None:
            try:
                await getattr(asyncio.get_running_loop(), name)()
            except Exception:
                pass
            await w.step("never started")

        fault = fault_of(flow)
        assert isinstance(fault, ForbiddenInWorkflow), name
        assert f"loop.{name}`" in str(fault)


# What bypasses the loop: nothing can ever wake the workflow, and that is seen at once


def test_a_workflow_that_waits_for_an_event_that_nobody_sets_is_told_where():
    async def flow(w: World) -> None:
        await w.step("first")
        await asyncio.Event().wait()  # stuck here

    world = Replay(flow, [Record(0, Kind.STEP, 0, "first", True, b'"x"', 1_001.0)])
    fault = world.execution.fault
    assert isinstance(fault, WorkflowStuck)
    assert f"{HERE}:{line_of('stuck here')} in flow" in str(fault)
    assert "do this in a step" in str(fault)
    world.leave()


def test_a_stuck_helper_is_named_by_its_own_line():
    async def helper() -> None:
        await asyncio.get_running_loop().create_future()  # the helper waits here

    async def flow(w: World) -> None:
        await helper()

    assert f"{HERE}:{line_of('the helper waits here')} in helper" in str(fault_of(flow))


def test_a_deadlock_of_two_tasks_is_stuck():
    async def flow(w: World) -> None:
        one, two = asyncio.Lock(), asyncio.Lock()

        async def cross(first: asyncio.Lock, second: asyncio.Lock) -> None:
            async with first:
                await asyncio.sleep(0)
                async with second:
                    pass

        await asyncio.gather(cross(one, two), cross(two, one))

    assert isinstance(fault_of(flow), WorkflowStuck)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_library_that_brings_its_own_threads_is_stuck_or_refused():
    async def flow(w: World) -> None:
        await anyio.to_thread.run_sync(lambda: 1)  # the thread never gets through

    fault = fault_of(flow)
    assert isinstance(fault, WorkflowStuck | ForbiddenInWorkflow)
    assert "in a step" in str(fault)
    for thread in threading.enumerate():
        if thread.name == "AnyIO worker thread":
            thread.join(5)  # it dies of being refused, which is none of the next test's business


def test_a_future_of_another_loop_cannot_be_awaited():
    other = asyncio.new_event_loop()
    foreign = other.create_future()

    async def flow(w: World) -> None:
        await foreign

    world = Replay(flow, [])
    assert world.ending is not None
    assert "attached to a different loop" in world.ending[1]
    world.leave()
    other.close()


def test_a_future_of_a_thread_is_stuck_and_named_with_its_line():
    thread_result: concurrent.futures.Future[int] = concurrent.futures.Future()

    async def flow(w: World) -> None:
        await asyncio.wrap_future(thread_result)  # waits for a thread

    fault = fault_of(flow)
    assert isinstance(fault, WorkflowStuck)
    assert f"{HERE}:{line_of('waits for a thread')} in flow" in str(fault)


def test_a_thread_that_calls_into_a_workflow_poisons_it():
    loops: list[asyncio.AbstractEventLoop] = []

    async def flow(w: World) -> None:
        loops.append(asyncio.get_running_loop())
        await w.step("meanwhile a thread calls")

    world = Replay(flow, [])
    refused: list[BaseException] = []

    def intrude() -> None:
        try:
            loops[0].call_soon_threadsafe(print)
        except ForbiddenInWorkflow as error:
            refused.append(error)

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()
    assert "send the run a signal" in str(refused[0])
    assert world.execution.turn()
    assert world.execution.fault is refused[0]
    world.leave()


def test_a_callback_from_outside_between_two_turns_poisons_too():
    async def flow(w: World) -> None:
        await w.step("waiting")

    world = Replay(flow, [])
    with pytest.raises(ForbiddenInWorkflow):
        world.execution.loop.call_soon(print)
    world.execution.turn()
    assert isinstance(world.execution.fault, ForbiddenInWorkflow)
    world.leave()


def test_a_loop_around_sleep_zero_is_ended_and_told_where(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(execution_module, "TURN_LIMIT", 20_000)

    async def flow(w: World) -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)  # spins here

    fault = fault_of(flow)
    assert isinstance(fault, WorkflowNeverYields)
    assert f"{HERE}:{line_of('spins here')} in flow" in str(fault)
    assert "asyncio.sleep(seconds)" in str(fault)


def test_a_long_workflow_is_given_back_slice_by_slice_and_goes_on():
    async def flow(w: World) -> int:
        for _ in range(10_000):
            await asyncio.sleep(0)
        return 1

    world = World(flow)
    world.execution.start()
    slices = 0
    while not world.execution.turn():
        slices += 1
    assert slices >= 4
    assert world.ending == ("value", "1")
    world.leave()


# as_completed, imported too early


def test_as_completed_imported_before_holdfast_is_refused_and_not_silently_wrong():
    code = """
        from asyncio import as_completed
        import asyncio
        from scripted import Replay

        async def flow(w):
            try:
                for first in as_completed([w.step(f"c{n}") for n in range(4)]):
                    await first
            except Exception:
                pass

        world = Replay(flow, [])
        print(type(world.execution.fault).__name__, world.execution.fault)
        world.leave()
        tasks_made = len(world.execution.trace)
        print("issued", tasks_made)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE.parents[2] / "src")])}
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.startswith("ForbiddenInWorkflow")
    assert "import holdfast first" in told.stdout
    assert told.stdout.rstrip().endswith("issued 0")


def test_as_completed_and_wait_for_outside_a_run_are_asyncios_own():
    async def main() -> list[int]:
        async def give(n: int) -> int:
            await asyncio.sleep(0.001 * n)
            return n

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        assert {asyncio.gather(give(0)), asyncio.gather(give(0))}
        return [await first for first in asyncio.as_completed([give(3), give(1), give(2)])]

    assert sorted(asyncio.run(main())) == [1, 2, 3]

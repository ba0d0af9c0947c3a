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
from scripted_execution import Replay, World

from holdfast.core import execution as execution_module
from holdfast.core.loop import RunLoop
from holdfast.core.records import Record, RecordKind
from holdfast.errors import (
    ForbiddenInWorkflow,
    HoldfastError,
    WorkflowNeverYields,
    WorkflowStuck,
)

HERE = Path(__file__)


def get_fatal_error(flow: Callable[[World], Awaitable[Any]]) -> HoldfastError:
    """Why a workflow cannot go on, after its first turn."""
    world = Replay(flow, [])  # type: ignore[arg-type]
    fault = world.execution.fatal_error
    world.leave()
    assert fault is not None, world.execution.result
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

    fault = get_fatal_error(flow)
    assert isinstance(fault, ForbiddenInWorkflow)
    assert "run 'run-7'" in str(fault)
    assert way_out in str(fault)


# The place of the forbidden call


def installed(name: str, source: str) -> dict[str, Any]:
    """The names of a module, as if it had been installed."""
    scope: dict[str, Any] = {"asyncio": asyncio}
    file = f"/opt/venv/lib/python3.12/site-packages/{name}/client.py"
    exec(compile(textwrap.dedent(source), file, "exec"), scope)
    return scope


LIBRARY = installed(
    "fetcher",
    """
    async def fetch():
        await asyncio.open_connection("localhost", 80)

    async def fetch_in_tasks():
        await asyncio.gather(fetch(), fetch())

    def call(function):
        return function()
    """,
)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_line_of_every_forbidden_call_is_named(name: str):
    call, _ = FORBIDDEN[name]

    async def flow(w: World) -> None:
        result = call()
        if inspect.isawaitable(result):
            await result  # awaited

    line = call.__code__.co_firstlineno
    places = {f"(at {HERE}:{n} in <lambda>)" for n in (line, line + 1)} | {f"(at {HERE}:{line_of('awaited')} in flow)"}
    assert any(place in str(get_fatal_error(flow)) for place in places)


async def open_in_helper() -> None:
    await asyncio.open_connection("localhost", 80)  # by a helper


async def in_a_helper(w: World) -> None:
    await open_in_helper()


async def in_a_plain_helper(w: World) -> None:
    def look_up() -> Any:
        return asyncio.get_running_loop().run_in_executor(None, print)  # by a plain helper

    await look_up()


async def in_a_library(w: World) -> None:
    await LIBRARY["fetch"]()  # by a library


async def in_what_a_library_returned(w: World) -> None:
    await LIBRARY["call"](lambda: asyncio.to_thread(print))  # by what a library returned


async def in_a_task_of_gather(w: World) -> None:
    async def waits() -> None:
        await w.step("waits")

    await asyncio.gather(waits(), open_in_helper())


async def in_a_task_group(w: World) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(open_in_helper())


async def in_a_gathered_library(w: World) -> None:
    await asyncio.gather(w.step("one"), LIBRARY["fetch"]())  # by a gathered library


async def in_a_gathered_function_of_asyncio(w: World) -> None:
    await asyncio.gather(asyncio.to_thread(print), w.step("one"))  # by asyncio


async def in_a_task_of_a_task_of_a_library(w: World) -> None:
    task = asyncio.create_task(LIBRARY["fetch_in_tasks"]())  # by tasks of a library
    await w.step("elsewhere")
    await task


async def in_an_async_generator(w: World) -> None:
    async def pages() -> Any:
        yield await asyncio.to_thread(print)  # by a generator

    async for _ in pages():
        pass


@pytest.mark.parametrize(
    ("flow", "marker", "function"),
    [
        (in_a_helper, "by a helper", "open_in_helper"),
        (in_a_plain_helper, "by a plain helper", "look_up"),
        (in_a_library, "by a library", "in_a_library"),
        (in_what_a_library_returned, "by what a library returned", "in_what_a_library_returned"),
        (in_a_task_of_gather, "by a helper", "open_in_helper"),
        (in_a_task_group, "by a helper", "open_in_helper"),
        (in_a_gathered_library, "by a gathered library", "in_a_gathered_library"),
        (in_a_gathered_function_of_asyncio, "by asyncio", "in_a_gathered_function_of_asyncio"),
        (in_a_task_of_a_task_of_a_library, "by tasks of a library", "in_a_task_of_a_task_of_a_library"),
        (in_an_async_generator, "by a generator", "pages"),
    ],
)
def test_the_users_own_line_is_named_and_no_librarys(flow: Any, marker: str, function: str):
    assert f"(at {HERE}:{line_of(marker)} in {function})" in str(get_fatal_error(flow))


@pytest.mark.parametrize(
    ("entry", "line", "function"), [("direct", 3, "load"), ("gathered", 3, "load"), ("lib", 9, "lib")]
)
def test_of_an_installed_application_its_own_line_is_named(entry: str, line: int, function: str):
    app = installed(
        "shop",
        """
        async def load():
            await fetch()
        async def direct(w):
            await load()
        async def gathered(w):
            await asyncio.gather(load())
        async def lib(w):
            await asyncio.gather(fetch())
        """,
    )
    app["fetch"] = LIBRARY["fetch"]
    assert f"(at {app[entry].__code__.co_filename}:{line} in {function})" in str(get_fatal_error(app[entry]))


def test_a_forbidden_callback_is_named_by_where_the_run_waits():
    async def flow(w: World) -> None:
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)
        await asyncio.sleep(5)  # the run waits here

    assert f"the run waits at {HERE}:{line_of('the run waits here')} in flow" in str(get_fatal_error(flow))


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

    assert isinstance(get_fatal_error(flow), ForbiddenInWorkflow)


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

        fault = get_fatal_error(flow)
        assert isinstance(fault, ForbiddenInWorkflow), name
        assert f"loop.{name}`" in str(fault)


# What bypasses the loop: nothing can ever wake the workflow, and that is seen at once


def test_a_workflow_that_waits_for_an_event_that_is_never_set_fails_with_its_location():
    async def flow(w: World) -> None:
        await w.step("first")
        await asyncio.Event().wait()  # stuck here

    world = Replay(flow, [Record(0, RecordKind.STEP, 0, "first", True, b'"x"', 1_001.0)])
    fault = world.execution.fatal_error
    assert isinstance(fault, WorkflowStuck)
    assert f"{HERE}:{line_of('stuck here')} in flow" in str(fault)
    assert "do this in a step" in str(fault)
    world.leave()


def test_a_stuck_helper_is_named_by_its_own_line():
    async def helper() -> None:
        await asyncio.get_running_loop().create_future()  # the helper waits here

    async def flow(w: World) -> None:
        await helper()

    assert f"{HERE}:{line_of('the helper waits here')} in helper" in str(get_fatal_error(flow))


def test_a_deadlock_of_two_tasks_is_stuck():
    async def flow(w: World) -> None:
        one, two = asyncio.Lock(), asyncio.Lock()

        async def cross(first: asyncio.Lock, second: asyncio.Lock) -> None:
            async with first:
                await asyncio.sleep(0)
                async with second:
                    pass

        await asyncio.gather(cross(one, two), cross(two, one))

    assert isinstance(get_fatal_error(flow), WorkflowStuck)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_library_that_brings_its_own_threads_is_stuck_or_refused():
    async def flow(w: World) -> None:
        await anyio.to_thread.run_sync(lambda: 1)  # the thread never gets through

    fault = get_fatal_error(flow)
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

    fault = get_fatal_error(flow)
    assert isinstance(fault, WorkflowStuck)
    assert f"{HERE}:{line_of('waits for a thread')} in flow" in str(fault)


def test_a_thread_that_calls_into_a_workflow_poisons_it():
    loops: list[asyncio.AbstractEventLoop] = []

    async def flow(w: World) -> None:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(5)  # meanwhile a thread calls

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
    assert f"the run waits at {HERE}:{line_of('meanwhile a thread calls')} in flow" in str(refused[0])
    assert world.execution.turn()
    assert world.execution.fatal_error is refused[0]
    world.leave()


def test_a_callback_from_outside_between_two_turns_poisons_too():
    async def flow(w: World) -> None:
        await w.step("waiting")

    world = Replay(flow, [])
    with pytest.raises(ForbiddenInWorkflow):
        world.execution.loop.call_soon(print)
    world.execution.turn()
    assert isinstance(world.execution.fatal_error, ForbiddenInWorkflow)
    world.leave()


def test_a_loop_around_sleep_zero_is_ended_with_its_location(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(execution_module, "MAX_CALLBACKS", 20_000)

    async def flow(w: World) -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)  # spins here

    fault = get_fatal_error(flow)
    assert isinstance(fault, WorkflowNeverYields)
    assert f"{HERE}:{line_of('spins here')} in flow" in str(fault)
    assert "asyncio.sleep(seconds)" in str(fault)


def test_a_long_workflow_runs_in_slices():
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
        from scripted_execution import Replay

        async def flow(w):
            try:
                for first in as_completed([w.step(f"c{n}") for n in range(4)]):
                    await first
            except Exception:
                pass

        world = Replay(flow, [])
        print(type(world.execution.fatal_error).__name__, world.execution.fatal_error)
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


async def _ends_of_wait_for() -> list[str]:
    """How ``wait_for`` ends for futures and coroutines in every state, with and without time."""
    loop = asyncio.get_running_loop()

    async def stubborn() -> str:
        try:
            await loop.create_future()
        except asyncio.CancelledError:
            pass
        return "all the same"

    def future(how: str) -> Any:
        made = loop.create_future()
        if how == "value":
            made.set_result("value")
        elif how == "error":
            made.set_exception(KeyError("error"))
        elif how == "cancelled":
            made.cancel()
        return made

    async def begun(coro: Any) -> Any:
        task = loop.create_task(coro)
        await asyncio.sleep(0)
        return task

    ends: list[str] = []
    for limit in (0, -1, 0.0, None, 5):
        given = [(how, future(how)) for how in ("value", "error", "cancelled")]
        if limit is not None and limit <= 0:
            given += [("open", future("open")), ("stubborn", await begun(stubborn()))]
            cancelled = await begun(stubborn())
            cancelled.cancel()
            given += [("being cancelled", cancelled)]
        for how, one in given:
            try:
                ended = str(await asyncio.wait_for(one, limit))
            except BaseException as error:
                ended = repr(error)
            ends.append(f"{limit} {how}: {ended}")
    return ends


def test_wait_for_ends_as_it_does_in_asyncio():
    ends: list[str] = []

    async def flow(_: Any) -> None:
        ends.extend(await _ends_of_wait_for())

    Replay(flow, []).leave()
    assert ends == asyncio.run(_ends_of_wait_for())

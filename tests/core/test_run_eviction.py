"""A run that leaves memory takes everything with it, does nothing, and says nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import subprocess
import sys
import textwrap
import warnings
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from replay_flows import FLOWS
from scripted_execution import Live, Replay, World

from holdfast.core import loop as loop_module
from holdfast.core.records import Record, RecordKind
from holdfast.errors import RunParked

HERE = Path(__file__)


@pytest.fixture(autouse=True)
def _no_zombies_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "leaked_tasks", [])


def timer(seq: int, position: int, at: float) -> Record:
    return Record(seq, RecordKind.TIMER, position, "s", True, None, at)


def step(seq: int, position: int, name: str) -> Record:
    return Record(seq, RecordKind.STEP, position, name, True, b'"x"', 1_001.0)


def test_a_finally_block_that_issues_a_step_runs_it_once_although_the_run_left_three_times():
    async def flow(w: World) -> str:
        try:
            for _ in range(3):
                await w.signal("go")
        finally:
            await w.step("undo")
        return "done"

    journal: list[Record] = []
    issued: list[Any] = []
    for n in range(3):
        world = Replay(flow, journal)
        assert [name for _, _, name in world.execution.trace] == ["go"] * (n + 1)
        issued += [c.name for c in world.execution.take_issued() if c.name == "undo"]
        before = list(world.execution.trace)
        world.leave()
        assert world.execution.trace == before
        assert world.execution.take_issued() == []
        journal.append(Record(n, RecordKind.SIGNAL, n, "go", True, b"1", 1_001.0))
    last = Replay(flow, journal)
    issued += [c.name for c in last.execution.take_issued() if c.name == "undo"]
    last.deliver(step(3, 3, "undo"))
    assert last.ending == ("value", "'done'")
    last.leave()
    assert issued == ["undo"]


@pytest.mark.parametrize("name", FLOWS)
def test_leaving_at_any_point_neither_logs_nor_warns_nor_leaves_anything(
    name: str,
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
):
    warnings.simplefilter("always")
    caplog.set_level(logging.DEBUG)
    run = Live(FLOWS[name], f"{name}:leaving")
    for length in range(len(run.journal) + 1):
        world = Replay(FLOWS[name], run.journal[:length])
        before = (list(world.execution.trace), world.execution.loop.time())
        world.leave()
        assert (list(world.execution.trace), world.execution.loop.time()) == before
        assert not world.execution.open_commands
        assert not world.execution.loop.timers
        assert world.execution.take_issued() == world.execution.take_withdrawn() == []
        assert not world.execution.unhandled_errors or name == "fire_and_forget"
    run.leave()
    del world, run
    gc.collect()
    assert caplog.records == []
    assert [str(one.message) for one in recwarn] == []
    assert loop_module.leaked_tasks == []


def test_what_a_left_run_held_can_be_collected():
    class Thing:
        pass

    kept: list[weakref.ref[Thing]] = []

    async def flow(w: World) -> None:
        thing = Thing()
        kept.append(weakref.ref(thing))
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(w.step(f"s{n}"))
            await w.signal("go")

    world = Replay(flow, [])
    world.leave()
    del world
    gc.collect()
    assert kept[0]() is None


def test_commands_from_finally_and_except_are_refused_while_the_run_leaves():
    refused: list[str] = []

    async def flow(w: World) -> None:
        try:
            await w.signal("go")
        except BaseException:
            for call in (w.step("undo"), asyncio.sleep(5), w.signal("other")):
                try:
                    await call
                except RunParked as parked:
                    refused.append(str(parked))
            raise

    world = Replay(flow, [])
    world.leave()
    assert len(refused) == 3
    assert "leaving memory" in refused[0]
    assert world.execution.trace == [("signal", 0, "go")]


def test_new_tasks_are_refused_while_the_run_leaves():
    async def flow(w: World) -> None:
        try:
            await w.signal("go")
        finally:
            await asyncio.gather(w.step("a"), w.step("b"))

    world = Replay(flow, [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.leave()
        gc.collect()
    assert world.execution.trace == [("signal", 0, "go")]


def test_an_except_exception_does_not_stop_the_run_from_leaving():
    async def flow(w: World) -> None:
        while True:
            try:
                await w.signal("go")
            except Exception:
                pytest.fail("RunParked is no Exception")

    world = Replay(flow, [])
    world.leave()
    assert loop_module.leaked_tasks == []


def test_tasks_end_newest_first_so_that_a_parent_outlives_its_child():
    order: list[str] = []

    async def child(w: World, n: int) -> None:
        try:
            await w.step(f"child {n}")
        finally:
            order.append(f"child {n}")

    async def flow(w: World) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for n in range(3):
                    group.create_task(child(w, n))
        finally:
            order.append("parent")

    Replay(flow, []).leave()
    assert order == ["child 2", "child 1", "child 0", "parent"]


def test_a_task_that_swallows_everything_becomes_a_zombie_with_a_warning():

    stubborn = True

    async def flow(w: World) -> None:
        while stubborn:
            try:
                await w.step("again")
            except BaseException:
                pass  # not even RunParked gets through

    world = Replay(flow, [])
    with pytest.warns(ResourceWarning, match="run 'run-7': a task goes on although its run left memory"):
        world.leave()
    [zombie] = loop_module.leaked_tasks
    assert world.execution.trace == [("step", 0, "again")]
    stubborn = False  # so that it does not go on when the interpreter ends
    with contextlib.suppress(RuntimeError):
        cast("Any", zombie).get_coro().close()


def test_a_run_leaves_completely_although_the_warning_about_a_zombie_is_an_error(monkeypatch: pytest.MonkeyPatch):
    gc.collect()  # what others have left is none of this test's
    told: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    stubborn = True

    async def flow(w: World) -> None:
        waiting = asyncio.create_task(w.signal("never"))
        while stubborn:
            try:
                await w.step("again")
            except BaseException:
                pass
        await waiting

    world = Replay(flow, [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.leave()
    assert not world.execution.loop.live_tasks
    assert [type(one.exc_value) for one in told] == [ResourceWarning]
    stubborn = False
    with contextlib.suppress(RuntimeError):
        cast("Any", loop_module.leaked_tasks[0]).get_coro().close()


def test_leaving_twice_is_harmless():
    async def flow(w: World) -> None:
        await w.signal("go")

    world = Replay(flow, [])
    world.leave()
    world.leave()


def test_a_run_that_never_began_can_leave():
    async def flow(w: World) -> None: ...

    world = World(flow)
    world.execution.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.leave()
        gc.collect()


def test_a_left_run_does_nothing_inside_another_run():
    """Dropped instead of left, the first run's ``finally`` would run whenever the collector likes: in the second."""

    async def first(w: World) -> None:
        async def pages() -> AsyncIterator[int]:
            try:
                yield 1
                yield 2
            finally:
                await w.step("close pages")

        source = pages()
        await anext(source)
        try:
            await w.signal("go")
        finally:
            await w.step("refund")

    async def second(w: World) -> None:
        for n in range(5):
            gc.collect()
            await w.step(f"s{n}")

    one = Replay(first, [])
    one.leave()
    trace = one.execution.trace
    del one
    run = Live(second, 0)
    assert [name for _, _, name in run.execution.trace] == [f"s{n}" for n in range(5)]
    assert trace == [("signal", 0, "go")]
    run.leave()


def test_leaving_under_warnings_as_errors_and_at_the_interpreters_end_is_silent():
    code = """
        import asyncio, gc, contextlib
        from scripted_execution import Live, Replay
        from replay_flows import FLOWS

        for name, flow in FLOWS.items():
            run = Live(flow, 1)
            for length in range(0, len(run.journal), 3):
                Replay(flow, run.journal[:length]).leave()
            run.leave()
            gc.collect()
        print("quiet")
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE.parents[2] / "src")])}
    told = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", textwrap.dedent(code)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (told.stdout, told.stderr) == ("quiet\n", "")


# The end of a workflow


def test_tasks_that_a_workflow_leaves_running_are_cancelled_before_its_end_is_known():
    async def aside(w: World) -> None:
        try:
            await w.step("aside")
        finally:
            await w.step("undo aside")

    async def flow(w: World) -> str:
        task = asyncio.create_task(aside(w))
        await w.step("main")
        del task
        return "done"

    world = Replay(flow, [step(0, 0, "main")])
    assert world.ending is None
    assert [command.name for command in world.execution.take_withdrawn()] == ["aside"]
    assert [name for _, _, name in world.execution.trace] == ["main", "aside", "undo aside"]
    world.deliver(step(1, 2, "undo aside"))
    assert world.ending == ("value", "'done'")
    world.leave()


def test_a_system_exit_in_workflow_code_fails_the_run_and_not_the_process():
    async def flow(w: World) -> None:
        await w.step("a")
        raise SystemExit(3)

    world = Replay(flow, [step(0, 0, "a")])
    assert world.ending is not None
    assert "SystemExit(3)" in world.ending[1]
    world.leave()


@pytest.mark.parametrize("stop", [SystemExit, KeyboardInterrupt])
def test_a_system_exit_in_a_task_of_the_workflow_does_not_leave_the_loop(stop: type[BaseException]):
    async def sub(w: World) -> None:
        await w.step("a")
        raise stop("sub")

    async def flow(w: World) -> None:
        await asyncio.gather(sub(w), w.step("b"))

    world = Replay(flow, [])
    names = {name: position for _, position, name in world.execution.trace}
    world.deliver(step(0, names["a"], "a"))
    assert world.ending is not None
    assert stop.__name__ in world.ending[1]
    world.leave()


def test_an_unseen_exception_is_kept_for_the_log_but_not_from_replay():
    async def aside(w: World) -> None:
        await w.step("aside")
        raise ValueError("nobody looks at this")

    async def flow(w: World) -> None:
        asyncio.create_task(aside(w))  # noqa: RUF006
        await w.step("main")

    live = Replay(flow, [])
    live.execution.go_live()
    live.deliver(step(0, 1, "aside"))
    gc.collect()
    [stray] = live.execution.unhandled_errors
    assert "never retrieved" in stray["message"]
    assert isinstance(stray["exception"], ValueError)
    live.leave()

    replay = Replay(flow, [step(0, 1, "aside")])
    gc.collect()
    assert replay.execution.unhandled_errors == []
    replay.leave()


def test_a_context_manager_around_a_wait_sees_the_run_leave_and_its_plain_code_runs():
    left: list[str] = []

    @contextlib.contextmanager
    def resource() -> Any:
        try:
            yield
        finally:
            left.append("released")

    async def flow(w: World) -> None:
        with resource():
            await w.signal("go")

    Replay(flow, []).leave()
    assert left == ["released"]

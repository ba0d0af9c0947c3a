"""What a workflow sees of a step's outcome: the same live as from the journal."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pydantic
import pytest
from engine_world import VirtualClock, World, read_journal, wait_until_parked
from shared_flows import define_calling

from holdfast import RunFailed, StepFailed, UnrecordableValue, step, wait_for_signal, workflow
from holdfast.codec import read_error_info
from waits import wait_until

pytestmark = pytest.mark.asyncio


class Declined(Exception):
    """A user's own exception, with state of its own."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"declined with {code}")
        self.code = code
        self.where = where


class Point(NamedTuple):
    x: int
    y: int


class Row(pydantic.BaseModel):
    name: str
    when: datetime


@dataclasses.dataclass
class Report:
    rows: list[Row]
    total: Decimal


class Shouting(pydantic.BaseModel):
    text: str

    @pydantic.field_serializer("text")
    def shout(self, text: str) -> str:
        raise RuntimeError("the serializer broke")


async def seen_live_and_in_replay(world: World, clock: VirtualClock, function: Callable[..., Any]) -> tuple[str, str]:
    """How the outcome of a step looks to the workflow, live and after a replay."""
    seen: list[str] = []
    produce = step(function)

    @workflow
    async def flow() -> None:
        try:
            value = await produce()
            seen.append(f"{type(value).__name__} {value!r}")
        except Exception as error:
            seen.append(f"{type(error).__module__}.{type(error).__qualname__} {error} {error.args} {vars(error)}")
        await wait_for_signal("go")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    await handle.signal("go")
    await handle.result()
    live, replayed = seen
    return live, replayed


def a_tuple_declared_as_list() -> list[int]:
    return (1, 2)  # type: ignore[return-value]


def a_tuple() -> tuple[int, ...]:
    return (1, 2)


def a_named_tuple() -> Point:
    return Point(1, 2)


def a_report() -> Report:
    return Report([Row(name="a", when=datetime(2026, 1, 2, tzinfo=UTC))], Decimal("1.50"))


def undeclared():
    return {"tuple": (1, 2), "set": {3}, "when": timedelta(seconds=5), "bytes": b"\x00\xff", 7: None}


def a_set() -> set[str]:
    return {"b", "a", "c"}


def a_float_that_is_whole() -> float:
    return 3.0


def an_int_declared_as_float() -> float:
    return 3


def nothing() -> None:
    return None


def a_built_in_error() -> None:
    raise FileNotFoundError(2, "No such file", "missing.txt")


def a_users_error() -> None:
    raise Declined(42, where="Rome")


def a_key_error() -> None:
    raise KeyError("missing")


def a_local_error() -> None:
    class Hidden(Exception):
        pass

    raise Hidden("cannot be found again")


def a_group() -> None:
    raise ExceptionGroup("several", [ValueError("a"), Declined(1, where="x")])


@pytest.mark.parametrize(
    "function",
    [
        a_tuple_declared_as_list, a_tuple, a_named_tuple, a_report, undeclared, a_set, a_float_that_is_whole,
        an_int_declared_as_float, nothing, a_built_in_error, a_users_error, a_key_error, a_local_error, a_group,
    ],
)  # fmt: skip
async def test_what_a_workflow_sees_live_is_what_it_sees_on_replay(in_memory: World, clock: VirtualClock, function):
    live, replayed = await seen_live_and_in_replay(in_memory, clock, function)
    assert live == replayed


async def test_exceptions_of_the_users_are_caught_by_class_live_and_on_replay(world: World, clock: VirtualClock):
    caught: list[Any] = []

    @step
    async def pay() -> None:
        raise Declined(42, where="Rome")

    @workflow
    async def flow() -> str:
        try:
            await pay()
        except Declined as declined:
            caught.append((type(declined), declined.code, declined.where, str(declined), declined.__notes__))
        await wait_for_signal("go")
        return "done"

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    await handle.signal("go")
    assert await handle.result() == "done"
    assert (
        caught
        == [(Declined, 42, "Rome", "declined with 42", [f"raised in step 'pay' (#1) of run {handle.run_id!r}"])] * 2
    )


async def test_an_exception_that_cannot_be_found_again_is_a_step_failed_from_the_start(in_memory: World):
    @step
    async def odd() -> None:
        class Hidden(Exception):
            pass

        raise Hidden("cannot be found again")

    @workflow
    async def flow() -> str:
        try:
            await odd()
        except StepFailed as failed:
            return str(failed)
        return ""

    runtime = await in_memory.open()
    assert "Hidden: cannot be found again" in await (await runtime.start(flow)).result()


@pytest.mark.parametrize("annotated", [False, True])
async def test_a_value_that_cannot_be_recorded_is_an_error_in_the_workflow_and_no_reason_to_retry(
    world: World, annotated: bool
):
    calls: list[int] = []

    if annotated:

        @step(retries=5)
        async def make() -> list[int]:
            calls.append(1)
            return ["not a number"]  # type: ignore[list-item]

    else:

        @step(retries=5)
        async def make():  # type: ignore[no-redef]
            calls.append(1)
            return threading.Lock()

    @workflow
    async def flow() -> str:
        try:
            await make()
        except UnrecordableValue as error:
            return str(error)
        return ""

    runtime = await world.open()
    told = await (await runtime.start(flow)).result()
    assert told.startswith("The output of step 'make' cannot be recorded")
    assert calls == [1]


async def test_a_value_whose_own_serializer_breaks_fails_the_step_and_does_not_hang_the_run(in_memory: World):
    @step
    async def make() -> Shouting:
        return Shouting(text="x")

    @workflow
    async def flow() -> None:
        await make()

    runtime = await in_memory.open()
    with pytest.raises(RunFailed):
        await (await runtime.start(flow)).result(timeout=5)


async def test_a_value_that_is_nested_too_deeply_fails_the_step_and_does_not_hang_the_run(in_memory: World):
    @step
    async def make():
        value: list[Any] = []
        for _ in range(100_000):
            value = [value]
        return value

    @workflow
    async def flow() -> None:
        await make()

    runtime = await in_memory.open()
    with pytest.raises(RunFailed):
        await (await runtime.start(flow)).result(timeout=5)


async def test_a_result_that_cannot_be_recorded_fails_the_run_with_its_name(world: World):
    @workflow
    async def flow():
        return threading.Lock()

    runtime = await world.open()
    with pytest.raises(RunFailed, match="result of workflow 'flow' cannot be recorded"):
        await (await runtime.start(flow)).result()


def raise_system_exit() -> None:
    raise SystemExit(3)


def raise_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


def raise_stop_iteration() -> None:
    raise StopIteration("over")


def raise_cancelled() -> None:
    raise asyncio.CancelledError("by itself")


def raise_generator_exit() -> None:
    raise GeneratorExit


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    "function",
    [raise_system_exit, raise_keyboard_interrupt, raise_stop_iteration, raise_cancelled, raise_generator_exit],
)
async def test_whatever_a_step_raises_is_an_outcome_and_leaves_the_worker_alive(in_memory: World, function, plain):
    async def as_coroutine() -> None:
        function()

    odd = step(name="odd")(function if plain else as_coroutine)

    @step
    async def fine() -> str:
        return "fine"

    @workflow
    async def flow() -> list[str]:
        try:
            await odd()
        except Exception as error:
            return [type(error).__name__, await fine()]
        return []

    other = define_calling(fine, "other")

    runtime = await in_memory.open()
    kind, after = await (await runtime.start(flow)).result(timeout=10)
    assert kind in ("StepFailed", "RuntimeError")
    assert after == "fine"
    assert await (await runtime.start(other)).result() == "fine"


class Ends(Exception):
    """Whose message ends the process that makes it."""

    def __init__(self, how: type[BaseException]) -> None:
        super().__init__(how.__name__)
        self.how = how

    def __str__(self) -> str:
        raise self.how("from a message")

    __repr__ = __str__


class EndsToo(SystemExit):
    """The same, and is one itself."""

    def __str__(self) -> str:
        raise SystemExit("from a message")

    __repr__ = __str__


class Unshowable:
    def __repr__(self) -> str:
        raise SystemExit("from a repr")


@pytest.mark.parametrize("how", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["step", "retried", "predicate", "exit", "argument", "workflow", "stray", "undo"])
async def test_an_exception_whose_message_ends_the_process_does_not_end_the_worker(
    world: World, where: str, how: type[BaseException], caplog: pytest.LogCaptureFixture
):
    def decide(_: BaseException) -> bool:
        raise how("from a predicate")

    async def fail(value: object = None) -> None:
        raise EndsToo() if where == "exit" else Ends(how)

    @step
    async def fine() -> str:
        return "fine"

    async def bad_undo() -> None:
        raise Ends(how)

    @step(compensate=bad_undo)
    async def undone() -> None: ...

    retries = {"retried": {"retries": 1}, "predicate": {"retries": 1, "retry_on": decide}}
    failing = step(name="failing", **retries.get(where, {}))(fail)

    @workflow
    async def flow() -> None:
        if where == "undo":
            await undone()
        if where == "stray":
            task = asyncio.create_task(fail())
            await fine()
            del task
        if where in ("workflow", "undo", "stray"):
            raise Ends(how)
        await (failing(Unshowable()) if where == "argument" else failing())

    other = define_calling(fine, "other")

    runtime = await world.open()
    bad = await runtime.start(flow)
    with pytest.raises(RunFailed):
        await bad.result(timeout=10)
    assert await (await runtime.start(other)).result(timeout=10) == "fine"


async def test_no_more_of_an_error_is_recorded_than_people_can_read(world: World):
    @step
    async def fetch() -> None:
        error = ValueError("begin " + "x" * 80_000_000 + " end")
        error.body = b"y" * 80_000_000  # type: ignore[attr-defined]
        error.status = 500  # type: ignore[attr-defined]
        error.add_note("z" * 80_000_000)
        raise error

    @workflow
    async def flow() -> list[Any]:
        try:
            await fetch()
        except ValueError as error:
            return [str(error), getattr(error, "status", None), getattr(error, "body", None)]
        return []

    runtime = await world.open()
    handle = await runtime.start(flow)
    message, status, body = await handle.result()
    assert (message[:7], message[-5:], status, body) == ("begin x", "x end", 500, None)
    assert "characters cut] …" in message
    [record] = await read_journal(runtime, handle)
    assert len(record.payload or b"") < 100_000
    assert "in fetch" in read_error_info(record.payload or b"").traceback


@pytest.mark.parametrize("where", ["main", "task", "group"])
async def test_a_system_exit_of_workflow_code_fails_its_run_and_nothing_else(world: World, where: str):
    @step
    async def fine() -> str:
        return "fine"

    async def stop() -> None:
        await fine()
        raise SystemExit(3)

    @workflow
    async def flow() -> None:
        if where == "main":
            await stop()
        elif where == "task":
            await asyncio.gather(stop(), fine())
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(stop())

    other = define_calling(fine, "other")

    runtime = await world.open()
    with pytest.raises(RunFailed, match="SystemExit"):
        await (await runtime.start(flow)).result(timeout=10)
    assert await (await runtime.start(other)).result(timeout=10) == "fine"


async def test_a_failed_run_carries_the_workflows_own_exception(world: World):
    @workflow
    async def flow() -> None:
        raise Declined(7, where="Oslo")

    runtime = await world.open()
    with pytest.raises(RunFailed) as failed:
        await (await runtime.start(flow)).result()
    assert isinstance(failed.value.__cause__, Declined)
    assert failed.value.__cause__.code == 7
    assert failed.value.state == "failed"
    assert "retry" in str(failed.value)


async def test_an_outcome_is_in_the_journal_before_the_workflow_sees_it(world: World):
    seen: list[Sequence[Any]] = []

    @step
    async def produce(n: int) -> int:
        return n

    @step
    async def look() -> None:
        seen.append([record.name for record in await read_journal(runtime, handle)])

    @workflow
    async def flow() -> None:
        await produce(1)
        await look()
        await produce(2)
        await look()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await handle.result()
    assert seen == [["produce"], ["produce", "look", "produce"]]


async def test_a_step_that_the_workflow_cancels_is_cancelled_and_leaves_no_record(world: World):
    ended: list[str] = []
    begun = asyncio.Event()

    @step
    async def slow() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @step
    async def ready() -> None:
        await begun.wait()

    @workflow
    async def flow() -> str:
        task = asyncio.create_task(slow())
        await ready()
        task.cancel()
        return "went on"

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.result() == "went on"
    await wait_until(lambda: ended)
    assert [record.name for record in await read_journal(runtime, handle)] == ["ready"]


async def test_a_cancelled_step_may_clean_up_and_its_outcome_is_dropped(world: World):
    cleaned: list[str] = []
    begun = asyncio.Event()

    @step
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)
            cleaned.append("cleaned up")
        return "an outcome nobody wants"

    @step
    async def ready() -> None:
        await begun.wait()

    @workflow
    async def flow() -> str:
        task = asyncio.create_task(stubborn())
        await ready()
        task.cancel()
        return "went on"

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.result() == "went on"
    await wait_until(lambda: cleaned)
    await asyncio.sleep(0.01)
    assert [record.name for record in await read_journal(runtime, handle)] == ["ready"]

"""The workflows of the golden journals. **Never change one in a way that its recorded runs would notice.**

Each of them has been run by every release since it was added, and the journals are kept, one folder to a release. They
are replayed against this file and the Holdfast of today: what one release has recorded, every later one must be able to
carry on. A new case is a new workflow. Steps are executed only while recording (see ``record_journals.py``), so what
stands in their bodies does not matter to replay; their names, parameters and types do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel

import holdfast
from holdfast import (
    RunFailed,
    StepOutcomeUnknown,
    StepTimedOut,
    UnrecordableValue,
    Workflow,
    current_run,
    current_step,
    parallel,
    patched,
    step,
    wait_for_signal,
    workflow,
)

hooks: dict[str, Callable[[str], Awaitable[None]]] = {}
"""What the recorder does to a run from inside one of its steps."""

FLOWS: dict[str, Workflow[..., Any]] = {}


def golden(flow: Workflow[..., Any]) -> Workflow[..., Any]:
    FLOWS[flow.name] = flow
    return flow


# Steps, in order and at once


@step
async def fetch(customer: str, *, page: int = 1) -> list[int]:
    return [page, len(customer)]


@step
def add(left: int, right: int) -> int:
    return left + right


@golden
@workflow(tags=["golden"])
async def golden_steps(customer: str, upto: int = 2) -> dict[str, int]:
    total = 0
    for page in range(1, upto + 1):
        for row in await fetch(customer, page=page):
            total = await add(total, row)
    return {"total": total}


@step
async def slow(name: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return name


@golden
@workflow
async def golden_gather() -> list[object]:
    gathered = await asyncio.gather(slow("c", 0.09), slow("b", 0.06), slow("a", 0.03))
    completed = [await one for one in asyncio.as_completed([slow("f", 0.06), slow("e", 0.03)])]
    return [gathered, completed]


@golden
@workflow
async def golden_race() -> list[object]:
    order: list[object] = []
    racers = {asyncio.create_task(slow(name, seconds)) for name, seconds in (("x", 0.12), ("y", 0.04), ("z", 0.3))}
    done, pending = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
    order.append(sorted(task.result() for task in done))
    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    order.append(sorted(task.result() for task in done))
    for task in pending:
        task.cancel()
    order.append(await asyncio.gather(*pending, return_exceptions=True) != [])
    order.append(await slow("after", 0.0))
    return order


@golden
@workflow
async def golden_patched() -> list[object]:
    async def branch(name: str, seconds: float) -> list[object]:
        told: list[object] = [await slow(name, seconds)]
        if patched("in both branches"):
            told.append(await slow(f"{name} new", 0.0))
        return [*told, patched(f"only in {name}")]

    first = await asyncio.gather(branch("b", 0.06), branch("a", 0.03))
    return [first, patched("in both branches"), patched("at the end")]


class Declined(Exception):
    """A user's exception with something of its own."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason, code)
        self.code = code


@step
async def decline(reason: str, code: int) -> None:
    raise Declined(reason, code)


@golden
@workflow
async def golden_group() -> list[object]:
    seen: list[object] = []

    async def careful(name: str) -> None:
        try:
            seen.append(await slow(name, 30.0))
        except asyncio.CancelledError:
            seen.append(await add(len(seen), 100))
            raise

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(careful("one"))
            group.create_task(careful("two"))
            group.create_task(decline("group", 1))
    except* Declined as failures:
        seen.extend(error.args for error in failures.exceptions)  # type: ignore[attr-defined]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(add(n, n)) for n in range(3)]
    seen.append([task.result() for task in tasks])
    return seen


@golden
@workflow
async def golden_queue() -> list[int]:
    """Tasks of the workflow that wait for each other, and not only for records."""
    queue: asyncio.Queue[int | None] = asyncio.Queue(maxsize=2)
    ready, lock, room = asyncio.Event(), asyncio.Lock(), asyncio.Semaphore(2)
    sums: list[int] = []

    async def consume() -> None:
        await ready.wait()
        while (item := await queue.get()) is not None:
            async with room:
                result = await add(item, 10)
            async with lock:
                sums.append(await add(result, len(sums)))

    consumers = [asyncio.create_task(consume()) for _ in range(3)]
    await add(0, 0)
    ready.set()
    for item in [*range(5), None, None, None]:
        await queue.put(item)
    await asyncio.gather(*consumers)
    return sums


@golden
@workflow
async def golden_map(count: int) -> list[int]:
    async def twice(item: int) -> int:
        return await add(item, item)

    return await holdfast.map(twice, range(count), max_concurrency=3)


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@golden
@workflow
async def golden_generators() -> list[object]:
    async def pages() -> AsyncIterator[list[int]]:
        try:
            for page in range(1, 10):
                yield await fetch("acme", page=page)
        finally:
            await add(1, 1)

    async def named(name: str) -> str:
        tenant.set(name)
        return f"{tenant.get()}:{await add(1, 2)}"

    seen: list[object] = []
    async for rows in pages():
        seen.append(rows)
        if len(seen) == 2:
            break
    seen.append(await asyncio.gather(named("ann"), named("bob")))
    seen.append(tenant.get())
    return seen


# Time and chance


@golden
@workflow
async def golden_timers() -> list[object]:
    seen: list[object] = []
    await asyncio.sleep(2.6)  # long enough to leave memory
    seen.append("slept")
    try:
        async with asyncio.timeout(0.05):
            await slow("never", 30.0)
    except TimeoutError:
        seen.append("timed out")
    seen.append(await asyncio.wait_for(slow("in time", 0.0), timeout=60))
    await asyncio.gather(asyncio.sleep(0.03), asyncio.sleep(0.02), asyncio.sleep(0))
    return seen


@golden
@workflow
async def golden_random(rate: float) -> list[object]:
    started = holdfast.now()
    token = holdfast.uuid4()
    await note(token, started)
    dice = [holdfast.random(), holdfast.random()]
    await asyncio.sleep(0.01)
    await note(holdfast.uuid4(), holdfast.now())
    return [str(token), dice, dice[0] < rate, (holdfast.now() - started).total_seconds() >= 0.01, str(holdfast.uuid4())]


@step
async def note(token: UUID, at: datetime) -> None:
    pass


@step
async def undo(what: str) -> str:
    return f"undid {what}"


@golden
@workflow(timeout=0.5)
async def golden_deadline() -> str:
    await add(1, 1)
    try:
        return await slow("never", 30.0)
    finally:
        await undo("all")


# Signals


@golden
@workflow
async def golden_signals() -> list[object]:
    """A wait that times out, two waits for one name, a typed value, and a signal that was there before its wait."""
    seen: list[object] = []
    try:
        await wait_for_signal("go", timeout=0.2)
    except TimeoutError:
        seen.append("nobody came")
    await tell("ready")
    seen.append(await asyncio.gather(wait_for_signal("go"), wait_for_signal("go")))
    seen.append(await wait_for_signal("when", type=datetime))
    await tell("early")
    seen.append(await wait_for_signal("early", type=list[int], timeout=3600))
    return seen


@golden
@workflow
async def golden_mailbox() -> list[object]:
    """A signal is on its way to a wait when the workflow gives that wait up: the next one gets it."""
    waiting = asyncio.create_task(wait_for_signal("go"))
    telling = asyncio.create_task(tell("go"))
    await asyncio.wait([waiting, telling], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    again = asyncio.create_task(wait_for_signal("go"))
    first = await add(1, 1)
    return [waiting.cancelled(), first, await again, await add(2, 2)]


@step
async def tell(what: str) -> None:
    await hooks[what](current_run().id)


@golden
@workflow
async def golden_waiting(days: int) -> str:
    """Recorded while it waits: it never ends."""
    await add(days, 0)
    async with asyncio.timeout(timedelta(days=days).total_seconds()):
        return await wait_for_signal("approved", type=str)


# Faults


@step(timeout=0.05)
async def too_slow() -> None:
    await asyncio.sleep(30)


@step
async def open_file(path: str) -> bytes:
    raise FileNotFoundError(2, "No such file or directory", path)


@step
def unrecordable() -> object:
    return object()


@golden
@workflow
async def golden_failures() -> list[object]:
    """Steps that fail, and a workflow that copes."""
    seen: list[object] = []
    try:
        await decline("no funds", 51)
    except Declined as error:
        seen.append([error.args, error.code])
    try:
        await open_file("/no/such/file")
    except OSError as error:
        seen.append([type(error).__name__, error.errno, error.filename])
    for call in (too_slow, unrecordable):
        try:
            await call()
        except (StepTimedOut, UnrecordableValue) as error:
            seen.append([type(error).__name__, str(error)])
    return seen


@golden
@workflow
async def golden_failed(reason: str) -> None:
    await add(1, 2)
    try:
        await decline(reason, 7)
    finally:
        await undo(reason)


@step(retries=3, backoff=0.01)
async def flaky() -> int:
    if current_step().attempt < 3:
        raise ConnectionError("try again")
    return current_step().attempt


@step(retries=1, backoff=0.01)
async def hopeless() -> int:
    raise ConnectionError(f"attempt {current_step().attempt}")


@golden
@workflow
async def golden_retries() -> list[object]:
    try:
        return [await flaky(), await hopeless()]
    except ConnectionError as error:
        return [str(error)]


@step(effect="once")
async def pay(cents: int) -> str:
    if os.environ.get("GOLDEN_VICTIM"):
        os._exit(9)
    return f"paid {cents}"


@step(effect="read")
async def balance() -> int:
    return 12


@golden
@workflow
async def golden_once() -> list[object]:
    """One worker pays the first bill, and dies while it pays the second."""
    if await balance() > 10:
        try:
            return [await pay(500)]
        except StepOutcomeUnknown as error:
            return [error.step, await balance(), await pay(700)]
    return []


@step
async def keyed(number: int) -> str:
    return current_step().idempotency_key


@golden
@workflow
async def golden_keys() -> list[str]:
    return [await keyed(1), *await asyncio.gather(keyed(2), keyed(3))]


@step
async def copy(rows: int) -> int:
    current_step().heartbeat({"rows": 3})
    await hooks["copying"](current_run().id)
    return rows


@golden
@workflow
async def golden_in_flight(rows: int) -> int:
    """Recorded while its second step is in flight: it never ends."""
    return await add(rows, await copy(await add(rows, 1)))


# Values


class Colour(Enum):
    RED = "red"


class Line(BaseModel):
    item: str
    price: Decimal
    colours: set[Colour] = set()


class Bill(BaseModel):
    number: UUID
    lines: list[Line]
    due: date | None = None


@dataclass
class Parcel:
    weight: float
    size: tuple[int, int, int]
    labels: frozenset[str]


@step
async def bill_of(number: UUID, line: Line) -> Bill:
    return Bill(number=number, lines=[line, line], due=date(2024, 2, 29))


@step
async def parcel_for(bill: Bill, when: datetime, fragile: bool = False) -> Parcel:
    return Parcel(1.5, (1, 2, 3), frozenset({"a", "b"}))


@step
async def anything(kind, extra=None):  # no annotations: recorded by what it is
    return {
        "tuple": (1, "two", (3.5,)),
        "set": {3, 1, 2},
        "frozenset": frozenset("ab"),
        "bytes": b"\x00\xff",
        "datetime": datetime(2024, 5, 1, 12, 30, tzinfo=UTC),
        "date": date(2024, 5, 1),
        "timedelta": timedelta(days=1, microseconds=5),
        "decimal": Decimal("1.10"),
        "uuid": UUID(int=7),
        "keys": {1: "one", (2, 3): "pair", "$tuple": "not a tag"},
        "big": 2**80,
        "text": "grüße ✓ \u2028 \x01",
        "none": None,
    }[kind]


KINDS = (
    "tuple", "set", "frozenset", "bytes", "datetime", "date", "timedelta", "decimal", "uuid", "keys", "big", "text",
    "none",
)  # fmt: skip


@golden
@workflow
async def golden_values(line: Line, at: datetime, ratio: Decimal, blob: bytes, pair: tuple[int, str]) -> Parcel:
    bill = await bill_of(UUID(int=42), line)
    assert type(bill) is Bill
    parcel = await parcel_for(bill, at, fragile=ratio > 1)
    await anything("none", (blob, pair, ratio, at, {"line", "bill"}))
    return parcel


@golden
@workflow
async def golden_tagged(first, *rest, **more):
    values = {kind: await anything(kind) for kind in KINDS}
    echoed = [await anything("none", value) for value in values.values()]
    return [first, rest, more, values, len(echoed)]


# Runs that start runs


@golden
@workflow
async def golden_child(number: int, fail: bool = False) -> int:
    """Recorded as a run that `golden_children` has started."""
    token = holdfast.uuid4()
    await note(token, holdfast.now())
    if fail:
        await decline("child", number)
    return await add(number, 1)


@workflow(id="golden-named-{name}")
async def golden_named(name: str) -> str:
    return await slow(name, 0.0)


@golden
@workflow
async def golden_children() -> list[object]:
    seen: list[object] = [await golden_child(1)]
    handle = await golden_child.start(2)
    seen.append(await asyncio.gather(golden_child(3), golden_named("one"), add(1, 1)))
    try:
        await golden_child(4, fail=True)
    except RunFailed as failed:
        seen.append(repr(failed.__cause__))
    seen.append([handle.run_id, await handle.result()])
    other = await golden_listener.start()
    await handle_said(other.run_id)
    await other.signal("word", "hush")
    seen.append(await other.result())
    try:
        async with asyncio.timeout(0.05):
            await golden_listener()
    except TimeoutError:
        seen.append("timed out")
    return seen


@workflow
async def golden_listener() -> str:
    return await wait_for_signal("word", type=str)


@step
async def handle_said(run_id: str) -> None:
    pass


@golden
@workflow
async def golden_waiting_for_child() -> str:
    """Recorded while it waits for a run that waits: neither ends."""
    await add(1, 1)
    return await golden_listener()


# Undoing, cancelling, retrying, forking


@step
async def put_back(what: str, count: int) -> str:
    return f"{count} {what}"


@step(compensate=put_back)
async def take_out(what: str, count: int = 1) -> str:
    return what.upper()


async def locked(taken: str) -> None:
    raise PermissionError(taken)


@step(compensate=locked)
async def take_for_good(what: str) -> str:
    return what


@golden
@workflow
async def golden_undone() -> None:
    await take_out("eggs", 12)
    await add(1, 1)
    await asyncio.gather(take_out("milk"), take_out("flour", count=2))
    await decline("cake", 3)


@golden
@workflow
async def golden_not_undone() -> None:
    """The compensation of the second step fails: the first is not undone."""
    await take_out("eggs", 12)
    await take_for_good("milk")
    await take_out("flour")
    raise Declined("cake", 4)


@golden
@workflow
async def golden_cancelled() -> str:
    """Cancelled while it waits: it cleans up, and is undone."""
    await take_out("eggs", 12)
    try:
        return await wait_for_signal("never")
    finally:
        await undo("all")


@step
async def unsure(number: int) -> int:
    await hooks["unsure"](current_run().id)
    return number


@golden
@workflow
async def golden_retried() -> list[object]:
    """Fails at its second step, and is retried: what it did because of that is no part of its past."""
    token = str(holdfast.uuid4())
    first = await add(1, 1)
    second, kept = await asyncio.gather(unsure(2), slow("kept", 0.1), return_exceptions=True)
    if isinstance(second, Declined):
        await undo("some")
        raise second
    return [token, first, second, kept, await add(first, first), str(holdfast.uuid4())]


@golden
@workflow
async def golden_fork() -> list[object]:
    """Recorded as a fork, at the second step, of a run that had completed."""
    draws = [str(holdfast.uuid4())]
    first = await keyed(1)
    draws.append(str(holdfast.uuid4()))
    second = await keyed(2)
    draws.append(str(holdfast.uuid4()))
    return [draws, first, second, await keyed(3)]


# The class form


@golden
@workflow(name="golden_class", tags=["golden"])
class GoldenClass:
    @step(1)
    async def rows(self, count: int) -> list[int]:
        return list(range(count))

    @parallel(max_concurrency=2)
    @step(2, depends_on=1)
    async def weigh(self, row: int) -> int:
        await asyncio.sleep(0.01 * (3 - row))
        return row * 10

    @step(3, depends_on=1)
    def largest(self, rows: list[int]) -> int:
        return max(rows)

    @step(4, depends_on=2, when=lambda weights: sum(weights) > 1000)
    async def split(self, weights: list[int]) -> int:
        return len(weights)

    @step(5, depends_on=(2, 3, 4), after=1, when=lambda largest: largest > 1)
    async def report(self, weigh: list[int], largest: int, split: int | None, title: str = "all") -> str:
        return f"{title}: {weigh} {largest} {split}"


@golden
@workflow(name="golden_class_undone")
class GoldenClassUndone:
    @step(1, compensate="release")
    async def reserve(self, seats: int) -> str:
        return f"{seats} seats"

    async def release(self, reserved: str, seats: int) -> int:
        return seats

    @step(2, depends_on=1, name="pay for")
    async def pay(self, reserved: str) -> str:
        raise Declined("no funds", 5)

"""Long workflows with one fault in the middle, of the kinds that users write.

Each has more crash points than ``crash_everywhere`` tries alone, and a fault that shows at one or two of them. The
faulty steps have 50 others before and after them, so a run has more than 300 points.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from holdfast import StepOutcomeUnknown, step, wait_for_signal, workflow

HALF = 50


class Outside:
    """What steps change outside of the journal; ``reset`` puts it back before every trial."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.log: list[Any] = []
        self.balance = 0
        self.is_open = False


outside = Outside()
memory: dict[Any, Any] = {}
visits = itertools.count()
seen: list[int] = []


@dataclass
class Order:
    items: list[int] = field(default_factory=list[int])
    status: str = "new"


@step
async def work(number: Any) -> Any:
    return number


@step
async def plain(number: Any = 0) -> int:
    return 1


@step
async def append_to(items: list[int]) -> int:
    items.append(1)
    return len(items)


@step
async def close_order(order: Order) -> None:
    order.status = "closed"


@step
async def log(what: Any) -> int:
    outside.log.append(what)
    return len(outside.log)


@step
async def deposit(amount: int) -> None:
    outside.balance += amount


@step
async def withdraw(amount: int) -> None:
    outside.balance -= amount


@step
async def read_balance() -> int:
    return outside.balance


@step
async def toggle() -> bool:
    outside.is_open = not outside.is_open
    return outside.is_open


@step(effect="once")
async def charge(cents: int) -> str:
    outside.log.append(("charge", cents))
    return "paid"


@step
async def charge_elsewhere(cents: int) -> str:
    outside.log.append(("elsewhere", cents))
    return "paid elsewhere"


@step
async def refuse() -> None:
    raise ValueError("no")


async def rest() -> None:
    for number in range(HALF):
        await work(number)


@asynccontextmanager
async def in_the_middle() -> AsyncIterator[None]:
    await rest()
    yield
    await rest()


# Arguments


@workflow
async def step_appends_to_its_argument() -> int:
    items = [0]
    async with in_the_middle():
        await append_to(items)
        await work(items)
    return len(items)


@workflow
async def step_changes_a_field_of_its_argument() -> str:
    order = Order()
    async with in_the_middle():
        await close_order(order)
        if order.status == "closed":
            await log("closed")
    return order.status


@workflow
async def clock_in_an_argument() -> None:
    async with in_the_middle():
        await work(time.time())


@workflow
async def random_argument() -> None:
    async with in_the_middle():
        await work(random.random())


@workflow
async def uuid_argument() -> None:
    async with in_the_middle():
        await work(str(uuid.uuid4()))


@workflow
async def address_in_an_argument() -> None:
    async with in_the_middle():
        await work(repr(object()))


@workflow
async def environment_in_an_argument() -> None:
    async with in_the_middle():
        number = int(os.environ.get("HOLDFAST_TEST_VISIT", "0"))
        os.environ["HOLDFAST_TEST_VISIT"] = str(number + 1)
        await work(number)


@workflow
async def objects_in_the_order_of_a_set() -> None:
    async with in_the_middle():
        for order in {Desk(number) for number in range(12)}:
            await work(order.number)


class Desk:
    def __init__(self, number: int) -> None:
        self.number = number


# Module state in workflow code


@workflow
async def counter_of_the_module() -> None:
    async with in_the_middle():
        await work(next(visits))


@workflow
async def cache_of_the_module() -> int:
    async with in_the_middle():
        if "rate" not in memory:
            memory["rate"] = await work(7)
        await work(memory["rate"])
    return memory["rate"]


@workflow
async def list_of_the_module() -> None:
    async with in_the_middle():
        seen.append(1)
        for number in range(len(seen)):
            await work(number)


@workflow
async def extra_step_in_the_first_process() -> None:
    async with in_the_middle():
        if not memory.get("is initialized"):
            await work("initialize")
            memory["is initialized"] = True
        await work("continue")


@workflow
async def mutable_default() -> None:
    async with in_the_middle():
        await work(len(remember(1)))


def remember(number: int, all_of_them: list[int] = []) -> list[int]:  # noqa: B006
    all_of_them.append(number)
    return all_of_them


@workflow
async def clock_decides() -> int:
    async with in_the_middle():
        if time.perf_counter_ns() // 100 % 2:
            await work("odd")
        else:
            await plain("even")
    return 1


@workflow
async def counter_between_timers() -> None:
    for number in range(HALF):
        await asyncio.sleep(60)
        await work(next(visits) if number == HALF // 2 else number)


@workflow
async def counter_of_signals() -> None:
    async with in_the_middle():
        await wait_for_signal("go")
        await work(next(visits))


@workflow
async def counter_in_parallel_branches() -> None:
    async with in_the_middle():
        await asyncio.gather(*[branch(number) for number in range(5)])


async def branch(number: int) -> None:
    await work(number)
    await work(next(visits) if number == 3 else number)


@workflow
async def counting_child() -> int:
    await work(1)
    return await work(next(visits))


@workflow
async def counter_in_a_child() -> int:
    async with in_the_middle():
        total = await counting_child()
    return total


@workflow
async def clock_returned() -> float:
    async with in_the_middle():
        began = time.time()
    return began


# Steps that do something else when they are repeated


@workflow
async def counts_what_is_outside() -> int:
    async with in_the_middle():
        count = await log("sent")
    return count


@workflow
async def toggles_what_is_outside() -> bool:
    async with in_the_middle():
        is_open = await toggle()
    return is_open


@workflow
async def two_repeated_steps_cancel_out() -> int:
    for number in range(HALF):
        await deposit(number + 1)
        await withdraw(number + 1)
    return await read_balance()


@workflow
async def every_step_adds_to_a_balance() -> int:
    for _ in range(HALF):
        await deposit(1)
    return await read_balance()


@workflow
async def two_toggles_cancel_out() -> bool:
    for number in range(HALF):
        await toggle()
        await work(number)
        await toggle()
    return await toggle()


# Outcomes that are swallowed or unknown


@workflow
async def charges_elsewhere_if_unknown() -> str:
    async with in_the_middle():
        try:
            how = await charge(100)
        except StepOutcomeUnknown:
            how = await charge_elsewhere(100)
    return how


@workflow
async def charges_elsewhere_after_any_error() -> str:
    async with in_the_middle():
        try:
            how = await charge(100)
        except Exception:
            how = await charge_elsewhere(100)
    return how


@workflow
async def catches_everything() -> int:
    async with in_the_middle():
        try:
            await asyncio.sleep(60)
        except BaseException:
            return 5
    return 6


@workflow
async def suppresses_everything() -> None:
    async with in_the_middle():
        with suppress(BaseException):
            await work("suppressed")
        await work("next")


# Compensations


@step
async def release(count: int, what: Any) -> None:
    outside.log.remove(what)


@step(compensate=release)
async def reserve(what: Any) -> int:
    outside.log.append(what)
    return len(outside.log)


@workflow
async def compensated_step_with_the_clock() -> None:
    async with in_the_middle():
        await reserve(time.time())
    await refuse()


@workflow
async def compensation_cannot_be_repeated() -> None:
    async with in_the_middle():
        await reserve("seat")
    await refuse()


def check_one_charge() -> None:
    assert len([entry for entry in outside.log if entry[0] in ("charge", "elsewhere")]) <= 1


def check_empty_log() -> None:
    assert outside.log == []


UNSAFE: dict[Any, Callable[[], None] | None] = {
    step_appends_to_its_argument: None,
    step_changes_a_field_of_its_argument: None,
    clock_in_an_argument: None,
    random_argument: None,
    uuid_argument: None,
    address_in_an_argument: None,
    environment_in_an_argument: None,
    objects_in_the_order_of_a_set: None,
    counter_of_the_module: None,
    cache_of_the_module: None,
    list_of_the_module: None,
    extra_step_in_the_first_process: None,
    mutable_default: None,
    clock_decides: None,
    counter_between_timers: None,
    counter_of_signals: None,
    counter_in_parallel_branches: None,
    counter_in_a_child: None,
    clock_returned: None,
    counts_what_is_outside: None,
    toggles_what_is_outside: None,
    two_repeated_steps_cancel_out: None,
    every_step_adds_to_a_balance: None,
    two_toggles_cancel_out: None,
    charges_elsewhere_if_unknown: check_one_charge,
    charges_elsewhere_after_any_error: check_one_charge,
    catches_everything: None,
    suppresses_everything: None,
    compensated_step_with_the_clock: None,
    compensation_cannot_be_repeated: check_empty_log,
}
"""The workflows, with what must hold outside after each trial."""

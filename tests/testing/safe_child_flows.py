"""Workflows that survive every crash, and are made of more than one run, undo what they did, or are classes.

They lie in a module, not in the tests, because other Python processes have to find them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from safe_flows import broken, note

import holdfast
from holdfast import RunCancelled, RunFailed, parallel, step, wait_for_signal, workflow


@step
async def give_back(what: str) -> None:
    pass


@step(compensate=give_back)
async def take(what: str) -> str:
    return f"took {what}"


@step(retries=3)
async def give_back_at_last(what: str) -> None:
    if holdfast.current_step().attempt < 3:
        raise ConnectionError("not yet")


@step(compensate=give_back_at_last)
def take_in_thread(what: str) -> str:
    return f"took {what}"


@step(effect="once", compensate=give_back)
async def take_once(what: str) -> str:
    return f"took {what}"


async def keep(what: str) -> None:
    raise PermissionError(f"{what} is kept")


@step(compensate=keep)
async def take_for_good(what: str) -> str:
    return f"took {what}"


# What they call


@workflow
async def little(number: int) -> int:
    return number + await note(number)


@workflow
async def slow_little(number: int, seconds: float) -> int:
    await note()
    await asyncio.sleep(seconds)
    return number


@workflow
async def failing_little(what: str) -> None:
    await take(what)
    await take_in_thread(what)
    await broken()


@workflow
async def listening() -> Any:
    return await wait_for_signal("word")


@workflow
async def middle(number: int) -> int:
    return await little(number) + await little(number + 1)


# Children


@workflow
async def good_child() -> int:
    return await little(1) + await note()


@workflow
async def good_grandchildren() -> int:
    return await note() + await middle(1)


@workflow
async def good_children_at_once() -> list[int]:
    return await asyncio.gather(*[little(number) for number in range(3)])


@workflow
async def good_children_in_group() -> int:
    async with asyncio.TaskGroup() as group:
        ones = [group.create_task(slow_little(number, 10 - number)) for number in range(2)]
    return sum(one.result() for one in ones)


@workflow
async def good_started_child() -> int:
    handle = await slow_little.start(3, 60)
    await note()
    return await handle.result()


@workflow
async def good_left_alone() -> str:
    handle = await slow_little.start(3, 86400)
    return handle.run_id


@workflow
async def good_named_child() -> int:
    return await little.options(id=f"little of {holdfast.current_run().id}")(5)


@workflow
async def good_failing_child() -> str:
    try:
        await failing_little("ladder")
    except RunFailed as failed:
        return str(failed.__cause__)
    return "whole"


@workflow
async def good_child_in_time_out() -> str:
    try:
        await asyncio.wait_for(slow_little(1, 1000), 10)
    except TimeoutError:
        return "late"
    return "in time"


@workflow
async def good_first_of_children() -> int:
    ones = [asyncio.create_task(slow_little(number, 10 * number)) for number in (1, 2)]
    done, rest = await asyncio.wait(ones, return_when=asyncio.FIRST_COMPLETED)
    for one in rest:
        one.cancel()
    return done.pop().result()


@workflow
async def good_told_child() -> str:
    handle = await listening.start()
    await handle.signal("word", "hush")
    return await handle.result()


@workflow
async def good_cancelled_child() -> str:
    handle = await listening.start()
    await handle.cancel()
    try:
        return await handle.result()
    except RunCancelled:
        return "cancelled"


# Undoing


@workflow
async def good_saga() -> None:
    await take("ladder")
    await note()
    await take_in_thread("rope")
    await broken()


@workflow
async def good_saga_of_many() -> None:
    async with asyncio.TaskGroup() as group:
        for what in ("ladder", "rope", "axe"):
            group.create_task(take(what))
        await note()
    raise ValueError("not today")


@workflow
async def good_saga_with_child() -> None:
    await take("ladder")
    await little(1)
    await failing_little("rope")


@workflow
async def good_saga_with_once() -> None:
    await take("ladder")
    await take_once("stamp")
    raise ValueError("not today")


@workflow
async def good_saga_that_sticks() -> None:
    await take("ladder")
    await take_for_good("money")
    await take("rope")
    raise ValueError("not today")


@workflow(timeout=3600)
async def good_saga_at_deadline() -> None:
    await take("ladder")
    await asyncio.sleep(7200)


@workflow
async def good_saga_unneeded() -> str:
    return await take("ladder")


# Classes


@workflow
class GoodReport:
    @step(1)
    async def pages(self, count: int = 3) -> list[int]:
        return list(range(count))

    @parallel(max_concurrency=2)
    @step(2, depends_on=1)
    def weigh(self, page: int) -> int:
        return page * 2

    @step(3, depends_on=2, when=lambda weights: sum(weights) > 100)
    async def split(self, weights: list[int]) -> int:
        return len(weights)

    @step(4, depends_on=(2, 3))
    async def bind(self, weigh: list[int], split: int | None) -> str:
        return f"{sum(weigh)} in {split or 1}"


@workflow
class GoodPurchase:
    @step(1, compensate="refund")
    async def charge(self, cents: int = 5) -> str:
        return f"paid {cents}"

    async def refund(self, receipt: str, cents: int) -> None:
        pass

    @step(2, depends_on=1)
    async def ship(self, receipt: str) -> str:
        raise ConnectionError("no carrier")


@workflow
async def good_class_as_child() -> list[str]:
    try:
        await GoodPurchase(cents=7)
    except RunFailed as failed:
        return [await GoodReport(count=2), str(failed.__cause__)]
    return []


GOOD = {name: flow for name, flow in globals().items() if name.lower().startswith("good")}

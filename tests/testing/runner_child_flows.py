"""Workflows with children and compensations for the tests of the runner, and what their steps did."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import RunFailed, parallel, step, wait_for_signal, workflow

did: list[Any] = []


async def refund(receipt: str, cents: int) -> None:
    did.append(("refund", receipt, cents))


@step(compensate=refund)
async def bill(cents: int) -> str:
    did.append(("bill", cents))
    return f"receipt {cents}"


@step(retries=3, backoff=60)
async def unpick(item: str) -> str:
    did.append(("unpick", item))
    return f"{item} is back"


@step(compensate=unpick)
async def pick(item: str) -> str:
    did.append(("pick", item))
    return f"a {item}"


@step
async def wrap(item: str) -> str:
    did.append(("wrap", item))
    return f"[{item}]"


@step(effect="once")
async def send(parcel: str) -> str:
    did.append(("send", parcel))
    return "sent"


@step
async def carry(parcel: str) -> str:
    did.append(("carry", parcel))
    raise ConnectionError("no carrier")


@workflow
async def packing(item: str) -> str:
    return await wrap(await pick(item))


@workflow(id="order-of-{item}")
async def ordering(item: str, cents: int = 500) -> str:
    await bill(cents)
    return await packing(item)


@workflow
async def ordering_many(items: list[str]) -> list[str]:
    return await asyncio.gather(*[packing(item) for item in items])


@workflow
async def failing_order(item: str) -> str:
    await bill(7)
    await pick(item)
    return await carry(item)


@workflow
async def nagging(days: int) -> str:
    await asyncio.sleep(days * 86400)
    await wrap("reminder")
    return "nagged"


@workflow
async def leaving_behind(days: int) -> str:
    return (await nagging.start(days)).run_id


@workflow
async def approving(item: str) -> str:
    await pick(item)
    return await wait_for_signal("approval")


@workflow
async def approved_order(item: str) -> str:
    await bill(9)
    answer = await approving(item)
    return f"{item}: {answer}"


@workflow
async def careful_order(item: str) -> str:
    try:
        return await failing_order(item)
    except RunFailed as error:
        return f"{type(error).__name__}: {error.__cause__}"


@workflow
async def sending(item: str) -> str:
    sent = await send(item)
    await carry(item)
    return sent


@workflow
class Journey:
    @step(1)
    async def legs(self, count: int) -> list[int]:
        return list(range(count))

    @parallel
    @step(2, depends_on=1, compensate="release")
    async def book(self, leg: int) -> str:
        did.append(("book", leg))
        return f"seat {leg}"

    async def release(self, seat: str) -> None:
        did.append(("release", seat))

    @step(3, depends_on=2)
    async def pay(self, seats: list[str]) -> int:
        raise ConnectionError("no bank")

"""How webhook requests of several namespaces share a server's slots."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.server.webhooks.request_slots import RequestSlots

pytestmark = pytest.mark.asyncio


class Requests:
    """Requests that hold their slots until they are told to end."""

    def __init__(self, total: int, per_namespace: int) -> None:
        self.slots = RequestSlots(total, per_namespace)
        self.held: list[str] = []
        self._ends: dict[str, list[asyncio.Event]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def send(self, namespace: str, count: int = 1) -> list[asyncio.Task[None]]:
        new = [asyncio.create_task(self._hold(namespace)) for _ in range(count)]
        self._tasks += new
        await self.settle()
        return new

    async def _hold(self, namespace: str) -> None:
        async with self.slots.acquire(namespace):
            self.held.append(namespace)
            end = asyncio.Event()
            self._ends.setdefault(namespace, []).append(end)
            try:
                await end.wait()
            finally:
                self.held.remove(namespace)

    async def answer(self, namespace: str) -> None:
        self._ends[namespace].pop(0).set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_namespace_with_silent_receivers_leaves_slots_for_others():
    requests = Requests(total=10, per_namespace=4)
    await requests.send("slow", 20)
    assert requests.held.count("slow") == 4
    await requests.send("quick", 2)
    assert requests.held.count("quick") == 2


async def test_a_free_slot_goes_to_the_namespace_that_has_the_fewest():
    requests = Requests(total=4, per_namespace=4)
    await requests.send("slow", 10)
    await requests.send("quick", 2)
    assert requests.held == ["slow"] * 4
    await requests.answer("slow")
    await requests.answer("slow")
    assert sorted(requests.held) == ["quick", "quick", "slow", "slow"]
    await requests.answer("quick")
    assert requests.held.count("slow") == 3


async def test_a_cancelled_request_leaves_its_slot_to_others():
    requests = Requests(total=1, per_namespace=1)
    [sent] = await requests.send("one")
    [given_up, other] = await requests.send("two", 2)
    given_up.cancel()
    await requests.settle()
    sent.cancel()
    await requests.settle()
    assert requests.held == ["two"]
    other.cancel()
    await requests.settle()
    await requests.send("three")
    assert requests.held == ["three"]


async def test_a_slot_freed_while_a_request_gives_up_goes_to_the_next():
    requests = Requests(total=1, per_namespace=1)
    [sent] = await requests.send("one")
    [given_up, _] = await requests.send("two", 2)
    sent.cancel()
    given_up.cancel()
    await requests.settle()
    assert given_up.cancelled()
    assert requests.held == ["two"]

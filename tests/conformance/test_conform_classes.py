"""Class workflows: numbered steps, what they depend on, conditions, fan-out, and undoing."""

from __future__ import annotations

from typing import Any

import pytest
from conformance_world import World, effect_counts, fails_with, make_unique_id

from holdfast import Client, RunCancelled, current_run, parallel, step, wait_for_signal, workflow

pytestmark = pytest.mark.asyncio(loop_scope="module")


@workflow(id="report-{run_id}")
class ClsReport:
    @step(1)
    async def fetch(self, customer: str) -> list[int]:
        return [1, 2, 3]

    @step(2, depends_on=1)
    def total(self, rows: list[int]) -> int:
        return sum(rows)

    @step(3, depends_on="fetch", retries=1, backoff=0.001)
    async def highest(self, rows: list[int]) -> int:
        effect_counts[current_run().id, "highest"] += 1
        if effect_counts[current_run().id, "highest"] == 1:
            raise ConnectionError("again")
        return max(rows)

    @step(4, depends_on=(2, 3))
    async def write(self, customer: str, total: int, highest: int) -> str:
        return f"{customer}: {total}, at most {highest}"


async def test_a_graph_of_numbered_steps(world: World, client: Client) -> None:
    run = make_unique_id("")
    assert await ClsReport(run_id=run, customer="acme") == "acme: 6, at most 3"
    assert await client.run("ClsReport", run_id=run, customer="acme") == "acme: 6, at most 3"
    assert effect_counts[f"report-{run}", "highest"] == 2


@workflow
class ClsApproval:
    @step(1)
    async def check(self, amount: int) -> int:
        return amount

    @step(2, depends_on=1, when=lambda checked: checked > 100)
    async def ask(self, checked: int) -> str:
        return "requested"

    @step(3, depends_on=(1, 2))
    async def pay(self, check: int, ask: str | None) -> str:
        return f"paid {check}: {ask or 'nobody asked'}"


async def test_a_condition_decides_whether_a_step_runs(world: World) -> None:
    assert await ClsApproval.options(new=True)(amount=5) == "paid 5: nobody asked"
    assert await ClsApproval.options(new=True)(amount=500) == "paid 500: requested"


@workflow
class ClsPages:
    @step(1)
    async def urls(self, site: str) -> list[str]:
        return [f"{site}/{n}" for n in range(4)]

    @parallel(max_concurrency=2)
    @step(2, depends_on=1)
    async def fetch(self, url: str) -> int:
        return len(url)

    @step(3, depends_on=1, each="page")
    async def head(self, page: str) -> str:
        return page[-1]


async def test_a_step_for_each_item_and_several_final_steps(world: World) -> None:
    assert await ClsPages.options(new=True)(site="abc") == {"fetch": [5] * 4, "head": ["0", "1", "2", "3"]}


@workflow
class ClsOrder:
    @step(1, compensate="refund")
    async def charge(self, cents: int) -> str:
        return f"receipt {cents}"

    @step(retries=2, backoff=0.001)
    async def refund(self, receipt: str, cents: int) -> None:
        effect_counts[current_run().id, f"refunded {cents} {receipt}"] += 1

    @step(2, depends_on=1)
    async def ship(self, receipt: str) -> str:
        raise ConnectionError("no carrier")


async def test_a_step_of_a_class_is_undone_when_the_run_fails(world: World) -> None:
    run = make_unique_id("order")
    with fails_with(ConnectionError, "no carrier"):
        await ClsOrder.options(id=run)(cents=500)
    assert effect_counts[run, "refunded 500 receipt 500"] == 1


@workflow
class ClsBase:
    @step(1)
    async def first(self, number: int) -> int:
        return number + 1

    @step(2, depends_on=1)
    async def second(self, number_: int) -> int:
        return number_ * 2


@workflow
class ClsDerived(ClsBase):  # type: ignore[misc]
    @step(2, depends_on=1)
    async def second(self, number_: int) -> int:
        return number_ * 100


async def test_a_class_inherits_steps_and_replaces_them(world: World) -> None:
    assert await ClsBase.options(new=True)(number=1) == 4
    assert await ClsDerived.options(new=True)(number=1) == 200


@workflow
async def cls_calling(number: int) -> list[Any]:
    told = [await ClsBase(number=number)]
    told.append(await wait_for_signal("go"))
    return told


async def test_a_class_as_a_child_of_a_function(world: World, client: Client) -> None:
    run = make_unique_id("calling")
    handle = await cls_calling.options(id=run).start(4)
    await handle.signal("go", "on")
    assert await handle.result() == [10, "on"]
    other = await cls_calling.options(id=make_unique_id("calling")).start(4)
    await other.cancel()
    with pytest.raises(RunCancelled):
        await other.result()

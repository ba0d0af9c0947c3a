"""Fan-outs of class workflows: bounded, in order, recorded item by item."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import UsageError, parallel, step, workflow
from holdfast.testing import Runner

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("most", [1, 3, 50])
async def test_items_run_side_by_side_up_to_the_bound_and_come_in_order(most: int):
    running = highest = 0

    @workflow
    class Squares:
        @step(1)
        async def numbers(self, upto: int) -> list[int]:
            return list(range(upto))

        @parallel(max_concurrency=most)
        @step(2, depends_on=1)
        async def square(self, n: int) -> int:
            nonlocal running, highest
            running += 1
            highest = max(highest, running)
            for _ in range(n % 3 + 1):
                await asyncio.sleep(0)
            running -= 1
            return n * n

        @step(3, depends_on=2)
        async def total(self, squares: list[int]) -> list[int]:
            return squares

    result = await Runner().run(Squares, upto=12)
    assert result.output == [n * n for n in range(12)]
    assert highest == min(most, 12)
    assert len(result.steps["square"]) == 12


async def test_without_a_bound_ten_run_at_once():
    running = highest = 0

    @workflow
    class Unbounded:
        @step(1, each="n")
        async def square(self, n: int) -> int:
            nonlocal running, highest
            running += 1
            highest = max(highest, running)
            await asyncio.sleep(0)
            running -= 1
            return n

    assert (await Runner().run(Unbounded, n=list(range(25)))).output == list(range(25))
    assert highest == 10


@pytest.mark.parametrize("order", ["above", "below", "bare"])
async def test_parallel_above_or_below_step_is_the_same(order: str):
    decorators: dict[str, Any] = {
        "above": lambda f: parallel(max_concurrency=2)(step(2, depends_on=1)(f)),
        "below": lambda f: step(2, depends_on=1)(parallel(max_concurrency=2)(f)),
        "bare": lambda f: parallel(step(2, depends_on=1)(f)),
    }

    @workflow(name=f"ordered {order}")
    class Ordered:
        @step(1)
        def words(self, text: str) -> list[str]:
            return text.split()

        @decorators[order]
        def upper(self, word: str, mark: str = "!") -> str:
            return word.upper() + mark

    result = await Runner().run(Ordered, text="a b c")
    assert result.output == ["A!", "B!", "C!"]


async def test_each_names_the_parameter_and_the_others_are_the_same_for_all_items():
    @workflow
    class Pairs:
        @step(1)
        async def left(self) -> list[int]:
            return [1, 2]

        @step(2)
        async def right(self) -> int:
            return 10

        @parallel
        @step(3, depends_on=(1, 2), each="left")
        async def add(self, right: int, left: int) -> int:
            return left + right

    assert (await Runner().run(Pairs)).output == [11, 12]


async def test_no_items_are_no_trouble():
    @workflow
    class Nothing:
        @step(1, each="n")
        async def one(self, n: int) -> int:
            return n

        @step(2, depends_on=1)
        async def two(self, one: list[int]) -> int:
            return len(one)

    result = await Runner().run(Nothing, n=[])
    assert result.output == 0
    with pytest.raises(IndexError, match=r"step 1 \(one\) was not called: it has no items, was skipped"):
        result.steps[1]


@pytest.mark.parametrize("value", ["text", {"a": 1}, 5, None])
async def test_a_value_that_is_not_a_list_is_an_error_when_it_runs(value: Any):
    @workflow(name=f"no list {value}")
    class NoList:
        @step(1)
        async def one(self) -> Any:
            return value

        @parallel
        @step(2, depends_on=1)
        async def two(self, n: Any) -> int:
            return 1

    result = await Runner().run(NoList)
    assert isinstance(result.error, UsageError)
    assert "step 2 (two) is called for each item of a list" in str(result.error)
    assert f"'n' is bound to a value of type `{type(value).__name__}`" in str(result.error)


async def test_after_a_failure_no_item_begins_but_those_under_way_are_recorded():
    begun: list[int] = []

    @workflow
    class Failing:
        @parallel(max_concurrency=3)
        @step(1, each="n")
        async def work(self, n: int) -> int:
            begun.append(n)
            if n == 1:
                raise ValueError("item 1")
            for _ in range(50):
                await asyncio.sleep(0)
            if n == 2:
                raise KeyError("item 2, later")
            return n

        @step(2, depends_on=1)
        async def after(self, work: list[int]) -> int:
            return 1

    result = await Runner().run(Failing, n=list(range(20)))
    assert result.status == "failed"
    assert str(result.error) == "item 1"
    assert begun == [0, 1, 2]
    assert [item.is_recorded for item in result.steps["work"]] == [True, True, True]
    summed = result.steps[1]
    assert (summed.output, str(summed.error), summed.is_recorded) == ([0, None, None], "item 1", True)
    assert result.steps["after"] == []


async def test_a_failure_elsewhere_stops_a_fan_out():
    begun: list[int] = []

    @workflow
    class FailingBeside:
        @parallel(max_concurrency=2)
        @step(1, each="n")
        async def work(self, n: int) -> int:
            begun.append(n)
            for _ in range(50):
                await asyncio.sleep(0)
            return n

        @step(2)
        async def bad(self) -> int:
            raise ValueError("beside")

    result = await Runner().run(FailingBeside, n=list(range(20)))
    assert str(result.error) == "beside"
    assert begun == [0, 1]
    assert result.steps[1].is_recorded


async def test_the_number_of_a_fan_out_sums_its_items_up():
    @workflow
    class Summed:
        @parallel
        @step(1, each="n", retries=1, backoff=0.01)
        async def work(self, n: int) -> int:
            tries.append(n)
            if n == 2 and tries.count(2) == 1:
                raise ValueError("once")
            return n * 10

        @step(2, depends_on=1)
        async def total(self, work: list[int]) -> int:
            return sum(work)

    tries: list[int] = []
    runner = Runner()
    runner.simulate_crash_after(step=2)
    assert (await runner.run(Summed, n=[1, 2, 3])).has_crashed
    result = await runner.resume("Summed-1")
    one = result.steps[1]
    assert (one.number, one.name, one.output, one.error) == (1, "work", [10, 20, 30], None)
    assert (one.execution_count, one.attempt_count, one.was_replayed, one.is_recorded) == (4, 2, True, True)
    assert [item.attempt_count for item in result.steps["work"]] == [1, 2, 1]


@pytest.mark.parametrize(("moment", "calls"), [("before", 1), ("during", 2), ("after", 1)])
async def test_a_crash_at_the_number_of_a_fan_out_is_at_its_first_item(moment: str, calls: int):
    begun: list[int] = []

    @workflow(name=f"crashed {moment}")
    class Crashed:
        @parallel(max_concurrency=1)
        @step(5, each="n")
        async def work(self, n: int) -> int:
            begun.append(n)
            return n

    runner = Runner()
    getattr(runner, f"simulate_crash_{moment}")(step=5)
    run = await runner.run(Crashed, n=[1, 2])
    assert run.has_crashed
    assert (await runner.resume(run.run_id)).output == [1, 2]
    assert begun.count(1) == calls
    assert begun.count(2) == 1


async def test_the_items_of_a_skipped_step_are_none_and_the_fan_out_is_skipped():
    @workflow
    class SkippedItems:
        @step(1, when=lambda: False)
        async def numbers(self) -> list[int]:
            return [1]

        @parallel
        @step(2, depends_on=1)
        async def work(self, n: int | None) -> int:
            return 1

    result = await Runner().run(SkippedItems)
    assert result.output is None
    assert len(result.steps) == 0

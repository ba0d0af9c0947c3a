"""Running class workflows: what runs when, what is passed on, and what a crash leaves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    Client,
    InputError,
    NonDeterminismError,
    RunConflict,
    RunFailed,
    Runtime,
    RunTimedOut,
    UsageError,
    current_run,
    current_step,
    parallel,
    step,
    workflow,
)
from holdfast.authoring.registry import definitions
from holdfast.testing import Runner

did: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    did.clear()


def define_agent() -> Any:
    @workflow(id="agent-{run_id}")
    class AgentWorkflow:
        @step(1)
        async def reason(self, prompt: str) -> str:
            did.append("reason")
            return f"thought about {prompt}"

        @step(2, depends_on=1)
        async def call_tool(self, result: str) -> dict[str, str]:
            did.append("call_tool")
            return {"found": result}

        @step(3, depends_on=2)
        def synthesize(self, tool_output: dict[str, str]) -> str:
            did.append("synthesize")
            return f"answer: {tool_output['found']}"

    return AgentWorkflow


async def few_turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


# The form itself


@pytest.mark.asyncio
async def test_a_crash_costs_only_what_was_not_recorded():
    AgentWorkflow = define_agent()
    runner = Runner()
    runner.simulate_crash_after(step=1)
    result = await runner.run(AgentWorkflow, run_id="test", prompt="why")
    assert result.has_crashed
    result = await runner.resume("agent-test")
    assert result.output == "answer: thought about why"
    assert result.steps[1].was_replayed
    assert not result.steps[2].was_replayed
    assert did == ["reason", "call_tool", "synthesize"]


@pytest.mark.asyncio
async def test_a_class_workflow_is_awaited_started_and_found_again_like_a_function(url: str):
    AgentWorkflow = define_agent()
    async with Runtime(url):
        assert await AgentWorkflow(run_id="a", prompt="why") == "answer: thought about why"
        handle = await AgentWorkflow.start(run_id="a", prompt="why")
        assert handle.run_id == "agent-a"
        assert await handle.result() == "answer: thought about why"
        assert await AgentWorkflow.options(id="mine")(run_id="b", prompt="so") == "answer: thought about so"
        with pytest.raises(RunConflict):
            await AgentWorkflow(run_id="a", prompt="other")
        assert len(did) == 6


def test_a_class_workflow_runs_from_plain_code(url: str):
    assert define_agent().run_sync(run_id="a", prompt="why") == "answer: thought about why"


@pytest.mark.asyncio
async def test_a_client_starts_it_by_name(url: str):
    define_agent()
    async with Runtime(url), Client(url) as client:
        assert await client.run("AgentWorkflow", run_id="a", prompt="why") == "answer: thought about why"


@pytest.mark.asyncio
async def test_what_only_the_template_uses_is_part_of_the_inputs():
    AgentWorkflow = define_agent()
    runner = Runner()
    await runner.run(AgentWorkflow.options(id="one"), run_id=7, prompt="why")
    with pytest.raises(RunConflict):
        await runner.run(AgentWorkflow.options(id="one"), run_id=8, prompt="why")
    with pytest.raises(InputError, match=r"missing a required .*argument: 'run_id'"):
        await runner.run(AgentWorkflow, prompt="why")


@pytest.mark.asyncio
async def test_inputs_are_keyword_arguments():
    with pytest.raises(InputError, match=r"AgentWorkflow\(\*, run_id, prompt: str\)"):
        await Runner().run(define_agent(), "test", "why")
    with pytest.raises(InputError, match="declared as `str`"):
        await Runner().run(define_agent(), run_id="test", prompt=5)


@pytest.mark.asyncio
async def test_an_input_that_is_not_given_is_each_steps_own_default():
    @workflow
    class Defaults:
        @step(1)
        async def one(self, limit: int = 1) -> int:
            return limit

        @step(2)
        async def two(self, limit: int = 2) -> int:
            return limit

    assert (await Runner().run(Defaults)).output == {"one": 1, "two": 2}
    assert (await Runner().run(Defaults, limit=5)).output == {"one": 5, "two": 5}


@pytest.mark.asyncio
async def test_a_step_knows_its_run_and_the_preview_does_not_show_self(url: str):
    @workflow(id="known")
    class Known:
        @step(1, name="look around")
        async def look(self, n: int) -> list[str]:
            return [current_run().id, current_run().workflow, current_step().name]

    async with Runtime(url) as runtime:
        assert await Known(n=3) == ["known", "Known", "look around"]
        [history] = await runtime._engine.store.get_histories([(await runtime.store_provider.read("known")).key])
        assert [(record.name, record.preview) for record in history.records] == [("look around", "n=3")]


# Order


@pytest.mark.asyncio
async def test_steps_that_are_ready_together_begin_in_the_order_of_their_numbers():
    @workflow
    class Diamond:
        @step(9)
        async def nine(self) -> int:
            return 9

        @step(1)
        async def one(self) -> int:
            return 1

        @step(5, depends_on=1)
        async def five(self, one: int) -> int:
            return one + 4

        @step(4, depends_on=1)
        async def four(self, one: int) -> int:
            return one + 3

        @step(7, depends_on=(4, 5, 9))
        async def seven(self, four: int, five: int, nine: int) -> int:
            return four + five + nine

    result = await Runner().run(Diamond)
    assert [one.number for one in result.steps] == [1, 9, 4, 5, 7]
    assert result.output == 18


@pytest.mark.asyncio
async def test_a_fan_out_and_plain_steps_begin_in_the_order_of_their_numbers():
    @workflow
    class Mixed:
        @step(1)
        async def first(self) -> int:
            return 0

        @step(2, each="n", after=1)
        async def work(self, n: int) -> int:
            return n

        @step(3, after=1)
        async def three(self) -> int:
            return 3

        @step(4, each="n", after=1)
        async def more(self, n: int) -> int:
            return n

        @step(5, after=1)
        async def five(self) -> int:
            return 5

    result = await Runner().run(Mixed, n=[1, 2])
    assert [one.number for one in result.steps] == [1, 2, 2, 3, 4, 4, 5]


@pytest.mark.asyncio
async def test_independent_steps_run_side_by_side():
    both = asyncio.Barrier(2)

    @workflow
    class Meeting:
        @step(1)
        async def one(self) -> int:
            await both.wait()
            return 1

        @step(2)
        async def two(self) -> int:
            await both.wait()
            return 2

    assert (await Runner().run(Meeting)).output == {"one": 1, "two": 2}


@pytest.mark.asyncio
async def test_a_chain_makes_no_task_for_each_step():
    @workflow
    class Chain:
        @step(1)
        async def one(self) -> int:
            return 1

        @step(2, depends_on=1)
        async def two(self, n: int) -> int:
            return n + 1

        @step(3, depends_on=2)
        async def three(self, n: int) -> int:
            return n + 1

    runner = Runner()
    assert (await runner.run(Chain)).output == 3
    loop = runner._world.traces["Chain-1"].traced_executions[-1].loop
    futures = 3  # one for each command
    assert (loop.allocate_number() & 0xFFFF) - 1 == futures + 1  # and the workflow's own task


# Skipping


@pytest.mark.asyncio
@pytest.mark.parametrize(("amount", "output"), [(5, "checked 5, by hand None"), (500, "checked 500, by hand yes")])
async def test_a_condition_decides_and_a_skipped_output_is_none_where_that_is_allowed(amount: int, output: str):
    @workflow
    class Approving:
        @step(1)
        async def check(self, amount: int) -> int:
            return amount

        @step(2, depends_on=1, when=lambda checked: checked > 100)
        async def by_hand(self, checked: int) -> str:
            return "yes"

        @step(3, depends_on=(1, 2))
        async def done(self, check: int, by_hand: str | None) -> str:
            return f"checked {check}, by hand {by_hand}"

    result = await Runner().run(Approving, amount=amount)
    assert result.output == output
    assert len(result.steps["by_hand"]) == (amount > 100)


@pytest.mark.asyncio
async def test_a_skipped_output_is_the_default_else_the_dependent_is_skipped_too():
    @workflow
    class Skipping:
        @step(1, when=lambda: False)
        async def gone(self) -> str:
            return "never"

        @step(2, depends_on=1)
        async def defaulted(self, gone: str = "default") -> str:
            return gone

        @step(3, depends_on=1)
        async def skipped(self, gone: str) -> str:
            return gone

        @step(4, depends_on=1)
        async def ordered(self) -> str:
            return "skipped with it"

        @step(5, after=(1, 3))
        async def after(self) -> str:
            return "runs"

        @step(6, depends_on=3)
        async def too(self, skipped: str) -> str:
            return skipped

    result = await Runner().run(Skipping)
    assert result.output == {"defaulted": "default", "after": "runs"}
    with pytest.raises(IndexError, match=r"step 3 \(skipped\) was not called: it was skipped, or has not been reached"):
        result.steps[3]
    with pytest.raises(IndexError, match=r"there is no step 7; .* the steps are: 1 \(gone\), 2 \(defaulted\)"):
        result.steps[7]


@pytest.mark.asyncio
async def test_the_result_of_a_skipped_final_step_is_none():
    @workflow
    class Nothing:
        @step(1, when=lambda n: n > 1)
        async def one(self, n: int) -> int:
            return n

    assert (await Runner().run(Nothing, n=1)).output is None
    assert (await Runner().run(Nothing, n=2)).output == 2


@pytest.mark.asyncio
async def test_a_condition_sees_earlier_outputs_and_inputs_by_name():
    seen: list[Any] = []

    def is_wanted(first: int, n: int, limit: int, skipped: int | None, middle: int, other: int = 8) -> bool:
        seen.append((first, n, limit, skipped, middle, other))
        return True

    @workflow
    class Looking:
        @step(1)
        async def first(self, n: int, limit: int = 3) -> int:
            return n + 1

        @step(2, depends_on=1, when=lambda first: first > 100)
        async def skipped(self, first: int) -> int:
            return first

        @step(3, depends_on=1, after=2)
        async def middle(self, first: int) -> int:
            return first

        @step(4, depends_on=3, when=is_wanted)
        async def last(self, middle: int) -> int:
            return middle

    assert (await Runner().run(Looking, n=1)).output == 2
    assert seen == [(2, 1, 3, None, 2, 8)]


@pytest.mark.asyncio
async def test_a_builtin_may_be_a_condition():
    @workflow
    class Truthy:
        @step(1)
        async def rows(self, n: int) -> list[int]:
            return [1] * n

        @step(2, depends_on=1, when=bool)
        async def load(self, rows: list[int]) -> int:
            return len(rows)

    assert (await Runner().run(Truthy, n=0)).output is None
    assert (await Runner().run(Truthy, n=2)).output == 2


@pytest.mark.asyncio
async def test_what_a_condition_raises_fails_the_run_and_a_coroutine_is_no_answer():
    @workflow
    class Raising:
        @step(1, when=lambda n: 1 // n)
        async def one(self, n: int) -> int:
            return n

    assert isinstance((await Runner().run(Raising, n=0)).error, ZeroDivisionError)

    @workflow
    class Waiting:
        @step(1, when=lambda n: few_turns())
        async def one(self, n: int) -> int:
            return n

    assert "returned a coroutine" in str((await Runner().run(Waiting, n=0)).error)


# Failing


@pytest.mark.asyncio
async def test_after_a_failure_nothing_begins_but_what_is_under_way_is_recorded():
    @workflow
    class Failing:
        @step(1)
        async def bad(self) -> int:
            raise ValueError("first")

        @step(2)
        async def slow(self) -> int:
            await few_turns()
            did.append("slow")
            return 2

        @step(3)
        async def bad_too(self) -> int:
            await few_turns()
            raise KeyError("second")

        @step(4, depends_on=2)
        async def never(self, slow: int) -> int:
            did.append("never")
            return 4

    result = await Runner().run(Failing)
    assert result.status == "failed"
    assert isinstance(result.error, ValueError)
    assert did == ["slow"]
    assert result.steps[2].output == 2
    assert isinstance(result.steps[3].error, KeyError)
    assert result.steps["never"] == []


@pytest.mark.asyncio
async def test_the_first_failure_in_the_journal_is_raised_whatever_its_number():
    @workflow
    class Both:
        @step(1)
        async def late(self) -> int:
            await few_turns()
            raise KeyError("late")

        @step(2)
        async def early(self) -> int:
            raise ValueError("early")

    assert str((await Runner().run(Both)).error) == "early"


@pytest.mark.asyncio
async def test_a_run_that_times_out_cancels_what_is_under_way(url: str):
    cancelled: list[str] = []

    @workflow(timeout=0.05)
    class Endless:
        @step(1)
        async def one(self) -> int:
            return await self.wait("one")

        @step(2)
        async def two(self) -> int:
            return await self.wait("two")

        @parallel
        @step(3, each="n")
        async def three(self, n: str) -> int:
            return await self.wait(n)

        async def wait(self, name: str) -> int:
            try:
                return await asyncio.Event().wait()
            finally:
                cancelled.append(name)

    async with Runtime(url):
        with pytest.raises(RunFailed) as failed:
            await Endless(n=["a", "b"])
    assert isinstance(failed.value.__cause__, RunTimedOut)
    assert sorted(cancelled) == ["a", "b", "one", "two"]


@pytest.mark.asyncio
async def test_a_retry_repeats_only_what_failed(url: str):
    is_broken = True

    @workflow(id="retried")
    class Retried:
        @step(1)
        async def bad(self) -> int:
            did.append("bad")
            if is_broken:
                raise ValueError("not yet")
            return 1

        @step(2)
        async def slow(self) -> int:
            await few_turns()
            did.append("slow")
            return 2

        @parallel(max_concurrency=2)
        @step(3, each="n")
        async def items(self, n: int) -> int:
            await few_turns()
            did.append(f"item {n}")
            return n

        @step(4, depends_on=(1, 2, 3))
        async def last(self, bad: int, slow: int, items: list[int]) -> int:
            return bad + slow + sum(items)

    async with Runtime(url), Client(url) as client:
        with pytest.raises(RunFailed, match="not yet"):
            await Retried(n=[1, 2, 3, 4])
        assert did == ["bad", "slow", "item 1", "item 2"]
        did.clear()
        is_broken = False
        await client.retry("retried")
        assert await client.handle("retried").result() == 13
    assert did == ["bad", "item 3", "item 4"]


@pytest.mark.asyncio
async def test_a_retry_repeats_every_step_that_failed(url: str):
    is_broken = True

    @workflow(id="retried-twice")
    class RetriedTwice:
        @step(1)
        async def first(self) -> int:
            did.append("first")
            if is_broken:
                raise ValueError("the first")
            return 1

        @step(2)
        async def second(self) -> int:
            await few_turns()
            did.append("second")
            if is_broken:
                raise ValueError("the second")
            return 2

        @step(3, depends_on=(1, 2))
        async def both(self, first: int, second: int) -> int:
            return first + second

    async with Runtime(url), Client(url) as client:
        with pytest.raises(RunFailed, match="the first"):
            await RetriedTwice()
        did.clear()
        is_broken = False
        await client.retry("retried-twice")
        assert await client.handle("retried-twice").result() == 3
    assert did == ["first", "second"]


@pytest.mark.asyncio
async def test_what_was_done_is_undone_backwards_with_the_methods_of_the_class(url: str):
    @workflow
    class Undoing:
        @step(1, compensate="refund")
        async def charge(self, cents: int) -> str:
            return "receipt"

        @step(2, after=1, each="item", compensate="unpack")
        async def pack(self, item: str) -> str:
            return f"packed {item}"

        @step(3, depends_on=(1, 2))
        async def ship(self, charge: str, pack: list[str]) -> str:
            raise ConnectionError("no carrier")

        @step(retries=1)
        async def refund(self, receipt: str, cents: int) -> None:
            did.append(f"refund {receipt} {cents} {type(self).__name__}")

        def unpack(self, what: str, item: str) -> None:
            did.append(f"unpack {item}, {what}")

    async with Runtime(url):
        with pytest.raises(RunFailed, match="no carrier"):
            await Undoing(cents=5, item=["a"])
    assert did == ["unpack a, packed a", "refund receipt 5 Undoing"]


# Self


@pytest.mark.asyncio
async def test_there_is_one_instance_and_its_attributes_cannot_be_set_by_steps():
    made: list[object] = []

    @workflow
    class Keeping:
        def __init__(self, prefix: str = "p-") -> None:
            self.prefix = prefix
            made.append(self)

        @step(1)
        async def read(self, n: int) -> str:
            assert self is made[0]
            return self.named(n)

        @step(2, depends_on=1, when=lambda n: n > 5)
        def keep(self, name: str) -> str:
            self.kept = name
            return name

        def named(self, n: int) -> str:
            return f"{self.prefix}{n}"

    assert (await Runner().run(Keeping, n=1)).output is None
    result = await Runner().run(Keeping, n=6)
    assert isinstance(result.error, UsageError)
    assert "changes `self.kept`. What is kept on self is not recorded" in str(result.error)
    assert "return it" in str(result.error)
    assert len(made) == 1
    assert not hasattr(made[0], "kept")


@pytest.mark.asyncio
async def test_a_step_called_by_another_is_a_plain_call():
    @workflow
    class Calling:
        @step(1)
        async def one(self, n: int) -> int:
            return n + 1

        @step(2, depends_on=1)
        async def two(self, result: int) -> int:
            return await self.one(result) + self.three(result)  # type: ignore[operator]

        @step(3, depends_on=2)
        def three(self, m: int) -> int:
            return m * 10

    result = await Runner().run(Calling, n=1)
    assert result.output == (3 + 20) * 10
    assert len(result.steps) == 3


@pytest.mark.asyncio
async def test_a_numbered_step_belongs_to_a_class():
    @step(1)
    async def alone(n: int) -> int:
        return n

    @workflow
    async def calling() -> int:
        return await alone(1)

    assert await alone(2) == 2
    error = (await Runner().run(calling)).error
    assert isinstance(error, UsageError)
    assert "write `@step` without a number" in str(error)


@pytest.mark.asyncio
async def test_inherited_steps_run_on_the_class_that_inherits_them():
    class Base:
        @step(1)
        async def fetch(self, n: int) -> int:
            return n + self.offset()

        @step(2, depends_on=1)
        async def load(self, rows: int) -> int:
            return rows

        def offset(self) -> int:
            return 0

    @workflow
    class Derived(Base):
        @step(2, depends_on=1)
        async def load(self, rows: int) -> int:
            return -await super().load(rows)

        def offset(self) -> int:
            return 100

    assert (await Runner().run(Derived, n=1)).output == -101


# Values


@dataclass
class Row:
    name: str
    size: int


@pytest.mark.asyncio
async def test_the_outputs_of_several_final_steps_keep_their_types():
    @workflow
    class Typed:
        @step(1)
        async def rows(self) -> list[Row]:
            return [Row("a", 1)]

        @step(2)
        async def untyped(self):  # type: ignore[no-untyped-def]
            return (1, {"a": b"\xff"})

        @step(3, when=lambda: False)
        async def skipped(self) -> Row:
            return Row("b", 2)

    result = await Runner().run(Typed)
    assert result.output == {"rows": [Row("a", 1)], "untyped": (1, {"a": b"\xff"})}


@pytest.mark.asyncio
async def test_the_outputs_of_untyped_final_steps_are_recorded_as_they_are():
    @workflow
    class Untyped:
        @step(1)
        async def one(self):  # type: ignore[no-untyped-def]
            return (1, 2)

        @step(2)
        async def two(self):  # type: ignore[no-untyped-def]
            return {3}

    assert (await Runner().run(Untyped)).output == {"one": (1, 2), "two": {3}}


# Crashes and new code


@pytest.mark.asyncio
async def test_an_inserted_step_is_reported_by_name():
    runner = Runner()
    runner.simulate_crash_after(step=2)
    assert (await runner.run(define_agent(), run_id="x", prompt="why")).has_crashed
    definitions.clear()

    @workflow(id="agent-{run_id}")
    class AgentWorkflow:
        @step(1)
        async def reason(self, prompt: str) -> str:
            return prompt

        @step(2, depends_on=1)
        async def moderate(self, result: str) -> str:
            return result

        @step(3, depends_on=2)
        async def call_tool(self, result: str) -> dict[str, str]:
            return {"found": result}

    error = (await runner.resume("agent-x")).error
    assert isinstance(error, NonDeterminismError)
    assert "moderate" in str(error)
    assert "call_tool" in str(error)


@pytest.mark.asyncio
async def test_a_graph_survives_a_crash_at_every_point():
    @workflow(id="everywhere-{run_id}")
    class Everywhere:
        @step(1)
        async def numbers(self, upto: int) -> list[int]:
            return list(range(upto))

        @parallel(max_concurrency=2)
        @step(2, depends_on=1)
        async def square(self, n: int) -> int:
            return n * n

        @step(3, depends_on=1, when=lambda numbers: len(numbers) > 2)
        def many(self, numbers: list[int]) -> str:
            return "many"

        @step(4, depends_on=1, when=lambda numbers: len(numbers) > 20)
        async def very_many(self, numbers: list[int]) -> str:
            return "very many"

        @step(5, depends_on=(2, 3, 4), effect="read")
        async def told(self, square: list[int], many: str | None, very_many: str = "not so many") -> str:
            return f"{sum(square)} {many} {very_many}"

        @step(6, depends_on=2)
        async def highest(self, squares: list[int]) -> int:
            return max(squares)

    report = await Runner(replay_processes=0).crash_everywhere(Everywhere, run_id=1, upto=4)
    assert report.result.output == {"told": "14 many not so many", "highest": 9}


@pytest.mark.asyncio
@pytest.mark.parametrize("moment", ["before", "during", "after"])
async def test_a_simulated_crash_is_at_the_declared_number(moment: str):
    @workflow
    class Backwards:
        @step(30)
        async def first(self) -> int:
            did.append("first")
            return 1

        @step(20, depends_on=30)
        async def second(self, first: int) -> int:
            did.append("second")
            return 2

    runner = Runner()
    getattr(runner, f"simulate_crash_{moment}")(step=20)
    crashed = await runner.run(Backwards)
    assert crashed.has_crashed
    assert crashed.steps[30].is_recorded
    assert did == (["first"] if moment == "before" else ["first", "second"])
    result = await runner.resume("Backwards-1")
    assert (result.output, result.steps[20].number, result.steps[20].name) == (2, 20, "second")


@pytest.mark.asyncio
async def test_the_error_for_a_crash_at_an_unknown_number_lists_the_known_ones():
    runner = Runner()
    runner.simulate_crash_after(step=4)
    with pytest.raises(UsageError, match=r"its steps: 1 \(reason\), 2 \(call_tool\), 3 \(synthesize\)"):
        await runner.run(define_agent(), run_id="x", prompt="why")


@pytest.mark.asyncio
async def test_a_step_of_a_class_can_be_mocked_by_name():
    runner = Runner()
    mock = runner.mock("reason", return_value="mocked")
    result = await runner.run(define_agent(), run_id="x", prompt="why")
    assert result.output == "answer: mocked"
    assert mock.calls[0].kwargs == {"prompt": "why"}

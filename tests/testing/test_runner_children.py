"""``Runner``: runs that start runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from runner_child_flows import (
    approved_order,
    careful_order,
    did,
    leaving_behind,
    ordering,
    ordering_many,
    packing,
    wrap,
)

from holdfast import UsageError, step, workflow
from holdfast.testing import Runner


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    did.clear()


# What is told


@pytest.mark.asyncio
async def test_a_child_is_there_with_its_state_its_output_and_its_steps() -> None:
    runner = Runner()
    result = await runner.run(ordering, "tea")
    assert result.output == "[a tea]"
    [child] = result.children
    assert child is result.children[2] is result.children["packing"][0] is result.children[-1]
    assert (child.run_id, child.workflow, child.status, child.output) == (
        "order-of-tea:packing-2", "packing", "completed", "[a tea]",
    )  # fmt: skip
    assert [one.name for one in child.steps] == ["pick", "wrap"]
    assert (await runner.result(child.run_id)).output == "[a tea]"
    assert len(child.children) == 0
    with pytest.raises(IndexError, match=r"there is no child 1; they are numbered with the steps, from 1: 2 \(packing"):
        result.children[1]
    with pytest.raises(IndexError, match="number 2 is a run of workflow 'packing'"):
        result.steps[2]
    assert "order-of-tea:packing-2" in repr(result.children)
    assert result.children["nothing of this name"] == []


@pytest.mark.asyncio
async def test_children_come_in_the_order_of_the_calls() -> None:
    result = await Runner().run(ordering_many, ["tea", "jam", "bread"])
    assert [child.output for child in result.children] == ["[a tea]", "[a jam]", "[a bread]"]
    assert [child.run_id[-9:] for child in reversed(result.children)] == ["packing-3", "packing-2", "packing-1"]
    assert [child.run_id for child in result.children[:1]] == ["ordering_many-1:packing-1"]
    assert result.children[2] in result.children


@pytest.mark.asyncio
async def test_the_ids_of_runs_do_not_depend_on_how_many_children_there_were() -> None:
    runner = Runner()
    assert (await runner.run(ordering_many, ["tea", "jam"])).run_id == "ordering_many-1"
    assert (await runner.run(ordering_many, ["tea", "jam"])).run_id == "ordering_many-2"


@pytest.mark.asyncio
async def test_a_child_that_is_not_awaited_continues_when_time_passes() -> None:
    runner = Runner()
    result = await runner.run(leaving_behind, 3)
    assert result.status == "completed"
    assert (result.children[1].status, result.output) == ("waiting", result.children[1].run_id)
    await runner.advance(timedelta(days=2))
    assert did == []
    child = await runner.resume(result.output)
    assert (child.output, did) == ("nagged", [("wrap", "reminder")])


@pytest.mark.asyncio
async def test_a_parent_waits_for_a_child_that_waits_for_a_signal() -> None:
    runner = Runner()
    result = await runner.run(approved_order, "tea")
    assert (result.status, result.waits_for) == ("waiting", f"run {result.children[2].run_id!r}")
    assert result.children[2].waits_for == "signal 'approval'"
    child = await runner.signal(result.children[2].run_id, "approval", "yes")
    assert child.output == "yes"
    assert (await runner.result(result.run_id)).output == "tea: yes"  # who waited for it has gone on, too


@pytest.mark.asyncio
async def test_answers_and_mocks_are_for_children_as_well() -> None:
    runner = Runner()
    runner.answer_signal("approval", "no")
    picked = runner.mock("pick", return_value="nothing")
    result = await runner.run(approved_order, "tea")
    assert result.output == "tea: no"
    assert [call.args for call in picked.calls] == [("tea",)]
    assert did == [("bill", 9)]


@pytest.mark.asyncio
async def test_a_failed_child_is_reported_as_such() -> None:
    result = await Runner().run(careful_order, "tea")
    assert result.output == "RunFailed: no carrier"
    [child] = result.children
    assert (child.status, str(child.error)) == ("failed", "no carrier")
    assert [one.name for one in child.steps if one.is_compensation] == ["unpick", "refund"]


@pytest.mark.asyncio
async def test_a_run_that_is_waited_for_twice_is_one_child() -> None:
    @workflow
    async def asking_twice() -> list[str]:
        handle = await packing.start("tea")
        return [await handle.result(), await handle.result()]

    result = await Runner().run(asking_twice)
    assert result.output == ["[a tea]", "[a tea]"]
    assert [child.run_id for child in result.children] == ["asking_twice-1:packing-1"]


@pytest.mark.asyncio
async def test_a_run_that_two_others_wait_for() -> None:
    @workflow(id="shared")
    async def shared_by_two() -> str:
        await asyncio.sleep(10)
        return await wrap("shared")

    @workflow
    async def sharing() -> str:
        return await shared_by_two()

    runner = Runner()
    first, second = await runner.start(sharing), await runner.start(sharing)
    await runner.advance(10)
    assert (await runner.result(first.run_id)).output == "[shared]"
    assert (await runner.result(second.run_id)).output == "[shared]"
    assert did == [("wrap", "shared")]


@pytest.mark.asyncio
async def test_a_child_that_was_there_before_the_parent_waited_in_memory() -> None:
    @workflow(id="there-{number}")
    async def there(number: int) -> str:
        return await wrap(str(number))

    @workflow
    async def joining(number: int) -> str:
        return await there(number)

    runner = Runner()
    await runner.run(there, 1)
    result = await runner.run(joining, 1)
    assert (result.output, result.children[1].run_id) == ("[1]", "there-1")
    assert did == [("wrap", "1")]


# Crashes


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("which", [{"child": "packing"}, {"child": packing}, {"child": 2}])
@pytest.mark.asyncio
async def test_a_crash_at_a_child(moment: str, which: dict[str, Any]) -> None:
    runner = Runner()
    getattr(runner, f"simulate_crash_{moment}")(**which)
    result = await runner.run(ordering, "tea")
    assert result.has_crashed
    assert result.status == "running"
    states = [(child.status, child.has_crashed) for child in result.children]
    assert states == ([] if moment == "before" else [("completed", True)])
    result = await runner.resume("order-of-tea")
    assert (result.output, result.children[2].status) == ("[a tea]", "completed")
    assert did == [("bill", 500), ("pick", "tea"), ("wrap", "a tea")]


@pytest.mark.parametrize(
    ("moment", "executions", "replayed"), [("before", 1, False), ("during", 2, False), ("after", 1, True)]
)
@pytest.mark.parametrize("which", [{"step": wrap}, {"step": 2, "run": "order-of-tea:packing-2"}])
@pytest.mark.asyncio
async def test_a_crash_at_a_step_of_a_child_is_one_of_its_parent(
    moment: str, executions: int, replayed: bool, which: dict[str, Any]
) -> None:
    runner = Runner()
    getattr(runner, f"simulate_crash_{moment}")(**which)
    crashed = await runner.run(ordering, "tea")
    assert crashed.has_crashed
    assert crashed.children[2].has_crashed
    child = (await runner.resume("order-of-tea")).children[2]
    assert child.output == "[a tea]"
    assert (child.steps[2].execution_count, child.steps[2].was_replayed) == (executions, replayed)
    assert child.steps["pick"][0].was_replayed


@pytest.mark.asyncio
async def test_numbers_and_the_end_are_those_of_the_run_that_the_test_started() -> None:
    runner = Runner()
    runner.simulate_crash_after(step=1)
    await runner.run(ordering, "tea")
    assert did == [("bill", 500)]
    runner.simulate_crash_before(end=True)
    crashed = await runner.resume("order-of-tea")
    assert (crashed.has_crashed, crashed.children[2].status) == (True, "completed")
    assert (await runner.resume("order-of-tea")).output == "[a tea]"


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.asyncio
async def test_a_crash_at_the_end_of_a_child(moment: str) -> None:
    runner = Runner()
    getattr(runner, f"simulate_crash_{moment}")(end=True, run="order-of-tea:packing-2")
    crashed = await runner.run(ordering, "tea")
    assert crashed.children[2].status == ("running" if moment == "before" else "completed")
    assert (await runner.resume("order-of-tea")).output == "[a tea]"
    assert did == [("bill", 500), ("pick", "tea"), ("wrap", "a tea")]


@pytest.mark.asyncio
async def test_a_crash_in_one_child_is_one_of_all() -> None:
    @step
    async def held() -> None:
        await asyncio.sleep(30)

    @workflow
    async def holding() -> None:
        await held()

    @workflow
    async def two_children() -> None:
        await asyncio.gather(holding(), packing("tea"))

    runner = Runner()
    runner.simulate_crash_after(wrap)
    result = await runner.run(two_children)
    assert [(child.status, child.has_crashed) for child in result.children] == [("running", True), ("running", True)]


@pytest.mark.asyncio
async def test_a_crash_in_a_child_that_is_not_awaited() -> None:
    runner = Runner()
    runner.simulate_crash_after(child="nagging")
    assert (await runner.run(leaving_behind, 0)).has_crashed
    runner.simulate_crash_during(wrap)
    crashed = await runner.resume("leaving_behind-1")
    assert (crashed.has_crashed, crashed.status) == (True, "completed")
    assert (await runner.resume("leaving_behind-1")).children[1].output == "nagged"
    assert did == [("wrap", "reminder")] * 2


@pytest.mark.asyncio
async def test_an_unreached_child_is_an_error() -> None:
    runner = Runner()
    runner.simulate_crash_after(child="pakcing")
    with pytest.raises(UsageError, match=r"never reached .* after child 'pakcing'; .* its children: packing \('order"):
        await runner.run(ordering, "tea")


@pytest.mark.asyncio
async def test_a_child_that_is_not_awaited_may_still_reach_the_crash() -> None:
    runner = Runner()
    runner.simulate_crash_after(wrap)
    run = await runner.run(leaving_behind, 3)
    assert (await runner.resume(run.output)).has_crashed
    assert (await runner.resume(run.output)).output == "nagged"


# Everywhere


def test_every_point_of_the_children_is_tried() -> None:
    report = Runner(replay_processes=0, max_pairs=20).crash_everywhere_sync(ordering, "tea")
    # start 2, step 3, child 3, end 2; in the child: after its start 1, steps 6, end 2
    assert report.point_count == 19
    assert report.result.children[2].status == "completed"


def test_a_child_whose_approval_is_not_answered_is_named() -> None:
    waiting = r"run 'approved_order-1:approving-2' waits for signal 'approval', which the test does not send"
    with pytest.raises(UsageError, match=waiting):
        Runner(replay_processes=0).crash_everywhere_sync(approved_order, "tea")
    runner = Runner(replay_processes=0, max_pairs=10)
    runner.answer_signal("approval", "yes")
    assert runner.crash_everywhere_sync(approved_order, "tea").result.output == "tea: yes"


def test_a_schedule_in_a_child_can_be_tried_alone() -> None:
    only = "during step 2 (wrap) of run 'order-of-tea:packing-2'"
    runner = Runner(replay_processes=0, only=only)
    runs: list[Any] = []
    runner.after_each(runs.append)
    assert runner.crash_everywhere_sync(ordering, "tea").point_count == 1
    assert [run.children[2].steps[2].execution_count for run in runs] == [1, 2, 1]

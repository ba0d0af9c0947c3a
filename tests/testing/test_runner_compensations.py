"""``Runner``: runs that undo what they have done."""

from __future__ import annotations

from typing import Any

import pytest
from runner_child_flows import Journey, careful_order, did, failing_order, refund, unpick

from holdfast import CompensationFailed, RunFailed, StepOutcomeUnknown, step, workflow
from holdfast.testing import Runner


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    did.clear()


@pytest.mark.asyncio
async def test_compensations_are_among_the_steps() -> None:
    result = await Runner().run(failing_order, "tea")
    assert (result.status, str(result.error)) == ("failed", "no carrier")
    assert [(one.number, one.name, one.compensates, one.was_compensated) for one in result.steps] == [
        (1, "bill", None, True), (2, "pick", None, True), (3, "carry", None, False),
        (4, "unpick", 2, False), (5, "refund", 1, False),
    ]  # fmt: skip
    assert [one.is_compensation for one in result.steps] == [False, False, False, True, True]
    assert result.steps[4] is result.steps["unpick"][0]
    assert (result.steps[4].output, result.steps[4].attempt_count, result.steps[4].execution_count) == (
        "tea is back",
        1,
        1,
    )
    assert did[-2:] == [("unpick", "tea"), ("refund", "receipt 7", 7)]


@pytest.mark.asyncio
async def test_compensations_can_be_mocked() -> None:
    runner = Runner()
    back = runner.mock(unpick, side_effect=[ConnectionError("shut"), "back"])
    money = runner.mock("refund", return_value=None)
    result = await runner.run(failing_order, "tea")
    assert (result.steps["unpick"][0].attempt_count, result.steps["unpick"][0].output) == (2, "back")
    assert [call.kwargs for call in back.calls] == [{"item": "tea"}] * 2
    assert [call.kwargs for call in money.calls] == [{"receipt": "receipt 7", "cents": 7}]


@pytest.mark.asyncio
async def test_a_compensation_that_fails_stops_the_undoing_and_a_retry_goes_on_with_it() -> None:
    runner = Runner()
    runner.mock(unpick, raises=PermissionError("locked"))
    result = await runner.run(failing_order, "tea")
    assert isinstance(result.error, CompensationFailed)
    assert isinstance(result.steps["unpick"][0].error, PermissionError)
    assert not result.steps["refund"]
    assert not any(one.was_compensated for one in result.steps)
    runner.mock(unpick, return_value="back")
    again = await runner.retry(result.run_id)
    assert (again.status, str(again.error)) == ("failed", "no carrier")
    assert [one.was_compensated for one in again.steps] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("moment", "executions", "replayed"), [("before", 1, False), ("during", 2, False), ("after", 1, True)]
)
@pytest.mark.parametrize("which", ["unpick", unpick, 4])
@pytest.mark.asyncio
async def test_a_crash_at_a_compensation(moment: str, executions: int, replayed: bool, which: Any) -> None:
    runner = Runner()
    getattr(runner, f"simulate_crash_{moment}")(compensation=which)
    crashed = await runner.run(failing_order, "tea")
    assert (crashed.has_crashed, crashed.status) == (True, "running")
    assert crashed.steps[2].was_compensated is replayed
    result = await runner.resume(crashed.run_id)
    assert (result.status, str(result.error)) == ("failed", "no carrier")
    assert (result.steps[4].execution_count, result.steps[4].was_replayed) == (executions, replayed)
    assert [one.execution_count for one in result.steps] == [1, 1, 1, executions, 1]
    assert did.count(("refund", "receipt 7", 7)) == 1


@pytest.mark.asyncio
async def test_a_step_of_that_name_is_no_compensation() -> None:
    runner = Runner()
    runner.simulate_crash_after(compensation="bill")
    with pytest.raises(Exception, match=r"never reached the simulated crash after compensation 'bill'"):
        await runner.run(failing_order, "tea")


def test_a_run_that_is_undone_survives_a_crash_anywhere() -> None:
    runner = Runner(replay_processes=0, max_pairs=40)
    runner.before_each(did.clear)

    @runner.after_each
    def undone_in_reverse(result: Any) -> None:
        assert [one.name for one in result.steps if one.is_compensation] == ["unpick", "refund"]
        assert [one.was_compensated for one in result.steps] == [True, True, False, False, False]
        undone = list(dict.fromkeys(one[0] for one in did if one[0] in ("unpick", "refund")))
        assert undone == ["unpick", "refund"]

    report = runner.crash_everywhere_sync(failing_order, "tea")
    assert report.point_count == 2 + 5 * 3 + 2
    assert report.result.status == "failed"


def test_a_child_that_is_undone_survives_a_crash_anywhere() -> None:
    report = Runner(replay_processes=0, max_pairs=10).crash_everywhere_sync(careful_order, "tea")
    assert report.result.output == "RunFailed: no carrier"


@pytest.mark.asyncio
async def test_an_unknown_outcome_is_not_undone() -> None:
    @step(effect="once", compensate=refund)
    async def bill_once(cents: int) -> str:
        return "receipt"

    @workflow
    async def billing_once() -> None:
        await bill_once(3)

    runner = Runner()
    runner.simulate_crash_during("bill_once")
    run = await runner.run(billing_once)
    result = await runner.resume(run.run_id)
    assert isinstance(result.error, StepOutcomeUnknown)
    assert [one.name for one in result.steps] == ["bill_once"]


# Class workflows


@pytest.mark.asyncio
async def test_in_a_class_workflow_a_compensation_names_the_declared_step() -> None:
    runner = Runner()
    result = await runner.run(Journey, count=2)
    assert [(one.number, one.name, one.compensates) for one in result.steps] == [
        (1, "legs", None), (2, "book", None), (2, "book", None), (3, "pay", None),
        (0, "release", 2), (0, "release", 2),
    ]  # fmt: skip
    assert result.steps[2].was_compensated
    assert did[-2:] == [("release", "seat 1"), ("release", "seat 0")]


@pytest.mark.asyncio
async def test_a_crash_at_a_compensation_of_a_class_workflow() -> None:
    runner = Runner()
    runner.simulate_crash_during(compensation="release", occurrence=2)
    run = await runner.run(Journey, count=2)
    assert run.has_crashed
    result = await runner.resume(run.run_id)
    assert [one.execution_count for one in result.steps["release"]] == [1, 2]


@pytest.mark.asyncio
async def test_a_class_workflow_as_a_child() -> None:
    @workflow
    async def travelling() -> str:
        try:
            return str(await Journey(count=1))
        except RunFailed as failed:
            return str(failed.__cause__)

    runner = Runner()
    runner.simulate_crash_after(step=2, run="travelling-1:Journey-1")
    assert (await runner.run(travelling)).has_crashed
    result = await runner.resume("travelling-1")
    assert result.output == "no bank"
    assert result.children[1].steps[2].was_replayed

"""``crash_everywhere`` of long workflows: points share a run, and the same faults are found as if each had its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import long_unsafe_flows
import pytest
from long_unsafe_flows import outside, work

import holdfast
from holdfast import StepOutcomeUnknown, Workflow, current_step, step, wait_for_signal, workflow
from holdfast.testing import CrashSafetyError, Runner, RunResult, crash_everywhere
from holdfast.testing.crash_points import CrashPoint, RunEvent
from holdfast.testing.crash_schedules import (
    MAX_POINTS_ALONE,
    MIN_SAMPLE,
    CrashPlan,
    LocatedPoint,
    get_sample_size,
    make_crash_plan,
)


def make_runner(**settings: Any) -> Runner:
    runner = Runner(**{"replay_processes": 0, "max_pairs": 0, **settings})
    runner.before_each(outside.reset)
    runner.answer_signal("go", 1)
    return runner


# The schedules


def locate_steps(count: int, *, once: bool = False) -> list[LocatedPoint]:
    return [
        LocatedPoint(CrashPoint.from_event(phase, RunEvent("step", number, "work")), (phase,), once and number == 9)
        for number in range(1, count + 1)
        for phase in ("before", "during", "after")
    ]


def test_a_short_run_has_every_point_alone() -> None:
    points = locate_steps(MAX_POINTS_ALONE // 3)
    plan = make_crash_plan(points)
    assert plan.alone == [(located.point,) for located in points]
    assert plan.series == []


@pytest.mark.parametrize("count", [67, 100, 335, 1001])
def test_a_long_run_has_every_point_in_one_schedule(count: int) -> None:
    points = locate_steps(count)
    plan = make_crash_plan(points)
    tried = [point for schedule in [*plan.alone, *plan.series] for point in schedule]
    assert len(tried) == len(points)
    assert set(tried) == {located.point for located in points}
    assert get_sample_size(len(points)) == len(plan.alone) >= MIN_SAMPLE
    for phase in ("before", "during", "after"):
        ends = {CrashPoint.from_event(phase, RunEvent("step", number, "work")) for number in (1, count)}
        assert ends <= {point for (point,) in plan.alone}
    assert plan == make_crash_plan(points), "the same schedules every time"


def test_the_crashes_of_a_series_are_in_order_and_spread_over_the_run() -> None:
    points = locate_steps(1000)
    order = {located.point: at for at, located in enumerate(points)}
    plan = make_crash_plan(points)
    assert max(map(len, plan.series)) <= 56
    for schedule in plan.series:
        places = [order[point] for point in schedule]
        assert places == sorted(places)
        assert all(third - first > 50 for first, third in zip(places, places[2:], strict=False))


def test_a_crash_in_a_once_step_is_always_alone() -> None:
    points = locate_steps(200, once=True)
    must_be_alone = {located.point for located in points if located.must_be_alone}
    assert must_be_alone <= {point for (point,) in make_crash_plan(points).alone}


# What is found


@pytest.mark.parametrize("flow", long_unsafe_flows.UNSAFE, ids=lambda flow: flow.name)
def test_a_fault_in_the_middle_of_a_long_run_is_found(flow: Workflow[..., Any]) -> None:
    long_unsafe_flows.memory.clear()
    long_unsafe_flows.seen.clear()
    runner = make_runner()
    check = long_unsafe_flows.UNSAFE[flow]
    if check is not None:
        runner.after_each(lambda result: check())
    with pytest.raises(AssertionError) as caught:
        runner.crash_everywhere_sync(flow)
    if check is None:
        assert isinstance(caught.value, CrashSafetyError)
        assert len(caught.value.schedule) <= 1
    else:
        assert "crash_everywhere tried this schedule: during step 51 " in caught.value.__notes__[0]


@workflow
async def long_needs_two_crashes() -> int:
    for number in range(40):
        await (long_unsafe_flows.log(number) if number in (10, 30) else work(number))
    return await repeated_logs() // 2


@step
async def repeated_logs() -> int:
    return len(outside.log) - len(set(outside.log))


def test_a_fault_that_needs_two_crashes_of_a_series_is_reported_with_these_two(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_one_series(points: list[LocatedPoint]) -> CrashPlan:
        return CrashPlan([], [tuple(located.point for located in points if located.point.phase == "during")])

    monkeypatch.setattr(crash_everywhere, "make_crash_plan", make_one_series)
    with pytest.raises(CrashSafetyError) as caught:
        make_runner().crash_everywhere_sync(long_needs_two_crashes)
    assert "; ".join(map(str, caught.value.schedule)) == "during step 11 (log); during step 31 (log)"
    again = Runner(replay_processes=0, only="during step 11 (log); during step 31 (log)")
    again.before_each(outside.reset)
    with pytest.raises(CrashSafetyError) as second:
        again.crash_everywhere_sync(long_needs_two_crashes)
    assert second.value.violation == caught.value.violation


# What is not


paid: dict[str, int] = {}


@step
async def pay(cents: int) -> int:
    paid.setdefault(current_step().idempotency_key, cents)
    return cents


@step(effect="once")
async def send(number: int) -> int:
    return number


@step
async def undo(number: int, given: int) -> None:
    outside.balance = 0


@step(compensate=undo)
async def take(number: int) -> int:
    return number


@workflow
async def long_wide() -> int:
    return sum(await asyncio.gather(*[pay(number) for number in range(80)]))


@workflow
async def long_map() -> int:
    return sum(await holdfast.map(pay, range(80), max_concurrency=7))


@workflow
async def long_waiting() -> int:
    for _ in range(40):
        await asyncio.sleep(3600)
        await pay(1)
    await wait_for_signal("go")
    async with asyncio.timeout(60):
        return await pay(2)


@workflow
async def long_leaf(number: int) -> int:
    await pay(number)
    return await pay(number)


@workflow
async def long_with_children() -> int:
    return sum(await asyncio.gather(*[long_leaf(number) for number in range(20)]))


@workflow
async def long_with_once_steps() -> int:
    total = 0
    for number in range(60):
        try:
            total += await send(number)
        except StepOutcomeUnknown:
            total += await pay(number)
    return total


@workflow
async def long_undone() -> None:
    for number in range(40):
        await take(number)
    raise ValueError("no")


SAFE = {"wide": long_wide, "long_map": long_map, "waiting": long_waiting, "with_children": long_with_children} | {
    "with_once_steps": long_with_once_steps,
    "undone": long_undone,
}


@pytest.mark.parametrize("name", SAFE)
def test_nothing_is_found_in_a_long_workflow_that_is_in_order(name: str) -> None:
    runner = make_runner(max_pairs=None)
    schedules: Counter[str] = Counter()
    runner.before_each(paid.clear)

    @runner.after_each
    def count_trials(result: RunResult) -> None:
        schedules[result.status] += 1

    report = runner.crash_everywhere_sync(SAFE[name])
    assert report.point_count > MAX_POINTS_ALONE
    assert report.series_count > 5
    assert f"{report.series_point_count} crashes in {report.series_count} series" in str(report)
    assert "dead" not in schedules


executed: list[int] = []


@step
async def count(number: int) -> int:
    executed.append(number)
    return number


@workflow
async def long_counting(length: int) -> int:
    for number in range(length):
        await count(number)
    return length


def test_steps_do_not_run_once_for_each_point() -> None:
    executed.clear()
    report = make_runner().crash_everywhere_sync(long_counting, 200)
    assert report.point_count == 604
    # Two runs without a crash, each point alone, each series, and each step again after a crash during it.
    trial_count = 2 + report.point_count - report.series_point_count + report.series_count
    assert len(executed) == 200 * trial_count + 200
    assert trial_count < 70

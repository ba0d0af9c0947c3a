"""``crash_everywhere``: every point is tried, what breaks is told in words, and the same can be done again."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
import unsafe_flows

from holdfast import StepOutcomeUnknown, UsageError, current_step, step, wait_for_signal, workflow
from holdfast.testing import CrashSafetyError, CrashSafetyWarning, Runner, RunResult
from holdfast.testing.crash_points import CrashPoint, RunEvent, parse_schedule
from holdfast.testing.crash_schedules import choose_pairs

did: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    did.clear()


def here(**settings: Any) -> Runner:
    """A runner for workflows that only this process knows."""
    return Runner(**{"replay_processes": 0, "max_pairs": 0, **settings})


def broken(runner: Runner, flow: Any, *args: Any) -> CrashSafetyError:
    with pytest.raises(CrashSafetyError) as caught:
        runner.crash_everywhere_sync(flow, *args)
    return caught.value


@step
async def add(number: int) -> int:
    did.append(number)
    return sum(did)


@step(effect="once")
async def send(what: str) -> str:
    did.append(what)
    return what


@step
async def look(what: Any) -> Any:
    return what


@workflow
async def everything() -> str:
    await look(1)
    await asyncio.sleep(60)
    try:
        await send("letter")
    except StepOutcomeUnknown:
        pass
    return await wait_for_signal("go")


@workflow
async def adding() -> int:
    return await add(1) + await add(2)


@workflow
async def looking(what: Any) -> Any:
    return await look(what)


@workflow
async def waiting_for_nobody() -> Any:
    return await wait_for_signal("never")


# What is tried


def test_simulated_deaths_are_not_logged_as_if_they_were_real(caplog: pytest.LogCaptureFixture):
    here().crash_everywhere_sync(looking, 1)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_the_process_dies_before_during_and_after_every_record() -> None:
    runner = here()
    runner.answer_signal("go", "home")
    schedules: list[str] = []
    ends: list[RunResult] = []
    runner.before_each(lambda: schedules.append("tried"))
    runner.after_each(ends.append)
    report = runner.crash_everywhere_sync(everything)
    # start 2, step 3, timer 2, intent 1, step 3, signal 2, end 2
    assert report.point_count == 15
    assert len(schedules) == len(ends) == report.point_count + 2  # the first run and the second, both without a crash
    assert {end.output for end in ends} == {"home"}
    assert "survived 15 single crashes" in str(report)
    assert report.result.output == "home"


def test_pairs_of_crashes_are_pairs() -> None:
    points = [CrashPoint(moment, "step", number) for number in (1, 2) for moment in ("before", "during", "after")]
    pairs = choose_pairs(points, 1000)
    assert len(pairs) == len(set(pairs))
    assert (points[1], points[1]) in pairs
    assert (points[2], points[2]) not in pairs  # nobody dies twice after the same record
    assert (points[0], points[5]) in pairs
    assert len(choose_pairs(points, 5)) == 5
    assert Runner(replay_processes=0, max_pairs=0).crash_everywhere_sync(looking, 1).pair_count == 0
    runner = here(max_pairs=40)
    runner.answer_signal("go", "home")
    assert 30 <= runner.crash_everywhere_sync(everything).pair_count <= 40


def test_every_trial_begins_with_the_same_mocks_and_what_before_each_puts_back() -> None:
    runner = here(max_pairs=10)

    @runner.before_each
    async def put_back() -> None:
        await asyncio.sleep(0)
        did.clear()

    @runner.after_each
    async def check(result: RunResult) -> None:
        await asyncio.sleep(0)
        assert result.output == 7

    mock = runner.mock(look, side_effect=[7, 7, 7])
    assert runner.crash_everywhere_sync(looking, 1).result.output == 7
    assert len(mock.calls) > 10


def test_an_error_in_after_each_is_reported() -> None:
    runner = here()
    runner.before_each(did.clear)

    @runner.after_each
    def sent_once(result: RunResult) -> None:
        assert did == ["letter"], f"sent {did}"

    runner.answer_signal("go", 1)
    with pytest.raises(AssertionError, match=r"sent \[\]"):  # a crash before the intent's step began, and it is unknown
        runner.crash_everywhere_sync(everything)


def test_a_once_step_runs_at_most_once() -> None:
    runner = here(max_pairs=30)
    runner.before_each(did.clear)

    @runner.after_each
    def at_most_once(result: RunResult) -> None:
        assert did.count("letter") <= 1
        assert sum(one.execution_count for one in result.steps["send"]) <= 1

    runner.answer_signal("go", 1)
    runner.crash_everywhere_sync(everything)


def test_sixty_steps_take_seconds() -> None:
    @workflow
    async def sixty_steps() -> int:
        return sum([await look(number) for number in range(60)])

    began = time.process_time()
    assert here().crash_everywhere_sync(sixty_steps).point_count == 184
    assert time.process_time() - began < 20


def test_arguments_may_be_large() -> None:
    assert here().crash_everywhere_sync(looking, "x" * 1_000_000).point_count == 7


# What is told


def test_a_failure_has_the_schedule_the_rule_the_cause_and_how_to_reproduce_it() -> None:
    error = broken(here(), unsafe_flows.bad_random)
    lines = str(error).splitlines()
    assert lines[0] == "workflow 'bad_random' does not survive a crash."
    assert lines[2] == "  Schedule   the process dies before step 2 (note) begins; another takes over"
    assert lines[3].startswith('  Broken     step 2 (note) was called with {"what":0.')
    assert " before the crash, and with " in lines[3]
    assert lines[4].startswith("  Cause      workflow code draws chance: `random.random()` (at ")
    assert lines[-1] == "  Reproduce  await Runner(only='before step 2 (note)').crash_everywhere(bad_random)"
    assert isinstance(error, AssertionError)


def test_a_step_that_does_something_else_the_second_time_is_named() -> None:
    runner = here()
    runner.before_each(did.clear)
    error = broken(runner, adding)
    assert error.violation.rule == "step-result"
    assert "Step 1 (add) returned 1 in the first run, and 2 in this one, where it ran 2 times" in str(error)
    assert "step 'add' is not idempotent" in error.causes[0]
    assert str(error.schedule[0]) == "during step 1 (add)"


def test_a_step_that_never_returns_the_same_needs_no_crash_to_be_seen() -> None:
    error = broken(here(), adding)
    assert str(error).startswith("workflow 'adding' does something else each time it runs.")
    assert "no crash at all: the workflow was run twice" in str(error)
    assert "runner.before_each" in error.causes[0]
    assert here(compare_results=False).crash_everywhere_sync(adding).point_count == 10


def test_a_step_may_use_its_idempotency_key() -> None:
    paid: dict[str, int] = {}

    @step
    async def pay(amount: int) -> int:
        return paid.setdefault(current_step().idempotency_key, len(paid))

    @workflow
    async def paying_twice() -> list[int]:
        return [await pay(1), await pay(2)]

    runner = here(max_pairs=20)
    runner.before_each(paid.clear)
    runner.crash_everywhere_sync(paying_twice)


def test_a_result_that_depends_on_the_order_of_outcomes_is_reported_as_such() -> None:
    turn = iter(range(1000))

    @step
    async def runner_up(number: int) -> int:
        for _ in range(number if next(turn) // 2 % 2 else 3 - number):
            await asyncio.sleep(0)
        return number

    @workflow
    async def race() -> int:
        for first in asyncio.as_completed([runner_up(1), runner_up(2)]):
            return await first
        return 0

    error = broken(here(), race)
    assert error.violation.rule == "order"
    assert "which of several outcomes is the first" in error.causes[0]


def test_code_that_cannot_be_replayed_at_all_is_reported_as_such() -> None:
    @workflow
    async def out_of_bounds() -> None:
        try:
            await asyncio.to_thread(print)
        except Exception:
            pass

    error = broken(here(), out_of_bounds)
    assert str(error).startswith("workflow 'out_of_bounds' cannot be replayed at all.")
    assert "ForbiddenInWorkflow" in error.violation.message
    assert error.reproduction == "await Runner().run(out_of_bounds)"
    assert not error.causes


def test_a_wait_that_the_test_does_not_answer_is_reported() -> None:
    with pytest.raises(
        UsageError, match=r"waits for signal 'never', which the test does not send: .*`runner.answer_signal"
    ):
        here().crash_everywhere_sync(waiting_for_nobody)


def test_crashes_of_ones_own_do_not_go_with_it() -> None:
    runner = here()
    runner.simulate_crash_after(step=1)
    with pytest.raises(UsageError, match="chooses the crashes itself"):
        runner.crash_everywhere_sync(looking, 1)


def test_a_workflow_that_no_other_process_can_find_is_only_warned_of() -> None:
    @workflow
    async def local() -> int:
        return await look(1)

    with pytest.warns(CrashSafetyWarning, match="defined inside a function.*move it to a module"):
        assert Runner(max_pairs=0).crash_everywhere_sync(local).process_count == 0


# Doing it again


EVENTS = [
    RunEvent("start"),
    RunEvent("step", 1, "fetch"),
    RunEvent("step", 12, "a; before (step 2)"),
    RunEvent("step", 3, "two\nlines"),
    RunEvent("intent", 2, "pay"),
    RunEvent("timer", 1, "60 s"),
    RunEvent("signal", 4, "go"),
    RunEvent("compensation", 5, "refund"),
    RunEvent("child", 2, "pack) of run 'x'"),
    RunEvent("cancel"),
    RunEvent("deadline"),
    RunEvent("end"),
]


@pytest.mark.parametrize("run_id", ["", "order-1:pack-2", "it's; before step 2", "a 'b\" \\ (c)"])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_every_schedule_that_is_printed_can_be_read(event: RunEvent, run_id: str) -> None:
    points = [CrashPoint.from_event(moment, event, run_id) for moment in ("before", "after")]
    if event.kind in ("step", "compensation", "child"):
        points.append(CrashPoint.from_event("during", event, run_id))
    for one in points:
        assert parse_schedule(str(one)) == [one]
        assert one.description.startswith("the process dies ")
        for other in points:
            assert parse_schedule(f"{one}; {other}") == [one, other]


@pytest.mark.parametrize("text", ["", "x", "after step", "during the end", "after step 1;", "step 1"])
def test_an_invalid_schedule_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a crash point. Write what a failure of crash_everywhere prints"):
        Runner(only=text)


def test_only_one_schedule_is_tried() -> None:
    runner = here(only="after step 1 (look); before the end")
    ends: list[RunResult] = []
    runner.after_each(ends.append)
    assert runner.crash_everywhere_sync(looking, 1).point_count == 1
    assert len(ends) == 3
    assert [end.steps[1].was_replayed for end in ends] == [False, True, False]


def test_an_unreached_schedule_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"'after step 5' breaks nothing: .* Its points are: before the start; "):
        here(only="after step 5").crash_everywhere_sync(looking, 1)


def test_a_failure_of_two_crashes_is_reproduced_by_its_schedule() -> None:
    @step
    async def third_time_lucky(number: int) -> int:
        did.append("tried")
        return len(did) // 3

    @workflow
    async def two_crashes_break_it() -> int:
        return await third_time_lucky(1)

    runner = here(max_pairs=100)
    runner.before_each(did.clear)
    error = broken(runner, two_crashes_break_it)
    assert len(error.schedule) == 2
    again = here(only="; ".join(map(str, error.schedule)))
    again.before_each(did.clear)
    assert broken(again, two_crashes_break_it).schedule == error.schedule

"""Drift: the code no longer does what the journal says it did, and the error shows both side by side."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from scripted_execution import Live, Replay, World

from holdfast.core.execution import Execution
from holdfast.core.records import Record, RecordKind
from holdfast.errors import NonDeterminismError

Flow = Callable[[World], Awaitable[Any]]


def record(seq: int, position: int, name: str, kind: RecordKind = RecordKind.STEP) -> Record:
    payload = None if kind is RecordKind.TIMER else b'"x"'
    return Record(seq, kind, position, name, True, payload, 1_001.0 + seq)


def drift(flow: Flow, *journal: Record) -> str:
    """The message of the drift that replaying this journal finds, its blanks made single."""
    world = Replay(flow, journal)  # type: ignore[arg-type]
    fault = world.execution.fatal_error
    world.leave()
    assert isinstance(fault, NonDeterminismError), world.ending
    return re.sub(r" +", " ", str(fault))


async def three_steps(w: World) -> str:
    await w.step("extract")
    await w.step("check")
    return await w.step("load")


def test_a_step_whose_name_has_changed_is_shown_next_to_its_record():
    told = drift(three_steps, record(0, 0, "extract"), record(1, 1, "validate"), record(2, 2, "load"))
    assert "run 'run-7' cannot go on" in told
    assert " #1 step extract #1 step extract\n" in told
    assert " ≠ #2 step validate #2 step check (" in told
    assert "holdfast retry run-7" in told
    assert "The journal is untouched" in told


def test_the_diff_names_the_line_of_the_code_that_waits_now():
    told = drift(three_steps, record(0, 0, "other"))
    assert re.search(r"≠ #1 step other #1 step extract \(.*scripted_execution\.py:\d+ in step\)", told)


def test_a_step_inserted_before_recorded_ones_is_drift():
    async def flow(w: World) -> None:
        await w.step("extract")
        await w.step("new")
        await w.step("load")

    assert "≠ #2 step load #2 step new" in drift(flow, record(0, 0, "extract"), record(1, 1, "load"))


def test_a_step_that_was_removed_is_drift():
    async def flow(w: World) -> None:
        await w.step("extract")
        await w.step("load")

    told = drift(flow, record(0, 0, "extract"), record(1, 1, "validate"), record(2, 2, "load"))
    assert "≠ #2 step validate #2 step load" in told


def test_records_left_over_when_the_workflow_has_ended_are_drift():
    async def flow(w: World) -> str:
        return await w.step("extract")

    told = drift(flow, record(0, 0, "extract"), record(1, 1, "load"))
    assert "≠ #2 step load (the workflow has ended)" in told


def test_a_signal_wait_in_place_of_a_step_is_drift():
    async def flow(w: World) -> None:
        await w.signal("approve")

    assert "≠ #1 step approve #1 signal approve" in drift(flow, record(0, 0, "approve"))


def test_a_step_in_place_of_a_timer_is_drift():
    async def flow(w: World) -> None:
        await w.step("poll")

    told = drift(flow, record(0, 0, "60 s", RecordKind.TIMER))
    assert "≠ #1 timer 60 s (no such timer)" in told


def test_a_time_out_in_place_of_a_recorded_sleep_is_drift_and_does_not_fire():
    async def flow(w: World) -> str:
        try:
            async with asyncio.timeout(30):
                await asyncio.sleep(5)
        except TimeoutError:
            return "gave up"
        return "slept"

    assert "≠ #1 timer 5 s #1 timer 30 s" in drift(flow, record(0, 0, "5 s", RecordKind.TIMER))


def test_a_timer_in_place_of_a_step_is_drift():
    async def flow(w: World) -> None:
        await asyncio.sleep(60)

    assert "≠ #1 step poll (nothing: no command yet)" in drift(flow, record(0, 0, "poll"))


def test_steps_that_are_now_issued_one_by_one_are_drift_when_their_outcomes_came_in_another_order():
    told = drift(three_steps, record(0, 2, "load"))
    assert "≠ #3 step load (nothing: the code has issued only 1 commands)" in told


def test_a_record_for_a_cancelled_position_must_have_that_positions_name():
    async def flow(w: World) -> None:
        task = asyncio.create_task(w.step("slow"))
        await w.step("quick")
        task.cancel()
        await w.step("last")

    fine = Replay(flow, [record(0, 0, "quick"), record(1, 1, "slow"), record(2, 2, "last")])
    assert fine.ending == ("value", "None")
    fine.leave()
    assert "≠ #2 step other #2 step slow" in drift(flow, record(0, 0, "quick"), record(1, 1, "other"))


def test_the_message_names_the_python_that_the_run_was_started_with():
    world = World(three_steps)
    execution = Execution("r", lambda: three_steps(world), start_time=0.0, seed=b"", recorded_python="3.9")
    world.execution = execution  # type: ignore[assignment]
    execution.start()
    execution.turn()
    execution.deliver(record(0, 0, "other"))
    assert "The run was started under Python 3.9; this is 3." in str(execution.fatal_error)
    execution.unload()


def test_only_the_commands_just_before_the_drift_are_shown():
    async def flow(w: World) -> None:
        for n in range(20):
            await w.step(f"s{n}")

    told = drift(flow, *[record(n, n, f"s{n}") for n in range(15)], record(15, 15, "other"))
    assert "s11" not in told
    assert "#15 step s14 #15 step s14" in told


# What is no drift


async def plain(w: World) -> list[str]:
    return [await w.step("extract"), await w.step("check"), await w.step("load")]


async def with_a_timeout(w: World) -> list[str]:
    async with asyncio.timeout(3600):
        first = await w.step("extract")
    return [first, await asyncio.wait_for(w.step("check"), 60), await w.step("load")]


@pytest.mark.parametrize("length", range(4))
def test_a_timeout_put_around_a_recorded_step_is_no_drift(length: int):
    run = Live(plain, "timeout")
    replay = Replay(with_a_timeout, run.journal[:length])
    assert replay.execution.fatal_error is None
    for one in run.journal[length:]:
        replay.deliver(one)
    assert replay.ending == run.ending
    assert replay.execution.trace == run.execution.trace
    run.leave()
    replay.leave()


def test_new_steps_after_the_recorded_ones_are_no_drift():
    async def longer(w: World) -> None:
        await plain(w)
        await w.step("report")

    run = Live(plain, 1)
    replay = Replay(longer, run.journal)
    assert replay.execution.fatal_error is None
    assert [command.name for command in replay.execution.take_issued()] == ["report"]
    run.leave()
    replay.leave()


def test_after_a_drift_nothing_more_is_delivered():
    world = Replay(three_steps, [record(0, 0, "other"), record(1, 0, "extract")])
    assert world.ending is not None
    assert world.ending[0] == "fault"
    assert world.execution.trace == [("step", 0, "extract")]
    world.leave()


# Patches


def test_the_message_says_what_to_do():
    assert 'if patched("name of the change"): new code, else: old code' in drift(three_steps, record(0, 0, "other"))


def test_a_patch_that_the_code_has_not_called_is_shown():
    patch = Record(0, RecordKind.PATCH, -1, "charge-in-cents", True, None, 1_001.0)

    async def asking(w: World) -> None:
        w.patched("charge-in-cents")
        await w.step("extract")

    told = drift(three_steps, patch, record(1, 0, "other"))
    assert " patch charge-in-cents (not asked for)\n" in told
    told = drift(asking, patch, record(1, 0, "other"))
    assert " patch charge-in-cents patch charge-in-cents\n" in told

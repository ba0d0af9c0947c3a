"""Signals as records: every one is seen, in the order they were sent, by one wait."""

from __future__ import annotations

import asyncio
from typing import Any

from scripted_execution import Replay, World

from holdfast.core.records import Record, RecordKind


def signal(seq: int, position: int, value: str, name: str = "go") -> Record:
    return Record(seq, RecordKind.SIGNAL, position, name, True, f'"{value}"'.encode(), 1_001.0 + seq)


def step(seq: int, position: int, name: str) -> Record:
    return Record(seq, RecordKind.STEP, position, name, True, b'"x"', 1_001.0 + seq)


def timer(seq: int, position: int) -> Record:
    return Record(seq, RecordKind.TIMER, position, "1 s", True, None, 1_010.0 + seq)


def result(world: World) -> Any:
    assert world.execution.result is not None, world.ending
    assert world.execution.result.error is None, world.ending
    value = world.execution.result.value
    world.leave()
    return value


def test_a_signal_whose_wait_timed_out_meanwhile_goes_to_the_next_wait():
    async def flow(w: World) -> list[str]:
        seen: list[str] = []
        try:
            async with asyncio.timeout(1):
                seen.append(await w.signal("go"))
        except TimeoutError:
            seen.append("late")
        await w.step("between")
        return [*seen, await w.signal("go")]

    assert result(Replay(flow, [timer(0, 0), signal(1, 0, "s1"), step(2, 1, "between")])) == ["late", "s1"]


def test_a_signal_whose_wait_is_gone_goes_to_a_wait_that_is_open_already():
    async def flow(w: World) -> str:
        first = asyncio.create_task(w.signal("go"))
        second = asyncio.create_task(w.signal("go"))
        await w.step("think")
        first.cancel()
        return await second

    assert result(Replay(flow, [step(0, 0, "think"), signal(1, 1, "s1")])) == "s1"


def test_signals_on_their_way_to_cancelled_waits_keep_their_order():
    async def flow(w: World) -> list[str]:
        waits = [asyncio.create_task(w.signal("go")) for _ in range(3)]
        await w.step("think")
        for wait in waits[:2]:
            wait.cancel()
        return [await waits[2], await w.signal("go"), await w.signal("go")]

    # All three were answered before the first two waits were cancelled.
    journal = [step(0, 0, "think"), signal(1, 1, "s1"), signal(2, 2, "s2"), signal(3, 3, "s3")]
    assert result(Replay(flow, journal)) == ["s1", "s2", "s3"]


def test_a_wait_answered_from_the_mailbox_is_never_issued():
    async def flow(w: World) -> str:
        lost = asyncio.create_task(w.signal("go"))
        await w.step("think")
        lost.cancel()
        await w.step("think again")
        return await w.signal("go")

    world = Replay(flow, [step(0, 0, "think"), signal(1, 1, "s1")])
    world.execution.take_issued()
    world.deliver(step(2, 2, "think again"))
    assert world.execution.take_issued() == []
    assert world.execution.trace[-1] == ("signal", 3, "go")
    assert result(world) == "s1"


def test_signals_of_other_names_are_left_alone():
    async def flow(w: World) -> list[str]:
        lost = asyncio.create_task(w.signal("go"))
        await w.step("think")
        lost.cancel()
        return [await w.signal("stop"), await w.signal("go")]

    journal = [step(0, 0, "think"), signal(1, 1, "s1"), signal(2, 2, "s2", "stop")]
    assert result(Replay(flow, journal)) == ["s2", "s1"]


def test_a_signal_left_in_the_mailbox_at_the_end_is_no_drift():
    async def flow(w: World) -> str:
        lost = asyncio.create_task(w.signal("go"))
        await w.step("think")
        lost.cancel()
        return "done"

    assert result(Replay(flow, [step(0, 0, "think"), signal(1, 1, "s1")])) == "done"

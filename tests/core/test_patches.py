"""``patched``: which way a run takes at a change of its code, wherever it was when the code was changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from scripted_execution import Live, Replay, World

from holdfast.core.patches import PATCH_POSITION, Patches
from holdfast.core.records import Record, RecordKind, Rewind


def record(seq: int, position: int, name: str = "s", kind: RecordKind = RecordKind.STEP) -> Record:
    return Record(seq, kind, position, name, True, b'"x"', 1_001.0 + seq)


def patch(seq: int, name: str) -> Record:
    return Record(seq, RecordKind.PATCH, PATCH_POSITION, name, True, None, 1_001.0 + seq)


# The rule


@pytest.mark.parametrize(
    ("journal", "answer"),
    [
        ([], True),
        ([record(0, 0), record(1, 1)], True),  # used up exactly here
        ([record(0, 0), record(1, 1), record(2, 2)], False),
        ([record(0, 0), record(1, 7)], False),
        ([record(0, 0), patch(1, "x"), record(2, 2)], True),
        ([record(0, 0), record(1, 2), patch(2, "x")], True),
        ([record(0, 0), patch(1, "y"), record(2, 2)], False),
        ([record(0, 0, kind=RecordKind.TIMER)], True),
        ([record(0, 1, kind=RecordKind.TIMER)], False),
        ([record(0, 0), record(1, 5, kind=RecordKind.DEADLINE), record(2, 5, kind=RecordKind.CANCEL)], True),
    ],
)
def test_a_run_takes_the_new_branch_where_nothing_after_it_has_started(journal: Sequence[Record], answer: bool):
    patches = Patches(journal)
    assert patches.decide("x", command_count=2, timer_count=1) is answer
    assert patches.take_newly_decided() == (("x",) if answer and not _has(journal, "x") else ())
    assert patches.take_newly_decided() == ()


def _has(journal: Sequence[Record], name: str) -> bool:
    return any(one.kind is RecordKind.PATCH and one.name == name for one in journal)


def test_what_left_another_trace_than_a_record_was_begun_as_well():
    assert not Patches([record(0, 0)], started_positions=[3]).decide("x", command_count=2, timer_count=0)
    assert Patches([record(0, 0)], started_positions=[1]).decide("x", command_count=2, timer_count=0)


def test_a_run_that_has_ended_has_been_everywhere():
    patches = Patches([record(0, 0), patch(1, "known")], has_run_ended=True)
    assert patches.decide("known", command_count=9, timer_count=0)
    assert not patches.decide("x", command_count=9, timer_count=0)
    assert patches.take_newly_decided() == ()


@pytest.mark.parametrize("first", [0, 9])
def test_later_calls_get_the_first_answer(first: int):
    patches = Patches([record(0, 5)])
    answer = patches.decide("x", command_count=first, timer_count=0)
    assert answer is (first == 9)
    assert patches.decide("x", command_count=9 - first, timer_count=0) is answer
    assert len(patches.take_newly_decided()) == answer


def test_nothing_is_settled_before_the_record_is_delivered():
    patches = Patches()
    assert patches.is_durable
    patches.decide("x", command_count=0, timer_count=0)
    patches.decide("y", command_count=0, timer_count=0)
    patches.mark_durable("x")
    assert not patches.is_durable
    patches.mark_durable("y")
    assert patches.is_durable


def test_a_retry_does_not_take_a_patch_back():
    assert not Rewind((1,), 0, 0).should_remove(patch(4, "x"))


# Code that was changed


async def old(w: World) -> Any:
    async def branch(n: int) -> list[str]:
        told = [await w.step(f"{n}.first")]
        await asyncio.sleep(0.3)
        return [*told, await w.step(f"{n}.charge"), await w.step(f"{n}.last")]

    whole = [await w.step("begin"), await asyncio.gather(branch(0), branch(1), branch(2))]
    return [*whole, await w.signal("go"), await w.step("end")]


async def new(w: World) -> Any:
    async def branch(n: int) -> list[str]:
        told = [await w.step(f"{n}.first")]
        if w.patched("no rest"):
            told.append(await w.step(f"{n}.rest"))
        else:
            await asyncio.sleep(0.3)
        if w.patched(f"in cents {n}"):
            told += await asyncio.gather(w.step(f"{n}.to cents"), w.step(f"{n}.charge cents"))
        else:
            told.append(await w.step(f"{n}.charge"))
        return [*told, await w.step(f"{n}.last")]

    if w.patched("check first"):
        await w.step("check")
    whole = [await w.step("begin"), await asyncio.gather(branch(0), branch(1), branch(2))]
    if w.patched("ask"):
        whole.append(await w.signal("yes"))
    whole += [await w.signal("go"), await w.step("end")]
    w.note(w.patched("check first"), w.patched("no rest"), w.patched("after all"))
    return whole


async def newest(w: World) -> Any:
    """The old ways are gone, and the calls with them."""

    async def branch(n: int) -> list[str]:
        told = [await w.step(f"{n}.first"), await w.step(f"{n}.rest")]
        told += await asyncio.gather(w.step(f"{n}.to cents"), w.step(f"{n}.charge cents"))
        return [*told, await w.step(f"{n}.last")]

    await w.step("check")
    whole = [await w.step("begin"), await asyncio.gather(branch(0), branch(1), branch(2))]
    whole += [await w.signal("yes"), await w.signal("go"), await w.step("end")]
    w.note(True, True, True)
    return whole


for flow in (old, new, newest):
    flow.signals, flow.deadline = ("go", "yes"), None  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(8))
def test_a_run_of_old_code_continues_with_new_code_from_any_point(seed: int):
    first = Live(old, f"old:{seed}")
    assert first.ending is not None
    assert first.ending[0] == "value"
    ways: set[str] = set()
    for cut in range(len(first.journal) + 1):
        second = Live(new, f"new:{seed}:{cut}", prefix=first.journal[:cut])
        assert second.ending is not None
        assert second.ending[0] == "value", second.ending
        ways.add(str(second.notes))
        # Whoever takes it over, at whatever point, does the same.
        for again in range(cut, len(second.journal) + 1):
            third = Replay(new, second.journal[:again])
            assert third.marks == second.marks[: again + 1]
            third.leave()
        whole = Replay(new, second.journal)
        assert whole.story == second.story
        whole.leave()
        second.leave()
    assert len(ways) > 2, "the runs have taken different ways"
    first.leave()


@pytest.mark.parametrize("seed", range(8))
def test_a_run_that_has_been_nowhere_takes_every_new_way_whenever_its_process_dies(seed: int):
    first = Live(new, f"new:{seed}")
    kinds = [one.kind for one in first.journal]
    assert (
        kinds.count(RecordKind.PATCH) == len({one.name for one in first.journal if one.kind is RecordKind.PATCH}) == 7
    )
    for cut in range(len(first.journal) + 1):
        # In another order from here on: but with the same answers, also where the record of one was on its way.
        second = Live(new, f"again:{seed}:{cut}", prefix=first.journal[:cut])
        assert second.notes[-1][:3] == (True, True, True)
        assert sorted(name for _, _, name in second.execution.trace) == sorted(n for _, _, n in first.execution.trace)
        second.leave()
    first.leave()


@pytest.mark.parametrize("seed", range(8))
def test_records_of_a_patch_that_the_code_no_longer_has_are_skipped(seed: int):
    first = Live(new, f"new:{seed}")
    for cut in range(len(first.journal) + 1):
        second = Replay(newest, first.journal[:cut])
        assert second.execution.fatal_error is None
        for one in first.journal[cut:]:
            second.deliver(one)
        assert second.ending == first.ending
        assert second.execution.trace == first.execution.trace
        second.leave()
    first.leave()


def test_a_patch_is_not_decided_by_code_that_leaves_memory():
    asked: list[bool] = []

    async def flow(w: World) -> None:
        try:
            await w.signal("never")
        finally:
            asked.append(w.patched("x"))

    world = World(flow)
    world.start()
    world.leave()
    assert asked == [False]
    assert world.execution.patches.take_newly_decided() == ()


def test_a_patch_changes_neither_time_nor_what_is_drawn():
    async def without(w: World) -> list[Any]:
        drawn: list[Any] = []
        for n in range(3):
            drawn += [w.execution.draw_bytes("x"), w.execution.loop.time()]
            await w.step(f"s{n}")
        return drawn

    async def with_patches(w: World) -> list[Any]:
        drawn: list[Any] = []
        for n in range(3):
            w.patched(f"p{n}")
            drawn += [w.execution.draw_bytes("x"), w.execution.loop.time()]
            await w.step(f"s{n}")
        return drawn

    first = Live(without, 1)
    second = Replay(with_patches, [patch(0, "p0"), *[one._replace(seq=one.seq + 1) for one in first.journal]])
    assert second.ending == first.ending
    first.leave()
    second.leave()

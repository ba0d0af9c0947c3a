"""Recorded time and chance: random to the world, the same on every replay."""

from __future__ import annotations

import asyncio
from typing import Any

from scripted_execution import START, Live, Replay, World

from holdfast.authoring.workflow_api import now, random, uuid4
from holdfast.core.execution import Execution
from holdfast.core.records import Record, RecordKind


def step(seq: int, position: int, name: str, at: float = 1_001.0) -> Record:
    return Record(seq, RecordKind.STEP, position, name, True, b'"x"', at)


async def gambler(w: World) -> Any:
    drawn: list[Any] = []

    async def player(n: int) -> None:
        for _ in range(3):
            drawn.append((n, uuid4(), random(), now()))
            await w.step(f"play {n}")

    await asyncio.gather(*[player(n) for n in range(3)])
    w.note(drawn)
    return [str(one) for one in drawn]


def test_what_is_drawn_is_the_same_on_every_replay():
    for seed in range(5):
        run = Live(gambler, seed)
        for length in range(len(run.journal) + 1):
            replay = Replay(gambler, run.journal[:length])
            for record in run.journal[length:]:
                replay.deliver(record)
            assert replay.story == run.story
            replay.leave()
        run.leave()


def test_no_two_draws_of_a_run_are_alike():
    async def flow(w: World) -> list[str]:
        drawn = [str(uuid4()) for _ in range(50)] + [str(random()) for _ in range(50)]
        await w.step("a")
        return drawn + [str(uuid4()) for _ in range(50)] + [str(random()) for _ in range(50)]

    world = Replay(flow, [step(0, 0, "a")])
    assert world.execution.result is not None
    drawn = world.execution.result.value
    assert len(set(drawn)) == 200
    assert all(0.0 <= float(one) < 1.0 for one in (*drawn[50:100], *drawn[150:]))
    world.leave()


def test_runs_with_other_seeds_draw_other_things():
    drawn: list[str] = []

    async def flow() -> None:
        drawn.append(str(uuid4()))

    for seed in (b"one", b"two", b"one"):
        execution = Execution("r", flow, start_time=0.0, seed=seed)
        execution.start()
        execution.turn()
        execution.unload()
    assert drawn[0] != drawn[1]
    assert drawn[0] == drawn[2]


def test_a_draw_added_between_two_steps_leaves_the_later_draws_alone():
    async def before(w: World) -> str:
        await w.step("a")
        await w.step("b")
        return str(uuid4())

    async def after(w: World) -> str:
        await w.step("a")
        uuid4()
        random()
        await w.step("b")
        return str(uuid4())

    journal = [step(0, 0, "a"), step(1, 1, "b")]
    one, two = Replay(before, journal), Replay(after, journal)
    assert one.ending == two.ending
    one.leave()
    two.leave()


def test_idempotency_keys_differ_between_steps_and_runs_and_stay_between_executions():
    def keys(seed: bytes) -> list[str]:
        return [
            Execution("r", lambda: None, start_time=0.0, seed=seed).seeded_random.derive_idempotency_key(n, "s")
            for n in range(100)
        ]  # type: ignore[arg-type, return-value]

    assert len(set(keys(b"one")) | set(keys(b"two"))) == 200
    assert keys(b"one") == keys(b"one")


def test_time_does_not_change_between_outcomes_and_never_goes_back():
    async def flow(w: World) -> list[float]:
        loop = asyncio.get_running_loop()
        seen = [loop.time()]
        for name in ("a", "b", "c"):
            await w.step(name)
            await asyncio.sleep(0)
            seen.append(loop.time())
        return seen

    journal = [step(0, 0, "a", START + 5), step(1, 1, "b", START + 3), step(2, 2, "c", START + 9)]
    world = Replay(flow, journal)
    assert world.ending == ("value", repr([START, START + 5, START + 5, START + 9]))
    world.leave()


def test_now_is_the_time_of_the_last_outcome():
    async def flow(w: World) -> list[float]:
        first = now().timestamp()
        await w.step("a")
        return [first, now().timestamp()]

    world = Replay(flow, [step(0, 0, "a", START + 42.5)])
    assert world.ending == ("value", repr([START, START + 42.5]))
    world.leave()


def test_a_timer_that_is_due_already_takes_no_place_among_the_timers():
    async def flow(w: World) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() - 5, w.note, "past")
        await asyncio.sleep(0)
        await asyncio.sleep(7)

    world = Replay(flow, [])
    assert [(timer.position, timer.delay_s) for timer in world.execution.loop.timers.values()] == [(0, 7.0)]
    assert world.notes == [("past", 0.0)]
    world.leave()


def test_timers_due_at_once_are_handed_out_in_the_order_they_are_due_and_only_once():
    async def flow(w: World) -> None:
        await asyncio.gather(*[asyncio.sleep(seconds) for seconds in (5, 2, 9, 2)])

    world = Replay(flow, [])
    loop = world.execution.loop
    assert [timer.position for timer in loop.take_due_timers(START + 5)] == [1, 3, 0]
    assert loop.take_due_timers(START + 5) == []
    assert loop.get_next_timer() is loop.timers[2]
    world.leave()


def test_a_timers_record_may_come_after_the_workflow_has_called_it_off():
    async def flow(w: World) -> str:
        async with asyncio.timeout(5):
            await w.step("a")
        return await w.step("b")

    late = Record(1, RecordKind.TIMER, 0, "5 s", True, None, START + 5)
    world = Replay(flow, [step(0, 0, "a"), late, step(2, 1, "b", START + 6)])
    assert world.ending == ("value", "'x'")
    world.leave()

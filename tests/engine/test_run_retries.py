"""Retrying: a run goes on from where it went wrong; what is paid for stays, and what only followed is taken back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_world import (
    HeldCommits,
    VirtualClock,
    World,
    describe_journal,
    get_state,
    read_journal,
    read_run,
    wait_until_ended,
    wait_until_quiet,
)
from shared_flows import define_calling, define_waiting

from holdfast import (
    RetryRefused,
    RunCancelled,
    RunDead,
    RunFailed,
    RunNotFound,
    StepOutcomeUnknown,
    current_step,
    map,
    step,
    uuid4,
    wait_for_signal,
    workflow,
)
from holdfast.services.run_control import retry_run
from holdfast.stores.operations import AppendRecord, CancelState, SendSignal
from waits import wait_until

pytestmark = pytest.mark.asyncio


class Bench:
    """A step that fails while its name is in ``broken``."""

    def __init__(self, *broken: str) -> None:
        self.log: list[str] = []
        self.broken = set(broken)
        bench = self

        @step
        async def work(name: str) -> str:
            bench.log.append(name)
            if name in bench.broken:
                raise ConnectionError(f"{name} is down")
            return name.upper()

        @step(effect="once")
        async def pay(name: str) -> str:
            bench.log.append(f"pay {name}")
            if name in bench.broken:
                raise ConnectionError(f"{name} is down")
            return f"paid {name}"

        self.work, self.pay = work, pay


async def fix_and_retry(runtime: Any, handle: Any, bench: Bench, *, run_again: bool = False) -> None:
    """Wait until the run has ended, heal the world, and retry."""
    await wait_until_ended(runtime, handle)
    bench.broken.clear()
    bench.log.clear()
    await retry_run(runtime.store_provider, handle.run_id, run_again=run_again)


# What is taken back


async def test_the_failed_step_runs_again_and_what_was_done_before_does_not(world: World):
    bench = Bench("c")

    @workflow
    async def flow() -> list[str]:
        return [await bench.work(name) for name in ("a", "b", "c", "d")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    with pytest.raises(RunFailed, match="c is down"):
        await handle.result()
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == ["A", "B", "C", "D"]
    assert bench.log == ["c", "d"]
    run = await read_run(runtime, handle)
    assert (run.state, run.error, run.rewind, run.delivery_count) == ("completed", None, None, 0)


async def test_a_run_can_be_retried_as_often_as_it_fails(world: World):
    bench = Bench("b")

    @workflow
    async def flow() -> list[str]:
        return [await bench.work("a"), await bench.work("b")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    for _ in range(3):
        await wait_until_ended(runtime, handle)
        await retry_run(runtime.store_provider, handle.run_id)
        await wait_until_ended(runtime, handle)
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == ["A", "B"]
    assert bench.log == ["b"]


async def test_outcomes_of_siblings_that_came_later_are_kept(world: World):
    bench = Bench("bad")
    gate = asyncio.Event()

    @step
    async def slow() -> str:
        bench.log.append("slow")
        await gate.wait()
        return "SLOW"

    @workflow
    async def flow() -> list[Any]:
        good, bad = asyncio.create_task(slow()), asyncio.create_task(bench.work("bad"))
        done, _ = await asyncio.wait([good, bad])
        return [task.result() for task in (good, bad) if task in done]

    runtime = await world.open()
    handle = await runtime.start(flow)

    async def failure_is_recorded() -> bool:
        return await describe_journal(runtime, handle) == ["step work failed"]

    await wait_until(failure_is_recorded)
    gate.set()
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == ["SLOW", "BAD"]
    assert bench.log == ["bad"]  # the slow one is paid for once
    assert [record.seq for record in await read_journal(runtime, handle)] == [1, 2]


async def test_commands_that_a_sibling_issued_after_the_failure_are_issued_again(world: World):
    bench = Bench("bad")
    gate = asyncio.Event()

    @step
    async def slow() -> str:
        bench.log.append("slow")
        await gate.wait()
        return "SLOW"

    async def two() -> list[str]:
        return [await slow(), await bench.work("after")]

    @workflow
    async def flow() -> list[Any]:
        outcomes = await asyncio.gather(bench.work("bad"), two(), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes

    runtime = await world.open()
    handle = await runtime.start(flow)

    async def failure_is_recorded() -> bool:
        return await describe_journal(runtime, handle) == ["step work failed"]

    await wait_until(failure_is_recorded)
    gate.set()
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == ["BAD", ["SLOW", "AFTER"]]
    assert sorted(bench.log) == ["after", "bad"]


async def test_what_handlers_did_because_of_the_failure_is_taken_back(world: World, clock: VirtualClock):
    bench = Bench("bad")

    @workflow
    async def flow() -> list[str]:
        found = [await bench.work("first")]
        try:
            found.append(await bench.work("bad"))
        except ConnectionError:
            await bench.work("handler")
            await asyncio.sleep(5)
            raise
        finally:
            found.append(await bench.work("finally"))
        return [*found, await bench.work("last")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: "handler" in bench.log and runtime._engine._idle_runs)
    clock.advance(5)
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == ["FIRST", "BAD", "FINALLY", "LAST"]
    assert bench.log == ["bad", "finally", "last"]
    assert [record.position for record in await read_journal(runtime, handle)] == [0, 1, 2, 3]


async def test_a_signal_consumed_in_a_handler_goes_back_to_the_mailbox(world: World):
    bench = Bench("bad")

    @workflow
    async def flow() -> list[Any]:
        first = await wait_for_signal("word")
        try:
            await bench.work("bad")
        except ConnectionError:
            await wait_for_signal("word")
            raise
        return [first, await wait_for_signal("word"), await wait_for_signal("word")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    for word in ("one", "two"):
        await handle.signal("word", word)
    await fix_and_retry(runtime, handle, bench)
    await handle.signal("word", "three")
    assert await handle.result() == ["one", "two", "three"]


async def test_of_two_failures_in_a_group_both_are_taken_back(world: World):
    bench = Bench("x", "y")
    together = asyncio.Event()

    @step
    async def fail_together(name: str) -> str:
        bench.log.append(name)
        if {"x", "y"} <= set(bench.log):
            together.set()
        await together.wait()
        if name in bench.broken:
            raise ConnectionError(f"{name} is down")
        return name.upper()

    @workflow
    async def flow() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(bench.work("good"))]
            tasks += [group.create_task(fail_together(name)) for name in ("x", "y")]
        return [task.result() for task in tasks]

    runtime = await world.open()
    handle = await runtime.start(flow)
    run = await wait_until_ended(runtime, handle)
    failures = sum(not record.ok for record in await read_journal(runtime, handle))
    assert run.rewind is not None
    assert run.rewind.command_count == 3
    await fix_and_retry(runtime, handle, bench)
    together.set()
    assert await handle.result() == ["GOOD", "X", "Y"]
    assert "good" not in bench.log
    assert failures >= 1


@pytest.mark.parametrize("how", ["from", "context", "from None", "group", "note"])
async def test_an_error_that_was_raised_because_of_the_failure_leads_to_it(world: World, how: str):
    bench = Bench("bad")

    @workflow
    async def flow() -> str:
        try:
            await bench.work("bad")
        except ConnectionError as error:
            if how == "from":
                raise ValueError("wrapped") from error
            if how == "from None":
                raise ValueError("wrapped") from None
            if how == "group":
                raise ExceptionGroup("several", [error, ValueError("another")]) from None
            if how == "note":
                error.add_note("noted")
                raise
            raise ValueError("wrapped")  # noqa: B904
        return await bench.work("on")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == "ON"
    assert bench.log == ["bad", "on"]


async def test_a_failure_that_was_caught_and_dealt_with_is_not_taken_back(world: World):
    bench = Bench("first", "second")

    @workflow
    async def flow() -> list[str]:
        try:
            await bench.work("first")
        except ConnectionError:
            pass
        return [await bench.work("between"), await bench.work("second")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == ["BETWEEN", "SECOND"]
    assert bench.log == ["second"]


async def test_a_fallback_that_fails_too_is_tried_again_alone(world: World):
    bench = Bench("first", "fallback")

    @workflow
    async def flow() -> str:
        try:
            return await bench.work("first")
        except ConnectionError:
            return await bench.work("fallback")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == "FALLBACK"
    assert bench.log == ["fallback"]


async def test_the_workflows_own_bug_takes_nothing_back(world: World):
    bench = Bench()
    fixed = False

    @workflow
    async def flow() -> str:
        found = await bench.work("a")
        await bench.work("b")
        if not fixed:
            raise KeyError("a bug")
        return found

    runtime = await world.open()
    handle = await runtime.start(flow)
    run = await wait_until_ended(runtime, handle)
    assert run.rewind is None
    fixed = True
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == "A"
    assert bench.log == []


async def test_a_bug_of_the_code_that_map_calls_fails_the_run(world: World):
    bench = Bench()
    fixed = False

    async def buggy(name: str) -> str:
        if name == "b" and not fixed:
            raise KeyError(name)
        return await bench.work(name)

    @workflow
    async def flow() -> list[str]:
        return await map(buggy, "abc")

    runtime = await world.open()
    handle = await runtime.start(flow)
    with pytest.raises(RunFailed, match="KeyError"):
        await handle.result()
    fixed = True
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == ["A", "B", "C"]


@pytest.mark.parametrize("how", ["a cancel that became something else", "a deadline that did"])
async def test_an_interruption_that_became_something_else_is_taken_back_too(world: World, how: str):
    @workflow(timeout=100 if "deadline" in how else None)
    async def flow() -> Any:
        try:
            return await wait_for_signal("go")
        except asyncio.CancelledError:
            raise ValueError("had to stop") from None

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    if how == "a cancel that became something else":
        await handle.cancel()
    runtime._engine.clock.advance(101)
    await wait_until_ended(runtime, handle)
    await retry_run(runtime.store_provider, handle.run_id)
    await wait_until_quiet(runtime)
    assert not (await read_run(runtime, handle)).state.is_terminal
    await handle.signal("go", 1)
    assert await handle.result() == 1


async def test_drift_takes_nothing_back(world: World):
    bench = Bench()
    other = "a"

    @step
    async def different() -> str:
        return ""

    @workflow
    async def flow() -> str:
        found = await (bench.work("a") if other == "a" else different())
        return found + await wait_for_signal("go")

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: first._engine._idle_runs and bench.log)
    await first.close()
    other = "b"
    second = await world.open()
    run = await wait_until_ended(second, handle)
    assert b"NonDeterminismError" in (run.error or b"")
    other = "a"
    await fix_and_retry(second, handle, bench)
    await flow.get_handle(second.store_provider, handle.run_id).signal("go", "!")
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "A!"
    assert bench.log == []


async def test_a_worker_that_dies_after_the_retry_changes_nothing(world: World):
    bench = Bench("b")
    hang = False

    @step
    async def last() -> str:
        bench.log.append("last")
        if hang:
            await asyncio.sleep(60)
        return "LAST"

    @workflow
    async def flow() -> list[str]:
        return [await bench.work("a"), await bench.work("b"), await last()]

    first = await world.open()
    handle = await first.start(flow)
    hang = True
    await fix_and_retry(first, handle, bench)
    await wait_until(lambda: "last" in bench.log)
    await world.crash(first)
    hang = False
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == ["A", "B", "LAST"]
    assert bench.log == ["b", "last", "last"]


async def test_draws_and_keys_before_the_failure_stay_as_they_were(world: World):
    bench = Bench("bad")
    keys: list[str] = []

    @step
    async def keyed(name: str) -> str:
        keys.append(current_step().idempotency_key)
        if name in bench.broken:
            raise ConnectionError("down")
        return keys[-1]

    @workflow
    async def flow() -> list[str]:
        drawn = str(uuid4())
        return [drawn, await keyed("good"), str(uuid4()), await keyed("bad"), str(uuid4())]

    runtime = await world.open()
    handle = await runtime.start(flow)
    await fix_and_retry(runtime, handle, bench)
    result = await handle.result()
    assert keys[1] == keys[2]  # the same step, tried again: the outside world may know its key
    assert len({keys[0], keys[1]}) == 2
    assert result[1] == keys[0]


async def test_an_attempt_of_a_step_that_was_taken_back_is_no_attempt_of_another(world: World):
    bench = Bench("bad")
    numbers: list[tuple[str, int, Any]] = []

    @step
    async def clean_up() -> None:
        current_step().heartbeat("half way")
        numbers.append(("clean up", current_step().attempt, current_step().progress))
        await asyncio.sleep(0.15)
        await asyncio.sleep(60)

    @step
    async def other() -> str:
        numbers.append(("other", current_step().attempt, current_step().progress))
        return "OTHER"

    @workflow
    async def flow() -> str:
        try:
            await bench.work("bad")
        except ConnectionError:
            try:
                async with asyncio.timeout(100):
                    await clean_up()
            finally:
                raise ValueError("gave up") from None
        return await other()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: numbers)
    await asyncio.sleep(0.13)  # the heartbeat is written
    runtime._engine.clock.advance(101)
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == "OTHER"
    assert numbers == [("clean up", 1, None), ("other", 1, None)]


async def test_another_call_of_the_same_step_inherits_no_attempts_and_no_progress(world: World):
    """What a retry takes back includes what is known of steps that were begun because of it."""
    bench = Bench("bad")
    numbers: list[tuple[str, int, Any]] = []

    @step(retries=5, backoff=0.01)
    async def send(what: str) -> str:
        me = current_step()
        numbers.append((what, me.attempt, me.progress))
        if what == "apology":
            await me.save_progress("half way")
            if me.attempt == 1:
                raise ConnectionError("once more")
            await asyncio.sleep(60)
        return what

    @workflow
    async def flow() -> str:
        try:
            await bench.work("bad")
        except ConnectionError:
            try:
                async with asyncio.timeout(100):
                    await send("apology")
            finally:
                raise ValueError("gave up") from None
        return await send("goods")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: len(numbers) == 2)
    runtime._engine.clock.advance(101)
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == "goods"
    assert numbers == [("apology", 1, None), ("apology", 2, "half way"), ("goods", 1, None)]


# Deadlines, cancelled and dead runs


async def test_a_passed_deadline_is_lifted(world: World, clock: VirtualClock):
    bench = Bench()

    @workflow(timeout=100)
    async def flow() -> list[str]:
        try:
            return [await bench.work("a"), await wait_for_signal("go")]
        finally:
            await bench.work("clean up")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs and bench.log)
    clock.advance(101)
    await fix_and_retry(runtime, handle, bench)
    assert (await read_run(runtime, handle)).deadline is None
    await handle.signal("go", "on")
    assert await handle.result() == ["A", "on"]
    assert bench.log == ["clean up"]


async def test_a_deadline_that_has_not_passed_still_counts(world: World, clock: VirtualClock):
    bench = Bench("bad")

    @workflow(timeout=100)
    async def flow() -> None:
        await bench.work("bad")
        await wait_for_signal("never")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await fix_and_retry(runtime, handle, bench)
    await wait_until(lambda: runtime._engine._idle_runs)
    clock.advance(101)
    with pytest.raises(RunFailed, match="RunTimedOut"):
        await handle.result()


async def test_a_cancelled_run_continues_as_if_it_had_not_been_cancelled(world: World):
    bench = Bench()

    @workflow
    async def flow() -> list[str]:
        try:
            return [await bench.work("a"), await wait_for_signal("go"), await bench.work("b")]
        except asyncio.CancelledError:
            await bench.work("clean up")
            raise

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs and bench.log)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    await fix_and_retry(runtime, handle, bench)
    await handle.signal("go", "on")
    assert await handle.result() == ["A", "on", "B"]
    assert bench.log == ["b"]
    assert (await read_run(runtime, handle)).cancel_state is CancelState.NONE


async def test_a_cancelled_run_that_was_retried_can_be_cancelled_again(world: World):
    flow = define_waiting(signal="never")

    runtime = await world.open()
    handle = await runtime.start(flow)
    for _ in range(3):
        assert await handle.cancel()
        await wait_until_ended(runtime, handle)
        assert await get_state(runtime, handle) == "cancelled"
        await retry_run(runtime.store_provider, handle.run_id)


async def test_a_run_that_was_cancelled_before_anybody_began_it_begins(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> str:
        return "ran"

    runtime = await world.open()
    handle = await runtime.start(flow.options(delay=1000))
    await handle.cancel()
    await retry_run(runtime.store_provider, handle.run_id)
    assert await handle.result() == "ran"


async def test_a_failed_cleanup_continues_and_the_run_is_cancelled_after_all(world: World):
    bench = Bench("clean up")

    @workflow
    async def flow() -> None:
        try:
            await wait_for_signal("never")
        finally:
            await bench.work("clean up")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.cancel()
    with pytest.raises(RunFailed, match="clean up is down"):
        await handle.result()
    await fix_and_retry(runtime, handle, bench)
    with pytest.raises(RunCancelled):
        await handle.result()
    assert bench.log == ["clean up"]


async def test_a_dead_run_gets_another_three_deliveries(world: World):
    bench = Bench()
    hang = True

    @step
    async def deadly() -> str:
        bench.log.append("deadly")
        if hang:
            await asyncio.sleep(60)
        return "survived"

    @workflow
    async def flow() -> list[str]:
        return [await bench.work("a"), await deadly()]

    handle: Any = None
    for deaths in (1, 2, 3):
        mortal = await world.open()
        handle = handle or await mortal.start(flow)
        await wait_until(lambda deaths=deaths: bench.log.count("deadly") == deaths)
        await world.crash(mortal)
    runtime = await world.open()
    again = flow.get_handle(runtime.store_provider, handle.run_id)
    with pytest.raises(RunDead):
        await again.result()
    hang = False
    await fix_and_retry(runtime, handle, bench)
    assert await again.result() == ["A", "survived"]
    assert bench.log == ["deadly"]


# Once


async def test_a_failed_once_step_is_run_again_only_with_run_again(world: World):
    bench = Bench("bill")

    @workflow
    async def flow() -> str:
        return await bench.pay("bill")

    runtime = await world.open()
    handle = await runtime.start(flow)
    before = await wait_until_ended(runtime, handle)
    with pytest.raises(RetryRefused, match="`once`"):
        await retry_run(runtime.store_provider, handle.run_id)
    assert await read_run(runtime, handle) == before
    await fix_and_retry(runtime, handle, bench, run_again=True)
    assert await handle.result() == "paid bill"
    assert bench.log == ["pay bill"]


async def test_a_once_step_with_an_unknown_outcome_is_run_again_only_with_run_again(world: World):
    calls: list[str] = []

    @step(effect="once")
    async def pay() -> str:
        calls.append("pay")
        if len(calls) == 1:
            await asyncio.sleep(60)
        return "paid"

    flow = define_calling(pay)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: calls)
    await world.crash(first)
    second = await world.open()
    again = flow.get_handle(second.store_provider, handle.run_id)
    with pytest.raises(RunFailed) as failed:
        await again.result()
    assert isinstance(failed.value.__cause__, StepOutcomeUnknown)
    with pytest.raises(RetryRefused):
        await retry_run(second.store_provider, handle.run_id)
    await retry_run(second.store_provider, handle.run_id, run_again=True)
    assert await again.result() == "paid"
    assert calls == ["pay", "pay"]


async def test_a_once_step_that_would_be_rewound_is_reported(world: World):
    bench = Bench("bad")

    @workflow
    async def flow() -> None:
        try:
            await bench.work("bad")
        finally:
            await bench.pay("the fine")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_ended(runtime, handle)
    with pytest.raises(RetryRefused, match="`once`"):
        await retry_run(runtime.store_provider, handle.run_id)
    await fix_and_retry(runtime, handle, bench, run_again=True)
    await handle.result()
    assert bench.log == ["bad", "pay the fine"]


async def test_a_once_step_that_stays_is_no_obstacle(world: World):
    bench = Bench("bad")

    @workflow
    async def flow() -> list[str]:
        return [await bench.pay("bill"), await bench.work("bad")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == ["paid bill", "BAD"]
    assert bench.log == ["bad"]


async def test_a_once_step_that_was_cancelled_when_its_outcome_was_on_its_way_counts(world: World):
    bench = Bench("bad")

    @workflow
    async def flow() -> str:
        try:
            return await bench.work("bad")
        except ConnectionError:
            async with asyncio.timeout(50):
                await bench.pay("fine")
            raise

    store = HeldCommits(world.store(), lambda op: isinstance(op, AppendRecord) and op.record.name == "pay")
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await store.reached.wait()
    runtime._engine.clock.advance(60)  # the time-out is recorded right behind the outcome
    await asyncio.sleep(0.01)
    store.release.set()
    await wait_until_ended(runtime, handle)
    with pytest.raises(RetryRefused, match="`once`"):
        await retry_run(runtime.store_provider, handle.run_id)


# Children


async def test_a_child_that_failed_is_retried_with_its_parent(world: World):
    bench = Bench("bad")

    @workflow
    async def child() -> list[str]:
        return [await bench.work("good"), await bench.work("bad")]

    @workflow
    async def parent() -> list[Any]:
        return [await bench.work("first"), await child(), await bench.work("last")]

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == ["FIRST", ["GOOD", "BAD"], "LAST"]
    assert bench.log == ["bad", "last"]


async def test_grandchildren_too_and_only_those_that_failed(world: World):
    bench = Bench("leaf 2")

    @workflow
    async def leaf(n: int) -> str:
        return await bench.work(f"leaf {n}")

    @workflow
    async def branch(n: int) -> list[str]:
        return [await leaf(n), await bench.work(f"branch {n}")]

    @workflow
    async def root() -> list[Any]:
        return [await branch(n) for n in (1, 2, 3)]

    runtime = await world.open()
    handle = await runtime.start(root.options(id="r"))
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == [[f"LEAF {n}", f"BRANCH {n}"] for n in (1, 2, 3)]
    assert bench.log == ["leaf 2", "branch 2", "leaf 3", "branch 3"]


async def test_a_started_child_that_is_waited_for_is_retried_as_well(world: World):
    bench = Bench("bad")

    @workflow
    async def child() -> str:
        return await bench.work("bad")

    @workflow
    async def parent() -> str:
        kid = await child.start()
        return await kid.result()

    runtime = await world.open()
    handle = await runtime.start(parent)
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == "BAD"


async def test_a_run_that_was_joined_is_not_retried_but_awaited_again(world: World):
    bench = Bench("bad")

    @workflow
    async def child() -> str:
        return await bench.work("bad")

    @workflow
    async def parent() -> str:
        return await child.options(id="shared")()

    runtime = await world.open()
    shared = await runtime.start(child.options(id="shared"))
    await wait_until_ended(runtime, shared)
    handle = await runtime.start(parent)
    await wait_until_ended(runtime, handle)
    await retry_run(runtime.store_provider, handle.run_id)
    await wait_until_ended(runtime, handle)
    assert await get_state(runtime, handle) == await get_state(runtime, shared) == "failed"
    await fix_and_retry(runtime, shared, bench)
    assert await shared.result() == "BAD"
    await retry_run(runtime.store_provider, handle.run_id)
    assert await handle.result() == "BAD"


async def test_a_child_that_was_cancelled_continues_with_its_parent(world: World):
    child = define_waiting("child")

    parent = define_calling(child, "parent")

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: len(runtime._engine._idle_runs) == 2)
    kid = child.get_handle(runtime.store_provider, "p:child-1")
    await kid.cancel()
    await wait_until_ended(runtime, handle)
    await retry_run(runtime.store_provider, handle.run_id)
    await kid.signal("go", "after all")
    assert await handle.result() == "after all"


async def test_a_child_that_cannot_be_retried_keeps_its_parent_from_it(world: World):
    bench = Bench("bill")

    @workflow
    async def child() -> str:
        return await bench.pay("bill")

    parent = define_calling(child, "parent")

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until_ended(runtime, handle)
    with pytest.raises(RetryRefused, match="once"):
        await retry_run(runtime.store_provider, handle.run_id)
    assert [await get_state(runtime, "p"), await get_state(runtime, "p:child-1")] == ["failed", "failed"]
    await fix_and_retry(runtime, handle, bench, run_again=True)
    assert await handle.result() == "paid bill"


async def test_a_child_that_was_retried_by_itself_and_completed_is_found_so(world: World):
    bench = Bench("bad")

    @workflow
    async def child() -> str:
        return await bench.work("bad")

    parent = define_calling(child, "parent")

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until_ended(runtime, handle)
    kid = child.get_handle(runtime.store_provider, "p:child-1")
    await fix_and_retry(runtime, kid, bench)
    assert await kid.result() == "BAD"
    await retry_run(runtime.store_provider, handle.run_id)
    assert await handle.result() == "BAD"
    assert bench.log == ["bad"]


async def test_a_child_that_was_cancelled_because_its_sibling_failed_continues(world: World):
    """Nothing about it is recorded in the parent, so there is no record that a retry could take back."""
    bench = Bench("bad")

    child = define_waiting("child")

    @workflow
    async def parent() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            one = group.create_task(child())
            two = group.create_task(bench.work("bad"))
        return [one.result(), two.result()]

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until_ended(runtime, handle)
    kid = child.get_handle(runtime.store_provider, "p:child-1")
    assert (await wait_until_ended(runtime, kid)).state == "cancelled"
    await fix_and_retry(runtime, handle, bench)
    await wait_until_quiet(runtime)
    await kid.signal("go", "on")
    assert await handle.result() == ["on", "BAD"]


async def test_a_child_that_was_given_up_before_the_failure_stays_cancelled(world: World):
    """It has no record either, but what the parent did without it is kept."""
    bench = Bench("bad")

    @workflow
    async def child() -> None:
        await bench.work("begun")
        try:
            await wait_for_signal("never")
        finally:
            await bench.work("clean up")

    @workflow
    async def parent() -> str:
        try:
            async with asyncio.timeout(10):
                await child()
        except TimeoutError:
            await bench.work("without it")
        return await bench.work("bad")

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: bench.log == ["begun"] and len(runtime._engine._idle_runs) == 2)
    runtime._engine.clock.advance(11)
    assert (await wait_until_ended(runtime, "p:child-1")).state == "cancelled"
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == "BAD"
    await wait_until_quiet(runtime)
    assert (await wait_until_ended(runtime, "p:child-1")).state == "cancelled"
    assert bench.log == ["bad"]


async def test_a_child_that_was_cancelled_with_its_parent_continues_with_it(world: World):
    child = define_waiting("child")

    parent = define_calling(child, "parent")

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: len(runtime._engine._idle_runs) == 2)
    await handle.cancel()
    kid = child.get_handle(runtime.store_provider, "p:child-1")
    assert (await wait_until_ended(runtime, kid)).state == "cancelled"
    assert (await wait_until_ended(runtime, handle)).state == "cancelled"
    await retry_run(runtime.store_provider, handle.run_id)
    await wait_until_quiet(runtime)
    await kid.signal("go", "on")
    assert await handle.result() == "on"


@pytest.mark.parametrize(
    "instead",
    ["a signal", "a step", "a started child", "the same child", "another child"],
)
async def test_the_end_of_a_child_that_was_cancelled_is_not_taken_for_that_of_another_command(
    world: World, instead: str
):
    """A retry takes the command back that had started the child, and another one is issued at its position."""
    bench = Bench("bad")
    ended = asyncio.Event()

    @step
    async def until_the_child_has_ended() -> None:
        await ended.wait()

    child = define_waiting("child")

    other = define_waiting("other")

    @workflow
    async def parent() -> Any:
        try:
            await bench.work("bad")
        except ConnectionError:
            try:
                async with asyncio.timeout(10):
                    await child()
            except TimeoutError:
                await until_the_child_has_ended()
            raise
        if instead == "a step":
            return await bench.work("good")
        if instead == "a started child":
            return (await other.start()).run_id
        return await (
            wait_for_signal("go") if instead == "a signal" else other() if instead == "another child" else child()
        )

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: len(runtime._engine._idle_runs) == 2)
    runtime._engine.clock.advance(11)
    assert (await wait_until_ended(runtime, "p:child-2")).state == "cancelled"
    ended.set()
    await fix_and_retry(runtime, handle, bench)
    if instead == "a step":
        assert await handle.result() == "GOOD"
    elif instead == "a started child":
        assert await handle.result() == "p:other-2.1"
    else:
        await wait_until_quiet(runtime)
        assert not (await read_run(runtime, handle)).state.is_terminal
        to = {"a signal": "p", "the same child": "p:child-2.1", "another child": "p:other-2.1"}[instead]
        await runtime.store_provider.change(SendSignal(to, "go", b"5", None, 0.0))
        assert await handle.result() == 5


async def test_a_child_that_takes_the_place_of_one_that_was_taken_back_has_its_own_inputs(world: World):
    bench = Bench("bad")

    @workflow
    async def tell(what: str) -> str:
        return await bench.work(what)

    @workflow
    async def parent() -> str:
        try:
            await bench.work("bad")
        except ConnectionError:
            await tell("it failed")
            raise
        return await tell("it worked")

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await fix_and_retry(runtime, handle, bench)
    assert await handle.result() == "IT WORKED"


async def test_a_step_that_takes_the_place_of_one_that_was_taken_back_has_another_key(world: World):
    bench = Bench("bad")
    keys: list[str] = []

    @step
    async def tell(what: str) -> None:
        keys.append(current_step().idempotency_key)

    @workflow
    async def flow() -> None:
        try:
            await bench.work("bad")
        except ConnectionError:
            await tell("it failed")
            raise
        await tell("it worked")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await fix_and_retry(runtime, handle, bench)
    await handle.result()
    assert keys[0] != keys[1]  # who is told twice under one key takes the second for a repetition


# Refused


async def test_runs_that_have_nothing_to_retry(world: World):
    flow = define_waiting()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    with pytest.raises(RetryRefused, match="running"):
        await retry_run(runtime.store_provider, handle.run_id)
    await handle.signal("go", 1)
    await handle.result()
    with pytest.raises(RetryRefused, match="completed"):
        await retry_run(runtime.store_provider, handle.run_id)
    with pytest.raises(RunNotFound, match="nobody"):
        await retry_run(runtime.store_provider, "nobody")

"""Sagas: what a run has done is undone when it fails or is cancelled, in reverse order, and each of it once."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from engine_world import (
    FlakyStore,
    VirtualClock,
    World,
    describe_journal,
    get_state,
    make_unavailable_error,
    read_attempts,
    read_journal,
    read_run,
    wait_for_state,
    wait_until_ended,
)

from holdfast import RetryRefused, RunCancelled, RunFailed, StepOutcomeUnknown, step, wait_for_signal, workflow
from holdfast.core.records import RecordKind
from holdfast.errors import CompensationFailed
from holdfast.services.run_control import retry_run
from holdfast.stores.operations import AppendRecord, CancelRun, CancelState
from waits import wait_until

pytestmark = pytest.mark.asyncio


class Shop:
    """Steps that can be undone, and a log of what has been done and undone."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.refuses: set[str] = set()
        """What cannot be undone at the moment."""
        self.hangs: set[str] = set()
        """What never gets undone at the moment."""
        shop = self

        @step
        async def undo(order: str, item: str) -> None:
            shop.log.append(f"undo {item} {order}")
            if item in shop.hangs:
                await asyncio.sleep(60)
            if item in shop.refuses:
                raise ConnectionError(f"{item} cannot be undone")

        @step(compensate=undo)
        async def buy(item: str) -> str:
            shop.log.append(f"buy {item}")
            return f"#{item}"

        @step
        async def fail(message: str = "no") -> None:
            shop.log.append("fail")
            raise ValueError(message)

        self.buy, self.fail = buy, fail


async def test_a_failed_run_undoes_its_steps_in_reverse_order(world: World):
    shop = Shop()

    @workflow
    async def flow() -> None:
        for item in ("a", "b", "c"):
            await shop.buy(item)
        await shop.fail()

    runtime = await world.open()
    handle = await runtime.start(flow)
    with pytest.raises(RunFailed, match="ValueError: no"):
        await handle.result()
    assert shop.log == ["buy a", "buy b", "buy c", "fail", "undo c #c", "undo b #b", "undo a #a"]
    assert await describe_journal(runtime, handle) == [
        "step buy", "step buy", "step buy", "step fail failed",
        "compensation undo", "compensation undo", "compensation undo",
    ]  # fmt: skip


async def test_the_order_is_that_of_the_records_and_not_of_the_calls(world: World):
    shop = Shop()
    gate = asyncio.Event()

    @step(compensate=lambda out: shop.log.append(f"undo {out}"))
    async def slow() -> str:
        await gate.wait()
        return "slow"

    @step(compensate=lambda out: shop.log.append(f"undo {out}"))
    async def quick() -> str:
        return "quick"

    @workflow
    async def flow() -> None:
        await asyncio.gather(slow(), quick())
        await shop.fail()

    runtime = await world.open()
    handle = await runtime.start(flow)

    async def quick_is_recorded() -> bool:
        return await describe_journal(runtime, handle) == ["step quick"]

    await wait_until(quick_is_recorded)
    gate.set()
    await wait_until_ended(runtime, handle)
    assert shop.log == ["fail", "undo slow", "undo quick"]


async def test_compensations_are_given_the_output_and_the_arguments_of_the_call_by_name(in_memory: World):
    seen: list[Any] = []

    def takes_nothing() -> None:
        seen.append("nothing")

    def takes_output(booking: dict[str, int]) -> None:
        seen.append(booking)

    async def takes_both(seat: str, result: int, price: int, *, why: str = "undone") -> None:
        seen.append((seat, result, price, why))

    @step(compensate=takes_nothing)
    async def one() -> None: ...

    @step(compensate=takes_output)
    def two() -> dict[str, int]:
        return {"number": 2}

    @step(compensate=takes_both)
    async def three(price: int, /, seat: str = "12a", *, other: bool = False) -> int:
        return price * 2

    @workflow
    async def flow() -> None:
        await one()
        await two()
        await three(5)
        await three(6, seat="1b", other=True)
        raise ValueError("no")

    runtime = await in_memory.open()
    await wait_until_ended(runtime, await runtime.start(flow))
    assert seen == [("1b", 12, 6, "undone"), ("12a", 10, 5, "undone"), {"number": 2}, "nothing"]


async def test_only_what_was_recorded_as_done_is_undone(world: World):
    shop = Shop()

    @step(compensate=lambda: shop.log.append("undo the failed one"))
    async def failing() -> None:
        raise ValueError("never happened")

    @workflow
    async def flow() -> None:
        await shop.buy("a")
        await failing()

    runtime = await world.open()
    await wait_until_ended(runtime, await runtime.start(flow))
    assert shop.log == ["buy a", "undo a #a"]


async def test_a_failure_that_is_caught_undoes_nothing(world: World):
    shop = Shop()

    @workflow
    async def flow() -> str:
        await shop.buy("a")
        try:
            await shop.fail()
        except ValueError:
            return "all the same"
        return ""

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.result() == "all the same"
    assert shop.log == ["buy a", "fail"]


async def test_what_is_bought_in_a_handler_is_undone_too(world: World):
    shop = Shop()

    @workflow
    async def flow() -> None:
        try:
            await shop.buy("a")
            await shop.fail()
        finally:
            await shop.buy("b")

    runtime = await world.open()
    await wait_until_ended(runtime, await runtime.start(flow))
    assert shop.log == ["buy a", "fail", "buy b", "undo b #b", "undo a #a"]


async def test_a_cancelled_run_is_undone_after_its_own_clean_up(world: World):
    shop = Shop()

    @workflow
    async def flow() -> None:
        try:
            await shop.buy("a")
            await wait_for_signal("never")
        finally:
            shop.log.append("finally")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert shop.log == ["buy a", "finally", "undo a #a"]


async def test_a_run_that_passes_its_deadline_is_undone(world: World, clock: VirtualClock):
    shop = Shop()

    @workflow(timeout=100)
    async def flow() -> None:
        await shop.buy("a")
        await wait_for_signal("never")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    clock.advance(101)
    with pytest.raises(RunFailed, match="RunTimedOut"):
        await handle.result()
    assert shop.log == ["buy a", "undo a #a"]


async def test_a_deadline_that_passes_while_a_run_is_being_undone_does_not_stop_that(world: World, clock: VirtualClock):
    shop = Shop()
    gate, undoing = asyncio.Event(), asyncio.Event()

    async def undo_slowly() -> None:
        undoing.set()
        await gate.wait()
        shop.log.append("undone slowly")

    @step(compensate=undo_slowly)
    async def slow_to_undo() -> None: ...

    @workflow(timeout=100)
    async def flow() -> None:
        await shop.buy("a")
        await slow_to_undo()
        await shop.fail()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await undoing.wait()
    clock.advance(101)
    await asyncio.sleep(0.01)
    gate.set()
    with pytest.raises(RunFailed, match="ValueError: no"):
        await handle.result()
    assert shop.log == ["buy a", "fail", "undone slowly", "undo a #a"]


async def test_a_result_that_cannot_be_recorded_is_a_failure_and_undoes(world: World):
    shop = Shop()

    @workflow
    async def unfit() -> Any:
        await shop.buy("a")
        return object()

    @workflow
    async def too_large() -> str:
        await shop.buy("b")
        return "x" * 2000

    runtime = await world.open(max_value=1000)
    with pytest.raises(RunFailed, match="UnrecordableValue"):
        await (await runtime.start(unfit)).result()
    with pytest.raises(RunFailed, match="ValueTooLarge"):
        await (await runtime.start(too_large)).result()
    assert shop.log == ["buy a", "undo a #a", "buy b", "undo b #b"]


async def test_an_output_above_the_limit_fails_the_step(world: World):
    shop = Shop()

    @step(compensate=lambda: shop.log.append("undo the large one"))
    async def large() -> str:
        return "x" * 2000

    @workflow
    async def flow() -> None:
        await shop.buy("a")
        await large()

    runtime = await world.open(max_value=1000)
    with pytest.raises(RunFailed, match=r"ValueTooLarge: the output of step 'large'"):
        await (await runtime.start(flow)).result()
    assert shop.log == ["buy a", "undo a #a"]  # the large one happened, but what it made is not known


@pytest.mark.parametrize("cut", ["cancelled", "group"])
async def test_a_step_cancelled_in_flight_whose_outcome_was_recorded_all_the_same_is_undone(world: World, cut: str):
    shop = Shop()
    committing, let_commit = asyncio.Event(), asyncio.Event()

    @workflow
    async def flow() -> None:
        if cut == "cancelled":
            await shop.buy("a")
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(shop.fail())
                group.create_task(shop.buy("a"))
        shop.log.append("went on")

    async def before(ops: Any) -> None:
        names = [op.record.name for op in ops if isinstance(op, AppendRecord)]
        if ("buy" if cut == "cancelled" else "fail") in names:
            committing.set()
            await let_commit.wait()

    store = FlakyStore(world.store(), before_commit=before)
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await committing.wait()
    if cut == "cancelled":
        outside = await world.open_store()
        await outside.commit([CancelRun(handle.run_id, outside.now())])
        await wait_until(
            lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._cancel_state is CancelState.RECORDED
        )
    else:
        await wait_until(lambda: "buy a" in shop.log)
        await asyncio.sleep(0.01)
    let_commit.set()
    await wait_until_ended(runtime, handle)
    assert "undo a #a" in shop.log
    assert shop.log.count("undo a #a") == shop.log.count("buy a") == 1


async def test_the_same_after_a_takeover(world: World):
    """The outcome of the cancelled step is the journal's last record; only a replay finds it."""
    shop = Shop()
    recorded = asyncio.Event()

    @workflow
    async def flow() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(shop.fail())
            group.create_task(shop.buy("a"))

    async def before(ops: Any) -> None:
        if recorded.is_set():
            await asyncio.Event().wait()
        if any(isinstance(op, AppendRecord) and op.record.name == "fail" for op in ops):
            await asyncio.sleep(0.01)

    class Mute(FlakyStore):
        async def commit(self, ops: Any) -> list[Any]:
            answers = await super().commit(ops)
            if any(isinstance(op, AppendRecord) and op.record.name == "buy" for op in ops):
                recorded.set()
                await asyncio.Event().wait()
            return answers

    store = Mute(world.store())
    store.before_commit = before
    first = await world.open(store=store)
    handle = await first.start(flow)
    await recorded.wait()
    await world.crash(first)
    assert shop.log == ["fail", "buy a"]
    second = await world.open()
    assert (await wait_until_ended(second, handle)).state == "failed"
    assert shop.log == ["fail", "buy a", "undo a #a"]


@pytest.mark.parametrize("dies", ["", "before", "after"])
async def test_an_outcome_that_lands_after_the_cancellation_is_undone_first(world: World, dies: str):
    """The last record is undone first, also if the code that asked for the step had been cancelled by then.

    The worker may die when that outcome is not in the journal yet, or when it is.
    """
    log: list[str] = []
    cancelling, let_go, stuck = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @step
    async def give_back(order: str, item: str) -> None:
        log.append(order)

    @step(compensate=give_back)
    async def buy(item: str) -> str:
        if item != "a":
            await cancelling.wait()  # it ends while the cancellation is being written
        return f"#{item}"

    @workflow
    async def flow() -> None:
        await buy("a")
        await asyncio.gather(buy("b"), buy("c"))

    async def before(ops: Any) -> None:
        kinds = [op.record.kind for op in ops if isinstance(op, AppendRecord)]
        if RecordKind.CANCEL in kinds:
            cancelling.set()
            await let_go.wait()
        elif dies == "before" and let_go.is_set():
            stuck.set()
            await asyncio.Event().wait()

    class Mute(FlakyStore):
        async def commit(self, ops: Any) -> list[Any]:
            answers = await super().commit(ops)
            if dies == "after" and let_go.is_set() and ops[0].record.kind is not RecordKind.CANCEL:
                stuck.set()
                await asyncio.Event().wait()
            return answers

    store = Mute(world.store())
    store.before_commit = before
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    driver = runtime._engine.held_runs.drivers_by_run_id[handle.run_id]
    await wait_until(lambda: len(driver.steps.started) == 2)
    outside = await world.open_store()
    await outside.commit([CancelRun(handle.run_id, outside.now())])
    await cancelling.wait()
    await wait_until(lambda: driver.recorder.next_seq == 4)
    let_go.set()
    if dies:
        await stuck.wait()
        await world.crash(runtime)
        assert log == []
        runtime = await world.open()
    assert (await wait_until_ended(runtime, handle)).state == "cancelled"
    recorded = [
        json.loads(record.payload or b"") for record in await read_journal(runtime, handle) if record.name == "buy"
    ]
    assert recorded == (["#a"] if dies == "before" else ["#a", "#b", "#c"])
    assert log == recorded[::-1]


async def test_many_cancels_at_any_moment_undo_in_the_reverse_order_of_the_records(in_memory: World):
    orders: list[tuple[list[str], list[str]]] = []

    @step
    async def undo(what: str, n: int) -> None:
        await asyncio.sleep(0)

    @step(compensate=undo)
    async def do(n: int) -> str:
        for _ in range(n % 5):
            await asyncio.sleep(0)
        return f"#{n}"

    @workflow
    async def flow(number: int) -> None:
        await do(0)
        await asyncio.gather(*(do(n) for n in range(1, 6)))
        await wait_for_signal("go")

    async def slow(_: Any) -> None:
        await asyncio.sleep(0)

    store = FlakyStore(in_memory.store(), before_commit=slow)
    runtime = await in_memory.open(store=store)
    for number in range(60):
        handle = await runtime.start(flow, number)
        for _ in range(number % 30):
            await asyncio.sleep(0)
        await handle.cancel()
        await wait_until_ended(runtime, handle)
        records = await read_journal(runtime, handle)
        done = [json.loads(record.payload or b"") for record in records if record.kind is RecordKind.STEP]
        undone = [record.preview.split("'")[1] for record in records if record.kind is RecordKind.COMPENSATION]
        orders.append((done, undone))
    assert any(len(done) > 1 for done, _ in orders)
    assert [undone for _, undone in orders] == [done[::-1] for done, _ in orders]


async def test_a_compensation_is_retried_by_its_own_policy(world: World, clock: VirtualClock):
    calls: list[str] = []

    @step(retries=3, backoff=10)
    async def undo() -> None:
        calls.append("undo")
        if len(calls) < 4:
            raise ConnectionError("not yet")

    @step(compensate=undo)
    async def buy() -> None: ...

    @workflow
    async def flow() -> None:
        await buy()
        raise ValueError("no")

    runtime = await world.open()
    handle = await runtime.start(flow)
    with pytest.raises(RunFailed, match="ValueError: no"):
        await handle.result()
    assert calls == ["undo"] * 4
    assert {10, 20, 40} <= set(clock.slept)


async def test_a_compensation_that_fails_for_good_stops_the_undoing_and_names_the_step(world: World):
    shop = Shop()
    shop.refuses = {"b"}

    @workflow
    async def flow() -> None:
        for item in ("a", "b", "c"):
            await shop.buy(item)
        await shop.fail()

    runtime = await world.open()
    handle = await runtime.start(flow)
    with pytest.raises(RunFailed) as failed:
        await handle.result()
    cause = failed.value.__cause__
    assert isinstance(cause, CompensationFailed)
    assert (cause.step, cause.compensation) == ("buy", "undo")
    for words in ("ValueError: no", "'buy' could not be undone", "ConnectionError: b cannot be undone"):
        assert words in str(cause)
    assert shop.log == ["buy a", "buy b", "buy c", "fail", "undo c #c", "undo b #b"]
    assert await get_state(runtime, handle) == "failed"


async def test_retrying_a_run_with_a_failed_compensation_continues_compensating(world: World):
    shop = Shop()
    shop.refuses = {"b"}

    @workflow
    async def flow() -> None:
        for item in ("a", "b", "c"):
            await shop.buy(item)
        await shop.fail("for good")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_ended(runtime, handle)
    del shop.log[:]
    await retry_run(runtime.store_provider, handle.run_id)
    await wait_until_ended(runtime, handle)
    assert shop.log == ["undo b #b"]  # still not
    shop.refuses = set()
    await retry_run(runtime.store_provider, handle.run_id)
    with pytest.raises(RunFailed, match="ValueError: for good"):
        await handle.result()
    assert shop.log == ["undo b #b", "undo b #b", "undo a #a"]
    with pytest.raises(RetryRefused, match="undone"):
        await retry_run(runtime.store_provider, handle.run_id)


async def test_a_cancelled_run_that_could_not_be_undone_has_failed_and_is_cancelled_once_it_is(world: World):
    shop = Shop()
    shop.refuses = {"a"}

    @workflow
    async def flow() -> None:
        await shop.buy("a")
        await wait_for_signal("never")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.cancel()
    with pytest.raises(RunFailed, match="was cancelled, and step 'buy' could not be undone"):
        await handle.result()
    shop.refuses = set()
    await retry_run(runtime.store_provider, handle.run_id)
    with pytest.raises(RunCancelled):
        await handle.result()
    assert shop.log == ["buy a", "undo a #a", "undo a #a"]


async def test_a_takeover_while_a_run_is_being_undone_repeats_only_what_was_in_flight(world: World):
    shop = Shop()
    shop.hangs = {"b"}

    @workflow
    async def flow() -> None:
        for item in ("a", "b", "c"):
            await shop.buy(item)
        await shop.fail()

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: "undo b #b" in shop.log)
    await world.crash(first)
    shop.hangs = set()
    second = await world.open()
    with pytest.raises(RunFailed, match="ValueError: no"):
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert shop.log == ["buy a", "buy b", "buy c", "fail", "undo c #c", "undo b #b", "undo b #b", "undo a #a"]


async def test_a_run_that_is_being_undone_can_be_handed_over(world: World):
    shop = Shop()
    shop.hangs = {"a"}

    @workflow
    async def flow() -> None:
        await shop.buy("a")
        await shop.fail()

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: "undo a #a" in shop.log)
    await first.close()
    shop.hangs = set()
    second = await world.open()
    assert (await wait_until_ended(second, handle)).state == "failed"
    assert shop.log == ["buy a", "fail", "undo a #a", "undo a #a"]


async def test_a_run_that_has_been_undone_cannot_be_retried(world: World):
    shop = Shop()

    @workflow
    async def flow() -> None:
        await shop.buy("a")
        await shop.fail()

    @workflow
    async def own_bug() -> None:
        await shop.buy("a")
        raise ValueError("of no step")

    runtime = await world.open()
    for one in (flow, own_bug):
        handle = await runtime.start(one)
        before = await wait_until_ended(runtime, handle)
        with pytest.raises(RetryRefused, match="fork"):
            await retry_run(runtime.store_provider, handle.run_id, run_again=True)
        assert await read_run(runtime, handle) == before


async def test_a_run_with_nothing_to_undo_can_be_retried(world: World):
    shop = Shop()

    @workflow
    async def flow() -> str:
        if len(shop.log) == 0:
            await shop.fail()
        return await shop.buy("a")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_ended(runtime, handle)
    await retry_run(runtime.store_provider, handle.run_id)
    assert await handle.result() == "#a"


async def test_a_once_compensation_with_an_unknown_outcome_is_not_repeated(world: World):
    calls: list[str] = []

    @step(effect="once")
    async def refund() -> None:
        calls.append("refund")
        if len(calls) == 1:
            await asyncio.sleep(60)

    @step(compensate=refund)
    async def charge() -> None: ...

    @workflow
    async def flow() -> None:
        await charge()
        raise ValueError("no")

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: calls)
    await world.crash(first)
    second = await world.open()
    with pytest.raises(RunFailed, match="StepOutcomeUnknown") as failed:
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert isinstance(failed.value.__cause__, CompensationFailed)
    assert StepOutcomeUnknown.__name__ in str(failed.value)
    with pytest.raises(RetryRefused, match="once"):
        await retry_run(second.store_provider, handle.run_id)
    assert calls == ["refund"]
    await retry_run(second.store_provider, handle.run_id, run_again=True)
    with pytest.raises(RunFailed, match="ValueError: no"):
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert calls == ["refund", "refund"]
    assert await read_attempts(second, handle) == {}


async def test_code_that_no_longer_fits_the_journal_undoes_nothing_and_says_why(world: World):
    shop = Shop()

    async def define(new: bool) -> Any:
        @step(name="order", compensate=lambda out: shop.log.append(f"undo {out}"))
        async def order() -> str:
            shop.log.append("order")
            return "text"

        @step(name="order", compensate=lambda out: shop.log.append(f"undo {out}"))
        async def order_number() -> int:
            return 1

        @workflow(name="flow")
        async def flow() -> None:
            try:
                await (order_number if new else order)()
                await wait_for_signal("go")
            except Exception as error:
                shop.log.append(type(error).__name__)
                raise
            raise ValueError("no")

        return flow

    first = await world.open()
    handle = await first.start(await define(new=False))
    await wait_until(lambda: first._engine._idle_runs)
    await first.close()
    flow = await define(new=True)
    second = await world.open()
    await flow.get_handle(second.store_provider, handle.run_id).signal("go")
    with pytest.raises(RunFailed, match="UnreadableRecord"):
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert shop.log == ["order", "UnreadableRecord"]


async def test_an_output_that_only_the_compensation_reads_and_cannot_decode_fails_with_that_error(world: World):
    """Nobody awaited the step, so its output is first read when it is to be undone."""
    log: list[str] = []

    async def define(new: bool) -> Any:
        @step(name="order", compensate=lambda out: log.append(f"undo {out}"))
        async def order() -> str:
            return "text"

        @step(name="order", compensate=lambda out: log.append(f"undo {out}"))
        async def order_number() -> int:
            return 1

        @workflow(name="flow")
        async def flow() -> None:
            left = asyncio.ensure_future((order_number if new else order)())
            await wait_for_signal("go")
            left.cancel()
            raise ValueError("no")

        return flow

    first = await world.open()
    handle = await first.start(await define(new=False))

    async def is_recorded() -> bool:
        return await describe_journal(first, handle) == ["step order"]

    await wait_until(is_recorded)
    await first.close()
    flow = await define(new=True)
    second = await world.open()
    await flow.get_handle(second.store_provider, handle.run_id).signal("go")
    with pytest.raises(RunFailed, match="UnreadableRecord"):
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert log == []


async def test_a_child_undoes_its_own_steps_and_the_parent_its_own(world: World):
    shop = Shop()

    @workflow
    async def child() -> None:
        await shop.buy("child's")
        await shop.fail()

    @workflow
    async def parent() -> None:
        await shop.buy("parent's")
        await child()

    runtime = await world.open()
    handle = await runtime.start(parent)
    await wait_until_ended(runtime, handle)
    assert shop.log == ["buy parent's", "buy child's", "fail", "undo child's #child's", "undo parent's #parent's"]


async def test_a_plain_function_undoes_in_a_thread_and_steps_may_share_a_compensation(in_memory: World):
    log: list[tuple[str, bool]] = []

    def undo(what: str) -> None:
        log.append((what, threading.current_thread() is threading.main_thread()))

    @step(compensate=undo)
    def one() -> str:
        return "one"

    @step(compensate=undo)
    async def two() -> str:
        return "two"

    @workflow
    async def flow() -> None:
        await one()
        await two()
        raise ValueError("no")

    runtime = await in_memory.open()
    await wait_until_ended(runtime, await runtime.start(flow))
    assert log == [("two", False), ("one", False)]


async def test_undoing_waits_for_the_store(world: World):
    shop = Shop()
    failures = 2

    def fail(ops: Any) -> BaseException | None:
        nonlocal failures
        if failures and any(isinstance(op, AppendRecord) and op.record.kind.label == "compensation" for op in ops):
            failures -= 1
            return make_unavailable_error()
        return None

    @workflow
    async def flow() -> None:
        await shop.buy("a")
        await shop.buy("b")
        await shop.fail()

    store = FlakyStore(world.store(), fail_before=fail)
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await wait_for_state(runtime, handle, "failed")
    assert shop.log == ["buy a", "buy b", "fail", "undo b #b", "undo a #a"]

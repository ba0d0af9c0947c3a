"""Settling: a person says what came of a ``once`` step whose worker died in it, and its run goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from engine_world import World, read_journal, read_run, wait_for_records, wait_until_ended

from holdfast import (
    RunFailed,
    RunNotFound,
    SettleRefused,
    StepOutcomeUnknown,
    UsageError,
    ValueTooLarge,
    step,
    wait_for_signal,
    workflow,
)
from holdfast.core.states import RunState
from holdfast.services.run_control import retry_run, send_signal
from holdfast.services.run_outcome import make_unsuccessful_error
from holdfast.services.settlement import _narrow_rewind, find_unsettled_steps, is_outcome_unknown, settle_step
from waits import wait_until

pytestmark = pytest.mark.asyncio


class Bank:
    """What is paid is paid outside; a payment to somebody in ``slow`` hangs after that, until its worker dies."""

    def __init__(self, *slow: str) -> None:
        self.paid: list[str] = []
        self.slow = set(slow)
        self.log: list[str] = []
        bank = self

        @step(effect="once")
        async def pay(whom: str) -> int:
            bank.paid.append(whom)
            if whom in bank.slow:
                await asyncio.sleep(60)
            return len(whom)

        @step
        async def work(name: str) -> str:
            bank.log.append(name)
            if name.startswith("bad"):
                raise ValueError(name)
            return name

        self.pay = pay
        self.work = work

    async def fail_with_unknown_outcomes(self, world: World, flow: Any, *args: Any, id: str = "r") -> Any:
        """Start a run, let its worker die when all slow payments are under way, and see the run fail elsewhere."""
        first = await world.open()
        handle = await first.start(flow.options(id=id), *args)
        await wait_until(lambda: self.slow <= {*self.paid})
        await world.crash(first)
        self.slow.clear()
        second = await world.open()
        await wait_until_ended(second, handle)
        return second


async def settle(world: World, *args: Any, **fields: Any) -> None:
    await settle_step(await world.open_store(), *args, **fields)


async def test_the_run_continues_with_the_settled_value_and_the_step_is_not_run_again(world: World):
    bank = Bank("acme")

    @workflow
    async def flow() -> int:
        receipt = await bank.pay("acme")
        await bank.work("after")
        await wait_for_signal("go")
        return receipt

    second = await bank.fail_with_unknown_outcomes(world, flow)
    [old] = await read_journal(second, "r")
    assert is_outcome_unknown(old)
    failed = await read_run(second, "r")
    assert find_unsettled_steps(failed, [old]) == [old]
    assert "`holdfast settle r STEP`" in str(make_unsuccessful_error(failed))
    await settle(world, "r", 1, output=42, by="ada")
    await wait_for_records(second, "r", 2)
    await world.crash(second)
    third = await world.open()
    handle = flow.get_handle(third.store_provider, "r")
    await send_signal(third.store_provider, "r", "go", None, None)
    assert await handle.result() == 42
    assert (bank.paid, bank.log) == (["acme"], ["after"])
    record = (await read_journal(third, "r"))[0]
    assert (record.seq, record.ok, record.payload, record.position) == (0, True, b"42", 0)
    assert (record.is_settled, record.worker, record.epoch) == (True, 0, failed.epoch)
    assert record.preview == "whom='acme'; settled by ada"


async def test_a_step_that_did_not_happen_runs_again(world: World):
    bank = Bank("acme")

    @workflow
    async def flow() -> int:
        return await bank.pay("acme")

    second = await bank.fail_with_unknown_outcomes(world, flow)
    await settle(world, "r", "pay", happened=False)
    assert await flow.get_handle(second.store_provider, "r").result() == 4
    assert bank.paid == ["acme", "acme"]


async def test_what_is_settled_is_settled(world: World):
    bank = Bank("acme")

    @workflow
    async def flow() -> int:
        receipt = await bank.pay("acme")
        await wait_for_signal("go")
        return receipt

    second = await bank.fail_with_unknown_outcomes(world, flow)
    await settle(world, "r", 1, output=1)
    with pytest.raises(
        SettleRefused, match=r"step 1 \('pay'\) of run 'r' was settled before, and the run is"
    ) as refused:
        await settle(world, "r", 1, output=2)
    assert refused.value.run_id == "r"
    await send_signal(second.store_provider, "r", "go", None, None)
    assert await flow.get_handle(second.store_provider, "r").result() == 1
    with pytest.raises(SettleRefused, match="was settled before, and the run is completed"):
        await settle(world, "r", 1, happened=False)


async def test_of_two_who_settle_at_once_one_is_refused(world: World):
    bank = Bank("acme")

    @workflow
    async def flow() -> int:
        return await bank.pay("acme")

    second = await bank.fail_with_unknown_outcomes(world, flow)
    said = await asyncio.gather(*(settle(world, "r", 1, output=n) for n in (7, 8)), return_exceptions=True)
    refused = [one for one in said if one is not None]
    assert [type(one) for one in refused] == [SettleRefused]
    assert await flow.get_handle(second.store_provider, "r").result() == (8 if said[0] is not None else 7)


async def test_a_value_that_the_step_cannot_have_returned_leaves_its_outcome_unknown(world: World):
    bank = Bank("acme")

    @workflow
    async def flow() -> int:
        return await bank.pay("acme")

    second = await bank.fail_with_unknown_outcomes(world, flow)
    await settle(world, "r", 1, output={"receipt": "r-42"})
    with pytest.raises(RunFailed, match="settled with a value that it cannot have returned") as failed:
        await flow.get_handle(second.store_provider, "r").result()
    assert isinstance(failed.value.__cause__, StepOutcomeUnknown)
    await settle(world, "r", 1, output=9)
    assert await flow.get_handle(second.store_provider, "r").result() == 9
    assert bank.paid == ["acme"]
    assert len(await read_journal(second, "r")) == 1


async def test_two_unknown_outcomes_are_settled_one_after_the_other(world: World):
    bank = Bank("acme", "bolt")

    @workflow
    async def flow() -> list[Any]:
        paid = await asyncio.gather(bank.pay("acme"), bank.pay("bolt"), return_exceptions=True)
        if unknown := [one for one in paid if isinstance(one, Exception)]:
            raise ExceptionGroup("unpaid, perhaps", unknown)
        return paid

    second = await bank.fail_with_unknown_outcomes(world, flow)
    with pytest.raises(SettleRefused, match=r"2 steps named 'pay' of unknown outcome: say which by its number.* 1, 2"):
        await settle(world, "r", "pay", output=1)
    await settle(world, "r", 2, output=20)
    await wait_until_ended(second, "r")
    run, records = await read_run(second, "r"), await read_journal(second, "r")
    assert [record.position for record in find_unsettled_steps(run, records)] == [0]
    await settle(world, "r", "pay", output=10)
    assert await flow.get_handle(second.store_provider, "r").result() == [10, 20]
    assert sorted(bank.paid) == ["acme", "bolt"]


async def test_the_first_of_two_that_ends_the_run_is_settled_and_then_the_other(world: World):
    bank = Bank("acme", "bolt")

    @workflow
    async def flow() -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(bank.pay(name)) for name in ("acme", "bolt")]
        return [task.result() for task in tasks]

    second = await bank.fail_with_unknown_outcomes(world, flow)
    for _ in range(2):
        [unknown] = find_unsettled_steps(await read_run(second, "r"), await read_journal(second, "r"))
        await settle(world, "r", unknown.position + 1, output=unknown.position)
        await wait_until_ended(second, "r")
    assert await flow.get_handle(second.store_provider, "r").result() == [0, 1]
    assert sorted(bank.paid) == ["acme", "bolt"]


async def test_what_the_run_did_because_of_the_unknown_outcome_is_taken_back(world: World):
    bank = Bank("acme")

    @workflow
    async def flow() -> int:
        try:
            receipt = await bank.pay("acme")
        except StepOutcomeUnknown:
            await bank.work("alarm")
            raise
        await bank.work("ship")
        return receipt

    second = await bank.fail_with_unknown_outcomes(world, flow)
    await settle(world, "r", 1, output=5)
    assert await flow.get_handle(second.store_provider, "r").result() == 5
    assert bank.log == ["alarm", "ship"]
    assert [record.name for record in await read_journal(second, "r")] == ["pay", "work"]


async def test_no_once_step_that_the_run_has_come_to_since_is_run_a_second_time(world: World):
    bank = Bank("acme")

    @workflow
    async def flow() -> None:
        unknown: list[Exception] = []
        for name in ("acme", "bolt"):
            try:
                await bank.pay(name)
            except StepOutcomeUnknown as error:
                unknown.append(error)
        if unknown:
            raise unknown[0]

    second = await bank.fail_with_unknown_outcomes(world, flow)
    before = await read_run(second, "r")
    for said in ({"output": 4}, {"happened": False}):
        with pytest.raises(SettleRefused, match=r"`once` steps \(step 2 \('pay'\)\).*holdfast fork r --at 1"):
            await settle(world, "r", 1, **said)
    assert await read_run(second, "r") == before
    assert bank.paid == ["acme", "bolt"]


async def test_a_run_that_failed_under_an_older_version_is_settled_if_nothing_else_is_taken_back(world: World):
    bank = Bank("acme")

    @workflow
    async def flow(alarm: bool) -> int:
        try:
            return await bank.pay("acme")
        except StepOutcomeUnknown:
            if alarm:
                await bank.work("alarm")
            raise

    second = await bank.fail_with_unknown_outcomes(world, flow, True)
    store, run = await world.open_store(), await read_run(second, "r")
    records = await read_journal(second, "r")
    old = replace(run, rewind=run.rewind._replace(once_seqs=(-1,)))  # it told only that there are some
    with pytest.raises(SettleRefused, match=r"`once` steps \(step 2 \('work'\)\)"):
        _narrow_rewind(old, records, records[0])
    assert _narrow_rewind(old, records[:1], records[0]).failed_seqs == (0,)
    await settle_step(store, "r", 1, output=1)
    assert await flow.get_handle(second.store_provider, "r").result() == 1


async def test_an_unknown_outcome_that_the_run_went_on_from_is_not_settled(world: World):
    bank = Bank("acme")

    @workflow
    async def flow() -> None:
        try:
            await bank.pay("acme")
        except StepOutcomeUnknown:
            await bank.work("bad luck")

    await bank.fail_with_unknown_outcomes(world, flow)
    with pytest.raises(SettleRefused, match=r"not what ended the run.*`holdfast fork r --at 1 --output JSON`"):
        await settle(world, "r", 1, output=1)


async def test_only_unknown_outcomes_can_be_settled_and_the_error_names_them(world: World):
    bank = Bank("acme")

    @workflow
    async def flow() -> None:
        await bank.work("first")
        await bank.pay("acme")

    await bank.fail_with_unknown_outcomes(world, flow)
    store = await world.open_store()
    with pytest.raises(SettleRefused, match=r"the outcome of step 1 .* is known.*can be settled in run 'r': step 2"):
        await settle_step(store, "r", 1, output="other")
    with pytest.raises(SettleRefused, match=r"no recorded step 'nothing'\. What can be settled in run 'r': step 2"):
        await settle_step(store, "r", "nothing", output=1)
    with pytest.raises(RunNotFound):
        await settle_step(store, "nobody", 1, output=1)
    with pytest.raises(UsageError, match="say what the step returned"):
        await settle_step(store, "r", 2)
    with pytest.raises(UsageError, match="has no `output`"):
        await settle_step(store, "r", 2, output=None, happened=False)
    with pytest.raises(ValueTooLarge):
        await settle_step(store, "r", 2, output="x" * 200, max_value=100)


async def test_a_failure_in_a_run_that_another_one_has_started_is_settled_there(world: World):
    bank = Bank("acme")

    @workflow(id="the child")
    async def inner() -> int:
        return await bank.pay("acme")

    @workflow
    async def outer() -> int:
        return 10 + await inner()

    second = await bank.fail_with_unknown_outcomes(world, outer, id="p")
    with pytest.raises(SettleRefused, match=r"step 1 .* is run 'the child': settle .*`holdfast retry p`"):
        await settle(world, "p", 1, output=1)
    await settle(world, "the child", 1, output=4)
    await retry_run(second.store_provider, "p")
    assert await outer.get_handle(second.store_provider, "p").result() == 14
    assert bank.paid == ["acme"]


async def test_what_was_undone_cannot_be_settled(world: World):
    bank = Bank("acme")

    @step(compensate=lambda room: bank.log.append(f"not {room}"))
    async def reserve() -> str:
        return "room"

    @workflow
    async def flow() -> None:
        await reserve()
        await bank.pay("acme")

    await bank.fail_with_unknown_outcomes(world, flow)
    assert bank.log == ["not room"]
    with pytest.raises(SettleRefused, match="compensations have undone"):
        await settle(world, "r", 2, output=1)


async def test_a_run_whose_unknown_outcome_is_not_recorded_yet_is_to_be_retried_first(world: World):
    bank = Bank("acme")

    @workflow(max_deliveries=1)
    async def flow() -> int:
        return await bank.pay("acme")

    second = await bank.fail_with_unknown_outcomes(world, flow)
    assert (await read_run(second, "r")).state is RunState.DEAD
    with pytest.raises(SettleRefused, match=r"has not been recorded: `holdfast retry r` has it found out"):
        await settle(world, "r", 1, output=1)
    await retry_run(second.store_provider, "r")
    await wait_until_ended(second, "r")
    await settle(world, "r", 1, output=1)
    assert await flow.get_handle(second.store_provider, "r").result() == 1
    assert bank.paid == ["acme"]


async def test_a_compensation_of_unknown_outcome_is_settled_and_the_rest_is_undone(world: World):
    bank = Bank("acme")

    @step(compensate=lambda name: bank.log.append(f"undo {name}"))
    async def order(name: str) -> str:
        return name

    @step(compensate=bank.pay)
    async def charge(whom: str) -> int:
        return len(whom)

    @workflow
    async def flow() -> None:
        await order("room")
        await charge("acme")
        raise ValueError("no")

    second = await bank.fail_with_unknown_outcomes(world, flow)
    assert bank.log == []
    await settle(world, "r", "pay", output=4)
    with pytest.raises(RunFailed, match="ValueError: no"):
        await flow.get_handle(second.store_provider, "r").result()
    assert (bank.paid, bank.log) == (["acme"], ["undo room"])

"""A deploy changes a type, and what is recorded can no longer be decoded: the run stops, whatever its code catches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_world import VirtualClock, World, describe_journal, get_state, read_journal, wait_until_parked
from pydantic import BaseModel, field_validator
from shared_flows import deploy

from holdfast import RunFailed, Workflow, ask, step, wait_for_signal, workflow
from holdfast.errors import UnreadableRecord
from holdfast.services.journal_files import export_run
from holdfast.services.run_control import retry_run
from holdfast.testing.journal_replay import replay
from waits import wait_until

pytestmark = pytest.mark.asyncio

UNREADABLE_RESULT = r"result of workflow 'child' \(run '.*', #\d of run '.*'\) cannot be read as `int`"

refunds: list[str] = []


@pytest.fixture(autouse=True)
def _no_refunds_yet() -> None:
    refunds.clear()


@step
async def refund(order: str) -> None:
    refunds.append(order)


async def as_text() -> str:
    return "paid"


async def as_number() -> int:
    return 7


async def parked_then_redeployed(
    world: World, clock: VirtualClock, flow: Workflow[..., Any], after: Any, *, records: int = 1
) -> str:
    """Start a run, let it park with so many records, deploy ``after`` in place of its code, and return the run's id."""
    first = await world.open()
    handle = await first.start(flow)
    await wait_until_parked(first, clock, handle, records)
    await first.close()
    deploy(after, flow.name)
    return handle.run_id


async def stops_as_unreadable(world: World, run_id: str, flow: Workflow[..., Any], match: str) -> None:
    """The run fails with a fault, nothing was refunded, and ``replay`` says the same of the code."""
    runtime = await world.open()
    handle = flow.get_handle(runtime.store_provider, run_id)
    before = await describe_journal(runtime, run_id)
    await handle.signal("go")
    with pytest.raises(RunFailed, match=match) as failed:
        await handle.result(timeout=10)
    assert isinstance(failed.value.__cause__, UnreadableRecord)
    assert refunds == []
    assert await describe_journal(runtime, run_id) == before
    replayed = replay(await export_run(runtime._engine.store, run_id))
    assert not replayed.is_match
    assert isinstance(replayed.replay_error, UnreadableRecord)


async def test_the_result_of_a_child_cannot_be_caught(world: World, clock: VirtualClock):
    child = deploy(as_text, "child")

    @workflow
    async def flow() -> str:
        try:
            paid = await child()
        except Exception:
            await refund("order")
            return "refunded"
        await wait_for_signal("go")
        return str(paid)

    run_id = await parked_then_redeployed(world, clock, flow, flow.definition.function)
    child = deploy(as_number, "child")
    await stops_as_unreadable(world, run_id, flow, UNREADABLE_RESULT)


async def test_the_result_of_a_started_run_cannot_be_caught(world: World, clock: VirtualClock):
    child = deploy(as_text, "child")

    @workflow
    async def flow() -> str:
        started = await child.start()
        try:
            paid = await started.result()
        except Exception:
            await refund("order")
            return "refunded"
        await wait_for_signal("go")
        return str(paid)

    run_id = await parked_then_redeployed(world, clock, flow, flow.definition.function, records=2)
    child = deploy(as_number, "child")
    await stops_as_unreadable(world, run_id, flow, UNREADABLE_RESULT)


class Receipt(BaseModel):
    currency: str


class CheckedReceipt(BaseModel):
    currency: str

    @field_validator("currency")
    @classmethod
    def look_up(cls, currency: str) -> str:
        return {"EUR": "euro"}[currency]  # a `KeyError`, which pydantic lets through


@pytest.mark.parametrize("kind", ["step", "child"])
async def test_what_a_validator_raises_cannot_be_caught_either(world: World, clock: VirtualClock, kind: str):
    """Pydantic turns only some exceptions of a validator into its own: any of them means that the code does not fit."""

    async def as_receipt() -> Receipt:
        return Receipt(currency="USD")

    async def as_checked_receipt() -> CheckedReceipt:
        return CheckedReceipt(currency="EUR")

    def deployed(function: Any) -> Any:
        return deploy(function, "child") if kind == "child" else step(name="child")(function)

    charge = deployed(as_receipt)

    @workflow
    async def flow() -> str:
        try:
            paid = await charge()
        except Exception:
            await refund("order")
            return "refunded"
        await wait_for_signal("go")
        return str(paid)

    run_id = await parked_then_redeployed(world, clock, flow, flow.definition.function)
    charge = deployed(as_checked_receipt)
    await stops_as_unreadable(world, run_id, flow, "cannot be read: KeyError: 'USD'")


async def test_a_signal_that_fitted_once_cannot_be_caught(world: World, clock: VirtualClock):
    kind: Any = str

    @step
    async def note(amount: Any) -> None: ...

    @workflow
    async def flow() -> str:
        try:
            amount = await wait_for_signal("amount", type=kind)
        except Exception:
            await refund("order")
            return "refunded"
        await note(amount)
        await wait_for_signal("go")
        return "done"

    first = await world.open()
    handle = await first.start(flow)
    await handle.signal("amount", "7 euros")
    await wait_until_parked(first, clock, handle, 2)
    await first.close()
    kind = int
    await stops_as_unreadable(world, handle.run_id, flow, r"[sS]ignal 'amount' \(#1\) cannot be read as `int`")


async def test_a_signal_that_never_fitted_is_an_error_like_any_other_on_replay_too(world: World, clock: VirtualClock):
    seen: list[str] = []

    @step
    async def complain(why: str) -> None:
        seen.append(why)

    @workflow
    async def flow() -> int:
        while True:
            try:
                return await wait_for_signal("age", type=int)
            except UnreadableRecord as unfit:
                await complain(str(unfit))

    first = await world.open()
    handle = await first.start(flow)
    await handle.signal("age", "old")
    await wait_until_parked(first, clock, handle, 3)
    assert await describe_journal(first, handle) == [
        "signal age", "patch signal 'age' (#1) does not fit its type", "step complain",
    ]  # fmt: skip
    await first.close()
    second = await world.open()
    again = flow.get_handle(second.store_provider, handle.run_id)
    await again.signal("age", 44)
    assert await again.result(timeout=10) == 44
    assert len(seen) == 1
    assert replay(await export_run(second._engine.store, handle.run_id)).is_match


async def test_a_run_that_dies_between_such_a_signal_and_what_it_does_about_it_goes_the_same_way(world: World):
    gate = asyncio.Event()

    @step
    async def complain() -> None:
        await gate.wait()

    @workflow
    async def flow() -> str:
        try:
            await wait_for_signal("age", type=int)
        except UnreadableRecord:
            await complain()
            return "told them"
        return "never"

    first = await world.open()
    handle = await first.start(flow)
    await handle.signal("age", "old")
    await wait_until(lambda: first._engine.held_runs.drivers_by_run_id[handle.run_id].steps.started)
    await world.crash(first)
    gate.set()
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result(timeout=10) == "told them"


async def test_a_retry_after_a_signal_of_the_wrong_type_takes_it_with_the_mended_code(world: World):
    kind: Any = int

    @workflow
    async def flow() -> str:
        return str(await wait_for_signal("age", type=kind))

    runtime = await world.open()
    handle = await runtime.start(flow)
    await handle.signal("age", "old")
    with pytest.raises(RunFailed, match=r"[sS]ignal 'age'"):
        await handle.result(timeout=10)
    kind = str
    await retry_run(runtime.store_provider, handle.run_id)
    assert await handle.result(timeout=10) == "old"


class Trip(BaseModel):
    days: int


class LongTrip(BaseModel):
    days: int
    hotel: str


async def test_an_accepted_answer_is_not_requested_again(world: World, clock: VirtualClock):
    """Asking again would take the answer to the next question for this one's: they look alike in the journal."""
    form: Any = Trip

    @workflow
    async def flow() -> str:
        trip = await ask("Where to?", form=form)
        other = await ask("Where to next?", form=LongTrip)
        await wait_for_signal("go")
        return f"{trip.days} {other.hotel}"

    first = await world.open()
    handle = await first.start(flow)
    for value in ({"days": 3}, {"days": 4, "hotel": "Ritz"}):
        [question] = await wait_until(handle.approvals)
        await handle.approve(question.id, value, by="ann")
    await wait_until_parked(first, clock, handle, 4)
    await first.close()
    form = LongTrip
    await stops_as_unreadable(world, handle.run_id, flow, "does not fit the form of today: hotel: Field required")


async def test_nothing_is_undone_for_a_record_that_cannot_be_decoded(world: World, clock: VirtualClock):
    child = deploy(as_text, "child")

    @step(compensate=refund)
    async def charge(order: str) -> None: ...

    @workflow
    async def flow() -> str:
        await charge("order")
        paid = await child()
        await wait_for_signal("go")
        return str(paid)

    run_id = await parked_then_redeployed(world, clock, flow, flow.definition.function, records=2)
    child = deploy(as_number, "child")
    await stops_as_unreadable(world, run_id, flow, "result of workflow 'child'")


async def test_a_run_that_stopped_so_continues_with_fixed_code(world: World, clock: VirtualClock):
    child = deploy(as_text, "child")

    @workflow
    async def flow() -> str:
        paid = await child()
        await wait_for_signal("go")
        return str(paid)

    run_id = await parked_then_redeployed(world, clock, flow, flow.definition.function)
    child = deploy(as_number, "child")
    await stops_as_unreadable(world, run_id, flow, "result of workflow 'child'")
    child = deploy(as_text, "child")
    runtime = world._open[-1]
    await retry_run(runtime.store_provider, run_id)
    assert await flow.get_handle(runtime.store_provider, run_id).result(timeout=10) == "paid"
    assert await get_state(runtime, run_id) == "completed"
    assert [record.name for record in await read_journal(runtime, run_id)] == ["child", "go"]

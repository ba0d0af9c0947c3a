"""A question that is changed while it is open, on both stores: an answer counts for exactly what was shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from engine_world import (
    FlakyStore,
    VirtualClock,
    World,
    describe_journal,
    read_journal,
    wait_for_state,
    wait_until_ended,
    wait_until_parked,
    wait_until_quiet,
)
from shared_flows import wait_for_approval

from holdfast import ApprovalClosed, ask, step, workflow
from holdfast.core.records import RecordKind
from holdfast.services.approvals import Answer
from holdfast.stores.approvals import AnswerApproval, RequestApproval
from holdfast.stores.operations import Op, OpStatus, ReopenRun

pytestmark = pytest.mark.asyncio


async def test_a_question_that_is_changed_while_it_is_open_is_another_one(world: World, clock: VirtualClock):
    text = "Delete the copy?"

    @workflow
    async def flow() -> bool:
        return await ask(text)

    first = await world.open()
    handle = await first.start(flow)
    shown = await wait_for_approval(handle)
    await wait_until_quiet(first)
    await world.crash(first)
    text = "Delete the original?"
    second = await world.open()
    again = flow.get_handle(second.store_provider, handle.run_id)
    await wait_until_parked(second, clock, again)
    former, now = await again.approvals(all=True)
    assert (former.id, former.question, former.state) == (shown.id, "Delete the copy?", "withdrawn")
    assert (now.question, now.state) == ("Delete the original?", "open")
    instead = rf"asks something else in its place now: 'Delete the original\?'.*approval {now.id}"
    with pytest.raises(ApprovalClosed, match=instead):
        await again.approve(shown.id)
    assert await again.deny(now.id)
    assert await again.result() is False
    record = (await read_journal(second, again))[-1]
    assert (record.kind, record.preview) == (RecordKind.APPROVAL, now.id)


async def test_an_answer_that_waits_is_not_taken_for_the_answer_to_a_changed_question(
    world: World, clock: VirtualClock
):
    text = "Delete the copy?"

    @workflow
    async def flow() -> bool:
        return await ask(text)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until_parked(first, clock, handle, records=1)
    [shown] = await handle.approvals()
    await world.crash(first)
    store = await world.open_store()
    yes = Answer(True, answered_by="ann", answered_at=clock.now()).encode()
    assert await store.commit([AnswerApproval(shown.id, yes, "ann", clock.now())]) == [OpStatus.DONE]
    text = "Delete the original?"
    second = await world.open()
    again = flow.get_handle(second.store_provider, handle.run_id)
    await wait_until_parked(second, clock, again)
    former, now = await again.approvals(all=True)
    assert (former.id, former.state, former.answered_by) == (shown.id, "withdrawn", "ann")
    assert (now.question, now.state) == ("Delete the original?", "open")
    assert "approval approval" not in await describe_journal(second, again)
    assert await again.deny(now.id)
    assert await again.result() is False
    assert (await describe_journal(second, again)).count("approval approval") == 1


async def test_an_answer_that_comes_just_before_the_question_is_changed_keeps_no_run_in_memory(
    world: World, clock: VirtualClock
):
    """Whoever holds the run hears of it, and is about to ask something else."""
    text = "Delete the copy?"

    @workflow
    async def flow() -> bool:
        return await ask(text)

    first = await world.open()
    handle = await first.start(flow)
    shown = await wait_for_approval(handle)
    await wait_until_quiet(first)
    await world.crash(first)
    text = "Delete the original?"
    store, outside = FlakyStore(world.store()), await world.open_store()
    answered: list[Any] = []

    async def answer_just_before(ops: Sequence[Op]) -> None:
        if any(isinstance(op, RequestApproval) for op in ops) and not answered:
            yes = Answer(True, answered_by="ann", answered_at=clock.now()).encode()
            answered.extend(await outside.commit([AnswerApproval(shown.id, yes, "ann", clock.now())]))
            [history] = await outside.get_histories([(await outside.get_run(handle.run_id)).key])
            second._engine.held_runs.drivers_by_run_id[handle.run_id].add_signals(history.signals)

    store.before_commit = answer_just_before
    second = await world.open(store=store)
    again = flow.get_handle(second.store_provider, handle.run_id)
    await wait_until_parked(second, clock, again)
    assert answered == [OpStatus.DONE]
    former, now = await again.approvals(all=True)
    assert [former.state, now.state] == ["withdrawn", "open"]
    assert await again.deny(now.id)
    assert await again.result() is False


async def test_a_question_that_was_changed_and_changed_back_is_asked_again(world: World, clock: VirtualClock):
    text = "Delete the copy?"

    @workflow
    async def flow() -> bool:
        return await ask(text)

    runtime = await world.open()
    handle = await runtime.start(flow)
    shown = await wait_for_approval(handle)
    await wait_until_quiet(runtime)
    await handle.pause()  # so that it takes the answer when it is resumed, by the code of then
    await wait_for_state(runtime, handle, "waiting")
    await handle.approve(shown.id, by="ann")
    await world.crash(runtime)
    text = "Delete the original?"
    runtime = await world.open()
    handle = flow.get_handle(runtime.store_provider, handle.run_id)
    await handle.resume()
    assert (await wait_for_approval(handle)).id != shown.id
    await wait_until_quiet(runtime)
    await world.crash(runtime)
    text = "Delete the copy?"
    runtime = await world.open()
    handle = flow.get_handle(runtime.store_provider, handle.run_id)
    await wait_until_parked(runtime, clock, handle)
    [asked] = await handle.approvals()
    assert (asked.id, asked.question, asked.answered_by) == (shown.id, text, "")
    await handle.deny(asked.id)
    assert await handle.result() is False


async def test_code_that_is_corrected_after_drift_takes_no_answer_to_what_it_does_not_ask(world: World):
    version = 1

    @step
    async def prepare() -> None: ...

    @workflow
    async def flow() -> bool:
        if version == 2:
            await prepare()
        return await ask("Delete the copy?" if version < 3 else "Delete the original?")

    first = await world.open()
    handle = await first.start(flow)
    shown = await wait_for_approval(handle)
    await wait_until_quiet(first)
    await handle.pause()
    await wait_for_state(first, handle, "waiting")
    await handle.approve(shown.id, by="ann")
    await world.crash(first)
    version = 2
    second = await world.open()
    again = flow.get_handle(second.store_provider, handle.run_id)
    await again.resume()
    assert (await wait_until_ended(second, again)).state == "failed"
    version = 3
    assert await (await world.open_store()).commit([ReopenRun(handle.run_id, world.clock.now())]) == [OpStatus.DONE]
    second._engine.wake()
    asked = await wait_for_approval(again)
    assert (asked.question, asked.id == shown.id) == ("Delete the original?", False)
    await again.deny(asked.id)
    assert await again.result() is False

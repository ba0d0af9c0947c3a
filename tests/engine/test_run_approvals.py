"""Questions to people, on both stores: asked once, answered once, and no answer that was taken is ignored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from engine_world import (
    FlakyStore,
    VirtualClock,
    World,
    describe_journal,
    make_unavailable_error,
    read_journal,
    read_run,
    wait_for_state,
    wait_until_ended,
    wait_until_parked,
    wait_until_quiet,
)
from shared_flows import wait_for_approval

from holdfast import (
    ApprovalClosed,
    ApprovalDenied,
    ApprovalNotification,
    ApprovalTimedOut,
    RunFailed,
    UsageError,
    ask,
    step,
    wait_for_signal,
    workflow,
)
from holdfast.core.records import RecordKind
from holdfast.services.approvals import Answer
from holdfast.stores.approvals import AnswerApproval, RequestApproval, WithdrawApproval
from holdfast.stores.operations import AppendRecord, Op, OpStatus, ParkRun, ReopenRun
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def test_a_run_that_asks_is_parked_and_woken_by_the_answer(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> bool:
        return await ask("Go?")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    [asked] = await handle.approvals()
    assert (await handle.info()).waits_for == f"approval {asked.id}"
    assert not runtime._engine.held_runs.drivers
    assert await handle.approve(asked.id, by="ann")
    assert await handle.result() is True
    begun, record = await read_journal(runtime, handle)
    assert (begun.kind, begun.name) == (RecordKind.STEP, "approval start")
    assert (record.kind, record.name, record.preview) == (RecordKind.APPROVAL, "approval", asked.id)
    answer = Answer.from_payload(record.payload or b"")
    assert (answer.approved, answer.answered_by, answer.answered_at) == (True, "ann", clock.now())


async def test_asking_costs_a_write_and_a_record_and_the_answer_one(in_memory: World):
    @workflow
    async def flow() -> bool:
        return await ask("Go?")

    store = FlakyStore(in_memory.store())
    runtime = await in_memory.open(store=store)
    handle = await runtime.start(flow)
    asked = await wait_for_approval(handle)
    await wait_until_quiet(runtime)
    await handle.approve(asked.id)
    await handle.result()
    kinds = [type(op).__name__ for ops in store.commits for op in ops]
    assert kinds.count("RequestApproval") == 1
    assert kinds.count("AppendRecord") == 2
    assert "WithdrawApproval" not in kinds


async def test_the_next_worker_asks_the_same_question_and_people_are_notified_once(world: World, clock: VirtualClock):
    notices: list[str] = []

    def tell(notice: ApprovalNotification) -> None:
        notices.append(notice.id)

    @workflow
    async def flow() -> bool:
        return await ask("Go?", timeout=3600, notify=tell)

    first = await world.open()
    handle = await first.start(flow)
    asked = await wait_for_approval(handle)
    await wait_until(lambda: notices)

    async def is_recorded() -> bool:
        return "step approval notification" in await describe_journal(first, handle)

    await wait_until(is_recorded)
    await world.crash(first)
    clock.advance(60)
    second = await world.open()
    again = flow.get_handle(second.store_provider, handle.run_id)
    await wait_until_parked(second, clock, again)
    [same] = await again.approvals(all=True)
    assert (same.id, same.requested_at, same.expires_at) == (asked.id, asked.requested_at, asked.expires_at)
    assert notices == [asked.id]
    await again.approve(asked.id)
    assert await again.result() is True
    assert notices == [asked.id]


async def test_an_answer_while_no_worker_runs_is_there_for_the_next(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> str:
        return await ask("Where?", choices=["a", "b"])

    first = await world.open()
    handle = await first.start(flow)
    asked = await wait_for_approval(handle)
    await world.crash(first)
    store = await world.open_store()
    payload = Answer(True, "b", answered_by="ann", answered_at=clock.now()).encode()
    assert await store.commit([AnswerApproval(asked.id, payload, "ann", clock.now())]) == [OpStatus.DONE]
    second = await world.open()
    again = flow.get_handle(second.store_provider, handle.run_id)
    assert await again.result() == "b"
    assert (await describe_journal(second, again)).count("approval approval") == 1


# The time-out against the answer


async def test_a_question_that_is_withdrawn_first_takes_no_answer(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> bool:
        return await ask("Go?", timeout=60)

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle, records=1)
    [asked] = await handle.approvals()
    clock.advance(60)
    with pytest.raises(RunFailed, match=r"nobody answered 'Go\?'") as failed:
        await handle.result()
    assert isinstance(failed.value.__cause__, ApprovalTimedOut)
    with pytest.raises(ApprovalClosed, match=r"has failed\. Nobody waits for the answer"):
        await handle.approve(asked.id)
    assert await describe_journal(runtime, handle) == ["step approval start", "timer 60 s", "step approval timeout"]


async def test_an_answer_that_was_taken_before_the_withdrawal_counts(world: World, clock: VirtualClock):
    """The timer has fired, and the run is about to give up: the answer comes just before it has."""
    store, outside = FlakyStore(world.store()), await world.open_store()

    @workflow
    async def flow() -> bool:
        return await ask("Go?", timeout=60)

    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle, records=1)
    [asked] = await handle.approvals()
    answered: list[Any] = []

    async def answer_just_before(ops: Sequence[Op]) -> None:
        if any(isinstance(op, WithdrawApproval) for op in ops) and not answered:
            payload = Answer(True, answered_by="ann", answered_at=clock.now()).encode()
            answered.extend(await outside.commit([AnswerApproval(asked.id, payload, "ann", clock.now())]))

    store.before_commit = answer_just_before
    clock.advance(60)
    assert await handle.result() is True
    assert answered == [OpStatus.DONE]
    names = await describe_journal(runtime, handle)
    assert names[:2] == ["step approval start", "timer 60 s"]
    assert "approval approval" in names
    [closed] = await handle.approvals(all=True)
    assert (closed.state, closed.answered_by) == ("answered", "ann")


async def test_an_answer_that_was_taken_counts_also_if_the_process_dies_before_the_run_sees_it(
    world: World, clock: VirtualClock
):
    """The withdrawal is refused, that is recorded, and the process dies: the next one takes the answer up."""
    store, outside = FlakyStore(world.store()), await world.open_store()

    @workflow
    async def flow() -> bool:
        return await ask("Go?", timeout=60)

    first = await world.open(store=store)
    handle = await first.start(flow)
    await wait_until_parked(first, clock, handle, records=1)
    [asked] = await handle.approvals()
    answered: list[Any] = []
    stop = asyncio.Event()

    async def answer_and_stop(ops: Sequence[Op]) -> None:
        if any(isinstance(op, WithdrawApproval) for op in ops) and not answered:
            payload = Answer(True, answered_by="ann", answered_at=clock.now()).encode()
            answered.extend(await outside.commit([AnswerApproval(asked.id, payload, "ann", clock.now())]))
        if any(isinstance(op, AppendRecord) and op.record.kind is RecordKind.APPROVAL for op in ops):
            stop.set()
            await asyncio.Event().wait()

    store.before_commit = answer_and_stop
    clock.advance(60)
    await wait_until(stop.is_set)
    await world.crash(first)
    second = await world.open()
    again = flow.get_handle(second.store_provider, handle.run_id)
    assert await again.result() is True
    assert len([one for one in await describe_journal(second, again) if one == "approval approval"]) == 1


async def test_a_process_that_dies_between_the_withdrawal_and_its_record_does_no_harm(
    world: World, clock: VirtualClock
):
    """The question is open again, for a moment; an answer that comes then counts."""
    store = FlakyStore(world.store())

    @workflow
    async def flow() -> str:
        try:
            return str(await ask("Go?", timeout=60))
        except ApprovalTimedOut:
            return "nobody"

    first = await world.open(store=store)
    handle = await first.start(flow)
    await wait_until_parked(first, clock, handle, records=1)
    withdrawn = asyncio.Event()

    async def stop_before_the_record(ops: Sequence[Op]) -> None:
        if any(isinstance(op, AppendRecord) and op.record.name == "approval timeout" for op in ops):
            withdrawn.set()
            await asyncio.Event().wait()

    store.before_commit = stop_before_the_record
    clock.advance(60)
    await wait_until(withdrawn.is_set)
    [closed] = await handle.approvals(all=True)
    assert closed.state == "withdrawn"
    await world.crash(first)
    second = await world.open()
    again = flow.get_handle(second.store_provider, handle.run_id)
    assert await again.result() == "nobody"
    [closed] = await again.approvals(all=True)
    assert closed.state == "withdrawn"


async def test_a_park_is_refused_while_an_answer_is_there(world: World, clock: VirtualClock):
    store, outside = FlakyStore(world.store()), await world.open_store()

    @workflow
    async def flow() -> bool:
        return await ask("Go?")

    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    asked = await wait_for_approval(handle)
    answered: list[Any] = []

    async def answer_just_before(ops: Sequence[Op]) -> None:
        if any(isinstance(op, ParkRun) for op in ops) and not answered:
            payload = Answer(True, answered_by="ann", answered_at=clock.now()).encode()
            answered.extend(await outside.commit([AnswerApproval(asked.id, payload, "ann", clock.now())]))

    store.before_commit = answer_just_before
    await wait_until_quiet(runtime)
    clock.advance(1.1)
    runtime._engine._idle_runs.sweep(min_count=0)
    assert await handle.result() is True
    assert answered == [OpStatus.DONE]


async def test_a_store_that_fails_for_a_while_loses_neither_question_nor_answer(world: World):
    store = FlakyStore(world.store())
    failures = [RequestApproval, RequestApproval, AppendRecord]

    def fails(ops: Sequence[Op]) -> BaseException | None:
        for kind in failures:
            if any(isinstance(op, kind) for op in ops):
                failures.remove(kind)
                return make_unavailable_error()
        return None

    @workflow
    async def flow() -> bool:
        return await ask("Go?")

    store.fail_before = fails
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    asked = await wait_for_approval(handle)
    await handle.approve(asked.id)
    assert await handle.result() is True
    assert not failures
    assert await describe_journal(runtime, handle) == ["step approval start", "approval approval"]


# With the rest of the engine


async def test_cancelling_withdraws_the_question_and_later_answers_are_refused(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> str:
        task = asyncio.ensure_future(ask("Go?"))
        await wait_for_signal("never mind")
        task.cancel()
        return await wait_for_signal("end")

    runtime = await world.open()
    handle = await runtime.start(flow)
    asked = await wait_for_approval(handle)
    await handle.signal("never mind")

    async def is_withdrawn() -> bool:
        return (await handle.approvals(all=True))[0].state == "withdrawn"

    await wait_until(is_withdrawn)
    with pytest.raises(ApprovalClosed, match="does not wait for it any more"):
        await handle.approve(asked.id)
    await handle.signal("end", "done")
    assert await handle.result() == "done"


async def test_a_paused_run_takes_its_answer_when_it_is_resumed(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> bool:
        return await ask("Go?")

    runtime = await world.open()
    handle = await runtime.start(flow)
    asked = await wait_for_approval(handle)
    await wait_until_parked(runtime, clock, handle)
    await handle.pause()
    assert await handle.approve(asked.id)
    await wait_until_quiet(runtime)
    assert (await read_run(runtime, handle)).state == "waiting"
    await handle.resume()
    assert await handle.result() is True


async def test_a_retry_after_a_no_asks_again_and_keeps_what_came_before(world: World):
    done: list[str] = []

    @step
    async def prepare() -> str:
        done.append("prepared")
        return "ready"

    @workflow
    async def flow() -> str:
        await prepare()
        return await ask("Where?", choices=["a"], timeout=60)

    runtime = await world.open()
    handle = await runtime.start(flow)
    asked = await wait_for_approval(handle)
    await handle.deny(asked.id, reason="not yet")
    with pytest.raises(RunFailed) as failed:
        await handle.result()
    assert isinstance(failed.value.__cause__, ApprovalDenied)
    world.clock.advance(3600)  # longer than it had
    store = await world.open_store()
    assert await store.commit([ReopenRun(handle.run_id, world.clock.now())]) == [OpStatus.DONE]
    runtime._engine.wake()
    again = await wait_for_approval(handle)
    assert again.expires_at.timestamp() == world.clock.now() + 60
    await handle.approve(again.id, "a")
    assert (await wait_until_ended(runtime, handle)).state == "completed"
    assert done == ["prepared"]


async def test_workflow_code_can_ask_in_a_child_but_not_answer_for_it(world: World):
    @workflow(id="asker")
    async def child() -> bool:
        return await ask("Go?")

    @workflow
    async def flow() -> Any:
        handle = await child.start()
        try:
            await handle.approvals()
        except UsageError as refused:
            return [str(refused), await handle.result()]

    runtime = await world.open()
    handle = await runtime.start(flow)
    asker = child.get_handle(runtime.store_provider, "asker")
    asked = await wait_for_approval(asker)
    await asker.approve(asked.id)
    refused, answer = await handle.result()
    assert "cannot read other runs, nor answer their approvals" in refused
    assert answer is True


async def test_a_question_with_a_large_form_and_a_large_answer_survives(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> int:
        return len(await ask("Text? " + "x" * 100_000, form=str))

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    [asked] = await handle.approvals()
    assert len(asked.question) == 100_006
    await handle.approve(asked.id, "y" * 300_000)
    assert await handle.result() == 300_000
    [closed] = await handle.approvals(all=True)
    assert closed.answer is not None
    assert len(closed.answer.value) == 300_000


async def test_a_question_is_withdrawn_when_its_run_fails_meanwhile(world: World):
    @workflow
    async def flow() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask("Go?"))
            await wait_for_signal("fail")
            raise ValueError("failed beside it")

    runtime = await world.open()
    handle = await runtime.start(flow)
    asked = await wait_for_approval(handle)
    await handle.signal("fail")
    await wait_for_state(runtime, handle, "failed")
    [closed] = await handle.approvals(all=True)
    assert (closed.id, closed.state) == (asked.id, "withdrawn")


async def test_people_are_notified_of_a_question_when_it_is_in_the_store(world: World):
    """Whoever answers at once, from within the notice, is heard."""
    store = FlakyStore(world.store())
    slow = asyncio.Event()

    async def wait_with_the_question(ops: Sequence[Op]) -> None:
        if any(isinstance(op, RequestApproval) for op in ops):
            await slow.wait()

    answered: list[bool] = []

    async def answer_at_once(notice: ApprovalNotification) -> None:
        answered.append(await handle.approve(notice.id, by=notice.kind))

    @workflow
    async def flow() -> bool:
        return await ask("Go?", notify=answer_at_once)

    store.before_commit = wait_with_the_question
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await asyncio.sleep(0.05)
    assert not answered
    slow.set()
    assert await handle.result() is True
    assert answered == [True]

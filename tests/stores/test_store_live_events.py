"""What is told of steps in flight: it comes and goes with them, and whoever follows a run misses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from store_values import (
    DONE,
    FENCED,
    REFUSED,
    append,
    claim_run,
    commit_ops,
    finish,
    get_state,
    new_run,
    park,
    release,
    rewind,
    start_child,
    start_claimed_run,
    start_run,
)

from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores.approvals import ApprovalFilter, ApprovalRequest, RemindApproval, RequestApproval, WithdrawApproval
from holdfast.stores.contract import MAX_INLINE_BYTES, Store
from holdfast.stores.live_events import APPROVAL_REMINDED, APPROVAL_REQUESTED, APPROVAL_WITHDRAWN, REOPENED, RunUpdates
from holdfast.stores.operations import AppendLiveEvents, AppendRecord, ForkRun, LiveEvent, ReopenRun, Run

pytestmark = pytest.mark.asyncio


def publish(run: Run, position: int, *numbers: int, stream: str = "1", kind: str = "text") -> AppendLiveEvents:
    events = [LiveEvent(position, stream, number, kind, b'"%d"' % number, 1_000_005.0) for number in numbers]
    return AppendLiveEvents(run.key, run.epoch, tuple(events))


def outcome(run: Run, seq: int, **fields: Any) -> AppendRecord:
    return append(run, seq, **fields)._replace(clear_live_events=True)


def ask(run: Run, position: int) -> RequestApproval:
    return RequestApproval(run.key, run.epoch, position, f"{run.id}-{position}", ApprovalRequest("may I?"), 1_000_006.0)


async def follow(
    store: Store, run_id: str = "r", after_seq: int = -1, after_notice: int = 0, **options: int
) -> RunUpdates:
    feed = await store.get_run_updates(run_id, after_seq, after_notice, **options)
    assert feed is not None
    return feed


async def list_events(store: Store, run_id: str = "r") -> list[tuple[int, str, int]]:
    return [(event.position, event.stream, event.number) for _, event in (await follow(store, run_id)).live_events]


async def list_store_events(store: Store, run_id: str = "r") -> list[tuple[int, str, Any]]:
    """The live events that the store wrote itself."""
    events = [event for _, event in (await follow(store, run_id)).live_events]
    return [(event.position, event.kind, json.loads(event.data)) for event in events if event.stream == ""]


async def test_live_events_are_stored_as_they_were_published(store: Store, second_store: Store):
    run = await start_claimed_run(store)
    event = LiveEvent(2, "1.0", 0, "started", b'{"model":"x"}', 1_000_005.5)
    assert await commit_ops(store, AppendLiveEvents(run.key, run.epoch, (event,))) == [DONE]
    [(number, found)] = (await follow(second_store)).live_events
    assert (number > 0, found) == (True, event)


async def test_numbers_rise_and_are_never_used_twice(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, publish(run, 0, 1, 2), publish(run, 1, 1))
    before = [number for number, _ in (await follow(store)).live_events]
    assert before == sorted(set(before))
    await commit_ops(store, outcome(run, 0, position=0), outcome(run, 1, position=1), publish(run, 2, 1))
    [(after, _)] = (await follow(store)).live_events
    assert after > max(before)


async def test_a_repeated_commit_keeps_each_notice_once(store: Store):
    run = await start_claimed_run(store)
    ops = (publish(run, 0, 1, 2), publish(run, 0, 1, stream="2"))
    await commit_ops(store, *ops)
    before = await follow(store)
    assert await commit_ops(store, *ops, publish(run, 0, 2, 3)) == [DONE] * 3
    after = await follow(store)
    assert after.live_events[:3] == before.live_events
    assert await list_events(store) == [(0, "1", 1), (0, "1", 2), (0, "2", 1), (0, "1", 3)]


async def test_a_zombie_publishes_nothing(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, publish(run, 0, 1), release(run))
    assert await commit_ops(store, publish(run, 0, 2)) == [FENCED]
    taken = await claim_run(store)
    assert await commit_ops(store, publish(run, 0, 2), publish(taken, 0, 1, stream="2")) == [FENCED, DONE]
    assert await list_events(store) == [(0, "1", 1), (0, "2", 1)]


async def test_the_record_of_a_step_deletes_its_live_events_and_no_others(store: Store):
    run = await start_claimed_run(store)
    other = await start_run(store, "s", claim_as=run.owner)
    await commit_ops(store, publish(run, 0, 1, 2), publish(run, 1, 1), publish(other, 0, 1), ask(run, 0))
    assert await commit_ops(store, append(run, 0, position=0)) == [DONE]
    assert len(await list_events(store)) == 4, "unless the record says that there may be some, nobody looks"
    assert await commit_ops(store, outcome(run, 1, position=0)) == [DONE]
    assert await list_events(store) == [(1, "1", 1), (0, "", 1)]
    assert await list_events(store, "s") == [(0, "1", 1)]


async def test_notices_that_were_repeated_with_their_record_go_again(store: Store):
    run = await start_claimed_run(store)
    ops = (publish(run, 0, 1), outcome(run, 0, position=0))
    assert await commit_ops(store, *ops) == await commit_ops(store, *ops) == [DONE, DONE]
    assert await list_events(store) == []


async def test_a_fenced_record_clears_nothing(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, release(run))
    taken = await claim_run(store)
    await commit_ops(store, publish(taken, 0, 1))
    assert await commit_ops(store, outcome(run, 0, position=0)) == [FENCED]
    assert await list_events(store) == [(0, "1", 1)]


async def test_a_run_that_has_ended_has_no_steps_in_flight(store: Store, kill_worker: Callable[[int], None]):
    run = await start_claimed_run(store, max_deliveries=1)
    assert run.owner is not None
    ended = await start_run(store, "s", claim_as=run.owner)
    await commit_ops(store, publish(run, 0, 1), publish(ended, 4, 1), ask(ended, 2), ask(run, 2))
    await commit_ops(store, park(ended, 1.0))
    assert await list_events(store, "s") == [(4, "1", 1), (2, "", 1)], "it goes on where it was"
    ended = await claim_run(store, run.owner)
    assert await commit_ops(store, publish(ended, 5, 1), finish(ended, RunState.CANCELLED)) == [DONE, DONE]
    assert await list_events(store, "s") == [(2, "", 1)]
    kill_worker(run.owner)
    await store.workers.reap_dead()
    assert await get_state(store) is RunState.DEAD
    assert await list_events(store) == [(2, "", 1)]


async def test_a_run_that_requests_publishes_and_ends_in_one_commit_leaves_nothing_open(store: Store):
    run = await start_claimed_run(store)
    first, second, third, fourth = [await start_run(store, name, claim_as=run.owner) for name in "stuv"]
    assert await commit_ops(store, publish(run, 0, 1), finish(run)) == [DONE, DONE]
    assert await commit_ops(store, finish(first), publish(second, 0, 1), finish(second)) == [DONE] * 3
    assert await commit_ops(store, finish(third), ask(fourth, 1), finish(fourth)) == [DONE] * 3
    assert [await list_events(store, name) for name in ("r", "t", "v")] == [[], [], [(1, "", 1)]]
    assert await store.list_approvals(ApprovalFilter()) == []


async def test_a_takeover_leaves_the_notices_until_the_record_comes(store: Store, kill_worker: Callable[[int], None]):
    run = await start_claimed_run(store)
    assert run.owner is not None
    await commit_ops(store, publish(run, 0, 1))
    kill_worker(run.owner)
    await store.workers.reap_dead()
    assert await list_events(store) == [(0, "1", 1)]
    taken = await claim_run(store)
    await commit_ops(store, publish(taken, 0, 1, stream="2"), outcome(taken, 0, position=0))
    assert await list_events(store) == []


# What stores tell themselves


async def test_followers_of_a_run_see_its_approvals(store: Store):
    run = await start_claimed_run(store)
    remind = RemindApproval(run.key, run.epoch, "r-3", 1, "bob", 1_000_007.0)
    withdraw = WithdrawApproval(run.key, run.epoch, "r-3", 1_000_008.0)
    for op in (ask(run, 3), remind, withdraw):
        assert await commit_ops(store, op, op) == [DONE, DONE]
    assert await commit_ops(store, remind, ask(run, 3), release(run)) == [REFUSED, DONE, DONE]
    run = await claim_run(store)
    assert await commit_ops(store, ask(run, 3)) == [DONE]
    assert await list_store_events(store) == [
        (3, APPROVAL_REQUESTED, "r-3"),
        (3, APPROVAL_REMINDED, {"id": "r-3", "assignee": "bob", "reminder_count": 1}),
        (3, APPROVAL_WITHDRAWN, "r-3"),
        (3, APPROVAL_REQUESTED, "r-3"),
    ]
    assert [event.at for _, event in (await follow(store)).live_events] == [
        1_000_006.0, 1_000_007.0, 1_000_008.0, 1_000_006.0,
    ]  # fmt: skip
    await commit_ops(store, outcome(run, 0, kind=RecordKind.APPROVAL, position=3), finish(run))
    assert len(await list_store_events(store)) == 4


async def test_followers_of_a_run_see_how_far_a_retry_went_back(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 0), append(run, 1), append(run, 2, ok=False))
    await commit_ops(store, finish(run, RunState.FAILED, rewind=rewind(2)))
    await commit_ops(store, ReopenRun("r", 1_000_009.0))
    assert await list_store_events(store) == [(-1, REOPENED, 1)]
    taken = await claim_run(store)
    await commit_ops(
        store, finish(taken, RunState.FAILED, rewind=rewind(0, command_count=0)), ReopenRun("r", 1_000_010.0)
    )
    assert await list_store_events(store) == [(-1, REOPENED, 1), (-1, REOPENED, -1)]
    assert await commit_ops(store, ReopenRun("r", 1_000_011.0)) != [DONE]
    assert len(await list_store_events(store)) == 2


async def test_runs_that_are_reopened_with_another_one_have_the_event_too(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, start_child(run, "c", 0, claim_as=run.owner))
    child = await store.get_run("c")
    assert child is not None
    await commit_ops(store, append(child, 0), finish(child, RunState.FAILED, rewind=rewind(5)))
    [signal] = (await store.get_histories([run.key]))[0].signals
    await commit_ops(store, append(run, 0, kind=RecordKind.CHILD, position=0, ok=False, consume=signal.id))
    await commit_ops(store, finish(run, RunState.FAILED, rewind=rewind(0, command_count=1)), ReopenRun("r", 1.0))
    assert (await list_store_events(store), await list_store_events(store, "c")) == (
        [(-1, REOPENED, -1)],
        [(-1, REOPENED, 0)],
    )


async def test_a_fork_begins_with_no_notices(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, publish(run, 0, 1), ask(run, 2), append(run, 0), ForkRun("r", new_run("f"), 9))
    assert (await follow(store, "f")).live_events == []
    assert len((await follow(store, "f")).records) == 1


# Following


async def test_updates_start_after_the_given_cursors(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 0), append(run, 1), append(run, 4), publish(run, 7, 1, 2, 3))
    whole = await follow(store)
    assert [record.seq for record in whole.records] == [0, 1, 4]
    [history] = await store.get_histories([run.key])
    assert whole.records == history.records
    assert whole.run == await store.get_run("r")
    numbers = [number for number, _ in whole.live_events]
    behind = await follow(store, "r", 1, numbers[1])
    assert [record.seq for record in behind.records] == [4]
    assert [number for number, _ in behind.live_events] == numbers[2:]
    few = await follow(store, "r", 0, numbers[0], limit=1)
    assert [record.seq for record in few.records] == [1]
    assert [number for number, _ in few.live_events] == numbers[1:2]
    none = await follow(store, "r", 4, numbers[-1])
    assert (none.records, none.live_events) == ([], [])


async def test_a_run_that_is_not_there_has_no_feed(store: Store):
    assert await store.get_run_updates("none", -1, 0) is None


async def test_a_feed_has_large_records_and_the_large_result_of_a_run_that_has_ended(store: Store):
    large = b'"' + b"x" * (MAX_INLINE_BYTES + 1) + b'"'
    run = await start_claimed_run(store, inputs=large)
    await commit_ops(store, append(run, 0, payload=large))
    assert [record.payload for record in (await follow(store)).records] == [large]
    await commit_ops(store, finish(run, output=large))
    ended = (await follow(store)).run
    assert (ended.inputs, ended.output) == (large, large)


async def test_the_last_record_of_a_name_is_the_newest_that_is_ok(store: Store):
    run = await start_claimed_run(store)
    assert await store.get_last_record("r", "plan") is None
    large = b'"' + b"x" * (MAX_INLINE_BYTES + 1) + b'"'
    await commit_ops(
        store,
        append(run, 0, name="plan", payload=b"1"),
        append(run, 1, name="plan", payload=large),
        append(run, 2, name="plan", ok=False),
        append(run, 3, name="plans"),
    )
    found = await store.get_last_record("r", "plan")
    assert found is not None
    assert (found.seq, found.payload) == (1, large)
    assert await store.get_last_record("none", "plan") is None

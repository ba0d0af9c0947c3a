"""Starts that join a run by a key: one at a time, and the last inputs of many."""

from __future__ import annotations

from typing import Any

import pytest
from queue_values import QUEUE, claim_ids, declare_limited_queue, start_queued_runs
from store_values import (
    CLAIM_FILTER,
    Clock,
    commit_ops,
    finish,
    link,
    list_signals,
    new_run,
    new_worker,
    park,
    read_run,
    release,
    start_run,
)

from holdfast.core.states import RunState
from holdfast.stores.contract import MAX_INLINE_BYTES, Store
from holdfast.stores.operations import CancelRun, OpStatus, ReopenRun, StartResult, StartRun

pytestmark = pytest.mark.asyncio


async def begin(
    store: Store, run_id: str, dedup: str = "d", *, claim_as: int | None = None, **fields: Any
) -> StartResult:
    [answer] = await commit_ops(store, StartRun(new_run(run_id, dedup_key=dedup, **fields), claim_as))
    assert isinstance(answer, StartResult)
    return answer


async def test_a_start_joins_the_unfinished_run_with_its_key_whatever_its_inputs(store: Store, second_store: Store):
    worker = await store.workers.register(new_worker(), 1e6)
    first = await begin(store, "a")
    assert (first.is_new, first.is_deduplicated) == (True, False)
    joined = await begin(second_store, "b", inputs=b'{"other":1}', digest=b"other", workflow="mail", claim_as=worker)
    assert (joined.is_new, joined.is_deduplicated, joined.run) == (False, True, first.run)
    assert await store.get_run("b") is None
    assert (await begin(store, "c", "else")).is_new
    assert (await begin(store, "e", queue="slow")).is_new  # another queue, another key
    assert (await begin(store, "f", "")).is_new
    assert (await begin(store, "g", "")).is_new
    await claim_ids(store, worker)
    assert (await begin(store, "h")).run.id == "a"  # also while it runs
    await commit_ops(store, park(await read_run(store, "a"), None, "go"))
    assert (await begin(store, "i")).run.id == "a"


async def test_once_a_run_has_ended_its_key_is_free_also_after_a_retry(store: Store, clock: Clock):
    worker = await store.workers.register(new_worker(), 1e6)
    held = await begin(store, "a", claim_as=worker)
    assert held.run.state is RunState.RUNNING
    await commit_ops(store, finish(held.run, RunState.FAILED))
    fresh = await begin(store, "b")
    assert fresh.is_new
    assert await commit_ops(store, ReopenRun("a", clock.now)) == [OpStatus.DONE]
    assert (await begin(store, "c")).run.id == "b"
    await commit_ops(store, CancelRun("b", clock.now))
    assert (await begin(store, "d")).is_new
    assert sorted(await claim_ids(store, worker)) == ["a", "d"]


async def test_of_starts_in_one_batch_the_first_is_the_run(store: Store):
    ops = [StartRun(new_run(name, dedup_key="d")) for name in "abc"]
    for _ in range(2):  # also when it is handed in again
        answers = await commit_ops(store, *ops)
        assert [(one.run.id, one.is_new, one.is_deduplicated) for one in answers] == [
            ("a", True, False),
            ("a", False, True),
            ("a", False, True),
        ]
    held = await read_run(store, "a")
    assert held.state is RunState.PENDING
    answers = await commit_ops(store, CancelRun("a", store.now()), ops[1], ops[2])
    assert [one.run.id for one in answers[1:]] == ["b", "b"]


async def test_a_repeated_start_is_answered_with_the_run_that_it_has_started(store: Store, clock: Clock):
    first = StartRun(new_run("a", dedup_key="d"))
    await commit_ops(store, first)
    await commit_ops(store, CancelRun("a", clock.now))
    assert (await begin(store, "b")).is_new
    [answer] = await commit_ops(store, first)
    assert (answer.run.id, answer.is_new, answer.is_deduplicated) == ("a", True, False)


async def test_a_start_under_an_existing_id_finds_that_run_and_joins_no_other(store: Store, clock: Clock):
    await begin(store, "a")
    await commit_ops(store, CancelRun("a", clock.now))
    assert (await begin(store, "b")).is_new
    found = await begin(store, "a", seed=b"another")
    assert (found.run.id, found.is_new, found.is_deduplicated) == ("a", False, False)


async def test_the_run_that_is_joined_is_awaited_like_one_that_was_started(store: Store):
    worker = await store.workers.register(new_worker(), 1e6)
    child = await begin(store, "child", claim_as=worker)
    parent = await start_run(store, "parent", claim_as=worker)
    [answer] = await commit_ops(store, StartRun(new_run("mine", dedup_key="d", parent="parent"), link=link(parent, 2)))
    assert (answer.run.id, answer.is_linked, answer.is_deduplicated) == ("child", True, True)
    await commit_ops(store, finish(child.run))
    assert [(one.name, one.position) for one in await list_signals(store, parent)] == [("completed", 2)]


async def test_a_key_joins_also_where_the_workflow_is_switched_off(store: Store):
    await begin(store, "a")
    await store.disabled_workflows.disable("etl")
    assert (await begin(store, "b")).run.id == "a"
    assert await commit_ops(store, StartRun(new_run("c", dedup_key="else"))) == [OpStatus.WORKFLOW_DISABLED]


async def test_a_run_of_a_limited_queue_is_joined_while_it_waits(store: Store):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "busy")
    assert await claim_ids(store, worker) == ["busy"]
    for name in ("a", "b"):
        assert (await begin(store, name, queue=QUEUE)).run.id == "a"
    await commit_ops(store, finish(await read_run(store, "busy")))
    assert await claim_ids(store, worker) == ["a"]
    assert await claim_ids(store, worker) == []


# Debouncing


async def put_off(
    store: Store, clock: Clock, run_id: str, inputs: bytes, by: float = 5.0, **fields: Any
) -> StartResult:
    return await begin(
        store, run_id, inputs=inputs, digest=b"of-" + inputs[:9], created_at=clock.now,
        available_at=clock.now + by, **{"max_debounce_s": 12.0, **fields},
    )  # fmt: skip


@pytest.mark.parametrize("queue", ["default", QUEUE])
async def test_until_it_begins_each_start_replaces_the_inputs_and_puts_it_off(store: Store, clock: Clock, queue: str):
    worker = await declare_limited_queue(store, 1)
    began = clock.now
    assert (await put_off(store, clock, "a", b"1", queue=queue)).is_new
    clock.advance(4)
    second = await put_off(store, clock, "b", b"2", queue=queue)
    assert (second.run.id, second.is_new, second.is_deduplicated) == ("a", False, True)
    assert (second.run.inputs, second.run.digest, second.run.wake_at) == (b"2", b"of-2", began + 9)
    assert second.run == await read_run(store, "a")
    clock.advance(4)
    assert await claim_ids(store, worker) == []
    third = await put_off(store, clock, "c", b"3", version="", queue=queue)
    assert third.run.wake_at == began + 12  # and no later
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) == began + 12
    clock.advance(4)
    [held] = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    assert (held.id, held.inputs, held.created_at) == ("a", b"3", began)
    fourth = await put_off(store, clock, "d", b"4", queue=queue)
    assert (fourth.is_new, fourth.run.id) == (True, "d")  # the first has begun, with what it was given
    await commit_ops(store, release(held))
    assert (await put_off(store, clock, "e", b"5", queue=queue)).run.id == "d"
    assert (await read_run(store, "a")).inputs == b"3"


async def test_large_inputs_are_replaced_by_others(store: Store, clock: Clock):
    worker = await store.workers.register(new_worker(), 1e6)
    large = [b'"' + bytes([letter]) * (MAX_INLINE_BYTES + 9) + b'"' for letter in b"xyz"]
    await put_off(store, clock, "a", large[0])
    await start_run(store, "same", inputs=large[0])  # kept once for both
    assert (await put_off(store, clock, "b", large[1])).run.inputs == large[1]
    assert (await put_off(store, clock, "c", b"small")).run.inputs == b"small"
    assert (await put_off(store, clock, "d", large[2])).run.inputs == large[2]
    clock.advance(5)
    taken = {run.id: run.inputs for run in await store.claims.claim(worker, **CLAIM_FILTER, limit=9)}
    assert taken == {"a": large[2], "same": large[0]}


async def test_only_debouncing_starts_of_the_same_workflow_change_a_delayed_run(store: Store, clock: Clock):
    first = (await put_off(store, clock, "a", b"1")).run
    assert (await put_off(store, clock, "b", b"2", by=9.0, workflow="mail")).run == first
    assert (await put_off(store, clock, "c", b"3", by=9.0, max_debounce_s=None)).run == first
    newer = (await put_off(store, clock, "d", b"4", by=1.0, version="2")).run
    assert (newer.id, newer.inputs, newer.version, newer.wake_at) == ("a", b"4", "2", clock.now + 1)
    plain = await begin(store, "plain", "p", inputs=b"1")
    assert (await put_off(store, clock, "e", b"5", dedup="p")).run == plain.run


async def test_a_batch_that_debounces_is_repeated_harmlessly(store: Store, clock: Clock):
    ops = [
        StartRun(new_run(name, inputs=name.encode(), dedup_key="d", max_debounce_s=9.0, available_at=clock.now + at))
        for at, name in enumerate("abc")
    ]
    for _ in range(2):
        answers = await commit_ops(store, *ops)
        assert [(one.run.id, one.is_new) for one in answers] == [("a", True), ("a", False), ("a", False)]
        assert ((await read_run(store, "a")).inputs, (await read_run(store, "a")).wake_at) == (b"c", clock.now + 2)
    worker = await store.workers.register(new_worker(), 1e6)
    clock.advance(2)
    assert await claim_ids(store, worker) == ["a"]
    assert (await commit_ops(store, ops[0]))[0].is_new  # it is its own run, also when that has begun

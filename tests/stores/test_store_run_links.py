"""Runs that wait for others: links, and who is told of an end."""

from __future__ import annotations

import pytest
from store_values import (
    CLAIM_FILTER,
    DONE,
    FENCED,
    NOTIFIED,
    REFUSED,
    append,
    claim_run,
    commit_ops,
    finish,
    get_state,
    link,
    list_signals,
    new_run,
    new_worker,
    park,
    read_run,
    release,
    start_child,
    start_claimed_run,
    start_run,
)

from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.operations import AwaitRun, CancelRun, OpStatus, ReopenRun, Run, StartRun

pytestmark = pytest.mark.asyncio


async def family(store: Store, **fields) -> tuple[Run, Run]:
    """A held run, and one that it has started, is waiting for, and holds as well."""
    parent = await start_claimed_run(store, "p")
    [answer] = await commit_ops(store, start_child(parent, claim_as=parent.owner, **fields))
    assert (answer.is_new, answer.is_linked, answer.run.parent) == (True, True, "p")
    return parent, answer.run


async def list_mailbox(store: Store, run: Run) -> list[tuple[str, bytes, float, int | None]]:
    return [(s.name, s.payload, s.sent_at, s.position) for s in await list_signals(store, run)]


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED])
async def test_the_end_of_a_run_goes_to_the_mailbox_of_the_waiting_run(store: Store, state: RunState):
    parent, child = await family(store)
    op = finish(child, state)
    assert await commit_ops(store, op) == [NOTIFIED]
    assert await list_mailbox(store, parent) == [(state, op.output or op.error, op.at, 0)]
    [(key, signal)] = (await store.claims.get_new_signals(parent.owner or 0, 0)).signals
    assert (key, signal.position, signal.name) == (parent.key, 0, state)


async def test_an_end_without_output_or_error_is_sent_as_null(store: Store):
    parent, child = await family(store)
    await commit_ops(store, finish(child, output=None))
    assert await list_mailbox(store, parent) == [("completed", b"null", 1_000_002.0, 0)]


async def test_a_parked_run_is_woken_by_the_end_that_it_waits_for(store: Store, clock):
    parent, child = await family(store)
    assert await commit_ops(store, park(parent, clock.now + 1000, awaited_positions=(0,))) == [DONE]
    await commit_ops(store, finish(child))
    woken = await read_run(store, "p")
    assert (woken.state, woken.wake_at) == (RunState.WAITING, clock.now)
    assert (await claim_run(store)).id == "p"


async def test_a_run_cannot_park_when_the_end_that_it_waits_for_is_there(store: Store):
    parent, child = await family(store)
    assert await commit_ops(store, finish(child), park(parent, None, awaited_positions=(0,))) == [NOTIFIED, REFUSED]
    assert await commit_ops(store, park(parent, None, awaited_positions=(0,))) == [REFUSED]
    assert await get_state(store, "p") is RunState.RUNNING
    assert await commit_ops(store, park(parent, None, "completed", awaited_positions=(1, 2))) == [DONE]


async def test_an_end_that_comes_in_the_same_batch_as_the_park_wakes_the_run(store: Store):
    parent, child = await family(store)
    assert await commit_ops(store, park(parent, None, awaited_positions=(0,)), finish(child)) == [DONE, NOTIFIED]
    assert (await claim_run(store)).id == "p"


async def test_an_end_is_sent_once_however_often_the_finish_is_submitted(store: Store):
    parent, child = await family(store)
    await commit_ops(store, finish(child))
    assert await commit_ops(store, finish(child)) == [NOTIFIED]
    assert len(await list_mailbox(store, parent)) == 1
    [end] = await list_signals(store, parent)
    assert await commit_ops(store, append(parent, 1, kind=RecordKind.CHILD, consume=end.id)) == [DONE]
    assert await commit_ops(store, finish(child)) == [NOTIFIED]
    assert await list_mailbox(store, parent) == []


async def test_a_start_is_repeated_harmlessly_before_and_after_the_end(store: Store):
    parent = await start_claimed_run(store, "p")
    op = start_child(parent, claim_as=parent.owner)
    [first] = await commit_ops(store, op)
    [again] = await commit_ops(store, op)
    assert again == first
    await commit_ops(store, finish(first.run))
    [after] = await commit_ops(store, op)
    assert (after.is_new, after.is_linked, after.run.state) == (True, True, RunState.COMPLETED)
    assert len(await list_mailbox(store, parent)) == 1


async def test_awaiting_an_ended_run_is_answered_with_its_end(store: Store):
    parent, other = await start_claimed_run(store, "p"), await start_claimed_run(store, "other")
    await commit_ops(store, finish(other))
    [answer] = await commit_ops(store, AwaitRun("other", link(parent)))
    assert (answer.is_new, answer.is_linked, answer.run.output) == (False, False, b'"done"')
    [again] = await commit_ops(store, StartRun(new_run("other", seed=b"x"), link=link(parent)))
    assert (again.is_new, again.is_linked) == (False, False)
    assert await list_mailbox(store, parent) == []


async def test_a_run_can_wait_for_one_that_another_caller_has_started(store: Store):
    parent, other = await start_claimed_run(store, "p"), await start_claimed_run(store, "other")
    [found] = await commit_ops(store, AwaitRun("other", link(parent, 3)))
    assert (found.run.id, found.is_new, found.is_linked, found.run.parent) == ("other", False, True, "")
    assert await commit_ops(store, AwaitRun("nobody", link(parent, 4))) == [OpStatus.UNKNOWN_RUN]
    await commit_ops(store, finish(other))
    assert [end[3] for end in await list_mailbox(store, parent)] == [3]


async def test_all_waiting_runs_are_notified(store: Store):
    one, two = await start_claimed_run(store, "one"), await start_claimed_run(store, "two")
    other = await start_claimed_run(store, "other")
    await commit_ops(
        store, AwaitRun("other", link(one, 0)), AwaitRun("other", link(one, 5)), AwaitRun("other", link(two, 0))
    )
    await commit_ops(store, finish(other))
    assert [[end[3] for end in await list_mailbox(store, run)] for run in (one, two)] == [[0, 5], [0]]


async def test_a_run_that_only_starts_another_is_not_notified_of_its_end(store: Store):
    parent = await start_claimed_run(store, "p")
    [answer] = await commit_ops(
        store, StartRun(new_run("c", parent="p"), parent.owner, link=link(parent, awaited=False))
    )
    assert (answer.is_new, answer.is_linked) == (True, False)
    await commit_ops(store, finish(answer.run))
    assert await list_mailbox(store, parent) == []


@pytest.mark.parametrize("awaited", [True, False])
async def test_a_run_that_is_no_longer_held_starts_nothing_and_waits_for_nothing(store: Store, awaited: bool):
    parent = await start_claimed_run(store, "p")
    await start_run(store, "other")
    await commit_ops(store, release(parent))
    stale = link(parent, awaited=awaited)
    assert await commit_ops(store, StartRun(new_run("c"), link=stale), AwaitRun("other", stale)) == [FENCED, FENCED]
    assert await store.get_run("c") is None


async def test_a_run_that_kills_its_workers_is_reported_as_dead(store: Store, kill_worker):
    parent = await start_claimed_run(store, "p")
    worker = await store.workers.register(new_worker(), 10.0)
    [answer] = await commit_ops(store, start_child(parent, claim_as=worker, max_deliveries=1))
    kill_worker(worker)
    assert (await store.workers.reap_dead()).dead_run_ids == ("c",)
    dead = await read_run(store, "c")
    assert [(name, payload) for name, payload, *_ in await list_mailbox(store, parent)] == [("dead", dead.error)]
    assert answer.is_linked


async def test_the_waiting_run_is_notified_of_a_cancel_before_the_first_claim(store: Store):
    parent = await start_claimed_run(store, "p")
    await commit_ops(store, start_child(parent))
    assert await commit_ops(store, CancelRun("c", 1_000_005.0)) == [DONE]
    assert await list_mailbox(store, parent) == [("cancelled", b"null", 1_000_005.0, 0)]


async def test_an_end_after_the_end_of_the_waiting_run_is_kept_for_a_retry(store: Store):
    parent, child = await family(store)
    await commit_ops(store, finish(parent, RunState.FAILED))
    await commit_ops(store, finish(child))
    assert await list_mailbox(store, parent) == []
    assert await commit_ops(store, ReopenRun("p", 1_000_009.0)) == [DONE]
    again = await claim_run(store)
    [answer] = await commit_ops(store, StartRun(new_run("c"), link=link(again)))
    assert (answer.is_linked, answer.run.state, answer.run.output) == (False, RunState.COMPLETED, b'"done"')


async def test_a_taken_over_run_finds_its_links(store: Store):
    parent, child = await family(store)
    await commit_ops(store, release(parent))
    again = await claim_run(store)
    [answer] = await commit_ops(store, start_child(again))
    assert (answer.is_new, answer.is_linked) == (True, True)
    await commit_ops(store, finish(child))
    assert [end[3] for end in await list_mailbox(store, again)] == [0]


async def test_a_command_that_waits_for_another_run_gets_no_end_of_the_first(store: Store):
    parent, child = await family(store)
    other = await start_claimed_run(store, "other")
    [answer] = await commit_ops(store, AwaitRun("other", link(parent)))
    assert answer.is_linked
    await commit_ops(store, finish(child), finish(other, output=b"2"))
    assert [payload for _, payload, *_ in await list_mailbox(store, parent)] == [b"2"]


async def test_a_sent_end_is_deleted_when_its_command_waits_for_another_run(store: Store):
    parent, child = await family(store)
    other = await start_claimed_run(store, "other")
    await commit_ops(store, finish(child))
    [answer] = await commit_ops(store, AwaitRun("other", link(parent)))
    assert answer.is_linked
    assert await list_mailbox(store, parent) == []
    assert await commit_ops(store, park(parent, None, awaited_positions=(0,)), finish(other)) == [DONE, NOTIFIED]
    assert [name for name, *_ in await list_mailbox(store, parent)] == ["completed"]


async def test_thousands_of_runs_are_started_and_end_in_few_commits(store: Store):
    parent = await start_claimed_run(store, "p")
    answers = await commit_ops(store, *[start_child(parent, f"c{n}", n, claim_as=parent.owner) for n in range(2000)])
    assert all(answer.is_linked for answer in answers)
    await commit_ops(store, park(parent, None, awaited_positions=tuple(range(2000))))
    await commit_ops(store, *[finish(answer.run) for answer in answers])
    assert [signal.position for signal in await list_signals(store, parent)] == list(range(2000))
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) is not None
    assert len(await store.list_runs(RunFilter(parent="p"), limit=5000)) == 2000


async def test_a_history_lists_the_awaited_runs(store: Store):
    parent = await start_claimed_run(store, "p")
    other = await start_claimed_run(store, "other")
    await commit_ops(store, finish(other))
    [a, b] = await commit_ops(
        store, start_child(parent, "a", position=0, claim_as=parent.owner), start_child(parent, "b", position=3)
    )
    await commit_ops(store, AwaitRun("other", link(parent, 4)), finish(a.run))
    [history] = await store.get_histories([parent.key])
    assert history.links == {0: ("a", a.run.digest), 3: ("b", b.run.digest)}
    [childless] = await store.get_histories([a.run.key])
    assert childless.links == {}

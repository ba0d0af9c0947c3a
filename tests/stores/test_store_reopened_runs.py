"""A person's retry: what it takes back, what it leaves, and which other runs it reopens."""

from __future__ import annotations

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
    link,
    list_record_seqs,
    list_signals,
    new_run,
    read_run,
    rewind,
    save_attempt,
    signal,
    start_child,
    start_claimed_run,
    start_run,
)

from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores.contract import Store
from holdfast.stores.operations import AwaitRun, CancelRun, CancelState, OpStatus, PauseRun, ReopenRun, Run, StartRun

pytestmark = pytest.mark.asyncio

FAILED = RunState.FAILED


async def reopen(store: Store, run_id: str = "r", *, run_again: bool = False) -> OpStatus:
    [answer] = await commit_ops(store, ReopenRun(run_id, 1_000_009.0, run_again))
    assert isinstance(answer, OpStatus)
    return answer


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.DEAD, RunState.CANCELLED])
async def test_reopening_removes_the_end_and_the_run_continues(store: Store, state: RunState):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 1), finish(run, state))
    assert await reopen(store) is DONE
    opened = await read_run(store)
    assert (opened.state, opened.delivery_count, opened.error) == (RunState.PENDING, 0, None)
    assert (opened.finished_at, opened.output, opened.owner, opened.rewind) == (None, None, None, None)
    assert await list_record_seqs(store, run) == [1]
    again = await claim_run(store)
    assert (again.id, again.epoch) == ("r", 2)


async def test_an_end_stores_what_a_retry_removes(store: Store):
    run = await start_claimed_run(store)
    back = rewind(3, 7, command_count=5, timer_count=2, is_compensated=True, once_seqs=(3,))
    await commit_ops(store, finish(run, FAILED, rewind=back))
    assert (await read_run(store)).rewind == back


async def test_reopening_removes_what_failed_and_what_was_issued_because_of_it(store: Store):
    run = await start_claimed_run(store)
    ops = [
        append(run, 0, position=0),
        append(run, 1, position=1, ok=False),  # the failure, seen when 3 commands and 1 timer had been issued
        append(run, 2, position=2),  # issued before: paid for
        append(run, 3, position=0, kind=RecordKind.TIMER),
        append(run, 4, position=3),  # issued after
        append(run, 5, position=1, kind=RecordKind.TIMER),
        append(run, 6, position=4, kind=RecordKind.COMPENSATION),
        append(run, 7, position=0, kind=RecordKind.DEADLINE),
    ]
    await commit_ops(store, *ops, finish(run, FAILED, rewind=rewind(1, command_count=3, timer_count=1)))
    assert await reopen(store) is DONE
    assert await list_record_seqs(store, run) == [0, 2, 3]
    again = await claim_run(store)
    assert await commit_ops(store, append(again, 8, position=1)) == [DONE]
    assert await list_record_seqs(store, run) == [0, 2, 3, 8]


async def test_reopening_keeps_patches(store: Store):
    run = await start_claimed_run(store)
    ops = [
        append(run, 0, position=-1, kind=RecordKind.PATCH, name="before"),
        append(run, 1, position=0, ok=False),
        append(run, 2, position=-1, kind=RecordKind.PATCH, name="after"),
        append(run, 3, position=1),
    ]
    await commit_ops(store, *ops, finish(run, FAILED, rewind=rewind(1, command_count=1, timer_count=0)))
    assert await reopen(store) is DONE
    assert await list_record_seqs(store, run) == [0, 2]


async def test_reopening_without_a_rewind_takes_nothing_back(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 1), append(run, 2, ok=False), finish(run, FAILED))
    await reopen(store)
    assert await list_record_seqs(store, run) == [1, 2]


async def test_reopening_lifts_a_deadline_that_has_passed(store: Store, clock):
    run = await start_claimed_run(store, deadline=1_000_001.0)
    passed = append(run, 2, kind=RecordKind.DEADLINE)
    await commit_ops(store, append(run, 1), passed, finish(run, FAILED, rewind=rewind(2)))
    clock.advance(100)
    await reopen(store)
    assert await list_record_seqs(store, run) == [1]
    assert (await read_run(store)).deadline is None


async def test_reopening_forgets_a_cancel_and_a_pause(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, CancelRun("r", 1.0), append(run, 1, kind=RecordKind.CANCEL), PauseRun("r", 2.0))
    await commit_ops(store, finish(run, RunState.CANCELLED, rewind=rewind(1)))
    assert await reopen(store) is DONE
    opened = await read_run(store)
    assert (opened.cancel_state, opened.paused_at) == (CancelState.NONE, None)
    assert await list_record_seqs(store, run) == []
    assert (await claim_run(store)).id == "r"


async def test_a_run_that_was_cancelled_before_it_began_can_be_reopened(store: Store):
    await start_run(store)
    await commit_ops(store, CancelRun("r", 1.0))
    assert await reopen(store) is DONE
    assert (await claim_run(store)).epoch == 1


async def test_reopening_keeps_the_intents_of_once_steps(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, save_attempt(run, 1, intent=True), finish(run, FAILED))
    await reopen(store)
    [history] = await store.get_histories([run.key])
    assert history.attempts[1].intent


async def test_reopening_deletes_the_attempts_of_steps_that_it_removes(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 0, position=1, ok=False))
    await commit_ops(
        store,
        save_attempt(run, 0, progress=b"1"),
        save_attempt(run, 2, 4, progress=b"2"),
        save_attempt(run, 3, intent=True),
    )
    await commit_ops(store, finish(run, FAILED, rewind=rewind(0, command_count=2)))
    assert await reopen(store) is DONE
    [history] = await store.get_histories([run.key])
    # The intent stays: a retry must not run a `once` step a second time.
    assert sorted(history.attempts) == [0, 3]


async def test_an_unfinished_or_completed_run_cannot_be_reopened(store: Store):
    run = await start_claimed_run(store)
    assert await reopen(store) is OpStatus.ENDED
    await commit_ops(store, finish(run))
    assert await reopen(store) is OpStatus.ENDED
    assert await reopen(store, "nobody") is OpStatus.UNKNOWN_RUN


async def test_a_reopened_run_is_fenced_for_the_worker_that_failed_it(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, finish(run, FAILED))
    await reopen(store)
    assert await commit_ops(store, append(run, 1), finish(run, FAILED)) == [FENCED, FENCED]


async def test_a_run_can_fail_and_be_reopened_in_one_batch(store: Store):
    run = await start_claimed_run(store)
    ops = [append(run, 1, ok=False), finish(run, FAILED, rewind=rewind(1)), ReopenRun("r", 1.0), signal()]
    assert await commit_ops(store, *ops) == [DONE] * 4
    assert await list_record_seqs(store, run) == []
    assert await get_state(store) is RunState.PENDING
    assert len(await list_signals(store, run)) == 1


async def test_a_once_step_is_not_run_again_unless_requested(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 1, ok=False), finish(run, FAILED, rewind=rewind(1, once_seqs=(1,))))
    assert await reopen(store) is REFUSED
    assert await list_record_seqs(store, run) == [1]
    assert (await read_run(store)).state is FAILED
    assert await reopen(store, run_again=True) is DONE
    assert await list_record_seqs(store, run) == []


async def test_a_compensated_run_cannot_be_reopened(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 1, ok=False), finish(run, FAILED, rewind=rewind(1, is_compensated=True)))
    assert await reopen(store, run_again=True) is OpStatus.COMPENSATED
    assert await list_record_seqs(store, run) == [1]


async def test_a_signal_whose_record_is_taken_back_is_in_the_mailbox_again(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, signal(name="go", payload=b"42"))
    [sent] = await list_signals(store, run)
    got = append(run, 2, kind=RecordKind.SIGNAL, name="go", payload=b"42", started_at=sent.sent_at, consume=sent.id)
    await commit_ops(store, append(run, 1, ok=False), got, finish(run, FAILED, rewind=rewind(1, command_count=2)))
    assert await list_signals(store, run) == []
    await reopen(store)
    [back] = await list_signals(store, run)
    assert (back.name, back.payload, back.sent_at, back.position) == ("go", b"42", sent.sent_at, None)
    assert back.id > sent.id


# Runs that this one has started


async def failed_family(store: Store, *, parent_rewind=None, **ending) -> tuple[Run, Run]:
    """A run that has failed because one that it had started has."""
    parent = await start_claimed_run(store, "p")
    [answer] = await commit_ops(store, start_child(parent, claim_as=parent.owner))
    child = answer.run
    await commit_ops(store, append(child, 0, ok=False), finish(child, FAILED, **ending))
    [end] = await list_signals(store, parent)
    await commit_ops(store, append(parent, 0, position=0, kind=RecordKind.CHILD, ok=False, consume=end.id))
    await commit_ops(store, finish(parent, FAILED, rewind=parent_rewind or rewind(0, command_count=1)))
    return parent, child


async def test_a_retry_reopens_the_run_whose_failure_it_takes_back(store: Store):
    parent, child = await failed_family(store, rewind=rewind(0))
    assert await reopen(store, "p") is DONE
    assert [await get_state(store, name) for name in "pc"] == [RunState.PENDING] * 2
    assert [await list_record_seqs(store, run) for run in (parent, child)] == [[], []]
    again, once_more = await claim_run(store), await claim_run(store)
    [answer] = await commit_ops(store, start_child(again))
    assert (answer.is_linked, answer.run.id) == (True, "c")
    await commit_ops(store, finish(once_more))
    assert [(s.name, s.position) for s in await list_signals(store, parent)] == [("completed", 0)]


@pytest.mark.parametrize(
    ("ending", "answer"), [({"once_seqs": (0,)}, REFUSED), ({"is_compensated": True}, OpStatus.COMPENSATED)], ids=str
)
async def test_nothing_changes_when_one_of_the_runs_cannot_be_reopened(store: Store, ending, answer):
    parent, child = await failed_family(store, rewind=rewind(0, **ending))
    assert await reopen(store, "p") is answer
    assert [await get_state(store, name) for name in "pc"] == [FAILED] * 2
    assert [await list_record_seqs(store, run) for run in (parent, child)] == [[0], [0]]
    if answer is REFUSED:
        assert await reopen(store, "p", run_again=True) is DONE
        assert await get_state(store, "c") is RunState.PENDING


async def test_a_retry_reaches_down_through_the_generations(store: Store):
    top = await start_claimed_run(store, "top")
    [middle] = await commit_ops(store, start_child(top, "middle", claim_as=top.owner))
    [leaf] = await commit_ops(store, start_child(middle.run, "leaf", claim_as=top.owner))
    await commit_ops(store, append(leaf.run, 0, ok=False), finish(leaf.run, FAILED, rewind=rewind(0)))
    for run in (middle.run, top):
        [end] = await list_signals(store, run)
        record = append(run, 0, position=0, kind=RecordKind.CHILD, ok=False, consume=end.id)
        await commit_ops(store, record, finish(run, FAILED, rewind=rewind(0)))
    assert await reopen(store, "top") is DONE
    assert [await get_state(store, name) for name in ("top", "middle", "leaf")] == [RunState.PENDING] * 3


async def test_a_run_that_is_going_on_already_is_awaited_again(store: Store):
    parent, _ = await failed_family(store, rewind=rewind(0))
    assert await reopen(store, "c") is DONE
    child = await claim_run(store)
    assert await reopen(store, "p") is DONE
    await commit_ops(store, finish(child))
    assert [(s.name, s.position) for s in await list_signals(store, parent)] == [("completed", 0)]


async def test_the_end_of_a_run_that_has_completed_meanwhile_is_read_again(store: Store):
    parent, _ = await failed_family(store, rewind=rewind(0))
    await reopen(store, "c")
    await commit_ops(store, finish(await claim_run(store)))
    assert await reopen(store, "p") is DONE
    assert await list_signals(store, parent) == []
    [answer] = await commit_ops(store, start_child(await claim_run(store)))
    assert (answer.is_linked, answer.run.output) == (False, b'"done"')


async def test_a_run_that_another_run_has_started_is_unchanged(store: Store):
    parent, other = await start_claimed_run(store, "p"), await start_claimed_run(store, "other")
    await commit_ops(store, AwaitRun("other", link(parent)))
    await commit_ops(store, finish(other, FAILED))
    [end] = await list_signals(store, parent)
    record = append(parent, 0, position=0, kind=RecordKind.CHILD, ok=False, consume=end.id)
    await commit_ops(store, record, finish(parent, FAILED, rewind=rewind(0)))
    assert await reopen(store, "p") is DONE
    assert await get_state(store, "other") is FAILED
    [answer] = await commit_ops(store, AwaitRun("other", link(await claim_run(store))))
    assert (answer.is_linked, answer.run.state) == (False, FAILED)


async def test_a_run_that_had_failed_before_it_was_awaited_is_reopened_too(store: Store):
    parent = await start_claimed_run(store, "p")
    begun = StartRun(new_run("c", parent="p"), parent.owner, link=link(parent, 0, awaited=False))
    [started] = await commit_ops(store, begun)
    await commit_ops(store, finish(started.run, FAILED))
    [asked] = await commit_ops(store, AwaitRun("c", link(parent, 1)))
    assert not asked.is_linked
    record = append(parent, 0, position=1, kind=RecordKind.CHILD, ok=False)
    await commit_ops(store, record, finish(parent, FAILED, rewind=rewind(0)))
    assert await reopen(store, "p") is DONE
    assert await get_state(store, "c") is RunState.PENDING


async def failed_siblings(store: Store, **ending) -> Run:
    """A run that failed because one of three others did; of the other two, one was cancelled, and one goes on."""
    parent = await start_claimed_run(store, "p")
    starts = [start_child(parent, name, position=at, claim_as=parent.owner) for at, name in enumerate("abc")]
    a, b, _ = [answer.run for answer in await commit_ops(store, *starts)]
    await commit_ops(store, finish(a, FAILED))
    [end] = await list_signals(store, parent)
    record = append(parent, 0, position=0, kind=RecordKind.CHILD, ok=False, consume=end.id)
    await commit_ops(store, record, finish(parent, FAILED, rewind=rewind(0, command_count=3)))
    await commit_ops(store, finish(b, RunState.CANCELLED, **ending))
    return parent


async def test_siblings_that_were_cancelled_with_the_run_are_reopened_too(store: Store):
    await failed_siblings(store)
    assert await reopen(store, "p") is DONE
    assert [await get_state(store, name) for name in "pabc"] == [RunState.PENDING] * 3 + [RunState.RUNNING]
    again = next(run for run in [await claim_run(store) for _ in range(3)] if run.id == "p")
    for at, name in enumerate("abc"):
        [answer] = await commit_ops(store, start_child(again, name, position=at))
        assert answer.is_linked, name
        await commit_ops(store, finish(await read_run(store, name)))
    assert [(s.name, s.position) for s in await list_signals(store, again)] == [("completed", at) for at in range(3)]


async def test_a_sibling_that_cannot_be_reopened_does_not_block_the_others(store: Store):
    await failed_siblings(store, rewind=rewind(0, is_compensated=True))
    assert await reopen(store, "p") is DONE
    assert [await get_state(store, name) for name in "ab"] == [RunState.PENDING, RunState.CANCELLED]
    again = next(run for run in [await claim_run(store) for _ in range(2)] if run.id == "p")
    [answer] = await commit_ops(store, start_child(again, "b", position=1))
    assert (answer.is_linked, answer.run.state) == (False, RunState.CANCELLED)


async def test_a_run_that_was_started_because_of_what_is_removed_is_unchanged(store: Store):
    parent = await start_claimed_run(store, "p")
    [answer] = await commit_ops(store, start_child(parent, "c", position=1, claim_as=parent.owner))
    await commit_ops(store, append(parent, 0, position=0, ok=False), finish(answer.run, FAILED))
    await commit_ops(store, finish(parent, FAILED, rewind=rewind(0, command_count=1)))
    assert await reopen(store, "p") is DONE
    assert await get_state(store, "c") is FAILED
    assert await list_signals(store, parent) == []


async def test_a_cancel_whose_record_stays_is_not_forgotten(store: Store):
    run = await start_claimed_run(store, "p")
    await commit_ops(
        store, CancelRun("p", 1_000_000.0), append(run, 0, kind=RecordKind.CANCEL), append(run, 1, ok=False)
    )
    await commit_ops(store, finish(run, FAILED, rewind=rewind(1), respect_cancel=False))
    assert await reopen(store, "p") is DONE
    assert (await read_run(store, "p")).cancel_state is CancelState.RECORDED
    assert await commit_ops(store, CancelRun("p", 1_000_001.0)) == [OpStatus.DUPLICATE]


async def test_an_end_that_is_not_taken_back_is_left_alone(store: Store):
    parent, child = await failed_family(store, parent_rewind=rewind(1), rewind=rewind(0))
    assert await reopen(store, "p") is DONE
    assert await list_record_seqs(store, parent) == [0]
    assert await get_state(store, child.id) is FAILED

"""What a store knows after it was restored from a backup: whose ``once`` steps may have happened since."""

from __future__ import annotations

import pytest
from store_values import (
    DONE,
    Clock,
    append,
    claim_run,
    commit_ops,
    finish,
    new_run,
    rewind,
    save_attempt,
    start_claimed_run,
    start_run,
)

from holdfast.core.records import RESTORED_POSITION, Attempt
from holdfast.core.states import RunState
from holdfast.stores.contract import Store
from holdfast.stores.operations import ReopenRun, Run, Settlement, StartResult, StartRun
from holdfast.stores.restoration import mark_restored, read_restoration

pytestmark = pytest.mark.asyncio

FRIDAY = 1_762_500_000.0
SOURCE = "the backup of 2025-11-07 07:20:00 UTC"


async def attempts(store: Store, run: Run) -> dict[int, Attempt]:
    [history] = await store.get_histories([run.key])
    return dict(history.attempts)


async def test_runs_that_have_not_completed_are_marked_and_a_repeat_changes_nothing(store: Store, clock: Clock):
    pending = await start_run(store, "pending")
    completed = await start_claimed_run(store, "completed")
    failed = await start_claimed_run(store, "failed")
    await commit_ops(store, finish(completed), finish(failed, RunState.FAILED))
    clock.advance(60)
    assert [await mark_restored(store, FRIDAY) for _ in range(2)] == [2, 2]
    mark = Attempt(RESTORED_POSITION, 0, intent=True, at=clock.now, name=SOURCE)
    for run in (pending, failed):
        assert await attempts(store, run) == {RESTORED_POSITION: mark}
    assert await attempts(store, completed) == {}
    restoration = await read_restoration(store)
    assert restoration is not None
    assert (restoration.restored_at, restoration.backup_at) == (clock.now, FRIDAY)


async def test_a_mark_is_newer_than_every_attempt_of_the_backup_whatever_the_clocks_say(store: Store, clock: Clock):
    run = await start_claimed_run(store)
    await commit_ops(store, save_attempt(run, 0, at=clock.now + 500, name="pay"))
    await mark_restored(store, None)
    found = await attempts(store, run)
    mark = found[RESTORED_POSITION]
    assert mark.name == "a backup"
    assert mark.may_have_begun("pay", found[0])
    assert mark.may_have_begun("pay", None)
    assert mark.may_have_begun("pay", Attempt(0, 1, at=mark.at + 1, name="another step"))
    assert not mark.may_have_begun("pay", Attempt(0, 1, at=mark.at + 1, name="pay"))


async def test_a_run_that_a_restored_run_starts_is_not_held_before_its_mark_was_read(store: Store, clock: Clock):
    worker = await start_claimed_run(store, "other")
    [answer] = await commit_ops(store, StartRun(new_run("child", restored_from=SOURCE), claim_as=worker.owner))
    assert isinstance(answer, StartResult)
    assert (answer.run.state, answer.run.owner) == (RunState.PENDING, None)
    claimed = await claim_run(store)
    assert claimed.id == "child"
    assert (await attempts(store, claimed))[RESTORED_POSITION].name == SOURCE
    [again] = await commit_ops(store, StartRun(new_run("child", restored_from=SOURCE)))
    assert isinstance(again, StartResult)
    assert again.run.key == claimed.key


async def test_a_step_that_a_person_says_did_not_happen_may_start_and_no_other(store: Store, clock: Clock):
    run = await start_claimed_run(store)
    ended = rewind(0, command_count=1, once_seqs=(0,))
    await commit_ops(store, append(run, 0, ok=False), finish(run, RunState.FAILED, rewind=ended))
    await mark_restored(store, FRIDAY)
    did_not_happen = Attempt(0, 0, at=clock.now + 1, name="pay")
    settlement = Settlement(run.epoch, ended._replace(once_seqs=()), None, did_not_happen)
    assert await commit_ops(store, ReopenRun("r", clock.now, settlement=settlement)) == [DONE]
    found = await attempts(store, run)
    assert found[0] == did_not_happen
    assert not found[RESTORED_POSITION].may_have_begun("pay", found[0])
    assert found[RESTORED_POSITION].may_have_begun("pay", found.get(1))


async def test_a_retry_keeps_the_mark_unless_once_steps_may_run_again(store: Store, clock: Clock):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 0, ok=False), finish(run, RunState.FAILED, rewind=rewind(0, command_count=1)))
    await mark_restored(store, FRIDAY)
    assert await commit_ops(store, ReopenRun("r", clock.now)) == [DONE]
    assert RESTORED_POSITION in await attempts(store, run)
    again = await claim_run(store)
    await commit_ops(store, finish(again, RunState.FAILED))
    assert await commit_ops(store, ReopenRun("r", clock.now, rerun_once_steps=True)) == [DONE]
    assert RESTORED_POSITION not in await attempts(store, run)

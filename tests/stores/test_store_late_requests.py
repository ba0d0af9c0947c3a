"""A park or an end that reaches the store after its run has gone on. Found by the simulator."""

from __future__ import annotations

import pytest
from store_values import append, commit_ops, finish, park, read_run, signal, start_claimed_run

from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores.contract import Store
from holdfast.stores.operations import CancelRun, OpStatus

pytestmark = pytest.mark.asyncio


async def test_a_park_that_comes_after_the_runs_next_record_changes_nothing(store: Store):
    run = await start_claimed_run(store)
    late = park(run, None, "go")._replace(next_seq=1)
    await commit_ops(store, append(run, 0))
    await commit_ops(store, signal())
    assert await commit_ops(store, late) == [OpStatus.REFUSED]
    await commit_ops(store, append(run, 1))  # the run has gone on
    assert await commit_ops(store, late._replace(signal_names=())) == [OpStatus.FENCED]
    assert (await read_run(store)).state is RunState.RUNNING


async def test_a_park_in_the_same_commit_as_the_record_that_it_did_not_know_changes_nothing(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, append(run, 0), park(run)._replace(next_seq=0)) == [OpStatus.DONE, OpStatus.FENCED]
    assert (await read_run(store)).state is RunState.RUNNING


async def test_a_park_that_knows_every_record_takes_effect(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, append(run, 0), park(run)._replace(next_seq=1)) == [OpStatus.DONE, OpStatus.DONE]
    assert (await read_run(store)).state is RunState.WAITING


async def test_an_end_that_comes_after_a_cancel_was_recorded_changes_nothing(store: Store):
    run = await start_claimed_run(store)
    late = finish(run)
    await commit_ops(store, CancelRun(run.id, 1.0))
    assert await commit_ops(store, late) == [OpStatus.REFUSED]
    await commit_ops(store, append(run, 0, kind=RecordKind.CANCEL))
    assert await commit_ops(store, late) == [OpStatus.FENCED]
    assert (await read_run(store)).state is RunState.RUNNING
    assert await commit_ops(store, finish(run, RunState.CANCELLED)) == [OpStatus.DONE]

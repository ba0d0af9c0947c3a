"""A park or an end that reaches the store after its run has gone on. Found by the simulator."""

from __future__ import annotations

import pytest
from store_values import append, do, finish, hold, park, row, signal

from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores.contract import Store
from holdfast.stores.operations import CancelRun, OpStatus

pytestmark = pytest.mark.asyncio


async def test_a_park_that_comes_after_the_runs_next_record_changes_nothing(store: Store):
    run = await hold(store)
    late = park(run, None, "go")._replace(next_seq=1)
    await do(store, append(run, 0))
    await do(store, signal())
    assert await do(store, late) == [OpStatus.REFUSED]
    await do(store, append(run, 1))  # the run has gone on
    assert await do(store, late._replace(signal_names=())) == [OpStatus.FENCED]
    assert (await row(store)).state is RunState.RUNNING


async def test_a_park_in_the_same_commit_as_the_record_that_it_did_not_know_changes_nothing(store: Store):
    run = await hold(store)
    assert await do(store, append(run, 0), park(run)._replace(next_seq=0)) == [OpStatus.DONE, OpStatus.FENCED]
    assert (await row(store)).state is RunState.RUNNING


async def test_a_park_that_knows_every_record_takes_effect(store: Store):
    run = await hold(store)
    assert await do(store, append(run, 0), park(run)._replace(next_seq=1)) == [OpStatus.DONE, OpStatus.DONE]
    assert (await row(store)).state is RunState.WAITING


async def test_an_end_that_comes_after_a_cancel_was_recorded_changes_nothing(store: Store):
    run = await hold(store)
    late = finish(run)
    await do(store, CancelRun(run.id, 1.0))
    assert await do(store, late) == [OpStatus.REFUSED]
    await do(store, append(run, 0, kind=RecordKind.CANCEL))
    assert await do(store, late) == [OpStatus.FENCED]
    assert (await row(store)).state is RunState.RUNNING
    assert await do(store, finish(run, RunState.CANCELLED)) == [OpStatus.DONE]

"""Erasing what ended runs have recorded, and what keeps a run from being erased."""

from __future__ import annotations

import pytest
from store_values import (
    DONE,
    Clock,
    append,
    claim_run,
    commit_ops,
    finish,
    get_state,
    link,
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

from holdfast.codec import ERASED
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores.approvals import AnswerApproval, ApprovalFilter, ApprovalRequest, RequestApproval
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.erasure import ERASED_REQUEST, EraseRefusal, EraseRequest, EraseResult
from holdfast.stores.live_events import RETURNED
from holdfast.stores.operations import AppendLiveEvents, ForkRun, LiveEvent, OpStatus, ReopenRun, Run

pytestmark = pytest.mark.asyncio

SECRET = "Ada Lovelace"
VALUE = f'"{SECRET}"'.encode()
LARGE = b'"' + SECRET.encode() * 10_000 + b'"'
TAG = "user:42"


async def start_with_data(store: Store, run_id: str = "r", **fields: object) -> Run:
    """A run with data in every place where a run can have some."""
    run = await start_claimed_run(store, run_id, tags=(TAG, "eu"), inputs=VALUE, queue_key=SECRET, **fields)
    question = ApprovalRequest(SECRET, "boss", (SECRET,), VALUE, "pay", VALUE, SECRET)
    asked = RequestApproval(run.key, 1, 3, f"a-{run_id}", question, 5.0)
    await commit_ops(
        store,
        append(run, 0, payload=VALUE, preview=SECRET),
        append(run, 1, payload=LARGE, preview=SECRET),
        append(run, 2, ok=False, payload=VALUE, kind=RecordKind.SIGNAL),
        asked,
        AnswerApproval(asked.id, VALUE, "ann", 6.0),
        save_attempt(run, 7, progress=VALUE, error=SECRET, name="pay", intent=True),
        signal(run_id, payload=LARGE, dedup=SECRET),
        AppendLiveEvents(run.key, 1, (LiveEvent(-1, "delivery", 1, RETURNED, VALUE, 7.0),)),
    )
    return run


async def end_with_data(store: Store, run_id: str = "r", state: RunState = RunState.FAILED, **fields: object) -> Run:
    run = await start_with_data(store, run_id, **fields)
    await commit_ops(store, finish(run, state, error=VALUE, rewind=rewind(2, command_count=3)))
    return run


async def erase(store: Store, *run_ids: str, tag: str = "", dry_run: bool = False) -> EraseResult:
    return await store.erasure.erase(EraseRequest(run_ids or ("r",), tag, "ann", dry_run))


async def dump(store: Store) -> str:
    """Everything that can be read of all runs."""
    found: list[object] = []
    for run in await store.list_runs(RunFilter(), limit=100):
        [history] = await store.get_histories([run.key])
        updates = await store.get_run_updates(run.id, -1, 0)
        found += [run, history, updates, await store.archives.get_extras(run.key)]
    return repr(found + await store.list_approvals(ApprovalFilter(only_open=False)))


async def test_an_erased_run_keeps_its_structure_and_none_of_its_values(store: Store):
    run = await end_with_data(store)
    assert SECRET in await dump(store)
    before = await read_run(store)
    [old] = await store.get_histories([run.key])
    assert await erase(store, tag=TAG) == EraseResult(("r",), 3, 2, 1)
    assert SECRET not in await dump(store)
    after = await read_run(store)
    assert (after.inputs, after.output, after.error, after.tags, after.digest) == (ERASED, None, ERASED, ("eu",), b"")
    assert (after.state, after.finished_at, after.epoch) == (before.state, before.finished_at, before.epoch)
    [history] = await store.get_histories([run.key])
    assert [record._replace(payload=ERASED, preview="") for record in old.records] == list(history.records)
    attempt = history.attempts[7]
    assert (attempt.name, attempt.intent, attempt.progress, attempt.error) == ("pay", True, None, "")
    assert [one.payload for one in history.signals] == [ERASED, ERASED]
    [approval] = await store.list_approvals(ApprovalFilter(only_open=False))
    assert (approval.request, approval.answer, approval.answered_by) == (ERASED_REQUEST, ERASED, "ann")
    assert not await store.list_runs(RunFilter(tag=TAG))
    assert await store.list_runs(RunFilter(tag="eu"))
    await store.erasure.scrub()
    assert await erase(store) == EraseResult()


async def test_the_audit_log_says_who_erased_which_runs(store: Store, clock: Clock):
    await end_with_data(store)
    assert (await erase(store, dry_run=True)).run_ids == ("r",)
    assert SECRET in await dump(store)
    assert not await store.audit_log.list()
    await erase(store)
    [row] = await store.audit_log.list()
    assert (row.event.key_name, row.event.action, row.event.target) == ("ann", "erase_run", "r")
    assert row.event.at == clock.now


async def test_a_run_that_has_not_ended_is_not_erased(store: Store):
    await start_with_data(store, "held")
    await start_run(store, "pending")
    await end_with_data(store)
    result = await erase(store, "held", "pending", "r", "missing")
    assert result.run_ids == ("r",)
    assert result.refusals == {"held": EraseRefusal.UNFINISHED, "pending": EraseRefusal.UNFINISHED}
    assert (await read_run(store, "held")).inputs == VALUE


async def test_runs_that_it_started_and_forks_are_erased_with_it(store: Store):
    parent = await end_with_data(store, "parent")
    [fork] = await commit_ops(store, ForkRun("parent", new_run("fork", forked_from="parent", inputs=VALUE), 3))
    child = await end_with_data(store, "child", parent="parent")
    await end_with_data(store, "grandchild", parent="child")
    other = await end_with_data(store, "other")
    assert (await erase(store, "parent")).refusals == {"parent": EraseRefusal.UNFINISHED}
    assert (await erase(store, "child", "other")).run_ids == ("child", "other", "grandchild")
    claimed = await claim_run(store)
    assert claimed.id == "fork"
    await commit_ops(store, finish(claimed))
    assert (await erase(store, "parent")).run_ids == ("parent", "fork")
    assert SECRET not in await dump(store)
    assert {child.state, other.state, parent.state} == {RunState.RUNNING}
    assert fork.is_new


async def test_the_end_of_a_run_is_erased_in_the_run_that_waited_for_it(store: Store):
    parent = await start_claimed_run(store, "parent", inputs=b"{}")
    [waits] = await commit_ops(store, start_child(parent, "child", inputs=VALUE))
    child = await claim_run(store)
    assert waits.run.id == child.id == "child"
    await commit_ops(store, finish(child, output=LARGE))
    [end] = await list_signals(store, parent)
    assert (await erase(store, "child")).refusals == {"child": EraseRefusal.AWAITED}
    received = append(parent, 0, kind=RecordKind.CHILD, payload=LARGE, preview="child", consume=end.id)
    await commit_ops(store, received, append(parent, 1, payload=b"1"), finish(parent))
    assert (await erase(store, "child")).run_ids == ("child",)
    [history] = await store.get_histories([parent.key])
    assert [(record.payload, record.preview) for record in history.records] == [
        (ERASED, "child"),
        (b"1", "customer='acme'"),
    ]
    assert (await read_run(store, "parent")).inputs == b"{}"
    assert SECRET not in await dump(store)


async def test_an_erased_run_is_not_retried_and_not_forked(store: Store, clock: Clock):
    await end_with_data(store)
    await erase(store)
    assert await commit_ops(store, ReopenRun("r", clock.now)) == [OpStatus.ERASED]
    assert await commit_ops(store, ReopenRun("r", clock.now, rerun_once_steps=True)) == [OpStatus.ERASED]
    assert await commit_ops(store, ForkRun("r", new_run("fork"), 1)) == [OpStatus.ERASED]
    assert await get_state(store) is RunState.FAILED
    assert await store.get_run("fork") is None


async def test_a_large_value_that_another_run_has_as_well_stays_there(store: Store):
    await end_with_data(store)
    other = await start_claimed_run(store, "other")
    await commit_ops(store, append(other, 0, payload=LARGE))
    await erase(store)
    [history] = await store.get_histories([other.key])
    assert history.records[0].payload == LARGE
    assert await commit_ops(store, append(other, 1, payload=LARGE), finish(other)) == [DONE, DONE]
    assert link(other).parent_key == other.key

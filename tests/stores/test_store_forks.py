"""Forks, and the switch that keeps runs of a workflow from being started and claimed."""

from __future__ import annotations

import pytest
from store_values import (
    CLAIM_FILTER,
    DONE,
    FLOW,
    append,
    claim_run,
    commit_ops,
    finish,
    list_record_seqs,
    make_record,
    new_run,
    new_worker,
    read_run,
    save_attempt,
    signal,
    start_claimed_run,
    start_run,
)

from holdfast.core.states import RunState
from holdfast.stores.contract import Store
from holdfast.stores.disabled_workflows import DisabledWorkflow
from holdfast.stores.operations import ForkRun, OpStatus, StartResult, StartRun

pytestmark = pytest.mark.asyncio


def fork(keep: int = 2, *, source: str = "r", run_id: str = "f", **fields) -> ForkRun:
    return ForkRun(source, new_run(run_id, forked_from=source, **fields), keep)


# Forks


async def test_a_fork_shares_the_beginning_of_a_journal(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, *[append(run, seq) for seq in range(4)], save_attempt(run, 9), signal())
    await commit_ops(store, finish(run))
    [answer] = await commit_ops(store, fork(2, clock_started_at=5.0))
    made = answer.run
    assert (answer.is_new, made.state, made.epoch, made.forked_from) == (True, RunState.PENDING, 0, "r")
    assert (made.clock_started_at, made.created_at) == (5.0, 1_000_000.0)
    assert made == await read_run(store, "f")
    [source, forked] = await store.get_histories([run.key, made.key])
    assert list(forked.records) == list(source.records[:2])
    assert (forked.attempts, list(forked.signals)) == ({}, [])
    assert await list_record_seqs(store, run) == [0, 1, 2, 3]
    again = await claim_run(store)
    assert (again.id, again.epoch) == ("f", 1)
    assert await commit_ops(store, append(again, 2)) == [DONE]


async def test_a_fork_can_have_another_outcome_at_its_end(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 0), append(run, 1))
    other = make_record(1, payload=b"another", epoch=0)
    [answer] = await commit_ops(store, fork(1)._replace(record=other))
    [forked] = await store.get_histories([answer.run.key])
    assert [made.payload for made in forked.records] == [b"[1, 2]", b"another"]


async def test_a_fork_sees_what_its_own_batch_has_recorded(store: Store):
    run = await start_claimed_run(store)
    answers = await commit_ops(store, append(run, 0), append(run, 1), fork(9))
    assert await list_record_seqs(store, answers[-1].run) == [0, 1]


async def test_a_fork_is_repeated_harmlessly(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 0))
    [first] = await commit_ops(store, fork())
    [again] = await commit_ops(store, fork())
    assert again == first
    [other] = await commit_ops(store, fork(seed=b"another"))
    assert other == StartResult(first.run, is_new=False)
    assert await list_record_seqs(store, first.run) == [0]


async def test_there_is_no_fork_of_a_run_that_never_was(store: Store):
    assert await commit_ops(store, fork(source="nobody")) == [OpStatus.UNKNOWN_RUN]
    assert await store.get_run("f") is None


async def test_the_clock_of_a_run_starts_at_its_creation_by_default(store: Store):
    assert (await start_run(store, created_at=7.0)).clock_started_at == 7.0
    assert (await read_run(store)).clock_started_at == 7.0


# The switch


async def test_the_switch_remembers_since_when(store: Store, second_store: Store, clock):
    assert await store.disabled_workflows.get_all() == {}
    assert await store.disabled_workflows.disable(FLOW) is True
    since = clock.now
    clock.advance(5)
    assert await second_store.disabled_workflows.disable(FLOW) is False
    assert await second_store.disabled_workflows.get_all() == {FLOW: DisabledWorkflow(since, "", "", False)}
    assert await second_store.disabled_workflows.enable(FLOW) is True
    assert await store.disabled_workflows.enable(FLOW) is False
    assert await store.disabled_workflows.get_all() == {}


async def test_a_lasting_switch_replaces_a_temporary_one_and_not_the_reverse(store: Store, second_store: Store, clock):
    assert await store.disabled_workflows.disable(FLOW, "policy", "over its limit", is_temporary=True) is True
    since = clock.now
    clock.advance(5)
    assert await store.disabled_workflows.disable(FLOW, "policy", "again", is_temporary=True) is False
    assert await second_store.disabled_workflows.get_all() == {
        FLOW: DisabledWorkflow(since, "policy", "over its limit", True)
    }
    assert await second_store.disabled_workflows.disable(FLOW, "ada", "it quotes wrong prices") is True
    assert await store.disabled_workflows.disable(FLOW, "policy", "over its limit", is_temporary=True) is False
    assert await store.disabled_workflows.disable(FLOW, "bob") is False
    assert await store.disabled_workflows.get_all() == {
        FLOW: DisabledWorkflow(since, "ada", "it quotes wrong prices", False)
    }
    assert await store.disabled_workflows.enable(FLOW, only_temporary=True) is False
    assert await store.disabled_workflows.enable(FLOW) is True
    assert await store.disabled_workflows.disable(FLOW, "policy", is_temporary=True) is True
    assert await store.disabled_workflows.enable(FLOW, only_temporary=True) is True
    assert await second_store.disabled_workflows.get_all() == {}


async def test_no_run_of_a_workflow_that_is_switched_off_is_started(store: Store, second_store: Store):
    run = await start_claimed_run(store)
    await second_store.disabled_workflows.disable(FLOW)
    assert await commit_ops(store, StartRun(new_run("new")), fork()) == [OpStatus.WORKFLOW_DISABLED] * 2
    assert await store.get_run("new") is None
    [found] = await commit_ops(store, StartRun(new_run("r")))
    assert found == StartResult(run, is_new=True)
    assert (await start_run(store, "mail", workflow="mail")).id == "mail"
    await second_store.disabled_workflows.enable(FLOW)
    assert (await start_run(store, "new")).id == "new"


async def test_an_orphan_of_a_workflow_that_is_switched_off_is_joined_as_usual(store: Store):
    starter = await store.workers.register(new_worker(), 10.0)
    await start_run(store, "left", starter=starter, has_generated_id=True)
    await store.workers.retire(starter)
    await store.disabled_workflows.disable(FLOW)
    [answer] = await commit_ops(
        store, StartRun(new_run("new", has_generated_id=True, starter=starter), join_orphan=True)
    )
    assert (answer.run.id, answer.is_new) == ("left", False)


async def test_no_run_of_a_workflow_that_is_switched_off_is_claimed(store: Store, clock):
    await start_run(store)
    await start_run(store, "later", available_at=clock.now + 5)
    await start_run(store, "mail", workflow="mail")
    worker = await store.workers.register(new_worker(), 100.0)
    await store.disabled_workflows.disable(FLOW)
    clock.advance(10)
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) is None
    both = {"workflows": [FLOW, "mail"], "queues": None}
    assert [run.id for run in await store.claims.claim(worker, **both, limit=9)] == ["mail"]
    assert await store.claims.claim(worker, **CLAIM_FILTER, limit=9) == []
    await store.disabled_workflows.enable(FLOW)
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) is not None
    assert [run.id for run in await store.claims.claim(worker, **both, limit=9)] == ["r", "later"]


async def test_a_held_run_continues_when_its_workflow_is_disabled(store: Store):
    run = await start_claimed_run(store)
    await store.disabled_workflows.disable(FLOW)
    assert await commit_ops(store, append(run, 1), finish(run)) == [DONE, DONE]

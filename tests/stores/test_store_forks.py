"""Forks, and the switch that keeps runs of a workflow from being started and claimed."""

from __future__ import annotations

import pytest
from store_values import (
    ALL,
    DONE,
    FLOW,
    a_worker,
    append,
    claim_one,
    do,
    finish,
    hold,
    journal,
    new_run,
    note,
    record,
    row,
    signal,
    start,
)

from holdfast.core.states import RunState
from holdfast.stores.contract import Store, SwitchedOff
from holdfast.stores.operations import ForkRun, Started, StartRun, Verdict

pytestmark = pytest.mark.asyncio


def fork(keep: int = 2, *, source: str = "r", run_id: str = "f", **fields) -> ForkRun:
    return ForkRun(source, new_run(run_id, forked_from=source, **fields), keep)


# Forks


async def test_a_fork_shares_the_beginning_of_a_journal(store: Store):
    run = await hold(store)
    await do(store, *[append(run, seq) for seq in range(4)], note(run, 9), signal())
    await do(store, finish(run))
    [answer] = await do(store, fork(2, began_at=5.0))
    made = answer.run
    assert (answer.created, made.state, made.epoch, made.forked_from) == (True, RunState.PENDING, 0, "r")
    assert (made.began_at, made.created_at) == (5.0, 1_000_000.0)
    assert made == await row(store, "f")
    [source, forked] = await store.histories([run.key, made.key])
    assert list(forked.records) == list(source.records[:2])
    assert (forked.attempts, list(forked.signals)) == ({}, [])
    assert await journal(store, run) == [0, 1, 2, 3]
    again = await claim_one(store)
    assert (again.id, again.epoch) == ("f", 1)
    assert await do(store, append(again, 2)) == [DONE]


async def test_a_fork_can_have_another_outcome_at_its_end(store: Store):
    run = await hold(store)
    await do(store, append(run, 0), append(run, 1))
    other = record(1, payload=b"another", epoch=0)
    [answer] = await do(store, fork(1)._replace(record=other))
    [forked] = await store.histories([answer.run.key])
    assert [made.payload for made in forked.records] == [b"[1, 2]", b"another"]


async def test_a_fork_sees_what_its_own_batch_has_recorded(store: Store):
    run = await hold(store)
    answers = await do(store, append(run, 0), append(run, 1), fork(9))
    assert await journal(store, answers[-1].run) == [0, 1]


async def test_a_fork_is_repeated_harmlessly(store: Store):
    run = await hold(store)
    await do(store, append(run, 0))
    [first] = await do(store, fork())
    [again] = await do(store, fork())
    assert again == first
    [other] = await do(store, fork(seed=b"another"))
    assert other == Started(first.run, created=False)
    assert await journal(store, first.run) == [0]


async def test_there_is_no_fork_of_a_run_that_never_was(store: Store):
    assert await do(store, fork(source="nobody")) == [Verdict.UNKNOWN_RUN]
    assert await store.get("f") is None


async def test_the_clock_of_a_run_begins_with_its_creation_if_nothing_else_is_said(store: Store):
    assert (await start(store, created_at=7.0)).began_at == 7.0
    assert (await row(store)).began_at == 7.0


# The switch


async def test_the_switch_remembers_since_when(store: Store, elsewhere: Store, clock):
    assert await store.switched_off() == {}
    assert await store.switch_off(FLOW) is True
    since = clock.now
    clock.advance(5)
    assert await elsewhere.switch_off(FLOW) is False
    assert await elsewhere.switched_off() == {FLOW: SwitchedOff(since, "", "", False)}
    assert await elsewhere.switch_on(FLOW) is True
    assert await store.switch_on(FLOW) is False
    assert await store.switched_off() == {}


async def test_a_lasting_switch_replaces_a_temporary_one_and_not_the_reverse(store: Store, elsewhere: Store, clock):
    assert await store.switch_off(FLOW, "policy", "over its limit", temporary=True) is True
    since = clock.now
    clock.advance(5)
    assert await store.switch_off(FLOW, "policy", "again", temporary=True) is False
    assert await elsewhere.switched_off() == {FLOW: SwitchedOff(since, "policy", "over its limit", True)}
    assert await elsewhere.switch_off(FLOW, "ada", "it quotes wrong prices") is True
    assert await store.switch_off(FLOW, "policy", "over its limit", temporary=True) is False
    assert await store.switch_off(FLOW, "bob") is False
    assert await store.switched_off() == {FLOW: SwitchedOff(since, "ada", "it quotes wrong prices", False)}
    assert await store.switch_on(FLOW, only_temporary=True) is False
    assert await store.switch_on(FLOW) is True
    assert await store.switch_off(FLOW, "policy", temporary=True) is True
    assert await store.switch_on(FLOW, only_temporary=True) is True
    assert await elsewhere.switched_off() == {}


async def test_no_run_of_a_workflow_that_is_switched_off_is_started(store: Store, elsewhere: Store):
    run = await hold(store)
    await elsewhere.switch_off(FLOW)
    assert await do(store, StartRun(new_run("new")), fork()) == [Verdict.SWITCHED_OFF] * 2
    assert await store.get("new") is None
    [found] = await do(store, StartRun(new_run("r")))
    assert found == Started(run, created=True)
    assert (await start(store, "mail", workflow="mail")).id == "mail"
    await elsewhere.switch_on(FLOW)
    assert (await start(store, "new")).id == "new"


async def test_an_orphan_of_a_workflow_that_is_switched_off_is_joined_as_usual(store: Store):
    starter = await store.register_worker(a_worker(), 10.0)
    await start(store, "left", starter=starter, generated_id=True)
    await store.retire_worker(starter)
    await store.switch_off(FLOW)
    [answer] = await do(store, StartRun(new_run("new", generated_id=True, starter=starter), join_orphan=True))
    assert (answer.run.id, answer.created) == ("left", False)


async def test_no_run_of_a_workflow_that_is_switched_off_is_claimed(store: Store, clock):
    await start(store)
    await start(store, "later", available_at=clock.now + 5)
    await start(store, "mail", workflow="mail")
    worker = await store.register_worker(a_worker(), 100.0)
    await store.switch_off(FLOW)
    clock.advance(10)
    assert await store.next_wake(**ALL) is None
    both = {"workflows": [FLOW, "mail"], "queues": None}
    assert [run.id for run in await store.claim(worker, **both, limit=9)] == ["mail"]
    assert await store.claim(worker, **ALL, limit=9) == []
    await store.switch_on(FLOW)
    assert await store.next_wake(**ALL) is not None
    assert [run.id for run in await store.claim(worker, **both, limit=9)] == ["r", "later"]


async def test_a_run_that_is_held_goes_on_when_its_workflow_is_switched_off(store: Store):
    run = await hold(store)
    await store.switch_off(FLOW)
    assert await do(store, append(run, 1), finish(run)) == [DONE, DONE]

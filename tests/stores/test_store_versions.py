"""Versions of workflows: who claims which run, what keeps its version, and what is announced."""

from __future__ import annotations

import pytest
from store_values import (
    DONE,
    FLOW,
    append,
    commit_ops,
    finish,
    new_run,
    new_worker,
    park,
    rewind,
    signal,
    start_claimed_run,
    start_run,
)

from holdfast.core.states import RunState
from holdfast.stores.contract import RunFilter, Store, WorkflowSpec
from holdfast.stores.operations import ForkRun, ReopenRun, StartRun
from holdfast.stores.served_versions import find_spec_to_start, make_served_name

pytestmark = pytest.mark.asyncio


async def claimed(store: Store, worker: int, *names: str, limit: int = 99) -> list[str]:
    return [run.id for run in await store.claims.claim(worker, workflows=names, queues=None, limit=limit)]


async def test_a_worker_takes_only_runs_of_the_versions_that_it_serves(store: Store, clock):
    worker = await store.workers.register(new_worker(), 1e6)
    for version in ("", "1", "2"):
        await start_run(store, f"v{version}", version=version)
        await start_run(store, f"later-{version}", version=version, available_at=clock.now + 10 + len(version))
    assert (await store.get_run("v2")).version == "2"
    assert await claimed(store, worker, f"{FLOW}@3", "other@2", FLOW) == ["v"]
    assert await store.claims.get_next_wake_at(workflows=[FLOW], queues=None) == clock.now + 10
    assert await claimed(store, worker, FLOW) == []
    assert await store.claims.get_next_wake_at(workflows=[f"{FLOW}@2"], queues=None) <= clock.now
    assert await claimed(store, worker, f"{FLOW}@2") == ["v2"]
    assert await store.claims.get_next_wake_at(workflows=[f"{FLOW}@2"], queues=None) == clock.now + 11
    assert await store.claims.get_next_wake_at(workflows=[f"{FLOW}@3"], queues=None) is None
    clock.advance(20)
    assert await claimed(store, worker, FLOW, f"{FLOW}@1") == ["later-", "v1", "later-1"]
    assert await store.count_unfinished_runs() == {(FLOW, ""): 2, (FLOW, "1"): 2, (FLOW, "2"): 2}


async def test_the_order_of_claims_holds_across_versions(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    for name, version, priority in [("a", "1", 0), ("b", "2", 5), ("c", "", 5), ("d", "2", 0), ("e", "1", 9)]:
        await start_run(store, name, version=version, priority=priority)
    assert await claimed(store, worker, FLOW, f"{FLOW}@1", f"{FLOW}@2", limit=4) == ["e", "b", "c", "a"]


async def test_workflows_are_listed_counted_and_switched_off_by_name_whatever_their_version(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    await start_run(store, "old", version="1")
    await start_run(store, "new", version="2")
    assert [run.id for run in await store.list_runs(RunFilter(workflow=FLOW))] == ["new", "old"]
    assert await store.count_runs() == {(FLOW, RunState.PENDING): 2}
    await store.disabled_workflows.disable(FLOW)
    assert await claimed(store, worker, f"{FLOW}@1", f"{FLOW}@2") == []
    assert await store.claims.get_next_wake_at(workflows=[f"{FLOW}@1"], queues=None) is None
    await store.disabled_workflows.enable(FLOW)
    assert await claimed(store, worker, f"{FLOW}@1", f"{FLOW}@2") == ["old", "new"]


async def test_a_workflow_with_an_at_sign_in_its_name_is_no_version_of_another(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    await start_run(store, "plain", workflow="a@b")
    await start_run(store, "version", workflow="a", version="b")
    assert await claimed(store, worker, make_served_name("a@b", "")) == ["plain"]
    assert await claimed(store, worker, make_served_name("a", "b")) == ["version"]


async def test_a_run_keeps_its_version_through_parks_deaths_forks_and_retries(store: Store, clock):
    names = (f"{FLOW}@1",)
    worker = await store.workers.register(new_worker(), 10.0)
    [held] = await commit_ops(store, StartRun(new_run(version="1"), claim_as=worker))
    assert held.run.version == "1"
    await commit_ops(store, append(held.run, 0), park(held.run, None, "go"))
    await commit_ops(store, signal())
    assert await claimed(store, worker, FLOW) == []
    clock.advance(100)
    assert await claimed(store, worker, *names) == ["r"]
    await store.workers.reap_dead()
    other = await store.workers.register(new_worker(), 1e6)
    assert await claimed(store, other, FLOW) == []
    [run] = await store.claims.claim(other, workflows=names, queues=None, limit=1)
    await commit_ops(store, finish(run, RunState.FAILED, rewind=rewind(0)))
    [fork] = await commit_ops(store, ForkRun("r", new_run("fork", version=run.version, forked_from="r"), before_seq=0))
    assert fork.run.version == "1"
    assert await commit_ops(store, ReopenRun("r", clock.now)) == [DONE]
    assert await claimed(store, other, FLOW) == []
    assert sorted(await claimed(store, other, *names)) == ["fork", "r"]


async def test_a_conversation_continues_across_versions(store: Store):
    await start_run(store, "first", version="1", session="s")
    assert (await start_run(store, "second", version="2", session="s")).previous_run == "first"
    assert (await start_run(store, "third", session="s")).previous_run == "second"


async def test_a_retry_can_move_a_run_to_another_version(store: Store, clock):
    run = await start_claimed_run(store, version="1")
    await commit_ops(store, finish(run, RunState.FAILED))
    assert await commit_ops(store, ReopenRun("r", clock.now, version="2")) == [DONE]
    assert (await store.get_run("r")).version == "2"
    assert await claimed(store, run.owner, f"{FLOW}@1") == []
    assert await claimed(store, run.owner, f"{FLOW}@2") == ["r"]
    assert await commit_ops(store, ReopenRun("r", clock.now, version="3")) != [DONE]
    assert (await store.get_run("r")).version == "2"


async def test_a_run_is_joined_by_its_id_in_any_version_and_as_an_orphan_only_in_its_own(store: Store):
    gone = await store.workers.register(new_worker(), 10.0)
    await commit_ops(store, StartRun(new_run("orphan", version="1", has_generated_id=True, starter=gone)))
    await commit_ops(store, StartRun(new_run("named", version="1")))
    await store.workers.retire(gone)
    me = await store.workers.register(new_worker(), 10.0)

    async def begin(run_id: str, version: str):
        new = new_run(run_id, seed=b"another", version=version, has_generated_id=True, starter=me)
        [answer] = await commit_ops(store, StartRun(new, join_orphan=True))
        return answer.is_new, answer.run.id, answer.run.version

    assert await begin("named", "2") == (False, "named", "1")
    assert await begin("x", "2") == (True, "x", "2")
    assert await begin("y", "1") == (False, "orphan", "1")


async def test_all_versions_are_announced_and_the_newest_that_is_served_is_to_be_started(store: Store, clock):
    assert await find_spec_to_start(store, FLOW) is None
    old = WorkflowSpec(FLOW, ("a",), version="1")
    new = WorkflowSpec(FLOW, ("a", "b"), version="2", serves=("1", ""))
    first = await store.workers.register(new_worker(workflows=()), 10.0)
    await store.announce_workflows([old], first)
    clock.advance(1)
    second = await store.workers.register(new_worker(workflows=()), 10.0)
    await store.announce_workflows([new], second)
    clock.advance(1)
    await store.announce_workflows([WorkflowSpec(FLOW, ("a",), "etl-{a}", version="1")], first)
    assert {worker.id: worker.workflows for worker in await store.list_workers()} == {
        first: (f"{FLOW}@1",),
        second: (f"{FLOW}@2", f"{FLOW}@1", FLOW),
    }
    specs = await store.get_workflow_specs()
    assert specs == {f"{FLOW}@1": WorkflowSpec(FLOW, ("a",), "etl-{a}", version="1"), f"{FLOW}@2": new}
    assert [specs[name].announced_at for name in sorted(specs)] == [clock.now - 2, clock.now - 1]
    assert (
        await find_spec_to_start(store, FLOW)
    ) == new  # an old worker that announces its own once more changes nothing
    assert (await find_spec_to_start(store, FLOW, "1")).id_template == "etl-{a}"
    assert await find_spec_to_start(store, FLOW, "3") is None
    await store.workers.retire(second)
    assert (await find_spec_to_start(store, FLOW)).version == "1"  # the deployment was taken back
    await store.workers.retire(first)
    assert (await find_spec_to_start(store, FLOW)).version == "2"


async def test_the_versions_of_one_workflow_are_found_among_those_with_similar_names(store: Store):
    names = ["etl", "etl2", "et", "etl@", "etl@1", "etlA", "ETL"]
    specs = [WorkflowSpec(name, (), version=version) for name in names for version in ("", "1", "2.0")]
    await store.announce_workflows(specs)
    for name in [*names, "unknown", ""]:
        found = await store.get_workflow_specs(name)
        assert sorted(spec.version for spec in found.values()) == (["", "1", "2.0"] if name in names else [])
        assert {spec.name for spec in found.values()} <= {name}
        assert found.items() <= (await store.get_workflow_specs()).items()

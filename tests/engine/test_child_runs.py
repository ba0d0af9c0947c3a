"""Children: a workflow called in a workflow is a run of its own, started once and waited for out of memory."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from engine_world import (
    FlakyStore,
    HeldCommits,
    VirtualClock,
    World,
    describe_journal,
    get_state,
    make_unavailable_error,
    read_journal,
    read_run,
    select_definitions,
    wait_for_state,
    wait_until_ended,
    wait_until_parked,
    wait_until_quiet,
)
from shared_flows import define_calling, define_waiting

from holdfast import (
    RunCancelled,
    RunConflict,
    RunDead,
    RunEnded,
    RunFailed,
    RunNotFound,
    UsageError,
    ValueTooLarge,
    current_run,
    map,
    step,
    wait_for_signal,
    workflow,
)
from holdfast.authoring.registry import definitions
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores.contract import RunFilter
from holdfast.stores.operations import AppendRecord, AwaitRun, CancelRun, ParkRun, SendSignal, StartRun
from waits import wait_until

pytestmark = pytest.mark.asyncio


class Broken(Exception):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


async def list_child_ids(world: World, parent: str) -> list[str]:
    store = await world.open_store()
    return [run.id for run in await store.list_runs(RunFilter(parent=parent), limit=1000)][::-1]


# Calling


async def test_a_child_is_a_run_of_its_own_and_its_result_is_recorded_in_the_parent(world: World):
    @step
    async def double(n: int) -> int:
        return 2 * n

    @workflow
    async def child(n: int) -> int:
        return await double(n) + 1

    @workflow
    async def parent() -> int:
        return await child(20) + 1

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    assert await handle.result() == 42
    assert await describe_journal(runtime, "p") == ["child child"]
    assert await describe_journal(runtime, "p:child-1") == ["step double"]
    run = await read_run(runtime, "p:child-1")
    assert (run.parent, run.state, run.workflow) == ("p", "completed", "child")
    [record] = await read_journal(runtime, "p")
    assert (record.payload, record.preview) == (b"41", "p:child-1")


async def test_ids_follow_from_parent_and_position_the_template_or_the_options(world: World):
    @step
    async def nothing() -> None: ...

    @workflow
    async def plain(n: int) -> str:
        return current_run().id

    @workflow(id="order-{n}")
    async def templated(n: int) -> str:
        return current_run().id

    @workflow
    async def parent() -> list[str]:
        await nothing()
        return [
            await plain(1),
            await plain(1),
            await templated(7),
            await templated.options(id="mine")(7),
            (await plain.start(1)).run_id,
        ]

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    assert await handle.result() == ["p:plain-2", "p:plain-3", "order-7", "mine", "p:plain-6"]


async def test_the_ids_of_deeply_nested_children_stay_within_the_limit_and_differ(in_memory: World):
    @workflow
    async def nest(depth: int) -> list[str]:
        if depth == 0:
            return [current_run().id]
        found = await asyncio.gather(nest(depth - 1), nest(depth - 1)) if depth == 15 else [await nest(depth - 1)]
        return [current_run().id, *[one for inner in found for one in inner]]

    runtime = await in_memory.open()
    handle = await runtime.start(nest.options(id="n" * 150), 15)
    ids = await handle.result()
    assert len(ids) == len(set(ids)) == 31
    assert max(len(one) for one in ids) <= 200


async def test_a_child_has_its_options(world: World, clock: VirtualClock):
    @workflow(tags=["kid"], timeout=50)
    async def child() -> None:
        await wait_for_signal("never")

    @workflow
    async def parent() -> None:
        await child.options(queue="slow", priority=3, tags=["own"], delay=100).start()

    runtime = await world.open()
    began = clock.now()
    await (await runtime.start(parent.options(id="p"))).result()
    run = await read_run(runtime, "p:child-1")
    assert (run.queue, run.priority, set(run.tags), run.state) == ("slow", 3, {"kid", "own"}, "pending")
    assert (run.created_at, run.wake_at, run.deadline) == (began, began + 100, began + 150)


async def test_a_child_that_fails_is_an_exception_in_the_parent_with_its_cause(world: World, clock: VirtualClock):
    seen: list[Any] = []

    @step
    async def explode() -> None:
        raise Broken("no luck", 7)

    @workflow
    async def child() -> None:
        await explode()

    @workflow
    async def parent() -> str:
        try:
            await child()
        except RunFailed as error:
            cause = error.__cause__
            assert isinstance(cause, Broken)
            seen.append((error.run_id, error.state, error.error, str(cause), cause.code))
        return await wait_for_signal("go")

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until_parked(runtime, clock, handle, 1)
    await handle.signal("go", "gone on")
    assert await handle.result() == "gone on"
    assert seen == [("p:child-1", "failed", "Broken: no luck", "no luck", 7)] * 2  # live, and replayed


async def test_an_uncaught_failure_fails_the_parent_and_names_the_child(world: World):
    @workflow
    async def child() -> None:
        raise Broken("no luck", 7)

    @workflow
    async def parent() -> None:
        await child()

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    with pytest.raises(RunFailed, match=r"run 'p' .* RunFailed: run 'p:child-1' .* Broken: no luck"):
        await handle.result()


async def test_a_child_that_was_cancelled_is_an_exception_in_the_parent(world: World):
    child = define_waiting("child", signal="never")

    @workflow
    async def parent() -> str:
        try:
            await child()
        except RunCancelled as error:
            return f"{error.run_id} {error.state}"
        return ""

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: "p:child-1" in runtime._engine.held_runs.drivers_by_run_id)
    assert await child.get_handle(runtime.store_provider, "p:child-1").cancel()
    assert await handle.result() == "p:child-1 cancelled"


async def test_a_child_that_is_cancelled_before_it_started_wakes_the_parked_parent(world: World, clock: VirtualClock):
    @workflow(queue="elsewhere")
    async def child() -> None: ...

    @workflow
    async def parent() -> str:
        try:
            await child()
        except RunCancelled:
            return "cancelled"
        return ""

    runtime = await world.open(queues=["default"])
    handle = await runtime.start(parent.options(id="p"))
    await wait_until_parked(runtime, clock, handle)
    assert (await read_run(runtime, handle)).waits_for == "run 'p:child-1'"
    await child.get_handle(runtime.store_provider, "p:child-1").cancel()
    assert await handle.result() == "cancelled"


async def test_a_child_that_takes_its_workers_down_is_an_exception_in_the_parent(world: World):
    calls: list[int] = []

    @step
    async def crashing() -> None:
        calls.append(1)
        await asyncio.sleep(60)

    @workflow(queue="dangerous")
    async def child() -> None:
        await crashing()

    @workflow
    async def parent() -> str:
        try:
            await child()
        except RunDead as error:
            return error.state
        return ""

    runtime = await world.open(queues=["default"])
    handle = await runtime.start(parent)
    for deaths in (1, 2, 3):
        mortal = await world.open(queues=["dangerous"])
        await wait_until(lambda deaths=deaths: len(calls) == deaths)
        await world.crash(mortal)
    assert await handle.result() == "dead"


async def test_a_child_that_passes_its_deadline_fails(world: World, clock: VirtualClock):
    @workflow(timeout=100)
    async def child() -> None:
        await wait_for_signal("never")

    @workflow
    async def parent() -> str:
        try:
            await child()
        except RunFailed as error:
            return "too slow" if isinstance(error.__cause__, TimeoutError) else ""
        return ""

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: "p:child-1" in runtime._engine.held_runs.drivers_by_run_id)
    clock.advance(101)
    assert await handle.result() == "too slow"


async def test_children_of_children(world: World):
    @workflow
    async def tree(depth: int) -> int:
        if depth == 0:
            return 1
        return sum(await asyncio.gather(tree(depth - 1), tree(depth - 1)))

    runtime = await world.open()
    handle = await runtime.start(tree.options(id="t"), 4)
    assert await handle.result() == 16
    assert await list_child_ids(world, "t:tree-2") == ["t:tree-2:tree-1", "t:tree-2:tree-2"]


async def test_a_workflow_that_fails_deep_down_fails_every_level(world: World):
    @workflow
    async def nested(depth: int) -> None:
        if depth == 0:
            raise Broken("at the bottom", 1)
        await nested(depth - 1)

    runtime = await world.open()
    handle = await runtime.start(nested.options(id="n"), 3)
    with pytest.raises(RunFailed, match="at the bottom"):
        await handle.result()
    for run_id in ("n", "n:nested-1", "n:nested-1:nested-1", "n:nested-1:nested-1:nested-1"):
        assert await get_state(runtime, run_id) == "failed"


async def test_hundreds_at_once_with_gather(world: World):
    @workflow
    async def child(n: int) -> int:
        return n

    @workflow
    async def parent() -> list[int]:
        return list(await asyncio.gather(*[child(n) for n in range(300)]))

    runtime = await world.open(max_concurrency=50)  # fewer than there are: most wait until there is room
    handle = await runtime.start(parent.options(id="p"))
    assert await handle.result() == list(range(300))
    assert len(await list_child_ids(world, "p")) == 300


async def test_hundreds_with_map(world: World):
    most = now = 0

    @step
    async def busy() -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    @workflow
    async def child(n: int) -> int:
        await busy()
        return -n

    @workflow
    async def parent() -> list[int]:
        return await map(child, range(200), max_concurrency=20)

    runtime = await world.open()
    assert await (await runtime.start(parent)).result() == [-n for n in range(200)]
    assert 1 < most <= 20


async def test_a_child_may_be_called_with_concurrency_one(world: World, clock: VirtualClock):
    @workflow
    async def child() -> str:
        return "done"

    parent = define_calling(child, "parent")

    runtime = await world.open(max_concurrency=1)
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: runtime._engine._idle_runs)  # it occupies the only place
    clock.advance(1.1)
    runtime._engine._idle_runs.sweep()
    assert await handle.result() == "done"


async def test_inputs_that_do_not_fit_are_refused_before_anything_is_started(world: World):
    @workflow
    async def child(n: int) -> int:
        return n

    @workflow
    async def parent() -> str:
        try:
            await child("seven", 8)  # type: ignore[call-arg, arg-type]
        except Exception as error:
            return type(error).__name__
        return ""

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    assert await handle.result() == "InputError"
    assert await list_child_ids(world, "p") == []


@pytest.mark.parametrize("how", ["called", "started"])
async def test_inputs_above_the_limit_are_an_error_in_the_parent(world: World, how: str):
    @workflow
    async def child(text: str) -> None: ...

    @workflow
    async def parent() -> str:
        try:
            await (child if how == "called" else child.start)("x" * 5000)
        except ValueTooLarge as error:
            return str(error)
        return ""

    runtime = await world.open(max_value=4000)
    handle = await runtime.start(parent.options(id="p"))
    assert "the inputs of workflow 'child'" in await handle.result()
    assert await list_child_ids(world, "p") == []


async def test_a_result_above_the_limit_fails_the_child_and_the_parent_sees_that(world: World):
    @workflow
    async def child() -> str:
        return "x" * 5000

    @workflow
    async def parent() -> str:
        try:
            await child()
        except RunFailed as error:
            return "too large" if isinstance(error.__cause__, ValueTooLarge) else ""
        return ""

    runtime = await world.open(max_value=4000)
    assert await (await runtime.start(parent)).result() == "too large"


async def test_a_child_with_a_large_result_hands_it_on(world: World):
    @workflow
    async def child() -> str:
        return "x" * 300_000

    @workflow
    async def parent() -> int:
        return len(await child()) + len(await (await child.start()).result())

    runtime = await world.open()
    assert await (await runtime.start(parent)).result() == 600_000


# Waiting


async def test_a_parent_that_waits_for_its_child_leaves_memory_and_is_woken_by_its_end(
    world: World, clock: VirtualClock
):
    gate = asyncio.Event()

    @step
    async def slow() -> str:
        await gate.wait()
        return "slow"

    child = define_calling(slow, "child")

    parent = define_calling(child, "parent")

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    handle = await runtime.start(parent.options(id="p"))
    await wait_until_parked(runtime, clock, handle)
    assert list(runtime._engine.held_runs.drivers_by_run_id) == ["p:child-1"]
    info = await handle.info()
    assert (info.state, info.waits_for) == ("waiting", "run 'p:child-1'")
    before = len(store.commits)
    gate.set()
    assert await handle.result() == "slow"
    await wait_until_quiet(runtime)
    ops = [type(op).__name__ for batch in store.commits[before:] for op in batch]
    # The child's step and end; the parent finds the end, records it and ends. It does not start the child again.
    assert ops == ["AppendRecord", "FinishRun", "AppendRecord", "FinishRun"]


async def test_a_child_costs_three_writes(world: World):
    @workflow
    async def child() -> str:
        return "done"

    parent = define_calling(child, "parent")

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    handle = await runtime.start(parent.options(id="p"))
    await handle.result()
    ops = [type(op).__name__ for batch in store.commits for op in batch]
    assert ops == ["StartRun", "StartRun", "FinishRun", "AppendRecord", "FinishRun"]


async def test_a_parked_parent_that_is_woken_by_one_child_leaves_the_other_alone(world: World, clock: VirtualClock):
    begun: list[str] = []

    @step
    async def work(name: str) -> str:
        begun.append(name)
        return name

    @workflow
    async def child(name: str) -> str:
        await work(name)
        return f"{name} {await wait_for_signal('go')}"

    @workflow
    async def parent() -> list[str]:
        return list(await asyncio.gather(child("a"), child("b")))

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: len(begun) == 2 and len(runtime._engine._idle_runs) == 3)
    parent_driver = runtime._engine.held_runs.drivers_by_run_id["p"]
    second = runtime._engine.held_runs.drivers_by_run_id["p:child-2"]
    parent_driver.park()
    runtime._engine._idle_runs.remove(parent_driver)
    await wait_for_state(runtime, handle, "waiting")
    await child.get_handle(runtime.store_provider, "p:child-1").signal("go", 1)
    await wait_for_state(runtime, handle, "running")  # replayed: it waits for its second child again
    await wait_until_quiet(runtime)
    assert runtime._engine.held_runs.drivers_by_run_id["p:child-2"] is second
    assert not second.is_closed
    await child.get_handle(runtime.store_provider, "p:child-2").signal("go", 2)
    assert await handle.result() == ["a 1", "b 2"]
    assert begun == ["a", "b"]
    assert [run.epoch for run in [await read_run(runtime, "p:child-2")]] == [1]


async def test_a_parent_that_was_parked_and_woken_does_not_disturb_a_step_of_its_child(
    world: World, clock: VirtualClock
):
    gate = asyncio.Event()
    calls: list[str] = []

    @step
    async def slow() -> str:
        calls.append("slow")
        await gate.wait()
        return "slow"

    child = define_calling(slow, "child")

    @workflow
    async def parent() -> list[str]:
        return list(await asyncio.gather(child(), wait_for_signal("go")))

    runtime = await world.open()
    handle = await runtime.start(parent)
    await wait_until_parked(runtime, clock, handle)
    await handle.signal("go", "on")
    await wait_for_state(runtime, handle, "running", "waiting")
    await wait_until_idle_after_signal(runtime, handle)
    gate.set()
    assert await handle.result() == ["slow", "on"]
    assert calls == ["slow"]


async def wait_until_idle_after_signal(runtime: Any, handle: Any) -> None:
    """The parent has recorded its signal and waits for its child again."""

    async def there() -> bool:
        return any(record.kind is RecordKind.SIGNAL for record in await read_journal(runtime, handle))

    await wait_until(there)
    await wait_until(lambda: handle.run_id in runtime._engine.held_runs.drivers_by_run_id)
    driver = runtime._engine.held_runs.drivers_by_run_id[handle.run_id]
    await wait_until(lambda: driver in runtime._engine._idle_runs)


async def test_a_child_that_ends_while_its_parent_is_being_parked_is_not_missed(world: World, clock: VirtualClock):
    gate = asyncio.Event()

    @step
    async def slow() -> str:
        await gate.wait()
        return "slow"

    @workflow(queue="other")
    async def child() -> str:
        return await slow()

    parent = define_calling(child, "parent")

    store = HeldCommits(world.store(), ParkRun)
    runtime = await world.open(store=store, queues=["default"])
    other = await world.open(queues=["other"])
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: "p:child-1" in other._engine.held_runs.drivers_by_run_id)
    await wait_until(lambda: runtime._engine._idle_runs)
    clock.advance(1.1)
    runtime._engine._idle_runs.sweep()
    await store.reached.wait()
    gate.set()
    await wait_until_ended(other, "p:child-1")
    store.release.set()
    assert await handle.result() == "slow"
    assert (await read_run(runtime, handle)).epoch == 1  # the park was refused


async def test_a_run_that_is_claimed_while_its_parent_starts_it_again_is_taken_up_once(
    world: World, clock: VirtualClock
):
    calls: list[str] = []
    reading, let_read = asyncio.Event(), asyncio.Event()

    @step
    async def work() -> str:
        calls.append("work")
        return "worked"

    child = define_calling(work, "child")

    @workflow
    async def parent() -> list[str]:
        return list(await asyncio.gather(child(), wait_for_signal("go")))

    class SlowToRead(FlakyStore):
        async def get_histories(self, keys: Any) -> Any:
            found = await self.inner.get_histories(keys)
            if keys == [child_key]:
                reading.set()
                await let_read.wait()
            return found

    child_key = 0
    first = await world.open(definitions=select_definitions("parent"))
    handle = await first.start(parent.options(id="p"))
    await wait_until(lambda: first._engine._idle_runs)
    child_key = (await read_run(first, "p:child-1")).key
    second = await world.open(store=SlowToRead(world.store()), definitions=select_definitions("child"))
    await reading.wait()  # the child is claimed
    second._engine._claims._definitions = second._engine.definitions = definitions
    await world.crash(first)
    await second._engine.store.workers.reap_dead(second.worker_id)
    [run] = await second._engine.store.claims.claim(second.worker_id, workflows=["parent"], queues=None, limit=1)
    [history] = await second._engine.store.inner.get_histories([run.key])
    # Without its links, or it would not start the child again; a run that is started on its own has none.
    second._engine.held_runs.load(run, definitions["parent"], replace(history, links={}))
    await wait_until(lambda: second._engine._claims._deferred_starts or calls)
    await asyncio.sleep(0.01)
    let_read.set()
    await parent.get_handle(second.store_provider, handle.run_id).signal("go", "on")
    assert await parent.get_handle(second.store_provider, handle.run_id).result() == ["worked", "on"]
    assert calls == ["work"]


async def test_a_child_may_run_in_another_engine(world: World, clock: VirtualClock):
    @workflow(queue="other")
    async def child() -> int:
        return await wait_for_signal("go")

    parent = define_calling(child, "parent")

    runtime = await world.open(queues=["default"])
    other = await world.open(queues=["other"])
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: "p:child-1" in other._engine.held_runs.drivers_by_run_id)
    await wait_until_parked(runtime, clock, handle)
    await wait_until_parked(other, clock, "p:child-1")
    await child.get_handle(other.store_provider, "p:child-1").signal("go", 5)
    assert await handle.result() == 5


async def test_a_runtime_that_does_not_know_the_child_leaves_it_to_one_that_does(world: World):
    @workflow
    async def child() -> str:
        return "known elsewhere"

    parent = define_calling(child, "parent")

    runtime = await world.open(definitions=select_definitions("parent"))
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: runtime._engine._idle_runs)
    assert await get_state(runtime, "p:child-1") == "pending"
    await world.open(definitions=select_definitions("child"))
    assert await handle.result() == "known elsewhere"


async def test_a_parent_that_dies_with_its_child_starts_it_only_once(world: World):
    calls: list[str] = []
    gate = asyncio.Event()

    @step
    async def work() -> str:
        calls.append("work")
        await gate.wait()
        return "worked"

    @workflow(queue="other")
    async def child() -> str:
        return await work()

    parent = define_calling(child, "parent")

    other = await world.open(queues=["other"])
    first = await world.open(queues=["default"])
    handle = await first.start(parent.options(id="p"))
    await wait_until(lambda: calls)
    await world.crash(first)
    second = await world.open()
    await wait_until(lambda: second._engine._idle_runs)
    gate.set()
    assert await parent.get_handle(second.store_provider, handle.run_id).result() == "worked"
    assert calls == ["work"]
    run = await read_run(other, "p:child-1")
    assert (run.epoch, run.delivery_count) == (1, 0)
    assert await list_child_ids(world, "p") == ["p:child-1"]


async def test_a_child_whose_worker_died_with_the_parents_continues_too(world: World):
    calls: list[str] = []
    hang = True

    @step
    async def work(name: str) -> str:
        calls.append(name)
        if name == "b" and hang:
            await asyncio.sleep(60)
        return name

    @workflow
    async def child() -> list[str]:
        return [await work("a"), await work("b")]

    @workflow
    async def parent() -> list[str]:
        return await child()

    first = await world.open()
    handle = await first.start(parent)
    await wait_until(lambda: "b" in calls)
    await world.crash(first)
    hang = False
    second = await world.open()
    assert await parent.get_handle(second.store_provider, handle.run_id).result() == ["a", "b"]
    assert calls == ["a", "b", "b"]


async def test_a_child_that_ended_while_no_worker_held_the_parent_is_not_run_again(world: World):
    calls: list[str] = []

    @step
    async def work() -> str:
        calls.append("work")
        return "worked"

    @workflow(queue="other")
    async def child() -> str:
        return await work()

    parent = define_calling(child, "parent")

    first = await world.open(queues=["default"])
    handle = await first.start(parent.options(id="p"))
    await wait_until(lambda: first._engine._idle_runs)
    await world.crash(first)
    other = await world.open(queues=["other"])
    await wait_until_ended(other, "p:child-1")
    second = await world.open(queues=["default"])
    assert await parent.get_handle(second.store_provider, handle.run_id).result() == "worked"
    assert calls == ["work"]


async def test_a_runtime_that_closes_hands_parent_and_child_over(world: World):
    child = define_waiting("child")

    parent = define_calling(child, "parent")

    first = await world.open()
    handle = await first.start(parent.options(id="p"))
    await wait_until(lambda: len(first._engine._idle_runs) == 2)
    await first.close()
    second = await world.open()
    await child.get_handle(second.store_provider, "p:child-1").signal("go", "on")
    assert await parent.get_handle(second.store_provider, handle.run_id).result() == "on"
    assert (await read_run(second, handle)).delivery_count == 0


# Started on its own


async def test_a_started_child_goes_its_own_way(world: World):
    child = define_waiting("child")

    @workflow
    async def parent() -> str:
        return (await child.start()).run_id

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    assert await handle.result() == "p:child-1"
    assert await describe_journal(runtime, handle) == ["start child"]
    assert not (await read_run(runtime, "p:child-1")).state.is_terminal
    await child.get_handle(runtime.store_provider, "p:child-1").signal("go", "alone")
    assert await child.get_handle(runtime.store_provider, "p:child-1").result() == "alone"


async def test_a_started_child_outlives_a_parent_that_fails_or_is_cancelled(world: World):
    child = define_waiting("child")

    @workflow
    async def parent(fails: bool) -> None:
        await child.start()
        if fails:
            raise Broken("no", 1)
        await wait_for_signal("never")

    runtime = await world.open()
    failing = await runtime.start(parent.options(id="f"), True)
    cancelled = await runtime.start(parent.options(id="c"), False)
    await wait_until(lambda: "c:child-1" in runtime._engine.held_runs.drivers_by_run_id)
    await cancelled.cancel()
    assert (await wait_until_ended(runtime, failing)).state == "failed"
    assert (await wait_until_ended(runtime, cancelled)).state == "cancelled"
    for run_id in ("f:child-1", "c:child-1"):
        await child.get_handle(runtime.store_provider, run_id).signal("go", "alive")
        assert await child.get_handle(runtime.store_provider, run_id).result() == "alive"


async def test_a_handle_in_workflow_code_waits_signals_and_cancels(world: World):
    child = define_waiting("child")

    @workflow
    async def parent() -> list[Any]:
        one, two = await child.start(), await child.start()
        told = [await one.signal("go", 5), await two.cancel(), await two.cancel()]
        told.append(await one.result())
        try:
            await two.result()
        except RunCancelled as error:
            told.append(error.run_id)
        return told

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    assert await handle.result() == [True, True, False, 5, "p:child-2"]
    assert await describe_journal(runtime, handle) == [
        "start child", "start child", "step change run", "step change run", "step change run",
        "child child", "child child failed",
    ]  # fmt: skip


async def test_a_handle_in_workflow_code_pauses_and_resumes(world: World):
    child = define_waiting("child")

    @workflow
    async def parent() -> list[Any]:
        kid = await child.start()
        told = [await kid.pause(), await kid.pause()]
        await kid.signal("go", 5)
        return [*told, await kid.resume(), await kid.result()]

    runtime = await world.open()
    assert await (await runtime.start(parent)).result() == [True, False, True, 5]


async def test_a_handle_in_workflow_code_shows_that_the_run_has_ended(world: World):
    @workflow
    async def child() -> str:
        return "done"

    @workflow
    async def parent() -> list[str]:
        kid = await child.start()
        await kid.result()
        told: list[str] = []
        for call in (kid.signal("go"), kid.cancel(), kid.pause(), kid.resume()):
            try:
                await call
            except RunEnded as error:
                told.append(f"{error.run_id}: {error}")
        return told

    runtime = await world.open()
    told = await (await runtime.start(parent.options(id="p"))).result()
    assert [one.partition(":")[0] for one in told] == ["p"] * 4
    assert all("ended" in one for one in told)


async def test_a_child_cannot_be_read_in_workflow_code(world: World):
    @workflow
    async def child() -> str:
        return "done"

    @workflow
    async def parent() -> str:
        kid = await child.start()
        try:
            await kid.info()
        except UsageError as error:
            return str(error)
        return ""

    runtime = await world.open()
    assert "do it in a step, with a Client" in await (await runtime.start(parent)).result()


async def test_a_signal_sent_by_workflow_code_arrives_once_although_the_worker_died(world: World):
    sent: list[Any] = []

    @workflow(queue="other")
    async def child() -> list[Any]:
        return [await wait_for_signal("go"), await wait_for_signal("go")]

    @workflow
    async def parent() -> list[Any]:
        kid = await child.start()
        await kid.signal("go", "first")
        await kid.signal("go", "second")
        return await kid.result()

    async def before(ops: Any) -> None:
        if sent and any(isinstance(op, AppendRecord) and op.record.name == "change run" for op in ops):
            await asyncio.Event().wait()  # the signal is there; that it is will never be recorded
        sent.extend(op for op in ops if isinstance(op, SendSignal))

    store = FlakyStore(world.store(), before_commit=before)
    first = await world.open(store=store, queues=["default"])
    handle = await first.start(parent)
    await wait_until(lambda: sent)
    await asyncio.sleep(0.02)
    await world.crash(first)
    second = await world.open()
    assert await parent.get_handle(second.store_provider, handle.run_id).result() == ["first", "second"]


async def test_waiting_with_a_timeout_gives_up_and_leaves_the_child_alone(world: World, clock: VirtualClock):
    child = define_waiting("child")

    @workflow
    async def parent() -> str:
        kid = await child.start()
        try:
            await kid.result(timeout=10)
        except TimeoutError:
            await kid.signal("go", "at last")
        return await kid.result()

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(
        lambda: "p:child-1" in runtime._engine.held_runs.drivers_by_run_id and len(runtime._engine._idle_runs) == 2
    )
    clock.advance(11)
    assert await handle.result() == "at last"


async def test_a_result_can_be_waited_for_twice_and_after_the_end(world: World):
    @workflow
    async def child() -> int:
        return 3

    @workflow
    async def parent() -> list[int]:
        kid = await child.start()
        first = await kid.result()
        return [first, *await asyncio.gather(kid.result(), kid.result())]

    runtime = await world.open()
    assert await (await runtime.start(parent)).result() == [3, 3, 3]


async def test_a_started_child_that_failed_is_an_exception_where_it_is_waited_for(world: World):
    @workflow
    async def child() -> None:
        raise Broken("no", 4)

    @workflow
    async def parent() -> int:
        kid = await child.start()
        try:
            await kid.result()
        except RunFailed as error:
            return getattr(error.__cause__, "code", 0)
        return 0

    runtime = await world.open()
    assert await (await runtime.start(parent)).result() == 4


# Joining


async def test_an_unfinished_run_under_the_id_is_joined(world: World):
    child = define_waiting("child")

    @workflow
    async def parent() -> str:
        return await child.options(id="shared")()

    runtime = await world.open()
    shared = await runtime.start(child.options(id="shared"))
    one, two = await runtime.start(parent.options(id="1")), await runtime.start(parent.options(id="2"))
    await wait_until(lambda: len(runtime._engine._idle_runs) == 3)
    await shared.signal("go", "for all")
    assert [await shared.result(), await one.result(), await two.result()] == ["for all"] * 3
    assert (await read_run(runtime, shared)).parent == ""


async def test_a_completed_run_under_the_id_gives_its_result(world: World):
    calls: list[int] = []

    @step
    async def work() -> int:
        calls.append(1)
        return 9

    child = define_calling(work, "child")

    @workflow
    async def parent() -> int:
        return await child.options(id="shared")() + await (await child.options(id="shared").start()).result()

    runtime = await world.open()
    await (await runtime.start(child.options(id="shared"))).result()
    assert await (await runtime.start(parent)).result() == 18
    assert calls == [1]


async def test_a_failed_run_under_the_id_is_an_exception(world: World, clock: VirtualClock):
    seen: list[Any] = []

    @workflow
    async def child() -> None:
        raise Broken("long ago", 3)

    @workflow
    async def parent() -> None:
        for call in (child.options(id="shared"), child.options(id="shared").start):
            try:
                await call()
            except RunFailed as error:
                seen.append((error.run_id, error.state, error.error))
        await wait_for_signal("go")

    runtime = await world.open()
    await wait_until_ended(runtime, await runtime.start(child.options(id="shared")))
    handle = await runtime.start(parent)
    await wait_until_parked(runtime, clock, handle, 2)
    await handle.signal("go")
    await handle.result()
    assert seen == [("shared", "failed", "Broken: long ago")] * 4


async def test_other_inputs_under_the_id_are_a_conflict_also_on_replay(world: World, clock: VirtualClock):
    seen: list[str] = []

    @workflow
    async def child(n: int) -> int:
        return n

    @workflow
    async def other() -> None: ...

    @workflow
    async def parent() -> None:
        for call in (child.options(id="shared"), child.options(id="shared").start, other.options(id="shared")):
            try:
                await (call(2) if call.__name__ != "other" else call())  # type: ignore[operator, union-attr]
            except RunConflict as error:
                seen.append(f"{error.run_id}: {error}")
        await wait_for_signal("go")

    runtime = await world.open()
    await (await runtime.start(child.options(id="shared"), 1)).result()
    handle = await runtime.start(parent)
    await wait_until_parked(runtime, clock, handle, 3)
    await handle.signal("go")
    await handle.result()
    assert len(seen) == 6
    assert seen[:3] == seen[3:]
    assert "other inputs" in seen[0]
    assert "belongs to a run of workflow 'child'" in seen[2]
    assert await describe_journal(runtime, handle) == [
        "child child failed",
        "start child failed",
        "child other failed",
        "signal go",
    ]


async def test_waiting_for_a_run_that_is_not_there_is_an_error(world: World):
    @workflow
    async def child() -> None: ...

    @workflow
    async def parent() -> str:
        kid = await child.start()
        kid.run_id = "nobody"
        try:
            await kid.result()
        except RunNotFound as error:
            return error.run_id
        return ""

    runtime = await world.open()
    assert await (await runtime.start(parent)).result() == "nobody"


# No longer waiting


async def test_a_timeout_around_a_child_cancels_it(world: World, clock: VirtualClock):
    undone: list[str] = []

    @step
    async def undo() -> None:
        undone.append("undone")

    @workflow
    async def child() -> None:
        try:
            await wait_for_signal("never")
        finally:
            await undo()

    @workflow
    async def parent() -> str:
        try:
            async with asyncio.timeout(10):
                await child()
        except TimeoutError:
            return "gave up"
        return ""

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: len(runtime._engine._idle_runs) == 2)
    clock.advance(11)
    assert await handle.result() == "gave up"
    assert (await wait_until_ended(runtime, "p:child-1")).state == "cancelled"
    assert undone == ["undone"]


async def test_a_timeout_that_strikes_while_both_are_parked_cancels_the_child(world: World, clock: VirtualClock):
    child = define_waiting("child", signal="never")

    @workflow
    async def parent() -> str:
        try:
            async with asyncio.timeout(100):
                await child()
        except TimeoutError:
            return "gave up"
        return ""

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: len(runtime._engine._idle_runs) == 2)
    runtime._engine.park_idle()
    await wait_until(lambda: not runtime._engine.held_runs.drivers)
    clock.advance(101)
    assert await handle.result() == "gave up"
    assert (await wait_until_ended(runtime, "p:child-1")).state == "cancelled"


async def test_a_gather_that_fails_in_a_group_cancels_the_children_that_are_left(world: World):
    child = define_waiting("child", signal="never")

    @workflow
    async def failing() -> None:
        raise Broken("at once", 1)

    @workflow
    async def parent() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())
            group.create_task(failing())

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    assert (await wait_until_ended(runtime, handle)).state == "failed"
    for run_id in ("p:child-1", "p:child-2"):
        assert (await wait_until_ended(runtime, run_id)).state == "cancelled"


async def test_children_without_a_wait_are_cancelled_when_the_parent_ends(world: World):
    child = define_waiting("child", signal="never")

    @step
    async def work() -> None: ...

    @workflow
    async def parent() -> str:
        left = asyncio.create_task(child())
        await work()
        await work()
        del left
        return "ended"

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    assert await handle.result() == "ended"
    assert (await wait_until_ended(runtime, "p:child-2")).state == "cancelled"


async def test_a_cancelled_parent_cancels_its_children_and_theirs(world: World):
    @workflow
    async def nested(depth: int) -> None:
        await (nested(depth - 1) if depth else wait_for_signal("never"))

    runtime = await world.open()
    handle = await runtime.start(nested.options(id="n"), 3)
    await wait_until(lambda: len(runtime._engine._idle_runs) == 4)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    for run_id in ("n:nested-1", "n:nested-1:nested-1", "n:nested-1:nested-1:nested-1"):
        assert (await wait_until_ended(runtime, run_id)).state == "cancelled"


async def test_a_joined_run_is_not_cancelled_by_who_no_longer_waits(world: World, clock: VirtualClock):
    child = define_waiting("child")

    @workflow
    async def parent() -> str:
        try:
            async with asyncio.timeout(10):
                return await child.options(id="shared")()
        except TimeoutError:
            return "gave up"

    runtime = await world.open()
    shared = await runtime.start(child.options(id="shared"))
    handle = await runtime.start(parent)
    await wait_until(lambda: len(runtime._engine._idle_runs) == 2)
    clock.advance(11)
    assert await handle.result() == "gave up"
    await wait_until_quiet(runtime)
    assert not (await shared.info()).is_cancelling
    await shared.signal("go", "alive")
    assert await shared.result() == "alive"


async def test_a_child_whose_start_has_not_been_answered_is_cancelled_too(world: World):
    starting, let_start = asyncio.Event(), asyncio.Event()

    child = define_waiting("child", signal="never")

    @workflow
    async def parent() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                group.create_task(bad())
        except ExceptionGroup:
            return "gave up"
        return ""

    @step
    async def bad() -> None:
        await starting.wait()
        raise Broken("no", 1)

    async def before(ops: Any) -> None:
        if any(isinstance(op, StartRun) and op.link is not None for op in ops):
            starting.set()
            await asyncio.sleep(0.02)  # the step fails meanwhile
            let_start.set()

    store = FlakyStore(world.store(), before_commit=before)
    runtime = await world.open(store=store)
    handle = await runtime.start(parent.options(id="p"))
    assert await handle.result() == "gave up"
    assert (await wait_until_ended(runtime, "p:child-1")).state == "cancelled"


async def test_a_worker_that_dies_before_it_cancels_the_child_leaves_that_to_the_next(
    world: World, clock: VirtualClock
):

    @workflow(queue="other")
    async def child() -> None:
        await wait_for_signal("never")

    @workflow
    async def parent() -> str:
        try:
            async with asyncio.timeout(10):
                await child()
        except TimeoutError:
            await wait_for_signal("go")
        return "gave up"

    store = HeldCommits(world.store(), CancelRun)
    other = await world.open(queues=["other"])
    first = await world.open(store=store, queues=["default"])
    handle = await first.start(parent.options(id="p"))
    await wait_until(lambda: first._engine._idle_runs and other._engine._idle_runs)
    clock.advance(11)
    await store.reached.wait()
    await world.crash(first)
    second = await world.open(queues=["default"])
    assert (await wait_until_ended(second, "p:child-1")).state == "cancelled"
    await parent.get_handle(second.store_provider, handle.run_id).signal("go")
    assert await parent.get_handle(second.store_provider, handle.run_id).result() == "gave up"


# When the store fails


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_that_fails_to_start_a_child_keeps_the_runs_place(
    world: World, when: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.CRITICAL)
    calls: list[str] = []
    failures = 3

    @step
    async def work(name: str) -> str:
        calls.append(name)
        return name

    @workflow
    async def child() -> str:
        return await work("child's")

    @workflow
    async def parent() -> list[str]:
        return [await work("first"), await child(), await (await child.start()).result()]

    def fail(ops: Any) -> BaseException | None:
        nonlocal failures
        if failures and any(isinstance(op, StartRun) and op.link is not None for op in ops):
            failures -= 1
            return make_unavailable_error()
        return None

    store = FlakyStore(world.store())
    setattr(store, f"fail_{when}", fail)
    runtime = await world.open(store=store)
    handle = await runtime.start(parent.options(id="p"))
    assert await handle.result() == ["first", "child's", "child's"]
    assert calls == ["first", "child's", "child's"]
    assert failures == 0
    assert await list_child_ids(world, "p") == ["p:child-2", "p:child-3"]


async def test_a_store_that_fails_to_link_keeps_the_runs_place(world: World, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    failures = 2

    child = define_waiting("child")

    @workflow
    async def parent() -> str:
        kid = await child.start()
        return await kid.result()

    def fail(ops: Any) -> BaseException | None:
        nonlocal failures
        if failures and any(isinstance(op, AwaitRun) for op in ops):
            failures -= 1
            return make_unavailable_error()
        return None

    store = FlakyStore(world.store(), fail_after=fail)
    runtime = await world.open(store=store)
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: not failures and len(runtime._engine._idle_runs) == 2)
    await child.get_handle(runtime.store_provider, "p:child-1").signal("go", "on")
    assert await handle.result() == "on"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_failed_change_of_a_child_is_repeated(world: World, when: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    failures = {SendSignal: 2, CancelRun: 2}

    @workflow
    async def child() -> Any:
        return [await wait_for_signal("go"), await wait_for_signal("go")]

    @workflow
    async def parent() -> Any:
        one, two = await child.start(), await child.start()
        await one.signal("go", 1)
        await one.signal("go", 2)
        await two.cancel()
        return await one.result()

    def fail(ops: Any) -> BaseException | None:
        for op in ops:
            if failures.get(type(op)):
                failures[type(op)] -= 1
                return make_unavailable_error()
        return None

    store = FlakyStore(world.store())
    setattr(store, f"fail_{when}", fail)
    runtime = await world.open(store=store)
    handle = await runtime.start(parent.options(id="p"))
    assert await handle.result() == [1, 2]
    assert (await wait_until_ended(runtime, "p:child-2")).state is RunState.CANCELLED
    assert not any(failures.values())

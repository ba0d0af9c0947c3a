"""Forking: a new run that shares the beginning of another one's journal, and leaves that one as it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from engine_world import VirtualClock, World, describe_journal, get_state, read_journal, read_run, wait_until_ended
from shared_flows import define_calling

from holdfast import (
    RunConflict,
    RunFailed,
    RunNotFound,
    UsageError,
    ValueTooLarge,
    current_run,
    current_step,
    now,
    random,
    step,
    uuid4,
    wait_for_signal,
    workflow,
)
from holdfast.codec.run_ids import MAX_ID_LENGTH
from holdfast.core.seeded_random import SEED_BYTES
from holdfast.services.forks import NOT_GIVEN, fork_run
from holdfast.services.run_control import retry_run
from holdfast.stores.contract import History
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def fork(
    world: World, runtime: Any, flow: Any, run_id: str, at: Any = None, *, with_output: Any = NOT_GIVEN, id: str = ""
) -> Any:
    """Fork a run as a client does, and return this runtime's handle to the fork."""
    store = await world.open_store()
    run = await fork_run(store, run_id, at=at, with_output=with_output, new_id=id or None)
    return flow.get_handle(runtime.store_provider, run.id)


async def read_everything(runtime: Any, run_id: str) -> tuple[Any, History]:
    run = await read_run(runtime, run_id)
    [history] = await runtime._engine.store.get_histories([run.key])
    return run, history


class Bench:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.version = "old"
        bench = self

        @step
        async def work(name: str) -> str:
            bench.log.append(name)
            return f"{bench.version} {name}"

        self.work = work


async def test_a_fork_shares_what_came_before_the_step_and_goes_its_own_way_from_there(world: World):
    bench = Bench()

    @workflow
    async def flow(first: str) -> list[str]:
        return [await bench.work(name) for name in (first, "b", "c")]

    runtime = await world.open()
    original = await runtime.start(flow.options(id="original", tags=["t"], priority=2), "a")
    await original.result()
    before = await read_everything(runtime, "original")
    bench.version = "new"
    forked = await fork(world, runtime, flow, "original", 2)
    assert await forked.result() == ["old a", "new b", "new c"]
    assert bench.log == ["a", "b", "c", "b", "c"]
    run = await read_run(runtime, forked)
    assert (run.forked_from, run.parent, run.workflow, run.tags, run.priority) == ("original", "", "flow", ("t",), 2)
    assert run.id.startswith("original-fork-")
    assert (await forked.info()).inputs == {"first": "a"}
    assert await read_everything(runtime, "original") == before


async def test_by_name(world: World):
    bench = Bench()

    @step
    async def special() -> str:
        bench.log.append("special")
        return bench.version

    @workflow
    async def flow() -> list[str]:
        return [await bench.work("a"), await special(), await bench.work("b")]

    runtime = await world.open()
    await (await runtime.start(flow.options(id="original"))).result()
    bench.version = "new"
    assert await (await fork(world, runtime, flow, "original", "special")).result() == ["old a", "new", "new b"]
    with pytest.raises(UsageError, match=r"2 steps named 'work': .* one of 1, 3"):
        await fork(world, runtime, flow, "original", "work")


async def test_a_step_that_is_not_there(world: World):
    bench = Bench()

    @workflow
    async def flow() -> str:
        return await bench.work("a")

    runtime = await world.open()
    await (await runtime.start(flow.options(id="original"))).result()
    for at in (0, 2, -1, "other"):
        with pytest.raises(UsageError, match=rf"no recorded step {at!r}; recorded: 1 \(work\)"):
            await fork(world, runtime, flow, "original", at)
    with pytest.raises(RunNotFound, match="nobody"):
        await fork(world, runtime, flow, "nobody", 1)
    with pytest.raises(UsageError, match="say which with `at`"):
        await fork(world, runtime, flow, "original", with_output=1)


@dataclass
class Answer:
    text: str
    score: float


async def test_with_another_output(world: World):
    bench = Bench()

    @step
    async def ask() -> Answer:
        bench.log.append("ask")
        return Answer("no", 0.5)

    @workflow
    async def flow() -> list[str]:
        answer = await ask()
        return [answer.text, str(answer.score), await bench.work("a")]

    runtime = await world.open()
    assert await (await runtime.start(flow.options(id="original"))).result() == ["no", "0.5", "old a"]
    forked = await fork(world, runtime, flow, "original", "ask", with_output={"text": "yes", "score": 1})
    assert await forked.result() == ["yes", "1.0", "old a"]
    assert bench.log == ["ask", "a", "a"]
    assert await describe_journal(runtime, forked) == ["step ask", "step work"]


async def test_with_another_output_for_a_step_that_failed(world: World):
    @step
    async def bad() -> int:
        raise ValueError("no")

    @workflow
    async def flow() -> int:
        return await bad() + 1

    runtime = await world.open()
    await wait_until_ended(runtime, await runtime.start(flow.options(id="original")))
    forked = await fork(world, runtime, flow, "original", "bad", with_output=41)
    assert await forked.result() == 42
    assert await get_state(runtime, "original") == "failed"


async def test_with_an_output_of_none(world: World):
    @step
    async def maybe() -> str | None:
        return "something"

    @workflow
    async def flow() -> bool:
        return await maybe() is None

    runtime = await world.open()
    assert await (await runtime.start(flow.options(id="original"))).result() is False
    assert await (await fork(world, runtime, flow, "original", 1, with_output=None)).result() is True


async def test_an_output_that_does_not_fit_fails_the_fork_and_says_so(world: World):
    @step
    async def number() -> int:
        return 1

    flow = define_calling(number)

    runtime = await world.open()
    await (await runtime.start(flow.options(id="original"))).result()
    forked = await fork(world, runtime, flow, "original", 1, with_output="many")
    with pytest.raises(RunFailed, match="UnreadableRecord"):
        await forked.result()
    store = await world.open_store()
    with pytest.raises(ValueTooLarge, match="the output of step 'number'"):
        await fork_run(store, "original", at=1, with_output="x" * 200, max_value=100)


async def test_a_signal_and_a_child_can_be_given_another_outcome(world: World):
    @workflow
    async def child() -> str:
        return "the child's"

    @workflow
    async def flow() -> list[str]:
        return [await wait_for_signal("word"), await child()]

    runtime = await world.open()
    original = await runtime.start(flow.options(id="original"))
    await original.signal("word", "first")
    assert await original.result() == ["first", "the child's"]
    by_signal = await fork(world, runtime, flow, "original", "word", with_output="second")
    assert await by_signal.result() == ["second", "the child's"]
    by_child = await fork(world, runtime, flow, "original", "child", with_output="given")
    assert await by_child.result() == ["first", "given"]
    asked_again = await fork(world, runtime, flow, "original", 1)
    await asked_again.signal("word", "third")
    assert await asked_again.result() == ["third", "the child's"]


async def test_without_a_step_everything_recorded_is_shared(world: World):
    bench = Bench()

    @workflow
    async def flow() -> list[str]:
        return [await bench.work("a"), await wait_for_signal("go"), await bench.work("b")]

    runtime = await world.open()
    original = await runtime.start(flow.options(id="original"))
    await wait_until(lambda: runtime._engine._idle_runs and bench.log)
    forked = await fork(world, runtime, flow, "original")
    await forked.signal("go", "fork")
    assert await forked.result() == ["old a", "fork", "old b"]
    assert not (await read_run(runtime, original)).state.is_terminal
    await original.signal("go", "original")
    assert await original.result() == ["old a", "original", "old b"]
    assert bench.log == ["a", "b", "b"]


async def test_a_run_without_any_record(world: World):
    @workflow
    async def flow() -> str:
        return f"{current_run().id} {await wait_for_signal('go')}"

    runtime = await world.open()
    await runtime.start(flow.options(id="original"))
    forked = await fork(world, runtime, flow, "original", id="other")
    await forked.signal("go", 1)
    assert await forked.result() == "other 1"


async def test_a_failed_run_forked_before_its_failure(world: World):
    bench = Bench()
    broken = True

    @step
    async def bad() -> str:
        bench.log.append("bad")
        if broken:
            raise ValueError("no")
        return "good"

    @step(compensate=lambda: bench.log.append("undone"))
    async def booked() -> str:
        bench.log.append("booked")
        return "booked"

    @workflow
    async def flow() -> list[str]:
        return [await bench.work("a"), await booked(), await bad()]

    runtime = await world.open()
    await wait_until_ended(runtime, await runtime.start(flow.options(id="original")))
    assert bench.log == ["a", "booked", "bad", "undone"]
    broken = False
    forked = await fork(world, runtime, flow, "original", "booked")
    assert await forked.result() == ["old a", "booked", "good"]
    assert bench.log[4:] == ["booked", "bad"]


async def test_a_failed_run_forked_as_it_is_fails_alike(world: World):
    @workflow
    async def flow() -> None:
        raise ValueError("no")

    runtime = await world.open()
    await wait_until_ended(runtime, await runtime.start(flow.options(id="original")))
    with pytest.raises(RunFailed, match="ValueError: no"):
        await (await fork(world, runtime, flow, "original")).result()


async def test_a_fork_replays_the_time_of_its_origin(world: World, clock: VirtualClock):
    bench = Bench()

    @workflow(timeout=5000)
    async def flow() -> list[float]:
        times = [now().timestamp()]
        await asyncio.sleep(100)
        times.append(now().timestamp())
        await bench.work("a")
        times.append(now().timestamp())
        return times

    runtime = await world.open()
    began = clock.now()
    original = await runtime.start(flow.options(id="original"))
    await wait_until(lambda: runtime._engine._idle_runs)
    clock.advance(100)
    await original.result()
    clock.advance(1000)
    forked = await fork(world, runtime, flow, "original", 1)
    times = await forked.result()
    assert times == [began, began + 100, began + 1100]
    run = await read_run(runtime, forked)
    assert (run.created_at, run.deadline) == (began + 1100, began + 6100)


async def test_draws_are_equal_in_what_is_shared_and_different_after_it(world: World):
    keys: dict[str, list[str]] = {}

    @step
    async def keyed(name: str) -> str:
        me = current_step()
        keys.setdefault(me.run_id, []).append(f"{name} {me.idempotency_key}")
        return name

    def draws() -> list[str]:
        return [str(uuid4()), str(random())]

    @workflow
    async def flow() -> list[list[str]]:
        drawn = [draws()]
        for name in ("a", "b", "c"):
            await keyed(name)
            drawn.append(draws())
        return drawn

    runtime = await world.open()
    first = await (await runtime.start(flow.options(id="original"))).result()
    second = await (await fork(world, runtime, flow, "original", 3, id="fork")).result()
    assert second[:3] == first[:3]
    assert second[3] != first[3]
    assert keys["fork"][0] != keys["original"][2]
    assert keys["fork"][0].startswith("c ")
    given = await (await fork(world, runtime, flow, "original", 2, with_output="b", id="given")).result()
    assert given[:2] == first[:2]
    assert all(given[n] not in (first[n], second[n]) for n in (2, 3))


async def test_a_fork_of_a_run_that_was_retried_draws_for_itself(world: World):
    """The retry has left a gap in the journal, in front of an outcome that came later and was kept."""
    gate = asyncio.Event()
    broken = True

    @step
    async def bad() -> str:
        if broken:
            raise ConnectionError("down")
        return "bad"

    @step
    async def slow() -> str:
        await gate.wait()
        return "slow"

    @step
    async def last() -> str:
        return "last"

    @workflow
    async def flow() -> list[str]:
        async def one() -> str:
            await bad()
            return str(uuid4())

        outcomes = await asyncio.gather(one(), slow(), return_exceptions=True)
        if isinstance(outcomes[0], BaseException):
            raise outcomes[0]
        await last()
        return [str(outcomes[0]), str(uuid4())]

    runtime = await world.open()
    original = await runtime.start(flow.options(id="original"))

    async def failure_is_recorded() -> bool:
        return await describe_journal(runtime, original) == ["step bad failed"]

    await wait_until(failure_is_recorded)
    gate.set()
    await wait_until_ended(runtime, original)
    broken = False
    await retry_run(runtime.store_provider, "original")
    first = await original.result()
    assert [record.seq for record in await read_journal(runtime, "original")] == [1, 2, 3]
    forked = await fork(world, runtime, flow, "original", "slow")
    second = await forked.result()
    assert not set(first) & set(second)


async def test_a_fork_of_a_fork(world: World):
    bench = Bench()

    @workflow
    async def flow() -> list[Any]:
        drawn: list[Any] = []
        for name in ("a", "b", "c", "d"):
            drawn.append(str(uuid4()))
            drawn.append(await bench.work(name))
        return drawn

    runtime = await world.open()
    one = await (await runtime.start(flow.options(id="1"))).result()
    bench.version = "second"
    two = await (await fork(world, runtime, flow, "1", 3, id="2")).result()
    bench.version = "third"
    later = await (await fork(world, runtime, flow, "2", 4, id="3")).result()
    earlier = await (await fork(world, runtime, flow, "2", 2, id="4")).result()
    assert [part[1::2] for part in (one, two, later, earlier)] == [
        ["old a", "old b", "old c", "old d"],
        ["old a", "old b", "second c", "second d"],
        ["old a", "old b", "second c", "third d"],
        ["old a", "third b", "third c", "third d"],
    ]
    # What is drawn before a step depends on what was seen before it.
    draws = [part[0::2] for part in (one, two, later, earlier)]
    assert draws[1][:3] == draws[0][:3]
    assert draws[1][3] != draws[0][3]
    assert draws[2] == draws[1]
    assert draws[3][:2] == draws[0][:2]
    assert not {*draws[3][2:]} & {*draws[0], *draws[1]}
    assert len((await read_run(runtime, "3")).seed) == SEED_BYTES + 2 * (SEED_BYTES + 8)


async def test_a_fork_in_the_middle_of_parallel_steps_shares_what_came_before(world: World):
    bench = Bench()
    gates = {name: asyncio.Event() for name in "abc"}

    @step
    async def gated(name: str) -> str:
        bench.log.append(name)
        await gates[name].wait()
        return f"{bench.version} {name}"

    @workflow
    async def flow() -> list[str]:
        return list(await asyncio.gather(*[gated(name) for name in "abc"]))

    runtime = await world.open()
    original = await runtime.start(flow.options(id="original"))
    await wait_until(lambda: len(bench.log) == 3)
    for count, name in enumerate("cab", 1):
        gates[name].set()

        async def recorded(count: int = count) -> bool:
            return len(await read_journal(runtime, original)) == count

        await wait_until(recorded)
    await original.result()
    bench.version = "new"
    forked = await fork(world, runtime, flow, "original", 1)  # "a", which came after "c" and before "b"
    assert await forked.result() == ["new a", "new b", "old c"]
    assert sorted(bench.log[3:]) == ["a", "b"]


async def test_a_fork_starts_its_own_children(world: World):
    @workflow
    async def child() -> str:
        return current_run().id

    @workflow
    async def flow() -> list[str]:
        return [await child(), await child()]

    runtime = await world.open()
    await (await runtime.start(flow.options(id="original"))).result()
    forked = await fork(world, runtime, flow, "original", 2, id="fork")
    assert await forked.result() == ["original:child-1", "fork:child-2"]


async def test_a_large_output_is_shared(world: World):
    bench = Bench()

    @step
    async def large() -> str:
        bench.log.append("large")
        return "x" * 300_000

    @workflow
    async def flow() -> int:
        return len(await large()) + len(await bench.work("a"))

    runtime = await world.open()
    await (await runtime.start(flow.options(id="original"))).result()
    assert await (await fork(world, runtime, flow, "original", 2)).result() == 300_005
    assert bench.log == ["large", "a", "a"]


async def test_an_id_that_is_taken(world: World):
    bench = Bench()

    @workflow
    async def flow() -> str:
        return await bench.work("a")

    runtime = await world.open()
    await (await runtime.start(flow.options(id="original"))).result()
    await (await runtime.start(flow.options(id="taken"))).result()
    with pytest.raises(RunConflict, match="'taken' is taken"):
        await fork(world, runtime, flow, "original", 1, id="taken")
    assert (await read_run(runtime, "taken")).forked_from == ""


async def test_a_fork_is_executed_by_a_worker_that_serves_its_queue(world: World):
    bench = Bench()

    @workflow(queue="other")
    async def flow() -> str:
        return await bench.work("a")

    other = await world.open(queues=["other"])
    runtime = await world.open(queues=["default"])
    await (await runtime.start(flow.options(id="original"))).result()
    forked = await fork(world, runtime, flow, "original", 1)
    assert await forked.result() == "old a"
    assert (await read_run(other, forked)).queue == "other"


async def test_a_fork_has_an_id_that_a_run_may_have(world: World):
    @workflow
    async def flow() -> int:
        return 1

    runtime = await world.open()
    long = "x" * MAX_ID_LENGTH
    await (await runtime.start(flow.options(id=long))).result()
    made_up = await fork(world, runtime, flow, long)
    assert len(made_up.run_id) == MAX_ID_LENGTH
    assert "-fork-" in made_up.run_id
    for id in ("y" * (MAX_ID_LENGTH + 1), "two\nlines"):
        with pytest.raises(UsageError, match="a run's id has 1 to 200 printable characters"):
            await fork(world, runtime, flow, long, id=id)

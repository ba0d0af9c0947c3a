"""Queues as users name them: limits, whose run it is, and which run a start joins."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    Agent,
    DefinitionError,
    Handle,
    InputError,
    Queue,
    RunFailed,
    Runtime,
    Schedule,
    UsageError,
    WorkflowOptions,
    step,
    wait_for_signal,
    workflow,
)
from holdfast.authoring.registry import definitions
from holdfast.stores.operations import Run
from holdfast.stores.queues import NewQueue
from holdfast.stores.schedules import ScheduleDefinition
from holdfast.testing import Runner, ScriptedModel

pytestmark = pytest.mark.asyncio
URL = "memory://"


async def row(runtime: Runtime, handle: Handle[Any]) -> Run:
    return await runtime.store_provider.read(handle.run_id)


# Limits


async def test_a_queue_with_limits_lets_no_more_runs_be_executed_at_once_and_all_are_in_the_end():
    running, most = Counter[str](), Counter[str]()

    @step
    async def work(customer: str) -> None:
        for key in (customer, "all"):
            running[key] += 1
            most[key] = max(most[key], running[key])
        await asyncio.sleep(0.01)
        running.subtract((customer, "all"))

    @workflow(queue=Queue("llm", concurrency=2, per_key=1, key="{customer}"))
    async def bill(customer: str, number: int) -> int:
        await work(customer)
        return number

    async with Runtime(URL):
        calls = [bill(customer, number) for number in range(4) for customer in ("a", "b", "c")]
        assert await asyncio.gather(*calls) == [number for number in range(4) for _ in range(3)]
    assert most == {"all": 2, "a": 1, "b": 1, "c": 1}


async def test_a_runtime_announces_what_it_knows_and_what_comes_later():
    @workflow(queue=Queue("first", concurrency=1))
    async def flow() -> None: ...

    async with Runtime(URL, queues=["first", Queue("second", rate="1/s"), "third"]) as runtime:
        store = await runtime.store_provider.store()
        assert [(one.name, one.limits.describe()) for one in await store.queues.list()] == [
            ("first", "1 at once"),
            ("second", "1/s"),
        ]
        later = await flow.options(queue=Queue("third", concurrency=3)).start()
        assert (await row(runtime, later)).is_limited
        assert [one.name for one in await store.queues.list()] == ["first", "second", "third"]


async def test_a_run_waits_for_others_of_its_own_queue_that_has_one_place():
    @workflow(queue=Queue("single", concurrency=1))
    async def part(number: int) -> int:
        return number

    @workflow(queue="single")
    async def whole() -> int:
        return sum(await asyncio.gather(*(part.options(key=number)(number) for number in range(3))))

    async with Runtime(URL):
        assert await asyncio.wait_for(whole(), 20) == 3


# Whose run it is


async def test_the_key_of_a_run_comes_from_its_inputs_unless_it_is_given():
    queue = Queue("keyed", key="{customer}")

    @workflow(queue=queue)
    async def bill(customer: str | None = None, number: float = 1) -> None: ...

    @workflow(queue=Queue("keyed", key="{region}-{number}"))
    async def ship(region: str = "e u", number: float = 1) -> None: ...

    @workflow
    async def plain(customer: Any) -> None: ...

    async with Runtime(URL) as runtime:

        async def key(handle: Handle[Any]) -> tuple[str, str]:
            run = await row(runtime, handle)
            return run.queue, run.queue_key

        assert await key(await bill.start("acme")) == ("keyed", "acme")
        assert await key(await bill.start()) == ("keyed", "")
        assert await key(await bill.options(key="other").start("acme")) == ("keyed", "other")
        assert await key(await bill.options(queue="keyed").start("acme")) == ("keyed", "acme")
        assert await key(await bill.options(queue="elsewhere").start("acme")) == ("elsewhere", "")
        assert await key(await ship.start(number=2.0)) == ("keyed", "e u-2")
        assert await key(await plain.start(7)) == ("default", "")
        assert await key(await plain.options(queue=queue).start(7)) == ("keyed", "7")
        assert await key(await plain.options(queue=queue, key=8).start(7)) == ("keyed", "8")
        with pytest.raises(InputError, match=r"workflow 'bill': key='x\\ny' must be a text of at most 200 printable"):
            await bill.start("x\ny")
        with pytest.raises(InputError, match=r"is the key of its runs in their queue .* must be a single value"):
            await plain.options(queue=queue).start([7])


async def test_a_key_of_a_class_workflow_and_of_an_agent_is_one_of_their_inputs():
    @workflow(queue=Queue("built", key="{customer}"))
    class Build:
        @step(1)
        async def make(self, what: str) -> str:
            return what

    options = WorkflowOptions(queue=Queue("talk", concurrency=5, key="{session}"))
    agent = Agent(ScriptedModel(["hello"]), name="keyed_agent", workflow_options=options)
    async with Runtime(URL) as runtime:
        built = await row(runtime, await Build.start(what="house", customer="acme"))
        assert (built.queue, built.queue_key) == ("built", "acme")
        asked = await row(runtime, await agent.start("hi", session="s-1"))
        assert (asked.queue, asked.queue_key, asked.is_limited) == ("talk", "s-1", True)
        alone = await row(runtime, await agent.options(queue="aside", key="k").start("hi"))
        assert (alone.queue, alone.queue_key, alone.is_limited) == ("aside", "k", False)


async def test_a_child_has_a_queue_and_a_key_and_no_dedup():
    kept: list[Handle[Any]] = []

    @workflow
    async def part(customer: str) -> str:
        return customer

    @workflow
    async def whole() -> str:
        return await part.options(queue=Queue("parts", concurrency=1, key="{customer}"), priority=3)("acme")

    @workflow
    async def wrong() -> str:
        return await part.options(dedup="x", debounce=1)("acme")

    async with Runtime(URL) as runtime:
        kept.append(await whole.start())
        assert await kept[0].result() == "acme"
        child = await runtime.store_provider.read(f"{kept[0].run_id}:part-1")
        assert (child.queue, child.queue_key, child.priority) == ("parts", "acme", 3)
        with pytest.raises(RunFailed, match=r"dedup='x' is for starts from outside.*give it an id"):
            await wrong()


# Joining


async def test_a_start_with_the_same_dedup_joins_the_unfinished_run_whatever_its_inputs():
    @workflow
    async def bill(number: int) -> int:
        await wait_for_signal("go")
        return number

    @workflow
    async def other(number: int) -> int:
        return number

    async with Runtime(URL):
        once = bill.options(dedup="invoice-7")
        first, second = await once.start(1), await once.start(2)
        assert first.run_id == second.run_id
        assert (await bill.options(dedup="invoice-8").start(1)).run_id != first.run_id
        assert (await bill.options(dedup="invoice-7", queue="aside").start(1)).run_id != first.run_id
        assert await other.options(dedup="invoice-7")(5) == 5  # of another workflow: another key
        await first.signal("go")
        assert await second.result() == 1
        assert (await once.start(3)).run_id != first.run_id


async def test_starts_that_debounce_make_one_run_with_the_last_inputs():
    begun: list[int] = []

    @workflow(timeout=60)
    async def index(number: int) -> int:
        begun.append(number)
        return number

    async with Runtime(URL) as runtime:
        handles = [
            await index.options(dedup=7, debounce=wait, max_debounce=most).start(number)
            for number, (wait, most) in enumerate([(3600, None), (timedelta(hours=1), "2 h"), ("0.05 s", "5 s")])
        ]
        assert len({handle.run_id for handle in handles}) == 1
        assert await handles[0].result() == 2
        run = await row(runtime, handles[0])
        assert run.deadline is not None
        assert run.deadline - run.created_at < 70  # of the last start, too
        assert begun == [2]
        assert await index.options(dedup=7, debounce=0.01)(9) == 9


async def test_the_testing_kit_joins_and_debounces_in_virtual_time():
    @workflow(queue=Queue("tested", concurrency=1, rate="1/day"))
    async def index(number: int) -> int:
        return number

    runner = Runner()
    put_off = index.options(dedup="x", debounce="1 h")
    first, second = await runner.start(put_off, 1), await runner.start(put_off, 2)
    assert (first.status, first.run_id) == ("pending", second.run_id)
    await runner.advance(3600)
    assert (await runner.result(first.run_id)).output == 2
    for number in range(3):  # limits are the business of a fleet, and a test is none
        assert (await runner.run(index, number)).output == number


async def test_deps_belong_to_the_joined_run_and_nothing_is_kept_for_one_that_does_not_exist():
    from holdfast.agents import deps

    agent = Agent(ScriptedModel(["hello", "hello"]), name="dedup_agent", deps_type=dict)
    async with Runtime(URL):
        before = set(deps._deps_by_run)
        options = agent.options(dedup="x", debounce=0.2)
        first, second = await options.start("hi", deps={"a": 1}), await options.start("ho", deps={"a": 2})
        assert first.run_id == second.run_id
        assert set(deps._deps_by_run) - before == {first.run_id}
        assert (await first.result()).output == "hello"


# Schedules


async def test_a_schedule_keeps_the_queue_and_the_key_of_its_runs():
    queue = Queue("nightly", concurrency=1, key="{customer}")

    @workflow(queue=queue)
    async def etl(customer: str) -> None: ...

    Schedule("own", etl, "acme", every="1 h")
    Schedule("given", etl.options(key="k"), "acme", every="1 h")
    Schedule("other", etl.options(queue=Queue("aside", key="{customer}")), "acme", every="1 h")
    Schedule("plain", etl.options(queue="aside"), "acme", every="1 h")
    declared = definitions["etl"].schedules
    assert {name: (one.queue, one.queue_key) for name, one in declared.items()} == {
        "own": (None, None),
        "given": (None, "k"),
        "other": ("aside", "acme"),
        "plain": ("aside", None),
    }
    from holdfast.stores.schedules import Schedule as Kept
    from holdfast.stores.schedules import make_tick_run

    spec = definitions["etl"].to_spec()
    runs = {name: make_tick_run(Kept(one, 0, 0), spec, 3600.0, 3600.0) for name, one in declared.items()}
    assert {name: (run.queue, run.queue_key) for name, run in runs.items()} == {
        "own": ("nightly", "acme"),
        "given": ("nightly", "k"),
        "other": ("aside", "acme"),
        "plain": ("aside", ""),
    }
    given = declared["given"]
    assert (
        ScheduleDefinition(given.name, "etl", given.timing, given.inputs, is_declared_in_code=True).with_options_json(
            given.options_to_json()
        )
        == given
    )
    old = '["slow", 2, ["night"], "", null, 3]'  # as before queues had keys
    assert given.with_options_json(old).queue_key is None
    with pytest.raises(DefinitionError, match="dedup=, debounce= and version= are for a single start"):
        Schedule("wrong", etl.options(dedup="x", debounce=5), "acme", every="1 h")


# What cannot be meant


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"debounce": 5},
            "workflow 'bill': debounce=5 puts off the run that has the same dedup= key, and none is given",
        ),
        ({"max_debounce": 5}, "max_debounce=5 says how long debounce= may put a run off: give that, too"),
        ({"dedup": "x", "debounce": 5, "delay": 3}, "delay= and debounce= both say when the run begins"),
        ({"dedup": "x", "debounce": "1 min", "max_debounce": 3}, "max_debounce=3 is shorter than debounce='1 min'"),
        ({"dedup": "x", "debounce": "5 cats"}, "workflow 'bill': debounce '5 cats' is not a duration"),
        ({"dedup": "x", "new": True}, "new=True starts another run, and dedup='x' joins the one that is there"),
        ({"dedup": "x", "id": "y"}, "id='y' and dedup='x' name two runs to join"),
        ({"dedup": ""}, "dedup='' is empty"),
        ({"dedup": 7.5}, "dedup=7.5 must be a text of at most 200 printable characters, or a whole number"),
        ({"key": "a\nb"}, r"key='a\nb' must be a text"),
        ({"key": True}, "key=True must be a text"),
        ({"queue": ""}, "a queue's name is a text of 1 to 200"),
        ({"queue": 7}, "queue 7: a queue's name is a text"),
        ({"priority": float("nan")}, "priority=nan must be a whole number"),
        ({"priority": 2**63}, "the higher goes first"),
        ({"delay": float("inf")}, "delay inf is not a duration"),
        ({"tags": "abc"}, "tags is a collection of words, not one string"),
        ({"queue": Queue("q-1", key="{nobody}")}, "key='{nobody}' names 'nobody', which is no input of the workflow"),
    ],
)
async def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], words: str):
    @workflow
    async def bill(customer: str) -> None: ...

    with pytest.raises(UsageError) as caught:
        bill.options(**options)
    assert words in str(caught.value)


async def test_dedup_and_an_id_template_name_two_runs():
    @workflow(id="bill-{customer}")
    async def bill(customer: str) -> None: ...

    async with Runtime(URL):
        with pytest.raises(UsageError, match=r"has the id template 'bill-\{customer\}'.*Leave dedup= out"):
            await bill.options(dedup="x").start("acme")


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        (Queue("q-2", key="{nobody}"), r"Queue\('q-2'\): key='\{nobody\}' names 'nobody'.*\(inputs: customer\)"),
        (Queue("q-3", key="{customer.name}"), "may hold only the names of inputs"),
        (Queue("q-4", key="{customer"), "cannot be read: expected '}'"),
        ("", "a queue's name is a text"),
    ],
)
async def test_a_queue_that_does_not_fit_is_refused_when_the_workflow_is_defined(queue: Any, words: str):
    with pytest.raises(DefinitionError, match=f"workflow 'bill' .*{words}"):

        @workflow(queue=queue)
        async def bill(customer: str) -> None: ...

    options = WorkflowOptions(queue=Queue("q-5", key="{customer}"))
    with pytest.raises(DefinitionError, match="agent 'unfit'"):
        Agent(ScriptedModel(["hello"]), name="unfit", workflow_options=options)
    async with Runtime(URL) as runtime:
        assert await (await runtime.store_provider.store()).queues.list() == []


async def test_two_queues_of_one_name_with_different_limits_are_refused_and_both_are_named():
    @workflow(queue=Queue("shared", concurrency=2))
    async def one() -> None: ...

    @workflow(queue=Queue("shared", concurrency=2, key="{customer}"))  # the limits are the same
    async def two(customer: str) -> None: ...

    with pytest.raises(UsageError, match=r"named 'shared'.*test_queue_options.py:\d+ \(2 at once\) and .* \(1/s\)"):
        one.options(queue=Queue("shared", rate="1/s"))
    with pytest.raises(DefinitionError, match=r"workflow 'three' .*two queues are named 'shared'"):

        @workflow(queue=Queue("shared"))
        async def three() -> None: ...

    for most in (1, 2):  # the same place once more: a module that was loaded again, and has changed
        Runtime(URL, queues=[Queue("again", concurrency=most)])
    async with Runtime(URL) as runtime:
        again = {one.name: one.limits.concurrency for one in await (await runtime.store_provider.store()).queues.list()}
        assert again == {"shared": 2, "again": 2}


@pytest.mark.parametrize("queues", ["llm", Queue("llm")])
async def test_a_runtime_serves_a_collection_of_queues(queues: Any):
    with pytest.raises(UsageError, match=r"queues is a collection of queues, not one: queues=\["):
        Runtime(URL, queues=queues)


async def test_what_was_announced_before_is_not_said_again():
    @workflow(queue=Queue("said", concurrency=1))
    async def flow() -> None: ...

    async with Runtime(URL) as runtime:
        store = await runtime.store_provider.store()
        await store.queues.declare([NewQueue("said", Queue("said", concurrency=9).limits)])  # newer code, elsewhere
        await flow()
        assert [one.limits.concurrency for one in await store.queues.list()] == [9]

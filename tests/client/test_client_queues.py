"""Queues from a client: what it is told of them, what it sets, and the runs that it starts into them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import Client, Queue, QueueInfo, Runtime, UnknownQueue, UsageError, step, wait_for_signal, workflow
from holdfast.admission.queue_limits import QueueLimits
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.operations import StartResult
from holdfast.stores.queues import NewQueue
from holdfast.stores.urls import create_store
from holdfast.stores.workers import NewWorker


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(f"sqlite:///{tmp_path}/runs.db")


async def announce(client: Client, *queues: Queue, key: str | None = None) -> Store:
    """A worker with code for ``etl`` in queue ``llm`` is there, which executes nothing."""
    store = create_store(client.url)
    await store.open()
    await store.queues.declare([NewQueue(one.name, one.limits) for one in queues])
    await store.announce_workflows([WorkflowSpec("etl", ("customer", "number"), queue="llm", queue_key_template=key)])
    await store.workers.register(NewWorker("w", "elsewhere", 1, ("etl",)), 60)
    return store


async def claim(store: Store, many: int) -> None:
    [worker] = [one.id for one in await store.list_workers()]
    assert len(await store.claims.claim(worker, workflows=["etl"], queues=None, limit=many)) == many


@pytest.mark.asyncio
async def test_queue_info(client: Client):
    queue = Queue("llm", concurrency=2, rate="3/hour", per_key=1, key="{customer}")
    store = await announce(client, queue, Queue("other", rate="1/s"), key=queue.key)
    async with client:
        await client.start_many("etl", [("a", 1), ("a", 2), ("b", 1), {"customer": None, "number": 1}])
        await claim(store, 2)
        llm, other = await client.queues.list()
        assert isinstance(llm, QueueInfo)
        assert await client.queues.get("llm") == llm
        assert (llm.name, llm.limits_text) == ("llm", "2 at once, 3/hour; each key: 1 at once")
        assert (llm.concurrency, llm.rate, llm.key_concurrency, llm.key_rate) == (2, ("3/hour",), 1, ())
        assert (llm.is_overridden, llm.declared_limits, llm.paused_at) == (False, llm.limits_text, None)
        assert (llm.running_count, llm.waiting_count) == (2, 2)
        assert {(one.key, one.running_count, one.waiting_count) for one in llm.keys} == {
            ("a", 1, 1),
            ("b", 1, 0),
            ("", 0, 1),
        }
        assert llm.blocked_reason == "waits for a place in queue 'llm' (2 of 2 running)"
        assert (other.running_count, other.waiting_count, other.blocked_reason, other.next_start_at) == (
            0,
            0,
            None,
            None,
        )

        await client.queues.set("llm", concurrency=9, key_concurrency=None)
        await claim(store, 1)
        llm = await client.queues.get("llm")
        assert llm.next_start_at is not None
        assert llm.next_start_at > datetime.now(UTC)
        assert llm.blocked_reason is not None
        assert llm.blocked_reason.endswith("for the rate of queue 'llm' (3/hour)")
        with pytest.raises(UnknownQueue, match=r"no queue 'lm' with limits.*: did you mean 'llm'\?"):
            await client.queues.get("lm")
    await store.close()


@pytest.mark.asyncio
async def test_set_changes_only_given_limits_until_reset(client: Client):
    store = await announce(client, Queue("llm", concurrency=2, rate="100/min"))
    async with client:
        queues = client.queues
        assert await queues.set("llm", rate=["50/min", "900 tokens/min"], key_rate="1/s")
        assert not await queues.set("llm", rate=["50/min", "900 tokens/min"])
        llm = await queues.get("llm")
        assert llm.limits_text == "2 at once, 50/min, 900 tokens/min; each key: 1/s"
        assert (llm.is_overridden, llm.declared_limits) == (True, "2 at once, 100/min")
        await store.queues.declare([NewQueue("llm", QueueLimits(concurrency=7))])
        assert (await queues.get("llm")).limits_text == llm.limits_text
        assert await queues.set("llm", rate=None, concurrency=None, key_rate=None)
        assert (await queues.get("llm")).limits_text == "no limits"
        assert (await queues.reset("llm"), await queues.reset("llm")) == (True, False)
        llm = await queues.get("llm")
        assert (llm.limits_text, llm.is_overridden) == ("7 at once", False)

        assert await queues.set("mine", concurrency=1)  # nobody has spoken of it before
        assert (await queues.get("mine")).declared_limits is None
        assert await queues.reset("mine")
        for change in (queues.get, queues.reset, queues.resume):
            with pytest.raises(
                UnknownQueue, match=r"no queue 'mine' with limits.*there are: 'llm'.*holdfast queues set"
            ):
                await change("mine")
        with pytest.raises(UnknownQueue, match=r"no queue 'mine' in .*, so nothing changed: there are: 'llm'"):
            await queues.pause("mine")
        assert (await queues.pause("mine", allow_unknown=True), await queues.pause("mine")) == (True, False)
        mine = await queues.get("mine")
        assert (mine.limits_text, mine.blocked_reason) == ("no limits", "queue 'mine' is paused")
        assert mine.paused_at is not None
        assert await queues.resume("mine")
        assert [one.name for one in await queues.list()] == ["llm"]
    await store.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "queue 'llm': what is to be set? Give concurrency=, rate=, key_concurrency= or key_rate="),
        (
            {"concurrency": 0},
            "queue 'llm': concurrency=0 must be a whole number, 1 or more. To let nothing begin, pause",
        ),
        ({"rate": "x"}, "queue 'llm': rate 'x': say how many, and in how much time"),
        ({"key_rate": 5}, "queue 'llm': rate=5: give a text such as '100/min'"),
    ],
)
def test_invalid_limits_are_refused(client: Client, given: dict[str, Any], words: str):
    with pytest.raises(UsageError) as caught:
        client.queues.set_sync("llm", **given)
    assert words in str(caught.value)
    with pytest.raises(UsageError, match="a queue's name is a text"):
        client.queues.pause_sync("")


def test_the_forms_without_an_event_loop(client: Client):
    queues = client.queues
    assert queues.set_sync("llm", concurrency=2)
    assert [one.name for one in queues.list_sync()] == ["llm"]
    assert queues.pause_sync("llm")
    assert queues.get_sync("llm").concurrency == 2
    assert queues.resume_sync("llm")
    assert queues.reset_sync("llm")


# Starting


@pytest.mark.asyncio
async def test_a_client_without_the_code_gives_runs_the_same_key(client: Client):
    @workflow(queue=Queue("llm", concurrency=5, key="{customer}/{number}"))
    async def etl(customer: str | None = "ac me", number: float = 1, other: int = 0) -> None: ...

    keys: list[str] = []
    async with Runtime(client.url) as runtime, client:
        for arguments in ({}, {"customer": "b"}, {"number": 2.0}, {"customer": None}, {"other": 3}):
            mine, theirs = await etl.options(new=True).start(**arguments), await client.start("etl", **arguments)
            keys.append((await client.get(theirs.run_id)).queue_key)
            assert (await runtime.store_provider.read(mine.run_id)).queue_key == keys[-1]
        assert keys == ["ac me/1", "b/1", "ac me/2", "/1", "ac me/1"]
        assert [(await client.get(run)).queue_key for run in await client.start_many("etl", [("x", 3)])] == ["x/3"]


@pytest.mark.asyncio
async def test_a_client_accepts_a_queue_with_limits_and_a_key(client: Client):
    store = await announce(client)
    async with client:
        handed = client.options(queue=Queue("aside", concurrency=1, key="{customer}"))
        run = await client.get((await handed.start("etl", "acme", 1)).run_id)
        assert (run.queue, run.queue_key) == ("aside", "acme")
        assert (await client.queues.get("aside")).declared_limits == "1 at once"
        await client.queues.set("aside", concurrency=3)
        [many] = await handed.start_many("etl", [("acme", 2)])
        assert (await client.queues.get("aside")).limits_text == "3 at once"
        assert (await client.get(many)).queue_key == "acme"
        named = await client.get((await client.options(queue="llm", key=7).start("etl", "acme", 1)).run_id)
        assert (named.queue, named.queue_key) == ("llm", "7")
        unfit = client.options(queue=Queue("unfit", key="{nobody}"))
        with pytest.raises(Exception, match=r"workflow 'etl' in Queue\('unfit'\): key='\{nobody\}' names 'nobody'"):
            await unfit.start("etl", "acme", 1)
    await store.close()


@pytest.mark.asyncio
async def test_starts_of_a_client_join_by_their_dedup_and_debounce(client: Client):
    store = await announce(client)
    await store.announce_workflows([WorkflowSpec("named", ("customer",), id_template="n-{customer}")])
    async with client:
        once = client.options(dedup="invoice-7")
        first = await once.start("etl", "acme", 1)
        assert (await once.start("etl", "other", 2)).run_id == first.run_id
        late = client.options(dedup="x", debounce="1 h")
        put_off = await late.start("etl", "acme", 1)
        assert (await late.start("etl", "acme", 2)).run_id == put_off.run_id != first.run_id
        assert (await client.get(put_off.run_id)).inputs == {"customer": "acme", "number": 2}
        with pytest.raises(
            UsageError, match=r"start_many starts many runs, and with dedup='x' all of them would be one"
        ):
            await late.start_many("etl", [("acme", 1)])
        with pytest.raises(UsageError, match=r"workflow 'named' has the id template"):
            await once.start("named", "acme")
        with pytest.raises(UsageError, match=r"debounce=5 puts off the run that has the same dedup= key"):
            client.options(debounce=5)
    await store.close()


@pytest.mark.asyncio
async def test_a_fork_has_the_queue_and_the_key_of_its_origin(client: Client):
    @step
    async def fetch() -> int:
        return 1

    @workflow(queue=Queue("forked", concurrency=2, key="{customer}"))
    async def origin(customer: str) -> int:
        return await fetch()

    async with Runtime(client.url), client:
        handle = await origin.start("acme")
        await handle.result()
        fork = await client.get((await client.fork(handle.run_id, at="fetch")).run_id)
        assert (fork.queue, fork.queue_key) == ("forked", "acme")


@pytest.mark.asyncio
async def test_a_client_makes_schedules_whose_runs_have_a_queue_and_a_key(client: Client):
    store = await announce(client, key="{customer}")
    async with client:
        make, every = client.schedules.create, {"every": "1 h", "args": ["acme", 1]}
        assert (await make("own", "etl", **every)).key is None
        assert (await make("given", "etl", key="k", **every)).key == "k"
        other = await make("other", "etl", queue=Queue("aside", concurrency=1, key="{number}"), **every)
        assert (other.queue, other.key) == ("aside", "1")
        assert (await client.queues.get("aside")).concurrency == 1
        runs = [await client.get(await client.schedules.trigger(name)) for name in ("own", "given", "other")]
        assert [(run.queue, run.queue_key) for run in runs] == [("llm", "acme"), ("llm", "k"), ("aside", "1")]
        assert (await client.schedules.get("given")).key == "k"
        with pytest.raises(UsageError, match=r"schedule 'wrong': key=True must be a text"):
            await make("wrong", "etl", key=True, **every)
    await store.close()


# Why a run does not go on


@pytest.mark.asyncio
async def test_a_queued_run_says_what_it_waits_for(client: Client):
    queue = Queue("llm", concurrency=2, rate="3/hour", per_key=1, key="{customer}")
    store = await announce(client, queue, key=queue.key)
    async with client:
        ids = await client.start_many("etl", [("a", 1), ("a", 2), ("b", 1), ("c", 1), ("c", 2)])

        async def stalled(number: int) -> str | None:
            return (await client.get(ids[number])).stall_advice

        assert await stalled(0) is None
        await claim(store, 1)
        assert await stalled(1) == (
            f"run {ids[1]!r} waits for a place in queue 'llm' (key 'a': 1 of 1 running): `holdfast queues show llm` "
            f"tells how it is there"
        )
        assert (await stalled(0), await stalled(2)) == (None, None)
        await claim(store, 1)
        assert str(await stalled(3)).startswith(f"run {ids[3]!r} waits for a place in queue 'llm' (2 of 2 running)")
        await client.queues.set("llm", concurrency=None, key_concurrency=None)
        await claim(store, 1)
        listed = {run.id: run.stall_advice for run in await client.list()}
        assert sum("for the rate of queue 'llm' (3/hour)" in str(why) for why in listed.values()) == 2
        await client.queues.pause("llm")
        paused = [run for run in await client.list() if "is paused" in str(run.stall_advice)]
        assert len(paused) == 2
        assert "`holdfast queues resume llm` lets its runs go on" in str(paused[0].stall_advice)
    await store.close()


@pytest.mark.asyncio
async def test_a_parked_run_does_not_wait_in_its_queue(client: Client):
    @workflow(queue=Queue("narrow", concurrency=1))
    async def waits() -> None:
        await wait_for_signal("go")

    async with Runtime(client.url), client:
        runs = [await waits.options(new=True).start() for _ in range(2)]
        while len(await client.list(state="waiting")) < 2:  # noqa: ASYNC110 - the first parks, and gives up its place
            await asyncio.sleep(0.05)
        assert [(await client.get(run.run_id)).stall_advice for run in runs] == [None, None]


def test_a_start_that_joined_is_accepted_whatever_it_joined():
    from holdfast.core.states import RunState
    from holdfast.services.run_start import StartOptions, build_new_run, resolve_start
    from holdfast.stores.rules import make_run

    spec = WorkflowSpec("etl", ("customer",))
    mine = build_new_run(spec, b'{"customer":"a"}', StartOptions(dedup="x"), now=1.0)
    theirs = make_run(
        build_new_run(spec, b'{"customer":"b"}', StartOptions(dedup="x"), now=0.0), 1, None, 0.0, "", False
    )
    assert resolve_start(StartResult(theirs, is_new=False, is_deduplicated=True), mine) is theirs
    assert theirs.state is RunState.PENDING
    assert (
        mine.dedup_key
        != build_new_run(WorkflowSpec("etl2", ("customer",)), b"{}", StartOptions(dedup="x"), now=1.0).dedup_key
    )

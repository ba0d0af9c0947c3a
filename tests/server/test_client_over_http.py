"""A client over a server does what a client over the store does: the same results, the same values, the same errors."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from operator import methodcaller
from typing import Any

import pytest
from asgi_server import AsgiServer
from live_server import running_live_server
from pydantic_ai.messages import ModelResponse, TextPart
from server_worker import running_worker

from holdfast import (
    Agent,
    AgentResult,
    Budget,
    Client,
    Event,
    Handle,
    HoldfastError,
    InputError,
    Queue,
    RunFailed,
    RunNotFound,
    SettleRefused,
    StepOutcomeUnknown,
    UnknownQueue,
    UnknownWorkflow,
    UsageError,
    ask,
    step,
    wait_for_signal,
    workflow,
)
from holdfast.client.http.client import HttpClient
from holdfast.client.http.problems import ERRORS_BY_TYPE, error_from_problem
from holdfast.client.http.resources import HttpAddresses, HttpKeys, HttpMemory, HttpPolicies, HttpQueues, HttpSchedules
from holdfast.client.resources import (
    ClientAddresses,
    ClientKeys,
    ClientMemory,
    ClientPolicies,
    ClientQueues,
    ClientSchedules,
)
from holdfast.errors import SchemaTooNew, StoreUnavailable
from holdfast.services.problems import _PROBLEMS_BY_ERROR
from holdfast.testing import ScriptedModel, call

pytestmark = pytest.mark.asyncio

ODD = {
    "when": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
    "pair": (1, "two"),
    "raw": b"\x00\xff",
    "price": Decimal("1.10"),
    "span": timedelta(days=1, microseconds=1),
    "set": {1, 2},
    "$tagged": {"$json": [{"$tuple": []}]},
    7: "a key that is no text",
    "big": 10**30,
    "text": "ä\u2028\x7f",
}
"""Values that plain JSON would change."""

healed = False


@step
async def http_look(what: Any) -> Any:
    return what


@workflow
async def http_echo(value: Any = None, *, again: Any = None) -> Any:
    return [await http_look(value), again]


@workflow(id="http-order/{number}?")
async def http_order(number: int) -> int:
    return number


@workflow
async def http_waiting(name: str = "go") -> Any:
    return await wait_for_signal(name)


@workflow
async def http_stopping() -> Any:
    await http_look(1)
    return await http_look(await wait_for_signal("go"))


@step
async def http_fragile() -> str:
    if not healed:
        raise ConnectionError("the line is down\nand so is the spare one")
    return "up"


@workflow
async def http_mending() -> str:
    return await http_fragile()


@step(effect="once")
async def http_pay(_: int) -> datetime:
    raise StepOutcomeUnknown("the line broke", "http_pay")  # as if its worker had died


@workflow
async def http_paying() -> list[datetime]:
    return [await http_pay(number) for number in (1, 2)]


async def unmade() -> None:
    pass


@step(compensate=unmade)
async def http_made() -> None:
    pass


@workflow
async def http_undone() -> None:
    await http_made()
    raise ValueError("and all of it back")


@workflow
async def http_asking() -> Any:
    return [await ask("Sure?"), await ask("Which?", choices=["a", "b"]), await ask("How many?", form=int)]


@dataclass
class Note:
    text: str
    at: datetime


@pytest.fixture(autouse=True)
def not_healed() -> None:
    global healed
    healed = False


@asynccontextmanager
async def both(worker: bool = True) -> AsyncIterator[tuple[Client, Client]]:
    """A client over the store and one over a server, with a worker beside them."""
    async with running_live_server() as server, AsyncExitStack() as stack:
        tenant = await server.app.platform.tenants.get_tenant("default")
        served = AsgiServer(server.app, "memory://")
        async with running_worker(served):
            if worker:
                await stack.enter_async_context(running_worker(served))
        store = Client.from_connections(tenant.connections)
        yield store, await stack.enter_async_context(Client(server.address))


async def what_it_raises(call: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
    """The error of a call, with all that it tells."""
    try:
        return ("nothing was raised", await call)
    except HoldfastError as error:
        cause = error.__cause__
        words = str(error).replace("memory://", "this server's store")  # whose URL is not for everybody
        return (type(error), words, vars(error), type(cause), str(cause))


async def events_of(run: Handle[Any], after: str | None = None) -> list[Event]:
    return [event async for event in run.events(after)]


async def ended(client: Client, run_id: str) -> None:
    async for event in client.events(run_id):
        if event.kind == "ended":
            return


# That nothing is lacking


@pytest.mark.parametrize(
    ("over_store", "over_http"),
    [
        (Client, HttpClient),
        (ClientMemory, HttpMemory),
        (ClientSchedules, HttpSchedules),
        (ClientQueues, HttpQueues),
        (ClientAddresses, HttpAddresses),
        (ClientPolicies, HttpPolicies),
        (ClientKeys, HttpKeys),
    ],
)
async def test_http_overrides_every_method_that_uses_the_store(over_store: type, over_http: type) -> None:
    for name, method in inspect.getmembers(over_store, inspect.isfunction):
        if name in ("__init__", "_use_connections"):
            continue
        uses_store = not {"_provider", "connections"}.isdisjoint(method.__code__.co_names)
        assert not uses_store or getattr(over_http, name) is not method, f"{over_http.__name__} lacks {name}"
        if not name.startswith("_") and not name.endswith("_sync"):
            declared, implemented = inspect.signature(method), inspect.signature(getattr(over_http, name))
            assert declared.parameters == implemented.parameters, f"{over_http.__name__}.{name}"


async def test_every_error_of_a_server_is_raised_as_itself_by_the_client() -> None:
    # The server is outdated, and not the client: another server may answer.
    others = {SchemaTooNew: StoreUnavailable}
    for kind, (_, name, _) in _PROBLEMS_BY_ERROR.items():
        fields = {"run_id": "r", "approval_id": "a"}
        error = error_from_problem(ERRORS_BY_TYPE[name], "words", fields)
        assert isinstance(error, others.get(kind, kind)), name


async def test_names_that_nothing_has_are_refused_alike() -> None:
    async with both() as (store, http):
        for client in (store, http):
            for change in (client.disable, client.enable):
                with pytest.raises(UnknownWorkflow, match=r"so nothing changed: did you mean 'http_echo'\?"):
                    await change("http_eco")
            with pytest.raises(UnknownQueue, match=r"so nothing changed: did you mean 'default'\?"):
                await client.queues.pause("defalt")
        assert await store.disabled_workflows() == {}
        assert await store.queues.list() == []
        assert await http.disable("later", allow_unknown=True)
        assert not await store.disable("later")  # it is known now
        assert await http.enable("later")
        assert await http.queues.pause("later", allow_unknown=True)
        assert not await store.queues.pause("later")
        await http.options(queue="aside", delay=60).start("http_echo", 1)
        assert await http.queues.pause("aside")  # a run is in it


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.queues.set("llm", concurrency=0),
        lambda client: client.queues.set("llm", concurrency="x"),
        lambda client: client.queues.set("llm", key_concurrency=-3),
        lambda client: client.queues.set("llm", rate=5.5),
        lambda client: client.queues.set("llm", key_rate="often"),
        lambda client: client.addresses.set("box", max_deliveries=0),
        lambda client: client.addresses.set("box", webhook_timeout=10_000),
        lambda client: client.prune("1 day", keep=-1),
        lambda client: client.options(id="").start("http_echo", 1),
        lambda client: client.fork("some-run", id=""),
        lambda client: client.describe("some-run", limit=0),
        lambda client: client.usage("nope"),
    ],
)
async def test_arguments_that_cannot_work_are_refused_alike(call: Callable[[Client], Coroutine[Any, Any, Any]]) -> None:
    async with both() as (store, http):
        await store.options(id="some-run").start("http_echo", 1)
        over_store, over_http = await what_it_raises(call(store)), await what_it_raises(call(http))
        assert over_store[:2] == over_http[:2]
        assert over_store[0] in (UsageError, RunNotFound)


@pytest.mark.parametrize(
    "options",
    [
        {"catch_up": "lst"},
        {"overlap": "never"},
        {"max_catch_up": 0},
        {"priority": 10**12},
        {"priority": "high"},
        {"tags": "one"},
        {"max_deliveries": 0},
        {"start": datetime(2030, 1, 1)},
        {"every": 0},
        {"every": timedelta(0)},
        {"every": "soon"},
        {"cron": "0 0 * * *"},
        {"every": None},
        {"name": ""},
        {"key": True},
        {"queue": ""},
    ],
)
async def test_schedule_options_that_cannot_work_are_refused_alike(options: dict[str, Any]) -> None:
    async with both() as (store, http):
        given = {"name": "nightly", "workflow": "http_echo", "every": 60, "args": [1], **options}
        over_store = await what_it_raises(store.schedules.create(**given))
        assert over_store[0] is UsageError
        assert over_store == await what_it_raises(http.schedules.create(**given))


async def test_ids_are_generated_alike() -> None:
    async with both() as (store, http):
        for client in (store, http):
            generated = r"-[0-9a-f]{11}-[0-9a-f]{10}"
            run = await client.start("http_echo", 1)
            assert re.fullmatch(f"http_echo{generated}", run.run_id)
            [many] = await client.start_many("http_echo", [[1]])
            assert many.startswith("http_echo-")
            assert re.fullmatch(f"box{generated}", (await client.send("box", 1)).run_id)
            await run.result(30)
            assert (await client.fork(run.run_id)).run_id.startswith(f"{run.run_id}-fork-")
            await client.schedules.create("nightly", "http_echo", every=6000, args=[1])
            triggered = await client.schedules.trigger("nightly")
            assert triggered.startswith("nightly")
            assert "-by-hand-" in triggered


# Values


async def test_values_are_the_same_over_http() -> None:
    async with both() as (store, http):
        started = await http.start("http_echo", ODD, again=(ODD,))
        assert await started.result() == [ODD, (ODD,)]
        info, info_over_http = await store.get(started.run_id), await http.get(started.run_id)
        assert info == info_over_http
        assert type(info_over_http.inputs["again"]) is tuple
        assert await store.wait(started.run_id) == await http.wait(started.run_id)
        assert [event async for event in store.events(started.run_id)] == [
            event async for event in http.events(started.run_id)
        ]
        waiting = await http.start("http_waiting")
        assert await http.signal(waiting.run_id, "go", ODD)
        assert await waiting.result(30) == ODD
        await http.memory.put("odd", "one", ODD, text="several")
        assert await store.memory.get("odd", "one") == await http.memory.get("odd", "one") == ODD


async def test_an_unrecordable_value_is_refused_before_it_is_sent() -> None:
    async with both(worker=False) as (store, http):
        for client in (store, http):
            with pytest.raises(HoldfastError, match="object"):
                await client.signal("any", "go", object())
        small = Client(http.url, max_value=100)
        with pytest.raises(HoldfastError, match="the inputs of workflow 'http_echo' takes"):
            await small.start("http_echo", "x" * 101)
        await small.close()


# Runs


async def test_runs_are_started_alike() -> None:
    async with both() as (_, http):
        queue = Queue("http-queue", concurrency=2, rate=["100/min"], per_key=1, key="{value}")
        options = http.options(
            id="odd/id?#%",
            queue=queue,
            delay=0.01,
            priority=3,
            tags=["a b", "ü"],
            budget=Budget(usd=1),
            max_deliveries=2,
        )
        run = await options.start("http_echo", "acme")
        assert run.run_id == "odd/id?#%"
        assert await run.result(30) == ["acme", None]
        info = await run.info()
        assert (info.queue, info.queue_key, info.tags) == ("http-queue", "acme", ("a b", "ü"))
        assert (await http.queues.get("http-queue")).concurrency == 2
        assert await http.run("http_order", 7) == 7
        assert (await http.start("http_order", 7)).run_id == "http-order/7?"
        joined = [await http.options(dedup="x", delay=60).start("http_waiting", name) for name in ("go", "other")]
        assert joined[0].run_id == joined[1].run_id
        ids = await http.start_many("http_order", ([number] for number in range(1100)))
        assert len(set(ids)) == 1100
        assert await http.start_many("http_order", [{"number": 1}, (2,)]) == ids[1:3]
        assert await http.start_many("http_order", []) == []


async def test_lists_are_paged_and_the_same_over_http() -> None:
    async with both(worker=False) as (store, http):
        ids = await store.options(tags=["many"]).start_many("http_echo", [(number,) for number in range(1203)])
        assert [run.id for run in await http.list(tag="many", limit=2000)] == ids[::-1]
        assert await http.list(tag="many", limit=3) == await store.list(tag="many", limit=3)
        before = {"before": ids[600], "limit": 2}
        assert await http.list(**before) == await store.list(**before)
        between = {"created_after": datetime(2020, 1, 1, tzinfo=UTC), "state": ["pending", "failed"], "text": "echo"}
        assert await http.list(**between) == await store.list(**between) != []
        assert await http.list(state="completed") == []
        assert await what_it_raises(http.list(state="gone")) == await what_it_raises(store.list(state="gone"))


async def test_an_agents_result_has_its_usage_and_its_plan() -> None:
    plan = call("write_plan", items=[{"task": "dig", "status": "done"}])
    agent = Agent(ScriptedModel([plan, "A bone."]), name="http-digger", planning=True)
    async with both() as (store, http):
        run_id = (await agent.start("Dig.")).run_id
        result = await http.wait(run_id, 30)
        assert isinstance(result, AgentResult)
        for question in (methodcaller(name, run_id) for name in ("wait", "plan", "usage", "get")):
            assert await question(http) == await question(store)
        assert await http.usage_report() == await store.usage_report()
        days = {"since": date(2020, 1, 1), "until": datetime.now(UTC), "workflow": "http-digger"}
        assert (await http.usage_report(**days)).total == (await store.usage_report(**days)).total == result.usage
        assert (result.output, result.run_id, result.usage.calls) == ("A bone.", run_id, 2)
        healths = {one.name: one for one in await http.health()}
        mine = {one.name: one for one in await store.health()}["http-digger"]
        assert healths["http-digger"].run_counts == mine.run_counts
        assert (healths["http-digger"].is_agent, healths["http-digger"].state) == (True, mine.state)


async def test_an_agents_result_has_the_finish_reason_of_its_answer() -> None:
    reply = ModelResponse([TextPart("A")], finish_reason="content_filter", provider_details={"refusal": "Not more."})
    agent = Agent(ScriptedModel([reply]), name="http-refuser")
    async with both() as (store, http):
        run_id = (await agent.start("Dig.")).run_id
        result = await http.wait(run_id, 30)
        assert result == await store.wait(run_id)
        assert (result.finish_reason, result.refusal) == ("content_filter", "Not more.")
        assert await store.conversation(run_id) == await http.conversation(run_id)


async def test_reports_conversations_and_run_trees_are_the_same_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = call("write_plan", items=[{"task": "dig", "status": "done"}])
    agent = Agent(ScriptedModel([plan, "A bone."]), name="http-teller", planning=True)
    async with both() as (store, http):
        echoed = await http.start("http_echo", ODD, again=(ODD,))
        agent_run_id = (await agent.start("Dig.")).run_id
        await http.wait(agent_run_id, 30)
        await echoed.result(30)
        for run_id in (agent_run_id, echoed.run_id):
            here, there = await store.describe(run_id, full=True), await http.describe(run_id, full=True)
            assert replace(there, reported_at=here.reported_at) == here
            assert there.summary.startswith("Completed in ")
            assert await store.conversation(run_id) == await http.conversation(run_id)
            assert await store.tree(run_id) == await http.tree(run_id) == await http.handle(run_id).tree()
        assert (await http.describe(echoed.run_id)).journal[0].output == ODD
        assert [item.task for item in (await http.describe(agent_run_id)).plan] == ["dig"]
        assert [one.role for one in await http.conversation(agent_run_id)] == ["user", "model", "tool", "model"]
        monkeypatch.setattr("holdfast.client.http.runs.PAGE_SIZE", 2)  # so that there are several pages
        assert replace(
            await http.describe(agent_run_id, limit=None, full=True), reported_at=here.reported_at
        ) == replace(await store.describe(agent_run_id, limit=None, full=True), reported_at=here.reported_at)
        two = await http.describe(agent_run_id, 0, 1)
        assert ([one.seq for one in two.journal], two.has_more) == ([1], True)


async def test_runs_are_changed_alike() -> None:
    global healed
    async with both() as (store, http):
        run = await http.start("http_waiting")
        assert [await run.pause(), await run.pause(), (await store.get(run.run_id)).is_paused] == [True, False, True]
        assert [await run.resume(), await run.resume()] == [True, False]
        assert [await run.signal("other", 1, id="a"), await run.signal("other", 1, id="a")] == [True, False]
        assert [await run.signal("other", 1), await run.signal("other", 1)] == [True, True]
        assert await run.cancel()
        broken = await http.start("http_mending")
        with pytest.raises(RunFailed, match="ConnectionError: the line is down") as failed:
            await broken.result(30)
        assert isinstance(failed.value.__cause__, ConnectionError)
        healed = True
        await http.retry(broken.run_id)
        assert await broken.result(30) == "up"
        fork = await http.fork(broken.run_id, at="http_fragile", with_output="from elsewhere")
        assert await fork.result(30) == "from elsewhere"
        assert (await fork.info()).forked_from == broken.run_id
        assert await (await http.fork(broken.run_id, at=1, id="my-fork")).result(30) == "up"
        assert [await http.disable("http_echo"), await http.disable("http_echo")] == [True, False]
        refused = [await what_it_raises(client.options(id="off").start("http_echo")) for client in (store, http)]
        assert refused[0] == refused[1]
        assert await http.enable("http_echo")
        report = await http.prune(0.0, run_ids=[fork.run_id], dry_run=True)
        assert report == await store.prune(timedelta(0), run_ids=[fork.run_id], dry_run=True)
        assert (await http.prune(timedelta(0), run_ids=[fork.run_id])).run_count == 1


async def test_unknown_outcomes_are_settled_alike() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    async with both() as (store, http):
        runs = []
        for client in (store, http):
            run = await client.start("http_paying")
            await ended(client, run.run_id)
            await client.settle(run.run_id, 1, moment, by="Ada")
            await ended(client, run.run_id)
            with pytest.raises(SettleRefused, match=r"step 1 .* was settled before, and the run is failed"):
                await client.settle(run.run_id, 1, moment)
            await client.settle(run.run_id, "http_pay", moment)
            assert await run.result(30) == ["2030-01-01T00:00:00Z"] * 2
            runs.append(await store.connections.read(run.run_id))
        backend_store = await store.connections.store()
        histories = await backend_store.get_histories([run.key for run in runs])
        records = [[(one.seq, one.payload, one.attempts) for one in history.records] for history in histories]
        assert records[0] == records[1]
        assert all(history.records[0].preview == "_=1; settled by Ada" for history in histories)
        unpaid = (await http.options(id="unpaid").start("http_paying")).run_id
        await ended(http, unpaid)
        calls: list[Callable[[Client], Coroutine[Any, Any, Any]]] = [
            lambda client: client.settle("nobody", 1, 1),
            lambda client: client.settle(unpaid, 2, 1),
            lambda client: client.settle(unpaid, "http_lock", 1),
            lambda client: client.settle(unpaid, 1),
            lambda client: client.settle(unpaid, 1, 1, happened=False),
        ]
        for number, one in enumerate(calls):
            errors = [await what_it_raises(one(client)) for client in (store, http)]
            assert errors[0] == errors[1], f"call {number}"
            assert errors[0][0] != "nothing was raised", f"call {number}"
        await http.settle(unpaid, 1, happened=False)
        await ended(http, unpaid)
        assert (await http.get(unpaid)).state == "failed", "it ran again, and is of unknown outcome again"


async def test_errors_are_the_same() -> None:
    async with both() as (store, http):
        done = (await http.options(id="done").start("http_echo", 1)).run_id
        await http.wait(done, 30)
        failed = (await http.options(id="failed").start("http_mending")).run_id
        undone = (await http.options(id="undone").start("http_undone")).run_id
        open_ = (await http.options(id="open").start("http_waiting")).run_id
        cancelled = (await http.options(id="cancelled").start("http_waiting")).run_id
        await http.cancel(cancelled)
        for run_id in (failed, undone, cancelled):
            await ended(http, run_id)
        calls: list[Callable[[Client], Coroutine[Any, Any, Any]]] = [
            lambda client: client.start("http_ecko"),
            lambda client: client.options(version="9").start("http_echo"),
            lambda client: client.start("http_echo", 1, 2, 3),
            lambda client: client.start("http_order", "seven", number=8),
            lambda client: client.options(id="done").start("http_echo", 2),
            lambda client: client.options(id="done").start("http_order", 2),
            lambda client: client.options(id="x").start_many("http_echo", [()]),
            lambda client: client.start_many("http_echo", ["text"]),
            lambda client: client.get("nobody"),
            lambda client: client.wait("nobody"),
            lambda client: client.plan("nobody"),
            lambda client: client.wait(failed),
            lambda client: client.wait(undone),
            lambda client: client.wait(cancelled),
            lambda client: client.signal("nobody", "go"),
            lambda client: client.signal(done, "go"),
            lambda client: client.cancel(done),
            lambda client: client.pause(done),
            lambda client: client.resume("nobody"),
            lambda client: client.retry(done),
            lambda client: client.retry(undone),
            lambda client: client.retry("nobody"),
            lambda client: client.set_budget(open_, Budget(usd=1)),
            lambda client: client.fork("nobody"),
            lambda client: client.fork(done, at="http_lock"),
            lambda client: client.fork(done, with_output=1),
            lambda client: client.fork(done, id="open"),
            lambda client: client.list(before="nobody"),
            lambda client: client.usage_report(date(2030, 1, 2), date(2030, 1, 1)),
            lambda client: client.prune(0, state="running"),
            lambda client: anext(client.events("nobody")),
            lambda client: anext(client.events("nobody", follow=False)),
            lambda client: anext(client.events(done, "nonsense")),
            lambda client: client.approve("nonsense"),
            lambda client: client.schedules.get("nightly"),
            lambda client: client.schedules.pause("nightly"),
            lambda client: client.schedules.trigger("nightly"),
            lambda client: client.schedules.create("nightly", "http_ecko", every=60),
            lambda client: client.schedules.create("nightly", "http_echo", every=60, cron="* * * * *"),
            lambda client: client.queues.get("nothing"),
            lambda client: client.queues.set("nothing"),
            lambda client: client.queues.set("nothing", rate="often"),
            lambda client: client.memory.get("", "key"),
            lambda client: client.memory.list("space", limit=1001),
            lambda client: client.memory.search("space", 7),  # type: ignore[arg-type]
            lambda client: client.send("http_echo", 1),
            lambda client: client.send("a@b", 1),
            lambda client: client.options(version="1").send("somewhere", 1),
        ]
        again = [await what_it_raises(one.options(id="failed").start("http_mending")) for one in (store, http)]
        assert again[0][:3] == again[1][:3]  # what it failed with is in its words
        assert again[0][0] is RunFailed
        for number, one in enumerate(calls):
            errors = [await what_it_raises(one(client)) for client in (store, http)]
            assert errors[0] == errors[1], f"call {number}"
            assert errors[0][0] != "nothing was raised", f"call {number}"


async def test_a_wait_ends_in_time() -> None:
    async with both() as (_, http):
        run = await http.start("http_waiting")
        with pytest.raises(TimeoutError):
            await run.result(0.05)
        assert not (await run.info()).state.is_terminal


# Questions, memory, schedules, queues, addresses


async def test_questions_are_answered_alike() -> None:
    async with both() as (store, http):
        run = await http.start("http_asking")

        async def question(text: str) -> Any:
            for _ in range(1000):
                for one in await run.approvals():
                    if one.question == text:
                        return one
                await asyncio.sleep(0.01)
            raise AssertionError(f"{text} was not asked: {await run.info()}")

        sure = await question("Sure?")
        assert await store.approvals() == await http.approvals() == [sure]
        assert await http.approvals(workflow="http_echo") == await http.approvals(assignee="Ada") == []
        foreign = [await what_it_raises(client.handle("another").approve(sure.id)) for client in (store, http)]
        assert foreign[0] == foreign[1]
        wrong = [await what_it_raises(client.approve(sure.id, "maybe")) for client in (store, http)]
        assert wrong[0] == wrong[1]
        assert await run.approve(sure.id, by="Ada", reason="why not")
        assert not await http.approve(sure.id[:10], by="Ada", reason="why not")
        late = [await what_it_raises(client.deny(sure.id, by="Bob")) for client in (store, http)]
        assert late[0] == late[1]
        assert await run.approve((await question("Which?")).id, "b")
        many = await question("How many?")
        unfit = [await what_it_raises(client.approve(many.id, "few")) for client in (store, http)]
        assert unfit[0] == unfit[1]
        with pytest.raises(InputError) as raised:
            await http.approve(many.id, "few")
        assert raised.value.violations == ({"path": "value", "message": "'few' is not of type 'integer'"},)
        assert await run.approve(many.id, 3)
        answered = await http.approvals(all=True)
        assert answered == await store.approvals(all=True)
        assert [one.answer.value for one in answered if one.answer] == [None, "b", 3]
        assert (await run.result(30))[1:] == ["b", 3]


async def test_memory_is_the_same() -> None:
    async with both(worker=False) as (store, http):
        note = Note("buy milk", datetime(2030, 1, 1, tzinfo=UTC))
        for number in range(1005):
            await store.memory.put("user/42", f"key-{number:04}", number)
        await http.memory.put("user/42", "ä/b", note)
        for client in (store, http):
            assert await client.memory.get("user/42", "ä/b", type=Note) == note
            assert await client.memory.get("user/42", "none", 7) == 7
        assert await http.memory.get_entry("user/42", "ä/b") == await store.memory.get_entry("user/42", "ä/b")
        assert await http.memory.get_entry("user/42", "none") is await store.memory.get_entry("user/42", "none") is None
        assert await store.memory.search("user/42", "milk") == await http.memory.search("user/42", "milk") != []
        assert await http.memory.list("user/42", limit=1000) == await store.memory.list("user/42", limit=1000)
        after = {"after": "key-0600", "limit": 3}
        assert await http.memory.list("user/42", **after) == await store.memory.list("user/42", **after)
        await http.memory.put("user/43", "drink", "tea")
        assert await http.memory.namespaces("user/") == await store.memory.namespaces("user/") == ["user/42", "user/43"]
        assert await http.memory.namespaces(after="user/42", limit=1) == ["user/43"]
        await http.memory.delete("user/42", "ä/b")
        assert await http.memory.get("user/42", "ä/b") is await store.memory.get("user/42", "ä/b") is None


async def test_schedules_are_the_same() -> None:
    async with both() as (store, http):
        start = datetime(2030, 1, 1, tzinfo=UTC)
        await http.schedules.create(
            "rarely", "http_echo", every=timedelta(days=2), start=start, args=(ODD,), kwargs={"again": 1}, tags=["t"]
        )
        made = await store.schedules.create(
            "rarely", "http_echo", every="2 days", start=start, args=(ODD,), kwargs={"again": 1}, tags=["t"]
        )
        assert made == await http.schedules.get("rarely") == (await http.schedules.list())[0]
        limited = Queue("http-nightly", concurrency=1)
        await http.schedules.create(
            "nightly", "http_order", cron="0 2 * * *", args=[1], zone="Europe/Berlin", queue=limited
        )
        assert await http.schedules.list() == await store.schedules.list()
        assert [await http.schedules.pause("rarely"), await http.schedules.pause("rarely")] == [True, False]
        assert [await http.schedules.resume("rarely"), await http.schedules.resume("rarely")] == [True, False]
        run_id = await http.schedules.trigger("rarely")
        assert await http.wait(run_id, 30) == [ODD, 1]
        once = [await client.schedules.trigger("rarely", id="by-hand") for client in (http, store, http)]
        assert once == ["by-hand"] * 3
        changed = [await what_it_raises(one.schedules.create("rarely", "http_echo", every=7)) for one in (store, http)]
        assert changed[0] == changed[1]
        assert [await http.schedules.delete("rarely"), await http.schedules.delete("rarely")] == [True, False]


async def test_queues_are_the_same() -> None:
    async with both(worker=False) as (store, http):
        assert await http.queues.set("llm", concurrency=3, rate=["5/min", "1000 tokens/h"], key_concurrency=1)
        assert not await store.queues.set("llm", concurrency=3, rate=["5/min", "1000 tokens/h"], key_concurrency=1)
        assert await http.queues.set("llm", key_concurrency=None)
        assert await http.queues.list() == await store.queues.list()
        assert [await http.queues.pause("llm"), await http.queues.pause("llm")] == [True, False]
        assert (await http.queues.get("llm")).paused_at is not None
        assert await http.queues.resume("llm")
        assert [await http.queues.reset("llm"), await http.queues.list()] == [True, []]


async def test_work_is_sent_to_addresses() -> None:
    async with both(worker=False) as (store, http):
        for client in (store, http):
            options = client.options(tags=["sent"], priority=2, delay=60)
            one = await options.send("billing", ODD, deadline="2 h", id="once")
            assert (one.run_id, (await one.info()).inputs, (await one.info()).tags) == (
                "once",
                {"payload": ODD},
                ("sent",),
            )
        several = [await http.send("billing", 1) for _ in range(2)]
        assert several[0].run_id != several[1].run_id
        assert (await store.get(several[0].run_id)).workflow == "billing"
        run = await store.connections.read("once")
        assert run.is_delivery
        assert run.deadline == pytest.approx(run.created_at + 60 + 7200, abs=1)


# Following


async def test_a_reader_continues_where_it_was() -> None:
    async with both() as (store, http):
        run = await http.start("http_stopping")
        seen = [await anext(run.events())]
        rest = asyncio.create_task(events_of(run, seen[0].offset))
        await run.signal("go", 1)
        seen += await rest
        assert seen == [event async for event in store.events(run.run_id)]
        assert [event async for event in http.events(run.run_id, follow=False)] == seen
        assert [event async for event in http.events(run.run_id, seen[-1].offset)] == []  # it is over, and says so


# Without an event loop


@pytest.mark.asyncio
async def test_the_same_without_an_event_loop() -> None:
    async with both() as (_, http):
        client = Client(http.url)

        def without_loop() -> None:
            run_id = client.options(id="sync").start_sync("http_echo", 1)
            assert client.wait_sync(run_id, 30) == client.run_sync("http_echo", 1) == [1, None]
            assert [event.kind for event in client.events_sync(run_id)][-1] == "ended"
            assert client.get_sync(run_id).id == run_id
            assert client.schedules.list_sync() == client.queues.list_sync() == client.approvals_sync() == []
            assert client.send_sync("somewhere", 1, id="sent") == "sent"

        await asyncio.to_thread(without_loop)
        with pytest.raises(UsageError, match="an event loop is running"):
            client.get_sync("sync")

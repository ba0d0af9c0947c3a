"""Agents of Pydantic AI with ``capabilities=[Durable()]``: what is recorded, replayed and refused. The real library."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, CancellationToken, RunContext, ToolOutput
from pydantic_ai.conversation import Conversation
from pydantic_ai.exceptions import (
    ModelHTTPError,
    UsageLimitExceeded,
)
from pydantic_ai.messages import (
    BinaryContent,
)
from pydantic_ai.usage import RunUsage, UsageLimits
from scripted_agents import Script, call, count, explorer, flow_of, journal, look, names

from holdfast import (
    Client,
    Queue,
    RunConflict,
    RunFailed,
    Runtime,
    UsageError,
    ask,
    workflow,
)
from holdfast.errors import DepsMissing
from holdfast.integrations.pydantic_ai import Durable, bindings
from holdfast.testing import Runner

pytestmark = pytest.mark.asyncio


# Outside of a workflow


async def test_a_run_of_an_agent_is_a_run_of_its_own_whose_calls_are_steps(runtime: Runtime) -> None:
    agent, model = explorer("pai-own")
    result = await agent.run("Go.")
    assert result.output == "done"
    assert await names(runtime, result.run_id) == [
        "model call", "look", "count", "model call", "look", "model call", "new messages",
    ]  # fmt: skip
    assert [record.preview for record in await journal(runtime, result.run_id)][1:3] == [
        "place='east'",
        "things='trees'",
    ]
    used = (await runtime._engine.store.get_usages([result.run_id]))[result.run_id].used
    assert (used.calls, used.input_tokens, used.output_tokens) == (3, 300, 30)
    assert model.asked == [0, 1, 2]


async def test_the_result_is_that_of_the_library_also_when_it_is_read_from_the_store(runtime: Runtime) -> None:
    agent, model = explorer("pai-result", instructions="Be brief.")
    first = await agent.run("Go.", run_id="pai-result-1")
    again = await agent.run("Go.", run_id="pai-result-1")
    assert len(model.asked) == 3, "a completed run is read"
    assert again == first
    assert again.all_messages() == first.all_messages()
    assert again.usage == first.usage == RunUsage(requests=3, input_tokens=300, output_tokens=30, tool_calls=3)
    assert again.run_id == "pai-result-1"
    assert [len(message.parts) for message in again.new_messages()] == [1, 2, 2, 1, 1, 1]
    assert model.messages == first.all_messages()[:-1]
    with pytest.raises(RunConflict):
        await agent.run("Go elsewhere.", run_id="pai-result-1")


async def test_its_runs_can_wait_in_a_queue_with_limits(url: str) -> None:
    clerks = Queue("pai-clerks", concurrency=1, key="{prompt}")
    agent = Agent(Script("done"), name="pai-clerk", capabilities=[Durable(queue=clerks)])
    async with Runtime(url), Client(url) as client:
        await asyncio.gather(agent.run("one", run_id="pai-clerk-1"), agent.run("two", run_id="pai-clerk-2"))
        assert (await client.get("pai-clerk-2")).queue_key == "two"
        assert (await client.queues.get("pai-clerks")).concurrency == 1


async def test_a_history_is_recorded_once_and_is_part_of_the_result(runtime: Runtime) -> None:
    agent = Agent(Script("one", "two"), name="pai-history", capabilities=[Durable()])
    first = await agent.run("first")
    second = await agent.run(
        ["second", BinaryContent(b"\x00\xff", media_type="image/png")], message_history=first.all_messages()
    )
    assert second.output == "two"
    assert second.all_messages()[:2] == first.all_messages()
    assert [len(one.parts) for one in second.new_messages()] == [1, 1]
    [*_, told] = await journal(runtime, second.run_id)
    assert told.payload is not None
    assert b"first" not in told.payload


async def test_a_long_history_is_kept_apart_and_read_back(runtime: Runtime) -> None:
    agent = Agent(Script("x" * 100_000, "two"), name="pai-long", capabilities=[Durable()])
    first = await agent.run("first")
    for _ in range(2):
        second = await agent.run("second", message_history=first.all_messages(), run_id="pai-long-2")
        assert second.all_messages()[:2] == first.all_messages()


async def test_the_settings_of_a_call_are_recorded_and_given(runtime: Runtime) -> None:
    agent, _ = explorer("pai-settings")
    with pytest.raises(UsageLimitExceeded) as raised:
        await agent.run("Go.", run_id="pai-settings-1", usage_limits=UsageLimits(request_limit=1))
    assert "holdfast show pai-settings-1" in "".join(raised.value.__notes__)
    mine = RunUsage(requests=5)
    result = await agent.run(
        "Go.", usage=mine, metadata={"a": 1}, model_settings={"temperature": 0.5}, retries=2, timeout=60,
        instructions="Hurry.", conversation_id="talk-1",
    )  # fmt: skip
    assert (result.metadata, result.conversation_id) == ({"a": 1}, "talk-1")
    assert mine.requests == 8, "the caller's own account goes on counting"
    run = await runtime.store_provider.read(result.run_id)
    assert b'"temperature":0.5' in run.inputs


class City(BaseModel):
    name: str
    people: int


class Nothing(BaseModel):
    why: str


async def test_answers_are_recorded_by_their_type(runtime: Runtime) -> None:
    for number, (output, arguments, expected) in enumerate(
        [
            (City, {"name": "Oslo", "people": 7}, City(name="Oslo", people=7)),
            ([City, Nothing], None, Nothing(why="fog")),
            (ToolOutput(list[City]), {"response": [{"name": "Oslo", "people": 7}]}, [City(name="Oslo", people=7)]),
            (_in_upper_case, {"text": "oslo"}, "OSLO"),
        ]
    ):
        part = call("final_result_Nothing", why="fog") if arguments is None else call("final_result", **arguments)
        agent = Agent(Script([part]), name=f"pai-output-{number}", output_type=output, capabilities=[Durable()])
        for _ in range(2):
            result = await agent.run("Where?", run_id=f"pai-output-{number}")
            assert result.output == expected


def _in_upper_case(text: str) -> str:
    return text.upper()


@dataclass
class Shop:
    stock: dict[str, int]


def shop_agent(name: str, **durable: Any) -> tuple[Agent[Shop, str], Script]:
    model = Script([call("in_stock", item="tea")], "sold")
    agent = Agent(model, name=name, deps_type=Shop, capabilities=[Durable(**durable)])

    @agent.instructions
    def house_rules(ctx: RunContext[Shop]) -> str:
        return f"There are {len(ctx.deps.stock)} things."

    @agent.tool
    async def in_stock(ctx: RunContext[Shop], item: str) -> int:
        """How many there are."""
        return ctx.deps.stock[item]

    return agent, model


async def test_deps_are_passed_on_and_never_recorded(runtime: Runtime, url: str) -> None:
    agent, model = shop_agent("pai-deps")
    result = await agent.run("Sell tea.", deps=Shop({"tea": 3}), run_id="pai-deps-1")
    assert result.output == "sold"
    assert model.messages[0].instructions == "There are 1 things."
    assert "stock" not in str((await runtime.store_provider.read("pai-deps-1")).inputs)


async def test_a_process_without_deps_fails_the_run_and_one_with_deps_continues_it(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings, "DEPS_TIMEOUT_S", 0.05)
    agent, _ = shop_agent("pai-late-deps")
    flow = flow_of(agent)
    given = flow.prepare_start(("Sell tea.",), {"deps": Shop({"tea": 3})})
    # As a client starts it.
    monkeypatch.setattr(flow, "prepare_start", lambda args, kwargs: given._replace(bind_run=None))
    with pytest.raises(RunFailed, match="brings its own") as raised:
        await (await flow.start()).result()
    assert isinstance(raised.value.__cause__, DepsMissing)
    flow.durable.deps = Shop({"tea": 1})
    assert (await (await flow.options(new=True).start()).result()).output == "sold"


async def test_a_run_that_leaves_memory_keeps_its_deps(runtime: Runtime) -> None:
    model = Script([call("buy")], lambda messages: str(messages[-1].parts[0].content))
    agent = Agent(model, name="pai-parked", deps_type=str, capabilities=[Durable(tools={"buy": False})])

    @agent.tool
    async def buy(ctx: RunContext[str]) -> str:
        return f"bought for {ctx.deps}" if await ask("Buy?") else "not bought"

    running = asyncio.create_task(agent.run("Buy.", deps="Ada", run_id="pai-parked-1"))
    async with Client(runtime.url) as client:
        while not (asked := await client.approvals("pai-parked-1")):  # noqa: ASYNC110 - it is in the store
            await asyncio.sleep(0.01)
        runtime._engine.park_idle()  # pyright: ignore[reportPrivateUsage]
        await client.approve(asked[0].id, by="ada")
    assert (await running).output == "bought for Ada"


async def test_what_the_agent_raises_is_raised_as_without_holdfast(runtime: Runtime) -> None:
    refused = ModelHTTPError(status_code=401, model_name="m", body={"message": "Bearer sk-1234567890 is no key"})
    agent = Agent(Script(refused), name="pai-raises", capabilities=[Durable()])
    with pytest.raises(ModelHTTPError) as raised:
        await agent.run("Go.", run_id="pai-raises-1")
    assert raised.value.status_code == 401
    assert "holdfast retry pai-raises-1" in "".join(raised.value.__notes__)
    [record] = await journal(runtime, "pai-raises-1")
    assert b"sk-1234567890" not in (record.payload or b"")


async def test_a_call_of_an_agent_in_a_tool_is_a_run_of_its_own(runtime: Runtime) -> None:
    helper = Agent(Script("helped"), name="pai-helper", capabilities=[Durable()])
    boss = Agent(Script([call("delegate", task="this")], "thanks"), name="pai-boss", capabilities=[Durable()])
    runs: list[str] = []

    @boss.tool
    async def delegate(ctx: RunContext[None], task: str) -> str:
        """Let somebody else do it."""
        result = await helper.run(task, usage=ctx.usage)
        runs.append(result.run_id)
        return result.output

    result = await boss.run("Do this.")
    assert result.output == "thanks"
    assert await names(runtime, runs[0]) == ["model call", "new messages"]


# In a workflow


async def test_in_a_workflow_the_calls_are_steps_of_the_calling_run(runtime: Runtime) -> None:
    agent, _ = explorer("pai-inside")

    @workflow(name="pai-inside-flow")
    async def flow() -> list[str]:
        first = await agent.run("Go.")
        async with agent.run_stream("Go again.") as stream:
            second = await stream.get_output()
        return [first.output, second, first.run_id.partition(":")[0]]

    handle = await flow.start()
    assert await handle.result() == ["done", "done", handle.run_id]
    ours = ["model call", "look", "count", "model call", "look", "model call"]
    assert await names(runtime, handle.run_id) == [f"pai-inside: {name}" for name in ours * 2]


async def test_all_that_a_call_can_be_given_may_be_given_in_a_workflow() -> None:
    agent = Agent(Script([call("final_result", name="Oslo", people=7)]), name="pai-anything", capabilities=[Durable()])

    @workflow(name="pai-anything-flow")
    async def flow() -> City:
        with agent.override(instructions=lambda ctx: "Be exact."):
            result = await agent.run("Where?", output_type=City, metadata=lambda ctx: {"step": ctx.run_step})
        return result.output

    assert (await Runner().run(flow)).output == City(name="Oslo", people=7)


async def test_it_survives_a_crash_anywhere_in_either_situation() -> None:
    model = Script([call("look", place="east"), call("count", things="trees")], "done")
    agent = Agent(model, name="pai-everywhere", tools=[look, count], capabilities=[Durable()])

    @workflow(name="pai-everywhere-flow")
    async def flow() -> list[str]:
        results = await asyncio.gather(agent.run("Go."), agent.run("Go there."))
        return [result.output for result in results]

    runner = Runner(replay_processes=0, max_pairs=20)
    await runner.crash_everywhere(flow)
    await runner.crash_everywhere(flow_of(agent), "Go.")


async def test_calls_side_by_side_replay_in_the_order_in_which_they_ended() -> None:
    first = asyncio.Event()
    model = Script([call("slow"), call("quick")], lambda messages: str([part.content for part in messages[-1].parts]))
    agent = Agent(model, name="pai-parallel", capabilities=[Durable()])

    @agent.tool_plain
    async def slow() -> str:
        await first.wait()
        return "slow"

    @agent.tool_plain
    async def quick() -> str:
        first.set()
        return "quick"

    @workflow(name="pai-parallel-flow")
    async def flow() -> str:
        return (await agent.run("Go.")).output

    runner = Runner()
    runner.simulate_crash_after(step="pai-parallel: quick")
    crashed = await runner.run(flow)
    assert crashed.has_crashed
    result = await runner.resume(crashed.run_id)
    assert result.output == "['slow', 'quick']"
    assert model.asked == [0, 1]


async def test_a_replayed_run_is_not_paid_for_again() -> None:
    agent, model = explorer("pai-paid")
    flow = flow_of(agent)
    runner = Runner()
    runner.simulate_crash_after(step="look")
    crashed = await runner.run(flow, "Go.")
    assert crashed.has_crashed
    result = await runner.resume(crashed.run_id)
    assert result.output.output == "done"
    assert model.asked == [0, 1, 2]
    assert result.steps["model call"][0].was_replayed


async def test_a_run_does_not_continue_with_a_changed_agent(runtime: Runtime) -> None:
    model = Script([call("look", place="north")], RuntimeError("stop here"), "done")

    def made(*tools: Any) -> Agent[None, str]:
        return Agent(model, name="pai-drift", tools=tools, capabilities=[Durable()])

    with pytest.raises(RuntimeError, match="stop here"):
        await made(look).run("Go.", run_id="pai-drift-1")
    made(count)  # today's code has another tool
    client = Client(runtime.url)
    await client.retry("pai-drift-1")
    with pytest.raises(RunFailed) as raised:
        await client.handle("pai-drift-1").result()
    assert "NonDeterminismError" in str(raised.value)
    assert "look" in str(raised.value.__cause__)
    made(look)  # and the old code continues
    model.turns = [*model.turns[:1], "done"]
    await client.retry("pai-drift-1")
    assert (await client.handle("pai-drift-1").result()).output == "done"
    assert model.asked == [0, 1, 1]


# Used wrongly


async def test_what_a_run_of_its_own_cannot_be_given(runtime: Runtime) -> None:
    agent, model = explorer("pai-refused")
    with pytest.raises(UsageError, match="message_history="):
        await agent.run("Go.", conversation=Conversation())
    with pytest.raises(UsageError, match="handle"):
        await flow_of(agent).start("Go.", cancellation_token=CancellationToken())
    assert model.asked == []


async def test_events_are_passed_on_in_a_workflow(runtime: Runtime) -> None:
    agent, model = explorer("pai-stream-events")

    @workflow(name="pai-stream-events-flow")
    async def flow() -> list[str]:
        async with agent.run_stream_events("Go.") as events:
            return [event.event_kind async for event in events]

    assert (await flow())[-1] == "agent_run_result"
    assert len(model.asked) == 3

"""What a call gives a Pydantic AI agent that cannot be recorded: models, output types, toolsets, overrides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import Toolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset
from scripted_agents import Script, call, count, explorer, flow_of, look, names

from holdfast import Client, RunFailed, Runtime, workflow
from holdfast.errors import BoundArgumentMissing, DepsMissing
from holdfast.integrations.pydantic_ai import Durable, bindings
from holdfast.testing import Runner

pytestmark = pytest.mark.asyncio


class City(BaseModel):
    name: str
    people: int


def refuse(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    raise AssertionError("the agent's own model is asked")


helper = Agent(FunctionModel(refuse), name="pai-bound-helper", capabilities=[Durable()])
support = Agent(FunctionModel(refuse), name="pai-bound-support", tools=[count], capabilities=[Durable()])


@support.tool_plain
async def delegate(task: str) -> str:
    """Let the helper do it."""
    return (await helper.run(task)).output


async def answer_customer(question: str) -> str:
    """Code under test, which knows nothing of the tests."""
    return (await support.run(question)).output


@pytest.fixture
def test_models() -> Iterator[TestModel]:
    model = TestModel(custom_output_text="tested")
    with support.override(model=model), helper.override(model=TestModel(custom_output_text="helped")):
        yield model


async def test_a_fixture_overrides_the_models_of_an_agent_and_of_the_agents_that_it_calls(
    runtime: Runtime, test_models: TestModel
) -> None:
    assert await answer_customer("Who?") == "tested"
    assert test_models.last_model_request_parameters is not None
    assert {one.name for one in test_models.last_model_request_parameters.function_tools} == {"count", "delegate"}
    async with Client(runtime.url) as client:
        [run] = await client.list(workflow="pai-bound-support")
    assert await names(runtime, run.id) == ["model call", "count", "delegate", "model call", "new messages"]


async def test_a_function_model_overrides_the_model_of_one_block(runtime: Runtime) -> None:
    agent, model = explorer("pai-bound-function")

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse([TextPart("function")])

    with agent.override(model=FunctionModel(answer)):
        assert (await agent.run("Go.")).output == "function"
    assert (await agent.run("Go.")).output == "done"
    assert model.asked == [0, 1, 2]


async def test_an_override_in_a_workflow_counts_on_replay_too() -> None:
    @workflow(name="pai-bound-override-flow")
    async def flow() -> str:
        with support.override(model=TestModel(custom_output_text="nested", call_tools=["count"])):
            return (await support.run("Go.")).output

    runner = Runner()
    runner.simulate_crash_after(step="pai-bound-support: count")
    crashed = await runner.run(flow)
    assert (await runner.resume(crashed.run_id)).output == "nested"


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"deps": 5}, "deps: 5"),
        ({"instructions": "Other."}, "instructions: Other."),
        ({"instructions": lambda ctx: f"Step {ctx.run_step}."}, "instructions: Step 1."),
        ({"metadata": {"a": 1}}, "metadata: {'a': 1}"),
        ({"model_settings": {"temperature": 0.25}}, "temperature: 0.25"),
        ({"tools": [look]}, "tools: look"),
        ({"toolsets": [FunctionToolset([look])]}, "tools: deps_of look"),
        ({"name": "renamed"}, "metadata: None"),
        ({"retries": 4}, "metadata: None"),
    ],
)
async def test_all_that_can_be_overridden(runtime: Runtime, given: dict[str, Any], seen: str) -> None:
    told: list[str] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        told.append(f"instructions: {info.instructions}")
        told.append(f"tools: {' '.join(one.name for one in info.function_tools)}")
        told.append(f"temperature: {(info.model_settings or {}).get('temperature')}")
        if "deps" in given and len(messages) == 1:
            return ModelResponse([call("deps_of")])
        return ModelResponse([TextPart("done")])

    agent = Agent(FunctionModel(answer), name=f"pai-over-{next(iter(given))}-{seen[-3:]}", deps_type=int,
                  capabilities=[Durable()])  # fmt: skip

    @agent.tool
    async def deps_of(ctx: RunContext[int]) -> int:
        told.append(f"deps: {ctx.deps}")
        return ctx.deps

    with agent.override(**given):
        result = await agent.run("Go.")
    told.append(f"metadata: {result.metadata}")
    assert seen in told


async def test_an_output_type_of_one_call(runtime: Runtime) -> None:
    agent = Agent(
        Script([call("final_result", name="Oslo", people=7)]), name="pai-bound-output", capabilities=[Durable()]
    )
    oslo = City(name="Oslo", people=7)
    assert (await agent.run("Where?", output_type=City, run_id="pai-bound-output-1")).output == oslo
    assert (await agent.run("Where?", output_type=City, run_id="pai-bound-output-1")).output == oslo, "it is read"
    handle = await flow_of(agent).start("Where now?", output_type=City)
    assert (await handle.result()).output == oslo
    async with Client(runtime.url) as client:
        assert (await client.wait("pai-bound-output-1")).output == {"name": "Oslo", "people": 7}
    assert flow_of(agent).bindings._bindings == {}, "also after a run that had ended before"  # pyright: ignore


async def test_a_model_object_of_one_call(runtime: Runtime) -> None:
    other = Script("other")
    agent = Agent(Script("mine"), name="pai-models", capabilities=[Durable(models={"other": other})])
    assert (await agent.run("Go.", model="other")).output == "other"
    assert (await agent.run("Go again.", model=other, run_id="pai-models-1")).output == "other"
    assert b"bound" not in (await runtime.store_provider.read("pai-models-1")).inputs, "it has a name"
    result = await agent.run("Go.", model=Script("unknown"), run_id="pai-models-2")
    assert result.output == "unknown"
    assert " at 0x" not in str(result.response.model_id)
    assert b'"bound":["model"]' in (await runtime.store_provider.read("pai-models-2")).inputs

    @workflow(name="pai-models-flow")
    async def flow() -> str:
        return (await agent.run("Go.", model=Script("inside"))).output

    assert await flow() == "inside"


@pytest.mark.parametrize(
    "given",
    [
        {"toolsets": [FunctionToolset([look])]},
        {"toolsets": [FunctionToolset([look], id="pai-bound-look")]},
        {"toolsets": [DynamicToolset(lambda ctx: FunctionToolset([look]), id="pai-bound-made")]},
        {"capabilities": [Toolset(FunctionToolset([look]))]},
    ],
)
async def test_the_tools_of_one_call_are_steps(runtime: Runtime, given: dict[str, Any], request: Any) -> None:
    model = Script([call("look", place="east")], lambda messages: str(messages[-1].parts[0].content))
    agent = Agent(model, name=f"pai-bound-tools-{request.node.name[-2]}", capabilities=[Durable()])
    result = await agent.run("Go.", **given)
    assert result.output == "east seen"
    assert "look" in await names(runtime, result.run_id)

    @workflow(name=f"pai-bound-tools-flow-{request.node.name[-2]}")
    async def flow() -> str:
        return (await agent.run("Go.", **given)).output

    handle = await flow.start()
    assert await handle.result() == "east seen"
    assert f"{agent.name}: look" in await names(runtime, handle.run_id)


async def test_functions_may_be_settings_of_one_call(runtime: Runtime) -> None:
    agent = Agent(Script("done"), name="pai-bound-functions", capabilities=[Durable()])
    result = await agent.run(
        "Go.",
        instructions=lambda ctx: "Be exact.",
        metadata=lambda ctx: {"step": ctx.run_step},
        model_settings=lambda ctx: {"temperature": 0.5},
    )
    assert result.all_messages()[0].instructions == "Be exact."  # type: ignore[union-attr]
    assert result.metadata == {"step": 1}


async def test_a_process_without_bound_objects_names_the_missing_ones(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings, "DEPS_TIMEOUT_S", 0.05)
    agent, model = explorer("pai-bound-missing")
    flow = flow_of(agent)
    with agent.override(instructions="Other."):
        given = flow.prepare_start(("Go.",), {"output_type": City})
    monkeypatch.setattr(flow, "prepare_start", lambda args, kwargs: given._replace(bind_run=None))  # as after a crash
    with pytest.raises(RunFailed, match=r"output_type, override\(instructions=...\)") as raised:
        await (await flow.start()).result()
    assert isinstance(raised.value.__cause__, BoundArgumentMissing)
    assert model.asked == [], "no other model, and no other output type, takes their place"


@pytest.mark.parametrize(("given", "error"), [({"output_type": str}, BoundArgumentMissing), ({"deps": 1}, DepsMissing)])
async def test_a_takeover_without_bound_objects_fails_and_the_run_can_be_retried(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], error: type[Exception]
) -> None:
    monkeypatch.setattr(bindings, "DEPS_TIMEOUT_S", 0.05)
    waiting, arrived = asyncio.Event(), asyncio.Event()
    model = Script([call("wait")], "done")
    agent = Agent(model, name=f"pai-bound-{next(iter(given))}", deps_type=int, capabilities=[Durable()])

    @agent.tool_plain
    async def wait() -> str:
        arrived.set()
        await waiting.wait()
        return "waited"

    run_id = f"{agent.name}-1"
    flow = flow_of(agent)
    first = Runtime(runtime.url)
    await first.open()
    await flow.options(id=run_id).start("Go.", **given)
    await arrived.wait()
    flow.bindings.remove(run_id)  # the process dies here, as far as the next one knows
    await first.close(grace=0)
    with pytest.raises(RunFailed) as raised:
        await flow.get_handle(runtime.store_provider, run_id).result()
    assert isinstance(raised.value.__cause__, error)
    waiting.set()
    with pytest.raises(RunFailed):  # as the error says: the same call again, and then a retry
        await agent.run("Go.", run_id=run_id, **given)
    async with Client(runtime.url) as client:
        await client.retry(run_id)
        assert (await client.wait(run_id)).output == "done"
    assert model.asked == [0, 1]

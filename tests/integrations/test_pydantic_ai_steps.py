"""The steps of a Pydantic AI agent: its tools, and its models."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from provider_server import ProviderServer, count_calls
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelRetry, RunContext
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelHTTPError,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import (
    RetryPromptPart,
    ToolReturnPart,
)
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset
from scripted_agents import Script, call, count, flow_of, journal, look, names

from holdfast import (
    Budget,
    Client,
    Runtime,
    ask,
    current_run,
    current_step,
    step,
)
from holdfast.admission.retry_policy import RetryPolicy
from holdfast.integrations.pydantic_ai import Durable
from holdfast.reports.recorded_reply import decode_reply
from holdfast.testing import Runner, ScriptedModel
from holdfast.testing import call as scripted

pytestmark = pytest.mark.asyncio


# Tools


async def test_what_tools_ask_of_the_model_and_of_people_is_recorded(runtime: Runtime) -> None:
    model = Script(
        [call("guess", number=1)],
        [call("guess", number=2), call("pay", cents=5), call("print_out")],
        lambda messages: str([getattr(part, "content", None) for part in messages[-1].parts]),
    )
    agent = Agent(model, name="pai-deferred", output_type=[str, DeferredToolRequests], capabilities=[Durable()])
    paid: list[int] = []

    @agent.tool_plain
    async def guess(number: int) -> str:
        if number == 1:
            raise ModelRetry("higher")
        return "right"

    @agent.tool
    async def pay(ctx: RunContext[None], cents: int) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"cents": cents})
        paid.append(cents)
        return "paid"

    @agent.tool_plain
    async def print_out() -> str:
        raise CallDeferred

    for _ in range(2):
        first = await agent.run("Guess.", run_id="pai-deferred-1")
    requests = first.output
    assert isinstance(requests, DeferredToolRequests)
    assert ([one.tool_name for one in requests.approvals], [one.tool_name for one in requests.calls]) == (
        ["pay"],
        ["print_out"],
    )
    assert [part for part in first.all_messages()[2].parts if isinstance(part, RetryPromptPart | ToolReturnPart)]
    results = DeferredToolResults(
        approvals={requests.approvals[0].tool_call_id: True}, calls={requests.calls[0].tool_call_id: "printed"}
    )
    for _ in range(2):
        second = await agent.run(
            message_history=first.all_messages(), deferred_tool_results=results, run_id="pai-deferred-2"
        )
    assert "paid" in second.output
    assert "printed" in second.output
    assert (paid, len(model.asked)) == ([5], 3)


async def test_a_tool_can_have_settings_for_its_step(runtime: Runtime) -> None:
    attempts: list[int] = []
    model = Script([call("flaky"), call("late"), call("here")], "done")
    settings = {"flaky": {"retries": 3, "backoff": 0.01, "retry_on": ConnectionError}, "here": False}
    agent = Agent(model, name="pai-told", capabilities=[Durable(tools=settings)])

    @agent.tool_plain
    async def flaky() -> str:
        attempts.append(current_step().attempt)
        if len(attempts) < 3:
            raise ConnectionError("try again")
        return current_step().idempotency_key

    @agent.tool_plain(metadata={"holdfast": {"timeout": 0.05}})
    async def late() -> str:
        await asyncio.sleep(30)
        return "never"

    @agent.tool_plain
    async def here() -> str:
        return current_run().id

    result = await agent.run("Go.", run_id="pai-told-1")
    assert attempts == [1, 2, 3]
    assert await names(runtime, "pai-told-1") == ["model call", "flaky", "late", "model call", "new messages"]
    told = {part.tool_name: str(part.content) for part in result.all_messages()[2].parts}  # type: ignore[union-attr]
    assert told["here"] == "pai-told-1"
    assert "time-out of 0.05 seconds" in told["late"]


async def test_a_once_tool_that_was_in_flight_is_not_repeated_and_the_model_learns_of_it() -> None:
    model = Script([call("charge", cents=5)], lambda messages: str(messages[-1].parts[0].content))
    agent = Agent(model, name="pai-once", capabilities=[Durable(tools={"charge": {"effect": "once"}})])
    charged: list[int] = []

    @agent.tool_plain
    async def charge(cents: int) -> str:
        charged.append(cents)
        return "charged"

    runner = Runner()
    runner.simulate_crash_during(step="charge")
    crashed = await runner.run(flow_of(agent), "Charge.")
    result = await runner.resume(crashed.run_id)
    assert "may or may not have happened" in result.output.output
    assert charged == [5]


async def test_a_tool_that_is_no_step_is_workflow_code_and_may_ask_a_person() -> None:
    model = Script([call("buy", item="tea")], lambda messages: str(messages[-1].parts[0].content))
    agent = Agent(model, name="pai-asks", capabilities=[Durable(tools={"buy": False})])

    @step
    async def pay(item: str) -> str:
        return f"{item} bought"

    @agent.tool_plain
    async def buy(item: str) -> str:
        return await pay(item) if await ask(f"Buy {item}?") else "not bought"

    runner = Runner()
    flow = flow_of(agent).options(id="pai-asks-1")
    await runner.start(flow, "Buy tea.")
    await runner.approve("pai-asks-1", by="ada")
    assert (await runner.result("pai-asks-1")).output.output == "tea bought"


async def test_a_tool_can_share_a_transaction_with_its_record(runtime: Runtime) -> None:
    model = Script([call("book", cents=5)], "booked")
    agent = Agent(model, name="pai-books", capabilities=[Durable(tools={"book": {"transaction": True}})])

    @agent.tool_plain
    async def book(cents: int) -> int:
        db = current_step().connection
        db.execute("CREATE TABLE bookings (cents INT)")
        db.execute("INSERT INTO bookings VALUES (?)", (cents,))
        return db.execute("SELECT sum(cents) FROM bookings").fetchone()[0]

    result = await agent.run("Book.")
    assert result.output == "booked"
    assert result.all_messages()[2].parts[0].content == 5  # type: ignore[union-attr]


async def test_plain_functions_run_in_threads_in_steps_and_without_in_workflow_code(runtime: Runtime) -> None:
    threads: dict[str, str] = {}
    agent = Agent(Script([call("where")], "done"), name="pai-threads", capabilities=[Durable()])

    @agent.instructions
    def instructions() -> str:
        threads["instructions"] = threading.current_thread().name
        return "Be kind."

    @agent.tool_plain
    def where() -> str:
        threads["tool"] = threading.current_thread().name
        return current_step().name

    @agent.output_validator
    def check(output: str) -> str:
        threads["validator"] = threading.current_thread().name
        return output

    await agent.run("Go.")
    here = threading.current_thread().name
    assert threads["instructions"] == threads["validator"] == here
    assert threads["tool"] != here


async def test_a_toolset_with_an_id_and_one_that_is_made_for_each_run(runtime: Runtime) -> None:
    made = Agent(
        Script([call("look", place="south"), call("count", things="ab")], "done"),
        name="pai-dynamic",
        toolsets=[FunctionToolset([count], id="fixed"), DynamicToolset(lambda ctx: FunctionToolset([look]), id="made")],
        capabilities=[Durable()],
    )
    assert (await made.run("Go.", run_id="pai-dynamic-1")).output == "done"
    assert await names(runtime, "pai-dynamic-1") == [
        "tools of made", "model call", "look", "count", "tools of made", "model call", "new messages",
    ]  # fmt: skip


async def test_the_tools_of_an_mcp_server_are_steps(runtime: Runtime, tmp_path: Path) -> None:
    pytest.importorskip("fastmcp")
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset

    script = Path(__file__).parents[1] / "tools" / "mcp_servers.py"
    # The library gives a server 5 seconds to start, which is not always enough while other tests use the machine.
    desk = MCPToolset(StdioTransport(sys.executable, [str(script), str(tmp_path)]), id="desk", init_timeout=60)
    model = Script([call("add", a=2, b=3), call("add", a=4, b=5)], lambda messages: str(messages[-1].parts[1].content))
    agent = Agent(model, name="pai-mcp", toolsets=[desk], capabilities=[Durable(tools={"add": {"timeout": 30}})])
    for _ in range(2):
        result = await agent.run("Add.", run_id="pai-mcp-1")
        assert result.output == "{'sum': 9}"
    assert await names(runtime, "pai-mcp-1") == [
        "tools of desk",
        "model call",
        "add",
        "add",
        "model call",
        "new messages",
    ]


async def test_what_an_answer_does_to_the_world_belongs_in_a_step(runtime: Runtime) -> None:
    @step
    async def send(text: str) -> str:
        return f"sent: {text}"

    async def answer(text: str) -> str:
        """Answer the customer."""
        return await send(text)

    agent = Agent(
        Script([call("final_result", text="hello")]), name="pai-answers", output_type=answer, capabilities=[Durable()]
    )
    result = await agent.run("Answer.", run_id="pai-answers-1")
    assert result.output == "sent: hello"
    assert await names(runtime, "pai-answers-1") == ["model call", "send", "new messages"]


# Models


@pytest.mark.parametrize("name", ["openai-chat:gpt-4o", "openai:gpt-4o", "anthropic:claude-sonnet-5"])
async def test_a_real_sdk_makes_one_attempt_and_the_step_the_others(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    faults = [{"kind": "rate_limit", "retry_after": 0}, {"kind": "server_error", "times": 2}]
    turns = [
        {"calls": [{"tool": "look", "arguments": {"place": "north"}}], "usage": {"input": 120, "output": 30}},
        {"text": "It said: {results}", "faults": faults, "usage": {"input": 150, "output": 20}},
    ]
    with ProviderServer({"go": turns}, tmp_path / "provider.ledger") as provider:
        for key, value in provider.address.environment.items():
            monkeypatch.setenv(key, value)
        agent_name, quick = f"pai-sdk-{name.partition(':')[0]}", Durable(retry=RetryPolicy(backoff=0.01))
        agent = Agent(name, name=agent_name, tools=[look], instructions="script:go", capabilities=[quick])
        result = await agent.run("go", run_id=agent_name)
        assert result.output == "It said: north seen"
        assert count_calls(provider.address.ledger) == {("go", 0): 1, ("go", 1): 4}
    replies = [
        decode_reply(one.payload or b"") for one in await journal(runtime, agent_name) if one.name == "model call"
    ]
    assert [(one.model, one.usage.input_tokens, one.usage.output_tokens) for one in replies if one] == [
        (name.replace("openai-chat", "openai"), 120, 30),
        (name.replace("openai-chat", "openai"), 150, 20),
    ]
    used = (await runtime._engine.store.get_usages([agent_name]))[agent_name].used
    assert used.nano_usd > 0
    async with Client(runtime.url) as client:
        told = await client.wait(agent_name)  # as a program without the agent's code reads it
    assert (told.output, told.usage) == (result.output, used)


async def test_a_model_that_does_not_answer_is_called_again(runtime: Runtime) -> None:
    times = iter([ModelHTTPError(429, "m", headers={"retry-after": "0"}), UnexpectedModelBehavior("html"), "done"])
    agent = Agent(Script(lambda _: next(times)), name="pai-again", capabilities=[Durable()])
    flow = flow_of(agent)
    result = await Runner().run(flow, "Go.")
    assert result.output.output == "done"
    assert result.steps["model call"][0].attempt_count == 3


async def test_a_runner_with_a_model_calls_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    agent = Agent("openai:gpt-4o", name="pai-stand-in", tools=[look], capabilities=[Durable()])
    model = ScriptedModel([scripted("look", place="north"), "done"])
    result = await Runner(model=model).run(flow_of(agent), "Go.")
    assert result.output.output == "done"
    assert len(model.calls) == 2


async def test_a_budget_bounds_a_run(runtime: Runtime) -> None:
    model = Script([call("look", place="a")], [call("look", place="b")], "done")
    agent = Agent(model, name="pai-budget", tools=[look], capabilities=[Durable(budget=Budget(turns=2))])
    handle = await flow_of(agent).start("Go.")
    while not (info := await handle.info()).waits_for:  # noqa: ASYNC110 - what it waits for is in the store
        await asyncio.sleep(0.02)
    assert "budget" in info.waits_for
    assert model.asked == [0, 1]
    await handle.set_budget(Budget(turns=3))
    assert (await handle.result()).output == "done"


async def test_event_handlers_are_called_in_steps(runtime: Runtime) -> None:
    heard: list[str] = []

    async def hear(ctx: RunContext[None], events: Any) -> None:
        async for event in events:
            heard.append(event.event_kind)

    model = TestModel(custom_output_text="done")
    agent = Agent(model, name="pai-events", tools=[count], capabilities=[Durable(event_stream_handler=hear)])
    result = await agent.run("Go.", run_id="pai-events-1")
    assert result.output == "done"
    assert "function_tool_call" in heard
    assert "part_start" in heard
    before = len(heard)
    await agent.run("Go.", run_id="pai-events-1")
    assert len(heard) == before

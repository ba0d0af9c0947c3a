"""Features of the SDK in durable runs."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest
from agent_parts import answering, call, make_gate_tool
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolOutputText,
    function_tool,
    input_guardrail,
    output_guardrail,
)
from pydantic import BaseModel

from holdfast import Client, Runtime, program, workflow
from holdfast.integrations.openai_agents import Runner as DurableRunner
from holdfast.integrations.openai_agents import durable

pytestmark = pytest.mark.asyncio


class Customer:
    name = "Ann"


class Trip(BaseModel):
    city: str
    days: int


async def test_the_result_of_an_ended_run_is_complete_in_another_process(provider, url):
    @function_tool
    def search(query: str) -> str:
        return f"found {query}"

    provider.script(
        planner=[{"calls": [call("search", query="Oslo")]}, {"calls": [call("transfer_to_closer")]}],
        closer=[{}, {}, {"answer": {"city": "Oslo", "days": 3}}],
    )
    closer = Agent(name="Closer", instructions="script:closer", output_type=Trip)
    agent = durable(Agent(name="Planner", instructions="script:planner", tools=[search], handoffs=[closer]))
    async with Runtime(url):
        first = await DurableRunner.run(agent, "Plan.", run_id="trip-1")
    async with Runtime(url):
        again = await DurableRunner.run(agent, "Plan.", run_id="trip-1")
    assert provider.request_count == 3
    assert first.final_output == again.final_output == Trip(city="Oslo", days=3)
    assert again.last_agent is closer
    assert again.to_input_list() == first.to_input_list()
    assert [type(item) for item in again.new_items] == [type(item) for item in first.new_items]
    assert [one.response_id for one in again.raw_responses] == [one.response_id for one in first.raw_responses]
    assert again.context_wrapper.usage.total_tokens == first.context_wrapper.usage.total_tokens > 0
    follow_up = [*again.to_input_list(), {"role": "user", "content": "Thanks."}]
    assert len(follow_up) == 7


async def test_the_run_shows_usage_cost_and_conversation(provider, url):
    @function_tool
    def search(query: str) -> str:
        return f"found {query}"

    provider.script(planner=[{"text": "I look.", "calls": [call("search", query="Oslo")]}, {"text": "Go to Oslo."}])
    agent = durable(Agent(name="Planner", instructions="script:planner", model="gpt-4o", tools=[search]))
    async with Runtime(url):
        await DurableRunner.run(agent, "Plan.", run_id="trip-1")
    async with Client(url) as client:
        handle = client.handle("trip-1")
        usage = await handle.usage()
        assert usage.calls == 2
        assert usage.cost is not None
        assert usage.cost > 0
        result = await handle.result()
        assert result.output == "Go to Oslo."
        assert result.usage.calls == 2
        messages = [(one.role, one.text) for one in await handle.conversation()]
    assert messages[0] == ("system", "script:planner")
    assert messages[1] == ("user", "Plan.")
    assert messages[2][1] == "I look."
    assert "found Oslo" in str(messages[3])
    assert messages[4][1] == "Go to Oslo."


async def test_a_workflow_calls_an_agent_as_a_child_run(provider, url):
    provider.script(planner=[{"text": "Go to Oslo."}])
    agent = durable(Agent(name="Planner", instructions="script:planner"))

    @workflow(id="child-test")
    async def plan() -> str:
        return (await Runner.run(agent, "Plan.")).final_output

    async with Runtime(url):
        assert await plan() == "Go to Oslo."
        async with Client(url) as client:
            runs = {run.workflow: run for run in await client.list()}
    assert runs["Planner"].parent == "child-test"


async def test_a_plain_agent_in_the_same_process_is_not_recorded(provider, url):
    provider.script(planner=[{"text": "Go to Oslo."}])
    durable(Agent(name="Other"))
    async with Runtime(url):
        assert (await Runner.run(Agent(name="P", instructions="script:planner"), "Plan.")).final_output == "Go to Oslo."
        async with Client(url) as client:
            assert not await client.list()


async def test_failures_of_tools_are_handled_as_the_tool_says_and_replayed(provider, url, gate, restart):
    calls = []

    @function_tool
    def broken() -> str:
        calls.append("broken")
        raise ValueError("no luck")

    def describe(context: RunContextWrapper[Any], error: Exception) -> str:
        return f"described {type(error).__name__}"

    @function_tool(failure_error_function=describe)
    async def described() -> str:
        calls.append("described")
        raise KeyError("x")

    @function_tool(timeout=0.05)
    async def slow() -> str:
        calls.append("slow")
        await asyncio.sleep(10)
        return "never"

    tools = [broken, described, slow, make_gate_tool(gate)]
    provider.script(
        tester=[
            {"calls": [call("broken"), call("described"), call("slow")]},
            {"calls": [call("pause")]},
            {"text": "{results}"},
        ]
    )
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=tools))
    result = await restart(lambda: DurableRunner.run(agent, "Go.", run_id="failures"))
    assert sorted(calls) == ["broken", "described", "slow"]
    assert provider.request_count == 3
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert outputs[0].startswith("An error occurred while running the tool")
    assert outputs[1] == "described KeyError"
    assert "timed out" in outputs[2]
    async with Client(url) as client:
        report = await client.describe("failures")
        errors = {entry.name: entry.error.message for entry in report.journal if entry.error is not None}
        conversation = [message.text for message in await client.conversation("failures") if message.role == "tool"]
    assert errors == {"broken": "ValueError: no luck", "described": "KeyError: 'x'", "slow": outputs[2]}
    assert conversation[0] == "The tool 'broken' failed: ValueError: no luck"


async def test_a_tool_without_failure_handling_ends_the_run_with_its_error(provider, url):
    @function_tool(failure_error_function=None)
    def broken() -> str:
        raise ValueError("no luck")

    provider.script(tester=[{"calls": [call("broken")]}])
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=[broken]))
    async with Runtime(url):
        with pytest.raises(Exception, match="no luck"):
            await DurableRunner.run(agent, "Go.", run_id="failing")
        async with Client(url) as client:
            assert (await client.get("failing")).state == "failed"


async def test_outputs_keep_their_types_after_a_restart(provider, url, gate, restart):
    @function_tool
    def plan() -> Trip:
        return Trip(city="Oslo", days=2)

    @function_tool
    def show() -> ToolOutputText:
        return ToolOutputText(text="a picture of Oslo")

    @function_tool
    def moment() -> Any:
        return datetime(2026, 1, 2)

    seen = []

    class Opaque:
        def __str__(self) -> str:
            return "opaque text"

    @function_tool
    def opaque() -> Any:
        seen.append(1)
        return Opaque()

    tools = [plan, show, moment, opaque, make_gate_tool(gate)]
    provider.script(
        tester=[
            {"calls": [call("plan"), call("show"), call("moment"), call("opaque")]},
            {"calls": [call("pause")]},
            {"text": "Done."},
        ]
    )
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=tools))
    result = await restart(lambda: DurableRunner.run(agent, "Go.", run_id="types"))
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert outputs[:4] == [
        Trip(city="Oslo", days=2),
        ToolOutputText(text="a picture of Oslo"),
        datetime(2026, 1, 2),
        "opaque text",
    ]
    assert seen == [1]
    assert provider.request_count == 3


async def test_guardrails_with_agents_of_their_own_are_recorded(provider, url, gate, restart):
    provider.script(
        judge=[{"text": "fine"}],
        tester=[{"calls": [call("pause")]}, {"text": "Done."}],
    )
    judge = Agent(name="Judge", instructions="script:judge")
    checks = []
    judged = asyncio.Event()

    @function_tool
    async def pause() -> str:
        """Wait for the guardrail, which the SDK runs at the same time, and for the next process."""
        await judged.wait()
        await gate.wait()
        return "continued"

    @input_guardrail
    async def check_input(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
        checks.append("input")
        verdict = await Runner.run(judge, "Is it fine?", context=context.context)
        judged.set()
        return GuardrailFunctionOutput(verdict.final_output, tripwire_triggered=verdict.final_output != "fine")

    @output_guardrail
    async def check_output(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    agent = durable(
        Agent(
            name="Tester", instructions="script:tester", tools=[pause],
            input_guardrails=[check_input], output_guardrails=[check_output],
        )
    )  # fmt: skip
    result = await restart(lambda: DurableRunner.run(agent, "Go.", run_id="guarded"))
    assert result.final_output == "Done."
    assert result.input_guardrail_results[0].output.output_info == "fine"
    assert checks == ["input", "input"]  # the function runs again, and its agent's answer is the recorded one
    assert provider.request_count == 3


async def test_a_tripwire_fails_the_run_and_reaches_the_caller(provider, url):
    provider.script(tester=[{"text": "Done."}])

    @input_guardrail
    async def refuse(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput("bad", tripwire_triggered=True)

    agent = durable(Agent(name="Tester", instructions="script:tester", input_guardrails=[refuse]))
    async with Runtime(url):
        with pytest.raises(InputGuardrailTripwireTriggered) as caught:
            await Runner.run(agent, "Go.")
    assert caught.value.guardrail_result.output.output_info == "bad"


async def test_too_many_turns_fail_the_run(provider, url):
    @function_tool
    def search() -> str:
        return "nothing"

    provider.script(tester=[{"calls": [call("search")]}] * 5)
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=[search]))
    async with Runtime(url):
        with pytest.raises(MaxTurnsExceeded):
            await Runner.run(agent, "Go.", max_turns=2)
    assert provider.request_count == 2


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_tool_waits_for_a_person(provider, url, is_streamed):
    charged = []

    @function_tool(needs_approval=True)
    def charge(amount: int) -> str:
        charged.append(amount)
        return f"charged {amount}"

    provider.script(tester=[{"calls": [call("charge", amount=5), call("charge", amount=900)]}, {"text": "{results}"}])
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=[charge]), approver="finance")

    async def decide(client: Client, approval: Any) -> None:
        assert approval.assignee == "finance"
        if "900" in approval.question:
            await client.deny(approval.id, reason="too much", by="Ann")
        else:
            await client.approve(approval.id, by="Ann")

    async with Runtime(url), answering(url, decide):
        if is_streamed:
            result = Runner.run_streamed(agent, "Go.")
            names = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
            assert names.count("tool_output") == 2
        else:
            result = await Runner.run(agent, "Go.")
    assert charged == [5]
    assert "charged 5" in result.final_output
    assert "too much" in result.final_output
    assert not result.interruptions


async def test_an_agent_as_a_tool_waits_for_a_person_and_its_answer_is_recorded(provider, url, gate, restart):
    charged = []

    @function_tool(needs_approval=True)
    def charge(amount: int) -> str:
        charged.append(amount)
        return f"charged {amount}"

    cashier = Agent(name="Cashier", instructions="script:cashier", tools=[charge])
    provider.script(
        tester=[{"calls": [call("cashier", input="5")]}, {"calls": [call("pause")]}, {"text": "Done."}],
        cashier=[{"calls": [call("charge", amount=5)]}, {"text": "{results}"}],
    )
    tools = [cashier.as_tool("cashier", "Charges."), make_gate_tool(gate)]
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=tools))
    async with answering(url, lambda client, approval: client.approve(approval.id)):
        result = await restart(lambda: DurableRunner.run(agent, "Go.", run_id="nested"))
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert outputs == ["charged 5", "continued"]
    assert charged == [5]
    assert provider.request_count == 5


async def test_instructions_with_the_time_are_recorded(provider, url, gate, restart):
    provider.script(tester=[{"calls": [call("pause")]}, {"text": "Done."}])
    made = []

    def instruct(context: Any, agent: Any) -> str:
        made.append(1)
        return f"script:tester It is {datetime.now().isoformat()}."

    agent = durable(Agent(name="Tester", instructions=instruct, tools=[make_gate_tool(gate)]))
    result = await restart(lambda: DurableRunner.run(agent, "Go.", run_id="instructed"))
    assert result.final_output == "Done."
    assert provider.request_count == 2
    assert len(made) == 2  # for each turn, once


async def test_objects_of_the_call_reach_the_tools(provider, url, gate, restart):
    @function_tool
    def greet(context: RunContextWrapper[Customer]) -> str:
        return f"Hello {context.context.name}"

    provider.script(tester=[{"calls": [call("pause")]}, {"calls": [call("greet")]}, {"text": "{results}"}])
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=[greet, make_gate_tool(gate)]))
    result = await restart(
        lambda: DurableRunner.run(
            agent, "Go.", context=Customer(), run_config=RunConfig(model="gpt-4o"), run_id="bound"
        )
    )
    assert result.final_output == "Hello Ann"


async def test_calls_in_a_program_belong_to_its_run(provider, url):
    provider.script(tester=[{"text": "Done."}])
    agent = durable(Agent(name="Tester", instructions="script:tester"))

    @program(id="two")
    async def two() -> list[str]:
        results = await asyncio.gather(Runner.run(agent, "One."), Runner.run(agent, "Two."))
        return [one.final_output for one in results]

    async with Runtime(url):
        assert await two() == ["Done.", "Done."]
        async with Client(url) as client:
            (run,) = await client.list()
            assert run.id == "two"
            assert (await client.handle("two").usage()).calls == 2


async def test_a_plain_program_may_use_run_sync(provider, url):
    provider.script(tester=[{"text": "Done."}])
    agent = durable(Agent(name="Tester", instructions="script:tester"))

    @program(id="sync")
    def plain() -> str:
        return Runner.run_sync(agent, "One.").final_output

    async with Runtime(url):
        assert await plain() == "Done."
        async with Client(url) as client:
            assert (await client.handle("sync").usage()).calls == 1

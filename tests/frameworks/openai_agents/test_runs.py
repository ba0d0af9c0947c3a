"""Runs of their own: ids, streams, workers, sessions, MCP servers, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from agent_parts import call, make_gate_tool
from agents import (
    Agent,
    CodeInterpreterTool,
    LocalShellTool,
    ModelSettings,
    RunHooks,
    Runner,
    SQLiteSession,
    function_tool,
    handoff,
    set_default_openai_api,
)
from agents.mcp import MCPServerStdio
from agents.sandbox import SandboxAgent

from holdfast import Client, Runtime, program, workflow
from holdfast.errors import BoundArgumentMissing, DefinitionError, RunFailed, UsageError
from holdfast.integrations.openai_agents import Runner as DurableRunner
from holdfast.integrations.openai_agents import durable
from holdfast.worker.workflow_loader import load_workflows

pytestmark = pytest.mark.asyncio
HERE = Path(__file__).parent


@pytest.mark.parametrize("api", ["responses", "chat_completions"])
async def test_a_continued_stream_shows_all_events_again(provider, url, gate, restart, api):
    set_default_openai_api(api)
    provider.script(tester=[{"text": "I wait.", "calls": [call("pause")]}, {"text": "All is done."}])
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=[make_gate_tool(gate)]))
    seen: list[list[str]] = []

    async def stream() -> Any:
        seen.append([])
        result = DurableRunner.run_streamed(agent, "Go.", run_id="streamed")
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                seen[-1].append(event.data.delta)
        return result

    result = await restart(stream)
    assert result.final_output == "All is done."
    assert result.is_complete
    assert "".join(seen[0]) == "I wait."
    assert "".join(seen[1]) == "I wait.All is done."
    assert provider.request_count == 2


async def test_the_same_call_joins_the_run_that_a_dead_process_left(provider, url, gate, restart):
    provider.script(tester=[{"calls": [call("pause")]}, {"text": "Done."}])
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=[make_gate_tool(gate)]))
    result = await restart(lambda: Runner.run(agent, "Go."))
    assert result.final_output == "Done."
    assert provider.request_count == 2


async def test_the_stream_of_an_ended_run_has_its_items(provider, url):
    provider.script(tester=[{"text": "Done."}])
    agent = durable(Agent(name="Tester", instructions="script:tester"))
    names: list[list[str]] = []
    for _ in range(2):
        async with Runtime(url):
            result = DurableRunner.run_streamed(agent, "Go.", run_id="streamed")
            events = [event async for event in result.stream_events()]
            names.append([event.name for event in events if event.type == "run_item_stream_event"])
            assert result.final_output == "Done."
            assert len(result.to_input_list()) == 2
    assert names[0] == names[1] == ["message_output_created"]
    assert provider.request_count == 1


async def test_a_stream_that_is_cancelled_cancels_its_run(provider, url):
    @function_tool
    async def pause() -> str:
        await asyncio.Event().wait()
        return "never"

    provider.script(tester=[{"text": "I wait.", "calls": [call("pause")]}])
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=[pause]))
    async with Runtime(url):
        result = DurableRunner.run_streamed(agent, "Go.", run_id="stopped")
        async for event in result.stream_events():
            if event.type == "run_item_stream_event" and event.name == "tool_called":
                result.cancel()
        async with Client(url) as client:
            assert (await client.get("stopped")).state == "cancelled"


async def test_a_failing_stream_raises_the_error_of_the_agent(provider, url):
    provider.script(tester=[{"faults": [{"kind": "bad_request", "times": None}]}])
    agent = durable(Agent(name="Tester", instructions="script:tester"))
    async with Runtime(url):
        result = Runner.run_streamed(agent, "Go.")
        with pytest.raises(Exception, match="400"):
            async for _ in result.stream_events():
                pass


async def test_another_worker_finishes_a_run_with_its_own_context(provider, url, gate):
    @function_tool
    async def greet(context: Any) -> str:
        return "unused"

    provider.script(tester=[{"calls": [call("pause")]}, {"text": "Done."}])
    agent = durable(
        Agent(name="Tester", instructions="script:tester", tools=[make_gate_tool(gate)]),
        arguments={"context": "of the worker"},
    )
    async with Runtime(url):
        first = asyncio.ensure_future(DurableRunner.run(agent, "Go.", context="of the caller", run_id="served"))
        await gate.reached.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    gate.is_open = True
    async with Runtime(url), Client(url) as client:  # nobody makes the call again
        result = await client.handle("served").result(30)
        assert result.output == "Done."


async def test_a_worker_is_told_to_serve_an_agent(tmp_path, monkeypatch):
    module = tmp_path / "served_app.py"
    module.write_text(
        "from agents import Agent\nfrom holdfast.integrations.openai_agents import durable\n"
        "agent = durable(Agent(name='Support'))\n"
    )
    assert load_workflows(f"{module}:agent") == ("Support",)


async def test_a_worker_without_the_arguments_says_what_is_missing(provider, url, gate, monkeypatch):
    monkeypatch.setattr("holdfast.integrations.openai_agents.agent_program._BINDING_TIMEOUT_S", 0.05)
    provider.script(tester=[{"calls": [call("pause")]}, {"text": "Done."}])
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=[make_gate_tool(gate)]))
    async with Runtime(url):
        first = asyncio.ensure_future(DurableRunner.run(agent, "Go.", context="of the caller", run_id="served"))
        await gate.reached.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    async with Runtime(url), Client(url) as client:
        with pytest.raises(RunFailed, match="started with context") as caught:
            await client.handle("served").result(30)
        assert "durable(agent, arguments={'context': ...})" in str(caught.value)
        gate.is_open = True
        await client.retry("served")
        result = await DurableRunner.run(agent, "Go.", context="of the caller", run_id="served")
        assert result.final_output == "Done."
    assert provider.request_count == 2
    assert issubclass(BoundArgumentMissing, UsageError)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_session_gets_each_item_once(provider, url, gate, restart, tmp_path, is_streamed):
    provider.script(tester=[{"calls": [call("pause")]}, {"text": "Done."}, {"text": "Again."}])
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=[make_gate_tool(gate)]))
    session = SQLiteSession("customer-1", tmp_path / "session.db")

    async def chat(input: str) -> str:
        if is_streamed:
            result = DurableRunner.run_streamed(agent, input, session=session, run_id=input)
            async for _ in result.stream_events():
                pass
            return result.final_output
        return (await DurableRunner.run(agent, input, session=session, run_id=input)).final_output

    assert await restart(lambda: chat("Go.")) == "Done."
    async with Runtime(url):
        assert await chat("More.") == "Again."
    items = [item.get("type") or item["role"] for item in await session.get_items()]
    assert items == ["user", "function_call", "function_call_output", "message", "user", "message"]


async def test_items_that_a_dead_process_has_added_are_not_added_again(provider, url, gate, restart, tmp_path):
    """The process dies after the session has the items, and before that is recorded."""
    added: Counter[str] = Counter()

    class DyingSession(SQLiteSession):
        async def add_items(self, items: Any) -> None:
            await super().add_items(items)
            added[str(items[0].get("role"))] += 1
            await gate.wait()

    provider.script(tester=[{"text": "Done."}])
    agent = durable(Agent(name="Tester", instructions="script:tester"))
    session = DyingSession("customer-1", tmp_path / "session.db")
    result = await restart(lambda: DurableRunner.run(agent, "Go.", session=session, run_id="chat"))
    assert result.final_output == "Done."
    assert [item["role"] for item in await session.get_items()] == ["user", "assistant"]


async def test_calls_of_mcp_servers_are_recorded(provider, url, gate, restart, tmp_path, monkeypatch):
    ledger = tmp_path / "effects.ledger"
    paths = os.pathsep.join([str(HERE.parent), str(HERE)])
    environment = {**os.environ, "PYTHONPATH": paths, "HOLDFAST_TEST_EFFECTS": str(ledger)}
    provider.script(tester=[{"calls": [call("forecast", city="Oslo")]}, {"calls": [call("pause")]}, {"text": "Done."}])
    parameters = {"command": sys.executable, "args": [str(HERE / "mcp_app.py")], "env": environment}
    async with MCPServerStdio(parameters, client_session_timeout_seconds=30) as server:
        tools = [make_gate_tool(gate)]
        agent = durable(Agent(name="Tester", instructions="script:tester", tools=tools, mcp_servers=[server]))
        result = await restart(lambda: DurableRunner.run(agent, "Go.", run_id="mcp"))
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert "sunny in Oslo" in str(outputs[0])
    assert ledger.read_text().split() == ["start:forecast", "end:forecast"]
    assert provider.request_count == 3


async def test_hooks_are_called_again(provider, url, gate, restart):
    counts: Counter[str] = Counter()

    class Hooks(RunHooks[Any]):
        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            counts["llm"] += 1

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            counts["tool"] += 1

    provider.script(tester=[{"calls": [call("pause")]}, {"text": "Done."}])
    agent = durable(Agent(name="Tester", instructions="script:tester", tools=[make_gate_tool(gate)]))
    await restart(lambda: DurableRunner.run(agent, "Go.", hooks=Hooks(), run_id="hooked"))
    assert counts == {"llm": 3, "tool": 1}
    assert provider.request_count == 2


async def test_errors_of_the_provider_are_retried_by_the_sdk_and_replayed(provider, url, gate, restart):
    from agents import ModelRetrySettings, retry_policies

    retry = ModelRetrySettings(max_retries=3, policy=retry_policies.any(retry_policies.http_status([500, 503])))
    settings = ModelSettings(retry=retry)
    provider.script(
        tester=[
            {"calls": [call("pause")], "faults": [{"kind": "server_error", "times": 4}]},
            {"text": "Done."},
        ]
    )
    agent = durable(
        Agent(name="Tester", instructions="script:tester", tools=[make_gate_tool(gate)], model_settings=settings)
    )
    result = await restart(lambda: DurableRunner.run(agent, "Go.", run_id="retried"))
    assert result.final_output == "Done."


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_changed_prompt_is_shown_as_a_difference(provider, url, gate, restart, is_streamed):
    provider.script(tester=[{"calls": [call("pause")]}, {"text": "Done."}])
    agent = durable(Agent(name="Tester", tools=[make_gate_tool(gate)]))

    async def run() -> None:
        agent.instructions = f"script:tester Be {'quick' if gate.is_open else 'kind'}."
        if is_streamed:
            async for _ in DurableRunner.run_streamed(agent, "Go.", run_id="changed").stream_events():
                pass
        else:
            await DurableRunner.run(agent, "Go.", run_id="changed")

    printed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context["message"]))
    with pytest.raises(RunFailed, match="cannot continue") as caught:
        await restart(run)
    difference = str(caught.value.__cause__)
    assert "-content: script:tester Be kind." in difference
    assert "+content: script:tester Be quick." in difference
    assert provider.request_count == 1
    del caught
    gc.collect()
    assert printed == []  # such as that an exception was never retrieved


async def test_a_run_with_many_plain_arguments_is_joined_by_the_same_call(provider, url):
    provider.script(tester=[{"text": "Done."}])
    agent = durable(Agent(name="Tester", instructions="script:tester"), name="Support", tags=["support"])
    history = [{"role": "user", "content": "Hello."}]
    async with Runtime(url):
        for _ in range(2):
            result = await DurableRunner.run(agent, history, max_turns=4, run_id="plain")
            assert result.final_output == "Done."
        async with Client(url) as client:
            info = await client.get("plain")
    assert info.workflow == "Support"
    assert provider.request_count == 1


# What is refused


async def test_what_cannot_be_recorded_is_refused(provider, url, tmp_path):
    provider.script(tester=[{"text": "Done."}], outer=[{"calls": [call("transfer_to_inner")]}])
    shell = LocalShellTool(executor=lambda request: "")
    async with Runtime(url):
        agent = durable(Agent(name="Shell", instructions="script:tester", tools=[shell]))
        with pytest.raises(UsageError, match="'local_shell' is a LocalShellTool"):
            await Runner.run(agent, "Go.")
        hosted = CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": {"type": "auto"}})
        agent = durable(Agent(name="Hosted", instructions="script:tester", tools=[hosted]))
        assert (await Runner.run(agent, "Go.")).final_output == "Done."
        with pytest.raises(UsageError, match="sandbox"):
            await Runner.run(durable(SandboxAgent(name="Box", instructions="script:tester")), "Go.")
        inner = durable(Agent(name="Inner", instructions="script:tester"))
        with pytest.raises(UsageError, match="is durable, but this run of it is not"):
            await Runner.run(Agent(name="Outer", instructions="script:outer", handoffs=[inner]), "Go.")
    with pytest.raises(DefinitionError, match="'twice'"):
        durable(Agent(name="Wrong"), effects={"charge": "twice"})
    with pytest.raises(DefinitionError, match=r"'Wrong' has no tool 'chrage', which effects= names. It has: none"):
        durable(Agent(name="Wrong"), effects={"chrage": "once"})
    with pytest.raises(DefinitionError, match="is not one of 'context'"):
        durable(Agent(name="Wrong"), arguments={"max_turns": 3})
    with pytest.raises(DefinitionError, match="not a str"):
        durable("agent")  # type: ignore[type-var]


async def test_run_ids_are_for_runs_of_their_own(provider, url):
    provider.script(tester=[{"text": "Done."}])
    agent = durable(Agent(name="Tester", instructions="script:tester"))

    @program(id="outer")
    async def outer() -> None:
        await DurableRunner.run(agent, "Go.", run_id="inner")

    @workflow(id="streaming")
    async def streaming() -> None:
        Runner.run_streamed(agent, "Go.")

    async with Runtime(url):
        with pytest.raises(UsageError, match="not durable"):
            await DurableRunner.run(Agent(name="Plain"), "Go.", run_id="x")
        with pytest.raises(RunFailed, match="leave it out"):
            await outer()
        with pytest.raises(RunFailed, match="cannot stream"):
            await streaming()


def test_an_effect_names_a_tool_of_an_agent_that_the_run_may_call():
    @function_tool
    def charge(euros: int) -> str:
        """Charge the customer's card."""
        return f"charged {euros}"

    cashier, clerk = Agent(name="Cashier", tools=[charge]), Agent(name="Clerk")
    clerk.handoffs = [handoff(cashier), clerk]
    durable(Agent(name="Front desk", handoffs=[clerk]), effects={"charge": "once"})
    front = Agent(name="Counter", tools=[cashier.as_tool("ask_cashier", "Asks the cashier.")])
    durable(front, effects={"charge": "once", "ask_cashier": "read"})
    with pytest.raises(DefinitionError, match=r"no tool 'chrage', which effects= names. It has: ask_cashier, charge"):
        durable(front, effects={"chrage": "once"})
    server = MCPServerStdio({"command": sys.executable})
    with pytest.warns(UserWarning, match="agent 'Open' has no tool 'chrage' so far.*Did you mean 'charge'"):
        durable(Agent(name="Open", tools=[charge], mcp_servers=[server]), effects={"chrage": "once", "lookup": "once"})

"""A Pydantic AI agent is streamed and iterated outside of workflow code, while its run is durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from provider_server import ProviderServer
from pydantic import BaseModel
from pydantic_ai import Agent, CancellationToken, RunContext, capture_run_messages
from pydantic_ai.agent import CallToolsNode, ModelRequestNode, UserPromptNode
from pydantic_ai.exceptions import ModelHTTPError, RunCancelled
from pydantic_ai.messages import ModelMessage, PartDeltaEvent, PartStartEvent, TextPart, ToolCallPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_graph import End
from scripted_agents import Script, call, count, explorer, flow_of, journal, look, names

from holdfast import Client, RunNotFound, RunState, Runtime, UsageError, ask
from holdfast.admission.retry_policy import RetryPolicy
from holdfast.integrations.pydantic_ai import Durable
from holdfast.integrations.pydantic_ai.agent_call import AgentCall
from holdfast.testing import Runner

pytestmark = pytest.mark.asyncio


class Words:
    """A model that says one word after the other, each when it is asked for."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.said = 0
        self.requests = 0
        self._next = asyncio.Semaphore(0)
        self.model = FunctionModel(stream_function=self._stream)

    def release_words(self, words: int = 1) -> None:
        for _ in range(words):
            self._next.release()

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        self.requests += 1
        for word in self.words:
            await self._next.acquire()
            self.said += 1
            yield word


async def state_of(runtime: Runtime, run_id: str) -> RunState:
    return (await runtime.store_provider.read(run_id)).state


# `run_stream`


async def test_run_stream_yields_words_while_the_model_streams(runtime: Runtime) -> None:
    words = Words("One ", "two ", "three.")
    agent = Agent(words.model, name="pai-live-words", capabilities=[Durable()])
    words.release_words()
    heard: list[str] = []
    async with asyncio.timeout(20), agent.run_stream("Go.", run_id="pai-live-words-1") as stream:
        async for text in stream.stream_text(delta=True, debounce_by=None):
            heard.append(text)
            assert words.said == len(heard), "nothing is held back"
            if len(heard) < 3:  # the last word ends the answer
                assert await names(runtime, "pai-live-words-1") == [], "and the answer is not recorded yet"
            words.release_words()
    assert heard == ["One ", "two ", "three."]
    assert stream.result.output == "One two three."
    assert await names(runtime, "pai-live-words-1") == ["model call", "new messages"]
    async with agent.run_stream("Go.", run_id="pai-live-words-1") as again:
        assert [text async for text in again.stream_text()] == ["One two three."]
        assert again.all_messages() == stream.all_messages()
        assert again.usage == stream.usage
    assert words.requests == 1


async def test_run_stream_runs_tools_once_and_streams_the_last_answer(runtime: Runtime) -> None:
    agent, model = explorer("pai-live-stream")
    heard: list[str] = []

    async def hear(ctx: RunContext[None], events: Any) -> None:
        async for event in events:
            heard.append(event.event_kind)

    async with agent.run_stream("Go.", run_id="pai-live-stream-1", event_stream_handler=hear) as stream:
        assert await stream.get_output() == "done"
        assert stream.usage.requests == 3
    assert model.asked == [0, 1, 2]
    assert heard.count("function_tool_call") == heard.count("function_tool_result") == 3
    assert await names(runtime, "pai-live-stream-1") == [
        "model call", "look", "count", "model call", "look", "model call", "new messages",
    ]  # fmt: skip


class City(BaseModel):
    name: str
    people: int


async def test_structured_output_is_streamed_and_validated_once_by_the_run(runtime: Runtime) -> None:
    checked: list[City] = []
    agent = Agent(
        Script([call("final_result", name="Oslo", people=7)]),
        name="pai-live-city",
        output_type=City,
        capabilities=[Durable()],
    )

    @agent.output_validator
    def check(ctx: RunContext[None], output: City) -> City:
        if not ctx.partial_output:
            checked.append(output)
        return output

    async with agent.run_stream("Where?") as stream:
        cities = [city async for city in stream.stream_output(debounce_by=None)]
    assert cities[-1] == City(name="Oslo", people=7)
    assert len(checked) == 1


async def test_after_a_broken_stream_the_model_is_called_again_and_the_recorded_answer_is_shown(
    runtime: Runtime,
) -> None:
    attempts: list[int] = []
    seen = asyncio.Event()

    async def stream_words(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        attempts.append(1)
        yield "One "
        if len(attempts) == 1:
            await seen.wait()
            raise ModelHTTPError(503, "m")
        yield "two."

    durable = Durable[None](retry=RetryPolicy(backoff=0.01))
    agent = Agent(FunctionModel(stream_function=stream_words), name="pai-live-again", capabilities=[durable])
    texts: list[str] = []
    async with agent.run_stream("Go.") as stream:
        async for text in stream.stream_text(debounce_by=None):
            texts.append(text)
            seen.set()
        assert await stream.get_output() == "One two."
    assert (texts[0], texts[-1]) == ("One ", "One two.")
    assert len(attempts) == 2


# `iter`


async def test_iter_yields_the_nodes_and_each_step_happens_once(runtime: Runtime) -> None:
    agent, model = explorer("pai-live-iter")
    nodes: list[Any] = []
    async with agent.iter("Go.", run_id="pai-live-iter-1") as run:
        async for node in run:
            nodes.append(node)
    kinds = [UserPromptNode, ModelRequestNode, CallToolsNode, ModelRequestNode, CallToolsNode, ModelRequestNode,
             CallToolsNode, End]  # fmt: skip
    assert [kind for kind, node in zip(kinds, nodes, strict=True) if isinstance(node, kind)] == kinds
    assert nodes[2].model_response.tool_calls[0].tool_name == "look"
    assert nodes[-1].data.output == "done"
    assert run.result is not None
    assert run.result.output == "done"
    assert run.all_messages() == run.result.all_messages()
    assert model.asked == [0, 1, 2]
    assert await names(runtime, "pai-live-iter-1") == [
        "model call", "look", "count", "model call", "look", "model call", "new messages",
    ]  # fmt: skip
    async with agent.iter("Go.", run_id="pai-live-iter-1") as run:
        again = [node async for node in run]
    assert [kind for kind, node in zip(kinds, again, strict=True) if isinstance(node, kind)] == kinds
    assert (await agent.run("Go.", run_id="pai-live-iter-1")).output == "done"
    assert model.asked == [0, 1, 2], "the recorded run is shown"


async def test_the_nodes_of_iter_are_streamed(runtime: Runtime) -> None:
    words = Words("One ", "two.")
    agent = Agent(words.model, name="pai-live-nodes", capabilities=[Durable()])
    words.release_words()
    heard: list[str] = []
    async with asyncio.timeout(20), agent.iter("Go.") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    async for event in events:
                        if isinstance(event, PartStartEvent | PartDeltaEvent):
                            heard.append(event.event_kind)
                            assert words.said == len(heard)
                            words.release_words()
    assert heard == ["part_start", "part_delta"]
    assert run.result is not None
    assert run.result.output == "One two."


async def test_a_node_is_executed_when_the_caller_asks_for_the_next(runtime: Runtime) -> None:
    agent, model = explorer("pai-live-pace")
    async with agent.iter("Go.", run_id="pai-live-pace-1") as run:
        async for node in run:
            if isinstance(node, CallToolsNode):
                assert [type(one) for one in node.model_response.parts] == [ToolCallPart, ToolCallPart]
                await asyncio.sleep(0.1)
                assert await names(runtime, "pai-live-pace-1") == ["model call"]
                break
    assert await state_of(runtime, "pai-live-pace-1") is RunState.CANCELLED, "leaving ends the run"
    assert model.asked == [0]


async def test_an_iterated_run_may_wait_for_a_person_and_call_other_agents_in_workflow_code(runtime: Runtime) -> None:
    helper = Agent(Script("helped"), name="pai-live-helper", capabilities=[Durable()])
    agent = Agent(
        Script([call("buy", item="tea")], lambda messages: str(messages[-1].parts[0].content)),
        name="pai-live-asks",
        capabilities=[Durable(tools={"buy": False})],
    )

    @agent.tool_plain
    async def buy(item: str) -> str:
        found = await helper.run(f"Find {item}.")
        return f"{item} bought, {found.output}" if await ask(f"Buy {item}?") else "not bought"

    async def approve() -> None:
        async with Client(runtime.url) as client:
            while not (open := await client.approvals("pai-live-asks-1")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            runtime._engine.park_idle()  # pyright: ignore - its code is executed again, and shows only what is new
            await client.approve(open[0].id, by="ada")

    texts: list[str] = []
    nodes: list[str] = []
    approving = asyncio.create_task(approve())
    async with asyncio.timeout(20), agent.iter("Buy.", run_id="pai-live-asks-1") as run:
        async for node in run:
            nodes.append(type(node).__name__.removeprefix("Followed"))
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    texts += [
                        event.part.content
                        async for event in stream
                        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart)
                    ]
    await approving
    assert run.result is not None
    assert run.result.output == "tea bought, helped"
    assert nodes == ["UserPromptNode", *["RequestNode", "ToolsNode"] * 2, "End"]
    assert run.all_messages() == run.result.all_messages()
    assert texts == ["tea bought, helped"], "what the other agent's model said is not shown"


async def test_nodes_are_copies_and_can_not_be_replaced(runtime: Runtime) -> None:
    agent, model = explorer("pai-live-copies")
    async with agent.iter("Go.") as run:
        node = await run.next(run.next_node)  # type: ignore[arg-type]
        assert isinstance(node, ModelRequestNode)
        with pytest.raises(UsageError, match="in a workflow function"):
            await run.next(ModelRequestNode(node.request))
        node.request.parts = []
        while not isinstance(node, End):
            node = await run.next(node)
    assert len(model.messages[0].parts) == 1
    with pytest.raises(UsageError, match="workflow"):
        run.enqueue("More.")


async def test_an_exception_in_the_block_cancels_the_run_and_a_cancelled_task_does_not(runtime: Runtime) -> None:
    agent, _ = explorer("pai-live-leaving")
    words = Words("One ", "two.")
    words.release_words()
    with pytest.raises(ZeroDivisionError):
        async with agent.run_stream("Go.", model=words.model, run_id="pai-live-leaving-1"):
            raise ZeroDivisionError
    assert await state_of(runtime, "pai-live-leaving-1") is RunState.CANCELLED

    async def iterate() -> None:
        async with agent.iter("Go.", run_id="pai-live-leaving-2") as run:
            async for _ in run:
                started.set()
                await asyncio.Event().wait()

    started = asyncio.Event()
    task = asyncio.create_task(iterate())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with Client(runtime.url) as client:
        assert (await client.wait("pai-live-leaving-2")).output == "done"


async def test_the_run_is_cancelled_by_the_callers_own_cancel(runtime: Runtime) -> None:
    agent, _ = explorer("pai-live-cancel")
    with pytest.raises(RunCancelled):
        async with agent.iter("Go.", run_id="pai-live-cancel-1") as run:
            async for _ in run:
                run.cancel()
    assert await state_of(runtime, "pai-live-cancel-1") is RunState.CANCELLED


async def test_a_cancellation_token_cancels_the_run(runtime: Runtime) -> None:
    words, token = Words("One."), CancellationToken()
    agent = Agent(words.model, name="pai-live-token", capabilities=[Durable()])

    async def hear(ctx: RunContext[None], events: Any) -> None:
        token.cancel()
        async for _ in events:
            pass

    with pytest.raises(RunCancelled):
        await agent.run("Go.", run_id="pai-live-token-1", cancellation_token=token, event_stream_handler=hear)
    assert await state_of(runtime, "pai-live-token-1") is RunState.CANCELLED
    with pytest.raises(RunCancelled):
        await agent.run("Go.", run_id="pai-live-token-2", cancellation_token=token)
    with pytest.raises(RunNotFound):
        await runtime.store_provider.read("pai-live-token-2")


async def test_a_run_that_was_streamed_survives_a_crash_anywhere() -> None:
    model = Script([TextPart("Wait."), call("look", place="east")], "never asked for")
    agent = Agent(model, name="pai-live-crash", tools=[look], end_strategy="exhaustive", capabilities=[Durable()])
    streamed = AgentCall(agent, "Go.", {})
    streamed.is_stream = True
    runner = Runner(replay_processes=0, max_pairs=10)
    await runner.crash_everywhere(flow_of(agent), streamed)
    result = await runner.run(flow_of(agent), streamed)
    assert result.output.output == "Wait.", "the first answer that is a final result ends a stream"


async def test_what_the_agent_raises_is_raised_in_the_block(runtime: Runtime) -> None:
    refused = ModelHTTPError(status_code=401, model_name="m", body=None)
    agent = Agent(Script([call("look", place="x")], refused), name="pai-live-raises", tools=[look],
                  capabilities=[Durable()])  # fmt: skip
    with pytest.raises(ModelHTTPError) as raised:
        async with agent.iter("Go.") as run:
            async for _ in run:
                pass
    assert "holdfast retry" in "".join(raised.value.__notes__)
    with pytest.raises(ModelHTTPError):
        async with agent.run_stream("Go on."):
            pass


# Events


async def test_the_handler_of_one_call_gets_live_events_without_steps(runtime: Runtime) -> None:
    agent, model = explorer("pai-live-handler")
    heard: list[str] = []

    async def hear(ctx: RunContext[None], events: Any) -> None:
        async for event in events:
            heard.append(event.event_kind)

    result = await agent.run("Go.", run_id="pai-live-handler-1", event_stream_handler=hear)
    assert result.output == "done"
    assert heard.count("part_start") == 4
    assert heard.count("function_tool_result") == 3
    assert "event" not in await names(runtime, "pai-live-handler-1")
    assert (await agent.run("Go.", run_id="pai-live-handler-1")).output == "done", "it is the same run"
    assert model.asked == [0, 1, 2]


async def test_run_stream_events_hands_out_events_while_they_happen(runtime: Runtime) -> None:
    words = Words("One ", "two.")
    agent = Agent(words.model, name="pai-live-events", capabilities=[Durable()])
    words.release_words()
    heard: list[str] = []
    async with asyncio.timeout(20), agent.run_stream_events("Go.", run_id="pai-live-events-1") as events:
        async for event in events:
            heard.append(event.event_kind)
            if event.event_kind in ("part_start", "part_delta"):
                assert words.said == sum(one in ("part_start", "part_delta") for one in heard)
                words.release_words()
    assert heard == ["part_start", "final_result", "part_delta", "part_end", "agent_run_result"]
    assert await names(runtime, "pai-live-events-1") == ["model call", "new messages"]


async def test_leaving_the_events_early_cancels_the_run(runtime: Runtime) -> None:
    agent, _ = explorer("pai-live-early")
    async with agent.run_stream_events("Go.", run_id="pai-live-early-1") as events:
        async for _ in events:
            break
    assert await state_of(runtime, "pai-live-early-1") is RunState.CANCELLED


async def test_the_events_of_a_handler_of_the_agent_are_still_steps(runtime: Runtime) -> None:
    heard: list[str] = []

    async def hear(ctx: RunContext[None], events: Any) -> None:
        async for event in events:
            heard.append(event.event_kind)

    agent = Agent(Script([call("count", things="abc")], "done"), name="pai-live-both", tools=[count],
                  capabilities=[Durable(event_stream_handler=hear)])  # fmt: skip
    async with agent.iter("Go.", run_id="pai-live-both-1") as run:
        async for _ in run:
            pass
    assert "function_tool_call" in heard
    assert "part_start" in heard
    assert "event" in await names(runtime, "pai-live-both-1")


async def test_parts_of_a_recorded_answer_are_shown_without_a_stream(runtime: Runtime) -> None:
    agent, _ = explorer("pai-live-recorded")
    await agent.run("Go.", run_id="pai-live-recorded-1")
    parts: list[Any] = []
    async with agent.iter("Go.", run_id="pai-live-recorded-1") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    parts += [event.part async for event in events if isinstance(event, PartStartEvent)]
    assert [type(part) for part in parts] == [ToolCallPart, ToolCallPart, ToolCallPart, TextPart]
    assert (await journal(runtime, "pai-live-recorded-1"))[-1].name == "new messages"
    assert flow_of(agent).bindings._bindings == {}  # pyright: ignore[reportPrivateUsage]


# Messages


async def stream_text(agent: Agent[None, str]) -> str:
    async with agent.run_stream("Go.") as stream:
        return await stream.get_output()


async def iterate(agent: Agent[None, str]) -> str:
    async with agent.iter("Go.") as run:
        async for _ in run:
            pass
    assert run.result is not None
    return run.result.output


async def handle_events(agent: Agent[None, str]) -> str:
    async def handle(ctx: RunContext[None], events: Any) -> None:
        async for _ in events:
            pass

    return (await agent.run("Go.", event_stream_handler=handle)).output


async def run_plainly(agent: Agent[None, str]) -> str:
    return (await agent.run("Go.")).output


@pytest.mark.parametrize("run", [run_plainly, stream_text, iterate])
async def test_the_messages_of_a_run_are_captured(runtime: Runtime, run: Any) -> None:
    agent = Agent(Script([call("count", things="abc")], "done"), name=f"pai-live-captured-{run.__name__}",
                  tools=[count], capabilities=[Durable()])  # fmt: skip
    with capture_run_messages() as messages:
        assert await run(agent) == "done"
        first = list(messages)
        await run(agent)
    assert [type(one).__name__ for one in messages] == ["ModelRequest", "ModelResponse"] * 2
    assert messages == first, "only those of the first run"


# Streams that break off


@pytest.mark.parametrize("run", [stream_text, iterate, handle_events])
@pytest.mark.parametrize("model", ["openai-chat:gpt-4o", "openai:gpt-4o", "anthropic:claude-sonnet-5", "fallback"])
async def test_a_stream_that_ends_without_a_reason_is_repeated(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any, model: str
) -> None:
    script = {"go": [{"text": "Sunny and warm.", "faults": [{"kind": "unfinished"}]}]}
    with ProviderServer(script, tmp_path / "provider.ledger") as provider:
        for key, value in provider.address.environment.items():
            monkeypatch.setenv(key, value)
        asked = FallbackModel("openai-chat:gpt-4o", "openai-chat:gpt-4o-mini") if model == "fallback" else model
        durable = Durable[None](retry=RetryPolicy(backoff=0.01))
        name = f"pai-live-unfinished-{run.__name__}-{model.partition(':')[0]}"
        agent = Agent(asked, name=name, instructions="script:go", capabilities=[durable])
        assert await run(agent) == "Sunny and warm."
        assert len(provider.address.calls) == 2

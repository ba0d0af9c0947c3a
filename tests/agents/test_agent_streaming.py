"""Streamed answers: live text, records, and that nothing else differs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from provider_server import ProviderServer
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from holdfast import Agent, Client, ModelOptions, Runtime, llm_step, tool, workflow
from holdfast.agents.models.chain import ModelChain
from holdfast.agents.models.messages import dump_message
from holdfast.agents.models.model_resolution import disable_sdk_retries, get_model, load_model
from holdfast.agents.models.request import can_stream, request
from holdfast.reports.events import Event
from holdfast.testing import Runner, ScriptedModel, call

pytestmark = pytest.mark.asyncio

MODELS = ["openai-chat:gpt-4o", "openai:gpt-4o", "anthropic:claude-sonnet-5"]
LOOK = ToolDefinition(
    name="look", parameters_json_schema={"type": "object", "properties": {"city": {"type": "string"}}}
)


@tool
async def look(city: str) -> str:
    """Looks at a city."""
    return f"{city} is nice"


def make_request(script: str) -> list[ModelMessage]:
    return [ModelRequest.user_text_prompt("Go.", instructions=f"script:{script}")]


async def events_of(run_id: str, runtime: Runtime) -> list[Event]:
    async with Client(runtime.url) as client:
        return [event async for event in client.events(run_id)]


def without_times(response: ModelResponse) -> dict[str, Any]:
    """What is recorded of it, but for when it was asked for: they were not at the same moment."""
    dumped = dump_message(response)
    details = {name: value for name, value in dumped.get("provider_details", {}).items() if name != "timestamp"}
    return {**dumped, "timestamp": "", "provider_details": details}


# What is recorded


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "turn",
    [
        {"text": "Sunny and warm.", "usage": {"input": 1000, "output": 100, "cached": 400}},
        {
            "text": "Let me look.",
            "calls": [{"tool": "look", "arguments": {"city": "Oslo"}}, {"tool": "look", "arguments": {"city": "Rom"}}],
        },
        {"calls": [{"tool": "look", "arguments": {"city": "Oslo"}}]},
    ],
    ids=["text", "text and calls", "a call"],
)
async def test_what_is_recorded_of_a_stream_is_what_is_recorded_of_the_whole(
    server: ProviderServer, model: str, turn: dict[str, Any]
):
    server.scripts = {"same": [turn]}
    await load_model(model)
    one = get_model(model)
    settings, parameters = disable_sdk_retries(one, None), ModelRequestParameters(function_tools=[LOOK])
    heard: list[str] = []
    whole = await request(one, make_request("same"), settings, parameters)
    streamed = await request(one, make_request("same"), settings, parameters, heard.append)
    assert without_times(streamed) == without_times(whole)
    assert streamed.usage.input_tokens > 0
    assert "".join(heard) == turn.get("text", "")
    assert len([piece for piece in heard if piece]) >= len(turn.get("text", "").split())
    assert server.address.calls[-1].stream


@pytest.mark.parametrize("stream", [True, False])
async def test_an_agent_requests_streams_unless_they_are_turned_off(
    server: ProviderServer, runtime: Runtime, stream: bool
):
    server.scripts = {"weather": [{"text": "Sunny.", "usage": {"input": 10, "output": 5}}]}
    name = f"streaming-{stream}"
    agent = Agent(
        "openai-chat:gpt-4o",
        name=name,
        instructions="script:weather",
        model_options=None if stream else ModelOptions(stream=False),
    )
    result = await agent.run("Go.")
    assert (result.output, result.usage.input_tokens, result.usage.output_tokens) == ("Sunny.", 10, 5)
    assert [one.stream for one in server.address.calls] == [stream]


# Live text


async def test_the_text_is_read_while_the_answer_still_comes(server: ProviderServer, runtime: Runtime, tmp_path: Path):
    hold = {"touch": str(tmp_path / "held"), "until": str(tmp_path / "go"), "after": 4}
    server.scripts = {"weather": [{"text": "Sunny and warm, all day.", "hold": hold}]}
    handle = await Agent("openai-chat:gpt-4o", name="streaming-live", instructions="script:weather").start("Go.")
    heard, seen = "", []
    async with asyncio.timeout(20):
        async for event in handle.events():
            seen.append(event.kind)
            if event.kind == "text":
                heard += event.text
                if not (tmp_path / "go").exists():
                    assert heard
                    assert "Sunny and warm, all day.".startswith(heard)
                    assert len(heard) < len("Sunny and warm, all day.")
                    (tmp_path / "go").touch()
            elif event.kind == "answered":
                assert heard == event.text == "Sunny and warm, all day."
    assert (seen[0], seen[-2:]) == ("started", ["answered", "ended"])
    assert "retracted" not in seen


async def test_a_fallback_retracts_the_text_of_the_failed_model(server: ProviderServer, runtime: Runtime):
    """The first breaks off in the middle for good; a refusal is not repeated."""
    go = asyncio.Event()

    async def half(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "I would "
        await go.wait()
        raise ZeroDivisionError("it broke")

    server.scripts = {"weather": [{"text": "Sunny."}]}
    first = FunctionModel(stream_function=half)
    agent = Agent(first, name="streaming-fallback", instructions="script:weather", fallback="openai-chat:gpt-4o")
    handle = await agent.start("Go.")
    told: list[tuple[str, str]] = []
    async with asyncio.timeout(20):
        async for event in handle.events():
            told.append((event.kind, event.text))
            if event.kind == "text":
                go.set()
    assert told[0] == ("started", "")
    assert told[1:3] == [("text", "I would "), ("retracted", "")]
    assert "".join(text for kind, text in told[3:] if kind == "text") == "Sunny."
    assert told[-2:] == [("answered", "Sunny."), ("ended", "")]


async def test_streamed_texts_around_a_call_equal_those_in_the_record(runtime: Runtime):
    heard: list[str] = []
    parts = [TextPart("One, "), TextPart("two."), ThinkingPart("Hm."), TextPart("Three."), ToolCallPart("look", {})]
    model = ScriptedModel([ModelResponse([*parts, TextPart("Four.")])])
    await request(model, make_request("x"), {}, ModelRequestParameters(function_tools=[LOOK]), heard.append)
    assert "".join(heard) == "One, two.\n\nThree.\n\nFour."
    agent = Agent(
        ScriptedModel([["One.", call("look", city="Rom"), "Two."], "Done."]), name="streaming-parts", tools=[look]
    )
    handle = await agent.start("Go.")
    await handle.result()
    texts = [event.text for event in await events_of(handle.run_id, runtime) if event.kind == "text"]
    assert texts == ["One.\n\nTwo.", "Done."]


async def test_an_llm_step_is_streamed_too(runtime: Runtime):
    go = asyncio.Event()

    async def stream_words(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "Half "
        await go.wait()
        yield "and whole."

    @llm_step(model=FunctionModel(stream_function=stream_words))
    async def sum_up(text: str) -> str:
        return f"Sum up: {text}"

    @workflow(name="streaming-llm-step")
    async def summing() -> str:
        return await sum_up("much")

    handle = await runtime.start(summing)
    told: list[tuple[str, str]] = []
    async with asyncio.timeout(20):
        async for event in handle.events():
            told.append((event.kind, event.text))
            if event.kind == "text":
                go.set()
    assert told[1] == ("text", "Half ")
    assert told[-2:] == [("answered", "Half and whole."), ("ended", "")]
    assert "".join(text for kind, text in told if kind == "text") == "Half and whole."
    assert await handle.result() == "Half and whole."


# Models that cannot


class Silent(Model[None]):
    """A model that says nothing about streams, or only when it is asked for one."""

    @property
    def model_name(self) -> str:
        return "silent"

    @property
    def system(self) -> str:
        return "tests"

    async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
        return ModelResponse([TextPart("Whole.")], usage=RequestUsage(input_tokens=1, output_tokens=1))


async def plain(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([TextPart("Whole.")])


async def test_a_model_that_cannot_stream_is_called_without():
    class Refusing(WrapperModel):
        def request_stream(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError("not this one")

    silent, function = Silent(), FunctionModel(plain)
    assert not can_stream(silent)
    assert not can_stream(WrapperModel(silent))
    assert not can_stream(function)
    refusing = Refusing(ScriptedModel(["Whole."]))
    assert can_stream(refusing), "it is only known when it is asked"
    for model in (silent, WrapperModel(silent), function, refusing):
        heard: list[str] = []
        answer = await request(model, make_request("x"), {}, ModelRequestParameters(), heard.append)
        assert (answer.text, heard) == ("Whole.", [])


async def test_a_model_with_its_own_request_method_is_not_streamed():
    class Watched(WrapperModel):
        request_count = 0

        async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
            self.request_count += 1
            return await super().request(*args, **kwargs)

    class Renamed(Watched):
        pass

    watched = Renamed(ScriptedModel(["one two three"]))
    assert can_stream(WrapperModel(ScriptedModel(["one"])))
    assert not can_stream(watched)
    heard: list[str] = []
    answer = await request(watched, make_request("any"), {}, ModelRequestParameters(), heard.append)
    assert (answer.text, watched.request_count, heard) == ("one two three", 1, [])


async def test_an_answer_that_is_cut_off_is_none(runtime: Runtime):
    """A stream that ends although the answer has not, and does not say so by an error."""
    from pydantic_ai.exceptions import UnexpectedModelBehavior

    class Cut(ScriptedModel):
        async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
            answer = await super().request(*args, **kwargs)
            answer.state = "incomplete"
            return answer

        request_stream = ScriptedModel.request_stream  # which asks the one above

    with pytest.raises(UnexpectedModelBehavior, match="the stream ended before the answer did"):
        await request(Cut(["Half"]), make_request("x"), {}, ModelRequestParameters(), lambda _: None)


# A model by a script


async def test_a_scripted_model_streams_the_same_text():
    model = ScriptedModel([["Two words,  and  more\n", call("look", city="Rom")]], usage=(3, 4))
    parameters = ModelRequestParameters(function_tools=[LOOK])
    heard: list[str] = []
    streamed = await request(model, make_request("x"), {}, parameters, heard.append)
    assert streamed == await request(model, make_request("x"), {}, parameters)
    assert [piece for piece in heard if piece] == ["Two", " words,", "  and", "  more", "\n"]


async def test_nothing_is_streamed_without_a_reader(server: ProviderServer):
    """Outside of a run."""
    server.scripts = {"weather": [{"text": "Sunny."}]}

    @llm_step(model="openai-chat:gpt-4o", instructions="script:weather")
    async def outside() -> str:
        return "What is the weather?"

    assert await outside() == "Sunny."
    assert [one.stream for one in server.address.calls] == [False]
    assert ModelChain(("m",)).should_stream


# In a test of the user's


async def test_a_runner_reports_events():
    agent = Agent(ScriptedModel([call("look", city="Rom"), "Nice."]), name="streaming-runner", tools=[look])
    runner = Runner()
    result = await runner.run(agent, "Go.")
    events = await runner.events(result.run_id)
    assert [event.kind for event in events] == ["answered", "step", "text", "answered", "ended"]
    assert [event.kind for event in await runner.events(result.run_id, events[2].offset)] == ["answered", "ended"]

"""The scripted provider itself, called through the real SDKs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from httpx2 import AsyncClient
from provider_server import KEY, Address, Call, ProviderServer, Script, count_calls, server_process, write_script
from pydantic_ai import exceptions as failures
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    TextPartDelta,
    ToolReturnPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from waits import wait_until

pytestmark = pytest.mark.asyncio

PROTOCOLS = ("openai-chat", "openai-responses", "anthropic")
PATIENCE = 10.0
LOOK = ToolDefinition(
    name="look",
    description="Look out of the window.",
    parameters_json_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
OUTPUT = ToolDefinition(
    name="final_result", parameters_json_schema={"type": "object", "properties": {"degrees": {"type": "integer"}}}
)
WEATHER = {
    "weather": [
        {
            "text": "Let me look.",
            "calls": [
                {"tool": "look", "arguments": {"city": "Oslo"}},
                {"tool": "look", "arguments": {"city": "Rome"}},
            ],
            "usage": {"input": 120, "output": 30, "cached": 100},
        },
        {"text": "They said: {results}."},
    ]
}

Serve = Callable[[Script], Address]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[ProviderServer] = []

    def start(scripts: Script) -> Address:
        servers.append(ProviderServer(scripts, tmp_path / f"ledger-{len(servers)}").__enter__())
        return servers[-1].address

    yield start
    for server in servers:
        server.__exit__()


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


_opened: list[AsyncClient] = []


@pytest_asyncio.fixture(autouse=True)
async def _connections_are_closed() -> AsyncIterator[None]:
    yield
    while _opened:
        await _opened.pop().aclose()


def model(protocol: str, address: Address, key: str = KEY) -> Model:
    plain = AsyncClient(verify=False)  # reading the machine's certificates takes longer than everything else
    _opened.append(plain)
    if protocol == "anthropic":
        provider = AnthropicProvider(base_url=address.url, api_key=key, http_client=plain)
        return AnthropicModel("claude-sonnet-5", provider=provider)
    chosen = OpenAIChatModel if protocol == "openai-chat" else OpenAIResponsesModel
    return chosen("gpt-4o", provider=OpenAIProvider(base_url=address.openai_url, api_key=key, http_client=plain))


def prompt(text: str = "What is the weather?", script: str = "weather") -> list[ModelMessage]:
    return [ModelRequest.user_text_prompt(text, instructions=f"You play script:{script}. Be brief.")]


async def ask(
    model: Model,
    messages: list[ModelMessage],
    *tools: ToolDefinition,
    stream: bool = False,
    timeout: float = PATIENCE,
) -> ModelResponse:
    # Without ``max_tokens``, Anthropic's models are asked for as much as they can say, which is always streamed.
    settings = ModelSettings(max_retries=0, timeout=timeout, max_tokens=1000)
    parameters = ModelRequestParameters(function_tools=list(tools))
    how: Any = {"model_settings": settings, "model_request_parameters": parameters}
    if not stream:
        return await model_request(model, messages, **how)
    async with model_request_stream(model, messages, **how) as streamed:
        async for _ in streamed:
            pass
        return streamed.get()


def results_of(response: ModelResponse, *results: str) -> ModelRequest:
    calls = zip(response.tool_calls, results, strict=True)
    parts = [ToolReturnPart(call.tool_name, result, call.tool_call_id) for call, result in calls]
    return ModelRequest(parts, instructions="You play script:weather. Be brief.")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_conversation_with_tools(serve: Serve, protocol: str, stream: bool):
    address = serve(WEATHER)
    asked = model(protocol, address)
    messages = prompt()
    first = await ask(asked, messages, LOOK, stream=stream)
    assert first.text == "Let me look."
    assert [(call.tool_name, call.args_as_dict()) for call in first.tool_calls] == [
        ("look", {"city": "Oslo"}),
        ("look", {"city": "Rome"}),
    ]
    assert (first.usage.input_tokens, first.usage.cache_read_tokens, first.usage.output_tokens) == (120, 100, 30)
    assert first.finish_reason == "tool_call" or protocol == "openai-responses"  # which just says: completed
    assert len({call.tool_call_id for call in first.tool_calls}) == 2
    assert first.provider_response_id

    messages += [first, results_of(first, "snow", "sun")]
    second = await ask(asked, messages, LOOK, stream=stream)
    assert second.text == "They said: snow, sun."
    assert (second.finish_reason, second.tool_calls) == ("stop", [])
    assert second.usage.input_tokens > 0 < second.usage.output_tokens

    calls = address.calls
    assert [(call.protocol, call.agent, call.turn, call.nth, call.stream) for call in calls] == [
        (protocol, "weather", 0, 1, stream),
        (protocol, "weather", 1, 1, stream),
    ]
    assert calls[0].answered == {"text": "Let me look.", "calls": ["look", "look"]}
    assert {call.gone for call in calls} == {False}
    assert "pydantic-ai" in calls[0].user_agent
    assert KEY not in address.ledger.read_text()


async def test_the_same_request_gets_the_same_answer_and_another_gets_another(serve: Serve, protocol: str):
    address = serve(WEATHER)
    asked = model(protocol, address)
    one, again, other = [await ask(asked, prompt(text), LOOK) for text in ("Today?", "Today?", "Tomorrow?")]
    assert one.parts == again.parts
    assert one.provider_response_id == again.provider_response_id != other.provider_response_id
    assert one.tool_calls[0].tool_call_id != other.tool_calls[0].tool_call_id
    assert [call.nth for call in address.calls] == [1, 2, 1]
    assert len({call.digest for call in address.calls}) == 2
    assert count_calls(address.ledger) == {("weather", 0): 3}


async def test_a_structured_answer_comes_by_the_output_tool_or_as_text(serve: Serve, protocol: str):
    address = serve({"weather": [{"answer": {"degrees": -3}}]})
    asked = model(protocol, address)
    by_tool = await ask(asked, prompt(), OUTPUT)
    assert [(call.tool_name, call.args_as_dict()) for call in by_tool.tool_calls] == [("final_result", {"degrees": -3})]
    assert (await ask(asked, prompt())).text == '{"degrees": -3}'


async def test_the_script_is_named_by_instructions_by_the_user_or_by_the_model(serve: Serve):
    text = {name: [{"text": f"{name} says: {{task}}"}] for name in ("a", "a@gpt-4o", "b.c", "gpt-4o")}
    asked = model("openai-chat", address := serve(text))
    assert (await ask(asked, prompt("hello", "a"))).text == "a@gpt-4o says: hello"
    assert (await ask(model("anthropic", address), prompt("hello", "a"))).text == "a says: hello"
    assert (await ask(asked, [ModelRequest.user_text_prompt("script:b.c.")])).text == "b.c says: script:b.c."
    assert (await ask(asked, [ModelRequest.user_text_prompt("hello")])).text == "gpt-4o says: hello"
    with pytest.raises(failures.ModelRequestRejectedError, match="There is no script 'd', only 'a', "):
        await ask(asked, prompt("hello", "d"))


async def test_what_a_provider_would_refuse_is_refused(serve: Serve, protocol: str):
    address = serve(WEATHER)
    asked = model(protocol, address)
    first = await ask(asked, messages := prompt(), LOOK)
    half = results_of(first, "snow", "sun")
    half.parts = half.parts[:1]
    with pytest.raises(failures.ModelRequestRejectedError, match="must be followed by their results"):
        await ask(asked, [*messages, first, half], LOOK)
    second = await ask(asked, messages := [*messages, first, results_of(first, "snow", "sun")], LOOK)
    with pytest.raises(failures.ModelRequestRejectedError, match="has 2 turns, and all of them"):
        await ask(asked, [*messages, second, *prompt("And now?")], LOOK)
    with pytest.raises(failures.ModelAuthenticationError):
        await ask(model(protocol, address, key="sk-another"), prompt(), LOOK)
    assert [call.answered["status"] for call in address.calls if "status" in (call.answered or {})] == [400, 400, 401]


FAULTS: list[tuple[dict[str, Any], type[Exception], str | None]] = [
    ({"kind": "rate_limit"}, failures.ModelRateLimitError, "Rate limit"),
    ({"kind": "quota"}, failures.ModelQuotaExceededError, "quota|credit balance"),
    ({"kind": "server_error"}, failures.ModelServerError, "had an error"),
    ({"kind": "overloaded"}, failures.ModelOverloadedError, "verloaded"),
    ({"kind": "unauthorized"}, failures.ModelAuthenticationError, "(?i)api.key"),
    ({"kind": "bad_request", "words": "No, thank you."}, failures.ModelRequestRejectedError, "No, thank you."),
    ({"kind": "not_found"}, failures.ModelNotFoundError, "does not exist"),
    ({"kind": "too_long"}, failures.ModelContextWindowExceededError, "200123 tokens"),
    ({"kind": "stall", "seconds": 60}, failures.ModelTimeoutError, "timed out"),
    ({"kind": "cut"}, failures.ModelConnectionError, None),
    ({"kind": "malformed"}, failures.ModelAPIError, "Failed to decode"),
    ({"kind": "html"}, failures.AgentRunError, None),  # in or out of the tree of ModelAPIError, by protocol
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_every_fault_is_what_the_sdk_takes_it_for_and_passes(serve: Serve, protocol: str, stream: bool):
    address = serve({"weather": [{"text": "Sunny and very warm.", "faults": [fault for fault, _, _ in FAULTS]}]})
    asked = model(protocol, address)
    for fault, error, words in FAULTS:
        with pytest.raises(error, match=words) as raised:
            await ask(asked, prompt(), stream=stream, timeout=0.2 if fault["kind"] == "stall" else PATIENCE)
        if fault["kind"] == "cut":
            assert getattr(raised.value, "phase", None) == "read"
    assert (await ask(asked, prompt(), stream=stream)).text == "Sunny and very warm."
    assert [(call.answered or {}).get("fault") for call in await ended(address)] == [
        *(fault["kind"] for fault, _, _ in FAULTS),
        None,
    ]
    assert [(call.answered or {})["fault"] for call in address.calls if call.gone] == ["stall"]


async def test_a_rate_limit_sends_retry_after_as_often_as_configured(serve: Serve, protocol: str):
    fault = {"kind": "rate_limit", "retry_after": 7, "times": 2}
    address = serve({"weather": [{"text": "Sunny.", "faults": [fault, {"kind": "server_error", "times": None}]}]})
    for _ in range(2):
        with pytest.raises(failures.ModelRateLimitError) as raised:
            await ask(model(protocol, address), prompt())
        assert raised.value.retry_after == 7.0
    for _ in range(3):
        with pytest.raises(failures.ModelServerError):
            await ask(model(protocol, address), prompt())


async def test_an_answer_is_held_until_it_may_go(serve: Serve, tmp_path: Path, protocol: str):
    held, go = tmp_path / "held", tmp_path / "go"
    address = serve({"weather": [{"text": "Sunny.", "hold": {"touch": str(held), "until": str(go)}}]})
    asking = asyncio.create_task(ask(model(protocol, address), prompt()))
    await wait_until(held.exists)
    [call] = address.calls
    assert call.answered is None
    assert not asking.done()
    go.touch()
    assert (await asking).text == "Sunny."


async def test_a_stream_is_held_in_the_middle(serve: Serve, tmp_path: Path, protocol: str):
    held, go = tmp_path / "held", tmp_path / "go"
    # The text begins after different events, and has begun after seven in every protocol.
    hold = {"touch": str(held), "until": str(go), "after": 7}
    address = serve({"weather": [{"text": "one two three four five six seven eight", "hold": hold}]})
    before = ""
    async with model_request_stream(model(protocol, address), prompt()) as streamed:
        async for event in streamed:
            if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta) and not before:
                await wait_until(held.exists)
                before = "".join(getattr(part, "content", "") for part in streamed.get().parts)
                go.touch()
    assert before.startswith("one ")
    assert len(before) < len("one two three four five six seven eight")
    assert streamed.get().text == "one two three four five six seven eight"


async def test_a_delay(serve: Serve):
    address = serve({"weather": [{"text": "Sunny.", "delay": 0.1}]})
    before = time.monotonic()
    await ask(model("openai-chat", address), prompt())
    assert time.monotonic() - before >= 0.1


CLIENT = """
import sys, urllib.request
body = b'{"model": "gpt-4o", "messages": [{"role": "user", "content": "script:weather"}]}'
headers = {"content-type": "application/json", "authorization": "Bearer " + sys.argv[2]}
urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/chat/completions", body, headers)).read()
"""


async def test_in_a_process_of_its_own_it_sees_a_client_die_and_reads_its_script_anew(tmp_path: Path):
    held, go = tmp_path / "held", tmp_path / "go"
    script = {"weather": [{"text": "Sunny.", "hold": {"touch": str(held), "until": str(go)}}]}
    with server_process(tmp_path, script) as address:
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, address.openai_url, KEY)
        await wait_until(held.exists)
        assert [call.answered for call in address.calls] == [None]
        client.kill()
        await client.wait()
        [call] = await ended(address)
        assert call.gone
        write_script(tmp_path, {"weather": [{"text": "Rainy."}]})
        again = await ask(model("openai-chat", address), [ModelRequest.user_text_prompt("script:weather")])
        assert again.text == "Rainy."
        assert [(call.nth, call.gone) for call in address.calls] == [(1, True), (2, False)]
        assert address.calls[0].digest == address.calls[1].digest


async def test_many_at_once(serve: Serve):
    address = serve({"weather": [{"text": "{task}", "delay": 0.05}]})
    asked = model("openai-chat", address)
    texts = [f"number {number}" for number in range(20)]
    answers = await asyncio.gather(*(ask(asked, prompt(text)) for text in texts))
    assert [answer.text for answer in answers] == texts
    assert len(address.calls) == 20


async def test_a_server_that_stops_releases_all_clients(tmp_path: Path):
    held = tmp_path / "held"
    hold = {"touch": str(held), "until": str(tmp_path / "never")}
    with ProviderServer({"weather": [{"text": "Sunny.", "hold": hold}]}, tmp_path / "ledger") as server:
        asking = asyncio.create_task(ask(model("openai-chat", server.address), prompt()))
        await wait_until(held.exists)
    with pytest.raises(failures.ModelConnectionError):
        await asking
    assert not server.serving.is_alive()


async def ended(address: Address) -> list[Call]:
    """All requests, once none of them is being answered any more."""
    await wait_until(lambda: all(call.answered is not None for call in address.calls))
    return address.calls

"""``durable(client)``: the SDKs' own objects and types, with answers from the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from provider_server import KEY, ProviderServer
from pydantic import BaseModel
from scripted_http import JSON, Crashes, Reply, Server, Store, make_chat, make_chat_stream

from holdfast import RunFailed, UsageError, program, step, workflow
from holdfast.integrations.anthropic import durable as durable_anthropic
from holdfast.integrations.openai import durable

pytestmark = pytest.mark.asyncio

HELLO: Any = [{"role": "user", "content": "Hello"}]
SCRIPTS = {"hello": [{"text": "It is fine.", "usage": {"input": 120, "output": 30, "cached": 100}}]}


def make_client(server: Server, **options: Any) -> openai.AsyncOpenAI:
    return durable(openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sk-secret-123", **options))


async def test_the_same_object_comes_back(server: Server):
    client = openai.OpenAI(base_url=server.url, api_key="k")
    assert durable(client) is client
    assert durable(client) is client
    server.reply = lambda _: make_chat("Hi")
    assert client.chat.completions.create(model="gpt-4o", messages=HELLO).choices[0].message.content == "Hi"
    client.close()
    async_client = anthropic.AsyncAnthropic(api_key="k")
    assert durable_anthropic(async_client) is async_client


async def test_what_is_not_a_client_is_refused():
    with pytest.raises(UsageError, match="takes a client of the `openai` or `anthropic` package, and 'Client' is not"):
        durable(httpx.Client())


async def test_a_client_can_use_the_older_httpx(server: Server, store: Store):
    crash = Crashes()
    server.reply = lambda _: make_chat("Hi")
    http_client: Any = httpx.AsyncClient()

    @program
    async def flow() -> str | None:
        client = make_client(server, http_client=http_client)
        answer = await client.chat.completions.create(model="gpt-4o", messages=HELLO)
        crash()
        return answer.choices[0].message.content

    assert await (await store.run_twice(flow)).result() == "Hi"
    assert len(server.sent) == 1


async def test_the_types_of_the_sdk_come_back(server: Server, store: Store):
    crash, seen = Crashes(), []

    class City(BaseModel):
        name: str

    server.reply = lambda sent: (
        make_chat_stream("A", "B") if json.loads(sent.body).get("stream") else make_chat('{"name": "Oslo"}')
    )

    @program
    async def flow() -> None:
        client = make_client(server)
        parsed = await client.chat.completions.parse(model="gpt-4o", messages=HELLO, response_format=City)
        raw = await client.chat.completions.with_raw_response.create(model="gpt-4o", messages=HELLO)
        copied = await client.with_options(timeout=5).chat.completions.create(model="gpt-4o", messages=HELLO)
        texts = []
        async with client.chat.completions.stream(model="gpt-4o", messages=HELLO) as stream:
            async for event in stream:
                if event.type == "content.delta":
                    texts.append(event.delta)
        seen.append((parsed.choices[0].message.parsed, raw.status_code, raw.parse(), copied, texts))
        crash()

    await (await store.run_twice(flow)).result()
    assert seen[0] == seen[1]
    parsed, status, answer, copied, texts = seen[0]
    assert parsed == City(name="Oslo")
    assert status == 200
    assert type(answer) is type(copied) is openai.types.chat.ChatCompletion
    assert texts == ["A", "B"]
    assert len(server.sent) == 4


async def test_embeddings_are_recorded(server: Server, store: Store):
    crash = Crashes()
    data = {"object": "list", "model": "text-embedding-3-small", "usage": {"prompt_tokens": 8, "total_tokens": 8}}
    embedding = {"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}
    server.reply = lambda _: Reply(headers=JSON, body=json.dumps({**data, "data": [embedding]}).encode())

    @program
    async def flow() -> list[float]:
        found = await make_client(server).embeddings.create(
            model="text-embedding-3-small", input="Hello", encoding_format="float"
        )
        crash()
        return found.data[0].embedding

    handle = await store.run_twice(flow)
    assert await handle.result() == [0.5, 1.0]
    assert len(server.sent) == 1
    assert (await handle.usage()).input_tokens == 8


async def test_azure_is_priced_as_azure(server: Server, store: Store):
    server.reply = lambda _: make_chat("Hi")
    client = durable(openai.AsyncAzureOpenAI(azure_endpoint=server.url, api_key="secret", api_version="2024-10-21"))

    @program
    async def flow() -> str | None:
        return (await client.chat.completions.create(model="gpt-4o", messages=HELLO)).choices[0].message.content

    handle = await store.runtime.start(flow)
    assert await handle.result() == "Hi"
    assert server.paths == ["/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21"]
    assert (await handle.usage()).cost is not None


async def test_the_sdk_repeats_a_failed_request_and_the_answer_is_recorded(server: Server, store: Store):
    crash = Crashes()
    limited = Reply(429, {**JSON, "retry-after-ms": "1"}, b'{"error": {"message": "slow down"}}')
    server.reply_in_turn(limited, limited, make_chat("Hi"))

    @program
    async def flow() -> str | None:
        answer = await make_client(server).chat.completions.create(model="gpt-4o", messages=HELLO)
        crash()
        return answer.choices[0].message.content

    assert await (await store.run_twice(flow)).result() == "Hi"
    assert len(server.sent) == 3


async def test_a_request_that_is_refused_is_sent_again_when_the_run_is_retried(server: Server, store: Store):
    server.reply_in_turn(Reply(401, body=b'{"error": {"message": "wrong key"}}'), make_chat("Hi"))

    @program
    async def flow() -> str | None:
        try:
            answer = await make_client(server).chat.completions.create(model="gpt-4o", messages=HELLO)
        except openai.AuthenticationError as error:
            raise RuntimeError(f"Crash: {error}") from None
        return answer.choices[0].message.content

    assert await (await store.run_twice(flow)).result() == "Hi"


async def test_conversations_of_anthropic_show_tool_results(tmp_path: Path, store: Store):
    script = {"trip": [{"calls": [{"tool": "look", "arguments": {"city": "Oslo"}}]}, {"text": "Rain, so {results}."}]}
    tools: Any = [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}}]

    with ProviderServer(script, tmp_path / "ledger") as provider:

        @program
        def flow() -> str:
            client = durable_anthropic(anthropic.Anthropic(base_url=provider.address.url, api_key=KEY))
            messages: Any = [{"role": "user", "content": [{"type": "text", "text": "script:trip How is Oslo?"}]}]
            while True:
                with client.messages.stream(
                    model="claude-sonnet-4-5", max_tokens=100, system="Be brief.", messages=messages, tools=tools
                ) as stream:
                    answer = stream.get_final_message()
                if answer.stop_reason != "tool_use":
                    return stream.get_final_text()
                messages.append({"role": "assistant", "content": answer.content})
                call = next(block for block in answer.content if block.type == "tool_use")
                result = {"type": "tool_result", "tool_use_id": call.id, "content": "it rains"}
                messages.append({"role": "user", "content": [result]})

        handle = await store.runtime.start(flow)
        assert await handle.result() == "Rain, so it rains."
    shown = [(message.role, message.text) for message in await handle.conversation()]
    assert [role for role, _ in shown] == ["system", "user", "model", "tool", "model"]
    assert shown[1][1] == "script:trip How is Oslo?"
    assert shown[3][1] == "it rains"
    assert KEY.encode() not in store.read_files()


async def test_responses_show_instructions_and_usage(tmp_path: Path, store: Store):
    with ProviderServer(SCRIPTS, tmp_path / "ledger") as provider:

        @program
        async def flow() -> str:
            client = durable(openai.AsyncOpenAI(base_url=provider.address.openai_url, api_key=KEY))
            found = await client.responses.create(model="gpt-4o", instructions="Be kind.", input="script:hello Hi")
            return found.output_text

        handle = await store.runtime.start(flow)
        assert await handle.result() == "It is fine."
    shown = [(message.role, message.text) for message in await handle.conversation()]
    assert shown == [("system", "Be kind."), ("user", "script:hello Hi"), ("model", "It is fine.")]
    usage = await handle.usage()
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (120, 30, 100)


async def test_a_workflow_calls_a_model_in_a_step(server: Server, store: Store):
    server.reply = lambda _: make_chat("Hi")
    client = make_client(server)

    @step
    async def greet() -> str | None:
        return (await client.chat.completions.create(model="gpt-4o", messages=HELLO)).choices[0].message.content

    @workflow
    async def outer() -> str | None:
        return await greet()

    handle = await store.runtime.start(outer)
    assert await handle.result() == "Hi"
    assert [entry.name for entry in (await handle.describe()).journal if entry.kind == "step"] == ["greet"]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_model_call_of_a_workflow_itself_is_refused(kind: str, server: Server, store: Store):
    client, sync_client = make_client(server), durable(openai.OpenAI(base_url=server.url, api_key="k"))

    @workflow
    async def outer() -> None:
        if kind == "async":
            await client.chat.completions.create(model="gpt-4o", messages=HELLO)
        else:
            sync_client.chat.completions.create(model="gpt-4o", messages=HELLO)

    handle = await store.runtime.start(outer)
    with pytest.raises(RunFailed, match=r"in a @?step"):
        await handle.result()
    assert server.sent == []


async def test_a_blocking_call_on_the_event_loop_is_refused(server: Server, store: Store):
    client = durable(openai.OpenAI(base_url=server.url, api_key="k"))

    @program
    async def flow() -> None:
        client.chat.completions.create(model="gpt-4o", messages=HELLO)

    handle = await store.runtime.start(flow)
    with pytest.raises(RunFailed, match="blocking call cannot be recorded here"):
        await handle.result()
    assert server.sent == []

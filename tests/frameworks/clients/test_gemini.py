"""Google's SDK, which uses httpx or, for async calls, aiohttp."""

from __future__ import annotations

import json

import pytest
from google import genai
from google.genai import types
from scripted_http import SSE, Crashes, Reply, Server, Store

from holdfast import program
from holdfast.integrations.http import install

pytestmark = pytest.mark.asyncio

install()

MODEL = "gemini-2.5-flash"
USAGE = {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}
KEY = "gemini-key-0123456789"


def make_answer(text: str) -> dict[str, object]:
    content = {"role": "model", "parts": [{"text": text}]}
    return {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": USAGE, "modelVersion": MODEL}


def make_reply(path: str) -> Reply:
    if "stream" in path:
        return Reply(headers=SSE, body=[f"data: {json.dumps(make_answer(text))}\r\n\r\n".encode() for text in "AB"])
    return Reply(body=json.dumps(make_answer("AB")).encode())


@pytest.mark.parametrize("library", ["httpx", "httpx2", "aiohttp"])
@pytest.mark.parametrize("kind", ["sync", "async", "sync-stream", "async-stream"])
async def test_calls_of_the_sdk_are_recorded(
    kind: str, library: str, server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
):
    if library != "aiohttp":
        monkeypatch.setenv("GOOGLE_GENAI_HTTP_CLIENT", library)
        monkeypatch.setattr("google.genai._api_client.has_aiohttp", False)
    crash = Crashes()
    server.reply = lambda sent: make_reply(sent.path)
    client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=server.url))

    @program(name="sync-flow")
    def sync_flow() -> str | None:
        if kind == "sync":
            text = client.models.generate_content(model=MODEL, contents="Hello").text
        else:
            parts = client.models.generate_content_stream(model=MODEL, contents="Hello")
            text = "".join(part.text or "" for part in parts)
        crash()
        return text

    @program(name="async-flow")
    async def async_flow() -> str | None:
        if kind == "async":
            text = (await client.aio.models.generate_content(model=MODEL, contents="Hello")).text
        else:
            parts = await client.aio.models.generate_content_stream(model=MODEL, contents="Hello")
            text = "".join([part.text or "" async for part in parts])
        crash()
        return text

    handle = await store.run_twice(async_flow if kind.startswith("async") else sync_flow)
    assert await handle.result() == "AB"
    assert len(server.sent) == 1
    assert server.sent[0].headers["x-goog-api-key"] == KEY
    assert KEY.encode() not in store.read_files()
    assert [(message.role, message.text) for message in await handle.conversation()] == [
        ("user", "Hello"),
        ("model", "AB"),
    ]
    usage = await handle.usage()
    assert (usage.calls, usage.input_tokens, usage.output_tokens, usage.unpriced) == (1, 100, 20, 0)

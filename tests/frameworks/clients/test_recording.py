"""What is recorded of HTTP calls, in a process in which ``install`` was called."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from typing import Any

import aiohttp
import brotli
import httpx
import httpx2
import pytest
import requests
from scripted_http import JSON, SSE, Crashes, Reply, Server, Store, make_chat, make_chat_stream

from holdfast import RunFailed, program, step
from holdfast.integrations import AnswerCodec, ModelAnswer, ModelInput, record_model_call
from holdfast.integrations.http import install

pytestmark = pytest.mark.asyncio

install(["GET http://127.0.0.1:*/prices/*", "http://127.0.0.1:*/upload"])

CHAT = "/v1/chat/completions"


def make_body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **more}


async def post(url: str, body: Any, **options: Any) -> Any:
    async with httpx.AsyncClient() as client:
        return await client.post(url, json=body, **options)


async def test_calls_outside_of_programs_are_not_touched(server: Server):
    server.reply = lambda _: Reply(429, {**JSON, "retry-after": "7"}, b'{"error": {}}')
    response = await post(server.url + CHAT, make_body("Hello"))
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert "content-length" in response.headers


async def test_an_answer_from_the_record_has_the_same_status_headers_and_bytes(server: Server, store: Store):
    crash, seen = Crashes(), []
    headers = {**JSON, "x-request-id": "req_1", "set-cookie": "session=secret", "x-ratelimit-remaining": "3"}
    server.reply = lambda _: make_chat("Grüße")._replace(headers=headers)

    @program
    async def flow() -> None:
        response = await post(server.url + CHAT, make_body("Hello"))
        seen.append((response.status_code, dict(response.headers), response.content))
        crash()

    await (await store.run_twice(flow)).result()
    assert seen[0] == seen[1]
    assert seen[0][1] == {"content-type": "application/json", "x-request-id": "req_1"}
    assert len(server.sent) == 1


async def test_no_key_is_in_the_store(server: Server, store: Store):
    server.reply = lambda _: make_chat("Hi", candidates=[])
    key = "sk-very-secret-0123456789"

    @program
    async def flow() -> str:
        await post(server.url + CHAT, make_body("Hello"), headers={"authorization": f"Bearer {key}", "x-api-key": key})
        contents = {"contents": [{"parts": [{"text": "Hello"}]}]}
        await post(f"{server.url}/v1beta/models/gemini-2.5-flash:generateContent?key={key}", contents)
        async with httpx.AsyncClient(auth=("user", key)) as client:
            await client.get(f"{server.url}/prices/oslo?api_key={key}&day=1", headers={"cookie": key})
        return "done"

    handle = await store.runtime.start(flow)
    assert await handle.result() == "done"
    written = store.read_files()
    assert key.encode() not in written
    assert b"prices/oslo?day=1" in written
    assert len(server.sent) == 3
    assert [entry.name for entry in (await handle.describe()).journal if entry.kind == "step"] == [
        "model call", "model call", "http call",
    ]  # fmt: skip


async def test_other_calls_are_recorded_if_a_pattern_matches(server: Server, store: Store):
    crash, seen = Crashes(), []
    server.reply = lambda sent: Reply(headers={"content-type": "application/octet-stream"}, body=b"\x00\xff" * 3)

    @program
    async def flow() -> None:
        async with aiohttp.ClientSession() as session:
            for path in ("/prices/oslo", "/prices/oslo?day=2", "/weather"):
                async with session.get(server.url + path) as response:
                    seen.append(await response.read())
        crash()

    await (await store.run_twice(flow)).result()
    assert server.paths == ["/prices/oslo", "/prices/oslo?day=2", "/weather", "/weather"]
    assert set(seen) == {b"\x00\xff" * 3}


async def test_a_multipart_body_is_found_again_whatever_its_boundary(server: Server, store: Store):
    crash = Crashes()
    server.reply = lambda _: Reply()

    @program
    async def flow() -> None:
        async with httpx2.AsyncClient() as client:
            await client.post(f"{server.url}/upload", files={"file": ("a.txt", b"text")})
        crash()

    await (await store.run_twice(flow)).result()
    assert len(server.sent) == 1


async def test_parallel_calls_may_complete_in_another_order(server: Server, store: Store):
    crash, found = Crashes(), []
    delays = {"a": 0.1, "b": 0.05, "c": 0.0}
    server.reply = lambda sent: make_chat(json.loads(sent.body)["messages"][0]["content"].upper())

    @program
    async def flow() -> None:
        async def ask(name: str) -> str:
            await asyncio.sleep(delays[name])
            response = await post(server.url + CHAT, make_body(name))
            return response.json()["choices"][0]["message"]["content"]

        found.append(await asyncio.gather(*map(ask, delays)))
        delays.update(a=0.0, c=0.1)
        crash()

    await (await store.run_twice(flow)).result()
    assert found == [["A", "B", "C"]] * 2
    assert len(server.sent) == 3


async def test_a_changed_request_is_shown_as_a_difference(server: Server, store: Store):
    crash, prices = Crashes(), iter([1, 2])
    server.reply = lambda _: make_chat("Hi")

    @program
    async def flow() -> None:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"It costs {next(prices)}"}]
        await post(server.url + CHAT, {"model": "gpt-4o", "messages": messages})
        crash()

    handle = await store.run_twice(flow)
    with pytest.raises(RunFailed) as failed:
        await handle.result()
    assert "-content: It costs 1" in str(failed.value.__cause__)
    assert "+content: It costs 2" in str(failed.value.__cause__)
    assert len(server.sent) == 1


@pytest.mark.parametrize("failure", [Reply(429, body=b'{"error": {}}'), Reply(500), Reply(200, body=b'{"id": "cut')])
async def test_a_failed_answer_is_passed_on_and_asked_for_again(failure: Reply, server: Server, store: Store):
    crash, seen = Crashes(), []
    server.reply_in_turn(failure, make_chat("Hi"))

    @program
    async def flow() -> None:
        for _ in range(2):
            response = await post(server.url + CHAT, make_body("Hello"))
            seen.append((response.status_code, response.content))
            if response.status_code == 200 and response.content.endswith(b"}"):
                break
        crash()

    await (await store.run_twice(flow)).result()
    assert seen[0] == (failure.status, failure.body)
    assert [body for _, body in seen[1:]] == [make_chat("Hi").body] * 2
    assert len(server.sent) == 2


@pytest.mark.parametrize("library", ["httpx", "httpx2", "aiohttp", "requests"])
async def test_a_broken_stream_is_not_recorded(library: str, server: Server, store: Store):
    crash, seen = Crashes(), []
    server.reply_in_turn(make_chat_stream("A", "B", is_complete=False), make_chat_stream("A", "B", "C"))
    url, body = server.url + CHAT, make_body("Hello", stream=True)

    async def read_stream() -> bytes:
        if library == "aiohttp":
            async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
                return await response.read()
        async with (httpx if library == "httpx" else httpx2).AsyncClient() as client:
            return (await client.post(url, json=body)).content

    @program(name="async-flow")
    async def async_flow() -> None:
        while not seen or isinstance(seen[-1], str):
            try:
                seen.append(await read_stream())
            except Exception as error:
                seen.append(type(error).__name__)
        crash()

    @program(name="sync-flow")
    def sync_flow() -> None:
        while not seen or isinstance(seen[-1], str):
            try:
                seen.append(requests.post(url, json=body, stream=True).content)
            except Exception as error:
                seen.append(type(error).__name__)
        crash()

    await (await store.run_twice(sync_flow if library == "requests" else async_flow)).result()
    assert seen[0] in ("RemoteProtocolError", "ClientPayloadError", "ChunkedEncodingError")
    assert seen[1:] == [b"".join(make_chat_stream("A", "B", "C").body)]
    assert len(server.sent) == 2


async def test_an_error_in_a_stream_is_passed_on_and_not_recorded(server: Server, store: Store):
    crash, seen = Crashes(), []
    error = b'data: {"error": {"message": "Overloaded"}}\n\n'
    server.reply_in_turn(Reply(headers=SSE, body=[b'data: {"choices": []}\n\n', error]), make_chat_stream("A"))

    @program
    async def flow() -> None:
        while not seen or b"DONE" not in seen[-1]:
            seen.append((await post(server.url + CHAT, make_body("Hello", stream=True))).content)
        crash()

    await (await store.run_twice(flow)).result()
    assert seen == [b'data: {"choices": []}\n\n' + error, b"".join(make_chat_stream("A").body)]
    assert len(server.sent) == 2


async def test_a_consumer_that_has_enough_of_a_stream_gets_the_same_part_again(server: Server, store: Store):
    crash, seen = Crashes(), []
    server.reply = lambda _: make_chat_stream("A", "B", "C")

    @program
    def flow() -> None:
        with httpx.stream("POST", server.url + CHAT, json=make_body("Hello", stream=True)) as response:
            for line in response.iter_lines():
                seen.append(line)
                if '"A"' in line:
                    break
        crash()

    await (await store.run_twice(flow)).result()
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert len(server.sent) == 1


async def test_an_interrupted_stream_is_read_again(server: Server, store: Store):
    crash, seen = Crashes(), []
    is_interrupted = threading.Event()

    def make_parts() -> Iterator[bytes]:
        first, *rest = make_chat_stream("A", "B", "C").body
        yield first
        is_interrupted.wait(10)
        yield from rest

    server.reply = lambda _: Reply(headers=SSE, body=make_parts())

    @program
    async def flow() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(server.url + CHAT, json=make_body("Hello", stream=True)) as response,
        ):
            async for line in response.content:
                seen.append(line)
                if b'"A"' in line:
                    is_interrupted.set()
                    crash()

    await (await store.run_twice(flow)).result()
    assert [line for line in seen[1:] if line.startswith(b"data")][-1] == b"data: [DONE]\n"
    assert len(server.sent) == 2


@pytest.mark.parametrize("encoding", ["gzip", "br"])
@pytest.mark.parametrize("library", ["httpx", "aiohttp", "requests"])
async def test_an_encoded_answer_is_recorded_decoded(library: str, encoding: str, server: Server, store: Store):
    crash, seen = Crashes(), []
    text = json.dumps({"choices": [{"message": {"content": "compressed words"}}]}).encode()
    encoded = gzip.compress(text) if encoding == "gzip" else brotli.compress(text)
    server.reply = lambda _: Reply(headers={**JSON, "content-encoding": encoding}, body=encoded)
    url, body = server.url + CHAT, make_body("Hello")

    @program
    async def flow() -> None:
        if library == "aiohttp":
            async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
                seen.append(await response.json())
        elif library == "requests":
            seen.append((await asyncio.to_thread(requests.post, url, json=body)).json())
        else:
            seen.append((await post(url, body)).json())
        crash()

    await (await store.run_twice(flow)).result()
    assert seen == [json.loads(text)] * 2
    assert len(server.sent) == 1
    assert b"compressed words" in store.read_files()


async def test_a_call_that_an_adapter_records_is_not_recorded_again(server: Server, store: Store):
    server.reply = lambda _: make_chat("Hi")

    class Codec(AnswerCodec[Any]):
        def dump(self, answer: Any) -> Any:
            return answer

        def load(self, data: Any) -> Any:
            return data

        def describe(self, answer: Any) -> ModelAnswer:
            return ModelAnswer(answer["choices"][0]["message"]["content"])

    @step
    async def look_up() -> int:
        return (await post(server.url + CHAT, make_body("In a step"))).status_code

    @program
    async def flow() -> int:
        async def call() -> Any:
            return (await post(server.url + CHAT, make_body("Hello"))).json()

        await record_model_call(ModelInput("openai:gpt-4o", []), Codec(), call)
        return await look_up()

    handle = await store.runtime.start(flow)
    assert await handle.result() == 200
    names = [entry.name for entry in (await handle.describe()).journal if entry.kind == "step"]
    assert names == ["model call", "look_up"]


async def test_a_run_shows_the_conversation_its_tokens_and_its_cost(server: Server, store: Store):
    server.reply = lambda _: make_chat("It is 4.")

    @program
    async def flow() -> None:
        await post(server.url + CHAT, make_body("What is 2 + 2?"))

    handle = await store.runtime.start(flow)
    await handle.result()
    messages = await handle.conversation()
    assert [(message.role, message.text) for message in messages] == [("user", "What is 2 + 2?"), ("model", "It is 4.")]
    usage = await handle.usage()
    assert (usage.calls, usage.input_tokens, usage.output_tokens) == (1, 1000, 100)
    assert usage.nano_usd == 1000 * 2_500 + 100 * 10_000


async def test_a_blocking_call_on_the_event_loop_of_the_engine_is_refused(server: Server, store: Store):
    @program
    async def flow() -> None:
        httpx.post(server.url + CHAT, json=make_body("Hello"))  # noqa: ASYNC210  # it is what is refused

    handle = await store.runtime.start(flow)
    with pytest.raises(RunFailed, match=r"a blocking call cannot be recorded here.*asyncio\.to_thread"):
        await handle.result()
    assert server.sent == []


async def test_a_request_that_only_looks_like_a_model_call_is_not_recorded(server: Server, store: Store):
    server.reply = lambda _: Reply()

    @program
    async def flow() -> None:
        await post(f"{server.url}/v1/responses", {"input": "no model"})
        await post(f"{server.url}/surveys/responses", [1, 2, 3])

    handle = await store.runtime.start(flow)
    await handle.result()
    assert len(server.sent) == 2
    assert not [entry for entry in (await handle.describe()).journal if entry.kind == "step"]

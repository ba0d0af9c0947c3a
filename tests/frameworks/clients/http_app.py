"""Agents that call a model with HTTP libraries, in a process in which ``install`` records what they do."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from loops import CHAT_TOOLS, MODEL, read_chat_chunks, read_chat_message, run_loop, run_loop_async

from holdfast import program
from holdfast.integrations.http import install

install()

URL = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
HEADERS = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}


def make_body(messages: list[Any], *, stream: bool = False) -> dict[str, Any]:
    return {"model": MODEL, "messages": messages, "tools": CHAT_TOOLS, **({"stream": True} if stream else {})}


def read(body: dict[str, Any]) -> Any:
    return read_chat_message(body["choices"][0]["message"])


def read_lines(lines: list[str]) -> Any:
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return read_chat_chunks([json.loads(one) for one in data[:-1]])


@program
def httpx_sync(task: str) -> str:
    import httpx

    with httpx.Client() as client:
        return run_loop(task, lambda m: read(client.post(URL, json=make_body(m), headers=HEADERS).json()))


@program
async def httpx_async_stream(task: str) -> str:
    import httpx

    async with httpx.AsyncClient() as client:

        async def ask(messages: list[Any]) -> Any:
            body = make_body(messages, stream=True)
            async with client.stream("POST", URL, json=body, headers=HEADERS) as response:
                return read_lines([line async for line in response.aiter_lines()])

        return await run_loop_async(task, ask)


@program
async def httpx2_async(task: str) -> str:
    import httpx2

    async with httpx2.AsyncClient() as client:

        async def ask(messages: list[Any]) -> Any:
            return read((await client.post(URL, json=make_body(messages), headers=HEADERS)).json())

        return await run_loop_async(task, ask)


@program
def httpx2_stream(task: str) -> str:
    import httpx2

    with httpx2.Client() as client:

        def ask(messages: list[Any]) -> Any:
            body = make_body(messages, stream=True)
            with client.stream("POST", URL, json=body, headers=HEADERS) as response:
                return read_lines(list(response.iter_lines()))

        return run_loop(task, ask)


@program
async def aiohttp_whole(task: str) -> str:
    import aiohttp

    async with aiohttp.ClientSession() as session:

        async def ask(messages: list[Any]) -> Any:
            async with session.post(URL, json=make_body(messages), headers=HEADERS) as response:
                return read(await response.json())

        return await run_loop_async(task, ask)


@program
async def aiohttp_stream(task: str) -> str:
    import aiohttp

    async with aiohttp.ClientSession(headers=HEADERS) as session:

        async def ask(messages: list[Any]) -> Any:
            async with session.post(URL, data=json.dumps(make_body(messages, stream=True))) as response:
                return read_lines([line.decode().strip() async for line in response.content])

        return await run_loop_async(task, ask)


@program
async def openai_over_aiohttp(task: str) -> str:
    import openai

    client = openai.AsyncOpenAI(http_client=openai.DefaultAioHttpClient())

    async def ask(messages: list[Any]) -> Any:
        stream = await client.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS, stream=True)
        return read_chat_chunks([chunk.model_dump() async for chunk in stream])

    return await run_loop_async(task, ask)


@program
def requests_whole(task: str) -> str:
    import requests

    with requests.Session() as session:
        return run_loop(task, lambda m: read(session.post(URL, json=make_body(m), headers=HEADERS).json()))


@program
def requests_stream(task: str) -> str:
    import requests

    def ask(messages: list[Any]) -> Any:
        with requests.post(URL, json=make_body(messages, stream=True), headers=HEADERS, stream=True) as response:
            return read_lines(list(response.iter_lines(decode_unicode=True)))

    return run_loop(task, ask)


@program
def urllib3_whole(task: str) -> str:
    import urllib3

    pool = urllib3.PoolManager()
    return run_loop(task, lambda m: read(pool.request("POST", URL, json=make_body(m), headers=HEADERS).json()))


async def main(kinds: list[str]) -> None:
    for kind in kinds:
        agent = globals()[kind.replace("-", "_")].options(id=kind)
        print("RESULT:", await agent("script:trip Plan a trip."))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

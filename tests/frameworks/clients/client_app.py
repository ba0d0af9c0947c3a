"""Agents written with the clients of ``openai`` and ``anthropic``, which ``durable`` makes survive kills."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import anthropic
import openai
from loops import (
    CHAT_TOOLS,
    CLAUDE,
    CLAUDE_TOOLS,
    MODEL,
    RESPONSES_TOOLS,
    make_claude_result,
    make_item_result,
    read_chat_chunks,
    read_chat_message,
    read_claude_message,
    read_response,
    run_loop,
    run_loop_async,
)

from holdfast import program
from holdfast.integrations.anthropic import durable as durable_anthropic
from holdfast.integrations.openai import durable as durable_openai


@program
def openai_sync(task: str) -> str:
    client = durable_openai(openai.OpenAI())

    def ask(messages: list[Any]) -> Any:
        done = client.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS)
        return read_chat_message(done.choices[0].message.model_dump(exclude_none=True))

    return run_loop(task, ask)


@program
async def openai_async(task: str) -> str:
    async with durable_openai(openai.AsyncOpenAI()) as client:

        async def ask(messages: list[Any]) -> Any:
            done = await client.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS)
            return read_chat_message(done.choices[0].message.model_dump(exclude_none=True))

        return await run_loop_async(task, ask)


@program
def openai_stream(task: str) -> str:
    client = durable_openai(openai.OpenAI())

    def ask(messages: list[Any]) -> Any:
        stream = client.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS, stream=True)
        return read_chat_chunks([chunk.model_dump() for chunk in stream])

    return run_loop(task, ask)


@program
async def openai_async_stream(task: str) -> str:
    client = durable_openai(openai.AsyncOpenAI())

    async def ask(messages: list[Any]) -> Any:
        stream = await client.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS, stream=True)
        return read_chat_chunks([chunk.model_dump() async for chunk in stream])

    return await run_loop_async(task, ask)


@program
async def responses(task: str) -> str:
    client = durable_openai(openai.AsyncOpenAI())

    async def ask(items: list[Any]) -> Any:
        return read_response(await client.responses.create(model=MODEL, input=items, tools=RESPONSES_TOOLS))

    return await run_loop_async(task, ask, make_item_result)


@program
def responses_stream(task: str) -> str:
    client = durable_openai(openai.OpenAI())

    def ask(items: list[Any]) -> Any:
        with client.responses.stream(model=MODEL, input=items, tools=RESPONSES_TOOLS) as stream:
            return read_response(stream.get_final_response())

    return run_loop(task, ask, make_item_result)


@program
def anthropic_sync(task: str) -> str:
    client = durable_anthropic(anthropic.Anthropic())

    def ask(messages: list[Any]) -> Any:
        return read_claude_message(
            client.messages.create(model=CLAUDE, max_tokens=500, messages=messages, tools=CLAUDE_TOOLS)
        )

    return run_loop(task, ask, make_claude_result)


@program
async def anthropic_async(task: str) -> str:
    client = durable_anthropic(anthropic.AsyncAnthropic())

    async def ask(messages: list[Any]) -> Any:
        return read_claude_message(
            await client.messages.create(model=CLAUDE, max_tokens=500, messages=messages, tools=CLAUDE_TOOLS)
        )

    return await run_loop_async(task, ask, make_claude_result)


@program
def anthropic_stream(task: str) -> str:
    client = durable_anthropic(anthropic.Anthropic())

    def ask(messages: list[Any]) -> Any:
        with client.messages.stream(model=CLAUDE, max_tokens=500, messages=messages, tools=CLAUDE_TOOLS) as stream:
            return read_claude_message(stream.get_final_message())

    return run_loop(task, ask, make_claude_result)


@program
async def anthropic_async_stream(task: str) -> str:
    client = durable_anthropic(anthropic.AsyncAnthropic())

    async def ask(messages: list[Any]) -> Any:
        async with client.messages.stream(
            model=CLAUDE, max_tokens=500, messages=messages, tools=CLAUDE_TOOLS
        ) as stream:
            return read_claude_message(await stream.get_final_message())

    return await run_loop_async(task, ask, make_claude_result)


async def main(kinds: list[str]) -> None:
    for kind in kinds:
        agent = globals()[kind.replace("-", "_")].options(id=kind)
        print("RESULT:", await agent("script:trip Plan a trip."))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

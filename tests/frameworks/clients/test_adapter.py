"""Loops written by hand with a durable client keep the promises of every adapter."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import anthropic
import httpx2
import openai
from loops import CLAUDE, MODEL

from holdfast.integrations import describe_failure, record_tool_call, record_tool_call_sync
from holdfast.integrations.anthropic import durable as durable_anthropic
from holdfast.integrations.openai import durable as durable_openai
from holdfast.testing import ScriptedChat, ScriptedTools, check_adapter

EFFECTS = {"look_up": "idempotent", "charge": "once"}
SSE = {"content-type": "text/event-stream"}


def respond_as_openai(chat: ScriptedChat, request: httpx2.Request) -> httpx2.Response:
    sent = json.loads(request.content)
    answer = chat.answer([message["content"] for message in sent["messages"] if message["role"] == "tool"])
    calls = [
        {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for index, (id, name, arguments) in enumerate(answer.tool_calls)
    ]
    message = {"role": "assistant", "content": answer.text, "tool_calls": calls or None}
    usage = {"prompt_tokens": answer.input_tokens, "completion_tokens": answer.output_tokens, "total_tokens": 110}
    choice = {"index": 0, "finish_reason": "stop", "delta" if sent.get("stream") else "message": message}
    body = {"id": "answer-1", "created": 1, "model": MODEL, "usage": usage, "choices": [choice]}
    if not sent.get("stream"):
        return httpx2.Response(200, json={**body, "object": "chat.completion"})
    chunk = json.dumps({**body, "object": "chat.completion.chunk"})
    return httpx2.Response(200, headers=SSE, text=f"data: {chunk}\n\ndata: [DONE]\n\n")


def respond_as_anthropic(chat: ScriptedChat, request: httpx2.Request) -> httpx2.Response:
    messages = json.loads(request.content)["messages"]
    blocks = [block for message in messages if message["role"] == "user" for block in message["content"]]
    answer = chat.answer([block["content"] for block in blocks if block["type"] == "tool_result"])
    content: list[Any] = [{"type": "text", "text": answer.text}]
    content += [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given in answer.tool_calls]
    usage = {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens}
    body = {"id": "answer-1", "type": "message", "role": "assistant", "model": CLAUDE, "content": content}
    return httpx2.Response(200, json={**body, "stop_reason": "end_turn", "usage": usage})


def make_transport(respond: Any, chat: ScriptedChat) -> httpx2.MockTransport:
    return httpx2.MockTransport(partial(respond, chat))


async def use_tool(tools: ScriptedTools, call_id: str, name: str, arguments: dict[str, Any]) -> str:
    async def execute() -> str:
        return getattr(tools, name)(**arguments)

    try:
        return await record_tool_call(name, arguments, execute, call_id=call_id, effect=EFFECTS[name])
    except Exception as error:
        return describe_failure(error, name)


def use_tool_sync(tools: ScriptedTools, call_id: str, name: str, arguments: dict[str, Any]) -> str:
    def execute() -> str:
        return getattr(tools, name)(**arguments)

    try:
        return record_tool_call_sync(name, arguments, execute, call_id=call_id, effect=EFFECTS[name])
    except Exception as error:
        return describe_failure(error, name)


def test_openai():
    async def agent(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        http_client = httpx2.AsyncClient(transport=make_transport(respond_as_openai, chat))
        client = durable_openai(openai.AsyncOpenAI(api_key="k", http_client=http_client))
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            answer = await client.chat.completions.create(model=MODEL, messages=messages)
            message: Any = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content
            results = await asyncio.gather(
                *(
                    use_tool(tools, call.id, call.function.name, json.loads(call.function.arguments))
                    for call in message.tool_calls
                )
            )
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": result}
                for call, result in zip(message.tool_calls, results, strict=True)
            ]

    asyncio.run(check_adapter(agent))


def test_openai_streams_in_code_that_is_not_async():
    def agent(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        http_client = httpx2.Client(transport=make_transport(respond_as_openai, chat))
        client = durable_openai(openai.OpenAI(api_key="k", http_client=http_client))
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
            [message] = [chunk.choices[0].delta.model_dump(exclude_none=True) for chunk in stream]
            messages.append(message)
            if not message.get("tool_calls"):
                return message["content"]
            for call in message["tool_calls"]:
                function = call["function"]
                result = use_tool_sync(tools, call["id"], function["name"], json.loads(function["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    asyncio.run(check_adapter(agent))


def test_anthropic():
    async def agent(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        http_client = httpx2.AsyncClient(transport=make_transport(respond_as_anthropic, chat))
        client = durable_anthropic(anthropic.AsyncAnthropic(api_key="k", http_client=http_client))
        messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": task}]}]
        while True:
            answer: Any = await client.messages.create(model=CLAUDE, max_tokens=1000, messages=messages)
            messages.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return answer.content[0].text
            results = await asyncio.gather(*(use_tool(tools, call.id, call.name, call.input) for call in calls))
            blocks = [
                {"type": "tool_result", "tool_use_id": call.id, "content": result}
                for call, result in zip(calls, results, strict=True)
            ]
            messages.append({"role": "user", "content": blocks})

    asyncio.run(check_adapter(agent))

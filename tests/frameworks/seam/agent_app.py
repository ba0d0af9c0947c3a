"""An agent of a made-up framework, with the smallest adapter: it asks a model over urllib, and calls tools at once."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from typing import Any

from effects import effect

from holdfast import program
from holdfast.integrations import (
    AnswerCodec,
    ModelAnswer,
    ModelInput,
    TokenCounts,
    ToolCallReport,
    describe_failure,
    parse_arguments,
    record_model_call,
    record_model_call_sync,
    record_model_stream,
    record_model_stream_sync,
    record_tool_call,
    record_tool_call_sync,
)

MODEL = "gpt-4o"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("search", "charge")
]
EFFECTS = {"search": "idempotent", "charge": "once"}
Message = dict[str, Any]


class Codec(AnswerCodec[Message]):
    """A whole answer: the provider's JSON."""

    def dump(self, answer: Message) -> Any:
        return answer

    def load(self, data: Any) -> Message:
        return data

    def describe(self, answer: Message) -> ModelAnswer:
        message = answer["choices"][0]["message"]
        calls = [
            ToolCallReport(call["id"], call["function"]["name"], parse_arguments(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        used = answer["usage"]
        tokens = TokenCounts(used["prompt_tokens"], used["completion_tokens"])
        return ModelAnswer(message.get("content") or "", calls, tokens)


class StreamCodec(AnswerCodec[list[Message]]):
    """A streamed answer: its chunks."""

    def dump(self, answer: list[Message]) -> Any:
        return answer

    def load(self, data: Any) -> list[Message]:
        return data

    def describe(self, answer: list[Message]) -> ModelAnswer:
        return ModelAnswer("".join(map(self.get_text, answer)))

    def get_text(self, event: Message) -> str:
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def post(messages: list[Message], *, stream: bool = False) -> Any:
    body = {"model": MODEL, "messages": messages, "tools": TOOLS, "stream": stream}
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    return urllib.request.urlopen(request)


def ask(messages: list[Message]) -> Message:
    with post(messages) as response:
        return json.load(response)


def ask_for_stream(messages: list[Message]) -> Any:
    with post(messages, stream=True) as response:
        for line in response:
            data = line.decode().removeprefix("data: ").strip()
            if data and data != "[DONE]":
                yield json.loads(data)


async def stream_async(messages: list[Message]) -> Any:
    for chunk in await asyncio.to_thread(lambda: list(ask_for_stream(messages))):
        yield chunk


def use_tool(name: str, query: str) -> str:
    with effect(name):
        return f"{name}({query})"


async def use_tool_async(name: str, query: str) -> str:
    return use_tool(name, query)


def make_input(messages: list[Message]) -> ModelInput:
    return ModelInput(f"openai:{MODEL}", messages, {"tools": TOOLS})


def add_answer(messages: list[Message], answer: Message) -> list[tuple[str, str, str]]:
    message = answer["choices"][0]["message"]
    messages.append(message)
    return [
        (call["id"], call["function"]["name"], parse_arguments(call["function"]["arguments"])["query"])
        for call in message.get("tool_calls") or ()
    ]


@program(id="async-{task}")
async def async_agent(task: str) -> str:
    messages: list[Message] = [{"role": "user", "content": task}]

    async def call_tool(call_id: str, name: str, query: str) -> Message:
        try:
            result = await record_tool_call(
                name, {"query": query}, lambda: use_tool_async(name, query), call_id=call_id, effect=EFFECTS[name]
            )
        except Exception as error:
            result = describe_failure(error, name)
        return {"role": "tool", "tool_call_id": call_id, "content": result}

    while True:
        answer = await record_model_call(
            make_input(messages), Codec(), lambda sent=list(messages): asyncio.to_thread(ask, sent)
        )
        calls = add_answer(messages, answer)
        if not calls:
            break
        messages += await asyncio.gather(*(call_tool(*call) for call in calls))
    messages.append({"role": "user", "content": "Say it again."})
    parts = record_model_stream(make_input(messages), StreamCodec(), lambda: stream_async(messages))
    return "".join([StreamCodec().get_text(part) async for part in parts])


@program(id="sync-{task}")
def sync_agent(task: str) -> str:
    messages: list[Message] = [{"role": "user", "content": task}]
    while True:
        answer = record_model_call_sync(make_input(messages), Codec(), lambda: ask(messages))
        calls = add_answer(messages, answer)
        if not calls:
            break
        for call_id, name, query in calls:
            try:
                result = record_tool_call_sync(
                    name,
                    {"query": query},
                    lambda n=name, q=query: use_tool(n, q),
                    call_id=call_id,
                    effect=EFFECTS[name],
                )
            except Exception as error:
                result = describe_failure(error, name)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
    messages.append({"role": "user", "content": "Say it again."})
    parts = record_model_stream_sync(make_input(messages), StreamCodec(), lambda: ask_for_stream(messages))
    return "".join(StreamCodec().get_text(part) for part in parts)


if __name__ == "__main__":
    agent = {"async": async_agent, "sync": sync_agent}[sys.argv[1]]
    print("RESULT:", asyncio.run(agent("script:trip Plan a trip.")))

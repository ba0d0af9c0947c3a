"""What the apps of these tests have in common: a loop of model calls and tools, written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from effects import effect

from holdfast import step
from holdfast.integrations import describe_failure

MODEL = "gpt-4o"
CLAUDE = "claude-sonnet-4-5"
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}}
CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": PARAMETERS}}
    for name in ("search", "charge")
]
CLAUDE_TOOLS = [{"name": name, "description": name, "input_schema": PARAMETERS} for name in ("search", "charge")]
RESPONSES_TOOLS = [
    {"type": "function", "name": name, "description": name, "parameters": PARAMETERS, "strict": False}
    for name in ("search", "charge")
]


class Called(NamedTuple):
    """A tool call that the model asked for."""

    id: str
    name: str
    query: str


@step
def search(query: str) -> str:
    with effect("search"):
        return f"search({query})"


@step(effect="once")
def charge(query: str) -> str:
    with effect("charge"):
        return f"charge({query})"


TOOLS = {"search": search, "charge": charge}
Messages = list[dict[str, Any]]
Ask = Callable[[Messages], tuple[dict[str, Any], list[Called]]]
AskAsync = Callable[[Messages], Coroutine[Any, Any, tuple[dict[str, Any], list[Called]]]]
MakeResult = Callable[[Called, str], dict[str, Any]]


def make_chat_result(call: Called, result: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": result}


def make_claude_result(call: Called, result: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": result}]}


def make_item_result(call: Called, result: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.id, "output": result}


def run_loop(task: str, ask: Ask, make_result: MakeResult = make_chat_result) -> str:
    messages: Messages = [{"role": "user", "content": task}]
    while True:
        answer, calls = ask(messages)
        messages += answer.get("items", [answer])
        if not calls:
            return read_text(answer)
        for call in calls:
            try:
                result = TOOLS[call.name](call.query)
            except Exception as error:
                result = describe_failure(error, call.name)
            messages.append(make_result(call, result))


async def run_loop_async(task: str, ask: AskAsync, make_result: MakeResult = make_chat_result) -> str:
    messages: Messages = [{"role": "user", "content": task}]
    while True:
        answer, calls = await ask(messages)
        messages += answer.get("items", [answer])
        if not calls:
            return read_text(answer)
        for call in calls:
            try:
                result = await TOOLS[call.name](call.query)
            except Exception as error:
                result = describe_failure(error, call.name)
            messages.append(make_result(call, result))


def read_text(answer: dict[str, Any]) -> str:
    content = answer.get("content") or answer.get("text")
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content or [])


def read_chat_message(message: dict[str, Any]) -> tuple[dict[str, Any], list[Called]]:
    calls = [
        Called(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])["query"])
        for call in message.get("tool_calls") or ()
    ]
    return message, calls


def read_chat_chunks(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], list[Called]]:
    """The message in the chunks of a chat stream."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(
                    part["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                )
                call["id"] = call["id"] or part.get("id") or ""
                call["function"]["name"] += part["function"].get("name") or ""
                call["function"]["arguments"] += part["function"].get("arguments") or ""
    if calls:
        message["tool_calls"] = list(calls.values())
    return read_chat_message(message)


def read_claude_message(message: Any) -> tuple[dict[str, Any], list[Called]]:
    content = [block.model_dump(exclude_none=True) for block in message.content]
    calls = [
        Called(block["id"], block["name"], block["input"]["query"]) for block in content if block["type"] == "tool_use"
    ]
    return {"role": "assistant", "content": content}, calls


def read_response(response: Any) -> tuple[dict[str, Any], list[Called]]:
    items = [item.model_dump(exclude_none=True) for item in response.output]
    calls = [
        Called(item["call_id"], item["name"], json.loads(item["arguments"])["query"])
        for item in items
        if item["type"] == "function_call"
    ]
    return {"text": response.output_text, "items": items}, calls

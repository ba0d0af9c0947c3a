"""A script that knows nothing of runs: agents over several clients, at once, for ``holdfast run``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import requests
from effects import effect

from holdfast import once, step

MODEL, CLAUDE = "gpt-4o", "claude-sonnet-4-5"
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("search", "charge")
]


@step
def search(query: str) -> str:
    with effect("search"):
        return f"search({query})"


def charge(query: str) -> str:
    with effect("charge"):
        return f"charge({query})"


def use_tool(name: str, query: str) -> str:
    return search(query) if name == "search" else once("charge", charge, query)


async def book(client: openai.AsyncOpenAI) -> str:
    """An agent with streamed answers and tools."""
    messages: list[Any] = [{"role": "user", "content": "script:trip Plan a trip."}]
    while True:
        text, calls = "", {}
        stream = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, stream=True)
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for part in choice.delta.tool_calls or ():
                    call = calls.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
                    call["arguments"] += part.function.arguments or ""
        if not calls:
            return text
        called = [
            {"id": one["id"], "type": "function", "function": {key: one[key] for key in ("name", "arguments")}}
            for one in calls.values()
        ]
        messages.append({"role": "assistant", "content": text, "tool_calls": called})
        for one in calls.values():
            try:
                result = use_tool(one["name"], json.loads(one["arguments"])["query"])
            except Exception as error:
                result = f"failed: {type(error).__name__}"
            messages.append({"role": "tool", "tool_call_id": one["id"], "content": result})


async def greet(client: openai.AsyncOpenAI, name: str) -> str:
    done = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": f"script:{name} Greet {name}."}]
    )
    return done.choices[0].message.content or ""


def ask_claude(name: str) -> str:
    message = anthropic.Anthropic().messages.create(
        model=CLAUDE, max_tokens=100, messages=[{"role": "user", "content": f"script:{name} Greet {name}."}]
    )
    return "".join(block.text for block in message.content if block.type == "text")


def ask_with_requests(name: str) -> str:
    response = requests.post(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json={"model": MODEL, "messages": [{"role": "user", "content": f"script:{name} Greet {name}."}]},
        headers={"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
        timeout=30,
    )
    return response.json()["choices"][0]["message"]["content"]


async def main() -> list[str]:
    async with openai.AsyncOpenAI() as client:
        found = await asyncio.gather(book(client), greet(client, "ada"), greet(client, "bob"))
    return list(found)


if __name__ == "__main__":
    results = asyncio.run(main())
    with ThreadPoolExecutor(2) as pool:
        results += pool.map(lambda ask: ask("eve"), (ask_claude, ask_with_requests))
    print("RESULT:", "; ".join(results), sys.argv[1:])

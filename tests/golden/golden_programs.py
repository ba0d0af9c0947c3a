"""The programs of the golden journals. **Never change one in a way that its recorded runs would notice.**

A run of each is kept for every release since it was added, and the Holdfast of today must be able to continue it after
any of its records: each recorded call must be found again, by its content and its order. A new case is a new program.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
from openai import AsyncOpenAI

from holdfast import Workflow, ask, once, program, step
from holdfast.integrations import (
    AnswerCodec,
    ModelAnswer,
    ModelInput,
    TokenCounts,
    ToolCallReport,
    record_model_call,
    record_model_call_sync,
    record_model_stream,
    record_tool_call,
    record_tool_call_sync,
)
from holdfast.integrations.openai import durable

made: list[str] = []
"""The steps that were really executed, by the names of their records."""

QUESTION: list[dict[str, Any]] = [
    {"role": "system", "content": "You plan trips."},
    {"role": "user", "content": "Where to, with é and 🎈, in 2024?"},
]
SETTINGS = {
    "temperature": 0.5,
    "tools": [{"name": "look_up", "parameters": {"city": {"type": "string"}}}],
    "stop": None,
}


class Codec(AnswerCodec[dict[str, Any]]):
    def dump(self, answer: dict[str, Any]) -> Any:
        return answer

    def load(self, data: Any) -> dict[str, Any]:
        return data

    def describe(self, answer: dict[str, Any]) -> ModelAnswer:
        calls = [ToolCallReport(f"call_{city}", "look_up", {"city": city}) for city in answer.get("cities", ())]
        return ModelAnswer(answer["text"], calls, TokenCounts(100, 10))


class PartsCodec(AnswerCodec[list[str]]):
    def dump(self, answer: list[str]) -> Any:
        return answer

    def load(self, data: Any) -> list[str]:
        return data

    def describe(self, answer: list[str]) -> ModelAnswer:
        return ModelAnswer("".join(answer))


@step
async def take_note(text: str, number: int = 1) -> str:
    made.append("take_note")
    return f"{number} {text}"


@step(effect="once")
def charge(amount: int) -> str:
    made.append("charge")
    return f"charged {amount}"


async def send_mail(to: str) -> str:
    made.append("mail-7")
    return f"sent to {to}"


async def look_up(city: str) -> str:
    async def execute() -> str:
        made.append("look_up")
        return f"{city} is a city"

    return await record_tool_call("look_up", {"city": city}, execute, call_id=f"call_{city}")


@program
async def golden_agent(task: str) -> list[Any]:
    """Model calls with a growing conversation, tools at the same time, equal calls, and ``once`` steps."""

    async def answer(text: str, *cities: str) -> dict[str, Any]:
        made.append("model call")
        return {"text": text, "cities": list(cities)}

    async def parts() -> Any:
        made.append("model call")
        for part in ("Go ", "to ", "Rome."):
            yield part

    messages = [*QUESTION, {"role": "user", "content": task}]
    asked = ModelInput("openai:gpt-4o", messages, SETTINGS, 200, "https://api.openai.com/v1")
    first = await record_model_call(asked, Codec(), lambda: answer("I look.", "Oslo", "Rome"))
    found = await asyncio.gather(*(look_up(city) for city in first["cities"]), look_up("Oslo"))
    messages = [*messages, *({"role": "tool", "content": text} for text in found)]
    second = await record_model_call(ModelInput("openai:gpt-4o", messages, SETTINGS), Codec(), lambda: answer("Rome."))
    streamed = [part async for part in record_model_stream(ModelInput("test:parts", messages), PartsCodec(), parts)]
    notes = await asyncio.gather(*(take_note("same") for _ in range(3)), take_note(text="other", number=2))
    paid = [await charge(5), await once("mail-7", send_mail, "ada@example.com")]
    return [first, second, streamed, notes, paid, await take_note("end")]


@program
def golden_threads(task: str) -> list[str]:
    """The same from threads, in code that is not async."""

    def work(city: str) -> str:
        def execute() -> str:
            made.append("look_up")
            return f"{city} is a city"

        def answer() -> dict[str, Any]:
            made.append("model call")
            return {"text": f"About {city}."}

        asked = ModelInput("test:model", [{"role": "user", "content": f"{task} {city}"}])
        told = record_model_call_sync(asked, Codec(), answer)
        return told["text"] + record_tool_call_sync("look_up", {"city": city}, execute, call_id="call_1")

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(work, ("Oslo", "Rome", "Bern")))


WHOLE = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4o",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140},
}  # fmt: skip
CHUNKS = [
    {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o",
     "choices": [{"index": 0, "delta": {"content": text}}]}
    for text in ("Yes", ", ", "indeed.")
]  # fmt: skip


def answer_request(request: httpx2.Request) -> httpx2.Response:
    made.append("model call")
    if json.loads(request.content).get("stream"):
        stream = b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in CHUNKS) + b"data: [DONE]\n\n"
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)
    return httpx2.Response(200, json=WHOLE)


@program
async def golden_requests(question: str) -> list[Any]:
    """Requests that a durable client sends, whole and streamed; and a question to a person."""
    transport = httpx2.MockTransport(answer_request)
    client = durable(
        AsyncOpenAI(api_key="none", base_url="http://model/v1", http_client=httpx2.AsyncClient(transport=transport))
    )
    messages: Any = [{"role": "user", "content": question}]
    whole = await client.chat.completions.create(model="gpt-4o", messages=messages, temperature=0.25)
    stream = await client.chat.completions.create(model="gpt-4o", messages=messages, stream=True)
    parts = [chunk.choices[0].delta.content async for chunk in stream]
    said = await ask("Is it so?", choices=["yes", "no"])
    return [whole.choices[0].message.content, parts, said, await take_note("end")]


INPUTS = {"golden_agent": "Plan a trip.", "golden_threads": "Tell me about", "golden_requests": "Is 7 a number?"}
PROGRAMS: dict[str, Workflow[..., Any]] = {flow.name: flow for flow in (golden_agent, golden_threads, golden_requests)}

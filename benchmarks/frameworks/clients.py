"""The CPU time that ``durable(client)`` adds to a model call, with a model that answers at once.

A transport below the recording answers from memory, so that all that is measured is the SDK and the recording. The CPU
time is that of all threads of the process, the engine and SQLite included. Needs the ``openai`` package::

    python -m benchmarks.frameworks.clients [CALLS]
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx2
import openai

from holdfast import Runtime, program
from holdfast.integrations.openai import durable

ROUNDS = 5
ANSWER = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4o",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes. " * 40}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140},
}  # fmt: skip
CHUNKS = [
    {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o",
     "choices": [{"index": 0, "delta": {"content": "Yes. "}}]}
] * 40  # fmt: skip
WHOLE = json.dumps(ANSWER).encode()
STREAM = b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in CHUNKS) + b"data: [DONE]\n\n"

Call = Callable[[int], Coroutine[Any, Any, object]]


def answer(request: httpx2.Request) -> httpx2.Response:
    is_streamed = json.loads(request.content).get("stream")
    kind = "text/event-stream" if is_streamed else "application/json"
    return httpx2.Response(200, headers={"content-type": kind}, content=STREAM if is_streamed else WHOLE)


def make_client() -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="k", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(answer)))


def make_calls(client: openai.AsyncOpenAI) -> dict[str, Call]:
    async def ask(number: int) -> object:
        return await client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": f"Is {number} a number?"}]
        )

    async def stream(number: int) -> object:
        parts = await client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": f"Is {number} a number?"}], stream=True
        )
        return [part async for part in parts]

    return {"whole answers": ask, "streams of 40 events": stream}


async def measure(call: Call, count: int) -> float:
    """The CPU time of a call, in milliseconds."""
    started = time.process_time()
    for number in range(count):
        await call(number)
    return (time.process_time() - started) / count * 1000


@program
async def run_calls(kind: str, count: int) -> float:
    call = make_calls(durable(make_client()))[kind]
    await call(-1)
    return await measure(call, count)


async def measure_recorded(kind: str, count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(f"sqlite:///{folder}/runs.db") as runtime:
            return await (await runtime.start(run_calls, kind, count)).result()


async def measure_bare(kind: str, count: int) -> float:
    call = make_calls(make_client())[kind]
    await call(-1)
    return await measure(call, count)


def main(count: int) -> None:
    for kind in make_calls(make_client()):
        bare: list[float] = []
        recorded: list[float] = []
        for _ in range(ROUNDS):
            bare.append(asyncio.run(measure_bare(kind, count)))
            recorded.append(asyncio.run(measure_recorded(kind, count)))
        extra = min(recorded) - min(bare)
        print(f"{kind}: bare {min(bare):.2f} ms, durable {min(recorded):.2f} ms, extra {extra:.2f} ms of CPU")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)

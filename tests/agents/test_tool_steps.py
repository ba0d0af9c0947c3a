"""Calls of tools as recorded steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic_ai
import pytest
import pytest_asyncio
from engine_world import World, read_attempts, read_journal
from tool_calls import make_step_call, own_workflows, record_call, start_calls  # noqa: F401

from holdfast.agents.conversation import get_failure_outcome
from holdfast.agents.run_context import RunContext
from holdfast.agents.tools import Tool, make_rejected_call, make_unknown_tool_call, tool
from holdfast.codec import read_error_info
from holdfast.core.records import Record
from holdfast.errors import ModelRetry
from holdfast.reports.observations import describe_tool_failure
from waits import wait_until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World("memory", tmp_path)
    yield world
    await world.close()


@dataclass
class Weather:
    city: str
    degrees: float


def describe_failure(record: Record) -> tuple[str, str]:
    """The feedback for a failed call."""
    assert not record.ok
    assert record.payload is not None
    return get_failure_outcome(record.payload), describe_tool_failure(record.payload, record.name)


async def test_a_call_is_recorded_with_its_arguments_and_by_its_declared_type(world: World):
    @tool
    async def weather(city: str, api_key: str = "") -> Weather:
        return Weather(city, 12)

    record = await record_call(world, weather, '{"city": "Ulm", "api_key": "secret"}')
    assert (record.ok, record.payload) == (True, b'{"city":"Ulm","degrees":12.0}')
    assert (record.name, record.preview) == ("weather", "city='Ulm', api_key=***")


@pytest.mark.parametrize("plain", [False, True])
async def test_a_tool_gets_its_run_and_the_deps(world: World, plain: bool):
    seen: list[RunContext[str]] = []
    threads: list[threading.Thread] = []

    if plain:

        @tool
        def find(ctx: RunContext[str], name: str) -> str:
            seen.append(ctx)
            threads.append(threading.current_thread())
            return f"{ctx.deps} {name}"
    else:

        @tool
        async def find(ctx: RunContext[str], name: str) -> str:
            seen.append(ctx)
            threads.append(threading.current_thread())
            return f"{ctx.deps} {name}"

    record = await record_call(world, find, {"name": "Ada"}, deps="Dr")
    assert record.payload == b'"Dr Ada"'
    [ctx] = seen
    assert (ctx.agent, ctx.tool_name, ctx.tool_call_id, ctx.attempt) == ("the-agent", "find", "call_1", 1)
    assert ctx.run_id.startswith("tool_calls")
    assert len(ctx.idempotency_key) >= 32
    assert (threads == [threading.main_thread()]) is not plain


async def test_a_tool_without_a_context_needs_no_deps(world: World):
    @tool
    async def look() -> str:
        return "seen"

    runtime = await world.open()
    part = pydantic_ai.messages.ToolCallPart("look", None)
    handle = await start_calls(runtime, lambda: [("look", look.make_call(part, "the-agent", int))])
    await handle.result()
    assert [record.payload for record in await read_journal(runtime, handle)] == [b'"seen"']


@tool
async def find_one(ctx: RunContext[str], name: str = "") -> str:
    return f"{ctx.deps} {name}"


@tool
async def label_one(ctx: RunContext[str], **labels: Any) -> str:
    return ctx.deps


@pytest.mark.parametrize("made", [find_one, label_one])
async def test_a_model_cannot_pass_the_context(world: World, made: Tool):
    _, words = describe_failure(await record_call(world, made, {"ctx": {"deps": "admin"}}, deps="user"))
    assert "- ctx is not a parameter\n" in words


@pytest.mark.parametrize("plain", [False, True])
async def test_arguments_that_do_not_fit_are_recorded_once_and_nothing_is_called(world: World, plain: bool):
    calls: list[int] = []

    if plain:

        @tool(retries=5)
        def double(number: int) -> int:
            calls.append(number)
            return 2 * number
    else:

        @tool(retries=5)
        async def double(number: int) -> int:
            calls.append(number)
            return 2 * number

    record = await record_call(world, double, {"number": "two", "self": 1})
    assert calls == []
    assert record.attempts == 1
    assert world.clock.slept == []
    outcome, words = describe_failure(record)
    assert outcome == "retried"
    assert words == (
        "The arguments do not fit the tool 'double', which was not called:\n"
        "- number should be a valid integer, unable to parse string as an integer; it was 'two'\n"
        "- self is not a parameter\n"
        "Its parameters are: number. Correct the arguments."
    )


async def test_a_tools_own_retries_happen_before_anything_is_recorded(world: World):
    seen: list[tuple[int, Any, str]] = []

    @tool(retries=3, backoff=2)
    async def fetch(ctx: RunContext[None], page: int) -> str:
        seen.append((ctx.attempt, ctx.progress, ctx.idempotency_key))
        if ctx.attempt < 3:
            ctx.heartbeat(ctx.attempt * 10)
            raise ConnectionError("down")
        return "page"

    record = await record_call(world, fetch, {"page": 1})
    assert (record.ok, record.attempts) == (True, 3)
    assert [one[:2] for one in seen] == [(1, None), (2, 10), (3, 20)]
    assert len({key for _, _, key in seen}) == 1
    assert world.clock.slept == [2, 4]


async def test_when_they_are_used_up_the_failure_is_recorded(world: World):
    @tool(retries=2)
    async def fetch() -> str:
        raise ConnectionError("the line is dead")

    record = await record_call(world, fetch)
    assert record.attempts == 3
    assert describe_failure(record) == ("failed", "The tool 'fetch' failed: ConnectionError: the line is dead")


@pytest.mark.parametrize("error", [ModelRetry, pydantic_ai.ModelRetry])
async def test_a_model_retry_is_not_retried_by_the_engine(world: World, error: type[Exception]):
    @tool(retries=5)
    async def find(name: str) -> str:
        raise error(f"nobody is called {name}: use the full name")

    record = await record_call(world, find, {"name": "Ada"})
    assert record.attempts == 1
    assert describe_failure(record) == ("retried", "nobody is called Ada: use the full name")


async def test_a_timeout_is_reported(world: World):
    @tool(timeout=0.01)
    async def fetch() -> str:
        await asyncio.sleep(60)
        return "never"

    record = await record_call(world, fetch)
    assert describe_failure(record) == (
        "failed",
        "The tool 'fetch' took longer than its time-out of 0.01 seconds, and was given up. "
        "It may have done a part of its work.",
    )


async def test_a_result_that_cannot_be_recorded_is_reported_once(world: World):
    calls: list[int] = []

    @tool(retries=3)
    async def open_it() -> Any:
        calls.append(1)
        return object()

    outcome, words = describe_failure(await record_call(world, open_it))
    assert calls == [1]
    assert outcome == "failed"
    assert words.startswith("The tool 'open_it' ran, but its result could not be recorded: ")
    assert words.endswith("\nDo not call it again in the same way.")


async def test_a_once_tool_whose_process_died_is_not_called_again(world: World):
    calls: list[str] = []
    keep = asyncio.Event()

    @tool(effect="once")
    async def pay(ctx: RunContext[None], to: str) -> str:
        calls.append(to)
        await keep.wait()
        return "paid"

    first = await world.open()
    handle = await start_calls(first, lambda: [("pay", make_step_call(pay, {"to": "Ada"}))])
    await wait_until(lambda: calls)
    assert [one.intent for one in (await read_attempts(first, handle)).values()] == [True]
    await world.crash(first)
    second = await world.open()
    await wait_until(lambda: _has_ended(second, handle))
    [record] = await read_journal(second, handle)
    assert calls == ["Ada"]
    assert describe_failure(record) == (
        "failed",
        "The process stopped while the tool 'pay' ran; it may or may not have happened. "
        "Check first, before you call it again.",
    )


async def _has_ended(runtime: Any, handle: Any) -> bool:
    return bool(await read_journal(runtime, handle))


async def test_any_other_tool_whose_process_died_is_called_again_with_the_same_key(world: World):
    keys: list[str] = []
    keep = asyncio.Event()

    @tool
    async def send(ctx: RunContext[None]) -> str:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            await keep.wait()
        return "sent"

    first = await world.open()
    handle = await start_calls(first, lambda: [("send", make_step_call(send))])
    await wait_until(lambda: keys)
    await world.crash(first)
    second = await world.open()
    await wait_until(lambda: _has_ended(second, handle))
    assert len(keys) == 2
    assert keys[0] == keys[1]


async def test_the_error_for_an_unknown_tool_names_the_known_ones(world: World):
    known = ["read_file", "web_search", "write_file"]
    many = [f"tool_number_{n}" for n in range(100)]
    runtime = await world.open()
    handle = await start_calls(
        runtime,
        lambda: [
            ("websearch", make_unknown_tool_call("websearch", known)),
            ("x", make_unknown_tool_call("x" * 5000, many)),
            ("y", make_unknown_tool_call("y", [])),
            ("helper", make_rejected_call("helper", "Send the whole task.")),
        ],
    )
    await handle.result()
    records = await read_journal(runtime, handle)
    assert describe_failure(records[0]) == (
        "retried",
        "There is no tool 'websearch'. The tools that you have are: web_search, read_file, write_file.",
    )
    outcome, words = describe_failure(records[1])
    assert outcome == "retried"
    assert len(words) < 400
    assert words.endswith(" more.")
    assert describe_failure(records[2])[1] == "There is no tool 'y': you have no tools. Answer without."
    assert describe_failure(records[3]) == ("retried", "Send the whole task.")
    assert read_error_info(records[0].payload or b"").type == "holdfast.errors.UnknownTool"

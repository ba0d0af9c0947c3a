"""Turns in a program: what is recorded, what is matched when a turn is resumed, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import agent_app
import claude_agent_sdk
import pytest
import pytest_asyncio
from claude_agent_sdk import (
    Message,
    ResultMessage,
    StreamEvent,
    UserMessage,
)
from effects import LEDGER
from kill_kit import REQUEST, App, Kill, run_app
from provider_server import ProviderServer

from holdfast import Client, Runtime, program, workflow
from holdfast.errors import RunFailed
from holdfast.integrations.claude_agent import query
from holdfast.integrations.claude_agent.messages import TurnCodec
from holdfast.integrations.claude_agent.tool_calls import ToolUse
from holdfast.integrations.claude_agent.transcript import Transcript, make_resume_prompt

SCRIPTS: dict[str, Any] = {
    "trip": [
        {"text": "I look.", "calls": [{"tool": "mcp__shop__search", "arguments": {"query": "Oslo"}}]},
        {"text": "It said: found."},
    ]
}
calls: list[list[Message]] = []


@program(id="turn-{name}")
async def take_turn(name: str, options: str = "", effect: str = "search") -> str:
    more: dict[str, Any] = {"include_partial_messages": True}
    if options:
        more |= {options: {"session_id": "0b74ae14-58ef-45e6-8da0-74a5c3daee97"}.get(options, True)}
    messages = query(prompt="Plan a trip.", options=agent_app.make_options(**more), effects={effect: "once"})
    calls.append([message async for message in messages])
    return str(calls[-1][-1].result)  # type: ignore[union-attr]


@program(id="streamed-prompt")
async def stream_prompt() -> None:
    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield {}

    async for _ in query(prompt=prompts()):
        pass


@workflow(id="in-workflow")
async def in_workflow() -> None:
    async for _ in query(prompt="Plan a trip."):
        pass


@workflow(id="calls-program")
async def calls_program() -> str:
    return await take_turn("child")


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderServer]:
    monkeypatch.chdir(tmp_path)
    calls.clear()
    with ProviderServer(SCRIPTS, tmp_path / "provider.ledger") as provider:
        for name, value in {**provider.address.environment, LEDGER: str(tmp_path / "effects")}.items():
            monkeypatch.setenv(name, value)
        yield provider


@pytest_asyncio.fixture
async def client(tmp_path: Path, provider: ProviderServer) -> AsyncIterator[Client]:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Runtime(url), Client(url) as client:
        yield client


@pytest.mark.asyncio
async def test_a_turn_is_recorded_with_its_usage_and_its_tools(client: Client, provider: ProviderServer):
    assert await calls_program() == "It said: found."  # a workflow calls the program as a child
    report = await client.describe("turn-child")
    steps = [(entry.name, entry.ok) for entry in report.journal if entry.kind == "step"]
    assert steps == [("search", True), ("agent turn", True)]  # the turn ends after its tool
    usage = await client.usage("turn-child")
    [result] = [message for message in calls[0] if isinstance(message, ResultMessage)]
    assert result.usage is not None
    assert (usage.output_tokens, usage.calls) == (result.usage["output_tokens"], 2)
    assert usage.cost is not None
    assert float(usage.cost) == pytest.approx(result.total_cost_usd)
    texts = [message.text for message in await client.conversation("turn-child")]
    assert texts[:2] == ["Plan a trip.", "I look.\nIt said: found.\n"]
    events = [event async for event in client.events("turn-child")]
    assert "".join(event.text for event in events if event.kind == "text") == "I look.\nIt said: found.\n"


@pytest.mark.asyncio
async def test_a_failed_tool_is_recorded_as_failed(
    client: Client, provider: ProviderServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(LEDGER)  # the tool needs it
    assert await take_turn("failing") == "It said: found."
    report = await client.describe("turn-failing")
    [search] = [entry for entry in report.journal if (entry.kind, entry.name) == ("step", "search")]
    assert search.error is not None
    assert (search.outcome, search.error.message) == ("failed", f"'{LEDGER}'")


@pytest.mark.asyncio
async def test_a_recorded_turn_returns_the_same_messages(client: Client, provider: ProviderServer):
    await take_turn("again")
    codec = TurnCodec(has_own_cost=True)
    messages = calls[0]
    assert any(isinstance(message, StreamEvent) for message in messages)
    assert any(isinstance(message, UserMessage) for message in messages)
    whole = [message for message in messages if not isinstance(message, StreamEvent)]
    assert codec.load(codec.dump(messages)) == whole


@pytest.mark.asyncio
async def test_outside_of_a_program_it_is_the_function_of_the_sdk(client: Client, provider: ProviderServer):
    prompt, options = "Plan a trip.", agent_app.make_options()
    ours = [type(message) async for message in query(prompt=prompt, options=options)]
    theirs = [type(message) async for message in claude_agent_sdk.query(prompt=prompt, options=options)]
    assert ours == theirs
    assert await client.list() == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("continue_conversation", "Pass resume=message.session_id"),
        ("session_id", "each turn is a session of its own"),
        ("fork_session", "each turn is a session of its own"),
    ],
)
async def test_options_that_name_other_sessions_are_refused(client: Client, options: str, error: str):
    with pytest.raises(RunFailed, match="UsageError") as raised:
        await take_turn("refused", options)
    assert error in str(raised.value)


@pytest.mark.asyncio
async def test_a_streamed_prompt_is_refused(client: Client):
    with pytest.raises(RunFailed, match="the prompt is a text"):
        await stream_prompt()


@pytest.mark.asyncio
async def test_an_effect_of_an_unknown_tool_is_refused(client: Client):
    with pytest.raises(RunFailed, match=r"'serch' is not the name of one in-process tool.*'mcp__shop__search'"):
        await take_turn("misspelt", effect="serch")


@pytest.mark.asyncio
async def test_a_workflow_is_told_to_call_a_program(client: Client):
    with pytest.raises(RunFailed, match="call the agent in a @program"):
        await in_workflow()


SCRIPT_OF_TWINS = {
    "trip": [
        {"calls": [{"tool": "mcp__shop__charge", "arguments": {"query": "card"}}]},
        {"calls": [{"tool": "mcp__shop__charge", "arguments": {"query": "card"}}]},
        {"text": "Both are charged."},
        {"text": "All is booked, I said."},
    ]
}


def test_the_same_call_after_a_resumed_turn_is_a_new_one(tmp_path: Path):
    app = App(Path(agent_app.__file__), SCRIPT_OF_TWINS)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    first = run_app(app, tmp_path, url, Kill(REQUEST, 2))  # the first charge is recorded
    assert first.effects["end:charge"] == 1
    second = run_app(app, tmp_path, url)
    assert second.result == "Both are charged. / All is booked, I said.", second.log
    assert second.effects["end:charge"] == 1


ENTRIES: list[Any] = [
    {"type": "queue-operation", "content": "Plan a trip."},
    {"type": "user", "message": {"role": "user", "content": "Plan a trip."}},
    {
        "type": "assistant",
        "message": {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "mcp__my_shop__find__it", "input": {"query": "Oslo"}},
                {"type": "tool_use", "id": "b", "name": "Bash", "input": {}},
            ],
        },
    },
    {
        "type": "user",
        "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b", "content": ""}]},
    },
]


def test_a_transcript_says_which_calls_were_made_and_answered():
    transcript = Transcript(ENTRIES)
    assert transcript.has_prompt("Plan a trip.")
    assert not transcript.has_prompt("Plan")
    [use] = transcript.list_tool_uses(["my_shop"])
    assert use == ToolUse("a", "my_shop", "find__it", {"query": "Oslo"})
    assert [tuple(one) for one in transcript.list_tool_outcomes()] == [("b", False)]
    prompt = make_resume_prompt([(use, "returned: found Oslo")])
    assert '- mcp__my_shop__find__it({"query": "Oslo"}), call a, returned: found Oslo' in prompt
    told = [*ENTRIES, {"type": "user", "message": {"role": "user", "content": prompt}}]
    assert Transcript(told).mentions("a")
    assert not transcript.mentions("a")

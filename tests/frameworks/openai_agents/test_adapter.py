"""Agents keep the promises of every adapter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from holdfast.engine.program_context import find_program
from holdfast.integrations.openai_agents import durable
from holdfast.testing import ScriptedAnswer, ScriptedChat, ScriptedTools, check_adapter


class ScriptedModel(Model):
    def __init__(self, chat: ScriptedChat) -> None:
        self.chat = chat

    def answer(self, items: Any) -> tuple[list[Any], ScriptedAnswer]:
        sent = [] if isinstance(items, str) else items
        answer = self.chat.answer([one["output"] for one in sent if one.get("type") == "function_call_output"])
        output: list[Any] = [
            ResponseFunctionToolCall(
                call_id=call.id, name=call.name, arguments=json.dumps(call.arguments), type="function_call"
            )
            for call in answer.tool_calls
        ]
        text = ResponseOutputText(text=answer.text, type="output_text", annotations=[])
        message = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        return [message, *output], answer

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        output, answer = self.answer(input)
        total = answer.input_tokens + answer.output_tokens
        usage = Usage(
            requests=1, input_tokens=answer.input_tokens, output_tokens=answer.output_tokens, total_tokens=total
        )
        return ModelResponse(output=output, usage=usage, response_id=None)

    async def stream_response(
        self, system_instructions: Any, input: Any, *args: Any, **options: Any
    ) -> AsyncIterator[Any]:
        output, answer = self.answer(input)
        usage = ResponseUsage(
            input_tokens=answer.input_tokens, output_tokens=answer.output_tokens,
            total_tokens=answer.input_tokens + answer.output_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        )  # fmt: skip
        response = Response(
            id="r", created_at=0, model="scripted", object="response", output=output, usage=usage,
            parallel_tool_calls=True, tool_choice="auto", tools=[],
        )  # fmt: skip
        yield ResponseCompletedEvent(response=response, sequence_number=0, type="response.completed")


def make_agent(chat: ScriptedChat, tools: ScriptedTools) -> Agent[Any]:
    agent = Agent(
        name="Checked",
        model=ScriptedModel(chat),
        tools=[function_tool(tools.look_up), function_tool(tools.charge)],
    )
    # Elsewhere, a call of a durable agent is a run.
    return agent if find_program() is None else durable(agent, effects={"charge": "once"})


async def run(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
    return (await Runner.run(make_agent(chat, tools), task)).final_output


async def run_streamed(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
    result = Runner.run_streamed(make_agent(chat, tools), task)
    async for _ in result.stream_events():
        pass
    return result.final_output


def run_sync(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
    return Runner.run_sync(make_agent(chat, tools), task).final_output


@pytest.mark.parametrize("agent", [run, run_streamed, run_sync])
def test_an_agent(agent: Callable[..., Any]):
    asyncio.run(check_adapter(agent))

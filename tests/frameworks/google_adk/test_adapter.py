"""Runners keep the promises of every adapter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from adk_kit import collect, texts
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from holdfast.engine.program_context import find_program
from holdfast.integrations.google_adk import durable
from holdfast.testing import ScriptedChat, ScriptedTools, check_adapter


class ScriptedModel(BaseLlm):
    chat: Any

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        sent = [part.function_response for content in llm_request.contents for part in content.parts or ()]
        answer = self.chat.answer([str(value) for one in sent if one for value in (one.response or {}).values()])
        parts = [types.Part(text=answer.text)]
        if stream:
            yield LlmResponse(content=types.Content(role="model", parts=list(parts)), partial=True)
        for call in answer.tool_calls:
            called = types.FunctionCall(id=call.id, name=call.name, args=call.arguments)
            parts.append(types.Part(function_call=called))
        used = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=answer.input_tokens, candidates_token_count=answer.output_tokens
        )
        yield LlmResponse(content=types.Content(role="model", parts=parts), usage_metadata=used)


@pytest.mark.parametrize("mode", [StreamingMode.NONE, StreamingMode.SSE])
def test_the_adapter(mode: StreamingMode):
    async def agent(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        model = ScriptedModel(model="scripted", chat=chat)
        runner = InMemoryRunner(agent=LlmAgent(name="checked", model=model, tools=[tools.look_up, tools.charge]))
        if find_program() is not None:  # elsewhere, an invocation of a durable runner is a run
            runner = durable(runner, effects={"charge": "once"})
        return texts(await collect(runner, task, run_config=RunConfig(streaming_mode=mode)))[-1]

    asyncio.run(check_adapter(agent))

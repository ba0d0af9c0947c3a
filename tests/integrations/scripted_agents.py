"""Agents of Pydantic AI for tests: a model that answers by a script, two tools, and a look at the journal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.usage import RequestUsage

from holdfast import (
    Runtime,
)
from holdfast.core.records import Record
from holdfast.integrations.pydantic_ai import AgentWorkflow, Durable

Turn = Sequence[Any] | str | Exception


class Script(FunctionModel):
    """A model that answers by a script, wherever in the conversation it is asked, and counts."""

    def __init__(self, *turns: Turn | Callable[[list[ModelMessage]], Turn]) -> None:
        super().__init__(self._answer, stream_function=self._stream)
        self.turns = turns
        self.asked: list[int] = []
        self.messages: list[ModelMessage] = []

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(one, ModelResponse) for one in messages)
        self.asked.append(turn)
        self.messages = list(messages)
        said = self.turns[turn]
        said = said(messages) if callable(said) else said
        if isinstance(said, Exception):
            raise said
        parts = [TextPart(said)] if isinstance(said, str) else list(said)
        return ModelResponse(parts, usage=RequestUsage(input_tokens=100, output_tokens=10))

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for index, part in enumerate((await self._answer(messages, info)).parts):
            if isinstance(part, ToolCallPart):
                yield {index: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}
            elif isinstance(part, TextPart):
                yield part.content


def call(tool: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments)


async def look(place: str) -> str:
    """Look at a place."""
    return f"{place} seen"


def count(things: str) -> int:
    """Count things."""
    return len(things)


def explorer(name: str, **more: Any) -> tuple[Agent[None, str], Script]:
    """Two turns with tools, one of them with two calls side by side, and an answer."""
    model = Script([call("look", place="east"), call("count", things="trees")], [call("look", place="west")], "done")
    return Agent(model, name=name, tools=[look, count], capabilities=[Durable()], **more), model


def flow_of(agent: Agent[Any, Any]) -> AgentWorkflow:
    """The workflow of an agent's own runs."""
    durable = Durable.from_agent(agent)
    assert durable is not None
    return durable.workflow


async def journal(runtime: Runtime, run_id: str) -> list[Record]:
    _, history = await runtime.store_provider.read_journal(run_id)
    return sorted((one for one in history.records if one.kind.has_position), key=lambda one: one.position)


async def names(runtime: Runtime, run_id: str) -> list[str]:
    return [one.name for one in await journal(runtime, run_id)]

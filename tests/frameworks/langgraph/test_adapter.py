"""Agents and graphs keep the promises of every adapter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, ToolMessage, message_chunk_to_message
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from holdfast.engine.program_context import find_program
from holdfast.integrations.langgraph import durable
from holdfast.testing import AdapterError, ScriptedChat, ScriptedTools, check_adapter


class Model(BaseChatModel):
    chat: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self.bind(tools=[tool.name for tool in tools])

    def answer(self, messages: list[BaseMessage]) -> AIMessageChunk:
        answer = self.chat.answer([message.content for message in messages if isinstance(message, ToolMessage)])
        used = {
            "input_tokens": answer.input_tokens,
            "output_tokens": answer.output_tokens,
            "total_tokens": answer.input_tokens + answer.output_tokens,
        }
        calls: Any = [{"name": one.name, "args": one.arguments, "id": one.id} for one in answer.tool_calls]
        return AIMessageChunk(answer.text, tool_calls=calls, usage_metadata=used)

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=message_chunk_to_message(self.answer(messages)))])

    def _stream(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> Any:
        yield ChatGenerationChunk(message=self.answer(messages))


def make_agent(chat: ScriptedChat, tools: ScriptedTools) -> Any:
    return create_agent(Model(chat=chat), tools=[tools.look_up, tools.charge], name="checked")


def make_graph(chat: ScriptedChat, tools: ScriptedTools) -> Any:
    tool_node = ToolNode([tools.look_up, tools.charge])
    model = Model(chat=chat).bind_tools(list(tool_node.tools_by_name.values()))

    def think(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("tools", tool_node)
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", tools_condition)
    builder.add_edge("tools", "think")
    return builder.compile(name="checked")


def wrap(graph: Any) -> Any:
    """Elsewhere, a call of a durable graph is a run."""
    return graph if find_program() is None else durable(graph, effects={"charge": "once"})


def make_input(task: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": task}]}


def read_text(state: Any) -> str:
    return str(state["messages"][-1].text)


def test_an_agent():
    async def agent(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        return read_text(await wrap(make_agent(chat, tools)).ainvoke(make_input(task)))

    asyncio.run(check_adapter(agent))


def test_an_agent_in_code_that_is_not_async():
    def agent(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        return read_text(wrap(make_agent(chat, tools)).invoke(make_input(task)))

    asyncio.run(check_adapter(agent))


def test_the_streams_of_an_agent():
    async def agent(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        text = ""
        async for message, _ in wrap(make_agent(chat, tools)).astream(make_input(task), stream_mode="messages"):
            text = str(message.text) or text  # the last part of a stream is empty
        return text

    asyncio.run(check_adapter(agent))


def test_the_streams_of_an_agent_in_code_that_is_not_async():
    def agent(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        *_, state = wrap(make_agent(chat, tools)).stream(make_input(task), stream_mode="values")
        return read_text(state)

    asyncio.run(check_adapter(agent))


def test_a_graph():
    """All promises but the last: see the limits in the docs."""

    async def agent(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        return read_text(await wrap(make_graph(chat, tools)).ainvoke(make_input(task)))

    with pytest.raises(AdapterError, match="the agent sent another request, because its task had changed"):
        asyncio.run(check_adapter(agent))

"""``check_adapter``: a good adapter passes, and each kind of fault is found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from holdfast.integrations import (
    AnswerCodec,
    ModelAnswer,
    ModelInput,
    TokenCounts,
    ToolCallReport,
    describe_failure,
    record_model_call,
    record_model_call_sync,
    record_tool_call,
    record_tool_call_sync,
)
from holdfast.testing import AdapterError, ScriptedAnswer, ScriptedChat, ScriptedToolCall, ScriptedTools, check_adapter

Message = dict[str, Any]


class Codec(AnswerCodec[ScriptedAnswer]):
    def dump(self, answer: ScriptedAnswer) -> Any:
        return {"text": answer.text, "calls": [call._asdict() for call in answer.tool_calls]}

    def load(self, data: Any) -> ScriptedAnswer:
        return ScriptedAnswer(data["text"], [ScriptedToolCall(**call) for call in data["calls"]])

    def describe(self, answer: ScriptedAnswer) -> ModelAnswer:
        calls = [ToolCallReport(call.id, call.name, call.arguments) for call in answer.tool_calls]
        return ModelAnswer(answer.text, calls, TokenCounts(answer.input_tokens, answer.output_tokens))


class NoUsageCodec(Codec):
    def describe(self, answer: ScriptedAnswer) -> ModelAnswer:
        return ModelAnswer(answer.text, super().describe(answer).tool_calls)


class NoCallsCodec(Codec):
    def describe(self, answer: ScriptedAnswer) -> ModelAnswer:
        return ModelAnswer(answer.text, (), super().describe(answer).tokens)


def make_input(messages: list[Message]) -> ModelInput:
    return ModelInput("openai:gpt-4o", messages)


def list_results(messages: list[Message]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


class Agent:
    """An async agent, whose adapter may have a fault."""

    codec: AnswerCodec[ScriptedAnswer] = Codec()
    effect = "once"
    has_call_ids = True

    async def __call__(self, chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        messages: list[Message] = [{"role": "user", "content": task}]
        while True:
            answer = await self.ask(list(messages), chat)
            calls = [call._asdict() for call in answer.tool_calls]
            messages.append({"role": "assistant", "content": answer.text, "calls": json.dumps(calls)})
            if not calls:
                return answer.text
            messages += await asyncio.gather(*(self.use_tool(call, tools) for call in answer.tool_calls))

    async def ask(self, messages: list[Message], chat: ScriptedChat) -> ScriptedAnswer:
        async def answer() -> ScriptedAnswer:
            return chat.answer(list_results(messages))

        return await record_model_call(make_input(messages), self.codec, answer)

    async def use_tool(self, call: ScriptedToolCall, tools: ScriptedTools) -> Message:
        try:
            result = await self.record_tool_call(call, tools)
        except Exception as error:
            result = self.describe(error, call.name)
        return {"role": "tool", "content": result, "tool_call_id": call.id}

    def describe(self, error: Exception, name: str) -> str:
        return describe_failure(error, name)

    async def record_tool_call(self, call: ScriptedToolCall, tools: ScriptedTools) -> str:
        async def execute() -> str:
            return getattr(tools, call.name)(**call.arguments)

        effect = self.effect if call.name == "charge" else "idempotent"
        call_id = call.id if self.has_call_ids else ""
        return await record_tool_call(call.name, call.arguments, execute, call_id=call_id, effect=effect)


def plain_agent(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
    messages: list[Message] = [{"role": "user", "content": task}]
    while True:
        answer = record_model_call_sync(
            make_input(list(messages)), Codec(), lambda: chat.answer(list_results(messages))
        )
        if not answer.tool_calls:
            return answer.text
        for call in answer.tool_calls:
            effect = "once" if call.name == "charge" else "idempotent"
            try:
                result = record_tool_call_sync(
                    call.name, call.arguments, lambda c=call: getattr(tools, c.name)(**c.arguments),
                    call_id=call.id, effect=effect,
                )  # fmt: skip
            except Exception as error:
                result = describe_failure(error, call.name)
            messages.append({"role": "tool", "content": result, "tool_call_id": call.id})


def test_a_good_adapter_passes():
    agent = Agent()

    async def run(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        return await agent(chat, tools, task)

    report = asyncio.run(check_adapter(run))
    assert report.point_count >= 15


def test_a_good_adapter_for_code_that_is_not_async_passes():
    assert asyncio.run(check_adapter(plain_agent)).point_count >= 15


def test_code_that_is_not_async_has_no_event_loop_around_it():
    def agent(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()  # frameworks run a loop of their own
        return plain_agent(chat, tools, task)

    asyncio.run(check_adapter(agent))


class Unrecorded(Agent):
    async def ask(self, messages: list[Message], chat: ScriptedChat) -> ScriptedAnswer:
        return chat.answer(list_results(messages))


class UnrecordedTools(Agent):
    async def record_tool_call(self, call: ScriptedToolCall, tools: ScriptedTools) -> str:
        return getattr(tools, call.name)(**call.arguments)


class WithoutUsage(Agent):
    codec = NoUsageCodec()


class WithoutCalls(Agent):
    codec = NoCallsCodec()


class WithoutCallIds(Agent):
    has_call_ids = False

    async def ask(self, messages: list[Message], chat: ScriptedChat) -> ScriptedAnswer:
        sent = [message for message in messages if message["role"] != "tool"]

        async def answer() -> ScriptedAnswer:
            return chat.answer(list_results(messages))

        return await record_model_call(make_input(sent), self.codec, answer)


class Repeating(Agent):
    effect = "idempotent"


class Silent(Agent):
    def describe(self, error: Exception, name: str) -> str:
        return "it failed"


class Random(Agent):
    async def ask(self, messages: list[Message], chat: ScriptedChat) -> ScriptedAnswer:
        return await super().ask([{**message, "id": str(uuid4())} for message in messages], chat)


class Careless(Agent):
    """The request is not in the content of the call."""

    async def ask(self, messages: list[Message], chat: ScriptedChat) -> ScriptedAnswer:
        async def answer() -> ScriptedAnswer:
            return chat.answer(list_results(messages))

        return await record_model_call(
            make_input([{"role": "user", "content": "Look up two cities."}]), Codec(), answer
        )


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (Unrecorded, "3 of 3 requests to the model were made outside of a recorded step"),
        (UnrecordedTools, "must have 2 recorded 'look_up' steps, and has 0"),
        (WithoutUsage, "must have used 3 model calls with 300 input and 30 output tokens"),
        (WithoutCalls, r"ModelAnswer.tool_calls must have the calls in the answer: the conversation has \[\]"),
        (WithoutCallIds, "must have the 3 results of tools"),
        (Repeating, "'once', and was executed again after a crash"),
        (Silent, "the model must be told that the outcome of charge is unknown"),
        (Random, "with other content"),
        (Careless, "what is sent to the model must be in ModelInput"),
    ],
)
def test_a_fault_is_found(agent: Callable[[], Agent], message: str):
    faulty = agent()

    async def run(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        return await faulty(chat, tools, task)

    checked: Awaitable[Any] = check_adapter(run)
    with pytest.raises(AssertionError, match=message) as raised:
        asyncio.run(checked)  # type: ignore[arg-type]
    assert isinstance(raised.value, AdapterError) or "does not survive a crash" in str(raised.value)

"""A model that follows a script, for tests, demos, and examples that are the same every time.

The conversation alone determines the next turn of the script: it is the number of model answers so far, plus one. The
summary of a compacted conversation says how many answers it replaces. So the script continues after a crash and in
another process, and one model can serve any number of conversations at once.

The ``@llm_step``s of a run share the script: each takes the next turn, in the order in which the workflow calls them.
If the last turn is a function, it answers all further calls.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_json, to_jsonable_python

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.agents.models.model_resolution import model_override, prior_calls
from holdfast.agents.models.prices import CHARS_PER_TOKEN
from holdfast.agents.models.summaries import count_answers, count_kept, is_summary_request
from holdfast.errors import UsageError

DEFAULT_SUMMARY = "This is a summary of what was said."
"""The default answer to a request for a summary."""

_RESPONSE_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""The time of every answer, so that the same script produces the same journal."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call by the model: see ``call``."""

    tool: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class StructuredAnswer:
    """A structured answer of the model: see ``answer``."""

    value: Any


def call(tool: str, raw: str | None = None, /, **arguments: Any) -> ToolCall:
    """A turn in which the model calls this tool with these arguments.

    ``raw`` replaces the arguments with a text, for a model that sends broken JSON.
    """
    if raw is not None and arguments:
        raise UsageError(f"call({tool!r}): give the arguments by name, or as one text, not both")
    return ToolCall(tool, raw if raw is not None else _to_plain(arguments))


def answer(*value: Any, **fields: Any) -> StructuredAnswer:
    """A turn in which the model gives a structured answer for the agent's ``output_type``: a value, or its fields."""
    if len(value) > 1 or bool(value) == bool(fields):
        raise UsageError("answer: give one value, as in answer(42), or the fields of one, as in answer(city='Paris')")
    return StructuredAnswer(_to_plain(value[0] if value else fields))


TurnPart = str | ToolCall | StructuredAnswer | ModelResponsePart
"""A part of an answer."""

Turn = TurnPart | Sequence[TurnPart] | ModelResponse | BaseException
"""One answer of the model, or an exception that the call raises."""

TurnFunction = (
    Callable[[list[ModelMessage]], Turn | Awaitable[Turn]]
    | Callable[[list[ModelMessage], ModelRequestParameters], Turn | Awaitable[Turn]]
)
"""Computes a turn from the conversation and, with two parameters, from the request parameters."""

UsageFunction = Callable[[Sequence[ModelMessage], ModelResponse], tuple[int, int]]


class ScriptedCall(NamedTuple):
    """One call of a scripted model."""

    turn: int
    """The turn of the script, from 1; 0 for a request to summarize the conversation."""
    message_count: int
    """Number of messages in the request."""
    tool_names: list[str]
    """The tools offered to the model, without the one for the answer."""
    instructions: str
    last_message: ModelMessage
    """The newest message."""


class ScriptedModel(Model[None]):
    """A pydantic-ai model that follows a script.

    Give it to an agent, to ``@llm_step``, or to ``Runner(model=...)``::

        ScriptedModel([call("web_search", query="entanglement"), "Two particles share one state."])

    A turn is one of these:

    - a text;
    - ``call("tool", argument=...)``;
    - ``answer(...)``, for an agent with an ``output_type``;
    - a list of these;
    - an exception, which every attempt of the call raises;
    - a sync or async function that returns one of these. It gets the messages so far and, if it takes two arguments,
      pydantic-ai's ``ModelRequestParameters``. For a fault that passes, write
      ``lambda _: fault if current_step().attempt == 1 else "text"``.

    Args:
        script: the turns of a conversation.
        name: the model's name. With a name and provider that ``genai-prices`` knows, answers have a cost.
        provider: the provider's name.
        summary: the turn for a request to summarize a conversation that became too long.
        usage: input and output tokens of every call, or a function of the messages and the answer that returns them.
            Default: one token for every four characters.
        word_delay: the delay before each word of a streamed answer.
    """

    def __init__(
        self,
        script: Sequence[Turn | TurnFunction],
        *,
        name: str = "scripted",
        provider: str = "holdfast",
        summary: Turn | TurnFunction = DEFAULT_SUMMARY,
        usage: tuple[int, int] | UsageFunction | None = None,
        word_delay: Duration = 0.0,
    ) -> None:
        super().__init__()
        if isinstance(script, str) or not isinstance(script, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"ScriptedModel takes a list of turns, not {script!r}")
        self.script = script
        self.calls: list[ScriptedCall] = []
        """The calls in this process, in order."""
        self._name = name
        self._system = provider
        self._summary = summary
        self._usage = usage
        self._word_delay_s = duration_to_seconds(word_delay, "ScriptedModel: word_delay", may_be_zero=True)

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def system(self) -> str:
        """The provider's name."""
        return self._system

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Take the next turn of the script."""
        _, offered = self.prepare_request(model_settings, model_request_parameters)
        earlier_count = 0 if is_summary_request(messages) else self._count_earlier_turns()
        number = 0 if is_summary_request(messages) else 1 + count_answers(messages) + earlier_count
        self.calls.append(_record_call(number, messages, offered))
        if number > len(self.script) and not (earlier_count and callable(self.script[-1])):
            raise UsageError(
                f"the scripted model {self._name!r} was asked for turn {number} of a conversation, and its script has "
                f"{len(self.script)}. The newest message: {_describe_message(messages[-1])}"
            )
        turn = self.script[min(number, len(self.script)) - 1] if number else self._summary
        if callable(turn):
            turn = await _call_turn_function(turn, messages, offered)
        if isinstance(turn, BaseException):
            raise turn
        response = copy(turn) if isinstance(turn, ModelResponse) else _build_response(number, turn, offered)
        response.model_name, response.provider_name = self._name, self._system
        if not response.usage.has_values():
            input_tokens, output_tokens = self._count_tokens(messages, response)
            response.usage = RequestUsage(input_tokens=input_tokens, output_tokens=output_tokens)
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Take the next turn of the script, streamed word by word."""
        response = await self.request(messages, model_settings, model_request_parameters)
        yield _ScriptedStream(model_request_parameters, response, self._word_delay_s)

    def _count_earlier_turns(self) -> int:
        """Number of turns that earlier ``@llm_step``s of the run have taken."""
        prior = prior_calls.get()
        if prior is None:
            return 0
        if model_override.get() is self:
            return prior.run_count
        return prior.model_count if prior.model is self else 0

    def _count_tokens(self, messages: Sequence[ModelMessage], response: ModelResponse) -> tuple[int, int]:
        if callable(self._usage):
            return self._usage(messages, response)
        if self._usage is not None:
            return self._usage
        return _count_input_tokens(messages), _estimate_tokens(response)


@dataclass
class _ScriptedStream(StreamedResponse):
    """An answer, streamed word by word."""

    response: ModelResponse
    word_delay_s: float

    def get(self) -> ModelResponse:
        """The whole answer."""
        return self.response

    async def close_stream(self) -> None:
        """Do nothing: there is no connection to close."""

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for index, part in enumerate(self.response.parts):
            if not isinstance(part, TextPart):
                yield self._parts_manager.handle_part(vendor_part_id=index, part=part)
                continue
            for word in re.findall(r"\s*\S+|\s+$", part.content):
                if self.word_delay_s:
                    await asyncio.sleep(self.word_delay_s)
                for event in self._parts_manager.handle_text_delta(vendor_part_id=index, content=word):
                    yield event

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self.response.model_name or ""

    @property
    def provider_name(self) -> str | None:
        """The provider's name."""
        return self.response.provider_name

    @property
    def provider_url(self) -> str | None:
        """``None``: a script has no URL."""
        return None

    @property
    def timestamp(self) -> datetime:
        """The time of the answer."""
        return self.response.timestamp


def _record_call(turn: int, messages: list[ModelMessage], offered: ModelRequestParameters) -> ScriptedCall:
    if offered.instruction_parts is None:
        instructions = getattr(messages[-1], "instructions", None) or ""
    else:
        instructions = "\n\n".join(part.content for part in offered.instruction_parts)
    return ScriptedCall(turn, len(messages), [tool.name for tool in offered.function_tools], instructions, messages[-1])


async def _call_turn_function(
    function: TurnFunction, messages: list[ModelMessage], offered: ModelRequestParameters
) -> Turn:
    arguments = (messages, offered)[: len(inspect.signature(function).parameters)]
    turn = cast(Callable[..., Any], function)(*arguments)
    return await turn if inspect.isawaitable(turn) else turn


def _build_response(number: int, turn: TurnPart | Sequence[TurnPart], offered: ModelRequestParameters) -> ModelResponse:
    pieces = turn if isinstance(turn, Sequence) and not isinstance(turn, str) else [turn]
    parts: list[ModelResponsePart] = []
    for piece in pieces:
        if isinstance(piece, str):
            parts.append(TextPart(piece))
        elif isinstance(piece, ToolCall | StructuredAnswer):
            tool_call = piece if isinstance(piece, ToolCall) else _to_tool_call(piece, offered)
            call_number = 1 + sum(isinstance(part, ToolCallPart) for part in parts)
            id = f"call_{number}_{call_number}"
            parts.append(ToolCallPart(tool_call.tool, tool_call.arguments, tool_call_id=id))
        else:
            parts.append(piece)
    finish = "tool_call" if any(isinstance(part, ToolCallPart) for part in parts) else "stop"
    return ModelResponse(parts, timestamp=_RESPONSE_TIME, finish_reason=finish)


def _to_tool_call(answer: StructuredAnswer, offered: ModelRequestParameters) -> ToolCall:
    """A structured answer is a call of the output tool; a value that is not an object is wrapped in one."""
    if not offered.output_tools:
        raise UsageError(
            f"the script has answer({answer.value!r}), but the agent or step wants text: its `output_type` is missing, "
            f"or `str`"
        )
    tool = offered.output_tools[0]
    key = tool.outer_typed_dict_key
    return ToolCall(tool.name, answer.value if key is None else {key: answer.value})


def _to_plain(value: Any) -> Any:
    return to_jsonable_python(value)


def _count_input_tokens(messages: Sequence[ModelMessage]) -> int:
    """The tokens of all messages. The usage of an earlier answer covers the messages before it."""
    older = 1 + count_kept(messages)  # the usage of an answer before a compaction covers messages that are gone
    tokens = 0
    for index in reversed(range(len(messages))):
        message = messages[index]
        tokens += _estimate_tokens(message)
        if isinstance(message, ModelResponse) and message.usage.input_tokens and index >= older:
            return tokens + message.usage.input_tokens
    return tokens


def _estimate_tokens(message: ModelMessage) -> int:
    return 1 + sum(map(_count_characters, message.parts)) // CHARS_PER_TOKEN


def _count_characters(part: Any) -> int:
    if isinstance(part, ToolCallPart):
        return len(part.tool_name) + len(part.args_as_json_str())
    content = getattr(part, "content", "")
    return len(content if isinstance(content, str) else to_json(content, fallback=repr))


def _describe_message(message: ModelMessage) -> str:
    descriptions: list[str] = []
    for part in message.parts:
        text = str(getattr(part, "content", part))
        descriptions.append(f"{part.part_kind} {text if len(text) <= 200 else f'{text[:200]}…'!r}")
    return ", ".join(descriptions)

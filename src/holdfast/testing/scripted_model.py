"""A model that answers by a script: for tests, demos and examples that are the same every time.

Which turn of the script is next is told by the conversation alone: as many answers of a model as it holds, so many
turns are over; where it was compacted, the summary tells for how many answers it stands. So the script goes on where it
was in another process and after a crash, and one model may serve any number of conversations at once.

The ``@llm_step``s of a run share the script: each takes the next turn, in the order in which the workflow calls them. A
function that is the last turn answers all further ones.
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
"""What a model says when it is asked for one, unless a test tells otherwise."""

_RESPONSE_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""When every answer was given, so that the same script makes the same journal."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model calls a tool: see ``call``."""

    tool: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class StructuredAnswer:
    """The model gives its structured answer: see ``answer``."""

    value: Any


def call(tool: str, raw: str | None = None, /, **arguments: Any) -> ToolCall:
    """Let the model call this tool with these arguments.

    With ``raw`` in place of them, the arguments are this very text: for a model that sends broken JSON.
    """
    if raw is not None and arguments:
        raise UsageError(f"call({tool!r}): give the arguments by name, or as one text, not both")
    return ToolCall(tool, raw if raw is not None else _to_plain(arguments))


def answer(*value: Any, **fields: Any) -> StructuredAnswer:
    """Let the model give a structured answer, as the agent's ``output_type`` has it: a value, or the fields of one."""
    if len(value) > 1 or bool(value) == bool(fields):
        raise UsageError("answer: give one value, as in answer(42), or the fields of one, as in answer(city='Paris')")
    return StructuredAnswer(_to_plain(value[0] if value else fields))


TurnPart = str | ToolCall | StructuredAnswer | ModelResponsePart
"""A piece of an answer."""

Turn = TurnPart | Sequence[TurnPart] | ModelResponse | BaseException
"""What the model does when it is asked: it says something, or the call fails."""

TurnFunction = (
    Callable[[list[ModelMessage]], Turn | Awaitable[Turn]]
    | Callable[[list[ModelMessage], ModelRequestParameters], Turn | Awaitable[Turn]]
)
"""Decides when it is asked, from the conversation and from what the model is offered."""

UsageFunction = Callable[[Sequence[ModelMessage], ModelResponse], tuple[int, int]]


class ScriptedCall(NamedTuple):
    """What a scripted model was asked once."""

    turn: int
    """Which turn of the script it took, from 1; 0: it was asked for a summary of the conversation."""
    message_count: int
    """How many messages it was sent."""
    tool_names: list[str]
    """The tools that it was offered; not the one for the answer."""
    instructions: str
    last_message: ModelMessage
    """The newest message."""


class ScriptedModel(Model[None]):
    """A model of the model library that answers by a script.

    Give it to an agent, to ``@llm_step``, or to ``Runner(model=...)``::

        ScriptedModel([call("web_search", query="entanglement"), "Two particles share one state."])

    A turn is a text; ``call("tool", argument=...)``; ``answer(...)``, for an agent with an ``output_type``; a list of
    these; an exception, which the call raises however often it is repeated; or a function that returns one of all
    these, async or not, from the messages so far (and, if it takes two arguments, the library's
    ``ModelRequestParameters``). A fault that passes is ``lambda _: fault if current_step().attempt == 1 else "text"``.

    Args:
        script: the turns of a conversation.
        name: the model's name; a name that ``genai-prices`` knows, with its provider, gives answers a price.
        provider: the provider's name.
        summary: what it does when it is asked to summarise a conversation that became too long: a turn, too.
        usage: input and output tokens of every call, or a function of the messages and the answer that tells them; a
            token for every four characters unless given.
        word_delay: the wait before each word of an answer that is requested as a stream.
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
        """What it was asked in this process, in order."""
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
        number, before = (
            (0, 0) if is_summary_request(messages) else (1 + count_answers(messages), self._count_earlier_turns())
        )
        number += before
        self.calls.append(_record_call(number, messages, offered))
        if number > len(self.script) and not (before and callable(self.script[-1])):
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
        """The same, word by word."""
        response = await self.request(messages, model_settings, model_request_parameters)
        yield _ScriptedStream(model_request_parameters, response, self._word_delay_s)

    def _count_earlier_turns(self) -> int:
        """How many turns of the script earlier ``@llm_step``s of the run have taken."""
        before = prior_calls.get()
        if before is None:
            return 0
        if model_override.get() is self:
            return before.run_count
        return before.model_count if before.model is self else 0

    def _count_tokens(self, messages: Sequence[ModelMessage], response: ModelResponse) -> tuple[int, int]:
        if callable(self._usage):
            return self._usage(messages, response)
        if self._usage is not None:
            return self._usage
        return _count_input_tokens(messages), _estimate_tokens(response)


@dataclass
class _ScriptedStream(StreamedResponse):
    """An answer, word by word."""

    response: ModelResponse
    word_delay_s: float

    def get(self) -> ModelResponse:
        """The whole answer, as it is without a stream."""
        return self.response

    async def close_stream(self) -> None:
        """There is nothing to close."""

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
        """It has no address."""
        return None

    @property
    def timestamp(self) -> datetime:
        """When the answer was given."""
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
    given = (messages, offered)[: len(inspect.signature(function).parameters)]
    decided = cast(Callable[..., Any], function)(*given)
    return await decided if inspect.isawaitable(decided) else decided


def _build_response(number: int, turn: TurnPart | Sequence[TurnPart], offered: ModelRequestParameters) -> ModelResponse:
    pieces = turn if isinstance(turn, Sequence) and not isinstance(turn, str) else [turn]
    parts: list[ModelResponsePart] = []
    for piece in pieces:
        if isinstance(piece, str):
            parts.append(TextPart(piece))
        elif isinstance(piece, ToolCall | StructuredAnswer):
            made = piece if isinstance(piece, ToolCall) else _to_tool_call(piece, offered)
            calls = 1 + sum(isinstance(part, ToolCallPart) for part in parts)
            parts.append(ToolCallPart(made.tool, made.arguments, tool_call_id=f"call_{number}_{calls}"))
        else:
            parts.append(piece)
    finish = "tool_call" if any(isinstance(part, ToolCallPart) for part in parts) else "stop"
    return ModelResponse(parts, timestamp=_RESPONSE_TIME, finish_reason=finish)


def _to_tool_call(answer: StructuredAnswer, offered: ModelRequestParameters) -> ToolCall:
    """A structured answer is the call of a tool that stands for it; what is no object is wrapped in one."""
    if not offered.output_tools:
        raise UsageError(
            f"the script has answer({answer.value!r}), but a text is wanted: who asks has no `output_type`, or `str`"
        )
    tool = offered.output_tools[0]
    key = tool.outer_typed_dict_key
    return ToolCall(tool.name, answer.value if key is None else {key: answer.value})


def _to_plain(value: Any) -> Any:
    return to_jsonable_python(value)


def _count_input_tokens(messages: Sequence[ModelMessage]) -> int:
    """What all of the messages come to; an earlier answer tells it of those before it."""
    older = 1 + count_kept(messages)  # an answer from before a compaction tells it of what is not there any more
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
    said: list[str] = []
    for part in message.parts:
        text = str(getattr(part, "content", part))
        said.append(f"{part.part_kind} {text if len(text) <= 200 else f'{text[:200]}…'!r}")
    return ", ".join(said)

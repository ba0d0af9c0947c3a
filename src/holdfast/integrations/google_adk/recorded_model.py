"""Model calls as recorded steps, whichever class of the framework makes them.

The framework calls ``BaseLlm.generate_content_async``. A durable model is the same object, whose class is replaced by a
subclass that records this call (``method_override``). What the model's own class calls in turn, such as that of a base
class or of a fallback model, is a part of the call.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, cast

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from holdfast.engine.program_context import find_program
from holdfast.integrations.google_adk.method_override import override_method
from holdfast.integrations.google_adk.reproducible_values import advance_clock, get_recording_time
from holdfast.integrations.model_call import AnswerCodec, ModelAnswer, ModelInput, record_model_stream
from holdfast.reports.recorded_reply import ToolCallReport
from holdfast.services.model_prices import TokenCounts

_PROVIDERS = {
    "AnthropicLlm": "anthropic",
    "ApigeeLlm": "google",
    "Claude": "anthropic",
    "Gemini": "google",
    "Gemma": "google",
    "OpenAILlm": "openai",
    "OpenAIResponsesLlm": "openai",
}
"""By the name of a model's class, or of a base class of it, the provider that the price list knows."""
_UNSENT_SETTINGS = {"system_instruction", "http_options", "labels"}
"""Parts of the configuration that do not influence the answer, or are a message here."""


def make_model_durable(llm: object) -> None:
    """Let the calls of this model be recorded when a program makes them."""
    if isinstance(llm, BaseLlm):
        override_method(llm, "generate_content_async", _make_method)


def _make_method(cls: type[BaseLlm]) -> Any:
    def generate_content_async(
        self: BaseLlm, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse]:
        responses = cls.generate_content_async(self, llm_request, stream)
        return responses if find_program() is None else _record(self, llm_request, responses, stream=stream)

    return generate_content_async


async def _record(
    llm: BaseLlm, request: LlmRequest, responses: AsyncGenerator[LlmResponse], *, stream: bool
) -> AsyncGenerator[LlmResponse]:
    codec = _ResponseCodec()
    recorded = record_model_stream(_make_input(llm, request, stream=stream), codec, lambda: codec.hold_last(responses))
    async with aclosing(responses), aclosing(recorded):
        async for response in recorded:
            if codec.recorded_at is not None:
                advance_clock(codec.recorded_at)
            yield response


class _ResponseCodec(AnswerCodec[list[LlmResponse]]):
    """The responses of one call: the parts of a stream, and the complete ones."""

    def __init__(self) -> None:
        self.recorded_at: float | None = None
        self._last: LlmResponse | None = None
        self._has_parts = False

    async def hold_last(self, responses: AsyncGenerator[LlmResponse]) -> AsyncGenerator[LlmResponse]:
        """The responses. A complete one is held back until it is known whether it is the last.

        The framework executes the tool calls of a complete response before it reads on.
        """
        held: LlmResponse | None = None
        async for response in responses:
            if held is not None:
                yield held
            held = None
            if response.partial:
                self._has_parts = True
                yield response
            else:
                held = response
        if held is not None:
            self._last = held
            yield held

    def is_last(self, event: LlmResponse) -> bool:
        return event is self._last

    def get_text(self, event: LlmResponse) -> str:
        return "" if self._has_parts and not event.partial else _get_text(event, is_thought=False)

    def dump(self, answer: list[LlmResponse]) -> Any:
        self.recorded_at = get_recording_time()
        responses = [one.model_dump(mode="json", exclude_none=True) for one in answer]
        return {"at": self.recorded_at, "responses": responses}

    def load(self, data: Any) -> list[LlmResponse]:
        self.recorded_at = data["at"]
        return _RecordedResponses(data["responses"])

    def describe(self, answer: list[LlmResponse]) -> ModelAnswer:
        complete = [one for one in answer if not one.partial] or answer
        calls = [call for one in complete for call in _get_calls(one)]
        reason = next((one.finish_reason for one in reversed(answer) if one.finish_reason is not None), None)
        return ModelAnswer(
            "".join(_get_text(one, is_thought=False) for one in complete),
            [ToolCallReport(make_call_id(call), call.name or "", call.args or {}) for call in calls],
            _get_tokens(answer),
            "".join(_get_text(one, is_thought=True) for one in complete),
            next((one.model_version for one in reversed(answer) if one.model_version), ""),
            None if reason is None else reason.value.lower(),
        )


class _RecordedResponses(list[LlmResponse]):
    """Responses that are decoded when they are read: a call that has just been made has its own."""

    def __init__(self, data: list[Any]) -> None:
        super().__init__()
        self._data = data

    def __iter__(self) -> Iterator[LlmResponse]:
        return (LlmResponse.model_validate(one) for one in self._data)


def _get_text(response: LlmResponse, *, is_thought: bool) -> str:
    parts = response.content.parts or () if response.content else ()
    return "".join(part.text for part in parts if part.text and bool(part.thought) is is_thought)


def _get_calls(response: LlmResponse) -> Iterator[types.FunctionCall]:
    for part in response.content.parts or () if response.content else ():
        if part.function_call is not None:
            yield part.function_call


def _get_tokens(answer: list[LlmResponse]) -> TokenCounts | None:
    used = next((one.usage_metadata for one in reversed(answer) if one.usage_metadata is not None), None)
    if used is None:
        return None
    return TokenCounts(
        (used.prompt_token_count or 0) + (used.tool_use_prompt_token_count or 0),
        (used.candidates_token_count or 0) + (used.thoughts_token_count or 0),
        used.cached_content_token_count or 0,
    )


# The request


def make_call_id(call: types.FunctionCall) -> str:
    """An id for a call that follows from its content: those of the framework and of providers differ each time."""
    return _make_id(_format_call(call))


def _make_id(formatted_call: str) -> str:
    return f"call_{hashlib.blake2b(formatted_call.encode(), digest_size=6).hexdigest()}"


def _format_call(call: types.FunctionCall) -> str:
    return f"{call.name}({_encode_json(call.args or {})})"


def _make_input(llm: BaseLlm, request: LlmRequest, *, stream: bool) -> ModelInput:
    config = request.config
    messages: list[dict[str, Any]] = []
    if (instruction := cast(Any, config).system_instruction) is not None:
        messages.append({"role": "system", "content": _to_text(instruction)})
    call_ids = _CallIds()
    for content in request.contents:
        messages += _make_messages(content, call_ids)
    settings = _dump(config, exclude=_UNSENT_SETTINGS)
    if stream:
        settings["stream"] = True
    return ModelInput(_get_model_name(llm, request), messages, settings, config.max_output_tokens or 0)


def _get_model_name(llm: BaseLlm, request: LlmRequest) -> str:
    """The model with its provider."""
    name = (request.model or llm.model).rpartition("/models/")[2]
    names = [cls.__name__ for cls in type(llm).__mro__]
    if "LiteLlm" in names:
        provider, _, model = name.partition("/")
        return f"{provider}:{model}" if model else f"openai:{name}"
    provider = next((_PROVIDERS[one] for one in names if one in _PROVIDERS), names[0].lower())
    return f"{provider}:{name.rpartition(':')[2]}"


class _CallIds:
    """The ids of the calls of a conversation, for their results."""

    def __init__(self) -> None:
        self._by_id: dict[str, str] = {}
        self._by_name: dict[str, list[str]] = {}
        self._counts: Counter[str] = Counter()

    def add(self, call: types.FunctionCall, formatted_call: str) -> str:
        """The id of a call."""
        made = _make_id(formatted_call)
        if call.id:
            self._by_id[call.id] = made
        self._by_name.setdefault(call.name or "", []).append(made)
        return made

    def find(self, result: types.FunctionResponse) -> str:
        """The id of the call that has this result. Without ids, results have the order of the calls."""
        if result.id and (known := self._by_id.get(result.id)) is not None:
            return known
        name = result.name or ""
        calls, number = self._by_name.get(name, []), self._counts[name]
        self._counts[name] += 1
        return calls[number] if number < len(calls) else f"{name}-{number}"


def _make_messages(content: types.Content, call_ids: _CallIds) -> Iterator[dict[str, Any]]:
    """The messages that one content stands for."""
    role = "assistant" if content.role == "model" else "user"
    for part in content.parts or ():
        if part.function_call is not None:
            text = _format_call(part.function_call)
            yield {"role": "assistant", "content": text, "tool_call_id": call_ids.add(part.function_call, text)}
        elif (result := part.function_response) is not None:
            message: dict[str, Any] = {"role": "tool", "name": result.name, "tool_call_id": call_ids.find(result)}
            yield (
                message
                | {"content": _to_text(result.response)}
                | ({"parts": _dump(result.parts)} if result.parts else {})
            )
        elif part.text is not None and part.inline_data is None:
            yield {"role": role, "content": part.text} | ({"thought": True} if part.thought else {})
        else:
            yield {"role": role, "content": _dump(part)}


def _to_text(value: Any) -> str:
    """System instructions and results as text: they may also be contents, parts, or other data."""
    return value if isinstance(value, str) else _encode_json(value)


def _dump(value: Any, exclude: set[str] | None = None) -> Any:
    """Data of the framework as JSON data. What is no data, such as the class of an output, is described."""
    return to_jsonable_python(
        value, exclude=exclude, exclude_none=True, by_alias=False, bytes_mode="base64", fallback=_describe_object
    )


_encode_json = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=_dump).encode


def _describe_object(value: Any) -> Any:
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value.model_json_schema()
    return str(getattr(cast(Any, value), "__qualname__", type(cast(Any, value)).__qualname__))

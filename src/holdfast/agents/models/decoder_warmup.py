"""Loads everything that decoding an answer needs, before the first request is sent.

The SDKs import modules and build the schemas of answers when the first answer arrives. That took up to two seconds
between the provider's last byte and the record: a process that died in between had paid for an answer and lost it. So,
in a thread and before the first request of a process, a sample answer of the same protocol passes through the SDK, the
model library, the price list, and the codec of the record. Nothing leaves the process.

This only saves time. An error here is ignored, because the request itself will report it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.agents.models.model_resolution import unwrap_models
from holdfast.agents.models.prices import usage_from_response
from holdfast.agents.models.reply import REPLY_CODEC, Reply
from holdfast.agents.models.request import can_stream, request

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model

log = logging.getLogger("holdfast.agents")

_FAKE_URL = "http://made-up.invalid"
"""The address of the sample requests, which are never sent."""

_warmed_up: set[tuple[str, bool]] = set()
"""The protocols that this process has decoded, and whether as streams."""
_lock = threading.Lock()


async def warm_up_decoder(model: Model, *, stream: bool) -> None:
    """Load what decoding the answers of this model needs, if its protocol is known and this was not done yet."""
    for inner in unwrap_models(model):
        protocol = _get_protocol(inner)
        is_streamed = stream and can_stream(inner)
        if protocol and (protocol, is_streamed) not in _warmed_up:
            await asyncio.to_thread(_decode_sample, protocol, is_streamed)


def _get_protocol(model: Any) -> str:
    """The protocol of its answers; ``""`` if it is unknown."""
    names = {cls.__name__ for cls in type(model).__mro__}
    return next((protocol for name, protocol in _PROTOCOL_BY_CLASS.items() if name in names), "")


_PROTOCOL_BY_CLASS = {"OpenAIChatModel": "chat", "OpenAIResponsesModel": "responses", "AnthropicModel": "anthropic"}
"""By the library's class."""


def _decode_sample(protocol: str, stream: bool) -> None:
    """Decode a sample on an event loop of its own. Runs in a thread; concurrent callers wait."""
    from opentelemetry import trace

    with _lock:
        if (protocol, stream) in _warmed_up:
            return
        _warmed_up.add((protocol, stream))
        http_log = logging.getLogger("httpx2")
        http_log.addFilter(_is_real_request)
        try:
            with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False))):  # no traces
                asyncio.run(_send_sample_request(protocol, stream))
        except Exception:
            log.debug("a made-up answer of %s could not be decoded", protocol, exc_info=True)
        finally:
            http_log.removeFilter(_is_real_request)


def _is_real_request(record: logging.LogRecord) -> bool:
    return _FAKE_URL not in record.getMessage()


async def _send_sample_request(protocol: str, stream: bool) -> None:
    import httpx2
    from pydantic_ai.messages import ModelRequest, UserPromptPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import ToolDefinition

    tool = ToolDefinition(name="look", parameters_json_schema={"type": "object", "properties": {}})
    message = ModelRequest([UserPromptPart("Hello")])
    parameters = ModelRequestParameters(function_tools=[tool])
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(partial(_make_http_response, protocol))) as client:
        model = _make_model(protocol, client)
        # Without a limit, the library streams Anthropic's whole answers.
        for settings in (ModelSettings(), ModelSettings(max_tokens=100)):
            answer = await request(model, [message], settings, parameters, (lambda _: None) if stream else None)
            REPLY_CODEC.round_trip(Reply(answer, "made up", usage_from_response(answer)), "a made-up answer")


def _make_http_response(protocol: str, http_request: httpx2.Request) -> httpx2.Response:
    from httpx2 import Response

    whole, events = _SAMPLE_ANSWERS[protocol]()
    if not json.loads(http_request.content).get("stream"):
        return Response(200, json=whole)
    lines = [f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n" for event in events]
    done = "data: [DONE]\n\n" if protocol == "chat" else ""
    return Response(200, text="".join(lines) + done, headers={"content-type": "text/event-stream"})


def _make_model(protocol: str, client: httpx2.AsyncClient) -> Model:
    """A model that sends its requests to this client."""
    options: dict[str, Any] = {"base_url": _FAKE_URL, "api_key": "none", "http_client": client}
    if protocol == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel("claude-sonnet-5", provider=AnthropicProvider(**options))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIChatModel if protocol == "chat" else OpenAIResponsesModel
    return kind("gpt-4o", provider=OpenAIProvider(**options))


# Sample answers: a thought, a text, and a tool call, with all fields of real ones, each of which has a schema

_Json = dict[str, Any]
_SampleAnswers = tuple[_Json, list[_Json]]
"""A whole answer, and the events of the same answer as a stream."""


def _make_chat_answers() -> _SampleAnswers:
    call: _Json = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    usage = {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "total_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    common = {"id": "made-up", "created": 1, "model": "gpt-4o", "service_tier": "default", "system_fingerprint": "fp"}
    message: _Json = {"role": "assistant", "content": "Hello", "refusal": None, "annotations": [], "tool_calls": [call]}
    choice: _Json = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    whole: _Json = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
    deltas: list[tuple[_Json, str | None]] = [
        ({"role": "assistant", "content": "Hello", "refusal": None}, None),
        ({"tool_calls": [{"index": 0, **call}]}, None),
        ({}, "tool_calls"),
    ]
    chunk = {**common, "object": "chat.completion.chunk"}
    events: list[_Json] = [
        {**chunk, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}], "usage": None}
        for delta, end in deltas
    ]
    return whole, [*events, {**chunk, "choices": [], "usage": usage}]


def _make_responses_answers() -> _SampleAnswers:
    text: _Json = {"type": "output_text", "text": "Hello", "annotations": []}
    message: _Json = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    call = {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1", "name": "look"}
    call["arguments"] = "{}"
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    common: _Json = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-4o"}
    common |= {"parallel_tool_calls": True, "tool_choice": "auto", "temperature": 1.0, "top_p": 1.0, "metadata": {}}
    common |= {"tools": [{"type": "function", "name": "look", "parameters": {}, "strict": False, "description": ""}]}
    common |= {"text": {"format": {"type": "text"}}, "reasoning": {"effort": None, "summary": None}, "store": True}
    common |= {"truncation": "disabled", "background": False, "service_tier": "default"}
    common |= dict.fromkeys(["error", "incomplete_details", "instructions", "max_output_tokens", "user"])
    common |= dict.fromkeys(["previous_response_id", "usage"])
    thought: _Json = {"id": "rs_1", "type": "reasoning", "summary": []}
    whole: _Json = {**common, "status": "completed", "output": [thought, message, call], "usage": usage}
    place, of_call = {"item_id": "msg_1", "output_index": 1}, {"item_id": "fc_1", "output_index": 2}
    in_text = {**place, "content_index": 0}
    begun: _Json = {**common, "status": "in_progress", "output": []}
    events: list[_Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": thought},
        {"type": "response.output_item.done", "output_index": 0, "item": thought},
        {"type": "response.output_item.added", "output_index": 1, "item": {**message, "content": []}},
        {"type": "response.content_part.added", **in_text, "part": {**text, "text": ""}},
        {"type": "response.output_text.delta", **in_text, "delta": "Hello", "logprobs": []},
        {"type": "response.output_text.done", **in_text, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", **in_text, "part": text},
        {"type": "response.output_item.done", "output_index": 1, "item": message},
        {"type": "response.output_item.added", "output_index": 2, "item": {**call, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", **of_call, "delta": "{}"},
        {"type": "response.function_call_arguments.done", **of_call, "name": "look", "arguments": "{}"},
        {"type": "response.output_item.done", "output_index": 2, "item": call},
        {"type": "response.completed", "response": whole},
    ]
    return whole, [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _make_anthropic_answers() -> _SampleAnswers:
    usage: _Json = {"input_tokens": 1, "output_tokens": 1, "cache_read_input_tokens": 0}
    usage |= {"cache_creation_input_tokens": 0, "service_tier": "standard"}
    common = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5", "stop_sequence": None}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "made up"}
    call: _Json = {"type": "tool_use", "id": "call_1", "name": "look", "input": {}}
    text = {"type": "text", "text": "Hello"}
    whole: _Json = {**common, "content": [thought, text, call], "stop_reason": "tool_use", "usage": usage}
    events: list[_Json] = [
        {"type": "message_start", "message": {**common, "content": [], "stop_reason": None, "usage": usage}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {**thought, "thinking": "", "signature": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "made up"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2, "content_block": call},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]
    return whole, events


_SAMPLE_ANSWERS: dict[str, Callable[[], _SampleAnswers]] = {
    "chat": _make_chat_answers,
    "responses": _make_responses_answers,
    "anthropic": _make_anthropic_answers,
}

"""What readers of a run see of the requests and answers of each provider's protocol."""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

import pytest

from holdfast.integrations import ModelAnswer
from holdfast.integrations.http.endpoints import find_protocols
from holdfast.integrations.http.event_format import EventSplitter, get_event_format
from holdfast.integrations.http.protocol import ModelProtocol, ReadRequest


class Exchange(NamedTuple):
    """What a provider was asked and answered."""

    path: str
    request: dict[str, Any]
    answer: dict[str, Any]
    events: bytes
    content_type: str = "text/event-stream"


def sse(*events: dict[str, Any], end: bytes = b"") -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + end


def frame(kind: str, payload: dict[str, Any]) -> bytes:
    """A frame of Amazon's event stream. Its checksums are not checked."""
    name, value, body = b":event-type", kind.encode(), json.dumps(payload).encode()
    headers = bytes([len(name)]) + name + b"\x07" + len(value).to_bytes(2) + value
    length = 16 + len(headers) + len(body)
    return length.to_bytes(4) + len(headers).to_bytes(4) + bytes(4) + headers + body + bytes(4)


ASKED = [{"role": "user", "content": "Weather?"}]
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}
CLAUDE_ANSWER = {
    "type": "message", "model": "claude-sonnet-4-5", "stop_reason": "tool_use",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"city": "Oslo"}},
    ],
    "usage": {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 30},
}  # fmt: skip
CLAUDE_EVENTS = [
    {"type": "message_start", "message": {"model": "claude-sonnet-4-5", "usage": {"input_tokens": 10,
     "cache_read_input_tokens": 90, "output_tokens": 1}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "I look."}},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "c1", "name": "look"}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"city": '}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '"Oslo"}'}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 30}},
    {"type": "message_stop"},
]  # fmt: skip
GEMINI_PARTS: list[dict[str, Any]] = [
    {"text": "Hm.", "thought": True}, {"text": "I look."},
    {"functionCall": {"id": "c1", "name": "look", "args": {"city": "Oslo"}}},
]  # fmt: skip
GEMINI_USAGE = {
    "promptTokenCount": 100, "candidatesTokenCount": 20, "thoughtsTokenCount": 10, "cachedContentTokenCount": 90
}  # fmt: skip


def make_gemini(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, **more}],
        "modelVersion": "gemini-2.5-flash",
    }


EXCHANGES = {
    "chat": Exchange(
        "/v1/chat/completions",
        {"model": "gpt-4o", "messages": ASKED, "temperature": 0, "max_tokens": 50},
        {
            "model": "gpt-4o",
            "choices": [{"message": {"content": "I look.", "reasoning": "Hm.", "tool_calls": [CHAT_CALL]},
                         "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 90}},
        },
        sse(
            {"model": "gpt-4o", "choices": [{"delta": {"role": "assistant", "reasoning": "Hm."}}]},
            {"choices": [{"delta": {"content": "I look."}}]},
            {"choices": [{"delta": {"tool_calls": [{"index": 0, **CHAT_CALL}]}}]},
            {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
            {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 30,
                                      "prompt_tokens_details": {"cached_tokens": 90}}},
            end=b"data: [DONE]\n\n",
        ),
    ),
    "anthropic": Exchange(
        "/v1/messages",
        {"model": "claude-sonnet-4-5", "messages": ASKED, "temperature": 0, "max_tokens": 50},
        CLAUDE_ANSWER,
        sse(*CLAUDE_EVENTS),
    ),
    "gemini": Exchange(
        "/v1beta/models/gemini-2.5-flash:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "Weather?"}]}],
         "generationConfig": {"temperature": 0, "maxOutputTokens": 50}},
        {**make_gemini(*GEMINI_PARTS, finishReason="STOP"), "usageMetadata": GEMINI_USAGE},
        sse(
            make_gemini(GEMINI_PARTS[0]),
            make_gemini(GEMINI_PARTS[1]),
            {**make_gemini(GEMINI_PARTS[2], finishReason="STOP"), "usageMetadata": GEMINI_USAGE},
        ),
    ),
    "converse": Exchange(
        "/model/anthropic.claude-v1%3A0/converse",
        {"messages": ASKED, "inferenceConfig": {"maxTokens": 50, "temperature": 0}},
        {
            "output": {"message": {"content": [
                {"text": "I look."}, {"toolUse": {"toolUseId": "c1", "name": "look", "input": {"city": "Oslo"}}},
            ]}},
            "stopReason": "tool_use", "usage": {"inputTokens": 10, "cacheReadInputTokens": 90, "outputTokens": 30},
        },
        frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "I look."}})
        + frame("contentBlockStart", {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "c1",
                                                                                    "name": "look"}}})
        + frame("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"toolUse": {"input": '{"city": "Oslo"}'}}})
        + frame("messageStop", {"stopReason": "tool_use"})
        + frame("metadata", {"usage": {"inputTokens": 10, "cacheReadInputTokens": 90, "outputTokens": 30}}),
        "application/vnd.amazon.eventstream",
    ),
    "bedrock-claude": Exchange(
        "/model/anthropic.claude-v1%3A0/invoke",
        {"anthropic_version": "bedrock-2023-05-31", "messages": ASKED, "max_tokens": 50},
        CLAUDE_ANSWER,
        b"".join(
            frame("chunk", {"bytes": base64.b64encode(json.dumps(event).encode()).decode()}) for event in CLAUDE_EVENTS
        ),
        "application/vnd.amazon.eventstream",
    ),
    "ollama": Exchange(
        "/api/chat",
        {"model": "llama3", "messages": ASKED, "options": {"num_predict": 50}},
        {"model": "llama3", "message": {"role": "assistant", "content": "I look.", "thinking": "Hm.",
         "tool_calls": [{"function": {"name": "look", "arguments": {"city": "Oslo"}}}]},
         "done": True, "done_reason": "stop", "prompt_eval_count": 100, "eval_count": 30},
        b"".join(json.dumps(line).encode() + b"\n" for line in (
            {"model": "llama3", "message": {"content": "I ", "thinking": "Hm."}, "done": False},
            {"model": "llama3", "message": {"content": "look.", "tool_calls": [
                {"function": {"name": "look", "arguments": {"city": "Oslo"}}}]}, "done": False},
            {"model": "llama3", "message": {"content": ""}, "done": True, "done_reason": "stop",
             "prompt_eval_count": 100, "eval_count": 30},
        )),
        "application/x-ndjson",
    ),
    "cohere": Exchange(
        "/v2/chat",
        {"model": "command-a", "messages": ASKED, "max_tokens": 50},
        {"message": {"content": [{"type": "text", "text": "I look."}], "tool_plan": "Hm.", "tool_calls": [CHAT_CALL]},
         "finish_reason": "TOOL_CALL", "usage": {"billed_units": {"input_tokens": 100, "output_tokens": 30}}},
        sse(
            {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": "Hm."}}},
            {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "I look."}}}},
            {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": CHAT_CALL}}},
            {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": {
                "billed_units": {"input_tokens": 100, "output_tokens": 30}}}},
        ),
    ),
}  # fmt: skip


def find_protocol(path: str, body: dict[str, Any]) -> ModelProtocol:
    return next(one for one in find_protocols(path) if one.accepts(body))


def split(exchange: Exchange, size: int) -> list[Any]:
    """The events, if the network delivers so many bytes at a time."""
    event_format = get_event_format(exchange.content_type)
    splitter = EventSplitter(event_format)
    data = exchange.events
    parts = [splitter.add(data[place : place + size]) for place in range(0, len(data), size)]
    assert b"".join([*parts, splitter.finish()]) == data
    return [event for part in parts for event in event_format.parse(part)]


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES.keys())
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_streamed_answer_says_what_the_whole_one_says(exchange: Exchange, size: int):
    protocol = find_protocol(exchange.path, exchange.request)
    events = split(exchange, size)
    whole, streamed = protocol.read_answer(exchange.answer), protocol.read_events(events)
    assert whole == streamed
    check_answer(whole)
    assert "".join(map(protocol.get_text, events)) == "I look."
    assert not any(map(protocol.is_error, events))
    if "generateContent" not in exchange.path:  # its streams just end
        assert [protocol.is_last(event) for event in events] == [False] * (len(events) - 1) + [True]


def check_answer(answer: ModelAnswer) -> None:
    assert answer.text == "I look."
    assert answer.thinking in ("Hm.", "")
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("look", {"city": "Oslo"})]
    assert answer.tokens is not None
    assert (answer.tokens.input_tokens, answer.tokens.output_tokens) == (100, 30)
    assert answer.tokens.cache_read_tokens in (90, 0)
    assert answer.finish_reason in ("tool_call", "stop")


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES.keys())
def test_a_request_has_its_model_its_messages_and_its_limit(exchange: Exchange):
    read = find_protocol(exchange.path, exchange.request).read_request(exchange.request, exchange.path)
    model = exchange.request.get("model") or exchange.path.split("/")[-2 if "/model/" in exchange.path else -1]
    assert read.model == model.replace("%3A", ":").partition(":generate")[0]
    assert read.messages == ASKED
    assert read.max_output_tokens == 50


def read(path: str, body: dict[str, Any]) -> ReadRequest:
    return find_protocol(path, body).read_request(body, path)


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        ("/v1/messages", {"messages": [], "system": "a", "model": "m"}, {"messages": [], "system": "b", "model": "m"}),
        ("/responses", {"input": "a", "model": "m"}, {"input": [{"role": "user", "content": "b"}], "model": "m"}),
        (
            "/responses",
            {"input": [{"type": "function_call_output", "call_id": "1", "output": "a"}], "model": "m"},
            {"input": [{"type": "function_call_output", "call_id": "1", "output": "b"}], "model": "m"},
        ),
        ("/responses", {"input": [{"type": "reasoning", "id": "a"}]}, {"input": [{"type": "reasoning", "id": "b"}]}),
        ("/x/models/g:generateContent", {"contents": "a"}, {"contents": "b"}),
        (
            "/x/models/g:generateContent",
            {"contents": [{"parts": [{"functionResponse": {"name": "f", "response": {"a": 1}}}]}]},
            {"contents": [{"parts": [{"functionResponse": {"name": "f", "response": {"a": 2}}}]}]},
        ),
        ("/x/models/g:embedContent", {"content": {"parts": [{"text": "a"}]}}, {"content": {"parts": [{"text": "b"}]}}),
        (
            "/x/models/g:embedContent",
            {"content": {"parts": ["a"]}, "dims": 1},
            {"content": {"parts": ["a"]}, "dims": 2},
        ),
        ("/v1/embeddings", {"input": ["a"], "model": "m"}, {"input": ["b"], "model": "m"}),
        ("/api/generate", {"model": "m", "prompt": "p", "system": "a"}, {"model": "m", "prompt": "p", "system": "b"}),
        ("/model/m/converse", {"messages": [], "system": [{"text": "a"}]}, {"messages": [], "system": [{"text": "b"}]}),
        ("/model/m/invoke", {"inputText": "a"}, {"inputText": "b"}),
    ],
)
def test_requests_that_differ_are_different_calls(path: str, one: dict[str, Any], other: dict[str, Any]):
    assert read(path, one) != read(path, other)
    assert read(path, one) == read(path, json.loads(json.dumps(one)))


def test_tool_results_are_messages_of_their_own():
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "rain"}
    message = {"role": "user", "content": [result, {"type": "text", "text": "And?"}]}
    messages = read("/v1/messages", {"model": "m", "messages": [message]}).messages
    assert [(one["role"], one.get("tool_call_id")) for one in messages] == [("tool", "c1"), ("user", None)]
    found = {"functionResponse": {"id": "c1", "name": "look", "response": {"result": "rain"}}}
    messages = read("/x/models/g:generateContent", {"contents": [{"role": "user", "parts": [found]}]}).messages
    assert [(one["role"], one["tool_call_id"], one["content"]) for one in messages] == [
        ("tool", "c1", {"result": "rain"})
    ]


@pytest.mark.parametrize(
    ("path", "body", "event"),
    [
        ("/v1/chat/completions", {"messages": []}, {"error": {"message": "Overloaded"}}),
        ("/v1/responses", {"input": ""}, {"type": "response.failed", "response": {}}),
        ("/v1/messages", {"messages": []}, {"type": "error", "error": {"type": "overloaded_error"}}),
        ("/model/m/converse-stream", {"messages": []}, {"type": "throttlingException", "payload": {}}),
    ],
)
def test_a_provider_that_breaks_off_is_noticed(path: str, body: dict[str, Any], event: dict[str, Any]):
    assert find_protocol(path, body).is_error(event)


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES.keys())
@pytest.mark.parametrize("strange", [None, 1, "text", [], [None, 1], {"content": 1}, {"choices": [1], "delta": None}])
def test_answers_of_another_form_are_read_as_empty(exchange: Exchange, strange: Any):
    protocol = find_protocol(exchange.path, exchange.request)
    names = ("choices", "content", "message", "output", "usage", "candidates", "payload", "delta", "type")
    body = dict.fromkeys(names, strange)
    assert protocol.read_answer(body).tool_calls == []
    assert protocol.read_events([strange, body]).tool_calls == []
    assert isinstance(protocol.get_text(strange), str)

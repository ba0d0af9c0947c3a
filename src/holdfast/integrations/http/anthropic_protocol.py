"""Anthropic's Messages, also at Vertex AI and Bedrock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from holdfast.integrations.http.protocol import (
    Json,
    ModelProtocol,
    ReadRequest,
    ToolCallParts,
    count_tokens,
    get_count,
    get_dict,
    get_list,
    get_text,
    split_body,
)
from holdfast.integrations.model_call import ModelAnswer
from holdfast.reports.recorded_reply import ToolCallReport
from holdfast.services.model_prices import TokenCounts

_MODEL_IN_PATH = re.compile(r"/models?/([^/:]+)")
_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_call",
    "refusal": "content_filter",
}


class Messages(ModelProtocol):
    """Messages."""

    provider = "anthropic"

    def accepts(self, body: Json) -> bool:
        return isinstance(body.get("messages"), list)

    def read_request(self, body: Json, path: str) -> ReadRequest:
        messages: list[dict[str, Any]] = []
        if system := body.get("system"):
            messages.append({"role": "system", "content": system})
        for message in get_list(body, "messages"):
            messages += _split_tool_results(message)
        found = _MODEL_IN_PATH.search(path)
        model = get_text(body, "model") or (unquote(found[1]) if found else "")
        return ReadRequest(model, messages, split_body(body, "messages", "system"), get_count(body, "max_tokens"))

    def is_streamed(self, body: Json, path: str) -> bool:
        return body.get("stream") is True or "streamRawPredict" in path

    def read_answer(self, body: Json) -> ModelAnswer:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCallReport] = []
        for block in get_list(body, "content"):
            kind = get_text(block, "type")
            if kind == "text":
                texts.append(get_text(block, "text"))
            elif kind == "thinking":
                thoughts.append(get_text(block, "thinking"))
            elif kind == "tool_use":
                calls.append(
                    ToolCallReport.from_raw(get_text(block, "name"), get_dict(block, "input"), get_text(block, "id"))
                )
        reason = get_text(body, "stop_reason")
        return ModelAnswer(
            "".join(texts),
            calls,
            _read_usage(get_dict(body, "usage")),
            "".join(thoughts),
            get_text(body, "model"),
            _FINISH_REASONS.get(reason, reason or None),
        )

    def read_events(self, events: Sequence[Any]) -> ModelAnswer:
        texts: list[str] = []
        thoughts: list[str] = []
        calls = ToolCallParts()
        usage: dict[str, Any] = {}
        model = reason = ""
        for event in events:
            kind = get_text(event, "type")
            if kind == "message_start":
                model = get_text(get_dict(event, "message"), "model")
                usage |= get_dict(event, "message", "usage")
            elif kind == "content_block_start":
                block = get_dict(event, "content_block")
                texts.append(get_text(block, "text"))
                if get_text(block, "type") == "tool_use":
                    calls.add(get_count(event, "index"), id=get_text(block, "id"), name=get_text(block, "name"))
            elif kind == "content_block_delta":
                delta = get_dict(event, "delta")
                texts.append(get_text(delta, "text"))
                thoughts.append(get_text(delta, "thinking"))
                if "partial_json" in delta:
                    calls.add(get_count(event, "index"), arguments=get_text(delta, "partial_json"))
            elif kind == "message_delta":
                reason = get_text(get_dict(event, "delta"), "stop_reason") or reason
                reported = get_dict(event, "usage")  # cumulative; what is not repeated here is in the first event
                usage |= {name: value for name, value in reported.items() if value is not None}
        return ModelAnswer(
            "".join(texts),
            calls.make_reports(),
            _read_usage(usage),
            "".join(thoughts),
            model,
            _FINISH_REASONS.get(reason, reason or None),
        )

    def get_text(self, event: Any) -> str:
        return get_text(get_dict(event, "delta"), "text") if get_text(event, "type") == "content_block_delta" else ""

    def is_last(self, event: Any) -> bool:
        return get_text(event, "type") == "message_stop"


MESSAGES = Messages()


def _split_tool_results(message: Any) -> list[dict[str, Any]]:
    """A message, with the results of tools in it as messages of their own."""
    role = get_text(message, "role")
    rest: list[Any] = []
    results: list[dict[str, Any]] = []
    for block in get_list(message, "content"):
        if get_text(block, "type") == "tool_result":
            results.append({"role": "tool", "tool_call_id": get_text(block, "tool_use_id"), **block})
        else:
            rest.append(block)
    if not results:
        return [message] if isinstance(message, dict) else [{"role": role, "content": message}]
    return [*results, *([{**message, "content": rest}] if rest else [])]


def _read_usage(usage: Json) -> TokenCounts | None:
    tokens = count_tokens(usage, "input_tokens", "output_tokens")
    if tokens is not None:  # Anthropic counts what is in the cache separately
        tokens.cache_read_tokens = get_count(usage, "cache_read_input_tokens")
        tokens.cache_write_tokens = get_count(usage, "cache_creation_input_tokens")
        tokens.input_tokens += tokens.cache_read_tokens + tokens.cache_write_tokens
    return tokens

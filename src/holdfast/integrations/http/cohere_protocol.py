"""Cohere's chat (version 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    join_texts,
    split_body,
)
from holdfast.integrations.model_call import ModelAnswer
from holdfast.reports.recorded_reply import ToolCallReport
from holdfast.services.model_prices import TokenCounts

_FINISH_REASONS = {"COMPLETE": "stop", "STOP_SEQUENCE": "stop", "MAX_TOKENS": "length", "TOOL_CALL": "tool_call"}


class _Chat(ModelProtocol):
    """``/v2/chat``."""

    provider = "cohere"

    def accepts(self, body: Json) -> bool:
        return isinstance(body.get("messages"), list)

    def read_request(self, body: Json, path: str) -> ReadRequest:
        messages, limit = get_list(body, "messages"), get_count(body, "max_tokens")
        return ReadRequest(get_text(body, "model"), messages, split_body(body, "messages"), limit)

    def read_answer(self, body: Json) -> ModelAnswer:
        message = get_dict(body, "message")
        calls: list[ToolCallReport] = []
        for call in get_list(message, "tool_calls"):
            function = get_dict(call, "function")
            arguments = get_text(function, "arguments")
            calls.append(ToolCallReport.from_raw(get_text(function, "name"), arguments, get_text(call, "id")))
        reason = get_text(body, "finish_reason")
        return ModelAnswer(
            join_texts(message.get("content")),
            calls,
            _read_usage(body),
            get_text(message, "tool_plan"),
            finish_reason=_FINISH_REASONS.get(reason, reason or None),
        )

    def read_events(self, events: Sequence[Any]) -> ModelAnswer:
        thoughts: list[str] = []
        calls = ToolCallParts()
        tokens: TokenCounts | None = None
        reason = ""
        for event in events:
            message = get_dict(event, "delta", "message")
            thoughts.append(get_text(message, "tool_plan"))
            if call := get_dict(message, "tool_calls"):
                function = get_dict(call, "function")
                name, arguments = get_text(function, "name"), get_text(function, "arguments")
                calls.add(get_count(event, "index"), id=get_text(call, "id"), name=name, arguments=arguments)
            if self.is_last(event):
                reason = get_text(get_dict(event, "delta"), "finish_reason")
                tokens = _read_usage(get_dict(event, "delta"))
        return ModelAnswer(
            "".join(map(self.get_text, events)),
            calls.make_reports(),
            tokens,
            "".join(thoughts),
            finish_reason=_FINISH_REASONS.get(reason, reason or None),
        )

    def get_text(self, event: Any) -> str:
        return get_text(get_dict(event, "delta", "message", "content"), "text")

    def is_last(self, event: Any) -> bool:
        return get_text(event, "type") == "message-end"


CHAT = _Chat()


def _read_usage(body: Json) -> TokenCounts | None:
    return count_tokens(get_dict(body, "usage", "billed_units"), "input_tokens", "output_tokens")

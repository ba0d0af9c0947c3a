"""Amazon Bedrock: Converse, which is the same for all models, and Anthropic's own protocol there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from holdfast.integrations.http.anthropic_protocol import Messages
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

_MODEL_IN_PATH = re.compile(r"/model/([^/]+)/")
_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_call",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}


class _Converse(ModelProtocol):
    """``converse`` and ``converse-stream``."""

    provider = "aws"

    def accepts(self, body: Json) -> bool:
        return isinstance(body.get("messages"), list)

    def read_request(self, body: Json, path: str) -> ReadRequest:
        system: list[dict[str, Any]] = [{"role": "system", "content": body["system"]}] if body.get("system") else []
        found = _MODEL_IN_PATH.search(path)
        return ReadRequest(
            unquote(found[1]) if found else "",
            [*system, *get_list(body, "messages")],
            split_body(body, "messages", "system"),
            get_count(get_dict(body, "inferenceConfig"), "maxTokens"),
        )

    def is_streamed(self, body: Json, path: str) -> bool:
        return path.endswith("converse-stream")

    def read_answer(self, body: Json) -> ModelAnswer:
        content = get_list(get_dict(body, "output", "message"), "content")
        calls: list[ToolCallReport] = []
        for block in content:
            if call := get_dict(block, "toolUse"):
                arguments = get_dict(call, "input")
                calls.append(ToolCallReport.from_raw(get_text(call, "name"), arguments, get_text(call, "toolUseId")))
        reason = get_text(body, "stopReason")
        return ModelAnswer(
            "".join(get_text(block, "text") for block in content),
            calls,
            _read_usage(get_dict(body, "usage")),
            finish_reason=_FINISH_REASONS.get(reason, reason or None),
        )

    def read_events(self, events: Sequence[Any]) -> ModelAnswer:
        calls = ToolCallParts()
        tokens: TokenCounts | None = None
        reason = ""
        for event in events:
            payload, index = get_dict(event, "payload"), get_count(get_dict(event, "payload"), "contentBlockIndex")
            if call := get_dict(payload, "start", "toolUse"):
                calls.add(index, id=get_text(call, "toolUseId"), name=get_text(call, "name"))
            if part := get_dict(payload, "delta", "toolUse"):
                calls.add(index, arguments=get_text(part, "input"))
            reason = get_text(payload, "stopReason") or reason
            tokens = _read_usage(get_dict(payload, "usage")) or tokens
        text = "".join(map(self.get_text, events))
        finish = _FINISH_REASONS.get(reason, reason or None)
        return ModelAnswer(text, calls.make_reports(), tokens, finish_reason=finish)

    def get_text(self, event: Any) -> str:
        return get_text(get_dict(event, "payload", "delta"), "text")

    def is_last(self, event: Any) -> bool:
        return get_text(event, "type") == "metadata"

    def is_error(self, event: Any) -> bool:
        return get_text(event, "type").endswith("Exception")


class _Invoke(Messages):
    """``invoke`` and ``invoke-with-response-stream`` of Anthropic's models."""

    provider = "aws"

    def accepts(self, body: Json) -> bool:
        return "anthropic_version" in body and super().accepts(body)

    def is_streamed(self, body: Json, path: str) -> bool:
        return path.endswith("response-stream")

    def is_error(self, event: Any) -> bool:
        return get_text(event, "type").endswith("Exception") or super().is_error(event)


CONVERSE = _Converse()
INVOKE = _Invoke()


def _read_usage(usage: Json) -> TokenCounts | None:
    tokens = count_tokens(usage, "inputTokens", "outputTokens")
    if tokens is not None:
        tokens.cache_read_tokens = get_count(usage, "cacheReadInputTokens")
        tokens.cache_write_tokens = get_count(usage, "cacheWriteInputTokens")
        tokens.input_tokens += tokens.cache_read_tokens + tokens.cache_write_tokens
    return tokens

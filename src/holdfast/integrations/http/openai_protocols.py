"""OpenAI's protocols, which many other providers speak: Chat Completions and Responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.integrations.http.event_format import DONE
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


class _Chat(ModelProtocol):
    """Chat Completions."""

    provider = "openai"

    def accepts(self, body: Json) -> bool:
        return isinstance(body.get("messages"), list)

    def read_request(self, body: Json, path: str) -> ReadRequest:
        limit = get_count(body, "max_completion_tokens") or get_count(body, "max_tokens")
        return ReadRequest(get_text(body, "model"), get_list(body, "messages"), split_body(body, "messages"), limit)

    def read_answer(self, body: Json) -> ModelAnswer:
        choice = next(iter(get_list(body, "choices")), None)
        message = get_dict(choice, "message")
        calls: list[ToolCallReport] = []
        for call in get_list(message, "tool_calls"):
            function = get_dict(call, "function")
            calls.append(
                ToolCallReport.from_raw(get_text(function, "name"), function.get("arguments"), get_text(call, "id"))
            )
        return ModelAnswer(
            join_texts(message.get("content")) or get_text(message, "refusal"),
            calls,
            _read_chat_usage(get_dict(body, "usage")),
            get_text(message, "reasoning_content") or get_text(message, "reasoning"),
            get_text(body, "model"),
            _read_finish_reason(get_text(choice, "finish_reason")),
        )

    def read_events(self, events: Sequence[Any]) -> ModelAnswer:
        texts: list[str] = []
        thoughts: list[str] = []
        calls = ToolCallParts()
        model = finish = ""
        tokens: TokenCounts | None = None
        for event in events:
            model = get_text(event, "model") or model
            tokens = _read_chat_usage(get_dict(event, "usage")) or tokens
            for choice in get_list(event, "choices")[:1]:
                delta = get_dict(choice, "delta")
                texts.append(join_texts(delta.get("content")) or get_text(delta, "refusal"))
                thoughts.append(get_text(delta, "reasoning_content") or get_text(delta, "reasoning"))
                finish = get_text(choice, "finish_reason") or finish
                for call in get_list(delta, "tool_calls"):
                    function = get_dict(call, "function")
                    calls.add(
                        get_count(call, "index"),
                        id=get_text(call, "id"),
                        name=get_text(function, "name"),
                        arguments=get_text(function, "arguments"),
                    )
        return ModelAnswer(
            "".join(texts), calls.make_reports(), tokens, "".join(thoughts), model, _read_finish_reason(finish)
        )

    def get_text(self, event: Any) -> str:
        return "".join(get_text(get_dict(choice, "delta"), "content") for choice in get_list(event, "choices")[:1])

    def is_last(self, event: Any) -> bool:
        return event == DONE


class _Responses(ModelProtocol):
    """Responses."""

    provider = "openai"

    def accepts(self, body: Json) -> bool:
        return "input" in body or "prompt" in body

    def read_request(self, body: Json, path: str) -> ReadRequest:
        given = body.get("input")
        messages: list[dict[str, Any]] = []
        if instructions := body.get("instructions"):
            messages.append({"role": "system", "content": instructions})
        if isinstance(given, list):
            messages += [_read_item(item) for item in get_list(body, "input")]
        elif given is not None:
            messages.append({"role": "user", "content": given})
        settings = split_body(body, "input", "instructions")
        return ReadRequest(get_text(body, "model"), messages, settings, get_count(body, "max_output_tokens"))

    def read_answer(self, body: Json) -> ModelAnswer:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCallReport] = []
        for item in get_list(body, "output"):
            kind = get_text(item, "type")
            if kind == "message":
                parts = get_list(item, "content")
                texts += [get_text(part, "text") or get_text(part, "refusal") for part in parts]
            elif kind == "reasoning":
                thoughts.append(join_texts(get_list(item, "summary")))
            elif kind in ("function_call", "custom_tool_call"):
                arguments = get_text(item, "arguments") or get_text(item, "input")
                calls.append(ToolCallReport.from_raw(get_text(item, "name"), arguments, get_text(item, "call_id")))
        usage = get_dict(body, "usage")
        tokens = count_tokens(usage, "input_tokens", "output_tokens")
        if tokens is not None:
            tokens.cache_read_tokens = get_count(get_dict(usage, "input_tokens_details"), "cached_tokens")
        reason = get_text(get_dict(body, "incomplete_details"), "reason")
        finish = "length" if reason == "max_output_tokens" else reason or ("tool_call" if calls else "stop")
        return ModelAnswer("".join(texts), calls, tokens, "".join(thoughts), get_text(body, "model"), finish)

    def read_events(self, events: Sequence[Any]) -> ModelAnswer:
        for event in reversed(events):
            if self.is_last(event):
                return self.read_answer(get_dict(event, "response"))
        return ModelAnswer("".join(map(self.get_text, events)))  # the consumer did not want all of it

    def get_text(self, event: Any) -> str:
        return get_text(event, "delta") if get_text(event, "type") == "response.output_text.delta" else ""

    def is_last(self, event: Any) -> bool:
        return get_text(event, "type") in ("response.completed", "response.incomplete")

    def is_error(self, event: Any) -> bool:
        return get_text(event, "type") in ("error", "response.failed")


CHAT = _Chat()
RESPONSES = _Responses()


def _read_item(item: Any) -> dict[str, Any]:
    """An item of the input as a message with a role."""
    kind = get_text(item, "type")
    found = get_dict(item) or {"content": item}
    if "role" in found:
        return found
    if kind.endswith("_call_output"):
        return {
            "role": "tool",
            "tool_call_id": get_text(item, "call_id"),
            "content": found.get("output"),
            "item": found,
        }
    return {"role": "assistant", "content": "", "item": found}


def _read_chat_usage(usage: Json) -> TokenCounts | None:
    tokens = count_tokens(usage, "prompt_tokens", "completion_tokens")
    if tokens is not None:
        tokens.cache_read_tokens = get_count(get_dict(usage, "prompt_tokens_details"), "cached_tokens")
    return tokens


def _read_finish_reason(reason: str) -> str | None:
    return "tool_call" if reason in ("tool_calls", "function_call") else reason or None

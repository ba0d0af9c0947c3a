"""Google's Gemini, at its own API and at Vertex AI."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from holdfast.integrations.http.protocol import (
    Json,
    ModelProtocol,
    ReadRequest,
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

_MODEL_IN_PATH = re.compile(r"/(?:models|endpoints|tunedModels)/([^/:]+):")
_FINISH_REASONS = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "BLOCKLIST": "content_filter",
    "SPII": "content_filter",
}


class _Generate(ModelProtocol):
    """``generateContent`` and ``streamGenerateContent``."""

    provider = "google"

    def accepts(self, body: Json) -> bool:
        return "contents" in body

    def read_request(self, body: Json, path: str) -> ReadRequest:
        messages: list[dict[str, Any]] = []
        name = "systemInstruction" if "systemInstruction" in body else "system_instruction"
        if system := body.get(name):
            messages.append(_read_content(system, "system"))
        for content in get_list(body, "contents"):
            messages += _split_tool_results(content)
        if not isinstance(body["contents"], list):
            messages.append(_read_content(body["contents"], "user"))
        limit = get_count(get_dict(body, "generationConfig"), "maxOutputTokens")
        return ReadRequest(_read_model(path), messages, split_body(body, "contents", name), limit)

    def is_streamed(self, body: Json, path: str) -> bool:
        return "streamGenerateContent" in path

    def read_answer(self, body: Json) -> ModelAnswer:
        return self.read_events([body])

    def read_events(self, events: Sequence[Any]) -> ModelAnswer:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCallReport] = []
        model = reason = ""
        tokens: TokenCounts | None = None
        for event in events:
            model = get_text(event, "modelVersion") or model
            tokens = _read_usage(get_dict(event, "usageMetadata")) or tokens
            for candidate in get_list(event, "candidates")[:1]:
                reason = get_text(candidate, "finishReason") or reason
                for part in get_list(get_dict(candidate, "content"), "parts"):
                    if call := get_dict(part, "functionCall"):
                        arguments = get_dict(call, "args")
                        calls.append(ToolCallReport.from_raw(get_text(call, "name"), arguments, get_text(call, "id")))
                    else:
                        (thoughts if get_dict(part).get("thought") else texts).append(get_text(part, "text"))
        finish = "tool_call" if calls and reason == "STOP" else _FINISH_REASONS.get(reason, reason.lower() or None)
        return ModelAnswer("".join(texts), calls, tokens, "".join(thoughts), model, finish)

    def get_text(self, event: Any) -> str:
        return "".join(
            get_text(part, "text")
            for candidate in get_list(event, "candidates")[:1]
            for part in get_list(get_dict(candidate, "content"), "parts")
            if not get_dict(part).get("thought")
        )


class _Embed(ModelProtocol):
    """``embedContent`` and ``batchEmbedContents``."""

    provider = "google"

    def accepts(self, body: Json) -> bool:
        return "content" in body or "requests" in body

    def read_request(self, body: Json, path: str) -> ReadRequest:
        contents = [body.get("content"), *(get_dict(request, "content") for request in get_list(body, "requests"))]
        messages = [_read_content(content, "user") for content in contents if content]
        return ReadRequest(_read_model(path), messages, split_body(body, "content"))

    def read_answer(self, body: Json) -> ModelAnswer:
        return ModelAnswer(tokens=_read_usage(get_dict(body, "usageMetadata")))

    def read_events(self, events: Sequence[Any]) -> ModelAnswer:
        return ModelAnswer()


GENERATE = _Generate()
EMBED = _Embed()


def _read_model(path: str) -> str:
    found = _MODEL_IN_PATH.search(path)
    return found[1] if found else ""


def _read_content(content: Any, role: str) -> dict[str, Any]:
    """A content as a message. A single text is just that."""
    parts = get_list(content, "parts")
    if len(parts) == 1 and list(get_dict(parts[0])) == ["text"]:
        return {"role": get_text(content, "role") or role, "content": parts[0]["text"]}
    return {"role": get_text(content, "role") or role, "content": parts or content}


def _split_tool_results(content: Any) -> list[dict[str, Any]]:
    """A content as messages: the results of tools are messages of their own."""
    results: list[dict[str, Any]] = []
    rest: list[Any] = []
    for part in get_list(content, "parts"):
        if found := get_dict(part, "functionResponse"):
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": get_text(found, "id"),
                    "name": get_text(found, "name"),
                    "content": found.get("response"),
                    "part": {name: value for name, value in get_dict(part).items() if name != "functionResponse"},
                }
            )
        else:
            rest.append(part)
    if not results:
        return [_read_content(content, "user")]
    return [*results, *([_read_content({**get_dict(content), "parts": rest}, "user")] if rest else [])]


def _read_usage(usage: Json) -> TokenCounts | None:
    tokens = count_tokens(usage, "promptTokenCount", "candidatesTokenCount")
    if tokens is not None:
        tokens.input_tokens += get_count(usage, "toolUsePromptTokenCount")
        tokens.output_tokens += get_count(usage, "thoughtsTokenCount")
        tokens.cache_read_tokens = get_count(usage, "cachedContentTokenCount")
    return tokens

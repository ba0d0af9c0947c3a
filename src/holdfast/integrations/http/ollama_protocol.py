"""Ollama's own protocol, in which answers are streamed unless the request says otherwise."""

from __future__ import annotations

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


class _Ollama(ModelProtocol):
    """``/api/chat`` and ``/api/generate``."""

    provider = "ollama"

    def accepts(self, body: Json) -> bool:
        return "model" in body and ("messages" in body or "prompt" in body)

    def read_request(self, body: Json, path: str) -> ReadRequest:
        messages = get_list(body, "messages")
        if "messages" not in body:
            system = [{"role": "system", "content": body["system"]}] if "system" in body else []
            messages = [*system, {"role": "user", "content": body["prompt"]}]
        limit = get_count(get_dict(body, "options"), "num_predict")
        return ReadRequest(
            get_text(body, "model"), messages, split_body(body, "messages", "prompt", "system"), max(0, limit)
        )

    def is_streamed(self, body: Json, path: str) -> bool:
        return body.get("stream") is not False

    def read_answer(self, body: Json) -> ModelAnswer:
        return self.read_events([body])

    def read_events(self, events: Sequence[Any]) -> ModelAnswer:
        calls: list[ToolCallReport] = []
        tokens = None
        model = reason = ""
        for event in events:
            model = get_text(event, "model") or model
            reason = get_text(event, "done_reason") or reason
            tokens = count_tokens(get_dict(event), "prompt_eval_count", "eval_count") or tokens
            for call in get_list(get_dict(event, "message"), "tool_calls"):
                function = get_dict(call, "function")
                calls.append(ToolCallReport.from_raw(get_text(function, "name"), get_dict(function, "arguments"), ""))
        thoughts = "".join(get_text(get_dict(event, "message"), "thinking") for event in events)
        return ModelAnswer("".join(map(self.get_text, events)), calls, tokens, thoughts, model, reason or None)

    def get_text(self, event: Any) -> str:
        return get_text(get_dict(event, "message"), "content") or get_text(event, "response")

    def is_last(self, event: Any) -> bool:
        return get_dict(event).get("done") is True


OLLAMA = _Ollama()

"""Calls with one input: embeddings, completions of a prompt, images, speech, rankings, moderations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

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

_INPUT_NAMES = ("input", "inputs", "prompt", "text", "texts", "query", "message", "inputText")
_MODEL_IN_PATH = re.compile(r"/(?:model|deployments)/([^/]+)/")
_USAGE_FIELDS = (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens"))


class _Plain(ModelProtocol):
    """JSON with an input, whatever else is in it."""

    provider = "openai"
    answers_json = False  # speech is not

    def accepts(self, body: Json) -> bool:
        return _find_input_name(body) is not None

    def read_request(self, body: Json, path: str) -> ReadRequest:
        name = _find_input_name(body) or ""
        found = _MODEL_IN_PATH.search(path)
        model = get_text(body, "model") or (unquote(found[1]) if found else "")
        message = {"role": "user", "content": body.get(name)}
        return ReadRequest(model, [message], split_body(body, name), get_count(body, "max_tokens"))

    def is_streamed(self, body: Json, path: str) -> bool:
        return body.get("stream") is True or "response-stream" in path

    def read_answer(self, body: Json) -> ModelAnswer:
        return self.read_events([body])

    def read_events(self, events: Sequence[Any]) -> ModelAnswer:
        texts: list[str] = []
        model, tokens = "", None
        for event in events:
            model = get_text(event, "model") or model
            texts.append(self.get_text(event))
            for names in _USAGE_FIELDS:
                tokens = count_tokens(get_dict(event, "usage"), *names) or tokens
        return ModelAnswer("".join(texts), tokens=tokens, model=model)

    def get_text(self, event: Any) -> str:
        return "".join(get_text(choice, "text") for choice in get_list(event, "choices")[:1])

    def is_last(self, event: Any) -> bool:
        return event == "[DONE]"


PLAIN = _Plain()


def _find_input_name(body: Json) -> str | None:
    return next((name for name in _INPUT_NAMES if name in body), None)

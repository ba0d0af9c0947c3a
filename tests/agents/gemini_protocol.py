"""Gemini's protocol, as far as a scripted provider needs it: ``generateContent`` and ``streamGenerateContent``.

The model and whether the answer is streamed are in the path. Calls have no ids, as with Google's own API: a result
belongs to the first call of its name that has none.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from provider_protocols import Answer, Conversation, Event

_PATH = re.compile(r"/v1(?:beta)?/models/([^/:]+):(generateContent|streamGenerateContent)")
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


class Gemini:
    """Google's own API for its models."""

    name: ClassVar = "gemini"
    done: ClassVar[bytes] = b""

    @staticmethod
    def read_path(path: str) -> dict[str, Any] | None:
        """What the path says about the request; ``None``: it is not one of this protocol."""
        found = _PATH.fullmatch(path)
        return None if found is None else {"model": found[1], "stream": found[2] == "streamGenerateContent"}

    @staticmethod
    def read(body: dict[str, Any]) -> Conversation:
        from provider_protocols import Conversation, Refused, Said

        said: list[Said] = []
        called: Counter[str] = Counter()
        answered: Counter[str] = Counter()
        for content in body["contents"]:
            role = "model" if content.get("role") == "model" else "user"
            for part in content["parts"]:
                if call := part.get("functionCall"):
                    called[call["name"]] += 1
                    said.append(Said("model", "", (call.get("id") or f"{call['name']}#{called[call['name']]}",)))
                elif result := part.get("functionResponse"):
                    answered[result["name"]] += 1
                    call_id = result.get("id") or f"{result['name']}#{answered[result['name']]}"
                    said.append(Said("result", _format_result(result["response"]), (call_id,)))
                elif "text" in part:
                    said.append(Said(role, part["text"]))
                else:
                    raise Refused(f"The script's provider knows no part such as {sorted(part)}.")
        system = "\n".join(part["text"] for part in (body.get("systemInstruction") or {"parts": []})["parts"])
        tools = [one for tool in body.get("tools") or () for one in tool.get("functionDeclarations") or ()]
        return Conversation(body["model"], system, said, frozenset(tool["name"] for tool in tools), body["stream"])

    @classmethod
    def body(cls, answer: Answer) -> dict[str, Any]:
        parts = [{"text": answer.text or answer.refusal}] if answer.text or answer.refusal else []
        return cls._response(answer, [*parts, *cls._get_calls(answer)], is_last=True)

    @classmethod
    def events(cls, answer: Answer, conversation: Conversation) -> Iterator[Event]:
        for piece in answer.pieces:
            yield None, cls._response(answer, [{"text": piece}])
        yield None, cls._response(answer, cls._get_calls(answer) or [{"text": ""}], is_last=True)

    @staticmethod
    def _get_calls(answer: Answer) -> list[dict[str, Any]]:
        return [{"functionCall": {"name": call.name, "args": json.loads(call.arguments)}} for call in answer.calls]

    @staticmethod
    def _response(answer: Answer, parts: list[dict[str, Any]], *, is_last: bool = False) -> dict[str, Any]:
        candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
        if is_last:
            reason = "SAFETY" if answer.refusal or answer.finish == "content_filter" else "STOP"
            candidate["finishReason"] = "MAX_TOKENS" if answer.finish == "length" else reason
        usage = {
            "promptTokenCount": answer.input_tokens,
            "candidatesTokenCount": answer.output_tokens,
            "cachedContentTokenCount": answer.cached_tokens,
            "totalTokenCount": answer.input_tokens + answer.output_tokens,
        }
        return {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": answer.model,
            "responseId": f"resp_{answer.id}",
        }

    @staticmethod
    def error(status: int, kind: str, words: str) -> dict[str, Any]:
        return {"error": {"code": status, "message": words, "status": _STATUS[status]}}

    @classmethod
    def broken(cls, words: str) -> dict[str, Any]:
        """What a stream says when it breaks off."""
        return cls.error(503, "overloaded", words)


def _format_result(response: Any) -> str:
    """A tool's result as text: its only value, if that is a text."""
    values = list(response.values())
    return values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(response, sort_keys=True)

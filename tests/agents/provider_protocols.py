"""The protocols of model providers, as far as a scripted provider needs them.

Each of ``OpenAIChat``, ``OpenAIResponses``, ``Anthropic`` and ``Gemini`` (in ``gemini_protocol``) reads a request into
a ``Conversation``, and writes an ``Answer`` or an error as its provider does: whole, or as the events of a stream. A
conversation that the provider would refuse (a tool call without its result, a result that nobody asked for) is refused
here too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from gemini_protocol import Gemini

OUTPUT_TOOL = "final_result"
"""The tool by which a model hands in a structured answer, where the request offers it."""


_SUMMARISED = re.compile(r"summarised, because it became too long: \d+ messages, (\d+) of them answers of yours")


class Refused(Exception):
    """The request is one that no provider would take."""

    def __init__(self, words: str, status: int = 400, kind: str = "bad_request") -> None:
        super().__init__(words)
        self.status = status
        self.kind = kind


class Said(NamedTuple):
    """One thing in a conversation."""

    role: str
    """``user``, ``model`` or ``result``."""
    text: str
    calls: tuple[str, ...] = ()
    """The ids of the calls that the model made, or of the one whose result this is."""


@dataclass(frozen=True)
class Conversation:
    """A request, in whatever protocol it came."""

    model: str
    system: str
    said: Sequence[Said]
    tools: frozenset[str]
    stream: bool
    usage_in_stream: bool = True

    @property
    def turn(self) -> int:
        """How many answers there have been: the next one is the turn with this number, from 0.

        Those count that a summary stands for. The turn of a request for a summary is the number of summaries so far.
        """
        if self.wants_summary:
            return max(map(int, re.findall(r"\bsummary:(\d+)", self.task)), default=0)
        roles = ["", *(one.role for one in self.said)]
        summarised = [_SUMMARISED.search(one.text) for one in self.said if one.role == "user"]
        return sum(now == "model" != before for before, now in itertools.pairwise(roles)) + sum(
            int(found[1]) for found in summarised if found
        )

    @property
    def wants_summary(self) -> bool:
        """Whether it is a request to summarise another conversation."""
        return self.system.startswith("You summarise the conversation of an AI agent")

    @property
    def digest(self) -> str:
        """The same for the same conversation, in whichever process it is held."""
        return hashlib.sha256(json.dumps([self.system, self.said]).encode()).hexdigest()[:16]

    @property
    def task(self) -> str:
        """The first prompt of the user."""
        return next((one.text for one in self.said if one.role == "user"), "")

    @property
    def results(self) -> str:
        """The results of the last answer's calls, in the order in which they were sent."""
        last = max((at for at, one in enumerate(self.said) if one.role == "model"), default=-1)
        return ", ".join(one.text for one in self.said[last + 1 :] if one.role == "result")

    @property
    def size(self) -> int:
        """About how many tokens it has."""
        return sum(len(one.text) for one in self.said) // 4 + len(self.system) // 4 + 1

    def check(self) -> None:
        """Raise ``Refused`` unless every call has its result right after it, and every result its call."""
        waiting: set[str] = set()
        before = ""
        for one in self.said:
            if one.role == "result":
                if one.calls[0] not in waiting:
                    raise Refused(f"There is a result for {one.calls[0]!r}, which is no call of the answer before it.")
                waiting.discard(one.calls[0])
            elif waiting and not one.role == before == "model":
                break
            elif one.role == "model":
                waiting.update(one.calls)
            before = one.role
        if waiting:
            raise Refused(f"These tool calls must be followed by their results: {', '.join(sorted(waiting))}.")
        if before == "model":
            raise Refused("The conversation must end with something that is not the model's.")


class ToolCall(NamedTuple):
    """A call in an answer."""

    id: str
    name: str
    arguments: str
    """As JSON, or what a model took for it."""


@dataclass(frozen=True)
class Answer:
    """What the model says."""

    id: str
    model: str
    text: str
    calls: Sequence[ToolCall]
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    finish: str = ""
    """``length``, ``content_filter``, or as usual."""
    refusal: str = ""
    """What the model says in place of an answer."""

    @property
    def pieces(self) -> list[str]:
        """The text as a stream has it: word by word."""
        return re.findall(r"\S+\s*|\s+", self.text or self.refusal)


Event = tuple[str | None, Any]
"""The name and the data of one event of a stream."""


def _text(content: Any) -> str:
    """The text of a message's content, which may be a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


class OpenAIChat:
    """Chat Completions."""

    name: ClassVar = "openai-chat"
    path: ClassVar = "/v1/chat/completions"
    done: ClassVar[bytes] = b"data: [DONE]\n\n"

    @staticmethod
    def read(body: dict[str, Any]) -> Conversation:
        system: list[str] = []
        said: list[Said] = []
        for message in body["messages"]:
            text = _text(message.get("content"))
            match message["role"]:
                case "system" | "developer":
                    system.append(text)
                case "assistant":
                    said.append(Said("model", text, tuple(call["id"] for call in message.get("tool_calls") or ())))
                case "tool":
                    said.append(Said("result", text, (message["tool_call_id"],)))
                case _:
                    said.append(Said("user", text))
        return Conversation(
            body["model"],
            "\n".join(system),
            said,
            frozenset(tool["function"]["name"] for tool in body.get("tools") or ()),
            bool(body.get("stream")),
            bool((body.get("stream_options") or {}).get("include_usage")),
        )

    @staticmethod
    def body(answer: Answer) -> dict[str, Any]:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
        message = {"role": "assistant", "content": answer.text or None, "refusal": answer.refusal or None}
        return {
            "id": f"chatcmpl-{answer.id}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": answer.model,
            "choices": [
                {
                    "index": 0,
                    "message": message | ({"tool_calls": calls} if calls else {}),
                    "finish_reason": answer.finish or ("tool_calls" if calls else "stop"),
                    "logprobs": None,
                }
            ],
            "usage": _chat_usage(answer),
        }

    @staticmethod
    def events(answer: Answer, conversation: Conversation) -> Iterator[Event]:
        frame = {
            "id": f"chatcmpl-{answer.id}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": answer.model,
        }

        def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
            return None, {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}

        yield chunk({"role": "assistant", "content": ""})
        for piece in answer.pieces:
            yield chunk({"refusal" if answer.refusal else "content": piece})
        for index, call in enumerate(answer.calls):
            begun = {"name": call.name, "arguments": ""}
            yield chunk({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": begun}]})
            for half in _halves(call.arguments):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": half}}]})
        yield chunk({}, answer.finish or ("tool_calls" if answer.calls else "stop"))
        if conversation.usage_in_stream:
            yield None, {**frame, "choices": [], "usage": _chat_usage(answer)}

    @staticmethod
    def error(status: int, kind: str, words: str) -> dict[str, Any]:
        return {"error": {"message": words, **_openai_kind(kind), "param": None}}

    @staticmethod
    def broken(words: str) -> dict[str, Any]:
        """What a stream says when it breaks off."""
        return {"error": {"message": words, "type": "server_error", "code": "overloaded"}}


def _chat_usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.input_tokens + answer.output_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _openai_kind(kind: str) -> dict[str, str | None]:
    kinds: dict[str, tuple[str, str | None]] = {
        "rate_limit": ("requests", "rate_limit_exceeded"),
        "quota": ("insufficient_quota", "insufficient_quota"),
        "server_error": ("server_error", None),
        "overloaded": ("overloaded_error", None),
        "unauthorized": ("invalid_request_error", "invalid_api_key"),
        "not_found": ("invalid_request_error", "model_not_found"),
        "too_long": ("invalid_request_error", "context_length_exceeded"),
        "bad_request": ("invalid_request_error", None),
    }
    return dict(zip(("type", "code"), kinds[kind], strict=True))


class OpenAIResponses:
    """Responses."""

    name: ClassVar = "openai-responses"
    path: ClassVar = "/v1/responses"
    done: ClassVar[bytes] = b""
    error = OpenAIChat.error

    @staticmethod
    def broken(words: str) -> dict[str, Any]:
        """What a stream says when it breaks off."""
        return {"type": "error", "code": "server_error", "message": words, "param": None, "sequence_number": 99}

    @staticmethod
    def read(body: dict[str, Any]) -> Conversation:
        system = [body.get("instructions") or ""]
        said: list[Said] = []
        entries = body["input"]
        for entry in [{"role": "user", "content": entries}] if isinstance(entries, str) else entries:
            text = _text(entry.get("content"))
            match entry.get("role") or entry["type"]:
                case "system" | "developer":
                    system.append(text)
                case "user":
                    said.append(Said("user", text))
                case "assistant":
                    said.append(Said("model", text))
                case "function_call":
                    said.append(Said("model", "", (entry["call_id"],)))
                case "function_call_output":
                    said.append(Said("result", _text(entry["output"]), (entry["call_id"],)))
                case other:
                    raise Refused(f"The script's provider knows no input of the type {other!r}.")
        tools = frozenset(tool["name"] for tool in body.get("tools") or () if tool["type"] == "function")
        return Conversation(body["model"], "\n".join(system), said, tools, bool(body.get("stream")))

    @classmethod
    def body(cls, answer: Answer) -> dict[str, Any]:
        output = [cls._item(one, answer) for one in cls._get_output_items(answer)]
        return cls._response(answer, "incomplete" if answer.finish else "completed", output)

    @staticmethod
    def _get_output_items(answer: Answer) -> list[str | ToolCall]:
        text = answer.text or answer.refusal
        return [*([text] if text else []), *answer.calls]

    @staticmethod
    def _response(answer: Answer, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {
            "input_tokens": answer.input_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": answer.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.input_tokens + answer.output_tokens,
        }
        return {
            "id": f"resp_{answer.id}",
            "object": "response",
            "created_at": int(time.time()),
            "status": status,
            "error": None,
            "incomplete_details": {"reason": _INCOMPLETE[answer.finish]} if status == "incomplete" else None,
            "instructions": None,
            "metadata": {},
            "model": answer.model,
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None if status == "in_progress" else usage,
        }

    @staticmethod
    def _item(one: str | ToolCall, answer: Answer, status: str = "completed") -> dict[str, Any]:
        begun = status != "completed"
        if isinstance(one, str):
            content = [] if begun else [_output_text(one, answer.refusal)]
            return {
                "id": f"msg_{answer.id}",
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": content,
            }
        return {
            "id": one.id.replace("call_", "fc_"),
            "type": "function_call",
            "status": status,
            "call_id": one.id,
            "name": one.name,
            "arguments": "" if begun else one.arguments,
        }

    @classmethod
    def events(cls, answer: Answer, conversation: Conversation) -> Iterator[Event]:
        for number, (kind, data) in enumerate(cls._events(answer)):
            yield kind, {"type": kind, "sequence_number": number, **data}

    @classmethod
    def _events(cls, answer: Answer) -> Iterator[tuple[str, dict[str, Any]]]:
        for status in ("created", "in_progress"):
            yield f"response.{status}", {"response": cls._response(answer, "in_progress", [])}
        for index, one in enumerate(cls._get_output_items(answer)):
            item = cls._item(one, answer)
            place = {"item_id": item["id"], "output_index": index}
            begun = cls._item(one, answer, "in_progress")
            yield "response.output_item.added", {"output_index": index, "item": begun}
            if isinstance(one, str):
                text = {**place, "content_index": 0}
                sort, more = ("refusal", {}) if answer.refusal else ("output_text", {"logprobs": []})
                yield "response.content_part.added", {**text, "part": _output_text("", answer.refusal)}
                for piece in answer.pieces:
                    yield f"response.{sort}.delta", {**text, "delta": piece, **more}
                yield f"response.{sort}.done", {**text, "refusal" if answer.refusal else "text": one, **more}
                yield "response.content_part.done", {**text, "part": _output_text(one, answer.refusal)}
            else:
                for half in _halves(one.arguments):
                    yield "response.function_call_arguments.delta", {**place, "delta": half}
                whole = {**place, "name": one.name, "arguments": one.arguments}
                yield "response.function_call_arguments.done", whole
            yield "response.output_item.done", {"output_index": index, "item": item}
        yield f"response.{'incomplete' if answer.finish else 'completed'}", {"response": cls.body(answer)}


_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def _output_text(text: str, refusal: str = "") -> dict[str, Any]:
    if refusal:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


CLAUDE_CODE_FILLER = "No response requested."
"""What Claude Code puts in place of an answer that was cut off: no model has said it."""


class Anthropic:
    """Messages."""

    name: ClassVar = "anthropic"
    path: ClassVar = "/v1/messages"
    done: ClassVar[bytes] = b""

    @staticmethod
    def read(body: dict[str, Any]) -> Conversation:
        said: list[Said] = []
        for message in body["messages"]:
            role = "model" if message["role"] == "assistant" else "user"
            content = message["content"]
            for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                match block["type"]:
                    case "text" if role == "model" and block["text"] == CLAUDE_CODE_FILLER:
                        pass
                    case "text":
                        said.append(Said(role, block["text"]))
                    case "tool_use":
                        said.append(Said("model", "", (block["id"],)))
                    case "tool_result":
                        said.append(Said("result", _text(block.get("content")), (block["tool_use_id"],)))
                    case other:
                        raise Refused(f"The script's provider knows no content of the type {other!r}.")
        tools = frozenset(tool["name"] for tool in body.get("tools") or ())
        return Conversation(body["model"], _text(body.get("system")), said, tools, bool(body.get("stream")))

    @staticmethod
    def _message(answer: Answer, content: list[dict[str, Any]], stop: str | None) -> dict[str, Any]:
        refusal = {"type": "refusal", "category": None, "explanation": answer.refusal}
        return {
            "id": f"msg_{answer.id}",
            "type": "message",
            "role": "assistant",
            "model": answer.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            **({"stop_details": refusal} if stop and answer.refusal else {}),
            "usage": {
                # Unlike OpenAI's, Anthropic's figure leaves out what came from the cache.
                "input_tokens": answer.input_tokens - answer.cached_tokens,
                "cache_read_input_tokens": answer.cached_tokens,
                "cache_creation_input_tokens": 0,
                "output_tokens": answer.output_tokens if stop else 1,
            },
        }

    @classmethod
    def body(cls, answer: Answer) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"type": "text", "text": answer.text}] if answer.text else []
        for call in answer.calls:
            arguments = json.loads(call.arguments)
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
        return cls._message(answer, content, cls._stop(answer))

    @staticmethod
    def _stop(answer: Answer) -> str:
        if answer.refusal or answer.finish:
            return "max_tokens" if answer.finish == "length" else "refusal"
        return "tool_use" if answer.calls else "end_turn"

    @classmethod
    def events(cls, answer: Answer, conversation: Conversation) -> Iterator[Event]:
        for kind, data in cls._events(answer):
            yield kind, {"type": kind, **data}

    @classmethod
    def _events(cls, answer: Answer) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "message_start", {"message": cls._message(answer, [], None)}
        yield "ping", {}
        if answer.text:
            yield "content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}
            for piece in answer.pieces:
                yield "content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": piece}}
            yield "content_block_stop", {"index": 0}
        for index, call in enumerate(answer.calls, 1 if answer.text else 0):
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield "content_block_start", {"index": index, "content_block": block}
            for half in _halves(call.arguments):
                delta = {"type": "input_json_delta", "partial_json": half}
                yield "content_block_delta", {"index": index, "delta": delta}
            yield "content_block_stop", {"index": index}
        stop: dict[str, Any] = {"stop_reason": cls._stop(answer), "stop_sequence": None}
        if answer.refusal:
            stop["stop_details"] = {"type": "refusal", "category": None, "explanation": answer.refusal}
        yield "message_delta", {"delta": stop, "usage": {"output_tokens": answer.output_tokens}}
        yield "message_stop", {}

    @staticmethod
    def error(status: int, kind: str, words: str) -> dict[str, Any]:
        types = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
        types |= {429: "rate_limit_error", 500: "api_error", 529: "overloaded_error"}
        return {"type": "error", "error": {"type": types[status], "message": words}, "request_id": "req_scripted"}

    @staticmethod
    def broken(words: str) -> dict[str, Any]:
        """What a stream says when it breaks off."""
        return {"type": "error", "error": {"type": "overloaded_error", "message": words}}


PROTOCOLS = {protocol.path: protocol for protocol in (OpenAIChat, OpenAIResponses, Anthropic)}


def find_protocol(path: str) -> tuple[Any, dict[str, Any]] | None:
    """The protocol of requests to this path, with what the path says about the request."""
    if (found := Gemini.read_path(path)) is not None:
        return Gemini, found
    protocol = PROTOCOLS.get(path)
    return None if protocol is None else (protocol, {})

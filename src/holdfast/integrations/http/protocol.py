"""What a provider's protocol has to say about requests and answers, so that people can read them.

A protocol reads JSON that other programs wrote, so everything in it may have another form than expected. Nothing that
is read here changes what the program gets: if an answer cannot be read, readers of the run see less of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from holdfast.integrations.model_call import ModelAnswer
from holdfast.reports.recorded_reply import ToolCallReport
from holdfast.services.model_prices import TokenCounts

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What a request says."""

    model: str
    messages: list[dict[str, Any]]
    settings: dict[str, Any]
    """Everything else."""
    max_output_tokens: int = 0


class ModelProtocol(ABC):
    """The protocol of a provider."""

    provider: str
    """The provider, if the host does not say it."""
    answers_json = True
    """Whether an answer that is not a stream is a JSON object. What is something else is not recorded."""

    @abstractmethod
    def accepts(self, body: Json) -> bool:
        """Whether this is the body of one of its requests."""

    @abstractmethod
    def read_request(self, body: Json, path: str) -> ReadRequest:
        """The content of a request: all of it, because it identifies the call."""

    def is_streamed(self, body: Json, path: str) -> bool:
        """Whether the answer will be a stream."""
        return body.get("stream") is True

    @abstractmethod
    def read_answer(self, body: Json) -> ModelAnswer:
        """A whole answer."""

    @abstractmethod
    def read_events(self, events: Sequence[Any]) -> ModelAnswer:
        """A streamed answer, from its events."""

    def get_text(self, event: Any) -> str:
        """The text in an event."""
        return ""

    def is_last(self, event: Any) -> bool:
        """Whether this event ends an answer."""
        return False

    def is_error(self, event: Any) -> bool:
        """Whether the provider breaks off the answer with this event."""
        return bool(get_dict(event, "error")) or get_text(event, "type") == "error"


class ToolCallParts:
    """The tool calls of a streamed answer, whose arguments come in parts."""

    def __init__(self) -> None:
        self._parts: dict[Any, list[str]] = {}

    def add(self, index: Any, *, id: str | None = None, name: str | None = None, arguments: str | None = None) -> None:
        """Add a part of the call with this index."""
        call = self._parts.setdefault(index, ["", "", ""])
        call[0] = call[0] or id or ""
        call[1] = call[1] or name or ""
        call[2] += arguments or ""

    def make_reports(self) -> list[ToolCallReport]:
        """The calls."""
        return [ToolCallReport.from_raw(name, arguments, id) for id, name, arguments in self._parts.values()]


def _is_object(data: Any) -> TypeGuard[dict[str, Any]]:
    """Whether this is a JSON object. (Each event is asked dozens of times, and ``Mapping`` is slow to ask for.)"""
    return isinstance(data, dict)


def get_dict(data: Any, *names: str) -> dict[str, Any]:
    """The object at this path, or the data itself; an empty one if that is not an object."""
    for name in names:
        data = data.get(name) if _is_object(data) else None
    return data if _is_object(data) else {}


def get_list(data: Any, name: str) -> list[Any]:
    """The list with this name; an empty one if there is none."""
    found = data.get(name) if _is_object(data) else None
    return cast("list[Any]", found) if isinstance(found, list) else []


def get_text(data: Any, name: str) -> str:
    """The text with this name; an empty one if there is none."""
    found = data.get(name) if _is_object(data) else None
    return found if isinstance(found, str) else ""


def get_count(data: Any, name: str) -> int:
    """The number with this name; 0 if there is none."""
    found = data.get(name) if _is_object(data) else None
    return found if isinstance(found, int) else 0


def join_texts(content: Any) -> str:
    """The text of a content: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    return "".join(part if isinstance(part, str) else get_text(part, "text") for part in parts)


def split_body(body: Json, *messages_names: str) -> dict[str, Any]:
    """The settings of a request: all of its body except the model and the messages."""
    return {name: value for name, value in body.items() if name != "model" and name not in messages_names}


def count_tokens(usage: Json, input_name: str, output_name: str) -> TokenCounts | None:
    """The tokens of an answer, if its usage has these two fields; ``None``: it has none."""
    if input_name not in usage and output_name not in usage:
        return None
    return TokenCounts(get_count(usage, input_name), get_count(usage, output_name))

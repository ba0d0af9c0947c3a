"""A model's answer as CrewAI's code receives it, with what the call has changed besides.

A recorded call is not executed, and so it emits no events, counts no tokens, and does not note the id of the answer.
All of this is recorded with the answer, and done again when the answer comes from the record.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from crewai.events.types.llm_events import LLMCallType
from crewai.llms.base_llm import BaseLLM
from crewai.types.usage_metrics import UsageMetrics
from crewai.utilities.agent_utils import extract_tool_call_info
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from holdfast.errors import UnrecordableValue
from holdfast.integrations.model_call import AnswerCodec, ModelAnswer, parse_arguments
from holdfast.reports.recorded_reply import ToolCallReport
from holdfast.services.model_prices import TokenCounts

_PROVIDER_PACKAGES = ("anthropic", "crewai", "google", "litellm", "openai")
"""Packages whose types a record may name."""
_STATE = ("_last_response_id", "_last_reasoning_items")
"""Attributes of a model in which it keeps what its next request refers to."""


@dataclass(slots=True)
class Answer:
    """What a call of a model returned, and what it has done besides."""

    value: Any = None
    """A text, tool calls in the provider's form, or an instance of the response model."""
    usages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The usage that the provider reported, for each of its requests."""
    started: bool = False
    """Whether the start of the call was announced on the event bus."""
    chunks: list[list[Any]] = field(default_factory=list[list[Any]])
    """The parts of a streamed answer: text, tool call, type of call, and whether it is thinking."""
    completed: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The announced ends of the call."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])

    def take_state(self, llm: BaseLLM) -> None:
        """Note what the model keeps for its next request."""
        for name in _STATE:
            if (value := getattr(llm, name, None)) is not None:
                self.state[name] = value

    def restore_state(self, llm: BaseLLM) -> None:
        """Set what the model kept."""
        for name, value in self.state.items():
            setattr(llm, name, value)


class AnswerOfModel(AnswerCodec[Answer]):
    """The answer to one request, as JSON data."""

    def __init__(self, response_model: type[BaseModel] | None) -> None:
        self._response_model = response_model
        self._description: ModelAnswer | None = None

    def dump(self, answer: Answer) -> Any:
        """The answer as JSON data."""
        data: dict[str, Any] = {"value": self._dump_value(answer.value)}
        for name in ("usages", "started", "chunks", "completed"):
            if content := getattr(answer, name):
                data[name] = to_jsonable_python(content, fallback=str)
        if answer.state:
            data["state"] = {name: _dump_object(value) for name, value in answer.state.items()}
        return data

    def load(self, data: Any) -> Answer:
        """The answer from its JSON data."""
        return Answer(
            self._load_value(data["value"]),
            data.get("usages", []),
            data.get("started", False),
            data.get("chunks", []),
            data.get("completed", []),
            {name: _load_object(value) for name, value in data.get("state", {}).items()},
        )

    def describe(self, answer: Answer) -> ModelAnswer:
        """What readers of the run see of it."""
        if self._description is None:  # there is one answer, which is described several times
            self._description = self._describe(answer)
        return self._description

    def _describe(self, answer: Answer) -> ModelAnswer:
        value = answer.value
        calls: list[ToolCallReport] = []
        text = ""
        if isinstance(value, str):
            text = value
        elif isinstance(value, BaseModel):
            text = value.model_dump_json()
        elif isinstance(value, list):
            calls = [found for item in cast("list[Any]", value) if (found := _report_call(item)) is not None]
        if not text and not calls and value is not None:
            text = json.dumps(to_jsonable_python(value, fallback=str))
        finish = next((end["finish_reason"] for end in reversed(answer.completed) if end.get("finish_reason")), None)
        thinking = "".join(chunk[0] for chunk in answer.chunks if chunk[3])
        return ModelAnswer(text, calls, _count_tokens(answer.usages), thinking, finish_reason=finish)

    def _dump_value(self, value: Any) -> Any:
        if isinstance(value, BaseModel) and self._response_model is not None and type(value) is self._response_model:
            return {"output": value.model_dump(mode="json")}
        return _dump_object(value)

    def _load_value(self, data: Any) -> Any:
        if isinstance(data, dict) and "output" in data:
            assert self._response_model is not None
            return self._response_model.model_validate(data["output"])
        return _load_object(data)


def _dump_object(value: Any) -> Any:
    """Texts as they are; lists item by item; objects of providers with their type."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return [_dump_object(item) for item in cast("list[Any]", value)]
    if isinstance(value, BaseModel):
        cls = type(value)
        if cls.__module__.partition(".")[0] not in _PROVIDER_PACKAGES:
            raise UnrecordableValue(
                f"the answer is an instance of {cls.__module__}.{cls.__qualname__}, which is neither the response "
                "model of this call nor a type of CrewAI or of a provider's package"
            )
        return {"type": f"{cls.__module__}:{cls.__qualname__}", "data": value.model_dump(mode="json", warnings=False)}
    return {"plain": value}


def _load_object(data: Any) -> Any:
    if data is None or isinstance(data, str):
        return data
    if isinstance(data, list):
        return [_load_object(item) for item in cast("list[Any]", data)]
    if "type" not in data:
        return data["plain"]
    module, _, name = data["type"].partition(":")
    if module.partition(".")[0] not in _PROVIDER_PACKAGES:
        raise ValueError(f"{module!r} is no module of a provider")
    cls: Any = importlib.import_module(module)
    for part in name.split("."):
        cls = getattr(cls, part)
    if not (isinstance(cls, type) and issubclass(cls, BaseModel)):
        raise ValueError(f"{data['type']!r} is no pydantic model")
    return cls.model_validate(data["data"])


def _report_call(item: Any) -> ToolCallReport | None:
    found = extract_tool_call_info(item)
    if found is None:
        return None
    call_id, name, arguments = found
    return ToolCallReport(call_id, name, parse_arguments(arguments))


def _count_tokens(usages: Sequence[Mapping[str, Any]]) -> TokenCounts | None:
    metrics = [found for usage in usages if (found := UsageMetrics.from_provider_dict(dict(usage))) is not None]
    if not metrics:
        return None
    return TokenCounts(
        sum(one.prompt_tokens for one in metrics),
        sum(one.completion_tokens for one in metrics),
        sum(one.cached_prompt_tokens for one in metrics),
        sum(one.cache_creation_tokens for one in metrics),
    )


def parse_call_type(value: Any) -> LLMCallType | None:
    """The type of a call from its recorded form."""
    return None if value is None else LLMCallType(value)

"""What CrewAI sends to a model, as the content that identifies the call.

Some of it is different in every process: CrewAI makes up ids for tool calls of providers that have none, from memory
addresses. They are replaced by numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from crewai.llms.base_llm import BaseLLM
from crewai.llms.cache import CACHE_BREAKPOINT_KEY
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from holdfast.integrations.model_call import ModelInput

_GENERATED_CALL_ID = re.compile(r"call_\d+")
"""CrewAI's own ids of tool calls: see ``crewai.utilities.agent_utils.extract_tool_call_info``."""
_SETTINGS = (
    "api",
    "frequency_penalty",
    "instructions",
    "max_completion_tokens",
    "max_tokens",
    "n",
    "presence_penalty",
    "reasoning_effort",
    "response_format",
    "seed",
    "stop_sequences",
    "stream",
    "temperature",
    "top_p",
)
"""Attributes of a model that decide its answer and hold no secrets."""


def make_model_input(llm: BaseLLM, arguments: Mapping[str, Any]) -> ModelInput:
    """What a call of the model sends."""
    settings: dict[str, Any] = {}
    for name in _SETTINGS:
        if (value := getattr(llm, name, None)) not in (None, False, []):
            settings[name] = _to_json(value)
    if tools := arguments.get("tools"):
        settings["tools"] = _to_json(tools)
    if (response_model := arguments.get("response_model")) is not None:
        settings["response_model"] = _to_json(response_model)
    limit = settings.get("max_completion_tokens") or settings.get("max_tokens") or 0
    return ModelInput(
        get_model_name(llm),
        _read_messages(arguments["messages"]),
        settings,
        max_output_tokens=int(limit),
        url=_get_url(llm),
    )


def get_model_name(llm: BaseLLM) -> str:
    """The model with its provider, as in ``openai:gpt-4o``."""
    provider, _, name = llm.model.partition("/")
    if not name:
        provider, name = llm.provider, llm.model
    return f"{provider}:{name}" if provider else name


def _get_url(llm: BaseLLM) -> str | None:
    return getattr(llm, "base_url", None) or getattr(llm, "api_base", None)


def _read_messages(messages: Any) -> list[dict[str, Any]]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    ids: dict[str, str] = {}
    return [_read_message(message, ids) for message in cast("Sequence[Any]", messages)]


def _read_message(message: Any, ids: dict[str, str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        return {"role": "user", "content": _to_json(message)}
    read: dict[str, Any] = {}
    for key, value in cast("Mapping[str, Any]", message).items():
        if key == CACHE_BREAKPOINT_KEY or value is None:
            continue
        if key == "tool_call_id":
            read[key] = _normalize_id(value, ids)
        elif key == "tool_calls":
            read[key] = [_read_call(call, ids) for call in _to_json(value)]
        elif isinstance(value, str):
            read[key] = value
        else:
            read[key] = _to_json(value)
    return read


def _read_call(call: Any, ids: dict[str, str]) -> Any:
    if not isinstance(call, dict):
        return call
    found = cast("dict[str, Any]", call)
    return {**found, "id": _normalize_id(found.get("id"), ids)}


def _normalize_id(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, str) and _GENERATED_CALL_ID.fullmatch(value):
        return ids.setdefault(value, f"call-{len(ids) + 1}")
    return value


def _to_json(value: Any) -> Any:
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, type):
        return value.model_json_schema() if issubclass(value, BaseModel) else value.__qualname__
    # Objects without a JSON form are named by their type: their texts may contain addresses.
    return to_jsonable_python(value, bytes_mode="base64", fallback=_describe_object)


def _describe_object(value: Any) -> Any:
    if isinstance(value, type):
        return _to_json(value)
    return type(value).__qualname__

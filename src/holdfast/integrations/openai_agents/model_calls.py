"""A model of the SDK whose calls are recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast, get_args

from agents import FunctionTool, Handoff, Model, ModelResponse, ModelSettings, Tool, Usage
from agents.items import TResponseInputItem, TResponseStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from holdfast.integrations import (
    AnswerCodec,
    ModelAnswer,
    ModelInput,
    TokenCounts,
    ToolCallReport,
    parse_arguments,
    record_model_call,
    record_model_stream,
)

_RUN_CACHE_KEY_PREFIX = "agents-sdk:run:"
"""The SDK makes this prompt cache key up for each run, at random."""
_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed", "error", "response.error"})
_OPENAI_CLASSES = ("OpenAIResponsesModel", "OpenAIResponsesWSModel", "OpenAIChatCompletionsModel")


class RecordedModel(Model):
    """A model of the SDK whose calls are steps of the program.

    Args:
        model: the SDK's model.
        enter_thread: enters the logical thread of the agent's run, in which its model calls are made.
        check_tools: refuses tools that cannot be recorded, before the model can call them.
    """

    def __init__(
        self,
        model: Model,
        enter_thread: Callable[[], AbstractContextManager[None]],
        check_tools: Callable[[list[Tool]], None],
    ) -> None:
        self._model = model
        self._enter_thread = enter_thread
        self._check_tools = check_tools

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)  # pyright: ignore[reportPrivateUsage]

    async def close(self) -> None:
        """Close the SDK's model."""
        await self._model.close()

    def get_retry_advice(self, request: Any) -> Any:
        """The advice of the SDK's model."""
        return self._model.get_retry_advice(request)

    def _make_input(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: Any,
        handoffs: list[Handoff[Any, Any]],
        tracing: object,
        **details: Any,
    ) -> ModelInput:
        """What identifies a call. Without headers, which may be secret, and without what the SDK makes up."""
        self._check_tools(tools)
        settings = {"tools": [_describe_tool(tool) for tool in tools], **_get_plain_settings(model_settings)}
        if handoffs:
            settings["handoffs"] = [[one.tool_name, one.tool_description, one.input_json_schema] for one in handoffs]
        if output_schema is not None and not output_schema.is_plain_text():
            settings["output_schema"] = output_schema.json_schema()
        settings |= {name: value for name, value in details.items() if value is not None}
        name, url = _identify_model(self._model)
        messages = _make_messages(system_instructions, input)
        return ModelInput(name, messages, settings, model_settings.max_tokens or 0, url)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """The model's answer: the recorded one, or a new one."""
        model_input = self._make_input(*args, **kwargs)
        with self._enter_thread():
            return await record_model_call(
                model_input, _ResponseCodec(), lambda: self._model.get_response(*args, **kwargs)
            )

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:  # type: ignore[override]
        """The events of the model's answer: the recorded ones, or new ones."""
        model_input = self._make_input(*args, **kwargs, stream=True)
        events = record_model_stream(model_input, _EventsCodec(), lambda: self._model.stream_response(*args, **kwargs))
        try:
            while True:
                with self._enter_thread():  # for each event, because a generator's consumer has its own context
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        return
                yield event
        finally:
            await events.aclose()


# The request


def _make_messages(system_instructions: str | None, input: str | list[TResponseInputItem]) -> list[Mapping[str, Any]]:
    messages: list[Mapping[str, Any]] = []
    if system_instructions:
        messages.append({"role": "system", "content": system_instructions})
    if isinstance(input, str):
        messages.append({"role": "user", "content": input})
    else:
        messages += [_make_message(cast("Mapping[str, Any]", item)) for item in input]
    return messages


def _identify_model(model: Model) -> tuple[str, str | None]:
    """The model as ``provider:model``, and the URL of its provider."""
    name = str(getattr(model, "model", "") or type(model).__name__)
    client = getattr(model, "_client", None)
    url = None if client is None else str(getattr(client, "base_url", "") or "") or None
    if type(model).__name__ in _OPENAI_CLASSES:
        return f"openai:{name}", url
    provider, _, rest = name.partition("/")
    return (f"{provider}:{rest}" if rest else name), url


def _make_message(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An input item with a role, and with its text in ``content``."""
    kind = item.get("type")
    if kind is not None and str(kind).endswith("_output"):
        return {"role": "tool", "tool_call_id": item.get("call_id", ""), "content": item.get("output"), "type": kind}
    return item if "role" in item else {"role": "assistant", **item}


def _describe_tool(tool: Tool) -> Any:
    if isinstance(tool, FunctionTool):
        return [tool.name, tool.description, tool.params_json_schema]
    return [getattr(tool, "type", type(tool).__name__), tool.name]


def _get_plain_settings(model_settings: ModelSettings) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for one in dataclasses.fields(model_settings):
        value = getattr(model_settings, one.name)
        if value is None or one.name in ("retry", "extra_headers", "timeout"):
            continue
        if one.name == "extra_args":
            value = {
                key: item
                for key, item in value.items()
                if not (key == "prompt_cache_key" and str(item).startswith(_RUN_CACHE_KEY_PREFIX))
            }
        if value != {}:
            settings[one.name] = _to_plain(value)
    return settings


def _to_plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


# The answer


def _dump(value: Any) -> Any:
    """An object of the provider's API as JSON data; it may differ from its declared type."""
    return value.model_dump(mode="json", exclude_unset=True, warnings=False) if hasattr(value, "model_dump") else value


class _ResponseCodec(AnswerCodec[ModelResponse]):
    """A whole answer."""

    is_exact = True

    def dump(self, answer: ModelResponse) -> Any:
        data: dict[str, Any] = {
            "output": [_dump(item) for item in answer.output],
            "usage": _dump_usage(answer.usage),
            "response_id": answer.response_id,
        }
        if answer.request_id is not None:
            data["request_id"] = answer.request_id
        if answer.raw_usage is not None:
            data["raw_usage"] = answer.raw_usage
        return data

    def load(self, data: Any) -> ModelResponse:
        return ModelResponse(
            output=Response.construct(output=data["output"]).output,
            usage=_load_usage(data["usage"]),
            response_id=data["response_id"],
            request_id=data.get("request_id"),
            raw_usage=data.get("raw_usage"),
        )

    def describe(self, answer: ModelResponse) -> ModelAnswer:
        used = answer.usage
        counts = None
        if used.requests or used.total_tokens:
            counts = TokenCounts(used.input_tokens, used.output_tokens, used.input_tokens_details.cached_tokens or 0)
        return _describe_output(answer.output, counts)


class _EventsCodec(AnswerCodec[list[Any]]):
    """A streamed answer: its events."""

    is_exact = True

    def dump(self, answer: list[Any]) -> Any:
        return [_dump(event) for event in answer]

    def load(self, data: Any) -> list[Any]:
        return [_load_event(event) for event in data]

    def describe(self, answer: list[Any]) -> ModelAnswer:
        response = next((found for event in reversed(answer) if (found := getattr(event, "response", None))), None)
        if response is None:
            return ModelAnswer("".join(map(self.get_text, answer)))
        used = response.usage
        counts = None
        if used is not None:
            details = getattr(used, "input_tokens_details", None)
            cached = getattr(details, "cached_tokens", 0) or 0
            counts = TokenCounts(used.input_tokens, used.output_tokens, cached)
        return _describe_output(response.output, counts, str(response.model or ""), response.status)

    def get_text(self, event: Any) -> str:
        return event.delta if event.type == "response.output_text.delta" else ""

    def is_last(self, event: Any) -> bool:
        return event.type in _LAST_EVENTS


def _describe_output(
    output: Sequence[Any], tokens: TokenCounts | None, model: str = "", finish_reason: str | None = None
) -> ModelAnswer:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCallReport] = []
    for item in output:
        kind = getattr(item, "type", "")
        if kind == "message":
            texts += [getattr(part, "text", None) or getattr(part, "refusal", "") or "" for part in item.content or ()]
        elif kind == "reasoning":
            thoughts += [part.text for part in item.summary or ()]
        elif kind == "function_call":
            calls.append(ToolCallReport(item.call_id, item.name, parse_arguments(item.arguments)))
    return ModelAnswer("".join(texts), calls, tokens, "\n".join(thoughts), model, finish_reason)


def _collect_event_classes() -> dict[str, Any]:
    """The classes of events by their type."""
    found: dict[str, Any] = {}
    for cls in get_args(get_args(ResponseStreamEvent)[0]):
        for name in get_args(cls.model_fields["type"].annotation):
            found[name] = cls
    return found


_EVENT_CLASSES = _collect_event_classes()


def _load_event(data: Any) -> Any:
    cls = _EVENT_CLASSES.get(data["type"])
    # `construct` accepts what a compatible provider sends, as the provider's client does.
    return Response.construct(**data) if cls is None else cls.construct(**data)


def _dump_usage(usage: Usage) -> dict[str, Any]:
    return {
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "input_tokens_details": _dump(usage.input_tokens_details),
        "output_tokens": usage.output_tokens,
        "output_tokens_details": _dump(usage.output_tokens_details),
        "total_tokens": usage.total_tokens,
    }


def _load_usage(data: Mapping[str, Any]) -> Usage:
    details: dict[str, Any] = {
        "input_tokens_details": InputTokensDetails.construct(**data["input_tokens_details"]),
        "output_tokens_details": OutputTokensDetails.construct(**data["output_tokens_details"]),
    }
    return Usage(**{**data, **details})

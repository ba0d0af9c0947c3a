"""The calls of chat models below a durable graph as recorded steps.

The seam is what a chat model implements for its provider: ``_generate`` and ``_stream``, and their async forms. All
ways to call a model end there: ``invoke``, ``stream``, ``batch``, chains, structured output, agents. Callbacks, caches,
and the stream mode ``messages`` are above it, so they see a recorded answer as they see a live one.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from holdfast.integrations.langgraph.graph_context import GraphContext, current_graph
from holdfast.integrations.langgraph.values import from_data, to_data, to_json_data
from holdfast.integrations.model_call import (
    AnswerCodec,
    ModelAnswer,
    ModelInput,
    record_model_call,
    record_model_call_sync,
    record_model_stream,
    record_model_stream_sync,
)
from holdfast.reports.recorded_reply import ToolCallReport
from holdfast.services.model_prices import TokenCounts

_SUBJECT = "the answer of a model"
_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
_PROVIDERS = {"google_genai": "google-gla", "google_vertexai": "google-vertex", "amazon_bedrock": "bedrock"}
"""The library's names of providers whose prices have another name."""
_LEFT_OUT_SETTINGS = frozenset({"_type", "ls_structured_output_format", "headers", "default_headers", "extra_headers"})
"""Settings that do not influence the answer, or may be secret."""


# The answer


class ResultCodec(AnswerCodec[ChatResult]):
    """A whole answer."""

    def dump(self, answer: ChatResult) -> Any:
        """The answer as JSON data."""
        generations = [[generation.message, generation.generation_info] for generation in answer.generations]
        return to_data({"generations": generations, "llm_output": answer.llm_output}, _SUBJECT)

    def load(self, data: Any) -> ChatResult:
        """The answer from its JSON data."""
        loaded = from_data(data, _SUBJECT)
        generations = [ChatGeneration(message=message, generation_info=info) for message, info in loaded["generations"]]
        return ChatResult(generations=generations, llm_output=loaded["llm_output"])

    def describe(self, answer: ChatResult) -> ModelAnswer:
        """What readers see of it."""
        return _describe([generation.message for generation in answer.generations])


class ChunksCodec(AnswerCodec[list[ChatGenerationChunk]]):
    """A streamed answer."""

    def dump(self, answer: list[ChatGenerationChunk]) -> Any:
        """The answer as JSON data."""
        return to_data([[chunk.message, chunk.generation_info] for chunk in answer], _SUBJECT)

    def load(self, data: Any) -> list[ChatGenerationChunk]:
        """The answer from its JSON data."""
        return [
            ChatGenerationChunk(message=message, generation_info=info) for message, info in from_data(data, _SUBJECT)
        ]

    def describe(self, answer: list[ChatGenerationChunk]) -> ModelAnswer:
        """What readers see of it."""
        first, *rest = (cast(Any, chunk.message) for chunk in answer)
        return _describe([first + rest if rest else first])

    def get_text(self, event: ChatGenerationChunk) -> str:
        """The text in a part of the answer."""
        return _get_text(event.message)


RESULT_CODEC, CHUNKS_CODEC = ResultCodec(), ChunksCodec()


def _get_text(message: BaseMessage) -> str:
    content = message.content
    return content if isinstance(content, str) else str(message.text)


def _describe(messages: Sequence[BaseMessage]) -> ModelAnswer:
    message = messages[0] if messages else AIMessage("")
    if not isinstance(message, AIMessage):
        return ModelAnswer(_get_text(message))
    metadata = message.response_metadata
    calls = [ToolCallReport(call["id"] or "", call["name"], call["args"]) for call in message.tool_calls]
    calls += [
        ToolCallReport(call.get("id") or "", call.get("name") or "", call.get("args") or "")
        for call in message.invalid_tool_calls
    ]
    used = message.usage_metadata
    tokens = None
    if used is not None:
        details: Mapping[str, Any] = used.get("input_token_details") or {}
        read, written = details.get("cache_read") or 0, details.get("cache_creation") or 0
        tokens = TokenCounts(used["input_tokens"], used["output_tokens"], read, written)
    return ModelAnswer(
        _get_text(message),
        calls,
        tokens,
        _get_thinking(message.content),
        metadata.get("model_name") or metadata.get("model") or "",
        metadata.get("finish_reason") or metadata.get("stop_reason"),
    )


def _get_thinking(content: Any) -> str:
    if isinstance(content, str):
        return ""
    blocks = [block for block in content if isinstance(block, dict)]
    return "".join(str(block.get("thinking") or block.get("reasoning") or "") for block in blocks)


# The request


def make_model_input(model: BaseChatModel, messages: Sequence[BaseMessage], stop: Any, options: Any) -> ModelInput:
    """What identifies a call. The ids of messages are not a part of it."""
    ls = cast("Mapping[str, Any]", model._get_ls_params(stop=stop, **options))  # pyright: ignore[reportPrivateUsage]
    provider = str(ls.get("ls_provider") or model._llm_type)  # pyright: ignore[reportPrivateUsage]
    name = str(ls.get("ls_model_name") or type(model).__name__)
    settings = {**model._identifying_params, **options, "stop": stop}  # pyright: ignore[reportPrivateUsage]
    url = getattr(model, "openai_api_base", None) or getattr(model, "base_url", None)
    return ModelInput(
        f"{_PROVIDERS.get(provider, provider)}:{name}",
        [_describe_message(message) for message in messages],
        {
            key: to_json_data(value)
            for key, value in settings.items()
            if value is not None and key not in _LEFT_OUT_SETTINGS
        },
        max_output_tokens=ls.get("ls_max_tokens") or 0,
        url=url if isinstance(url, str) else None,
    )


def _describe_message(message: BaseMessage) -> dict[str, Any]:
    described: dict[str, Any] = {"role": _ROLES.get(message.type, message.type), "content": message.content}
    if message.name:
        described["name"] = message.name
    if isinstance(message, AIMessage):
        if message.tool_calls:
            described["tool_calls"] = [
                {"id": call["id"], "name": call["name"], "args": call["args"]} for call in message.tool_calls
            ]
    elif message.type == "tool":
        described["tool_call_id"] = cast(Any, message).tool_call_id
    elif isinstance(message, SystemMessage):
        described["role"] = "system"
    return described


# The seam


class _Call:
    """One call of a model below a durable graph."""

    def __init__(self, model: BaseChatModel, graph: GraphContext, args: Sequence[Any], options: Any, kind: str) -> None:
        given = dict(zip(("messages", "stop", "run_manager"), args, strict=False)) | options
        given.pop("run_manager", None)
        messages, stop = given.pop("messages"), given.pop("stop", None)
        self.graph = graph
        self.input = make_model_input(model, messages, stop, given)
        self.kind = kind
        self._id = f"lc_run--{uuid.uuid4()}"

    def add_id(self, message: BaseMessage) -> None:
        """An id that is recorded: the library would make another one after a crash."""
        if message.id is None:
            message.id = self._id

    def add_ids(self, result: ChatResult) -> ChatResult:
        """The same for a whole answer."""
        for generation in result.generations:
            self.add_id(generation.message)
        return result


def _wrap_generate(original: Callable[..., ChatResult]) -> Callable[..., ChatResult]:
    @functools.wraps(original)
    def generate(self: Any, *args: Any, **options: Any) -> ChatResult:
        if (graph := current_graph.get()) is None:
            return original(self, *args, **options)
        call = _Call(self, graph, args, options, "model call")

        def execute() -> ChatResult:
            return call.add_ids(original(self, *args, **options))

        def record() -> ChatResult:
            with graph.in_model_thread():
                return record_model_call_sync(call.input, RESULT_CODEC, execute)

        return graph.once_per_attempts_sync(call.kind, call.input, record)

    return generate


def _wrap_agenerate(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def agenerate(self: Any, *args: Any, **options: Any) -> Any:
        if (graph := current_graph.get()) is None:
            return await original(self, *args, **options)
        call = _Call(self, graph, args, options, "model call")

        async def execute() -> ChatResult:
            return call.add_ids(await original(self, *args, **options))

        async def record() -> ChatResult:
            with graph.in_model_thread():
                return await record_model_call(call.input, RESULT_CODEC, execute)

        return await graph.once_per_attempts(call.kind, call.input, record)

    return agenerate


def _wrap_stream(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(original)
    def stream(self: Any, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        if (graph := current_graph.get()) is None:
            yield from original(self, *args, **options)
            return
        call = _Call(self, graph, args, options, "model stream")

        def execute() -> Iterator[ChatGenerationChunk]:
            for chunk in original(self, *args, **options):
                call.add_id(chunk.message)
                yield chunk

        outcome = graph.attempt.find(call.kind, call.input)
        if outcome:
            yield from map(_copy, outcome[0])
            return
        recorded = record_model_stream_sync(call.input, CHUNKS_CODEC, execute)
        with graph.in_model_thread():
            chunks = list(itertools.islice(recorded, 1))  # the first one opens the call
        yield from map(_copy, chunks)
        for chunk in recorded:
            chunks.append(chunk)
            yield _copy(chunk)
        outcome.append(chunks)

    return stream


def _wrap_astream(original: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    @functools.wraps(original)
    async def astream(self: Any, *args: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
        if (graph := current_graph.get()) is None:
            async for chunk in original(self, *args, **options):
                yield chunk
            return
        call = _Call(self, graph, args, options, "model stream")

        async def execute() -> AsyncIterator[ChatGenerationChunk]:
            async for chunk in original(self, *args, **options):
                call.add_id(chunk.message)
                yield chunk

        outcome = graph.attempt.find(call.kind, call.input)
        if outcome:
            for chunk in outcome[0]:
                yield _copy(chunk)
            return
        recorded = record_model_stream(call.input, CHUNKS_CODEC, execute)
        chunks: list[ChatGenerationChunk] = []
        with graph.in_model_thread():
            first = await anext(recorded, None)  # it opens the call
        if first is not None:
            chunks.append(first)
            yield _copy(first)
        async for chunk in recorded:
            chunks.append(chunk)
            yield _copy(chunk)
        outcome.append(chunks)

    return astream


def _copy(chunk: ChatGenerationChunk) -> ChatGenerationChunk:
    """A copy for the library, which changes the parts that it gets."""
    return chunk.model_copy(update={"message": chunk.message.model_copy()})


_WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "_generate": _wrap_generate,
    "_agenerate": _wrap_agenerate,
    "_stream": _wrap_stream,
    "_astream": _wrap_astream,
}


def wrap_models() -> None:
    """Let all chat models record their calls below durable graphs: those of today, and those defined later."""
    for model in _list_subclasses(BaseChatModel):
        _wrap_class(model)
    original = BaseChatModel.__pydantic_init_subclass__.__func__  # pyright: ignore[reportFunctionMemberAccess]

    @functools.wraps(original)
    def init_subclass(cls: type[BaseChatModel], **options: Any) -> None:
        original(cls, **options)
        _wrap_class(cls)

    setattr(BaseChatModel, "__pydantic_init_subclass__", classmethod(init_subclass))  # noqa: B010


def _list_subclasses(cls: type) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _list_subclasses(subclass)


def _wrap_class(model: type) -> None:
    # The wrapped method of a base class that is called by `super()` is a part of the call.
    for name, wrap in _WRAPPERS.items():
        method = vars(model).get(name)
        if callable(method) and not hasattr(method, "holdfast_wrapped"):
            wrapped = wrap(method)
            wrapped.holdfast_wrapped = True
            setattr(model, name, wrapped)

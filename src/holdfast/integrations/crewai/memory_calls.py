"""Memory and knowledge of CrewAI as recorded steps.

What is found in them goes into prompts, and they change while a crew runs. So a program that runs again must find what
it found before, and must not save a memory twice. The embeddings are a part of these steps, and are not recorded one by
one; the model calls by which CrewAI analyzes a query or a memory are.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from crewai.knowledge.knowledge import Knowledge
from crewai.memory.types import MemoryMatch, MemoryRecord
from crewai.memory.unified_memory import Memory
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from holdfast.codec import ValueCodec
from holdfast.codec.formatting import capitalize_first
from holdfast.core.states import Effect
from holdfast.engine.program_context import find_program
from holdfast.errors import UnreadableRecord, UnrecordableValue
from holdfast.integrations.crewai.method_wrappers import Method, wrap_method
from holdfast.integrations.tool_call import record_tool_call, record_tool_call_sync


def replace_methods() -> None:
    """Record what is read from memory and knowledge, and what is saved in memory."""
    matches, records = _ModelCodec(list[MemoryMatch]), _ModelCodec(list[MemoryRecord])
    results = _ModelCodec(list[Any] | None)
    wrap_method(Memory, "recall", lambda original: _wrap("memory_recall", original, Effect.READ, matches))
    wrap_method(Memory, "_encode_batch", lambda original: _wrap("memory_save", original, Effect.IDEMPOTENT, records))
    wrap_method(Knowledge, "query", lambda original: _wrap("knowledge_search", original, Effect.READ, results))
    wrap_method(Knowledge, "aquery", lambda original: _wrap_async("knowledge_search", original, Effect.READ, results))


def _wrap(name: str, original: Method, effect: Effect, codec: ValueCodec) -> Method:
    parameters = signature(original)

    def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
        if find_program() is None:
            return original(owner, *args, **kwargs)
        arguments = _read_arguments(parameters.bind(owner, *args, **kwargs).arguments)
        return record_tool_call_sync(
            name, arguments, lambda: original(owner, *args, **kwargs), effect=effect, codec=codec
        )

    return call


def _wrap_async(name: str, original: Method, effect: Effect, codec: ValueCodec) -> Method:
    parameters = signature(original)

    async def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
        if find_program() is None:
            return await original(owner, *args, **kwargs)
        arguments = _read_arguments(parameters.bind(owner, *args, **kwargs).arguments)
        return await record_tool_call(
            name, arguments, lambda: original(owner, *args, **kwargs), effect=effect, codec=codec
        )

    return call


def _read_arguments(bound: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in bound.items() if name != "self" and value is not None}
    return to_jsonable_python(given, fallback=lambda value: type(value).__qualname__)


class _ModelCodec(ValueCodec):
    """Values of a type that pydantic knows, as JSON. What the type excludes, such as embeddings, is not recorded."""

    __slots__ = ("_adapter",)

    def __init__(self, kind: Any) -> None:
        self.annotation = kind
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the value read from them."""
        try:
            data = self._adapter.dump_json(value)
        except ValueError as error:
            raise UnrecordableValue(f"{capitalize_first(subject)} cannot be recorded: {error}") from error
        return data, self.decode(data, subject)

    def decode(self, data: bytes, subject: str) -> object:
        """The recorded value."""
        try:
            return self._adapter.validate_json(data)
        except ValueError as error:
            raise UnreadableRecord(f"{capitalize_first(subject)} cannot be read: {error}") from error

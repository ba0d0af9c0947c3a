"""Codecs for the answers of an agent.

An agent's ``output_type`` may be a type, several types, a function with a return annotation, or one of the library's
wrappers around these. The record contains a value of one of the types.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Union, cast

from pydantic_ai.output import NativeOutput, PromptedOutput, TextOutput, ToolOutput

from holdfast.authoring.introspection import resolve_hints
from holdfast.codec import ValueCodec, codec_for
from holdfast.reports.agent_result import AGENT_RESULT_PREFIX, AgentResult, AgentResultCodec, decode_plain_result

_TYPED_MARKER = AGENT_RESULT_PREFIX + b'"output_type":"call",'
"""The beginning of a recorded result whose output has the call's own type, which only the caller knows."""


@dataclass(frozen=True, slots=True)
class TypedOutput:
    """An output of the call's own type, instead of the agent's."""

    value: Any
    codec: ValueCodec


class RunResultCodec(AgentResultCodec):
    """Records results of an agent's runs, of the agent's ``output_type`` or of the call's own.

    A process that does not know the call's type reads its output as plain data.
    """

    __slots__ = ()

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the result decoded from them."""
        typed = getattr(value, "output", None)
        if not isinstance(typed, TypedOutput):
            return super().round_trip(value, subject)
        result = cast("AgentResult[Any]", value)
        data, read = AgentResultCodec(typed.codec).round_trip(replace(result, output=typed.value), subject)
        return _TYPED_MARKER + data.removeprefix(AGENT_RESULT_PREFIX), read

    def decode(self, data: bytes, subject: str) -> AgentResult[Any]:
        """The recorded result."""
        return decode_plain_result(data) if data.startswith(_TYPED_MARKER) else super().decode(data, subject)


def make_output_codec(output_type: Any) -> ValueCodec:
    """The codec for answers of this ``output_type``."""
    types = list(dict.fromkeys(_find_types(output_type)))
    if not types or Any in types:
        return codec_for(inspect.Signature.empty)
    return codec_for(Union[tuple(types)])  # noqa: UP007 - it is made at run time


def _find_types(spec: Any) -> Iterator[Any]:
    match spec:
        case ToolOutput():
            yield from _find_types(cast("ToolOutput[Any]", spec).output)
        case NativeOutput() | PromptedOutput():
            yield from _find_types(cast("NativeOutput[Any]", spec).outputs)
        case TextOutput():
            yield from _find_types(cast("TextOutput[Any]", spec).output_function)
        case list() | tuple():
            for item in cast("Sequence[Any]", spec):
                yield from _find_types(item)
        case None:
            yield NoneType
        case _ if inspect.isfunction(spec) or inspect.ismethod(spec):
            yield resolve_hints(cast("Callable[..., Any]", spec)).get("return", Any)
        case type() if getattr(spec, "__is_model_like__", False):  # `StructuredDict(...)`: a dict that has a schema
            yield dict[str, Any]
        case _:
            yield spec

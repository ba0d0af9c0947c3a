"""The answers of an agent, as values that can be recorded.

An agent's ``output_type`` may be a type, several of them, a function whose return annotation says it, or one of the
library's marks around these. What is recorded is a value of one of the types.
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
"""How the result of a run begins whose output has a type of its own, which only its caller knows."""


@dataclass(frozen=True, slots=True)
class TypedOutput:
    """An output of the type that one call asked for, instead of the agent's."""

    value: Any
    codec: ValueCodec


class RunResultCodec(AgentResultCodec):
    """Records results of an agent's runs: most of the agent's ``output_type``, some of a type that the call gave.

    A process that does not know the type of the call reads its output as plain data.
    """

    __slots__ = ()

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the result as it will be read from them."""
        typed = getattr(value, "output", None)
        if not isinstance(typed, TypedOutput):
            return super().round_trip(value, subject)
        result = cast("AgentResult[Any]", value)
        data, read = AgentResultCodec(typed.codec).round_trip(replace(result, output=typed.value), subject)
        return _TYPED_MARKER + data.removeprefix(AGENT_RESULT_PREFIX), read

    def decode(self, data: bytes, subject: str) -> AgentResult[Any]:
        """The result, with the answer in the agent's type."""
        return decode_plain_result(data) if data.startswith(_TYPED_MARKER) else super().decode(data, subject)


def make_output_codec(output_type: Any) -> ValueCodec:
    """How the answers of an agent with this ``output_type`` are recorded."""
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
            for one in cast("Sequence[Any]", spec):
                yield from _find_types(one)
        case None:
            yield NoneType
        case _ if inspect.isfunction(spec) or inspect.ismethod(spec):
            yield resolve_hints(cast("Callable[..., Any]", spec)).get("return", Any)
        case type() if getattr(spec, "__is_model_like__", False):  # `StructuredDict(...)`: a dict that has a schema
            yield dict[str, Any]
        case _:
            yield spec

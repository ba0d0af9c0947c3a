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

from holdfast.authoring.introspection import hints_of
from holdfast.codec import ValueCodec, codec_for
from holdfast.reports.agent_result import MARK, AgentResult, AgentResultCodec, plain_result

_TYPED = MARK + b'"output_type":"call",'
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

    def record(self, value: object, what: str) -> tuple[bytes, object]:
        """The bytes to record, and the result as it will be read from them."""
        typed = getattr(value, "output", None)
        if not isinstance(typed, TypedOutput):
            return super().record(value, what)
        result = cast("AgentResult[Any]", value)
        data, read = AgentResultCodec(typed.codec).record(replace(result, output=typed.value), what)
        return _TYPED + data.removeprefix(MARK), read

    def decode(self, data: bytes, what: str) -> AgentResult[Any]:
        """The result, with the answer in the agent's type."""
        return plain_result(data) if data.startswith(_TYPED) else super().decode(data, what)


def output_codec(output_type: Any) -> ValueCodec:
    """How the answers of an agent with this ``output_type`` are recorded."""
    types = list(dict.fromkeys(_types_in(output_type)))
    if not types or Any in types:
        return codec_for(inspect.Signature.empty)
    return codec_for(Union[tuple(types)])  # noqa: UP007 - it is made at run time


def _types_in(spec: Any) -> Iterator[Any]:
    match spec:
        case ToolOutput():
            yield from _types_in(cast("ToolOutput[Any]", spec).output)
        case NativeOutput() | PromptedOutput():
            yield from _types_in(cast("NativeOutput[Any]", spec).outputs)
        case TextOutput():
            yield from _types_in(cast("TextOutput[Any]", spec).output_function)
        case list() | tuple():
            for one in cast("Sequence[Any]", spec):
                yield from _types_in(one)
        case None:
            yield NoneType
        case _ if inspect.isfunction(spec) or inspect.ismethod(spec):
            yield hints_of(cast("Callable[..., Any]", spec)).get("return", Any)
        case type() if getattr(spec, "__is_model_like__", False):  # `StructuredDict(...)`: a dict that has a schema
            yield dict[str, Any]
        case _:
            yield spec

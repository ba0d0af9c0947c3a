"""The tool calls of CrewAI as recorded steps: ``run`` of tools, and ``invoke`` of structured tools.

A failed tool is called again by some of CrewAI's executors, without asking the model. A ``once`` tool must not run
twice, so its failure is returned as a ``ToolFailure``: the model sees it, and decides.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

from crewai.tools.base_tool import BaseTool
from crewai.tools.structured_tool import CrewStructuredTool
from crewai.tools.tool_failure import ToolFailure, ToolFailureReason
from crewai.utilities.string_utils import sanitize_tool_name
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from holdfast.codec import ValueCodec, codec_for
from holdfast.core.states import Effect
from holdfast.engine.program_context import find_program
from holdfast.errors import DefinitionError
from holdfast.integrations.crewai.method_wrappers import Method, is_outermost, wrap_in_subclasses
from holdfast.integrations.tool_call import describe_failure, record_tool_call, record_tool_call_sync

_current_effects: ContextVar[Mapping[str, Effect] | None] = ContextVar("holdfast_crewai_effects", default=None)
_ANY_CODEC = codec_for(Any)
_FAILURE, _RESULT = "$crewai_failure", "$crewai_result"


def replace_methods() -> None:
    """Record the calls of all tools, also of classes that are defined later."""
    wrap_in_subclasses(BaseTool, {"run": partial(_wrap_sync, "run"), "arun": partial(_wrap_async, "arun")})
    invoke = {"invoke": partial(_wrap_sync, "invoke"), "ainvoke": partial(_wrap_async, "ainvoke")}
    wrap_in_subclasses(CrewStructuredTool, invoke)


def parse_effects(effects: Mapping[str, Effect | str], subject: str) -> dict[str, Effect]:
    """The effects by the names under which models see the tools."""
    parsed: dict[str, Effect] = {}
    for name, effect in effects.items():
        try:
            parsed[sanitize_tool_name(name)] = Effect(effect)
        except ValueError:
            known = ", ".join(repr(one.value) for one in Effect)
            raise DefinitionError(
                f"{subject}: the effect of tool {name!r} is {effect!r}, which is not one of {known}"
            ) from None
    return parsed


@contextmanager
def applying_effects(effects: Mapping[str, Effect]) -> Generator[None]:
    """The block in which tools have these effects, besides those of enclosing blocks."""
    token = _current_effects.set({**(_current_effects.get() or {}), **effects})
    try:
        yield
    finally:
        _current_effects.reset(token)


def _wrap_sync(method: str, original: Method) -> Method:
    def call(tool: Any, *args: Any, **kwargs: Any) -> Any:
        if find_program() is None or not is_outermost(tool, method, original):
            return original(tool, *args, **kwargs)
        request = _ToolRequest(tool, args, kwargs)
        try:
            return record_tool_call_sync(
                request.name,
                request.arguments,
                lambda: original(tool, *args, **kwargs),
                effect=request.effect,
                codec=request.codec,
            )
        except Exception as error:
            return request.handle_failure(error)

    return call


def _wrap_async(method: str, original: Method) -> Method:
    async def call(tool: Any, *args: Any, **kwargs: Any) -> Any:
        if find_program() is None or not is_outermost(tool, method, original):
            return await original(tool, *args, **kwargs)
        request = _ToolRequest(tool, args, kwargs)
        try:
            return await record_tool_call(
                request.name,
                request.arguments,
                lambda: original(tool, *args, **kwargs),
                effect=request.effect,
                codec=request.codec,
            )
        except Exception as error:
            return request.handle_failure(error)

    return call


class _ToolRequest:
    """One call of a tool in a program."""

    def __init__(self, tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.name = sanitize_tool_name(tool.name)
        self.arguments = _read_arguments(tool, args, kwargs)
        self.effect = (_current_effects.get() or {}).get(self.name, Effect.IDEMPOTENT)
        self.codec = _ResultCodec(getattr(tool, "result_schema", None))

    def handle_failure(self, error: Exception) -> Any:
        """Raise the failure, or return it if the tool must not be called again without the model."""
        if self.effect is not Effect.ONCE:
            raise error
        return ToolFailure(message=describe_failure(error, self.name), reason=ToolFailureReason.EXCEPTION)


def _read_arguments(tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, as JSON data."""
    if isinstance(tool, CrewStructuredTool):
        given = args[0] if args else kwargs.get("input", {})
        arguments = cast("dict[str, Any]", given) if isinstance(given, dict) else {"input": given}
    else:
        names = list(tool.args_schema.model_fields) if args else []
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    return to_jsonable_python(arguments, fallback=lambda value: type(value).__qualname__)


class _ResultCodec(ValueCodec):
    """Results of a tool: plain data, instances of its result schema, and CrewAI's own failures."""

    __slots__ = ("_schema",)

    def __init__(self, schema: type[BaseModel] | None) -> None:
        self.annotation = Any
        self._schema = schema

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the result read from them."""
        if isinstance(value, ToolFailure):
            value = {_FAILURE: value.model_dump(mode="json")}
        elif self._schema is not None and isinstance(value, self._schema):
            value = {_RESULT: value.model_dump(mode="json")}
        data, decoded = _ANY_CODEC.round_trip(value, subject)
        return data, self._restore(decoded)

    def decode(self, data: bytes, subject: str) -> object:
        """The recorded result."""
        return self._restore(_ANY_CODEC.decode(data, subject))

    def _restore(self, value: object) -> object:
        if isinstance(value, dict):
            found = cast("dict[str, Any]", value)
            if _FAILURE in found:
                return ToolFailure.model_validate(found[_FAILURE])
            if _RESULT in found and self._schema is not None:
                return self._schema.model_validate(found[_RESULT])
        return cast(object, value)

"""A function tool of the SDK whose calls are recorded.

What is recorded is the output that the SDK's own function for a call returns: with the tool's timeout applied, and with
a failure turned into a text for the model, if the tool does that. Such a call is recorded as failed, with this text.
The call runs again only if it is not recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from traceback import format_exception_only
from typing import Any, cast
from weakref import WeakKeyDictionary

from agents import (
    Agent,
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    FunctionTool,
    Handoff,
    LocalShellTool,
    ShellTool,
    Tool,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
)
from agents.tool import maybe_invoke_function_tool_failure_error_function
from agents.tool_context import ToolContext
from pydantic import TypeAdapter
from pydantic_core import from_json

from holdfast.authoring.introspection import resolve_hints
from holdfast.codec import ValueCodec, codec_for
from holdfast.core.states import Effect
from holdfast.errors import DefinitionError, HoldfastError, StepOutcomeUnknown, UnrecordableValue, UsageError
from holdfast.integrations import ToolFailed, describe_failure, parse_arguments, record_tool_call
from holdfast.integrations.openai_agents.sdk_hooks import noting_failures
from holdfast.integrations.tool_names import check_tool_names

_CONTENT_TYPES = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
_CONTENT_ADAPTER: TypeAdapter[Any] = TypeAdapter(ToolOutputText | ToolOutputImage | ToolOutputFileContent)
_CONTENT_PREFIX = b'{"$content":'
_ANY_CODEC = codec_for(Any)

_LOCAL_TOOLS = (ComputerTool, LocalShellTool, ShellTool, ApplyPatchTool, CustomTool)
"""Tools that the SDK executes in the process, and not as function tools."""


async def record_function_tool(
    tool: FunctionTool,
    context: ToolContext[Any],
    arguments: str,
    effect: Effect | str,
    invoke: Callable[[], Awaitable[Any]],
) -> tuple[Any, bool]:
    """The output of a call, and whether it is a text about a failure that the SDK has made up."""

    async def call() -> Any:
        with noting_failures() as failures:
            result = await invoke()
        if isinstance(result.output, str) and (failures or result.is_sdk_generated_error):
            failure = "".join(format_exception_only(failures[-1])).strip() if failures else result.output
            raise ToolFailed(failure, {"text": result.output, "is_sdk_generated": result.is_sdk_generated_error})
        return result.output

    parsed = parse_arguments(arguments or "{}")
    given = cast("Mapping[str, Any]", parsed) if isinstance(parsed, dict) else {"arguments": arguments}
    try:
        output = await record_tool_call(
            tool.name, given, call, call_id=context.tool_call_id, effect=effect, codec=_OutputCodec(tool)
        )
    except ToolFailed as failed:
        return failed.output["text"], failed.output["is_sdk_generated"]
    except StepOutcomeUnknown as unknown:
        return await _describe_unknown(tool, context, unknown), False
    return output, False


async def _describe_unknown(tool: FunctionTool, context: ToolContext[Any], unknown: StepOutcomeUnknown) -> Any:
    """The text for the model about a call that may have happened, unless the tool's failures end the run."""
    text = await maybe_invoke_function_tool_failure_error_function(function_tool=tool, context=context, error=unknown)
    if text is None:
        raise unknown
    return describe_failure(unknown, tool.name)


def check_tools(tools: Sequence[Tool], agent_names: str) -> None:
    """Refuse tools whose calls cannot be recorded."""
    for tool in tools:
        if not isinstance(tool, _LOCAL_TOOLS):
            continue
        if isinstance(tool, ShellTool) and tool.executor is None:  # the provider executes it
            continue
        raise UsageError(
            f"{agent_names}: the tool {tool.name!r} is a {type(tool).__name__}, which the SDK executes in this process "
            "without a place to record it. After a crash, it would be executed again. Make it a function tool: "
            "@function_tool, with the commands or edits as its arguments."
        )


def parse_effects(effects: Mapping[str, Effect | str], agent: Agent[Any]) -> dict[str, Effect]:
    """The effects of an agent's tools, and of those of agents that it hands off to or uses as tools."""
    parsed: dict[str, Effect] = {}
    for tool, effect in effects.items():
        try:
            parsed[tool] = Effect(effect)
        except ValueError:
            known = ", ".join(repr(one.value) for one in Effect)
            raise DefinitionError(
                f"agent {agent.name!r}: effects={{{tool!r}: {effect!r}}} is not one of {known}"
            ) from None
    tools = _ToolNames(agent)
    check_tool_names(parsed, tools.names, f"agent {agent.name!r}", is_complete=tools.is_complete)
    return parsed


class _ToolNames:
    """The names of the function tools that a run of an agent may call."""

    def __init__(self, agent: Agent[Any]) -> None:
        self.names: set[str] = set()
        self.is_complete = True
        """Whether there are no others, such as those of an MCP server."""
        agents, visited = [agent], set[int]()
        while agents:
            one = agents.pop()
            if id(one) not in visited:
                visited.add(id(one))
                agents += self._read(one)

    def _read(self, agent: Agent[Any]) -> list[Agent[Any]]:
        """Add the names of an agent's own tools. Returns the agents that it calls."""
        agents: list[Agent[Any]] = []
        if agent.mcp_servers:
            self.is_complete = False
        for tool in agent.tools:
            if isinstance(tool, FunctionTool):
                self.names.add(tool.name)
                if isinstance(tool._agent_instance, Agent):  # pyright: ignore[reportPrivateUsage]
                    agents.append(tool._agent_instance)  # pyright: ignore[reportPrivateUsage]
        for handoff in agent.handoffs:
            reference = handoff._agent_ref if isinstance(handoff, Handoff) else None  # pyright: ignore[reportPrivateUsage]
            target: Any = (reference() if reference else None) if isinstance(handoff, Handoff) else handoff
            if isinstance(target, Agent):
                agents.append(cast("Agent[Any]", target))
            else:
                self.is_complete = False
        return agents


class _OutputCodec(ValueCodec):
    """Records the output of a tool: as its function's return annotation says, else by the value's own type.

    The model sees ``str(...)`` of other objects, and so their text is recorded.
    """

    __slots__ = ("_codec",)

    def __init__(self, tool: FunctionTool) -> None:
        self.annotation = Any
        self._codec = _get_codec(tool)

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the output decoded from them."""
        data = self._encode(value, subject)
        return data, self.decode(data, subject)

    def _encode(self, value: Any, subject: str) -> bytes:
        if isinstance(value, str):
            return _ANY_CODEC.encode(value, subject)
        is_list = isinstance(value, list)
        items = cast("list[Any]", value) if is_list else [value]
        if items and all(isinstance(item, _CONTENT_TYPES) for item in items):
            dumped = [_CONTENT_ADAPTER.dump_python(item, mode="json", exclude_unset=True) for item in items]
            return _CONTENT_PREFIX + _ANY_CODEC.encode(dumped if is_list else dumped[0], subject) + b"}"
        for codec in (self._codec, _ANY_CODEC):
            try:
                return codec.encode(value, subject)
            except UnrecordableValue:
                continue
        return _ANY_CODEC.encode(str(value), subject)

    def decode(self, data: bytes, subject: str) -> object:
        """The recorded output."""
        if data.startswith(b'"'):
            return _ANY_CODEC.decode(data, subject)
        if data.startswith(_CONTENT_PREFIX):
            dumped = from_json(data[len(_CONTENT_PREFIX) : -1])
            if isinstance(dumped, list):
                return [_CONTENT_ADAPTER.validate_python(item) for item in cast("list[Any]", dumped)]
            return _CONTENT_ADAPTER.validate_python(dumped)
        try:
            return self._codec.decode(data, subject)
        except HoldfastError:
            return _ANY_CODEC.decode(data, subject)


def _get_codec(tool: FunctionTool) -> ValueCodec:
    """The codec for the return annotation of a tool's function."""
    function = getattr(tool, "__wrapped__", None)
    if not inspect.isfunction(function):
        return _ANY_CODEC
    codec = _codecs.get(function)
    if codec is None:
        try:
            codec = codec_for(resolve_hints(function).get("return", Any))
        except DefinitionError:  # the SDK accepts more annotations
            codec = _ANY_CODEC
        _codecs[function] = codec
    return codec


_codecs: WeakKeyDictionary[Any, ValueCodec] = WeakKeyDictionary()

"""The calls of tools below a durable graph as recorded steps.

The seam is ``BaseTool.run`` and ``arun``: all ways to call a tool end there. What a tool returns to the model is
recorded: a message with its artifact, or a ``Command``. A tool that calls ``interrupt`` waits in its own call, so other
tools of the same node continue.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from holdfast.codec import ValueCodec
from holdfast.errors import StepOutcomeUnknown
from holdfast.integrations.langgraph.graph_context import GraphContext, current_graph
from holdfast.integrations.langgraph.interrupts import InterruptScope, answer_interrupts, answer_interrupts_sync
from holdfast.integrations.langgraph.values import VALUE_CODEC, to_json_data
from holdfast.integrations.tool_call import describe_failure, record_tool_call, record_tool_call_sync



class ToolResultCodec(ValueCodec):
    """What a tool returns to the model. A simple message is recorded as its content, for people to read."""

    __slots__ = ("_call_id", "_name")

    def __init__(self, name: str, call_id: str) -> None:
        self.annotation = Any
        self._name = name
        self._call_id = call_id

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the value decoded from them."""
        data, recorded = VALUE_CODEC.round_trip(value.content if self._is_simple(value) else value, subject)
        return data, self._restore(recorded)

    def decode(self, data: bytes, subject: str) -> object:
        """The recorded value."""
        return self._restore(VALUE_CODEC.decode(data, subject))

    def _is_simple(self, value: Any) -> bool:
        return (
            type(value) is ToolMessage
            and value.tool_call_id == self._call_id
            and value.name == self._name
            and value.status == "success"
            and value.artifact is None
            and value.id is None
            and not value.additional_kwargs
            and not value.response_metadata
            and isinstance(value.content, str)
        )

    def _restore(self, recorded: Any) -> Any:
        """With a call id, only the content of a simple message is a text."""
        if isinstance(recorded, str) and self._call_id:
            return ToolMessage(recorded, name=self._name, tool_call_id=self._call_id)
        return recorded


class _Call:
    """One call of a tool below a durable graph."""

    def __init__(self, tool: BaseTool, graph: GraphContext, tool_input: Any, options: dict[str, Any]) -> None:
        self.name = tool.name
        self.arguments = _get_arguments(tool, tool_input)
        self.call_id = options.get("tool_call_id") or ""
        self.identity = [self.call_id, self.arguments]
        self.graph = graph
        self.inner = graph.enter(self.name, self.identity)
        self._options = options
        self.key = ("tool", self.name, self.call_id, repr(self.arguments))
        self.record_options: dict[str, Any] = {
            "call_id": self.call_id,
            "effect": graph.get_effect(self.name),
            "codec": ToolResultCodec(self.name, self.call_id),
            "identity": self.identity,
        }
        self.scope = InterruptScope(options.get("config"), self.inner.attempt, is_isolated=True)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the next attempt."""
        return {**self._options, "config": self.scope.patch(self._options.get("config"))}

    def describe(self, unknown: StepOutcomeUnknown) -> ToolMessage:
        """The result of a ``once`` tool whose outcome is unknown, for the model."""
        if not self.call_id:
            raise unknown
        text = describe_failure(unknown, self.name)
        return ToolMessage(text, name=self.name, tool_call_id=self.call_id, status="error")


def _get_arguments(tool: BaseTool, tool_input: Any) -> dict[str, Any]:
    """What the model sent: without the state, the store, and the runtime, which the library adds."""
    if not isinstance(tool_input, Mapping):
        return {"input": to_json_data(tool_input)}
    shown = tool._filter_injected_args(dict(cast("Mapping[str, Any]", tool_input)))  # pyright: ignore[reportPrivateUsage]
    return {name: to_json_data(value) for name, value in shown.items()}


def _wrap_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        if (graph := current_graph.get()) is None:
            return original(self, tool_input, *args, **options)
        call = _Call(self, graph, tool_input, options)

        def execute() -> Any:
            with call.inner.active():
                return answer_interrupts_sync(
                    call.scope, lambda: original(self, tool_input, *args, **call.options)
                )

        def record() -> Any:
            try:
                return record_tool_call_sync(call.name, call.arguments, execute, **call.record_options)
            except StepOutcomeUnknown as unknown:
                return call.describe(unknown)

        return graph.once_per_attempts_sync(call.key, record)

    return run


def _wrap_arun(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def arun(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        if (graph := current_graph.get()) is None:
            return await original(self, tool_input, *args, **options)
        call = _Call(self, graph, tool_input, options)

        async def execute() -> Any:
            with call.inner.active():
                return await answer_interrupts(
                    call.scope, lambda: original(self, tool_input, *args, **call.options)
                )

        async def record() -> Any:
            try:
                return await record_tool_call(call.name, call.arguments, execute, **call.record_options)
            except StepOutcomeUnknown as unknown:
                return call.describe(unknown)

        return await graph.once_per_attempts(call.key, record)

    return arun


def wrap_tools() -> None:
    """Let all tools record their calls below durable graphs."""
    BaseTool.run = _wrap_run(BaseTool.run)  # type: ignore[method-assign]
    BaseTool.arun = _wrap_arun(BaseTool.arun)  # type: ignore[method-assign]

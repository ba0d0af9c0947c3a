"""The calls of tools below a durable graph as recorded steps.

The seam is ``BaseTool.run`` and ``arun``: all ways to call a tool end there. What a tool returns to the model is
recorded: a message with its artifact, or a ``Command``. A tool that calls ``interrupt`` waits in its own call, so other
tools of the same node continue.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph._internal._config import patch_configurable
from langgraph._internal._constants import CONF, CONFIG_KEY_SEND, RESUME

from holdfast.codec import ValueCodec
from holdfast.errors import StepOutcomeUnknown
from holdfast.integrations.langgraph.graph_context import GraphContext, add_message_ids, current_graph
from holdfast.integrations.langgraph.interrupts import InterruptScope, answer_interrupts, answer_interrupts_sync
from holdfast.integrations.langgraph.values import VALUE_CODEC, to_json_data
from holdfast.integrations.tool_call import describe_failure, record_tool_call, record_tool_call_sync

_RESULT, _WRITES = "tool_result", "channel_writes"


class _Outcome(NamedTuple):
    """What a tool has done."""

    result: Any
    """What it returns to the model."""
    writes: list[tuple[str, Any]]
    """What it has written to the state of its graph by other means, as the files of deepagents are."""


class ToolOutcomeCodec(ValueCodec):
    """Outcomes to bytes and back. A simple message is recorded as its content, for people to read."""

    __slots__ = ("_call_id", "_name")

    def __init__(self, name: str, call_id: str) -> None:
        self.annotation = Any
        self._name = name
        self._call_id = call_id

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the value decoded from them."""
        result, writes = cast(_Outcome, value)
        simplified = result.content if self._is_simple(result) else result
        if writes:
            simplified = {_RESULT: simplified, _WRITES: writes}
        data, recorded = VALUE_CODEC.round_trip(simplified, subject)
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

    def _restore(self, recorded: Any) -> _Outcome:
        writes: list[tuple[str, Any]] = []
        if isinstance(recorded, dict) and recorded.keys() == {_RESULT, _WRITES}:  # pyright: ignore[reportUnknownMemberType]
            recorded, writes = recorded[_RESULT], recorded[_WRITES]
        if isinstance(recorded, str) and self._call_id:  # with a call id, other results are no texts
            recorded = ToolMessage(recorded, name=self._name, tool_call_id=self._call_id)
        return _Outcome(recorded, writes)


class _Call:
    """One call of a tool below a durable graph."""

    def __init__(self, tool: BaseTool, graph: GraphContext, tool_input: Any, options: dict[str, Any]) -> None:
        self.name = tool.name
        self.arguments = _get_arguments(tool, tool_input)
        self.call_id = options.get("tool_call_id") or ""
        self.identity = [self.name, self.call_id, self.arguments]
        self.graph = graph
        self.inner = graph.enter(*self.identity)
        self._options = options
        self.record_options: dict[str, Any] = {
            "call_id": self.call_id,
            "effect": graph.get_effect(self.name),
            "codec": ToolOutcomeCodec(self.name, self.call_id),
            "identity": self.identity,
        }
        self.scope = InterruptScope(options.get("config"), self.inner.attempt, is_isolated=True)
        self._send = (options.get("config") or {}).get(CONF, {}).get(CONFIG_KEY_SEND)
        self._writes: list[tuple[str, Any]] | None = None
        """``None``: the tool was not executed."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the next attempt."""
        self._writes = []
        config = self.scope.patch(self._options.get("config"))
        if self._send is not None:
            config = patch_configurable(config, {CONFIG_KEY_SEND: self._note_and_send})
        return {**self._options, "config": config}

    def _note_and_send(self, writes: Sequence[tuple[str, Any]]) -> None:
        if self._writes is not None:
            self._writes += [(channel, value) for channel, value in writes if channel != RESUME]
        self._send(writes)

    def make_outcome(self, result: Any) -> _Outcome:
        """The outcome of the tool, which has returned this."""
        return _Outcome(result, self._writes or [])

    def apply(self, outcome: _Outcome) -> Any:
        """Let the graph have this outcome. Returns the result."""
        if self._writes is None and outcome.writes:
            self._send(outcome.writes)
        add_message_ids(self.inner, outcome.result)
        return outcome.result

    def describe(self, unknown: StepOutcomeUnknown) -> _Outcome:
        """The result of a ``once`` tool whose outcome is unknown, for the model."""
        if not self.call_id:
            raise unknown
        text = describe_failure(unknown, self.name)
        return _Outcome(ToolMessage(text, name=self.name, tool_call_id=self.call_id, status="error"), [])


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

        def execute() -> _Outcome:
            with call.inner.active():
                result = answer_interrupts_sync(call.scope, lambda: original(self, tool_input, *args, **call.options))
            return call.make_outcome(result)

        def record() -> _Outcome:
            try:
                return record_tool_call_sync(call.name, call.arguments, execute, **call.record_options)
            except StepOutcomeUnknown as unknown:
                return call.describe(unknown)

        return call.apply(graph.once_per_attempts_sync("tool", call.identity, record))

    return run


def _wrap_arun(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def arun(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        if (graph := current_graph.get()) is None:
            return await original(self, tool_input, *args, **options)
        call = _Call(self, graph, tool_input, options)

        async def execute() -> _Outcome:
            with call.inner.active():
                result = await answer_interrupts(call.scope, lambda: original(self, tool_input, *args, **call.options))
            return call.make_outcome(result)

        async def record() -> _Outcome:
            try:
                return await record_tool_call(call.name, call.arguments, execute, **call.record_options)
            except StepOutcomeUnknown as unknown:
                return call.describe(unknown)

        return call.apply(await graph.once_per_attempts("tool", call.identity, record))

    return arun


def wrap_tools() -> None:
    """Let all tools record their calls below durable graphs."""
    BaseTool.run = _wrap_run(BaseTool.run)  # type: ignore[method-assign]
    BaseTool.arun = _wrap_arun(BaseTool.arun)  # type: ignore[method-assign]

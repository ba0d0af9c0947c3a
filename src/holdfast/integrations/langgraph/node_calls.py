"""The nodes and tasks of a durable graph as recorded steps.

The seam is where the library runs a task of a superstep, with its retries: ``run_with_retry``. What it records is what
the library itself saves of a finished task: its writes to the channels of the graph. So a node that has finished does
not run again, whatever it did, and neither do the conditional edges after it.

The nodes that the libraries bring along, such as those of ``create_agent``, are not steps: all they do is to call
models and tools, which are steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from langgraph._internal._constants import CONF, CONFIG_KEY_SCRATCHPAD, PUSH, RESUME, RETURN
from langgraph._internal._runnable import RunnableCallable, RunnableSeq
from langgraph.errors import GraphBubbleUp, ParentCommand
from langgraph.prebuilt import ToolNode
from langgraph.pregel import _runner
from langgraph.pregel._algo import Call
from langgraph.types import Command, PregelExecutableTask

from holdfast.codec import ValueCodec
from holdfast.engine.in_place_call import NotRecorded
from holdfast.integrations.langgraph.graph_context import GraphContext, add_message_ids, current_graph
from holdfast.integrations.langgraph.interrupts import InterruptScope, answer_interrupts, answer_interrupts_sync
from holdfast.integrations.langgraph.values import VALUE_CODEC, to_json_data
from holdfast.integrations.tool_call import record_tool_call, record_tool_call_sync

_LIBRARIES = frozenset(
    {"deepagents", "langchain", "langchain_core", "langgraph", "langgraph_supervisor", "langgraph_swarm"}
)
_START = "__start__"


class _Outcome(NamedTuple):
    """How a task ended."""

    writes: list[Any]
    """Its writes: channels and values."""
    parent_command: Command[Any] | None = None
    """A command for the graph that the task's graph is a node of."""


class _OutcomeCodec(ValueCodec):
    """Outcomes to bytes and back. An outcome that only updates the state is recorded as the writes."""

    __slots__ = ()

    def __init__(self) -> None:
        self.annotation = Any

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the outcome decoded from them."""
        outcome = cast(_Outcome, value)
        data: dict[str, Any] = {"writes": [list(write) for write in outcome.writes]}
        if outcome.parent_command is not None:
            data["parent_command"] = outcome.parent_command
        encoded, decoded = VALUE_CODEC.round_trip(data, subject)
        return encoded, self._read(decoded)

    def decode(self, data: bytes, subject: str) -> object:
        """The recorded outcome."""
        return self._read(VALUE_CODEC.decode(data, subject))

    def _read(self, data: Any) -> _Outcome:
        return _Outcome([tuple(write) for write in data["writes"]], data.get("parent_command"))


_CODEC = _OutcomeCodec()


class _TaskCall:
    """One task of a superstep."""

    def __init__(self, task: PregelExecutableTask, graph: GraphContext, configurable: dict[str, Any] | None) -> None:
        self.task = task
        self.graph = graph
        self.arguments, is_call = _describe_task(task)
        self.is_step = is_call or is_step(task.name, task.proc)
        self.inner = graph.enter(task.name, self.arguments, is_of_library=not self.is_step)
        self._configurable = configurable or {}
        self.scope = InterruptScope(task.config, self.inner.attempt)
        if not self.is_step:
            return
        self.identity: list[Any] = [task.name, self.arguments]
        if not is_call:
            # Nodes of one superstep differ by their names, but several graphs may run at the same time.
            self.identity.append(to_json_data(task.input) if graph.is_inner else graph.seed)
        self.record_options: dict[str, Any] = {
            "effect": graph.get_effect(task.name),
            "codec": _CODEC,
            "identity": self.identity,
        }

    @property
    def configurable(self) -> dict[str, Any]:
        """The configuration of the next attempt."""
        scratchpad = self.scope.make_scratchpad()
        return self._configurable if scratchpad is None else {**self._configurable, CONFIG_KEY_SCRATCHPAD: scratchpad}

    def make_outcome(self, command: ParentCommand | None = None) -> _Outcome:
        """The outcome of the task, which has ended."""
        writes = [(channel, value) for channel, value in self.task.writes if channel != RESUME]
        return _Outcome(writes, None if command is None else command.args[0])

    def apply(self, outcome: Any) -> Any:
        """Let the task have this outcome. Returns what it returns to code that has called it."""
        if isinstance(outcome, GraphBubbleUp):
            raise outcome
        self.task.writes.clear()
        self.task.writes.extend(outcome.writes)
        if outcome.parent_command is not None:
            raise ParentCommand(outcome.parent_command)
        return next((value for channel, value in outcome.writes if channel == RETURN), None)


def _describe_task(task: PregelExecutableTask) -> tuple[dict[str, Any], bool]:
    """What distinguishes a task from others of its graph: its arguments if code has called it, else its superstep."""
    last = task.path[-1] if task.path else None
    if isinstance(last, Call):
        args, kwargs = last.input
        described = {str(index): to_json_data(value) for index, value in enumerate(args)}
        return described | {key: to_json_data(value) for key, value in kwargs.items()}, True
    scratchpad = task.config.get(CONF, {}).get(CONFIG_KEY_SCRATCHPAD)
    described = {"superstep": getattr(scratchpad, "step", 0)}
    if task.path and task.path[0] == PUSH:
        described["number"] = task.path[1]
    return described, False


def is_step(name: str, proc: Any) -> bool:
    """Whether the node is a step, and not one that a library brings along."""
    if name == _START:
        return False
    bound = proc.steps[0] if isinstance(proc, RunnableSeq) else proc
    if isinstance(bound, ToolNode):
        return False
    if isinstance(bound, RunnableCallable):
        function: Any = bound.func or bound.afunc
        return not _is_of_library(function)
    return True


def _is_of_library(function: Any) -> bool:
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] in _LIBRARIES


def _wrap_sync(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run_with_retry(
        task: PregelExecutableTask, retry_policy: Any, configurable: dict[str, Any] | None = None
    ) -> Any:
        if (graph := current_graph.get()) is None:
            return original(task, retry_policy, configurable)
        call = _TaskCall(task, graph, configurable)

        def execute() -> Any:
            with call.inner.active():
                result = answer_interrupts_sync(call.scope, lambda: original(task, retry_policy, call.configurable))
            add_message_ids(call.inner, list(task.writes))
            return result

        if not call.is_step:
            return execute()

        def execute_as_step() -> _Outcome:
            try:
                execute()
            except ParentCommand as command:
                return call.make_outcome(command)
            except GraphBubbleUp as control_flow:
                raise NotRecorded(control_flow) from None
            return call.make_outcome()

        def record() -> Any:
            return record_tool_call_sync(task.name, call.arguments, execute_as_step, **call.record_options)

        return call.apply(graph.once_per_attempts_sync("task", call.identity, record))

    return run_with_retry


def _wrap_async(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def arun_with_retry(
        task: PregelExecutableTask,
        retry_policy: Any,
        stream: bool = False,
        configurable: dict[str, Any] | None = None,
    ) -> Any:
        if (graph := current_graph.get()) is None:
            return await original(task, retry_policy, stream, configurable)
        call = _TaskCall(task, graph, configurable)

        async def execute() -> Any:
            with call.inner.active():
                result = await answer_interrupts(
                    call.scope, lambda: original(task, retry_policy, stream, call.configurable)
                )
            add_message_ids(call.inner, list(task.writes))
            return result

        if not call.is_step:
            return await execute()

        async def execute_as_step() -> _Outcome:
            try:
                await execute()
            except ParentCommand as command:
                return call.make_outcome(command)
            except GraphBubbleUp as control_flow:
                raise NotRecorded(control_flow) from None
            return call.make_outcome()

        async def record() -> Any:
            return await record_tool_call(task.name, call.arguments, execute_as_step, **call.record_options)

        return call.apply(await graph.once_per_attempts("task", call.identity, record))

    return arun_with_retry


def wrap_tasks() -> None:
    """Let all graphs record their nodes and tasks below durable graphs."""
    _runner.run_with_retry = _wrap_sync(_runner.run_with_retry)
    _runner.arun_with_retry = _wrap_async(_runner.arun_with_retry)

"""Executes a graph, with ordinary asyncio on a run's loop.

A chain of steps runs in one task: after a step, the task continues with a step that this has made ready. If several
steps become ready together, the first by number continues in the same task, and each of the others gets its own task.
So they are issued in the order of their numbers, and run concurrently.

When a step fails, nothing new starts, but the run waits for steps in flight: they are recorded, so a retry repeats only
what failed, and compensations know of them. In the end, the first failure in the order of the journal is raised. That
is why failures are collected here and not raised into the task group, which would cancel the others. A cancellation of
the run, in contrast, cancels steps in flight, as in any workflow.

Everything is decided by outputs and inputs, which are recorded, and by ``when=`` functions, which are workflow code.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from holdfast.authoring.classes.graph import Graph, Node
from holdfast.authoring.classes.parameter_bindings import Condition, Source
from holdfast.authoring.workflow_api import map as fan_out
from holdfast.core.execution import get_current_execution
from holdfast.core.failure_origin import FailureOrigin, find_origins, mark_origin
from holdfast.errors import RunParked, UsageError

_PENDING: Any = object()
_SKIPPED: Any = object()
"""Outputs of a step that has not ended, and of one that was skipped."""

_EXIT_EXCEPTIONS = (asyncio.CancelledError, RunParked, GeneratorExit)
"""Not failures of a step: the run is cancelled, or leaves memory."""

NodeCall = tuple[Node, dict[str, Any]]
"""A step to execute, with its arguments."""


def make_runner(graph: Graph) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The function that runs a graph."""

    async def run(**inputs: Any) -> Any:
        return await _GraphRun(graph, inputs).run()

    return run


class _GraphRun:
    """One run of a graph."""

    def __init__(self, graph: Graph, inputs: dict[str, Any]) -> None:
        self._graph = graph
        self._inputs = inputs
        self._outputs: list[Any] = [_PENDING] * len(graph.nodes)
        self._pending_counts = [node.predecessor_count for node in graph.nodes]
        self._failure: BaseException | None = None
        self._origins: list[FailureOrigin] = []
        """The records of all failed steps: a retry repeats each of them."""
        self._tasks = asyncio.TaskGroup()
        execution = get_current_execution()
        assert execution is not None  # it is workflow code
        self._execution = execution

    async def run(self) -> Any:
        async with self._tasks:
            await self._run_calls(self._prepare_calls(self._graph.first_nodes))
        if self._failure is not None:
            failure, self._failure = self._failure, None
            mark_origin(failure, *self._origins)
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame: a cycle that only the garbage collector would free
        outputs, final = self._outputs, self._graph.final_nodes
        if len(final) == 1:
            output = outputs[final[0].index]
            return None if output is _SKIPPED else output
        return {node.name: outputs[node.index] for node in final if outputs[node.index] is not _SKIPPED}

    async def _run_calls(self, calls: Sequence[NodeCall]) -> None:
        """Execute these steps, and those that become ready."""
        while calls:
            node, arguments = calls[0]
            is_after_fan_out = node.each is not None
            for call in calls[1:]:
                self._tasks.create_task(self._run_branch(call, is_after_fan_out))
                is_after_fan_out = is_after_fan_out or call[0].each is not None
            await self._execute_node(node, arguments)
            calls = self._prepare_calls(self._complete_node(node))

    async def _run_branch(self, call: NodeCall, is_after_fan_out: bool) -> None:
        if is_after_fan_out and call[0].each is None:
            await asyncio.sleep(0)  # the items of a fan-out are issued by their own tasks: let them go first
        if self._failure is None:
            await self._run_calls([call])

    async def _execute_node(self, node: Node, arguments: dict[str, Any]) -> None:
        try:
            if node.each is None:
                self._outputs[node.index] = await node.step(**arguments)
            else:
                self._outputs[node.index] = await self._fan_out(node, node.each, arguments)
        except _EXIT_EXCEPTIONS:
            raise
        except BaseException as error:
            self._record_failure(error)

    async def _fan_out(self, node: Node, each: str, arguments: dict[str, Any]) -> list[Any]:
        items = arguments.pop(each)
        if isinstance(items, str | bytes | bytearray) or not isinstance(items, Sequence):
            raise UsageError(
                f"step {node.number} ({node.name}) is called for each item of a list, but {each!r} is bound to a value "
                f"of type `{type(items).__name__}`: let it be a list"
            )

        async def run_item(item: Any) -> Any:
            if self._failure is not None:
                return None
            try:
                return await node.step(**arguments, **{each: item})
            except _EXIT_EXCEPTIONS:
                raise
            except BaseException as error:
                self._record_failure(error)

        limit = max(1, min(node.max_concurrency, len(items)))  # pyright: ignore[reportUnknownArgumentType]
        return await fan_out(run_item, items, max_concurrency=limit)  # pyright: ignore[reportUnknownArgumentType]

    def _record_failure(self, error: BaseException) -> None:
        self._origins += find_origins(error)
        if self._failure is None:
            self._failure = error

    # Next steps

    def _complete_node(self, node: Node) -> list[Node]:
        """The steps that waited only for this one, in the order of their numbers."""
        ready: list[Node] = []
        pending_counts = self._pending_counts
        for index in node.dependents:
            pending_counts[index] -= 1
            if not pending_counts[index]:
                ready.append(self._graph.nodes[index])
        return ready

    def _prepare_calls(self, ready: Iterable[Node]) -> list[NodeCall]:
        """The calls of steps that are ready, also because others are skipped, in the order of their numbers."""
        calls: list[NodeCall] = []
        nodes = list(ready)
        for node in nodes:
            if self._failure is not None:
                return []
            try:
                arguments = self._bind_arguments(node)
                if (
                    arguments is not None
                    and node.condition is not None
                    and not self._is_condition_met(node, node.condition)
                ):
                    arguments = None
            except Exception as error:
                self._record_failure(error)
                return []
            if arguments is not None:
                calls.append((node, arguments))
            else:
                self._outputs[node.index] = _SKIPPED
                self._execution.skipped_steps[node.number] = (node.name, self._execution.next_position)
                nodes.extend(self._complete_node(node))
        if len(calls) > 1:
            calls.sort(key=lambda call: call[0].number)
        return calls

    def _bind_arguments(self, node: Node) -> dict[str, Any] | None:
        """The arguments of a step; ``None`` if it is skipped because a step that it needs was."""
        outputs, inputs = self._outputs, self._inputs
        arguments: dict[str, Any] = {}
        for parameter, index, name, if_skipped in node.sources:
            if index is None:
                if name in inputs:
                    arguments[parameter] = inputs[name]
                continue
            output = outputs[index]
            if output is not _SKIPPED:
                arguments[parameter] = output
            elif if_skipped == "none":
                arguments[parameter] = None
            elif if_skipped == "skip":
                return None
        for index in node.unbound_dependencies:
            if outputs[index] is _SKIPPED:
                return None
        return arguments

    def _is_condition_met(self, node: Node, condition: Condition) -> bool:
        args = [self._resolve_source(source) for source in condition.positional]
        kwargs = {source.parameter: self._resolve_source(source) for source in condition.named}
        answer = condition.function(*args, **kwargs)
        if inspect.iscoroutine(answer):
            answer.close()
            raise UsageError(
                f"the when= of step {node.number} ({node.name}) returned a coroutine: it must return true or false"
            )
        return bool(answer)

    def _resolve_source(self, source: Source) -> Any:
        if source.step is not None:
            output = self._outputs[self._graph.index_by_method[source.step]]
            return None if output is _SKIPPED else output
        if source.input in self._inputs:
            return self._inputs[source.input]
        return next(one.default for one in self._graph.inputs if one.name == source.input)

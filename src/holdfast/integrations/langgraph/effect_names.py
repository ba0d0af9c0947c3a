"""The names that ``effects=`` of a durable graph may use: those of its tools, nodes, and tasks.

They are found in the compiled graph, in the graphs below it, and in what their functions refer to. An agent of
``create_agent`` is known completely. A node with code of the user's, and middleware that handles tool calls, may call
tools that are not found.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableBinding, RunnableSequence
from langchain_core.tools import BaseTool
from langgraph._internal._runnable import RunnableCallable, RunnableSeq
from langgraph.func import _TaskFunction  # pyright: ignore[reportPrivateUsage]
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.pregel._utils import get_function_nonlocals

from holdfast.integrations.langgraph.node_calls import is_step

_MAX_DEPTH = 3
"""How far functions are followed that refer to one another."""


class EffectNames:
    """The names in a graph."""

    def __init__(self, graph: Pregel[Any, Any, Any, Any]) -> None:
        self.names: set[str] = set()
        self.is_complete = True
        """Whether nothing in the graph has a name that was not found."""
        self._visited: dict[int, object] = {}
        """Objects by their ids, which are kept, because the id of one that is gone may belong to another."""
        self._visit(graph)

    def _visit(self, value: Any, depth: int = 0) -> None:
        if id(value) in self._visited:
            return
        self._visited[id(value)] = value
        if isinstance(value, Pregel):
            for name, node in cast("Pregel[Any, Any, Any, Any]", value).nodes.items():
                if is_step(name, node.bound):
                    self.names.add(name)
                    self.is_complete = self.is_complete and isinstance(node.bound, Pregel)
                self._visit_node(node.bound)
        elif isinstance(value, ToolNode):
            self._visit_node(value)
        elif isinstance(value, BaseTool):
            self.names.add(value.name)
            self._visit(getattr(value, "func", None))
            self._visit(getattr(value, "coroutine", None))
        elif isinstance(value, _TaskFunction):
            self.names.add(cast(Any, value).__name__)
            self._visit(cast(Any, value).func)
        elif isinstance(value, RunnableBinding):
            self._visit(cast(Any, value).bound)
        elif isinstance(value, Runnable):  # a durable graph
            self._visit(getattr(cast(Any, value), "graph", None))
        elif isinstance(value, FunctionType | MethodType):
            if depth < _MAX_DEPTH:
                for item in get_function_nonlocals(value):
                    self._visit(item, depth + 1)
        elif isinstance(value, Mapping):
            for item in cast("Mapping[Any, Any]", value).values():
                self._visit(item, depth)
        elif isinstance(value, list | tuple):
            for item in cast("list[Any]", value):
                self._visit(item, depth)

    def _visit_node(self, node: Any) -> None:
        """What the node executes."""
        if isinstance(node, RunnableSeq | RunnableSequence):
            for step in cast(Any, node).steps:
                self._visit_node(step)
        elif isinstance(node, ToolNode):
            self._visit(node.tools_by_name)
            if cast(Any, node)._wrap_tool_call or cast(Any, node)._awrap_tool_call:  # may add tools
                self.is_complete = False
        elif isinstance(node, RunnableCallable):
            self._visit(node.func or node.afunc)
        else:
            self._visit(node)

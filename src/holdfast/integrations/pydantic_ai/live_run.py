"""A run of an agent in this process, for a caller that watches it: the nodes of the agent's graph and their events.

The agent's loop is workflow code, and its model requests and tool calls are steps. A caller that iterates or streams a
run watches it through a ``LiveRun``: workflow code adds each node before it executes it, the step of a model request
adds the events of the model's stream while they arrive, and workflow code adds the events of tool calls. None of this
is recorded. If the run's code is executed again in this process, ``LivePosition`` counts, and adds only new nodes and
events.

The caller also controls the run: a step of a node begins only after the caller has requested that node, as it would
without Holdfast. The steps wait, not the workflow code, so the journal does not show this, and if the process dies, the
run continues elsewhere without a caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import suppress
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, TypeVar

from pydantic_ai import AgentRunResult
from pydantic_ai.agent import CallToolsNode, EventStreamHandler, ModelRequestNode, UserPromptNode
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.run import AgentRun
from pydantic_ai.tools import RunContext

T = TypeVar("T")


class NodeExecution:
    """The execution of one node."""

    __slots__ = ("events", "is_finished", "is_restarted", "node", "parameters", "response", "seen_count")

    def __init__(self, node: Any, response: ModelResponse | None = None) -> None:
        self.node = node
        self.events: list[Any] = []
        self.seen_count = 0
        """How many events the caller has seen."""
        self.parameters: ModelRequestParameters | None = None if response is None else ModelRequestParameters()
        self.response = response
        """The recorded answer of a model request."""
        self.is_restarted = False
        """The model request was repeated after the caller had seen the beginning of another answer."""
        self.is_finished = response is not None

    @property
    def is_model_request(self) -> bool:
        """Whether the node calls a model."""
        return isinstance(self.node, ModelRequestNode)

    @property
    def is_tool_call(self) -> bool:
        """Whether the node calls tools."""
        return isinstance(self.node, CallToolsNode)

    @property
    def has_unseen_event(self) -> bool:
        """Whether there are events that the caller has not seen."""
        return self.seen_count < len(self.events)

    def take_event(self) -> Any:
        """The next unseen event."""
        self.seen_count += 1
        return self.events[self.seen_count - 1]


class LiveRun:
    """A run that a caller watches. Made on the caller's event loop, which is also that of the steps."""

    def __init__(self) -> None:
        self.agent_run: AgentRun[Any, Any] | None = None
        self.nodes: list[NodeExecution] = []
        self.result: AgentRunResult[Any] | None = None
        self.error: BaseException | None = None
        self._max_allowed_index = -1
        self._is_detached = False
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended, in this process or another one."""
        return self.result is not None or self.error is not None

    def notify(self) -> None:
        """Wake all waiters. May be called from any thread."""
        with suppress(RuntimeError):  # the caller's loop is closed
            self._loop.call_soon_threadsafe(self._changed.set)

    async def wait_until(self, is_ready: Callable[[], object]) -> None:
        """Wait for a condition, which is checked after each ``notify``."""
        while not is_ready():
            self._changed.clear()
            await self._changed.wait()

    async def wait_for(self, get: Callable[[], T | None], description: str) -> T:
        """Wait for a value. Raises the run's error if the run ends without it."""
        await self.wait_until(lambda: get() is not None or self.is_finished)
        if (value := get()) is None:
            raise self.error or RuntimeError(f"the run ended without this {description}")
        return value

    def finish(self, result: AgentRunResult[Any] | None, error: BaseException | None) -> None:
        """Note the end of the run. Nodes that another process executed are rebuilt from the messages."""
        self.result, self.error = result, error
        if result is not None:
            self.nodes += _rebuild_nodes(result)[len(self.nodes) :]
        self.detach_caller()

    def allow_node(self, index: int) -> None:
        """Let the steps of a node begin."""
        self._max_allowed_index = max(self._max_allowed_index, index)
        self.notify()

    def detach_caller(self) -> None:
        """Let the run continue without a caller."""
        self._is_detached = True
        self.notify()

    async def wait_for_caller(self, index: int) -> None:
        """In a step: wait until the caller has requested this node."""
        await self.wait_until(lambda: self._is_detached or self._max_allowed_index >= index)


class LivePosition:
    """The position of one execution of a run's code."""

    def __init__(self, live_run: LiveRun, run_id: str) -> None:
        self.live_run = live_run
        self.run_id = run_id
        self.index = -1
        self._event_count = 0

    @property
    def node_execution(self) -> NodeExecution:
        """The current node."""
        return self.live_run.nodes[self.index]

    def attach_run(self, run: AgentRun[Any, Any]) -> None:
        """Note the library's run."""
        self.live_run.agent_run = run
        self.live_run.notify()

    def start_node(self, node: Any) -> None:
        """Note that a node is about to be executed."""
        if self.index >= 0:
            self.node_execution.is_finished = True
        self.index, self._event_count = self.index + 1, 0
        if self.index == len(self.live_run.nodes):
            self.live_run.nodes.append(NodeExecution(node))
        self.live_run.notify()

    def add_event(self, event: Any) -> None:
        """Add an event of a tool call."""
        self._event_count += 1
        if self._event_count > len(self.node_execution.events):
            self.node_execution.events.append(event)
            self.live_run.notify()

    def note_request(self, parameters: ModelRequestParameters) -> None:
        """Note that a model is about to be called."""
        self.node_execution.parameters = parameters
        self.live_run.notify()

    def note_response(self, response: ModelResponse) -> None:
        """Note the recorded answer of the model."""
        self.node_execution.response = response
        self.live_run.notify()

    def relay_events(self, handler: EventStreamHandler[Any] | None) -> EventStreamHandler[Any]:
        """In the step of a model request: add the events of its stream, and pass them on to ``handler``."""
        execution, live = self.node_execution, self.live_run
        if execution.events and not execution.seen_count:
            execution.events.clear()
        execution.is_restarted = bool(execution.events)

        async def relay(events: AsyncIterable[Any]) -> AsyncIterator[Any]:
            async for event in events:
                if not execution.is_restarted:
                    execution.events.append(event)
                live.notify()
                yield event

        async def handle(ctx: RunContext[Any], events: AsyncIterable[Any]) -> None:
            relayed = relay(events)
            if handler is not None:
                await handler(ctx, relayed)
            async for _ in relayed:
                pass

        return handle


current_position: ContextVar[LivePosition | None] = ContextVar("holdfast_pydantic_ai_live_position", default=None)
"""In workflow code and in steps of a run that a caller in this process watches."""


relayed_position: ContextVar[LivePosition | None] = ContextVar("holdfast_pydantic_ai_relayed", default=None)
"""In the step of a model request that a caller watches."""


def get_position(run_id: str | None) -> LivePosition | None:
    """The position, if this run of the agent is the watched one, and not a run that its code starts."""
    position = current_position.get()
    return position if position is not None and position.run_id == run_id else None


def _rebuild_nodes(result: AgentRunResult[Any]) -> list[NodeExecution]:
    nodes = [NodeExecution(UserPromptNode[Any, Any](None))]
    for request, response in pairwise(result.new_messages()):
        if isinstance(request, ModelRequest) and isinstance(response, ModelResponse):
            nodes.append(NodeExecution(ModelRequestNode[Any, Any](request), response))
            nodes.append(NodeExecution(CallToolsNode[Any, Any](response), response))
    return nodes

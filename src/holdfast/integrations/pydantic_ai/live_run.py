"""A run of an agent in this process, as its caller watches it: the nodes of the agent's graph and their events.

The agent's loop is workflow code, and its model requests and tool calls are steps. A caller that iterates or streams a
run watches it through a ``LiveRun``: workflow code adds each node before it executes it, the step of a model request
adds the events of the model's stream while they arrive, and workflow code adds the events of tool calls. None of this
is recorded. When the run's code is executed again in this process, ``LivePosition`` counts, and adds only what is new.

One thing flows back: a step of a node begins only after the caller has asked for that node to be executed, as it would
without Holdfast. The steps wait, not the workflow code, so this leaves no trace in the journal, and a run whose process
dies goes on elsewhere without a caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import suppress
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

from pydantic_ai import AgentRunResult
from pydantic_ai.agent import CallToolsNode, EventStreamHandler, ModelRequestNode, UserPromptNode
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.run import AgentRun
from pydantic_ai.tools import RunContext


class NodeExecution:
    """What happens while one node is executed."""

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
        """A model request was made again after the caller had seen the beginning of another answer."""
        self.is_finished = response is not None

    @property
    def is_model_request(self) -> bool:
        """Whether the node asks a model."""
        return isinstance(self.node, ModelRequestNode)

    @property
    def is_tool_call(self) -> bool:
        """Whether the node calls tools."""
        return isinstance(self.node, CallToolsNode)


class LiveRun:
    """A run as its caller watches it. Made on the caller's event loop, which is also that of the steps."""

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
        """Whether the run has ended, wherever it was executed."""
        return self.result is not None or self.error is not None

    def notify(self) -> None:
        """Wake everyone who waits; from any thread."""
        with suppress(RuntimeError):  # the caller's loop is closed
            self._loop.call_soon_threadsafe(self._changed.set)

    async def wait_until(self, is_ready: Callable[[], object]) -> None:
        """Wait for a change."""
        while not is_ready():
            self._changed.clear()
            await self._changed.wait()

    def finish(self, result: AgentRunResult[Any] | None, error: BaseException | None) -> None:
        """Note how the run has ended; the nodes that were executed elsewhere follow from the messages."""
        self.result, self.error = result, error
        if result is not None:
            self.nodes += [NodeExecution(*one) for one in _rebuild_nodes(result)[len(self.nodes) :]]
        self.detach_caller()

    def allow_node(self, index: int) -> None:
        """Let the steps of a node begin."""
        self._max_allowed_index = max(self._max_allowed_index, index)
        self.notify()

    def detach_caller(self) -> None:
        """Let the run go on without a caller."""
        self._is_detached = True
        self.notify()

    async def wait_for_caller(self, index: int) -> None:
        """In a step: wait until the caller has asked for this node to be executed."""
        await self.wait_until(lambda: self._is_detached or self._max_allowed_index >= index)


class LivePosition:
    """How far one execution of a run's code is."""

    def __init__(self, live_run: LiveRun, run_id: str) -> None:
        self.live_run = live_run
        self.run_id = run_id
        self.index = -1
        self._event_count = 0

    @property
    def node_execution(self) -> NodeExecution:
        """The node that is executed."""
        return self.live_run.nodes[self.index]

    def attach_run(self, run: AgentRun[Any, Any]) -> None:
        """The library has set the run up."""
        self.live_run.agent_run = run
        self.live_run.notify()

    def start_node(self, node: Any) -> None:
        """A node is about to be executed."""
        if self.index >= 0:
            self.node_execution.is_finished = True
        self.index, self._event_count = self.index + 1, 0
        if self.index == len(self.live_run.nodes):
            self.live_run.nodes.append(NodeExecution(node))
        self.live_run.notify()

    def add_event(self, event: Any) -> None:
        """An event of a tool call."""
        self._event_count += 1
        if self._event_count > len(self.node_execution.events):
            self.node_execution.events.append(event)
            self.live_run.notify()

    def note_request(self, parameters: ModelRequestParameters) -> None:
        """A model is about to be asked."""
        self.node_execution.parameters = parameters
        self.live_run.notify()

    def note_response(self, response: ModelResponse) -> None:
        """The answer of the model is recorded."""
        self.node_execution.response = response
        self.live_run.notify()

    def relay_events(self, handler: EventStreamHandler[Any] | None) -> EventStreamHandler[Any]:
        """In the step of a model request: add the events of its stream while ``handler`` is given them, too."""
        feed, live = self.node_execution, self.live_run
        if feed.events and not feed.seen_count:
            feed.events.clear()
        feed.is_restarted = bool(feed.events)

        async def added(events: AsyncIterable[Any]) -> AsyncIterator[Any]:
            async for event in events:
                if not feed.is_restarted:
                    feed.events.append(event)
                live.notify()
                yield event

        async def handle(ctx: RunContext[Any], events: AsyncIterable[Any]) -> None:
            relaying = added(events)
            if handler is not None:
                await handler(ctx, relaying)
            async for _ in relaying:
                pass

        return handle


current_position: ContextVar[LivePosition | None] = ContextVar("holdfast_pydantic_ai_live_position", default=None)
"""In workflow code and in steps of a run that a caller in this process watches."""


relayed_position: ContextVar[LivePosition | None] = ContextVar("holdfast_pydantic_ai_relayed", default=None)
"""In the step of a model request that a caller watches."""


def get_position(run_id: str | None) -> LivePosition | None:
    """The position, if this run of the agent is the watched one and not one that its code makes in turn."""
    found = current_position.get()
    return found if found is not None and found.run_id == run_id else None


def _rebuild_nodes(result: AgentRunResult[Any]) -> list[tuple[Any, ModelResponse | None]]:
    """The nodes of a run that has ended, and the answers that they led to."""
    messages = result.new_messages()
    nodes: list[tuple[Any, ModelResponse | None]] = [(UserPromptNode[Any, Any](None), None)]
    for request, response in pairwise(messages):
        if isinstance(request, ModelRequest) and isinstance(response, ModelResponse):
            nodes += [(ModelRequestNode[Any, Any](request), response), (CallToolsNode[Any, Any](response), response)]
    return nodes

"""Lets a caller outside workflow code iterate and stream a run of an agent, with the library's own interface.

A workflow executes the run, in this process or another one. The caller gets copies of its nodes, and the events of its
model requests and tool calls as they happen (``live_run``). When the caller executes a node, the run executes it, and
the caller waits for the next one; nothing is requested or called a second time. If another process executes the run, or
it has already ended, the nodes are made from the recorded messages when it has ended.

**Leaving early.** A caller that leaves its block (``break``, ``return``, an exception) cancels the run, as it would
without Holdfast. If the calling task is cancelled, or its process dies, the run continues, as after ``agent.run(...)``.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, cast

from pydantic_ai import AgentRunResult
from pydantic_ai._agent_graph import build_run_context, run_cancelled_snapshot
from pydantic_ai._cancel import CancellationToken, RunCancellation, take_run_binding
from pydantic_ai._utils import now_utc
from pydantic_ai.agent import CallToolsNode, EventStreamHandler, ModelRequestNode
from pydantic_ai.capabilities.combined import CombinedCapability
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import FinalResultEvent, ModelResponse
from pydantic_ai.models import StreamedResponse
from pydantic_ai.result import AgentStream, FinalResult, StreamedRunResult
from pydantic_ai.run import AgentRun
from pydantic_ai.usage import RunUsage
from pydantic_graph import End, GraphRunContext

from holdfast.client.handle import Handle
from holdfast.errors import RunEnded, UsageError
from holdfast.integrations.pydantic_ai.live_run import LiveRun, NodeExecution

StartRun = Callable[[LiveRun], Awaitable[Handle[Any]]]
AwaitResult = Callable[[Handle[Any]], Awaitable[AgentRunResult[Any]]]
OpenFinishedRun = Callable[[AgentRunResult[Any]], AbstractAsyncContextManager[AgentRun[Any, Any]]]


class FollowedRunContext:
    """The return value of ``agent.iter(...)`` outside workflow code.

    Args:
        start: starts the run, or joins it.
        await_result: waits for the result of the run, and raises the agent's exception.
        open_finished: the library's own context of a run that has already ended.
        cancellation_token: cancels the run.
    """

    def __init__(
        self,
        start: StartRun,
        await_result: AwaitResult,
        open_finished: OpenFinishedRun,
        cancellation_token: CancellationToken | None = None,
    ) -> None:
        self._start = start
        self._await_result = await_result
        self._open_finished = open_finished
        self._cancellation_token = cancellation_token
        self._handle: Handle[Any] | None = None
        self._finished_context: AbstractAsyncContextManager[AgentRun[Any, Any]] | None = None

    async def __aenter__(self) -> FollowedRun:
        self._live_run = live = LiveRun()
        binding = take_run_binding()
        self._cancellation = RunCancellation() if binding is None else binding.cancellation
        self._cancellation.bind()
        try:
            if self._cancellation_token is not None:
                self._cancellation.attach_token(self._cancellation_token)
                await asyncio.sleep(0)  # a token that is already cancelled keeps the run from starting
            self._handle = await self._start(live)
            self._result_task = asyncio.create_task(self._watch_result(self._handle))
            await live.wait_until(lambda: live.is_finished or (live.agent_run is not None and live.nodes))
            if live.error is not None:
                raise live.error
        except BaseException as error:
            await self._close(error)
            raise
        run = live.agent_run
        if run is None:
            assert live.result is not None
            self._finished_context = self._open_finished(live.result)
            run = await self._finished_context.__aenter__()
            live.nodes[0].node = run.next_node
        self._run = FollowedRun.from_run(run, live, self._cancellation)
        if binding is not None:
            binding.agent_run = self._run
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._finished_context is not None:
            await self._finished_context.__aexit__(None, None, None)
        await self._close(error)

    async def _watch_result(self, handle: Handle[Any]) -> None:
        try:
            self._live_run.finish(await self._await_result(handle), None)
        except Exception as error:
            self._live_run.finish(None, error)

    async def _close(self, error: BaseException | None) -> None:
        live, cancellation = self._live_run, self._cancellation
        should_cancel = error is None or isinstance(error, Exception) or cancellation.cancel_requested
        # A task that was also cancelled from outside stays cancelled.
        is_resolved = isinstance(error, asyncio.CancelledError) and cancellation.resolve()
        cancellation.finish()
        cancellation.release_issued()
        if self._handle is not None:
            try:
                if should_cancel and not live.is_finished:
                    await _run_uninterrupted(_cancel_run(self._handle))
                    await asyncio.wait([self._result_task])
            finally:
                live.detach_caller()
                self._result_task.cancel()
        if is_resolved:
            message = "The agent run was cancelled."
            ctx = None if live.agent_run is None else live.agent_run.ctx
            raise RunCancelled(message) if ctx is None else run_cancelled_snapshot(message, ctx.state, ctx.deps)


async def _cancel_run(handle: Handle[Any]) -> None:
    with suppress(RunEnded):
        await handle.cancel()


async def _run_uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work even if the task is cancelled in the meantime (the library cancels twice); then raise that."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class FollowedRun(AgentRun[Any, Any]):
    """A run of the agent. Its workflow executes the nodes."""

    live_run: LiveRun
    _cancellation: RunCancellation
    _node: Any
    _index: int

    @classmethod
    def from_run(cls, run: AgentRun[Any, Any], live_run: LiveRun, cancellation: RunCancellation) -> FollowedRun:
        """A view of a run, at its first node."""
        made = cls(run._graph_run)  # pyright: ignore[reportPrivateUsage]
        made.live_run, made._cancellation = live_run, cancellation
        made._index, made._node = 0, _copy_node(live_run, 0)
        made._is_first = True
        return made

    @property
    def ctx(self) -> GraphRunContext[Any, Any]:
        """A copy of the run's current context, without hooks, because the workflow has already called these."""
        state, deps = copy.copy(self._graph_run.state), copy.copy(self._graph_run.deps)
        state.message_history, state.usage = list(state.message_history), copy.copy(state.usage)
        deps.root_capability = CombinedCapability[Any]([])
        return GraphRunContext(state=state, deps=deps)

    @property
    def next_node(self) -> Any:
        """The node that is executed next."""
        return self._node

    @property
    def result(self) -> AgentRunResult[Any] | None:
        """The recorded result, after the last node."""
        return self.live_run.result if isinstance(self._node, End) else None

    async def __anext__(self) -> Any:
        if isinstance(self._node, End):
            raise StopAsyncIteration
        if self._is_first:
            self._is_first = False
            return self._node
        return await self.next(self._node)

    async def next(self, node: Any) -> Any:
        """Let the run execute the node, and wait for the next one."""
        self._is_first = False
        if node is not self._node:
            raise UsageError(
                "the run of a durable agent executes its nodes itself: give `next()` the node that it handed out last. "
                "To replace nodes, call `agent.iter(...)` in a workflow function."
            )
        self._cancellation.bind()
        live, index = self.live_run, self._index + 1
        live.allow_node(self._index)
        await live.wait_until(lambda: len(live.nodes) > index or live.is_finished)
        if live.agent_run is not None:  # another one, if the run's code was executed again in the meantime
            self._graph_run = live.agent_run._graph_run  # pyright: ignore[reportPrivateUsage]
        if len(live.nodes) > index:
            self._node = _copy_node(live, index)
        elif live.result is None:
            raise cast(BaseException, live.error)
        else:
            tool = live.result._output_tool_name  # pyright: ignore[reportPrivateUsage]
            self._node = End(FinalResult(live.result.output, tool))
        self._index = index
        return self._node

    async def finish(self) -> AgentRunResult[Any]:
        """Let the run execute the remaining nodes, and wait for its result."""
        while not isinstance(self._node, End):
            await self.next(self._node)
        assert self.live_run.result is not None
        return self.live_run.result

    def cancel(self) -> None:
        """Cancel the run."""
        self._cancellation.cancel()

    def enqueue(self, *_: Any, **__: Any) -> None:
        """Refused, because a workflow executes the run."""
        raise UsageError(
            "messages cannot be added to a durable run from outside: call `agent.iter(...)` in a workflow function, "
            "which can wait for them with `wait_for_signal`."
        )

    async def emit(self, event: Any, /) -> Any:
        """Refused, because a workflow executes the run."""
        raise UsageError("events cannot be added to a durable run from outside: emit them in a tool, or in a workflow.")

    # Called by `agent.run(event_stream_handler=...)`

    async def _advance_graph(self, node: Any) -> Any:
        return await self.next(node)

    async def _run_node_with_hooks(self, node: Any, step_fn: Callable[[Any], Awaitable[Any]]) -> Any:
        return await step_fn(node)


# Nodes


def _copy_node(live_run: LiveRun, index: int) -> Any:
    """A copy of a node, so that the caller cannot change the workflow's."""
    node_execution = live_run.nodes[index]
    node: Any = node_execution.node
    copied: Any
    if node_execution.is_model_request:
        copied = FollowedRequestNode(copy.deepcopy(node.request), node.is_resuming_without_prompt)
    elif node_execution.is_tool_call:
        copied = FollowedToolsNode(copy.deepcopy(node.model_response))
    else:
        return copy.copy(node)
    copied.live_run, copied.node_execution, copied.index = live_run, node_execution, index
    return copied


class FollowedRequestNode(ModelRequestNode[Any, Any]):
    """A model request that the workflow makes."""

    live_run: LiveRun
    node_execution: NodeExecution
    index: int

    @asynccontextmanager
    async def stream(self, ctx: GraphRunContext[Any, Any]) -> AsyncGenerator[AgentStream[Any, Any]]:
        """The answer while it arrives."""
        self.live_run.allow_node(self.index)
        parameters = await self.live_run.wait_for(lambda: self.node_execution.parameters, "request")
        raw = FollowedResponse(parameters)
        raw.live_run, raw.node_execution = self.live_run, self.node_execution
        stream = FollowedStream(
            _raw_stream_response=raw,
            _output_schema=ctx.deps.output_schema,
            _model_request_parameters=parameters,
            _output_validators=ctx.deps.output_validators,
            _run_ctx=build_run_context(ctx),
            _usage_limits=None,  # the workflow counts
            _tool_manager=ctx.deps.tool_manager,
            _root_capability=ctx.deps.root_capability,
            _metadata_getter=lambda: ctx.state.metadata,
        )
        raw.stream = stream
        try:
            yield stream
        finally:
            await stream.aclose_events()


class FollowedToolsNode(CallToolsNode[Any, Any]):
    """The tool calls of an answer, which the workflow makes."""

    live_run: LiveRun
    node_execution: NodeExecution
    index: int

    @asynccontextmanager
    async def stream(self, ctx: GraphRunContext[Any, Any]) -> AsyncGenerator[AsyncIterator[Any]]:
        """The events of the calls while they happen."""
        live, execution = self.live_run, self.node_execution
        live.allow_node(self.index)

        async def iterate_events() -> AsyncIterator[Any]:
            while True:
                await live.wait_until(lambda: execution.has_unseen_event or execution.is_finished or live.is_finished)
                if not execution.has_unseen_event:
                    return
                yield execution.take_event()

        stream = iterate_events()
        yield stream
        async for _ in stream:
            pass


class FollowedResponse(StreamedResponse):
    """A model's answer, as its step receives it."""

    live_run: LiveRun
    node_execution: NodeExecution
    stream: FollowedStream

    def __aiter__(self) -> AsyncIterator[Any]:
        if self._event_iterator is None:
            self._event_iterator = self._get_event_iterator()
        return self._event_iterator

    async def _get_event_iterator(self) -> AsyncIterator[Any]:
        execution, live = self.node_execution, self.live_run
        while not self._cancelled:
            await live.wait_until(
                lambda: (
                    execution.is_restarted
                    or execution.has_unseen_event
                    or execution.response is not None
                    or live.is_finished
                    or self._cancelled
                )
            )
            if execution.is_restarted or (execution.response is not None and not execution.events):
                # Requested again, or answered without a stream: the recorded answer replaces the events so far.
                self.stream._replacement_response = self._wait_for_recorded  # pyright: ignore[reportPrivateUsage]
                return
            if execution.has_unseen_event:
                event = execution.take_event()
                self._parts_manager.apply_event(event)
                if isinstance(event, FinalResultEvent):
                    self.final_result_event = event
                yield event
            elif execution.response is not None:
                self._finished = True
                return
            elif live.is_finished:
                raise live.error or RuntimeError("the run ended without this answer")

    async def _wait_for_recorded(self) -> ModelResponse | None:
        return await self.live_run.wait_for(lambda: self.node_execution.response, "answer")

    def get(self) -> ModelResponse:
        """The recorded answer once the stream has been read; before that, the parts that have arrived."""
        if self._finished and self.node_execution.response is not None:
            return copy.deepcopy(self.node_execution.response)
        return super().get()

    async def close_stream(self) -> None:
        """Nothing to close: the workflow reads the answer to its end, and leaving the block cancels the run."""
        self.live_run.notify()

    @property
    def usage(self) -> Any:
        """Known when the answer is recorded."""
        return super().usage if self.node_execution.response is None else self.node_execution.response.usage

    @property
    def model_name(self) -> str:
        """As in the recorded answer."""
        return (self.node_execution.response and self.node_execution.response.model_name) or ""

    @property
    def provider_name(self) -> str | None:
        """As in the recorded answer."""
        return self.node_execution.response and self.node_execution.response.provider_name

    @property
    def provider_url(self) -> str | None:
        """As in the recorded answer."""
        return self.node_execution.response and self.node_execution.response.provider_url

    @property
    def timestamp(self) -> datetime:
        """As in the recorded answer."""
        return now_utc() if self.node_execution.response is None else self.node_execution.response.timestamp


class FollowedStream(AgentStream[Any, Any]):
    """The stream of an answer. The output of the last one in ``run_stream`` is that of the run."""

    run: FollowedRun | None = None

    async def validate_response_output(self, message: ModelResponse, *, allow_partial: bool = False) -> Any:
        """The output. A partial one is validated here; the workflow has validated the final one."""
        if self.run is None or allow_partial:
            return await super().validate_response_output(message, allow_partial=allow_partial)
        return (await self.run.finish()).output

    @property
    def usage(self) -> RunUsage:
        """The usage of the whole run."""
        result = None if self.run is None else self.run.result
        return super().usage if result is None else result.usage


# `agent.run_stream`


@asynccontextmanager
async def run_stream(
    run_context: FollowedRunContext, handler: EventStreamHandler[Any] | None
) -> AsyncGenerator[StreamedRunResult[Any, Any]]:
    """Stream the first answer that is a final result, as the library does."""
    async with run_context as run:
        if run.live_run.agent_run is None:  # the run had ended, or another process executed it
            yield _make_finished_result(await run.finish())
            return
        node = run.next_node
        while not isinstance(node, End):
            ctx = run.ctx
            if isinstance(node, FollowedRequestNode):
                async with node.stream(ctx) as stream:
                    if await _stream_until_final(stream, ctx, handler):
                        yield _make_streamed_result(run, cast(FollowedStream, stream), ctx)
                        return
            elif isinstance(node, FollowedToolsNode) and handler is not None:
                async with node.stream(ctx) as events:
                    await handler(build_run_context(ctx), events)
            node = await run.next(node)
        assert run.result is not None
        yield _make_finished_result(run.result)


async def _stream_until_final(
    stream: AgentStream[Any, Any], ctx: GraphRunContext[Any, Any], handler: EventStreamHandler[Any] | None
) -> bool:
    has_final = False

    async def until_final() -> AsyncIterator[Any]:
        nonlocal has_final
        async for event in stream:
            yield event
            if isinstance(event, FinalResultEvent):
                has_final = True
                return

    events = until_final()
    if handler is not None:
        await handler(build_run_context(ctx), events)
    async for _ in events:
        pass
    return has_final


def _make_streamed_result(
    run: FollowedRun, stream: FollowedStream, ctx: GraphRunContext[Any, Any]
) -> StreamedRunResult[Any, Any]:
    messages: list[Any] = ctx.state.message_history
    stream.run = run

    async def complete() -> None:
        messages[:] = (await run.finish()).all_messages()
        await stream.get_output()  # so that `StreamedRunResult.result` has it

    return StreamedRunResult(messages, ctx.deps.new_message_index, stream, complete)


def _make_finished_result(result: AgentRunResult[Any]) -> StreamedRunResult[Any, Any]:
    index = result._new_message_index  # pyright: ignore[reportPrivateUsage]
    return StreamedRunResult(result.all_messages(), index, run_result=replace(result))

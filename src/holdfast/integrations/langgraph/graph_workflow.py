"""A durable graph that is called outside of programs: each call is a run of its own.

The run's program calls the graph again, now in a program. The caller waits for that run. So a process that was killed
and is started again joins its run, and any worker that has imported the graph can execute it.

A caller that streams gets the chunks from the run if it is executed in the caller's process. Chunks are not recorded:
a caller that joins a run that has ended gets only its final state.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import langgraph.pregel
from langchain_core.runnables import RunnableConfig

import holdfast
from holdfast.authoring.introspection import attribute_to_caller
from holdfast.authoring.workflow import PreparedStart, Workflow, define_workflow
from holdfast.core.execution import get_current_execution
from holdfast.engine.program_context import find_program
from holdfast.errors import HoldfastError, RunFailed, UsageError
from holdfast.integrations.langgraph.values import from_data, to_data
from holdfast.sync_methods import run_sync

if TYPE_CHECKING:
    from holdfast.integrations.langgraph.durable_graph import DurableGraph

RUN_ID = "run_id"
_RECORDED_CONFIG = ("configurable", "tags", "metadata", "recursion_limit", "max_concurrency", "run_name")
_STREAM_OPTIONS = ("stream_mode", "subgraphs", "version", "print_mode", "debug")
_END = object()


@dataclass(frozen=True, slots=True)
class GraphCall:
    """One call of a durable graph outside of programs."""

    input: Any
    config: RunnableConfig | None
    options: Mapping[str, Any]
    is_sync: bool = False
    """Whether the graph's sync methods are called: its nodes may have no async form."""
    publish: Callable[[Any], None] | None = None
    """Passes a chunk on to a caller that streams."""

    def list_recorded_options(self) -> dict[str, Any]:
        """The options that belong to the run. How a caller watches it does not."""
        left_out = () if self.publish is None else _STREAM_OPTIONS
        return {key: value for key, value in self.options.items() if value is not None and key not in left_out}

    @property
    def run_id(self) -> str | None:
        """The id that the caller gives to the run."""
        found = (self.config or {}).get("configurable", {}).get(RUN_ID)
        return None if found is None else str(found)


class GraphWorkflow(Workflow[..., Any]):
    """The program of a durable graph's own runs. Its inputs are the arguments of ``graph.ainvoke``."""

    def __init__(self, durable: DurableGraph) -> None:
        self.durable = durable
        self._live_calls: dict[str, GraphCall] = {}
        """The calls whose runs are about to begin in this process."""

        async def run(input: Any = None, config: Any = None, options: Any = None, is_sync: bool = False) -> Any:
            return await self._run(input, config, options, is_sync)

        packages = (holdfast, langgraph.pregel)
        skipped_paths = (os.path.dirname(cast(str, package.__file__)) + os.sep for package in packages)
        attribute_to_caller(run, durable.program_name, *skipped_paths, "<")
        defined = define_workflow(run, None, durable.program_name, "default", None, (), 20, "", (), is_program=True)
        super().__init__(defined.definition)

    # For callers

    async def call(self, call: GraphCall) -> Any:
        """The result of the call's run; in a workflow, of a child run."""
        workflow = self if call.run_id is None else self.options(id=call.run_id)
        try:
            result = await workflow(call)
        except RunFailed as failed:
            raise _get_graph_error(failed) from None
        finally:
            for run_id in [run_id for run_id, known in self._live_calls.items() if known is call]:
                del self._live_calls[run_id]  # it joined a run that is not executed here
        return from_data(result, f"the result of graph {self.name!r}")

    def call_sync(self, call: GraphCall) -> Any:
        """The same for code that is not async."""
        return run_sync(self.call(call))

    async def follow(self, call: GraphCall) -> AsyncGenerator[Any]:
        """The chunks of the call's run."""
        if get_current_execution() is not None:
            raise UsageError(
                f"a workflow cannot stream the durable graph {self.name!r}: await `ainvoke`, which is a child run, or "
                "stream it in a @program"
            )
        chunks: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def publish(chunk: Any) -> None:
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)

        task = asyncio.create_task(self.call(replace(call, publish=publish)))
        task.add_done_callback(lambda _: publish(_END))
        count = 0
        try:
            while (chunk := await chunks.get()) is not _END:
                count += 1
                yield chunk
            result = await task
        finally:
            task.cancel()
        for chunk in self._replace_missing(call, result, count):
            yield chunk

    def follow_sync(self, call: GraphCall) -> Generator[Any]:
        """The same for code that is not async."""
        chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        outcome: list[Any] = []

        def execute() -> None:
            try:
                outcome.append((self.call_sync(replace(call, publish=chunks.put)), None))
            except BaseException as error:
                outcome.append((None, error))
            chunks.put(_END)

        threading.Thread(target=execute, name=f"stream of {self.name}", daemon=True).start()
        count = 0
        while (chunk := chunks.get()) is not _END:
            count += 1
            yield chunk
        result, error = outcome[0]
        if error is not None:
            raise error
        yield from self._replace_missing(call, result, count)

    def _replace_missing(self, call: GraphCall, result: Any, count: int) -> Sequence[Any]:
        """What a caller gets that has joined a run of another process, or one that has ended."""
        if count or result is None:
            return ()
        modes = _get_modes(self.durable, call.options)
        if "values" not in modes.names or modes.is_v2:
            raise UsageError(
                f"the run of graph {self.name!r} was not executed by this process, and its stream is not recorded: "
                f'stream it with stream_mode="values" to get its final state, or use `ainvoke`'
            )
        return [modes.shape((), "values", result)]

    # Overrides of Workflow

    def prepare_start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PreparedStart:
        """The recorded form of a call. Its callbacks stay in this process."""
        if not args or not isinstance(args[0], GraphCall):
            return PreparedStart(args, kwargs)
        call = args[0]
        subject = f"the input of graph {self.name!r}"
        inputs: dict[str, Any] = {"input": to_data(call.input, subject)}
        config: dict[str, Any] = {
            key: value for key, value in (call.config or {}).items() if key in _RECORDED_CONFIG and value
        }
        if RUN_ID in config.get("configurable", {}):
            config["configurable"] = {key: value for key, value in config["configurable"].items() if key != RUN_ID}
        config = {key: value for key, value in config.items() if value}
        if config:
            inputs["config"] = to_data(config, subject)
        if options := call.list_recorded_options():
            inputs["options"] = to_data(options, subject)
        if call.is_sync:
            inputs["is_sync"] = True
        return PreparedStart((), inputs, partial(self._bind, call), self._unbind)

    def _bind(self, call: GraphCall, run_id: str) -> None:
        self._live_calls[run_id] = call

    def _unbind(self, run_id: str) -> None:
        self._live_calls.pop(run_id, None)

    # The run

    async def _run(self, input: Any, config: Any, options: Any, is_sync: bool) -> Any:
        program = find_program()
        assert program is not None
        subject = f"the input of graph {self.name!r}"
        settings: dict[str, Any] = from_data(options or {}, subject)
        given, configured = from_data(input, subject), from_data(config or {}, subject)
        live = self._live_calls.pop(program.run.execution.run_id, None)
        if live is not None and (callbacks := (live.config or {}).get("callbacks")):
            configured["callbacks"] = callbacks
        durable = self.durable
        if live is not None and live.publish is not None:
            modes = _get_modes(durable, live.options)
            settings |= {key: live.options[key] for key in _STREAM_OPTIONS if key in live.options}
            settings["stream_mode"] = modes.internal
            if is_sync:
                chunks = partial(durable.stream, given, configured, **settings)
                result = await asyncio.to_thread(lambda: _publish_sync(chunks(), modes, live.publish))
            else:
                result = await _publish(durable.astream(given, configured, **settings), modes, live.publish)
        elif is_sync:
            result = await asyncio.to_thread(durable.invoke, given, configured, **settings)
        else:
            result = await durable.ainvoke(given, configured, **settings)
        return to_data(result, f"the result of graph {self.name!r}")


async def _publish(chunks: AsyncIterator[Any], modes: _Modes, publish: Any) -> Any:
    """Pass the chunks on. Returns the final state."""
    state: Any = None
    async for chunk in chunks:
        state = modes.pass_on(chunk, publish, state)
    return state


def _publish_sync(chunks: Iterator[Any], modes: _Modes, publish: Any) -> Any:
    state: Any = None
    for chunk in chunks:
        state = modes.pass_on(chunk, publish, state)
    return state


@dataclass(frozen=True, slots=True)
class _Modes:
    """The stream modes that a caller wants, and the form of its chunks."""

    names: Sequence[str]
    is_single: bool
    has_subgraphs: bool
    is_v2: bool

    @property
    def internal(self) -> list[str]:
        """The modes to stream: the final state is the run's result."""
        return list(dict.fromkeys([*self.names, "values"]))

    def pass_on(self, chunk: Any, publish: Callable[[Any], None], state: Any) -> Any:
        """Publish a chunk if the caller wants it. Returns the state after it."""
        if self.is_v2:
            namespace, mode, data = chunk["ns"], chunk["type"], chunk["data"]
        elif self.has_subgraphs:
            namespace, mode, data = chunk
        else:
            namespace, (mode, data) = (), chunk
        if mode in self.names:
            publish(chunk if self.is_v2 else self.shape(namespace, mode, data))
        return data if mode == "values" and not namespace else state

    def shape(self, namespace: Any, mode: str, data: Any) -> Any:
        """A chunk as the caller expects it."""
        parts = [*([namespace] if self.has_subgraphs else []), *([] if self.is_single else [mode]), data]
        return parts[0] if len(parts) == 1 else tuple(parts)


def _get_modes(durable: DurableGraph, options: Mapping[str, Any]) -> _Modes:
    given: Any = options.get("stream_mode") or durable.graph.stream_mode
    names = [given] if isinstance(given, str) else list(given)
    is_v2 = options.get("version") == "v2"
    return _Modes(names, isinstance(given, str), bool(options.get("subgraphs")), is_v2)


def _get_graph_error(failed: RunFailed) -> BaseException:
    """The graph's own exception, as its caller expects; for failures of the run itself, ``RunFailed``."""
    cause = failed.__cause__
    if cause is None or isinstance(cause, HoldfastError):
        return failed
    cause.add_note(str(failed))
    return cause

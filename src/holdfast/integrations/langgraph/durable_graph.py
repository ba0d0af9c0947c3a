"""``durable(graph)``: the same graph, whose calls are recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, closing
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.pregel import Pregel
from langgraph.types import Command

from holdfast.codec import compute_content_digest
from holdfast.core.execution import get_current_execution
from holdfast.core.states import Effect
from holdfast.engine.program_context import ProgramContext, find_program
from holdfast.errors import DefinitionError, UsageError
from holdfast.integrations.langgraph.effect_names import EffectNames
from holdfast.integrations.langgraph.graph_context import GraphContext, MessageIds, current_graph, seed_ids
from holdfast.integrations.langgraph.graph_workflow import GraphCall, GraphWorkflow
from holdfast.integrations.langgraph.values import to_json_data
from holdfast.integrations.tool_names import check_tool_names

RUN_ID = "run_id"
_DEFAULT_NAME = "LangGraph"
_BREAKPOINTS = ("interrupt_before", "interrupt_after")


def durable(graph: Any, *, name: str | None = None, effects: Mapping[str, Effect | str] | None = None) -> DurableGraph:
    """Make a compiled graph or an agent durable: model calls, tools, and nodes below it are recorded steps.

    In a ``@program``, a call of it belongs to that run. In a ``@workflow``, it is a child run. Elsewhere, it is a run
    of its own, which continues after a crash when the same call is made again.

    Args:
        graph: what ``StateGraph(...).compile()``, ``create_agent``, ``create_deep_agent``, or ``@entrypoint`` returns.
        name: the name of its runs (default: the graph's name).
        effects: what tools, nodes, and tasks do to the world: ``read``, ``idempotent`` (the default), or ``once``, by
            name. What is ``once`` never runs a second time.
    """
    return DurableGraph(graph, name=name, effects=effects or {})


def _delegate(name: str) -> Any:
    """An attribute of the graph in place of the one that every runnable has."""
    return property(lambda durable: getattr(durable.graph, name))


class DurableGraph(Runnable[Any, Any]):
    """A graph whose calls are recorded. Its other methods and attributes are those of the graph."""

    InputType: Any = _delegate("InputType")  # pyright: ignore[reportIncompatibleMethodOverride]
    OutputType: Any = _delegate("OutputType")  # pyright: ignore[reportIncompatibleMethodOverride]
    config_schema: Any = _delegate("config_schema")
    get_graph: Any = _delegate("get_graph")
    get_input_schema: Any = _delegate("get_input_schema")
    get_output_schema: Any = _delegate("get_output_schema")

    def __init__(
        self,
        graph: Any,
        *,
        name: str | None = None,
        effects: Mapping[str, Effect | str],
        workflow: GraphWorkflow | None = None,
    ) -> None:
        if isinstance(graph, DurableGraph):
            raise DefinitionError("durable(...) was given a graph that is durable already")
        if not isinstance(graph, Pregel):
            raise DefinitionError(
                f"durable(...) takes a compiled graph, such as `builder.compile()` or `create_agent(...)`, not "
                f"{type(graph).__name__!r}"
            )
        self.graph = cast("Pregel[Any, Any, Any, Any]", graph)
        _check_graph(self.graph)
        self.program_name: str = name or self.graph.get_name()
        self.name = self.program_name
        self.effects = {tool: _parse_effect(tool, effect) for tool, effect in effects.items()}
        self._workflow = workflow
        if workflow is None and self.effects:
            found = EffectNames(self.graph)
            subject = f"graph {self.program_name!r}"
            noun = "tool, node, or task"
            check_tool_names(self.effects, found.names, subject, noun=noun, is_complete=found.is_complete)
        seed_ids()
        if name is not None or self.program_name != _DEFAULT_NAME:
            self.holdfast_workflow  # noqa: B018  # registers it, for workers

    @property
    def holdfast_workflow(self) -> GraphWorkflow:
        """The program of its own runs."""
        if self._workflow is None:
            self._workflow = GraphWorkflow(self)
        return self._workflow

    def with_config(self, config: RunnableConfig | None = None, **kwargs: Any) -> DurableGraph:
        """The same durable graph with other defaults. Its runs are those of the same program."""
        graph = self.graph.with_config(config, **kwargs)
        return DurableGraph(graph, name=self.program_name, effects=self.effects, workflow=self.holdfast_workflow)

    def _make_call(
        self, input: Any, config: RunnableConfig | None, options: Any, *, is_sync: bool = False
    ) -> GraphCall:
        """A call outside of programs. Its run executes the original graph, which lacks defaults that were added."""
        if self.holdfast_workflow.durable is not self:
            config = merge_configs(self.graph.config, config)
        return GraphCall(input, config, options, is_sync=is_sync)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "graph":
            raise AttributeError(name)
        return getattr(self.graph, name)

    # Calls

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Call the graph, and return its final state."""
        _check_call(self.program_name, input, kwargs)
        if (program := self._find_program()) is None:
            return await self.holdfast_workflow.call(self._make_call(input, config, kwargs))
        with self.make_context(program, input).active():
            return await self.graph.ainvoke(input, _drop_run_id(config), **kwargs)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """The same for code that is not async."""
        _check_call(self.program_name, input, kwargs)
        if (program := self._find_program()) is None:
            return self.holdfast_workflow.call_sync(self._make_call(input, config, kwargs, is_sync=True))
        with self.make_context(program, input).active():
            return self.graph.invoke(input, _drop_run_id(config), **kwargs)

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncGenerator[Any]:
        """Call the graph, and iterate over what it streams."""
        _check_call(self.program_name, input, kwargs)
        if (program := self._find_program()) is None:
            call = self._make_call(input, config, kwargs)
            async with aclosing(self.holdfast_workflow.follow(call)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        chunks = self.graph.astream(input, _drop_run_id(config), **kwargs)
        async for chunk in self._iterate(self.make_context(program, input), chunks):
            yield chunk

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Generator[Any]:
        """The same for code that is not async."""
        _check_call(self.program_name, input, kwargs)
        if (program := self._find_program()) is None:
            with closing(
                self.holdfast_workflow.follow_sync(self._make_call(input, config, kwargs, is_sync=True))
            ) as chunks:
                yield from chunks
            return
        context = self.make_context(program, input)
        iterator = iter(self.graph.stream(input, _drop_run_id(config), **kwargs))
        while True:
            with context.active():
                try:
                    chunk = next(iterator)
                except StopIteration:
                    return
            yield chunk

    async def astream_events(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncGenerator[Any]:
        """The events of the graph; only in a ``@program``."""
        _check_call(self.program_name, input, kwargs)
        program = self._find_program()
        if program is None:
            raise UsageError(
                f"astream_events of the durable graph {self.program_name!r} needs a @program: call it there, or use "
                '`astream`, with stream_mode=["messages", "updates"] for example'
            )
        if kwargs.get("version") == "v3":
            raise UsageError(
                f"the durable graph {self.program_name!r} does not support version 'v3' of astream_events: use v2"
            )
        events = self.graph.astream_events(input, _drop_run_id(config), **kwargs)
        async for event in self._iterate(self.make_context(program, input), events):
            yield event

    def stream_events(self, *_: Any, **__: Any) -> Any:
        """Not supported."""
        raise UsageError(f"the durable graph {self.program_name!r} does not support stream_events: use `stream`")

    async def _iterate(self, context: GraphContext, chunks: Any) -> AsyncGenerator[Any]:
        iterator = aiter(chunks)
        try:
            while True:
                with context.active():
                    try:
                        chunk = await anext(iterator)
                    except StopAsyncIteration:
                        return
                yield chunk
        finally:
            await iterator.aclose()

    def _find_program(self) -> ProgramContext | None:
        """The program that the call belongs to; ``None``: it is a run of its own."""
        return None if get_current_execution() is not None else find_program()

    def make_context(self, program: ProgramContext, input: Any) -> GraphContext:
        """The context of one call."""
        digest = compute_content_digest(self.program_name, to_json_data(input))
        outer = current_graph.get()
        if outer is not None:
            inner = outer.enter("graph", digest)
            return GraphContext({**outer.effects, **self.effects}, MessageIds(inner.seed), path=inner.path)
        calls = cast("Counter[str]", program.run.extras.setdefault("langgraph", Counter()))
        calls[digest] += 1
        seed = compute_content_digest(program.run.execution.run_id, digest, calls[digest])
        path = program.run.execution.calls.make_thread_name(program.thread, digest)
        return GraphContext(self.effects, MessageIds(seed), path=path)


def _parse_effect(name: str, effect: Effect | str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        known = ", ".join(repr(one.value) for one in Effect)
        raise DefinitionError(
            f"durable(effects=...): the effect of {name!r} is one of {known}, not {effect!r}"
        ) from None


def _check_graph(graph: Any) -> None:
    if graph.checkpointer not in (None, False):
        raise DefinitionError(
            f"graph {graph.get_name()!r} has a checkpointer ({type(graph.checkpointer).__name__}), and a durable graph "
            "needs none: its run records what is needed to continue, and `interrupt` becomes an approval. Compile it "
            "without one. To continue a conversation, pass its messages to the next call."
        )
    if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
        raise DefinitionError(
            f"graph {graph.get_name()!r} has static breakpoints, which a durable graph does not support: call "
            "`interrupt(...)` in the node instead of interrupt_before or interrupt_after"
        )


def _check_call(name: str, input: Any, kwargs: Mapping[str, Any]) -> None:
    if isinstance(input, Command) and cast("Command[Any]", input).resume is not None:
        raise UsageError(
            f"the durable graph {name!r} waits in `interrupt` until its approval is answered, so there is nothing to "
            "resume: answer it with `holdfast approve`, or with `Client.approve`"
        )
    for option in _BREAKPOINTS:
        if kwargs.get(option):
            raise UsageError(
                f"the durable graph {name!r} does not support {option}=: call `interrupt(...)` in the node instead"
            )


def _drop_run_id(config: RunnableConfig | None) -> RunnableConfig | None:
    """The configuration without what is meant for Holdfast."""
    given = {} if config is None else config.get("configurable", {})
    if config is None or RUN_ID not in given:
        return config
    configurable = {key: value for key, value in given.items() if key != RUN_ID}
    return {**config, "configurable": configurable}

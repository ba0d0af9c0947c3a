"""``Durable``: the capability that makes an agent of the library durable."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Collection, Mapping
from datetime import datetime
from typing import Any, cast
from weakref import WeakValueDictionary

from pydantic_ai import Agent
from pydantic_ai._utils import disable_threads
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.capabilities.abstract import AgentNode, WrapRunHandler
from pydantic_ai.durable_exec import (
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.models import Model, ModelResolutionContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, WrapperToolset

from holdfast.admission.durations import Duration, declared_seconds
from holdfast.admission.queue_limits import Queue
from holdfast.admission.retry_policy import RetryPolicy
from holdfast.admission.usage import Budget
from holdfast.agents.models.chain import DEFAULT_TIMEOUT_S
from holdfast.agents.models.errors import DEFAULT_RETRY_POLICY
from holdfast.agents.models.model_resolution import disable_sdk_retries
from holdfast.authoring.registry import register
from holdfast.authoring.step import validate_retry_policy
from holdfast.authoring.workflow_api import now
from holdfast.authoring.workflow_options import validate_tags
from holdfast.core.execution import get_current_execution
from holdfast.errors import DefinitionError, UsageError
from holdfast.integrations.pydantic_ai.agent_methods import await_result, current_call, replace_methods, start_run
from holdfast.integrations.pydantic_ai.agent_workflow import AgentWorkflow, RunOptions
from holdfast.integrations.pydantic_ai.live_run import current_position, get_position, relayed_position
from holdfast.integrations.pydantic_ai.operation_codec import LibraryValueCodec, make_unrecordable_error
from holdfast.integrations.pydantic_ai.operations import OperationBackend
from holdfast.integrations.pydantic_ai.tool_settings import METADATA_KEY, ToolSettings
from holdfast.integrations.tool_names import check_tool_names


class Durable(BaseDurabilityCapability[AgentDepsT]):
    """Makes every run of a Pydantic AI agent durable: ``Agent(..., name="support", capabilities=[Durable()])``.

    Model requests and tool calls are recorded steps. In workflow code, they are steps of the calling run; anywhere
    else, ``agent.run(...)`` is a run of its own, with the id ``run_id=`` if that is given. A program that is killed and
    started again joins it. ``run_stream``, ``run_stream_events``, and ``iter`` show such a run while it executes.
    Arguments that cannot be recorded (a model object, an output type, ``agent.override(...)``) stay in the process that
    makes the call. An agent needs a ``name``, and its own toolsets need ids.

    Args:
        name: the name of its runs in the store. Default: the agent's name.
        tools: settings of tools' steps by name, as in ``{"charge": {"effect": "once"}}``: ``retries``, ``backoff``,
            ``max_backoff``, ``retry_on``, ``give_up_on``, ``retry``, ``timeout``, ``effect``, ``transaction``, as in
            ``@step``. ``False``: workflow code calls the tool, and nothing is recorded; for tools that return the same
            value every time. A tool may have its own settings: ``metadata={"holdfast": {...}}``.
        deps: the deps of runs that have none of their own in this process; for workers. Never recorded.
        models: further models for ``model=`` of a run, by name.
        event_stream_handler: called with the events of every run, in steps, by the process that executes the run.
        model_timeout: seconds that one attempt of a model request may take.
        retry: how a model request without an answer is repeated. Default: for a day, at least every five minutes.
        queue: the queue of its runs, by its name or as a ``Queue`` with limits. Default: the agent's name.
        timeout: seconds after its start at which a run that has not ended fails with ``RunTimedOut``.
        tags: labels of its runs.
        budget: what each of its runs may use. In a workflow, the workflow's budget applies.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="workflow",
        codec=LibraryValueCodec(),
        serialization_failure=make_unrecordable_error,
        # A step runs on another event loop than workflow code, so neither can close what the other opened. Each step
        # that needs an MCP server opens it, unless the program holds it open (`async with agent:`).
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-never", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset(),  # a step needs no registration: see `get_wrapper_toolset`
        tool_config_key=METADATA_KEY,
    )

    workflow: AgentWorkflow
    """The workflow of its runs. To get it from an agent: ``Durable.from_agent(agent).workflow``."""

    def __init__(
        self,
        *,
        name: str | None = None,
        tools: Mapping[str, Mapping[str, Any] | bool] | None = None,
        deps: AgentDepsT | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        model_timeout: Duration = DEFAULT_TIMEOUT_S,
        retry: RetryPolicy = DEFAULT_RETRY_POLICY,
        queue: str | Queue | None = None,
        timeout: Duration | None = None,
        tags: Collection[str] = (),
        budget: Budget | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self.deps = deps
        self.models = dict(models or {})
        self._tool_options = dict(tools or {})
        self._model_timeout = declared_seconds(model_timeout, "Durable: model_timeout") or DEFAULT_TIMEOUT_S
        self._retry = validate_retry_policy(retry, "Durable")
        self._options = RunOptions(
            queue, declared_seconds(timeout, "Durable: timeout"), validate_tags(tags, "Durable"), budget
        )
        self._operations: OperationBackend | None = None
        self._unregistered: WeakValueDictionary[str, Model] = WeakValueDictionary()

    # The library's interface for engines

    @property
    def in_durable_context(self) -> bool:
        """Whether this is workflow code."""
        return get_current_execution() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """Executes operations."""
        assert self._operations is not None
        return self._operations

    def _bind_to_agent(self, agent: AbstractAgent[AgentDepsT, Any]) -> None:
        if not isinstance(agent, Agent):
            raise DefinitionError(f"Durable() goes to an `Agent` of pydantic-ai, not to a `{type(agent).__name__}`")
        models = list(self._models_by_id.values())
        tools = ToolSettings(self.name, self._tool_options)
        self._operations = OperationBackend(self.name, models, tools, self._model_timeout, self._retry)
        super()._bind_to_agent(agent)
        self.workflow = AgentWorkflow(self, cast("Agent[Any, Any]", agent), self._options)
        register(self.workflow.definition)
        replace_methods(cast("Agent[Any, Any]", agent), self.workflow)
        cast(Any, agent).holdfast_workflow = self.workflow  # for `holdfast worker module:agent`

    def _wrap_leaf_toolset(self, ts: AbstractToolset[AgentDepsT]) -> WrapperToolset[AgentDepsT] | None:
        wrapped = super()._wrap_leaf_toolset(ts)
        # The library's other toolsets execute nothing, but the calls of a user's own toolset would not be recorded.
        if wrapped is None and not type(ts).__module__.startswith("pydantic_ai."):
            raise DefinitionError(
                f"agent {self.name!r} has a toolset of its own class, `{type(ts).__name__}`, whose calls cannot be "
                f"recorded as it is: wrap it, as in `DynamicToolset(lambda ctx: toolset, id='...')`, or make it a "
                f"`FunctionToolset`"
            )
        return wrapped

    def get_wrapper_toolset(self, toolset: AbstractToolset[AgentDepsT]) -> AbstractToolset[AgentDepsT] | None:
        """Make the calls of all toolsets steps, also of those from the call or from an override.

        The library calls it for each run, with all its toolsets. The agent may get tools until then.
        """
        self._check_tools(toolset)
        if not self.in_durable_context:
            return super().get_wrapper_toolset(toolset)

        def wrap(leaf: AbstractToolset[AgentDepsT]) -> AbstractToolset[AgentDepsT]:
            known = self._toolsets_by_id.get(leaf._explicit_id or "")  # pyright: ignore[reportPrivateUsage]
            if known is not None and known.wrapped is leaf:
                return known
            return self._wrap_leaf_toolset(leaf) or leaf

        return toolset.visit_and_replace(wrap)

    def _check_tools(self, toolset: AbstractToolset[AgentDepsT]) -> None:
        """Raise ``DefinitionError`` for settings of a tool that a run with these toolsets does not have."""
        leaves: list[AbstractToolset[AgentDepsT]] = []
        toolset.apply(leaves.append)
        known = {name for leaf in leaves if isinstance(leaf, FunctionToolset) for name in leaf.tools}
        is_complete = all(isinstance(leaf, FunctionToolset) for leaf in leaves)
        check_tool_names(self._tool_options, known, f"agent {self.name!r}", option="tools=", is_complete=is_complete)

    # Model objects that are not registered. Steps run in the same process, so a name for the object is enough.

    def _find_model_id(self, model: Model) -> str | None:
        try:
            return super()._find_model_id(model)
        except UserError:
            model_id = f"{type(model).__name__} at {id(model):#x}"
            self._unregistered[model_id] = model
            return model_id

    def _registered_model_id(self, model: Model) -> tuple[bool, str | None]:
        known, model_id = super()._registered_model_id(model)
        if known:
            return known, model_id
        found = next((key for key, one in self._unregistered.items() if one is model), None)
        return found is not None, found

    async def resolve_model_id(self, ctx: ModelResolutionContext[AgentDepsT], *, model_id: str) -> Model | None:
        """The model of a request, by the name in the request."""
        return self._unregistered.get(model_id) or await super().resolve_model_id(ctx, model_id=model_id)

    def get_default_run_id(self) -> str | None:
        """The same on every replay."""
        execution = get_current_execution()
        return (
            None if execution is None else f"{execution.run_id}:{self.name}:{execution.draw_bytes('agent').hex()[:12]}"
        )

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """The same on every replay."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_run_clock(self) -> Callable[[], datetime] | None:
        """The clock of the run."""
        return now if self.in_durable_context else None

    def get_model_settings(self) -> Callable[[RunContext[AgentDepsT]], ModelSettings]:
        """Turn off the retries of the provider's SDK, because the step has its own."""

        def one_attempt(ctx: RunContext[AgentDepsT]) -> ModelSettings:
            given = {key: value for key, value in (ctx.model_settings or {}).items() if key == "max_retries"}
            return disable_sdk_retries(cast(Model, ctx.model), given)

        return one_attempt

    # A run

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """In workflow code, the agent's loop itself; anywhere else, a run that executes it."""
        if self.in_durable_context:
            # Plain functions of the agent (instructions, validators) are workflow code, which has no threads.
            with disable_threads():
                return await super().wrap_run(ctx, handler=handler)
        call = current_call.get()
        if call is None:
            raise UsageError(
                f"agent {self.name!r} is durable, and this way of running it is none that Holdfast can make durable: "
                f"use `agent.run(...)`, or call the agent in a workflow function"
            )
        current_call.set(None)
        if call.result is not None:
            return call.result
        return await await_result(await start_run(self.workflow, call), call)

    # For a caller in this process that watches the run

    async def before_node_run(
        self, ctx: RunContext[AgentDepsT], *, node: AgentNode[AgentDepsT]
    ) -> AgentNode[AgentDepsT]:
        """Show the node to the caller."""
        if (live := get_position(ctx.run_id)) is not None:
            live.start_node(node)
        return node

    @property
    def has_wrap_run_event_stream(self) -> bool:
        """Whether to request streams from models."""
        return current_position.get() is not None or super().has_wrap_run_event_stream

    async def wrap_run_event_stream(
        self, ctx: RunContext[AgentDepsT], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterable[AgentStreamEvent]:
        """Show the events of tool calls to the caller. A step shows those of models."""
        live = get_position(ctx.run_id)
        async for event in super().wrap_run_event_stream(ctx, stream=stream):
            if live is not None and live.node_execution.is_tool_call:
                live.add_event(event)
            yield event

    def _model_stream_event_handler(self) -> EventStreamHandler[AgentDepsT] | None:
        handler, live = super()._model_stream_event_handler(), relayed_position.get()
        return handler if live is None else live.relay_events(handler)

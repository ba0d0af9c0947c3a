"""``Durable``: what makes an agent of the library durable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, cast

from pydantic_ai import Agent
from pydantic_ai._utils import disable_threads
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.capabilities.abstract import WrapRunHandler
from pydantic_ai.durable_exec import (
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    conversation_id_from_run_id,
)
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_ai.toolsets import AbstractToolset, WrapperToolset

from holdfast.agents.models.calls import TIMEOUT
from holdfast.agents.models.choosing import own_retries_off
from holdfast.authoring.durations import Duration, seconds
from holdfast.authoring.inside import now
from holdfast.authoring.registry import register
from holdfast.core.execution import current_execution
from holdfast.core.queues import Queue
from holdfast.core.usage import Budget
from holdfast.errors import DefinitionError, HoldfastError, RunFailed, UsageError
from holdfast.integrations.pydantic_ai.calls import Call, refuse_overrides, watch
from holdfast.integrations.pydantic_ai.operations import Operations
from holdfast.integrations.pydantic_ai.recorded import Plain, unrecordable
from holdfast.integrations.pydantic_ai.running import AgentWorkflow, RunOptions
from holdfast.integrations.pydantic_ai.settings import METADATA, ToolSettings

_noted: ContextVar[Call | None] = ContextVar("holdfast_pydantic_ai_call", default=None)
"""What an agent is being called with."""


class Durable(BaseDurabilityCapability[AgentDepsT]):
    """Makes every run of a Pydantic AI agent durable: ``Agent(..., name="support", capabilities=[Durable()])``.

    Model requests and tool calls are recorded steps. In workflow code they are steps of the calling run; anywhere else
    ``agent.run(...)`` is a run of its own, under the id ``run_id=`` if that is given, which a program that is killed
    and started again joins. An agent needs a ``name``, and its toolsets need ids.

    Args:
        name: what the store calls its runs; the agent's name unless given.
        tools: by a tool's name, how its step is carried out, as in ``{"charge": {"effect": "once"}}``: ``retries``,
            ``backoff``, ``max_backoff``, ``retry_on``, ``give_up_on``, ``timeout``, ``effect``, ``transaction``, as in
            ``@step``. ``False``: it is called in workflow code and not recorded, for what gives the same answer every
            time. A tool may say so itself: ``metadata={"holdfast": {...}}``.
        deps: what runs are handed in this process that nobody here has given their own; for workers. Never recorded.
        models: further models that a run may be given as ``model=``, by name.
        event_stream_handler: told of the events of runs, in steps; see the library.
        model_timeout: seconds that one attempt of a model request may take.
        queue: the queue that runs wait in, by its name or as a ``Queue`` with limits; the agent's name unless given.
        timeout: seconds after its start at which a run that has not ended fails with ``RunTimedOut``.
        tags: words to find its runs by.
        budget: what each of its runs may use. In a workflow, that workflow's budget counts.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="workflow",
        codec=Plain(),
        serialization_failure=unrecordable,
        # A step runs on another event loop than workflow code: what one opens, the other cannot close. So each step
        # that needs an MCP server opens it, unless somebody outside holds it open (`async with agent:`).
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-never", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=METADATA,
    )

    workflow: AgentWorkflow
    """The workflow of its runs; of the one that the agent has: ``Durable.from_agent(agent)``."""

    def __init__(
        self,
        *,
        name: str | None = None,
        tools: Mapping[str, Mapping[str, Any] | bool] | None = None,
        deps: AgentDepsT | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        model_timeout: Duration = TIMEOUT,
        queue: str | Queue | None = None,
        timeout: Duration | None = None,
        tags: Collection[str] = (),
        budget: Budget | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        if isinstance(tags, str):
            raise DefinitionError(f"Durable: tags is a collection of words, not one string: tags=[{tags!r}]")
        self.deps = deps
        self.models = dict(models or {})
        self._tools = dict(tools or {})
        self._model_timeout = seconds(model_timeout, "Durable: model_timeout") or TIMEOUT
        self._options = RunOptions(queue, seconds(timeout, "Durable: timeout"), tuple(tags), budget)
        self._operations: Operations | None = None

    # What the library asks of an engine

    @property
    def in_durable_context(self) -> bool:
        """Whether this is workflow code."""
        return current_execution() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """What carries out operations."""
        assert self._operations is not None
        return self._operations

    def _bind_to_agent(self, agent: AbstractAgent[AgentDepsT, Any]) -> None:
        if not isinstance(agent, Agent):
            raise DefinitionError(f"Durable() goes to an `Agent` of pydantic-ai, not to a `{type(agent).__name__}`")
        models = list(self._models_by_id.values())
        self._operations = Operations(self.name, models, ToolSettings(self.name, self._tools), self._model_timeout)
        super()._bind_to_agent(agent)
        self.workflow = AgentWorkflow(self, cast("Agent[Any, Any]", agent), self._options)
        register(self.workflow.definition)
        watch(cast("Agent[Any, Any]", agent), self.name, _noted, lambda: current_execution() is not None)
        cast(Any, agent).holdfast_workflow = self.workflow  # for `holdfast worker module:agent`

    def _wrap_leaf_toolset(self, ts: AbstractToolset[AgentDepsT]) -> WrapperToolset[AgentDepsT] | None:
        wrapped = super()._wrap_leaf_toolset(ts)
        # The library has toolsets that carry out nothing; what a user's own one does, would not be recorded.
        if wrapped is None and not type(ts).__module__.startswith("pydantic_ai."):
            raise DefinitionError(
                f"agent {self.name!r} has a toolset of its own class, `{type(ts).__name__}`, whose calls cannot be "
                f"recorded as it is: wrap it, as in `DynamicToolset(lambda ctx: toolset, id='...')`, or make it a "
                f"`FunctionToolset`"
            )
        return wrapped

    def get_default_run_id(self) -> str | None:
        """The same on every replay."""
        execution = current_execution()
        return None if execution is None else f"{execution.run_id}:{self.name}:{execution.draw('agent').hex()[:12]}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """The same on every replay."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_run_clock(self) -> Callable[[], datetime] | None:
        """The time of the run."""
        return now if self.in_durable_context else None

    def get_model_settings(self) -> Callable[[RunContext[AgentDepsT]], ModelSettings]:
        """A step makes its own attempts, so the provider's SDK makes one."""

        def one_attempt(ctx: RunContext[AgentDepsT]) -> ModelSettings:
            given = {key: value for key, value in (ctx.model_settings or {}).items() if key == "max_retries"}
            return own_retries_off(cast(Model, ctx.model), given)

        return one_attempt

    # A run

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """In workflow code, the agent's loop itself; anywhere else, a run that executes it."""
        if self.in_durable_context:
            # A plain function of the agent's (instructions, validators) is workflow code, which has no threads.
            with disable_threads():
                return await super().wrap_run(ctx, handler=handler)
        call = _noted.get()
        if call is None:
            raise UsageError(
                f"agent {self.name!r} is durable, and this way of running it is none that Holdfast can make durable: "
                f"use `agent.run(...)`, or call the agent in a workflow function"
            )
        _noted.set(None)
        refuse_overrides(cast("Agent[Any, Any]", self.agent), self.name)
        options: dict[str, Any] = {} if "run_id" not in call.given else {"id": call.given["run_id"]}
        try:
            result = await (self.workflow.options(**options) if options else self.workflow)(call.prompt, **call.given)
        except RunFailed as failed:
            raise _own(failed) from None
        if "usage" in call.given:  # the caller's own account, which the run has been counting on a copy of
            call.given["usage"].incr(result.usage - call.given["usage"])
        return result


def _own(failed: RunFailed) -> BaseException:
    """What the agent raised, where whoever calls it expects that; else what has become of the run."""
    cause = failed.__cause__
    if cause is None or isinstance(cause, HoldfastError):
        return failed
    cause.add_note(str(failed))
    return cause

"""``durable(agent)``: what makes an agent of the SDK durable, and its settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from agents import Agent

from holdfast.admission.durations import Duration, declared_seconds
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.authoring.registry import register
from holdfast.authoring.workflow_options import validate_tags
from holdfast.core.states import Effect
from holdfast.errors import DefinitionError
from holdfast.integrations.openai_agents.agent_program import AgentProgram, ProgramOptions, validate_arguments
from holdfast.integrations.openai_agents.agent_run import AgentSettings
from holdfast.integrations.openai_agents.tool_calls import parse_effects

AgentT = TypeVar("AgentT", bound=Agent[Any])


def durable(
    agent: AgentT,
    *,
    name: str | None = None,
    effects: Mapping[str, Effect | str] | None = None,
    approver: str = "",
    arguments: Mapping[str, Any] | None = None,
    queue: str | Queue | None = None,
    timeout: Duration | None = None,
    tags: Collection[str] = (),
    budget: Budget | None = None,
) -> AgentT:
    """Make every run of an agent durable: ``agent = durable(Agent(...))``. Returns the same agent.

    ``Runner.run(agent, ...)``, ``run_sync``, and ``run_streamed`` of the SDK then record each model call and each call
    of a function tool as a step, also those of agents that it hands off to or uses as tools. In a ``@program``, they
    are steps of its run; in a ``@workflow``, of a child run; anywhere else, of a run of its own. A program that is
    killed and started again joins that run, and ``holdfast worker module:agent`` takes over the runs of dead processes.

    A tool with ``needs_approval`` waits for ``holdfast approve`` or ``holdfast deny``.

    Args:
        agent: the agent that is passed to ``Runner.run``. Agents that it hands off to need no ``durable`` of their own.
        name: the name of its runs in the store (default: the agent's name).
        effects: what tools do to the world, by tool: ``read``, ``idempotent`` (default), or ``once``. A ``once`` tool
            is never executed a second time: if its process died while it ran, the model is told so.
        approver: who is asked for approvals, for ``holdfast approvals --for`` (default: anyone).
        arguments: arguments of ``Runner.run`` that cannot be recorded, such as ``{"context": AppContext()}``, for runs
            that this process executes and has not started itself.
        queue: the queue of its runs: its name, or a ``Queue`` with limits (default: the agent's name).
        timeout: seconds after its start at which a run that has not ended fails with ``RunTimedOut``.
        tags: labels of its runs.
        budget: what each of its runs may use.
    """
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"durable() takes an Agent of the OpenAI Agents SDK, not a {type(agent).__name__}")
    settings = AgentSettings(
        name or agent.name, parse_effects(effects or {}, agent), approver, validate_arguments(arguments or {})
    )
    options = ProgramOptions(
        queue, declared_seconds(timeout, "durable: timeout"), validate_tags(tags, "durable"), budget
    )
    program = AgentProgram(agent, settings, options)
    register(program.definition)
    vars(agent)["holdfast_workflow"] = program  # not a field: `clone()` makes an agent that is not durable
    return agent

"""The functions of the SDK through which all of its model calls, function tools, and instructions go.

``get_model`` returns the model for a turn, and ``_invoke_function_tool_with_metadata`` calls a function tool, with its
timeout and the handling of its failures: ``maybe_invoke_function_tool_failure_error_function`` makes a text for the
model of one. The SDK has no public place for these that also sees agents and tools that are made while a run executes,
so they are replaced in the modules that call them. ``Agent.get_system_prompt`` calls a function for the instructions,
which may use the time. Outside a durable agent's run, all of these are the SDK's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from agents import Agent, FunctionTool, Model, RunConfig, RunContextWrapper
from agents import tool as sdk_tool
from agents.run_internal import run_loop, tool_execution
from agents.tool_context import ToolContext
from agents.version import __version__ as sdk_version

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.integrations.openai_agents.agent_run import AgentRun

GetModel = Callable[[Agent[Any], RunConfig], Model]
InvokeTool = Callable[..., Awaitable[Any]]

current_agent_run: ContextVar[AgentRun | None] = ContextVar("holdfast_openai_agents_run", default=None)
"""The durable run of the SDK's loop that the running code belongs to."""

_MODEL_FUNCTION, _TOOL_FUNCTION = "get_model", "_invoke_function_tool_with_metadata"
_FAILURE_FUNCTION = "maybe_invoke_function_tool_failure_error_function"


def _get_original(module: Any, name: str) -> Any:
    function = getattr(module, name, None)
    if function is None:
        raise UsageError(
            f"openai-agents {sdk_version} has no {module.__name__}.{name}, so its runs cannot be recorded. Install a "
            "supported version: pip install 'holdfast-agents[openai-agents]'"
        )
    return function


_get_model: GetModel = _get_original(run_loop, _MODEL_FUNCTION)
_invoke_tool: InvokeTool = _get_original(tool_execution, _TOOL_FUNCTION)


def _get_recorded_model(agent: Agent[Any], run_config: RunConfig) -> Model:
    model, agent_run = _get_model(agent, run_config), current_agent_run.get()
    if agent_run is not None:
        return agent_run.record_model(model)
    if getattr(agent, "holdfast_workflow", None) is not None:
        raise UsageError(
            f"agent {agent.name!r} is durable, but this run of it is not: it was started with another agent, or with a "
            "runner other than the SDK's default one. Make the agent durable that is passed to `Runner.run(...)`, and "
            "call no `set_default_agent_runner(...)` after `durable(...)`."
        )
    return model


async def _invoke_recorded_tool(*, function_tool: FunctionTool, context: ToolContext[Any], arguments: str) -> Any:
    async def invoke() -> Any:
        return await _invoke_tool(function_tool=function_tool, context=context, arguments=arguments)

    agent_run = current_agent_run.get()
    return await (invoke() if agent_run is None else agent_run.record_tool(function_tool, context, arguments, invoke))


_handle_failure = _get_original(sdk_tool, _FAILURE_FUNCTION)
_failures: ContextVar[list[BaseException] | None] = ContextVar("holdfast_openai_agents_failures", default=None)


@contextmanager
def noting_failures() -> Generator[list[BaseException]]:
    """The block calls a function tool; the list gets the exceptions of which the SDK makes a text for the model."""
    failures: list[BaseException] = []
    token = _failures.set(failures)
    try:
        yield failures
    finally:
        _failures.reset(token)


async def _note_and_handle_failure(*, error: BaseException, **options: Any) -> Any:
    if (failures := _failures.get()) is not None:
        failures.append(error)
    return await _handle_failure(error=error, **options)


_get_system_prompt = Agent.get_system_prompt


async def _get_recorded_system_prompt(agent: Agent[Any], run_context: RunContextWrapper[Any]) -> str | None:
    agent_run = current_agent_run.get()
    if agent_run is None or not callable(agent.instructions):
        return await _get_system_prompt(agent, run_context)
    return await agent_run.record_instructions(agent, run_context, lambda: _get_system_prompt(agent, run_context))


setattr(run_loop, _MODEL_FUNCTION, _get_recorded_model)
setattr(tool_execution, _TOOL_FUNCTION, _invoke_recorded_tool)
setattr(sdk_tool, _FAILURE_FUNCTION, _note_and_handle_failure)
Agent.get_system_prompt = _get_recorded_system_prompt  # type: ignore[method-assign]

"""The plugin of a durable runner: it makes what the framework is about to call durable.

The framework creates models and tools while it runs, such as a tool for each function of an agent. Its plugins see each
of them before it is called. Runners that agents start for agents in tools inherit the plugin.
"""

from __future__ import annotations

from typing import Any, cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from holdfast.engine.program_context import name_thread
from holdfast.integrations.google_adk.recorded_model import make_model_durable
from holdfast.integrations.google_adk.recorded_tool import (
    Effects,
    confirm,
    is_flow_tool,
    make_executor_durable,
    make_tool_durable,
)

NAME = "holdfast"


class HoldfastPlugin(BasePlugin):
    """Makes models, tools, and code executors durable before they are called. It changes nothing else.

    Args:
        root: the name of the runner's agent.
        effects: what tools do to the world, by their names.
        asks: whether a tool that requires a confirmation waits for an approval.
    """

    def __init__(self, root: str, effects: Effects, *, asks: bool) -> None:
        super().__init__(name=NAME)
        self._root = root
        self._effects = effects
        self._asks = asks

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """The model of the root agent may be used before the agent calls it: to summarize the session."""
        await _make_agent_durable(invocation_context)

    async def before_agent_callback(self, *, agent: BaseAgent, callback_context: CallbackContext) -> None:
        """The root agent may run in a task of its own, which makes one model call after the other."""
        if agent.name == self._root:  # it is a copy of the runner's agent
            name_thread(callback_context.invocation_id)

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        """An agent is about to call its model."""
        await _make_agent_durable(callback_context._invocation_context)  # pyright: ignore[reportPrivateUsage]

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> None:
        """A tool is about to be called, if the callbacks of its agent let it."""
        make_tool_durable(tool, self._effects, asks=self._asks)
        if self._asks and not is_flow_tool(tool, self._effects):
            await confirm(tool, tool_args, tool_context)


async def _make_agent_durable(context: InvocationContext) -> None:
    agent = cast(Any, context.agent)
    if hasattr(agent, "canonical_model_async"):
        make_model_durable(await agent.canonical_model_async(ReadonlyContext(context)))
    if (executor := getattr(agent, "code_executor", None)) is not None:
        make_executor_durable(executor)

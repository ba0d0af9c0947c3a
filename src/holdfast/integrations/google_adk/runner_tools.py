"""The names of the tools that a runner's agents have."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool

_WORKFLOW_AGENT_TYPES = (LoopAgent, ParallelAgent, SequentialAgent)


class ToolNames:
    """The names of the tools of an agent, and of the agents that it transfers to or uses as tools."""

    def __init__(self, root: Any) -> None:
        self.names: set[str] = set()
        self.is_complete = True
        """Whether there are no others, such as those of a toolset, which are known only when it runs."""
        self._visited: set[int] = set()
        self._visit_agent(root)

    def _visit_agent(self, agent: Any) -> None:
        if id(agent) in self._visited:
            return
        self._visited.add(id(agent))
        if isinstance(agent, LlmAgent):
            for tool in agent.tools:
                self._visit_tool(tool)
        elif type(agent) not in _WORKFLOW_AGENT_TYPES:
            self.is_complete = False
        for inner in getattr(agent, "sub_agents", ()):
            self.names.add(inner.name)  # one that works on a task is called like a tool
            self._visit_agent(inner)

    def _visit_tool(self, tool: Any) -> None:
        if isinstance(tool, BaseTool):
            self.names.add(tool.name)
            if isinstance(tool, AgentTool):
                self._visit_agent(tool.agent)
        elif isinstance(tool, BaseToolset) or not callable(tool):
            self.is_complete = False
        else:
            self.names.add(FunctionTool(tool).name)

"""A Pydantic AI agent whose runs survive the process: ``Agent(..., capabilities=[Durable()])``.

It uses the library's own interface for durable engines (``pydantic_ai.durable_exec``). The library turns every model
request, tool call, and discovery of tools into an operation, and ``operations`` issues each as a step of the run that
calls the agent. The agent's own loop is workflow code, and runs on the run's deterministic loop.

- **In workflow code**, ``await agent.run(...)`` adds its steps to the calling run.
- **Anywhere else**, it becomes a run of its own, of a workflow with the agent's name: see ``agent_workflow``.
  ``bindings`` has the arguments of the call that cannot be recorded, and ``followed_run`` streams and iterates a run.
"""

from holdfast.integrations.pydantic_ai.agent_workflow import AgentWorkflow
from holdfast.integrations.pydantic_ai.capability import Durable

__all__ = ["AgentWorkflow", "Durable"]

"""A Pydantic AI agent whose runs survive the process: ``Agent(..., capabilities=[Durable()])``.

Built on the library's own seam for durable engines (``pydantic_ai.durable_exec``): it turns every model request, tool
call and discovery of tools into an operation, and hands these to ``operations``, which issues each as a step of the run
that the agent is called in. The agent's own loop is workflow code, and runs on the run's deterministic loop.

- **In workflow code**, ``await agent.run(...)`` adds its steps to the calling run.
- **Anywhere else** it becomes a run of its own, of a workflow with the agent's name: see ``agent_workflow``. What the
  call was given and cannot be recorded is in ``bindings``, and how it is streamed and iterated in ``followed_run``.
"""

from holdfast.integrations.pydantic_ai.agent_workflow import AgentWorkflow
from holdfast.integrations.pydantic_ai.capability import Durable

__all__ = ["AgentWorkflow", "Durable"]

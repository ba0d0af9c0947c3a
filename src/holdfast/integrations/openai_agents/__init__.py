"""Agents of the OpenAI Agents SDK whose runs survive the process: ``agent = durable(agent)``.

The SDK's own loop runs as a program (see ``authoring.program``), and two of its functions are wrapped, through which
all of its model calls and function tools go: see ``sdk_hooks``. So handoffs, agents as tools, guardrails, and agents
that are made while a run executes need nothing of their own.

- **In a program**, ``Runner.run(agent, ...)`` adds its calls to the program's run.
- **In a workflow**, it is a child run.
- **Anywhere else**, it is a run of its own, of a program with the agent's name: see ``agent_program``.

``runner`` decides which. ``agent_run`` is one run of the SDK's loop in a program.
"""

try:
    from holdfast.integrations.openai_agents.durable_agent import durable
    from holdfast.integrations.openai_agents.runner import Runner
except ModuleNotFoundError as error:
    error.add_note("pip install 'holdfast-agents[openai-agents]' installs what this integration needs.")
    raise

__all__ = ["Runner", "durable"]

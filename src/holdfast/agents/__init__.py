"""Agents: workflows whose steps a model chooses.

Users declare and start an ``agent``. ``agent_loop`` is the workflow code of a run: it calls the model (``models``) with
the tools that the run offers (``tool_catalog``), executes the calls in the answer (``tool_calls``, of ``tools``,
``toolsets``, and sub-agents), and calls the model again, until there is a final answer (``output``). ``conversation``
is made from recorded data alone, so that it can be read from a run's journal without the agent's code. ``sessions``
continue a conversation over several runs, and ``compaction`` summarizes it when it becomes too long.
``tool_approvals``, ``planner``, ``memory_tools``, and ``skills`` are optional abilities of an agent.

``llm_step`` is one model call as a step of a workflow. ``deps`` are objects for tools that are never recorded.

Nothing here imports the model library before the first model call: the import takes more than a second.
"""

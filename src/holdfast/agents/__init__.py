"""Agents: workflows whose steps a model chooses.

The way of one run through this room: ``agent`` is what users declare and start. ``agent_loop`` is the workflow code
that asks the model (``models``) with what it is offered (``tool_catalog``), carries out the calls that it wants
(``tool_calls``, of ``tools``, ``toolsets`` and sub-agents), and asks again, until there is an answer (``output``).
``conversation`` is what has been said so far, made from what is recorded alone, so that whoever reads a run's journal
can tell the conversation without the agent's code; ``sessions`` go on with one over several runs, and ``compaction``
sums it up when it becomes too long. ``tool_approvals``, ``planner``, ``memory_tools`` and ``skills`` are what an agent
may be able to do besides.

``llm_step`` is one model call as a step of a workflow. ``deps`` are what tools are handed and nobody records.

Nothing here imports the model library before a model is asked: it takes more than a second.
"""

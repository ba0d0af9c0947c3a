"""Agents: workflows whose steps a model chooses.

The way of one run through this room: ``agent`` is what users declare and start. ``loop`` is the workflow code that asks
the model (``models``), calls the tools that it wants (``tools``, ``subagents``), and asks again, until there is an
answer (``output``). ``conversation`` is what has been said so far, made from what is recorded alone, so that whoever
reads a run's journal can tell the conversation without the agent's code. ``llm_step`` is one model call as a step of a
workflow. ``deps`` are what tools are handed and nobody records.

Nothing here imports the model library before a model is asked: it takes more than a second.
"""

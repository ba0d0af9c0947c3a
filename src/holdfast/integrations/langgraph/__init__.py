"""Durable graphs and agents of LangGraph, LangChain, and deepagents: ``agent = durable(create_agent(...))``.

``durable`` returns the same graph with recorded calls. The library's own loop runs in a program. What must not happen
twice is recorded where the libraries do it, whatever graph, chain, or function called it:

- ``model_calls``: the answers of chat models;
- ``tool_calls``: what tools return;
- ``node_calls``: the writes of nodes and tasks;
- ``interrupts``: the answers of people.

These places are wrapped when this package is imported. The wrappers do nothing for code that is not below a durable
graph.
"""

try:
    from holdfast.integrations.langgraph.durable_graph import DurableGraph, durable
    from holdfast.integrations.langgraph.model_calls import wrap_models
    from holdfast.integrations.langgraph.node_calls import wrap_tasks
    from holdfast.integrations.langgraph.tool_calls import wrap_tools
except ModuleNotFoundError as error:
    error.add_note("pip install 'holdfast-agents[langgraph]' installs what this integration needs.")
    raise

wrap_models()
wrap_tasks()
wrap_tools()

__all__ = ["DurableGraph", "durable"]

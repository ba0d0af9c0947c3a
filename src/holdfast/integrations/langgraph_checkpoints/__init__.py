"""LangGraph's checkpointer and store on Holdfast's database, for those who want only that.

``HoldfastSaver`` keeps the checkpoints of threads, ``HoldfastStore`` what outlives them. Both are entries of a client's
memory (see ``services.memories``), so they work with every store and server, its namespaces, and its encryption.
``connection`` has the client and the loop of methods without ``await``; ``layout`` says under which names what is kept.

A checkpointer records a graph's state between its super-steps. It is not a durable run: see
``docs/frameworks/langgraph-checkpointers.md``.
"""

try:
    from holdfast.integrations.langgraph_checkpoints.saver import HoldfastSaver
    from holdfast.integrations.langgraph_checkpoints.store import HoldfastStore
except ModuleNotFoundError as error:
    error.add_note("pip install 'holdfast-agents[langgraph]' installs what this integration needs.")
    raise

__all__ = ["HoldfastSaver", "HoldfastStore"]

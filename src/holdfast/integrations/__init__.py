"""Makes code of other frameworks durable, and holds what an adapter for a framework is made of.

Each framework has a package, which only users of the framework import. All of them work in the same way: the
framework's own code runs in a *program* (see ``authoring.program``), and the adapter records what must not happen
twice. ``record_model_call`` and ``record_tool_call`` make a model call and a tool call of the framework a step, and
``ask`` waits for a person. Outside of a program, they just make the call.
"""

from __future__ import annotations

from holdfast.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__, __file__, globals())  # pyright: ignore[reportUnsupportedDunderAll]

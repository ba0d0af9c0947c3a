"""The model library, which takes more than a second to import."""

from __future__ import annotations

from importlib import import_module

_MODULES = ("messages", "models", "tools", "usage")


def load_library() -> None:
    """Import the modules that every agent needs. Called in a thread, before an agent's first run begins."""
    for name in _MODULES:
        import_module(f"pydantic_ai.{name}")

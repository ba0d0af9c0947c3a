"""Tools that come with Holdfast: files, programs, and those of MCP servers. Each is imported when it is first used."""

from __future__ import annotations

from holdfast.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__, __file__, globals())  # pyright: ignore[reportUnsupportedDunderAll]

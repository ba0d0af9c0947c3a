"""Tools that come with Holdfast: files, programs, and those of MCP servers. Each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.tools.files import file_tools
    from holdfast.tools.mcp import McpServer, mcp_http, mcp_stdio
    from holdfast.tools.shell import shell_tool

__all__ = ["McpServer", "file_tools", "mcp_http", "mcp_stdio", "shell_tool"]

_HOMES = {
    "McpServer": "holdfast.tools.mcp",
    "file_tools": "holdfast.tools.files",
    "mcp_http": "holdfast.tools.mcp",
    "mcp_stdio": "holdfast.tools.mcp",
    "shell_tool": "holdfast.tools.shell",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

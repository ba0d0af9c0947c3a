"""An MCP server with one tool, over stdio."""

from __future__ import annotations

from effects import effect
from mcp.server import MCPServer

server = MCPServer("Weather")


@server.tool()
def forecast(city: str) -> str:
    """The weather of tomorrow."""
    with effect("forecast"):
        return f"sunny in {city}"


if __name__ == "__main__":
    server.run()

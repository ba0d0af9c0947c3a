"""Tools of MCP servers.

Users pass a ``server`` to an agent: a toolset, which lists the server's tools and makes a ``Tool`` for each
(``schema_parameters`` validates its arguments). The calls of all runs share one ``Connection`` per server and event
loop, which a task of its own opens, holds, and closes. It uses one of two transports: a process (``process_transport``)
or HTTP (``http_transport``). ``errors`` classifies failures, and ``results`` turns a server's answers into plain data.

The package ``mcp`` takes more than a second to import. It is imported before the first request to a server, in a
thread, and only by ``connect``, ``process_transport``, ``http_transport``, ``errors``, and ``results``.
"""

from holdfast.tools.mcp.server import McpServer, mcp_http, mcp_stdio

__all__ = ["McpServer", "mcp_http", "mcp_stdio"]

"""Tools of MCP servers.

``server`` is what users give to an agent: a toolset, which lists what a server has and makes a ``Tool`` of each
(``tool``, with the check of arguments in ``schema_parameters``). Calls of all runs go through one ``Connection`` per
server and event loop, which a task of its own opens, holds and closes. Below it are the two ways to a server: a process
(``process_transport``) and HTTP (``http_transport``). What goes wrong there is told apart in ``errors``; what a server
answers becomes plain data in ``results``.

The package ``mcp`` takes more than a second to import. It is imported when a server is first asked, in a thread, and
only by ``connect``, ``process_transport``, ``http_transport``, ``errors`` and ``results``.
"""

from holdfast.tools.mcp.server import McpServer, mcp_http, mcp_stdio

__all__ = ["McpServer", "mcp_http", "mcp_stdio"]

"""What an error of an MCP connection means: whether it may pass, and whether the server may have done what was asked.

The library tells of everything with one exception, ``MCPError``: of what the server has answered, of a connection that
broke, and of an HTTP status that is no answer. What we see of HTTP ourselves (``http_transport``) we put into it as a
``Fault``, under a key that no server can guess.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple, cast

from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR

from holdfast.codec.formatting import cut
from holdfast.errors import McpError, McpUnavailable

_KEY = f"holdfast-{secrets.token_hex(16)}"

LONGEST = 1500
"""The most characters of a server's words that are told."""

_CUT_STREAM = "SSE stream "
"""How the library begins to say that an answer over HTTP was cut off."""


class Fault(NamedTuple):
    """What happened instead of an answer."""

    words: str
    may_pass: bool = True
    sent: bool = True
    """Whether the request may have reached the server."""
    wait: float | None = None
    """How many seconds the server asks to wait."""
    session_lost: bool = False

    def as_error(self) -> dict[str, Any]:
        """As the error of a JSON-RPC answer, from which ``fault_in`` reads it."""
        return {"code": INTERNAL_ERROR, "message": self.words, "data": {_KEY: list(self)}}


def fault_in(error: MCPError) -> Fault | None:
    """The fault that we have put into an error."""
    data: object = error.error.data
    found = cast("dict[str, Any]", data).get(_KEY) if isinstance(data, dict) else None
    return None if found is None else Fault(*found)


def is_cut(error: MCPError, over: bool) -> bool:
    """Whether the connection broke before there was an answer; ``over``: the whole of it has ended.

    A server may use the same code for what it has to say.
    """
    return error.code == CONNECTION_CLOSED and (over or error.message.startswith(_CUT_STREAM))


def told(error: MCPError, server: str, over: bool) -> McpError:
    """What is raised for an error that came in place of a result."""
    fault = fault_in(error)
    if fault is not None:
        words = f"the MCP server {server!r} {fault.words}"
        if fault.may_pass:
            return McpUnavailable(words, server, sent=fault.sent, wait=fault.wait)
        return McpError(words, server)
    if is_cut(error, over):
        return McpUnavailable(f"the connection to the MCP server {server!r} broke before it answered", server)
    return McpError(f"the MCP server {server!r} says: {cut(error.message, LONGEST)}", server)

"""What an error of an MCP connection means: whether it may pass, and whether the server may have done what was asked.

The library tells of everything with one exception, ``MCPError``: of what the server has answered, of a connection that
broke, and of an HTTP status that is no answer. What we see of HTTP ourselves (``http_transport``) we put into it as a
``RequestFailure``, under a key that no server can guess.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple, cast

from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR

from holdfast.codec.formatting import truncate
from holdfast.errors import McpError, McpUnavailable

_DATA_KEY = f"holdfast-{secrets.token_hex(16)}"

MAX_MESSAGE_CHARS = 1500
"""The most characters of a server's words that are told."""

_BROKEN_STREAM_PREFIX = "SSE stream "
"""How the library begins to say that an answer over HTTP was cut off."""


class RequestFailure(NamedTuple):
    """What happened instead of an answer."""

    message: str
    is_retryable: bool = True
    is_sent: bool = True
    """Whether the request may have reached the server."""
    retry_after_s: float | None = None
    """How many seconds the server asks to wait."""
    is_session_lost: bool = False

    def to_json_rpc_error(self) -> dict[str, Any]:
        """As the error of a JSON-RPC answer, from which ``find_failure`` reads it."""
        return {"code": INTERNAL_ERROR, "message": self.message, "data": {_DATA_KEY: list(self)}}


def find_failure(error: MCPError) -> RequestFailure | None:
    """The fault that we have put into an error."""
    data: object = error.error.data
    found = cast("dict[str, Any]", data).get(_DATA_KEY) if isinstance(data, dict) else None
    return None if found is None else RequestFailure(*found)


def is_disconnect(error: MCPError, has_ended: bool) -> bool:
    """Whether the connection broke before there was an answer; ``has_ended``: the whole of it has ended.

    A server may use the same code for what it has to say.
    """
    return error.code == CONNECTION_CLOSED and (has_ended or error.message.startswith(_BROKEN_STREAM_PREFIX))


def to_mcp_error(error: MCPError, server: str, has_ended: bool) -> McpError:
    """What is raised for an error that came in place of a result."""
    fault = find_failure(error)
    if fault is not None:
        words = f"the MCP server {server!r} {fault.message}"
        if fault.is_retryable:
            return McpUnavailable(words, server, is_sent=fault.is_sent, retry_after_s=fault.retry_after_s)
        return McpError(words, server)
    if is_disconnect(error, has_ended):
        return McpUnavailable(f"the connection to the MCP server {server!r} broke before it answered", server)
    return McpError(f"the MCP server {server!r} says: {truncate(error.message, MAX_MESSAGE_CHARS)}", server)

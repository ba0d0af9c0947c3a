"""Classifies errors of MCP connections: whether a retry may help, and whether the server may have executed the request.

The library has one exception for everything, ``MCPError``: for an error that the server returns, a broken connection,
and an HTTP status without an answer. ``http_transport`` adds its own knowledge of HTTP failures to it as a
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
"""Maximum length of a server's message in an error."""

_BROKEN_STREAM_PREFIX = "SSE stream "
"""The beginning of the library's message for an HTTP answer that was cut off."""


class RequestFailure(NamedTuple):
    """The failure of an HTTP request."""

    message: str
    is_retryable: bool = True
    is_sent: bool = True
    """Whether the request may have reached the server."""
    retry_after_s: float | None = None
    """How long the server asks to wait."""
    is_session_lost: bool = False

    def to_json_rpc_error(self) -> dict[str, Any]:
        """The error of a JSON-RPC answer, from which ``find_failure`` reads the failure."""
        return {"code": INTERNAL_ERROR, "message": self.message, "data": {_DATA_KEY: list(self)}}


def find_failure(error: MCPError) -> RequestFailure | None:
    """The ``RequestFailure`` in an error, if ``http_transport`` has added one."""
    data: object = error.error.data
    found = cast("dict[str, Any]", data).get(_DATA_KEY) if isinstance(data, dict) else None
    return None if found is None else RequestFailure(*found)


def is_disconnect(error: MCPError, has_ended: bool) -> bool:
    """Whether the connection broke before the answer; ``has_ended``: the whole connection has ended.

    The error code alone is not enough: a server may use it in its own errors.
    """
    return error.code == CONNECTION_CLOSED and (has_ended or error.message.startswith(_BROKEN_STREAM_PREFIX))


def to_mcp_error(error: MCPError, server: str, has_ended: bool) -> McpError:
    """Holdfast's exception for an error of the library."""
    failure = find_failure(error)
    if failure is not None:
        message = f"the MCP server {server!r} {failure.message}"
        if failure.is_retryable:
            return McpUnavailable(message, server, is_sent=failure.is_sent, retry_after_s=failure.retry_after_s)
        return McpError(message, server)
    if is_disconnect(error, has_ended):
        return McpUnavailable(f"the connection to the MCP server {server!r} broke before it answered", server)
    return McpError(f"the MCP server {server!r} says: {truncate(error.message, MAX_MESSAGE_CHARS)}", server)

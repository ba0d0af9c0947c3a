"""Opens connections to MCP servers and makes requests, with the library ``mcp``.

The library's exceptions are never the cause of Holdfast's: causes are recorded, and a server's message may repeat a
secret.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mcp.client.client import Client
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    PaginatedRequestParams,
    Tool,
)
from pydantic import TypeAdapter, ValidationError

from holdfast import __version__
from holdfast.codec.formatting import truncate
from holdfast.errors import McpError, McpUnavailable, StepFailed
from holdfast.tools.mcp import results
from holdfast.tools.mcp.connection import HeaderSource, OpenConnection, unwrap_exception_group
from holdfast.tools.mcp.errors import MAX_MESSAGE_CHARS, find_failure, is_disconnect, to_mcp_error
from holdfast.tools.mcp.http_transport import open_http_streams
from holdfast.tools.mcp.process_transport import open_process_streams
from holdfast.tools.mcp.secret_redaction import SecretRedactor

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

MAX_PAGES = 100

_RESULT_ADAPTER: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)


@asynccontextmanager
async def open_process_session(
    server: str,
    command: tuple[str, ...],
    env: dict[str, str],
    cwd: str | Path | None,
    secrets: SecretRedactor,
    on_end: Callable[[], None],
) -> AsyncGenerator[ClientSession]:
    """A session with a server in a new process."""
    async with open_process_streams(server, command, env, cwd, secrets) as (streams, read_last_line):
        try:
            async with _open_session(streams, on_end) as session:
                yield session
        except MCPError as error:
            if not is_disconnect(error, has_ended=True):
                raise to_mcp_error(error, server, has_ended=False) from None
            last_line = await read_last_line()
            stderr = f"; the last that it wrote to its stderr: {last_line}" if last_line else ""
            words = f"the process of the MCP server {server!r} ended before it could be asked anything{stderr}"
            raise McpUnavailable(words, server, is_sent=False) from None


@asynccontextmanager
async def open_http_session(
    server: str, url: str, headers: HeaderSource, secrets: SecretRedactor, on_end: Callable[[], None]
) -> AsyncGenerator[ClientSession]:
    """A session with a server over HTTP."""
    async with open_http_streams(url, headers, secrets) as streams:
        try:
            async with _open_session(streams, on_end) as session:
                yield session
        except MCPError as error:
            translated = to_mcp_error(error, server, has_ended=True)
            if isinstance(translated, McpUnavailable):
                translated.is_sent = False  # the client has sent only the initialization
            raise translated from None


@asynccontextmanager
async def _open_session(streams: TransportStreams, on_end: Callable[[], None]) -> AsyncGenerator[ClientSession]:
    """An initialized session, for any version of the protocol."""
    reading, writing = streams
    watched: Any = nullcontext((_WatchedStream(reading, on_end), writing))
    client_info = Implementation(name="holdfast", version=__version__)
    try:
        async with Client(watched, cache=None, client_info=client_info) as client:
            yield client.session
    except ExceptionGroup as group:  # from the library's task groups
        raise unwrap_exception_group(group) from None


class _WatchedStream:
    """A stream to read from that reports its end."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._stream.__aexit__(*raised)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._on_end()
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# Requests


async def list_all_tools(connection: OpenConnection, server: str) -> list[Tool]:
    """All tools of the server, page by page."""
    found: list[Tool] = []
    cursor: str | None = None
    seen: set[str] = set()
    try:
        for _ in range(MAX_PAGES):
            page = await connection.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return found
            if cursor in seen:
                raise McpError(f"the MCP server {server!r} lists its tools without end", server)
            seen.add(cursor)
    except MCPError as error:
        _raise_mcp_error(connection, server, error)
    except ValidationError as error:
        problem = truncate(str(error), MAX_MESSAGE_CHARS)
        raise McpError(
            f"the MCP server {server!r} does not list its tools as the protocol says: {problem}", server
        ) from None
    raise McpError(f"the MCP server {server!r} lists its tools on more than {MAX_PAGES} pages", server)


async def call_tool(connection: OpenConnection, server: str, name: str, arguments: dict[str, Any]) -> Any:
    """Call a tool, and return its result as plain data. Raises ``StepFailed`` with the server's error."""
    try:
        try:
            result = await _send_call(connection.session, name, arguments)
        except MCPError as error:
            if error.code != HEADER_MISMATCH:
                raise
            # It was not called: some arguments must also be headers, and the session learns which from a listing.
            await list_all_tools(connection, server)
            result = await _send_call(connection.session, name, arguments)
    except MCPError as error:
        _raise_mcp_error(connection, server, error)
    except ValidationError as error:
        problem = truncate(str(error), MAX_MESSAGE_CHARS)
        raise McpError(
            f"the MCP server {server!r} was asked, but answers not as the protocol says: {problem}", server
        ) from None
    if isinstance(result, InputRequiredResult):
        raise McpError(f"the MCP server {server!r} asks for more input first, which nobody here can give", server)
    if result.is_error:
        raise StepFailed(results.format_error(result), name)
    return results.to_plain(result)


async def _send_call(
    session: ClientSession, name: str, arguments: dict[str, Any]
) -> CallToolResult | InputRequiredResult:
    # Not `session.call_tool`: it drops a result that does not fit the tool's output schema.
    request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
    return await session.send_request(request, _RESULT_ADAPTER)


def _raise_mcp_error(connection: OpenConnection, server: str, error: MCPError) -> NoReturn:
    failure = find_failure(error)
    if failure is not None and failure.is_session_lost:
        connection.end()
    raise to_mcp_error(error, server, connection.has_ended) from None

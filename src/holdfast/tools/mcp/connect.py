"""Opening a connection to an MCP server, and what is asked there, with the library ``mcp``.

The library's exceptions are not the cause of ours: causes are recorded, and a server may repeat in its words what is
secret.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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
from holdfast.tools.mcp.connection import Connector, HeaderSource, OpenConnection, unwrap_exception_group
from holdfast.tools.mcp.errors import MAX_MESSAGE_CHARS, find_failure, is_disconnect, to_mcp_error
from holdfast.tools.mcp.http_transport import open_http_streams
from holdfast.tools.mcp.process_transport import open_process_streams
from holdfast.tools.mcp.secret_redaction import SecretRedactor

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

MAX_PAGES = 100

_RESULT_ADAPTER: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)


def make_process_connector(
    server: str, command: tuple[str, ...], env: dict[str, str], cwd: str | Path | None, secrets: SecretRedactor
) -> Connector:
    """How a server is reached that is a process of ours."""

    @asynccontextmanager
    async def dial(ended: Callable[[], None]) -> AsyncGenerator[ClientSession]:
        async with open_process_streams(server, command, env, cwd, secrets) as (streams, last_words):
            try:
                async with _open_session(streams, ended) as session:
                    yield session
            except Exception as raised:
                error = unwrap_exception_group(raised)
                if not isinstance(error, MCPError):
                    raise
                if is_disconnect(error, has_ended=True):
                    said = await last_words()
                    wrote = f"; the last that it wrote to its stderr: {said}" if said else ""
                    words = f"the process of the MCP server {server!r} ended before it could be asked anything{wrote}"
                    raise McpUnavailable(words, server, is_sent=False) from None
                raise to_mcp_error(error, server, has_ended=False) from None

    return dial


def make_http_connector(server: str, url: str, headers: HeaderSource, secrets: SecretRedactor) -> Connector:
    """How a server is reached over HTTP."""

    @asynccontextmanager
    async def dial(ended: Callable[[], None]) -> AsyncGenerator[ClientSession]:
        async with open_http_streams(url, headers, secrets) as streams:
            try:
                async with _open_session(streams, ended) as session:
                    yield session
            except Exception as raised:
                error = unwrap_exception_group(raised)
                if not isinstance(error, MCPError):
                    raise
                why = to_mcp_error(error, server, has_ended=True)
                if isinstance(why, McpUnavailable):
                    why.is_sent = False  # nothing was asked but who it is
                raise why from None

    return dial


@asynccontextmanager
async def _open_session(streams: TransportStreams, on_end: Callable[[], None]) -> AsyncGenerator[ClientSession]:
    """A session that has been opened with the server, whichever version of the protocol that speaks."""
    reading, writing = streams
    ours = _OpenStreams((_WatchedStream(reading, on_end), writing))
    async with Client(ours, cache=None, client_info=Implementation(name="holdfast", version=__version__)) as client:
        yield client.session


class _OpenStreams(AbstractAsyncContextManager["TransportStreams"]):
    """Streams that are open already, as the library takes them."""

    def __init__(self, streams: Any) -> None:
        self._streams = streams

    async def __aenter__(self) -> TransportStreams:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        pass


class _WatchedStream:
    """A stream to read from that tells when it ends."""

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


# What is asked


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
        words = (
            f"the MCP server {server!r} does not list its tools as the protocol says: "
            f"{truncate(str(error), MAX_MESSAGE_CHARS)}"
        )
        raise McpError(words, server) from None
    raise McpError(f"the MCP server {server!r} lists its tools on more than {MAX_PAGES} pages", server)


async def call_tool(connection: OpenConnection, server: str, name: str, arguments: dict[str, Any]) -> Any:
    """Call a tool, and return what that gave as plain data. Raises ``StepFailed`` with the server's words."""
    try:
        try:
            result = await _send_call(connection.session, name, arguments)
        except MCPError as error:
            if error.code != HEADER_MISMATCH:
                raise
            # It was not called: some arguments belong into headers, too, and only a listing tells which.
            await list_all_tools(connection, server)
            result = await _send_call(connection.session, name, arguments)
    except MCPError as error:
        _raise_mcp_error(connection, server, error)
    except ValidationError as error:
        words = (
            f"the MCP server {server!r} was asked, but answers not as the protocol says: "
            f"{truncate(str(error), MAX_MESSAGE_CHARS)}"
        )
        raise McpError(words, server) from None
    if isinstance(result, InputRequiredResult):
        raise McpError(f"the MCP server {server!r} asks for more input first, which nobody here can give", server)
    if result.is_error:
        raise StepFailed(results.format_error(result), name)
    return results.to_plain(result)


async def _send_call(
    session: ClientSession, name: str, arguments: dict[str, Any]
) -> CallToolResult | InputRequiredResult:
    # Not `session.call_tool`: that holds a result against the tool's schema, and throws away one that does not fit.
    request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
    return await session.send_request(request, _RESULT_ADAPTER)


def _raise_mcp_error(connection: OpenConnection, server: str, error: MCPError) -> NoReturn:
    fault = find_failure(error)
    if fault is not None and fault.is_session_lost:
        connection.end()
    raise to_mcp_error(error, server, connection.has_ended) from None

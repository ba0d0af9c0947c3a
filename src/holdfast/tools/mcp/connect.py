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
from holdfast.codec.formatting import cut
from holdfast.errors import McpError, McpUnavailable, StepFailed
from holdfast.tools.mcp import results
from holdfast.tools.mcp.connection import Dial, Headers, Live, innermost
from holdfast.tools.mcp.errors import LONGEST, fault_in, is_cut, told
from holdfast.tools.mcp.http_transport import http_streams
from holdfast.tools.mcp.process_transport import process_streams
from holdfast.tools.mcp.secret_redaction import Secrets

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

MOST_PAGES = 100

_RESULTS: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)


def dial_process(
    server: str, command: tuple[str, ...], env: dict[str, str], cwd: str | Path | None, secrets: Secrets
) -> Dial:
    """How a server is reached that is a process of ours."""

    @asynccontextmanager
    async def dial(ended: Callable[[], None]) -> AsyncGenerator[ClientSession]:
        async with process_streams(server, command, env, cwd, secrets) as (streams, last_words):
            try:
                async with _session(streams, ended) as session:
                    yield session
            except Exception as raised:
                error = innermost(raised)
                if not isinstance(error, MCPError):
                    raise
                if is_cut(error, over=True):
                    said = await last_words()
                    wrote = f"; the last that it wrote to its stderr: {said}" if said else ""
                    words = f"the process of the MCP server {server!r} ended before it could be asked anything{wrote}"
                    raise McpUnavailable(words, server, sent=False) from None
                raise told(error, server, over=False) from None

    return dial


def dial_http(server: str, url: str, headers: Headers, secrets: Secrets) -> Dial:
    """How a server is reached over HTTP."""

    @asynccontextmanager
    async def dial(ended: Callable[[], None]) -> AsyncGenerator[ClientSession]:
        async with http_streams(url, headers, secrets) as streams:
            try:
                async with _session(streams, ended) as session:
                    yield session
            except Exception as raised:
                error = innermost(raised)
                if not isinstance(error, MCPError):
                    raise
                why = told(error, server, over=True)
                if isinstance(why, McpUnavailable):
                    why.sent = False  # nothing was asked but who it is
                raise why from None

    return dial


@asynccontextmanager
async def _session(streams: TransportStreams, ended: Callable[[], None]) -> AsyncGenerator[ClientSession]:
    """A session that has been opened with the server, whichever version of the protocol that speaks."""
    reading, writing = streams
    ours = _Ready((_Watched(reading, ended), writing))
    async with Client(ours, cache=None, client_info=Implementation(name="holdfast", version=__version__)) as client:
        yield client.session


class _Ready(AbstractAsyncContextManager["TransportStreams"]):
    """Streams that are open already, as the library takes them."""

    def __init__(self, streams: Any) -> None:
        self._streams = streams

    async def __aenter__(self) -> TransportStreams:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        pass


class _Watched:
    """A stream to read from that tells when it ends."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    async def __aenter__(self) -> _Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._stream.__aexit__(*raised)

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._ended()
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# What is asked


async def list_all(live: Live, server: str) -> list[Tool]:
    """All tools of the server, page by page."""
    found: list[Tool] = []
    cursor: str | None = None
    seen: set[str] = set()
    try:
        for _ in range(MOST_PAGES):
            page = await live.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return found
            if cursor in seen:
                raise McpError(f"the MCP server {server!r} lists its tools without end", server)
            seen.add(cursor)
    except MCPError as error:
        _raise(live, server, error)
    except ValidationError as error:
        words = f"the MCP server {server!r} does not list its tools as the protocol says: {cut(str(error), LONGEST)}"
        raise McpError(words, server) from None
    raise McpError(f"the MCP server {server!r} lists its tools on more than {MOST_PAGES} pages", server)


async def call(live: Live, server: str, name: str, arguments: dict[str, Any]) -> Any:
    """Call a tool, and return what that gave as plain data. Raises ``StepFailed`` with the server's words."""
    try:
        try:
            result = await _call(live.session, name, arguments)
        except MCPError as error:
            if error.code != HEADER_MISMATCH:
                raise
            # It was not called: some arguments belong into headers, too, and only a listing tells which.
            await list_all(live, server)
            result = await _call(live.session, name, arguments)
    except MCPError as error:
        _raise(live, server, error)
    except ValidationError as error:
        words = f"the MCP server {server!r} was asked, but answers not as the protocol says: {cut(str(error), LONGEST)}"
        raise McpError(words, server) from None
    if isinstance(result, InputRequiredResult):
        raise McpError(f"the MCP server {server!r} asks for more input first, which nobody here can give", server)
    if result.is_error:
        raise StepFailed(results.words(result), name)
    return results.plain(result)


async def _call(session: ClientSession, name: str, arguments: dict[str, Any]) -> CallToolResult | InputRequiredResult:
    # Not `session.call_tool`: that holds a result against the tool's schema, and throws away one that does not fit.
    request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
    return await session.send_request(request, _RESULTS)


def _raise(live: Live, server: str, error: MCPError) -> NoReturn:
    fault = fault_in(error)
    if fault is not None and fault.session_lost:
        live.end()
    raise told(error, server, live.is_over) from None

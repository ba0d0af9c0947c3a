"""An MCP server that is asked over HTTP.

The library's own client cannot be told why a request failed: a fault of the network ends the whole connection, and a
status is no part of its error. So the HTTP client that we hand to it answers for the server where that gives no answer:
with a JSON-RPC error that has the ``Fault`` in it, for this one request. The others go on.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import httpx2
from mcp.client.streamable_http import streamable_http_client

from holdfast.tools.mcp.connection import Headers
from holdfast.tools.mcp.errors import Fault
from holdfast.tools.mcp.secret_redaction import Secrets

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

LARGEST = 32 * 1024 * 1024
"""The most bytes of one answer that are read."""

CONNECT = 10.0
LONGEST_WAIT = 60.0
"""The most seconds that a server may ask us to wait before the next attempt."""

_UNSENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


@asynccontextmanager
async def http_streams(url: str, headers: Headers, secrets: Secrets) -> AsyncGenerator[TransportStreams]:
    """The streams to and from a server."""
    # An answer may take as long as the call's own time-out allows, and so may the turn of a call among many.
    timeout = httpx2.Timeout(CONNECT, read=None, pool=None)
    # Most servers keep idle connections for five seconds: one that is used just when it is closed looks like a fault.
    limits = httpx2.Limits(max_connections=100, keepalive_expiry=2.0)
    async with (
        _Client(headers, secrets, timeout=timeout, limits=limits) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=LARGEST) as streams,
    ):
        yield streams


class _Client(httpx2.AsyncClient):
    """Adds the headers to each request, and never raises for one that is to be answered."""

    def __init__(self, headers_of: Headers, secrets: Secrets, **options: Any) -> None:
        super().__init__(**options)
        self._headers_of = headers_of
        self._secrets = secrets

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:  # type: ignore[override]
        """Send a request, and answer for the server where that does not."""
        if request.method != "POST":
            request.headers.update(await self._made_headers())
            return await super().send(request, **options)
        try:
            request.headers.update(await self._made_headers())
        except Exception as error:
            words = f"was not asked: its headers could not be made ({type(error).__name__}: {error})"
            return _instead(request, Fault(self._secrets.hide(words), sent=False))
        if b'"id":' not in request.content:
            # Nothing that waits for an answer, such as that a call is cancelled: all others would wait behind it.
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(CONNECT).as_dict()}
        try:
            response = await super().send(request, **options)
            return await self._whole(request, response)
        except (httpx2.HTTPError, OSError) as error:
            sent = not isinstance(error, _UNSENT)
            words = "was asked, but the connection broke" if sent else "cannot be reached"
            told = self._secrets.hide(f"{words} ({type(error).__name__}{f': {error}' if str(error) else ''})")
            return _instead(request, Fault(told, sent=sent))

    async def _made_headers(self) -> Mapping[str, str]:
        given = self._headers_of
        made: Any = given
        if callable(given):
            made = given() if inspect.iscoroutinefunction(given) else await asyncio.to_thread(given)
            made = await made if inspect.isawaitable(made) else made
        headers = cast("Mapping[str, str]", made)
        self._secrets.add(headers.values())
        return headers

    async def _whole(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """The response, read to its end unless it is a stream of events; or what stands in its place."""
        status = response.status_code
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if response.next_request is not None or (status < 400 and is_stream):
            return response
        try:
            body = await _read(response)
        finally:
            await response.aclose()
        if body is None:
            words = f"gave an answer of more than {LARGEST // 1024 // 1024} MiB, which is not read"
            return _instead(request, Fault(words, may_pass=False))
        if status >= 400 and (fault := _fault_of(request, response, body)) is not None:
            return _instead(request, fault)
        kept = {name: value for name, value in response.headers.items() if name.lower() not in _OF_THE_WIRE}
        return httpx2.Response(status, headers=kept, content=body, request=request)


_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")


async def _read(response: httpx2.Response) -> bytes | None:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_bytes():
        size += len(piece)
        if size > LARGEST:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _fault_of(request: httpx2.Request, response: httpx2.Response, body: bytes) -> Fault | None:
    """What a status means that is no success; ``None``: the server has an answer all the same."""
    status = response.status_code
    if status in (401, 403):
        return Fault(f"refuses this client (HTTP {status}): check the headers that it is given", may_pass=False)
    if status == 404 and "mcp-session-id" in request.headers:
        return Fault("no longer knows this session (HTTP 404)", sent=False, session_lost=True)
    if status == 429:
        return Fault("is asked too often (HTTP 429)", sent=False, wait=_wait(response))
    if _is_answer(body):
        return None
    if status >= 500:
        return Fault(f"answered with HTTP {status}", wait=_wait(response))
    advice = ": is the URL the right one?" if status in (404, 405) else ""
    return Fault(f"answered with HTTP {status}{advice}", may_pass=False)


def _is_answer(body: bytes) -> bool:
    """Whether it is an error of JSON-RPC."""
    try:
        found = json.loads(body)
    except ValueError:
        return False
    return isinstance(found, dict) and isinstance(cast("dict[str, Any]", found).get("error"), dict)


def _wait(response: httpx2.Response) -> float | None:
    try:
        wait = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(wait, LONGEST_WAIT) if wait >= 0 else None


def _instead(request: httpx2.Request, fault: Fault) -> httpx2.Response:
    """An answer with a fault in it."""
    body = {"jsonrpc": "2.0", "id": None, "error": fault.as_error()}
    return httpx2.Response(500, json=body, request=request)

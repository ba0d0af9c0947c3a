"""Connects to an MCP server over HTTP.

The library's own client does not report why a request failed: a network error ends the whole connection, and its error
does not contain the HTTP status. So this module passes it an HTTP client that answers failed requests itself, with a
JSON-RPC error that contains the ``RequestFailure``. Other requests are not affected.
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

from holdfast.tools.mcp.connection import HeaderSource
from holdfast.tools.mcp.errors import RequestFailure
from holdfast.tools.mcp.secret_redaction import SecretRedactor

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

MAX_RESPONSE_BYTES = 32 * 1024 * 1024
"""Maximum size of one answer."""

CONNECT_TIMEOUT_S = 10.0
MAX_RETRY_AFTER_S = 60.0
"""A server's ``Retry-After`` is cut to this."""

_UNSENT_ERRORS = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


@asynccontextmanager
async def open_http_streams(
    url: str, headers: HeaderSource, secrets: SecretRedactor
) -> AsyncGenerator[TransportStreams]:
    """The streams of a session with a server."""
    # The call's own timeout limits the wait for an answer, and for a free connection.
    timeout = httpx2.Timeout(CONNECT_TIMEOUT_S, read=None, pool=None)
    # Most servers close idle connections after five seconds. A request on a connection that is just being closed fails.
    limits = httpx2.Limits(max_connections=100, keepalive_expiry=2.0)
    async with (
        _McpHttpClient(headers, secrets, timeout=timeout, limits=limits) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_RESPONSE_BYTES) as streams,
    ):
        yield streams


class _McpHttpClient(httpx2.AsyncClient):
    """Adds the headers to each request, and answers failed requests itself instead of raising."""

    def __init__(self, header_source: HeaderSource, secrets: SecretRedactor, **options: Any) -> None:
        super().__init__(**options)
        self._header_source = header_source
        self._secrets = secrets

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:  # type: ignore[override]
        """Send a request. If it fails, return an answer with the failure."""
        if request.method != "POST":
            request.headers.update(await self._make_headers())
            return await super().send(request, **options)
        try:
            request.headers.update(await self._make_headers())
        except Exception as error:
            words = f"was not asked: its headers could not be made ({type(error).__name__}: {error})"
            return _make_failure_response(request, RequestFailure(self._secrets.redact(words), is_sent=False))
        if b'"id":' not in request.content:
            # A notification, such as of a cancelled call. Without a timeout, it would block all other requests.
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(CONNECT_TIMEOUT_S).as_dict()}
        try:
            response = await super().send(request, **options)
            return await self._read_fully(request, response)
        except (httpx2.HTTPError, OSError) as error:
            sent = not isinstance(error, _UNSENT_ERRORS)
            words = "was asked, but the connection broke" if sent else "cannot be reached"
            message = self._secrets.redact(f"{words} ({type(error).__name__}{f': {error}' if str(error) else ''})")
            return _make_failure_response(request, RequestFailure(message, is_sent=sent))

    async def _make_headers(self) -> Mapping[str, str]:
        source = self._header_source
        result: Any = source
        if callable(source):
            result = source() if inspect.iscoroutinefunction(source) else await asyncio.to_thread(source)
            result = await result if inspect.isawaitable(result) else result
        headers = cast("Mapping[str, str]", result)
        self._secrets.add(headers.values())
        return headers

    async def _read_fully(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """The response, read to its end unless it is a stream of events; or an answer with the failure."""
        status = response.status_code
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if response.next_request is not None or (status < 400 and is_stream):
            return response
        try:
            body = await _read_body(response)
        finally:
            await response.aclose()
        if body is None:
            words = f"gave an answer of more than {MAX_RESPONSE_BYTES // 1024 // 1024} MiB, which is not read"
            return _make_failure_response(request, RequestFailure(words, is_retryable=False))
        if status >= 400 and (failure := _failure_from_response(request, response, body)) is not None:
            return _make_failure_response(request, failure)
        headers = {name: value for name, value in response.headers.items() if name.lower() not in _TRANSFER_HEADERS}
        return httpx2.Response(status, headers=headers, content=body, request=request)


_TRANSFER_HEADERS = ("content-encoding", "content-length", "transfer-encoding")


async def _read_body(response: httpx2.Response) -> bytes | None:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            return None
    return bytes(body)


def _failure_from_response(request: httpx2.Request, response: httpx2.Response, body: bytes) -> RequestFailure | None:
    """The failure for an error status; ``None`` if the body is an answer anyway."""
    status = response.status_code
    if status in (401, 403):
        return RequestFailure(
            f"refuses this client (HTTP {status}): check the headers that it is given", is_retryable=False
        )
    if status == 404 and "mcp-session-id" in request.headers:
        return RequestFailure("no longer knows this session (HTTP 404)", is_sent=False, is_session_lost=True)
    if status == 429:
        return RequestFailure(
            "is asked too often (HTTP 429)", is_sent=False, retry_after_s=_parse_retry_after(response)
        )
    if _is_json_rpc_error(body):
        return None
    if status >= 500:
        return RequestFailure(f"answered with HTTP {status}", retry_after_s=_parse_retry_after(response))
    advice = ": is the URL the right one?" if status in (404, 405) else ""
    return RequestFailure(f"answered with HTTP {status}{advice}", is_retryable=False)


def _is_json_rpc_error(body: bytes) -> bool:
    try:
        found = json.loads(body)
    except ValueError:
        return False
    return isinstance(found, dict) and isinstance(cast("dict[str, Any]", found).get("error"), dict)


def _parse_retry_after(response: httpx2.Response) -> float | None:
    try:
        wait = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(wait, MAX_RETRY_AFTER_S) if wait >= 0 else None


def _make_failure_response(request: httpx2.Request, failure: RequestFailure) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": None, "error": failure.to_json_rpc_error()}
    return httpx2.Response(500, json=body, request=request)

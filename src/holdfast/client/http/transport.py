"""Requests to a server, and what happens when it does not answer.

A request is sent again when the server cannot be reached, when the connection breaks, and on 429, 502, 503, and 504.
That is safe: reading changes nothing, and a request that makes a change carries an id from the caller, or has no
further effect when it is repeated. So the server needs no table of responses.
``ServerResponse.has_unconfirmed_attempt`` says that an earlier try of the same request may have been executed.

A single request has a time limit. All tries together have one too, except in calls that wait for something: those
continue until the caller gives up.

Each event loop has connections of its own, as with a store.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast
from urllib.parse import urlencode

import httpx2

from holdfast import __version__
from holdfast.client.http.backoff import GIVE_UP_AFTER_S, Backoff, Timing
from holdfast.client.http.connections import IDLE_TIMEOUT_S, HttpConnection, HttpConnections
from holdfast.client.http.plain_connection import PlainConnection, PlainResponse
from holdfast.client.http.problems import error_from_response
from holdfast.client.http.server_endpoint import ServerEndpoint
from holdfast.client.http.sse import ServerSentEvent, SseParser
from holdfast.errors import (
    HoldfastError,
    PolicyLimitReached,
    ServerError,
    ServerUnavailable,
    StoreReadOnly,
    TooManyRequests,
)
from holdfast.services.wire_values import TAGGED_VALUES, VALUES_HEADER
from holdfast.trace_context import TRACE_PARENT_HEADER, get_current_trace_parent

CONNECT_TIMEOUT_S = 5.0
RESPONSE_TIMEOUT_S = 30.0
"""Seconds that a response may take, in addition to those that the server was asked to wait."""
STREAM_IDLE_TIMEOUT_S = 45.0
"""Seconds of silence after which a stream counts as broken: the server sends something every ten."""
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})

_REQUEST_ERRORS = (httpx2.HTTPError, httpx2.InvalidURL)
"""Errors of a request that got no response."""
_EMPTY_SSL_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no certificate, for connections that have none."""

HttpResponse = httpx2.Response | PlainResponse
Query = Mapping[str, str | int | float | bool | Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """The response of a server."""

    status: int
    data: Any
    """The JSON of its body; ``None`` if there is none."""
    error: HoldfastError | None = None
    """The exception for an error response."""
    has_unconfirmed_attempt: bool = False
    """An earlier try of this request may have been executed."""

    def unwrap(self) -> Any:
        """The data. Raises the error of an error response."""
        if self.error is not None:
            raise self.error
        return self.data


class TransientError(Exception):
    """A failure after which a request may be sent again."""

    def __init__(
        self, reason: str, error: HoldfastError | None, *, is_sent: bool, retry_after_s: float | None = None
    ) -> None:
        super().__init__(reason)
        self.error = error
        """The server's error, if it sent one."""
        self.is_sent = is_sent
        """Whether the request may have been executed."""
        self.retry_after_s = retry_after_s


class Transport:
    """Sends requests to a server.

    Args:
        endpoint: the server's address and the caller's key.
        timing: clock and random source.
        http_transport: sends requests instead of the network; for tests, and for servers in this process.
    """

    def __init__(
        self,
        endpoint: ServerEndpoint,
        *,
        timing: Timing | None = None,
        http_transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.timing = timing or Timing()
        self._http_transport = http_transport
        self._connections_by_loop: dict[asyncio.AbstractEventLoop, HttpConnections] = {}

    # Connections

    @asynccontextmanager
    async def _acquire_client(self) -> AsyncGenerator[HttpConnection]:
        """An HTTP client for one request."""
        loop = asyncio.get_running_loop()
        connections = self._connections_by_loop.get(loop)
        if connections is None:
            for other in [other for other in list(self._connections_by_loop) if other.is_closed()]:
                self._connections_by_loop.pop(other, None)
            connections = self._connections_by_loop[loop] = HttpConnections(self._create_client)
        async with connections.acquire() as client:
            yield client

    def _create_client(self) -> HttpConnection:
        headers = {
            **self.endpoint.auth_headers(),
            "User-Agent": f"holdfast/{__version__}",
            VALUES_HEADER: TAGGED_VALUES,
        }
        if not self.endpoint.is_encrypted and self._http_transport is None and self.endpoint.url.isascii():
            return PlainConnection(self.endpoint.url, headers)
        return httpx2.AsyncClient(
            transport=self._http_transport,
            headers=headers,
            follow_redirects=False,
            verify=_get_ssl_context() if self.endpoint.is_encrypted else _EMPTY_SSL_CONTEXT,
            # A proxy may carry encrypted requests; it could read the key in others.
            trust_env=self.endpoint.is_encrypted,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=1, keepalive_expiry=IDLE_TIMEOUT_S),
        )

    async def close(self) -> None:
        """Disconnect this loop."""
        connections = self._connections_by_loop.pop(asyncio.get_running_loop(), None)
        if connections is not None:
            await connections.close()

    # Requests

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
        wait_s: float = 0.0,
        timeout_s: float = RESPONSE_TIMEOUT_S,
        give_up_after_s: float | None = GIVE_UP_AFTER_S,
    ) -> ServerResponse:
        """Send a request until the server answers. Raises ``ServerUnavailable`` when that takes too long.

        Args:
            method: the HTTP method.
            path: quoted, beginning with a slash.
            query: parameters; those that are ``None`` are left out.
            body: JSON data.
            idempotency_key: the Idempotency-Key.
            wait_s: seconds that the server is asked to wait.
            timeout_s: seconds that the response may take in addition.
            give_up_after_s: when to give up, in seconds; ``None``: never.
        """
        backoff = Backoff(self.timing, give_up_after_s)
        has_unconfirmed_attempt = False
        request_line = f"{method} {path}"
        url = f"{self.endpoint.url}{path}{_format_query(query, wait_s)}"
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S + wait_s + timeout_s):
                    response = await self._send_once(
                        method, url, request_line, body, idempotency_key, wait_s + timeout_s
                    )
                return replace(response, has_unconfirmed_attempt=has_unconfirmed_attempt)
            except TimeoutError:
                failure = TransientError("it has not answered in time", None, is_sent=True)
            except TransientError as error:
                failure = error
            has_unconfirmed_attempt = has_unconfirmed_attempt or failure.is_sent
            if not await backoff.wait(failure.retry_after_s):
                raise self._build_give_up_error(request_line, failure) from None

    async def _send_once(
        self, method: str, url: str, request_line: str, body: Any, idempotency_key: str | None, read_timeout_s: float
    ) -> ServerResponse:
        headers = {"Accept": "application/json"}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        if trace_parent := get_current_trace_parent():
            headers[TRACE_PARENT_HEADER] = trace_parent
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = _encode_body(body)
        times = httpx2.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s, write=RESPONSE_TIMEOUT_S, pool=None)
        try:
            async with self._acquire_client() as client:
                response = await client.request(method, url, content=content, headers=headers, timeout=times)
        except _REQUEST_ERRORS as error:
            raise self._classify_error(error) from None
        return self._parse_response(response, request_line)

    def _parse_response(self, response: HttpResponse, request_line: str) -> ServerResponse:
        data = _parse_json(response)
        if response.is_success:
            if data is None and response.content:
                raise error_from_response(response.status_code, None, self.endpoint.url, request_line)
            return ServerResponse(response.status_code, data)
        error = error_from_response(response.status_code, data, self.endpoint.url, request_line)
        if response.status_code in RETRYABLE_STATUSES and not isinstance(error, StoreReadOnly | PolicyLimitReached):
            # A server that rejects a request because of its rate has not executed it.
            raise TransientError(
                str(error), error, is_sent=response.status_code != 429, retry_after_s=_parse_retry_after(response)
            )
        return ServerResponse(response.status_code, data, error)

    def _classify_error(self, error: Exception) -> TransientError:
        """The failure to retry after this error. Raises ``ServerError`` if a retry cannot help."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise ServerError(f"the certificate of {self.endpoint.url} cannot be trusted: {cause.verify_message}")
            cause = cause.__cause__ or cause.__context__
        if not isinstance(error, httpx2.TransportError) or isinstance(
            error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError
        ):
            raise ServerError(f"{self.endpoint.url} cannot be asked: {error}")
        unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        return TransientError(str(error) or type(error).__name__, None, is_sent=not unsent)

    def _build_give_up_error(self, request_line: str, cause: TransientError) -> HoldfastError:
        if isinstance(cause.error, TooManyRequests):
            return cause.error
        hint = " Is `holdfast serve` running there?"
        if cause.is_sent:
            hint = "" if request_line.startswith("GET") else " It may have been carried out."
        return ServerUnavailable(
            f"{self.endpoint.url} does not answer ({cause}), and {request_line} was given up.{hint}"
        )

    # Streams

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Query | None = None, last_event_id: str | None = None, body: Any = None
    ) -> AsyncGenerator[EventStream]:
        """A stream of events, after the event ``last_event_id``. Raises ``TransientError``, also while you read it.

        With a ``body``, the request is a POST, which must be harmless to repeat.
        """
        headers = {"Accept": "text/event-stream"} | ({} if last_event_id is None else {"Last-Event-ID": last_event_id})
        method, content = ("GET", None) if body is None else ("POST", _encode_body(body))
        if content is not None:
            headers["Content-Type"] = "application/json"
        times = httpx2.Timeout(
            connect=CONNECT_TIMEOUT_S, read=STREAM_IDLE_TIMEOUT_S, write=RESPONSE_TIMEOUT_S, pool=None
        )
        url = f"{self.endpoint.url}{path}{_format_query(query, 0.0)}"
        try:
            async with (
                self._acquire_client() as client,
                client.stream(method, url, content=content, headers=headers, timeout=times) as response,
            ):
                if not response.is_success:
                    await response.aread()
                    self._parse_response(response, f"{method} {path}").unwrap()
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise ServerError(
                        f"{self.endpoint.url} has answered {method} {path} with no stream of events. Is it a "
                        "Holdfast server?"
                    )
                yield EventStream(response)
        except _REQUEST_ERRORS as error:
            raise self._classify_error(error) from None


class EventStream:
    """The events of an open stream."""

    def __init__(self, response: HttpResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncGenerator[ServerSentEvent]:
        parser = SseParser()
        response = self._response
        is_plain = isinstance(response, PlainResponse)
        async for data in response.aiter_bytes(STREAM_IDLE_TIMEOUT_S) if is_plain else response.aiter_bytes():
            for event in parser.feed(data):
                yield event


@cache
def _get_ssl_context() -> ssl.SSLContext:
    """The trusted certificates. They take a while to load, and a program may create many clients."""
    return httpx2.create_ssl_context()


def _format_query(query: Query | None, wait_s: float) -> str:
    parameters: list[tuple[str, str]] = [("wait", f"{wait_s:g}")] if wait_s else []
    for name, value in (query or {}).items():
        if value is None:
            continue
        values: Sequence[Any] = [value] if isinstance(value, str | int | float) else cast("Sequence[Any]", value)
        parameters += [(name, str(each).lower() if isinstance(each, bool) else str(each)) for each in values]
    return f"?{urlencode(parameters)}" if parameters else ""


def _encode_body(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _parse_json(response: HttpResponse) -> Any:
    if "json" not in response.headers.get("content-type", "") or not response.content:
        return None
    try:
        return json.loads(response.content)
    except ValueError:
        return None


def _parse_retry_after(response: HttpResponse) -> float | None:
    try:
        return float(response.headers.get("retry-after", ""))
    except ValueError:
        return None  # a date: rare, and the usual delay will do

"""Requests to a server, and what happens when it does not answer.

A request is sent again when the server cannot be reached, when the connection breaks, and on 429, 502, 503, and 504.
That is safe: reading changes nothing, and a request that changes something carries an id that the caller made, or does
the same when it is done twice. So the server needs no table of answers. ``ServerResponse.has_unconfirmed_attempt`` says
that an earlier try of the same request may have been carried out.

A single request has a time limit. All tries together have one as well, unless the call is one that waits: those
continue until the caller gives up.

Each event loop has connections of its own, as with a store.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, cast
from urllib.parse import urlencode

import httpx2

from holdfast import __version__
from holdfast.client.http.backoff import GIVE_UP_AFTER_S, Backoff, Timing
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

CONNECT_TIMEOUT_S = 5.0
"""Seconds that a connection may take."""
RESPONSE_TIMEOUT_S = 30.0
"""Seconds that an answer may take, beside those that the server was asked to wait."""
STREAM_IDLE_TIMEOUT_S = 45.0
"""Seconds of silence after which a stream counts as broken: the server says something every fifteen."""
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses that may pass."""

_REQUEST_ERRORS = (httpx2.HTTPError, httpx2.InvalidURL)
"""What a request may come to without an answer."""
_EMPTY_SSL_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no certificate, for ways that have none."""

Query = Mapping[str, str | int | float | bool | Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """What a server has answered."""

    status: int
    data: Any
    """The JSON of its body; ``None`` if there is none."""
    error: HoldfastError | None = None
    """What it means, if it is no success."""
    has_unconfirmed_attempt: bool = False
    """An earlier try of this request may have been carried out."""

    def unwrap(self) -> Any:
        """The data of a success. Raises the error of anything else."""
        if self.error is not None:
            raise self.error
        return self.data


class TransientError(Exception):
    """Something that may pass."""

    def __init__(
        self, reason: str, error: HoldfastError | None, *, is_sent: bool, retry_after_s: float | None = None
    ) -> None:
        super().__init__(reason)
        self.error = error
        """What the server says of it."""
        self.is_sent = is_sent
        """Whether it may have been carried out."""
        self.retry_after_s = retry_after_s


class Transport:
    """The way to a server.

    Args:
        endpoint: where it is, and who asks.
        timing: time and chance.
        http_transport: what requests are sent through instead of the network; for tests, and for servers in this
            process.
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
        self._clients_by_loop: dict[asyncio.AbstractEventLoop, httpx2.AsyncClient] = {}

    # Connections

    def _get_client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients_by_loop.get(loop)
        if client is None:
            for other in [other for other in list(self._clients_by_loop) if other.is_closed()]:
                self._clients_by_loop.pop(other, None)
            client = self._clients_by_loop[loop] = httpx2.AsyncClient(
                transport=self._http_transport,
                headers={
                    **self.endpoint.auth_headers(),
                    "Accept": "application/json",
                    "User-Agent": f"holdfast/{__version__}",
                    VALUES_HEADER: TAGGED_VALUES,
                },
                follow_redirects=False,
                verify=_get_ssl_context() if self.endpoint.is_encrypted else _EMPTY_SSL_CONTEXT,
                # A proxy may carry what is encrypted; in plain text it would read the key.
                trust_env=self.endpoint.is_encrypted,
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            )
        return client

    async def close(self) -> None:
        """Disconnect this loop."""
        client = self._clients_by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

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
        """Ask, again and again if need be. Raises ``ServerUnavailable`` when that takes too long.

        Args:
            method: of HTTP.
            path: quoted, beginning with a slash.
            query: what is ``None`` is left out.
            body: JSON data.
            idempotency_key: the Idempotency-Key.
            wait_s: for how many seconds the server is asked to wait.
            timeout_s: how many seconds an answer may take beside that.
            give_up_after_s: when to give up, in seconds; ``None``: never.
        """
        left = Backoff(self.timing, give_up_after_s)
        again = False
        asked = f"{method} {path}"
        address = f"{self.endpoint.url}{path}{_format_query(query, wait_s)}"
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S + wait_s + timeout_s):
                    found = await self._send_once(method, address, asked, body, idempotency_key, wait_s + timeout_s)
                return ServerResponse(found.status, found.data, found.error, again)
            except TimeoutError:
                passing = TransientError("it has not answered in time", None, is_sent=True)
            except TransientError as error:
                passing = error
            again = again or passing.is_sent
            if not await left.wait(passing.retry_after_s):
                raise self._build_give_up_error(asked, passing) from None

    async def _send_once(
        self, method: str, url: str, request_line: str, body: Any, idempotency_key: str | None, read_timeout_s: float
    ) -> ServerResponse:
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        times = httpx2.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s, write=RESPONSE_TIMEOUT_S, pool=None)
        try:
            response = await self._get_client().request(method, url, content=content, headers=headers, timeout=times)
        except _REQUEST_ERRORS as error:
            raise self._classify_error(error) from None
        return self._parse_response(response, request_line)

    def _parse_response(self, response: httpx2.Response, request_line: str) -> ServerResponse:
        data = _parse_json(response)
        if response.is_success:
            if data is None and response.content:
                raise error_from_response(response.status_code, None, self.endpoint.url, request_line)
            return ServerResponse(response.status_code, data)
        error = error_from_response(response.status_code, data, self.endpoint.url, request_line)
        if response.status_code in RETRYABLE_STATUSES and not isinstance(error, StoreReadOnly | PolicyLimitReached):
            # A server that turns a request away for its rate has not begun with it.
            raise TransientError(
                str(error), error, is_sent=response.status_code != 429, retry_after_s=_parse_retry_after(response)
            )
        return ServerResponse(response.status_code, data, error)

    def _classify_error(self, error: Exception) -> TransientError:
        """What may pass. Raises what will not."""
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
        more = " Is `holdfast serve` running there?"
        if cause.is_sent:
            more = "" if request_line.startswith("GET") else " It may have been carried out."
        return ServerUnavailable(
            f"{self.endpoint.url} does not answer ({cause}), and {request_line} was given up.{more}"
        )

    # Streams

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Query | None = None, last_event_id: str | None = None
    ) -> AsyncGenerator[EventStream]:
        """A stream of events, after the event ``last_event_id``. Raises ``TransientError``, also while it is read."""
        headers = {"Accept": "text/event-stream"} | ({} if last_event_id is None else {"Last-Event-ID": last_event_id})
        times = httpx2.Timeout(
            connect=CONNECT_TIMEOUT_S, read=STREAM_IDLE_TIMEOUT_S, write=RESPONSE_TIMEOUT_S, pool=None
        )
        address = f"{self.endpoint.url}{path}{_format_query(query, 0.0)}"
        try:
            async with self._get_client().stream("GET", address, headers=headers, timeout=times) as response:
                if not response.is_success:
                    await response.aread()
                    self._parse_response(response, f"GET {path}").unwrap()
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise ServerError(
                        f"{self.endpoint.url} has answered GET {path} with no stream of events. Is it a Holdfast "
                        "server?"
                    )
                yield EventStream(response)
        except _REQUEST_ERRORS as error:
            raise self._classify_error(error) from None


class EventStream:
    """The events of an open stream."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncGenerator[ServerSentEvent]:
        reader = SseParser()
        async for data in self._response.aiter_bytes():
            for event in reader.feed(data):
                yield event


@cache
def _get_ssl_context() -> ssl.SSLContext:
    """Whose certificates count; it takes a while to load, and a program may make many clients."""
    return httpx2.create_ssl_context()


def _format_query(query: Query | None, wait_s: float) -> str:
    found: list[tuple[str, str]] = [("wait", f"{wait_s:g}")] if wait_s else []
    for name, value in (query or {}).items():
        if value is None:
            continue
        several: Sequence[Any] = [value] if isinstance(value, str | int | float) else cast("Sequence[Any]", value)
        found += [(name, str(one).lower() if isinstance(one, bool) else str(one)) for one in several]
    return f"?{urlencode(found)}" if found else ""


def _parse_json(response: httpx2.Response) -> Any:
    if "json" not in response.headers.get("content-type", "") or not response.content:
        return None
    try:
        return json.loads(response.content)
    except ValueError:
        return None


def _parse_retry_after(response: httpx2.Response) -> float | None:
    try:
        return float(response.headers.get("retry-after", ""))
    except ValueError:
        return None  # a date: few send one, and the usual wait will do

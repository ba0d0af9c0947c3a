"""Requests to a server, and what happens when it does not answer.

A request is sent again when the server cannot be reached, when the connection breaks, and on 429, 502, 503 and 504. It
may be: reading changes nothing, and what changes something carries an id of the caller's making, or comes to the same
when it is done twice. Whoever gets an answer that may be an echo of their own first try is told so (``Answer.again``).

A single request has a bounded time. All tries together have one as well, unless the call is one that waits: those go on
until the caller has enough.

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
from holdfast.client.http.backoff import LIMIT, Pace, Patience
from holdfast.client.http.problems import error_of
from holdfast.client.http.server_endpoint import Place
from holdfast.client.http.sse import EventReader, Received
from holdfast.errors import HoldfastError, PolicyLimit, ServerError, ServerUnavailable, StoreReadOnly, TooManyRequests
from holdfast.services.wire_values import TAGGED_VALUES, VALUES

CONNECT = 5.0
"""Seconds that a connection may take."""
ANSWER = 30.0
"""Seconds that an answer may take, beside those that the server was asked to wait."""
SILENCE = 45.0
"""Seconds of silence after which a stream counts as broken: the server says something every fifteen."""
PASSING = frozenset({429, 502, 503, 504})
"""Statuses that may pass."""

_FAULTS = (httpx2.HTTPError, httpx2.InvalidURL)
"""What a request may come to without an answer."""
_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no certificate, for ways that have none."""

Query = Mapping[str, str | int | float | bool | Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server has answered."""

    status: int
    data: Any
    """The JSON of its body; ``None`` if there is none."""
    error: HoldfastError | None = None
    """What it means, if it is no success."""
    again: bool = False
    """An earlier try of this request may have been carried out."""

    def checked(self) -> Any:
        """The data of a success. Raises the error of anything else."""
        if self.error is not None:
            raise self.error
        return self.data


class Passing(Exception):
    """Something that may pass."""

    def __init__(self, why: str, error: HoldfastError | None, *, sent: bool, wait: float | None = None) -> None:
        super().__init__(why)
        self.error = error
        """What the server says of it."""
        self.sent = sent
        """Whether it may have been carried out."""
        self.wait = wait


class Transport:
    """The way to a server.

    Args:
        place: where it is, and who asks.
        pace: time and chance.
        over: what requests are sent through, instead of the network; for tests, and for servers in this process.
    """

    def __init__(
        self, place: Place, *, pace: Pace | None = None, over: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self.place = place
        self.pace = pace or Pace()
        self._over = over
        self._by_loop: dict[asyncio.AbstractEventLoop, httpx2.AsyncClient] = {}

    # Connections

    def _here(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None:
            for other in [other for other in list(self._by_loop) if other.is_closed()]:
                self._by_loop.pop(other, None)
            client = self._by_loop[loop] = httpx2.AsyncClient(
                transport=self._over,
                headers={
                    **self.place.headers(),
                    "Accept": "application/json",
                    "User-Agent": f"holdfast/{__version__}",
                    VALUES: TAGGED_VALUES,
                },
                follow_redirects=False,
                verify=_trusted() if self.place.is_encrypted else _NOBODY,
                # A proxy may carry what is encrypted; in plain text it would read the key.
                trust_env=self.place.is_encrypted,
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            )
        return client

    async def close(self) -> None:
        """Disconnect this loop."""
        client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    # Requests

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        key: str | None = None,
        wait: float = 0.0,
        answer: float = ANSWER,
        patience: float | None = LIMIT,
    ) -> Answer:
        """Ask, again and again if need be. Raises ``ServerUnavailable`` when that takes too long.

        Args:
            method: of HTTP.
            path: quoted, beginning with a slash.
            query: what is ``None`` is left out.
            body: JSON data.
            key: the Idempotency-Key.
            wait: for how many seconds the server is asked to wait.
            answer: how many seconds an answer may take beside that.
            patience: when to give up, in seconds; ``None``: never.
        """
        left = Patience(self.pace, patience)
        again = False
        asked = f"{method} {path}"
        address = f"{self.place.url}{path}{_query(query, wait)}"
        while True:
            try:
                async with asyncio.timeout(CONNECT + wait + answer):
                    found = await self._once(method, address, asked, body, key, wait + answer)
                return Answer(found.status, found.data, found.error, again)
            except TimeoutError:
                passing = Passing("it has not answered in time", None, sent=True)
            except Passing as error:
                passing = error
            again = again or passing.sent
            if not await left.wait(passing.wait):
                raise self._gave_up(asked, passing) from None

    async def _once(self, method: str, address: str, asked: str, body: Any, key: str | None, read: float) -> Answer:
        headers = {} if key is None else {"Idempotency-Key": key}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        times = httpx2.Timeout(connect=CONNECT, read=read, write=ANSWER, pool=None)
        try:
            response = await self._here().request(method, address, content=content, headers=headers, timeout=times)
        except _FAULTS as error:
            raise self._broken(error) from None
        return self._read(response, asked)

    def _read(self, response: httpx2.Response, asked: str) -> Answer:
        data = _json(response)
        if response.is_success:
            if data is None and response.content:
                raise error_of(response.status_code, None, self.place.url, asked)
            return Answer(response.status_code, data)
        error = error_of(response.status_code, data, self.place.url, asked)
        if response.status_code in PASSING and not isinstance(error, StoreReadOnly | PolicyLimit):
            # A server that turns a request away for its rate has not begun with it.
            raise Passing(str(error), error, sent=response.status_code != 429, wait=_retry_after(response))
        return Answer(response.status_code, data, error)

    def _broken(self, error: Exception) -> Passing:
        """What may pass. Raises what will not."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise ServerError(f"the certificate of {self.place.url} cannot be trusted: {cause.verify_message}")
            cause = cause.__cause__ or cause.__context__
        if not isinstance(error, httpx2.TransportError) or isinstance(
            error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError
        ):
            raise ServerError(f"{self.place.url} cannot be asked: {error}")
        unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        return Passing(str(error) or type(error).__name__, None, sent=not unsent)

    def _gave_up(self, asked: str, passing: Passing) -> HoldfastError:
        if isinstance(passing.error, TooManyRequests):
            return passing.error
        more = " Is `holdfast serve` running there?"
        if passing.sent:
            more = "" if asked.startswith("GET") else " It may have been carried out."
        return ServerUnavailable(f"{self.place.url} does not answer ({passing}), and {asked} was given up.{more}")

    # Streams

    @asynccontextmanager
    async def stream(self, path: str, *, query: Query | None = None, last: str | None = None) -> AsyncGenerator[Stream]:
        """A stream of events, from behind the event ``last``. Raises ``Passing``, also while it is read."""
        headers = {"Accept": "text/event-stream"} | ({} if last is None else {"Last-Event-ID": last})
        times = httpx2.Timeout(connect=CONNECT, read=SILENCE, write=ANSWER, pool=None)
        address = f"{self.place.url}{path}{_query(query, 0.0)}"
        try:
            async with self._here().stream("GET", address, headers=headers, timeout=times) as response:
                if not response.is_success:
                    await response.aread()
                    self._read(response, f"GET {path}").checked()
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise ServerError(
                        f"{self.place.url} has answered GET {path} with no stream of events. Is it a Holdfast server?"
                    )
                yield Stream(response)
        except _FAULTS as error:
            raise self._broken(error) from None


class Stream:
    """The events of an open stream."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncGenerator[Received]:
        reader = EventReader()
        async for data in self._response.aiter_bytes():
            for event in reader.feed(data):
                yield event


@cache
def _trusted() -> ssl.SSLContext:
    """Whose certificates count; it takes a while to load, and a program may make many clients."""
    return httpx2.create_ssl_context()


def _query(query: Query | None, wait: float) -> str:
    found: list[tuple[str, str]] = [("wait", f"{wait:g}")] if wait else []
    for name, value in (query or {}).items():
        if value is None:
            continue
        several: Sequence[Any] = [value] if isinstance(value, str | int | float) else cast("Sequence[Any]", value)
        found += [(name, str(one).lower() if isinstance(one, bool) else str(one)) for one in several]
    return f"?{urlencode(found)}" if found else ""


def _json(response: httpx2.Response) -> Any:
    if "json" not in response.headers.get("content-type", "") or not response.content:
        return None
    try:
        return json.loads(response.content)
    except ValueError:
        return None


def _retry_after(response: httpx2.Response) -> float | None:
    try:
        return float(response.headers.get("retry-after", ""))
    except ValueError:
        return None  # a date: few send one, and the usual wait will do

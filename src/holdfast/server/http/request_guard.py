"""The guard refuses requests before they are examined: for unexpected hosts, from other sites, too large, or too slow.

**Hosts.** A page of another site can point its own name to this machine (DNS rebinding). Its requests then look local,
but they carry that name. So only requests for expected names are accepted.

**Other sites.** A browser sends what pages of other sites request, and says so: by ``Sec-Fetch-Site``, or, if it does
not know that header or does not trust the connection, by ``Origin``. Requests of such pages are refused. Such a page
may only link to something that changes nothing (``allow_navigation``). Programs send neither header, and are not
affected.

**Size and time.** The size of a body is limited, whether it is declared or not, and so is the time that it takes to
arrive.

On the way back, every response gets headers that forbid caching, embedding, and guessing its type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.http.problems import Problem
from holdfast.server.http.remote_addresses import is_same_origin, parse_host_name
from holdfast.server.http.request_headers import IndexedHeaders
from holdfast.server.http.request_ids import REQUEST_ID_HEADER, REQUEST_ID_KEY, get_request_id

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
ANY_HOST = "*"
RESPONSE_HEADERS = "holdfast.answer_headers"
"""Where the scope of a request has headers that its response will have, whatever that is."""
BODY_TIMEOUT_S = 30.0

REQUEST_CYCLE = "holdfast.cycle"
"""Where the scope of a request has uvicorn's state of it, if that is known."""
REQUEST_HEADERS = "holdfast.headers"
"""Where the scope of a request has its headers by name."""
_DEFAULT_RESPONSE_HEADERS = {
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}


class RequestGuard:
    """The outermost layer of the app."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: Collection[str], max_body_bytes: int) -> None:
        self._app = app
        self._allowed_hosts = frozenset(map(str.lower, allowed_hosts))
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one HTTP request, and pass it on."""
        headers = IndexedHeaders(scope["headers"])
        body = _LimitedBody(receive, self._max_body_bytes, scope.get(REQUEST_CYCLE))
        request_id = get_request_id(headers)
        response_headers: dict[str, str] = {REQUEST_ID_HEADER: request_id}
        scope = {
            **scope, REQUEST_ID_KEY: request_id, RESPONSE_HEADERS: response_headers, REQUEST_HEADERS: headers,
        }  # fmt: skip

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                body.has_response_started = True
                present = {name.lower() for name, _ in message.get("headers", ())}
                added = [(name, value) for name, value in _DEFAULT_RESPONSE_HEADERS.items() if name not in present]
                added += [(name.lower().encode(), value.encode()) for name, value in response_headers.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        try:
            self._check_host(headers)
            check_same_site(headers, allow_navigation=scope["method"] in SAFE_METHODS)
            self._check_length(headers)
        except Problem as problem:
            await problem.to_response(request_id)(scope, receive, send_with_headers)
            return
        await self._app(scope, body, send_with_headers)

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        host = parse_host_name(hosts[0]) if len(hosts) == 1 else ""
        if not host or (ANY_HOST not in self._allowed_hosts and host not in self._allowed_hosts):
            raise Problem(
                421,
                "unknown-host",
                "This server does not answer under that name",
                f"The request is for host {host[:100]!r}. If that is one of its names, start the server with "
                f"--host-name {host[:100]}."
                if host
                else "A request names one host, in its header Host.",
            )

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > self._max_body_bytes):
            raise body_too_large_problem(self._max_body_bytes)


def body_too_large_problem(max_bytes: int) -> Problem:
    """The problem of a body that is too large."""
    return Problem(413, "too-large", "The body is too large", f"At most {max_bytes:,} bytes are taken.")


def check_same_site(headers: Headers, *, allow_navigation: bool) -> None:
    """Refuse a request of another site's page. Raises ``Problem``."""
    if sites := headers.getlist("sec-fetch-site"):
        is_same_site = all(site in ("same-origin", "none") for site in sites)
    else:
        is_same_site = all(is_same_origin(origin, headers.get("host", "")) for origin in headers.getlist("origin"))
    if is_same_site or (allow_navigation and headers.get("sec-fetch-mode") == "navigate"):
        return
    raise Problem(
        403,
        "cross-site",
        "A page of another site may not ask for that",
        "Requests are taken from programs, and from pages of this server alone.",
    )


class _LimitedBody:
    """Receives a body within its limits of size and time."""

    def __init__(self, receive: Receive, max_bytes: int, cycle: RequestResponseCycle | None) -> None:
        self.has_response_started = False
        """From then on, no problem can be sent: exceeding a limit looks as if the caller had disconnected."""
        self._receive = receive
        self._cycle = cycle
        self._max_bytes = max_bytes
        self._received_bytes = 0
        self._deadline: float | None = None
        self._is_complete = False

    async def __call__(self) -> Message:
        if self._is_complete:
            return await self._receive()  # only a disconnect can follow
        try:
            return await self._receive_limited()
        except Problem:
            if self.has_response_started:
                return {"type": "http.disconnect"}
            raise

    async def _receive_limited(self) -> Message:
        if self._cycle is not None and not self._cycle.more_body:  # all of it is here: most bodies come with the head
            return self._count(await self._receive())
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + BODY_TIMEOUT_S
        try:
            async with asyncio.timeout_at(self._deadline):
                return self._count(await self._receive())
        except TimeoutError:
            raise Problem(
                408,
                "request-timeout",
                "The body took too long",
                f"It must be there within {BODY_TIMEOUT_S:.0f} seconds.",
            ) from None

    def _count(self, message: Message) -> Message:
        if message["type"] == "http.request":
            self._received_bytes += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
            if self._received_bytes > self._max_bytes:
                raise body_too_large_problem(self._max_bytes)
        return message

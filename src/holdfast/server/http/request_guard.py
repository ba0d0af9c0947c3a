"""What is refused before a request is examined: unexpected hosts, pages of other sites, and what is too large or slow.

**Hosts.** A page of another site can point its own name to this machine (DNS rebinding). Its requests then look local,
but they carry that name. So only requests for expected names are accepted.

**Other sites.** A browser sends what pages of other sites request, and says so: by ``Sec-Fetch-Site``, or, if it does
not know that header or does not trust the connection, by ``Origin``. Requests of such pages are refused. Such a page
may only link to something that changes nothing (``allow_navigation``). Programs send neither header, and are not
affected.

**Too much.** The size of a body is limited, whether it is declared or not, and so is the time that it takes to arrive.

On the way back, every response gets headers that forbid caching, embedding, and guessing its type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.http.problems import Problem
from holdfast.server.http.remote_addresses import parse_host_name
from holdfast.server.http.request_ids import REQUEST_ID_HEADER, get_request_id
from holdfast.server.http.request_ids import REQUEST_ID_KEY as REQUEST_ID_SCOPE

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
ANY_HOST = "*"
RESPONSE_HEADERS = "holdfast.answer_headers"
"""Where headers are kept in the scope of a request that its answer will have, whatever that is."""
BODY_TIMEOUT_S = 30.0
"""A body must be there by then."""

_DEFAULT_RESPONSE_HEADERS = {
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}


class RequestGuard:
    """Lets through what may come in."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: Collection[str], max_body_bytes: int) -> None:
        self._app = app
        self._allowed_hosts = frozenset(map(str.lower, allowed_hosts))
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        headers = Headers(scope=scope)
        body = _LimitedBody(receive, self._max_body_bytes)
        request_id = get_request_id(headers)
        told: dict[str, str] = {REQUEST_ID_HEADER: request_id}
        scope = {**scope, REQUEST_ID_SCOPE: request_id, RESPONSE_HEADERS: told}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                body.has_response_started = True
                there = {name.lower() for name, _ in message.get("headers", ())}
                more = [(name, value) for name, value in _DEFAULT_RESPONSE_HEADERS.items() if name not in there]
                more += [(name.lower().encode(), value.encode()) for name, value in told.items()]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        try:
            self._check_host(headers)
            check_same_site(headers, allow_navigation=scope["method"] in SAFE_METHODS)
            self._check_length(headers)
        except Problem as problem:
            await problem.to_response(request_id)(scope, receive, answer)
            return
        await self._app(scope, body, answer)

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        host = parse_host_name(given[0]) if len(given) == 1 else ""
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
    """Refuse what a page of another site asks for. Raises ``Problem``."""
    sites, origins = headers.getlist("sec-fetch-site"), headers.getlist("origin")
    if sites:
        is_ours = all(site in ("same-origin", "none") for site in sites)
    else:
        is_ours = all(_is_same_origin(origin, headers.get("host", "")) for origin in origins)
    if is_ours or (allow_navigation and headers.get("sec-fetch-mode") == "navigate"):
        return
    raise Problem(
        403,
        "other-site",
        "A page of another site may not ask for that",
        "Requests are taken from programs, and from pages of this server alone.",
    )


def _is_same_origin(origin: str, host: str) -> bool:
    try:
        place = urlsplit(origin).netloc.lower()
    except ValueError:
        return False
    return bool(place) and place == host.strip().lower()


class _LimitedBody:
    """Takes a body as it comes in, and no more of it than is allowed."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self.has_response_started = False
        """Nobody can be told of a problem any more: then it is as if the caller had hung up."""
        self._receive = receive
        self._max_bytes = max_bytes
        self._received_bytes = 0
        self._deadline: float | None = None
        self._is_complete = False

    async def __call__(self) -> Message:
        if self._is_complete:
            return await self._receive()  # whoever waits now waits for the caller to hang up
        try:
            return await self._receive_limited()
        except Problem:
            if self.has_response_started:
                return {"type": "http.disconnect"}
            raise

    async def _receive_limited(self) -> Message:
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline = loop.time() + BODY_TIMEOUT_S
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise Problem(
                408, "too-slow", "The body took too long", f"It must be there within {BODY_TIMEOUT_S:.0f} seconds."
            ) from None
        if message["type"] == "http.request":
            self._received_bytes += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
            if self._received_bytes > self._max_bytes:
                raise body_too_large_problem(self._max_bytes)
        return message

"""What is refused before anybody looks at a request: hosts that are not ours, other sites' pages, and what is too much.

**Hosts.** A page of another site can have its own name point to this machine (DNS rebinding), and its requests then
look as if they came from here; but they carry that name. So only requests for names that were expected are taken.

**Other sites.** A browser sends what pages of other sites ask for, and says so: by ``Sec-Fetch-Site``, or, if it does
not know that one or does not trust the connection, by ``Origin``. Whatever such pages ask for is refused; all that
they may do is to link to something that changes nothing (``may_be_linked``). Programs send neither header, and are not
concerned.

**Too much.** A body may have so many bytes, whether it says so beforehand or not, and take so many seconds to arrive.

On the way back, every answer is told to be neither kept, nor embedded, nor taken for something else than it says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.http.problems import Problem
from holdfast.server.http.remote_addresses import name_in
from holdfast.server.http.request_ids import REQUEST_ID, request_id_of
from holdfast.server.http.request_ids import SCOPE as REQUEST_ID_SCOPE

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
ANY_HOST = "*"
ANSWER_HEADERS = "holdfast.answer_headers"
"""Where headers are kept in the scope of a request that its answer will have, whatever that is."""
BODY_SECONDS = 30.0
"""A body must be there by then."""

_ON_ANSWERS = {
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}


class Guard:
    """Lets through what may come in."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], max_body: int) -> None:
        self._app = app
        self._hosts = frozenset(map(str.lower, hosts))
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        headers = Headers(scope=scope)
        body = _Limited(receive, self._max_body)
        request_id = request_id_of(headers)
        told: dict[str, str] = {REQUEST_ID: request_id}
        scope = {**scope, REQUEST_ID_SCOPE: request_id, ANSWER_HEADERS: told}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                body.is_answered = True
                there = {name.lower() for name, _ in message.get("headers", ())}
                more = [(name, value) for name, value in _ON_ANSWERS.items() if name not in there]
                more += [(name.lower().encode(), value.encode()) for name, value in told.items()]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        try:
            self._check_host(headers)
            check_site(headers, may_be_linked=scope["method"] in SAFE)
            self._check_length(headers)
        except Problem as problem:
            await problem.response(request_id)(scope, receive, answer)
            return
        await self._app(scope, body, answer)

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        host = name_in(given[0]) if len(given) == 1 else ""
        if not host or (ANY_HOST not in self._hosts and host not in self._hosts):
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
        if length.isdecimal() and (len(length) > 18 or int(length) > self._max_body):
            raise too_large(self._max_body)


def too_large(most: int) -> Problem:
    """The problem of a body that is too large."""
    return Problem(413, "too-large", "The body is too large", f"At most {most:,} bytes are taken.")


def check_site(headers: Headers, *, may_be_linked: bool) -> None:
    """Refuse what a page of another site asks for. Raises ``Problem``."""
    sites, origins = headers.getlist("sec-fetch-site"), headers.getlist("origin")
    if sites:
        is_ours = all(site in ("same-origin", "none") for site in sites)
    else:
        is_ours = all(_is_same(origin, headers.get("host", "")) for origin in origins)
    if is_ours or (may_be_linked and headers.get("sec-fetch-mode") == "navigate"):
        return
    raise Problem(
        403,
        "other-site",
        "A page of another site may not ask for that",
        "Requests are taken from programs, and from pages of this server alone.",
    )


def _is_same(origin: str, host: str) -> bool:
    try:
        place = urlsplit(origin).netloc.lower()
    except ValueError:
        return False
    return bool(place) and place == host.strip().lower()


class _Limited:
    """Takes a body as it comes in, and no more of it than is allowed."""

    def __init__(self, receive: Receive, most: int) -> None:
        self.is_answered = False
        """Nobody can be told of a problem any more: then it is as if the caller had hung up."""
        self._receive = receive
        self._most = most
        self._taken = 0
        self._deadline: float | None = None
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()  # whoever waits now waits for the caller to hang up
        try:
            return await self._next()
        except Problem:
            if self.is_answered:
                return {"type": "http.disconnect"}
            raise

    async def _next(self) -> Message:
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline = loop.time() + BODY_SECONDS
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise Problem(
                408, "too-slow", "The body took too long", f"It must be there within {BODY_SECONDS:.0f} seconds."
            ) from None
        if message["type"] == "http.request":
            self._taken += len(message.get("body", b""))
            self._is_whole = not message.get("more_body", False)
            if self._taken > self._most:
                raise too_large(self._most)
        return message

"""What is refused before anybody looks at a request: hosts that are not ours, other sites' pages, and what is too much.

**Hosts.** A page of another site can have its own name point to this machine (DNS rebinding), and its requests then
look as if they came from here; but they carry that name. So only requests for names that were expected are taken.

**Other sites.** A browser sends what pages of other sites ask for. It says so: ``Sec-Fetch-Site``, and in browsers that
do not know that one, ``Origin``. Every method that may change something is refused if either names another site.
Programs send neither header, and are not concerned.

**Too much.** A body may have so many bytes, whether it says so beforehand or not, and take so many seconds to arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.problems import Problem

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")
BODY_SECONDS = 30.0
"""A body must be there by then."""


class Guard:
    """Lets through what may come in."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], max_body: int) -> None:
        self._app = app
        self._hosts = frozenset(map(str.lower, hosts))
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            if scope["method"] not in SAFE:
                _check_origin(headers)
            self._check_length(headers)
        except Problem as problem:
            await problem.response()(scope, receive, send)
            return
        await self._app(scope, _Limited(receive, self._max_body), send)

    def _check_host(self, headers: Headers) -> None:
        host = _name_in(headers.get("host", ""))
        if "*" not in self._hosts and host not in self._hosts:
            raise Problem(
                421,
                "unknown-host",
                "This server does not answer under that name",
                f"The request is for host {host[:100]!r}. If that is one of its names, start the server with "
                f"--host-name {host[:100]}.",
            )

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body:
            raise too_large(self._max_body)


def too_large(most: int) -> Problem:
    """The problem of a body that is too large."""
    return Problem(413, "too-large", "The body is too large", f"At most {most:,} bytes are taken.")


def _name_in(host: str) -> str:
    """The name in a ``Host`` header, without the port."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()


def _check_origin(headers: Headers) -> None:
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    from_elsewhere = site is not None and site not in ("same-origin", "none")
    if site is None and origin is not None:
        from_elsewhere = urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    if from_elsewhere:
        raise Problem(
            403,
            "other-site",
            "A page of another site may not ask for that",
            "Requests that change something are taken from programs, and from pages of this server alone.",
        )


class _Limited:
    """Takes a body as it comes in, and no more of it than is allowed."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._taken = 0
        self._deadline: float | None = None
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()  # whoever waits now waits for the caller to hang up
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

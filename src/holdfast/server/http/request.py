"""One request, as the app sees it: its headers by name, and its body within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.server.http.asgi import Message, Receive, Scope
from holdfast.server.http.request_ids import RAW_REQUEST_ID_HEADER, get_request_id
from holdfast.services.problems import Problem

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

BODY_TIMEOUT_S = 30.0

REQUEST_CYCLE = "holdfast.cycle"
"""Where the scope of a request has uvicorn's state of it, if that is known."""


class ClientDisconnect(Exception):
    """The client disconnected before its body was complete: it gets no response."""


class RequestHeaders(dict[str, str]):
    """The headers of a request: the first value of each, by its name in lower case."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Sequence[tuple[bytes, bytes]]) -> None:
        super().__init__([(name.decode("latin-1"), value.decode("latin-1")) for name, value in reversed(raw)])
        self._raw = raw

    def get_all(self, name: str) -> Sequence[str]:
        """All values of a header."""
        if name not in self:
            return ()
        if len(self) == len(self._raw):  # none is repeated
            return (self[name],)
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for found, value in self._raw if found == wanted]


async def _receive_nothing() -> NoReturn:
    raise RuntimeError("there is no client to receive from")


class Request:
    """One request."""

    __slots__ = (
        "_cycle",
        "_deadline",
        "_is_body_complete",
        "_max_body_bytes",
        "_receive",
        "_received_bytes",
        "has_response_started",
        "headers",
        "id",
        "limit_key",
        "method",
        "path",
        "remote_address",
        "response_headers",
        "scope",
    )

    def __init__(self, scope: Scope, receive: Receive = _receive_nothing, max_body_bytes: int = 0) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = RequestHeaders(scope["headers"])
        self.id = get_request_id(self.headers)
        client = scope.get("client")
        self.remote_address: str = "" if client is None else client[0]
        """The network address of the client; ``""`` if there is none."""
        self.limit_key = ""
        """What its limits count against: the id of the API key, or the network address if there is none."""
        self.response_headers = [(RAW_REQUEST_ID_HEADER, self.id.encode())]
        """Headers that the response will have, whatever it is."""
        self.has_response_started = False
        """From then on, no problem can be sent: exceeding a limit looks as if the caller had disconnected."""
        self._receive = receive
        self._cycle: RequestResponseCycle | None = scope.get(REQUEST_CYCLE)
        self._max_body_bytes = max_body_bytes
        self._received_bytes = 0
        self._deadline: float | None = None
        self._is_body_complete = False

    async def receive(self) -> Message:
        """The next part of the body, or the disconnect that follows it. Raises ``Problem``."""
        if self._is_body_complete:
            return await self._receive()
        try:
            if self._cycle is not None and not self._cycle.more_body:  # most bodies come with the head
                message = await self._receive()
            else:
                message = await self._receive_in_time()
            if message["type"] == "http.request":
                self._received_bytes += len(message.get("body", b""))
                self._is_body_complete = not message.get("more_body", False)
                if self._received_bytes > self._max_body_bytes:
                    raise body_too_large_problem(self._max_body_bytes)
        except Problem:
            if self.has_response_started:
                return {"type": "http.disconnect"}
            raise
        return message

    async def _receive_in_time(self) -> Message:
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + BODY_TIMEOUT_S
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            detail = f"It must be there within {BODY_TIMEOUT_S:.0f} seconds."
            raise Problem(408, "request-timeout", "The body took too long", detail) from None

    async def receive_body(self) -> tuple[bytes, bool]:
        """The next part of the body, and whether there is more. Raises ``Problem`` or ``ClientDisconnect``."""
        message: Any = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        return message.get("body", b""), message.get("more_body", False)

    async def wait_for_disconnect(self) -> None:
        """Return when the client has disconnected, or exceeds a limit."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


def body_too_large_problem(max_bytes: int) -> Problem:
    """The problem of a body that is too large."""
    return Problem(413, "too-large", "The body is too large", f"At most {max_bytes:,} bytes are taken.")

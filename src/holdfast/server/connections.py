"""Connections that take too long: uvicorn's HTTP protocol, with the time-outs that it lacks.

A client that opens a connection and says nothing, or never ends the head of its request, costs a server a connection
for as long as it likes, and so does one that asks for much and never reads the answer. Here a head must be there within
``HEAD_SECONDS`` of the connection or of its own first byte, however slowly the rest comes in; and a reader that takes
nothing for ``STALL_SECONDS`` is cut off. (How long a body may take is the guard's business; what still comes in of a
body that nobody wants counts as a head that does not end.)

What is refused here is told as a problem as well.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.server.problems import Problem

HEAD_SECONDS = 10.0
"""A request's head must be there by then."""
STALL_SECONDS = 60.0
"""So long may a reader take nothing of what is sent to it."""


class Connection(H11Protocol):
    """One of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._has_spoken = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there: now they must say something."""
        super().connection_made(transport)
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            # An answer is written in pieces, which must not wait for each other: asyncio sees to that only for sockets
            # whose protocol is named.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._most is not None and len(self.connections) > self._most:
            self._refuse(Problem(503, "too-busy", "There are too many connections", headers={"Retry-After": "1"}))
            return
        self._head = self.loop.call_later(HEAD_SECONDS, self._is_too_slow)

    def data_received(self, data: bytes) -> None:
        """A piece of a request."""
        self._has_spoken = True
        if not self._is_answering and self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self._is_too_slow)
        super().data_received(data)
        if self._is_answering:
            self._head = _cancelled(self._head)

    @property
    def _is_answering(self) -> bool:
        """Whether a head has come in whole, and its request is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[reportUnnecessaryComparison]

    def _is_too_slow(self) -> None:
        self._head = None
        if self._has_spoken:
            detail = f"The head of a request must be there within {HEAD_SECONDS:.0f} seconds."
            self._refuse(Problem(408, "too-slow", "The request took too long", detail))
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What came in is no HTTP."""
        self._refuse(Problem(400, "no-http", "That is no HTTP request", msg))

    def _refuse(self, problem: Problem) -> None:
        """Tell it, if an answer is still possible, and hang up."""
        answer: Response = problem.response()
        headers = [*answer.raw_headers, (b"connection", b"close")]
        events = [h11.Response(status_code=problem.status, headers=headers), h11.Data(data=bytes(answer.body))]
        try:
            for event in [*events, h11.EndOfMessage()]:
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            self.transport.abort()  # in the middle of something else
            return
        self.transport.close()
        self._stalls()  # whoever does not even take this

    def pause_writing(self) -> None:
        """The reader takes nothing at the moment."""
        super().pause_writing()
        self._stalls()

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._stall = _cancelled(self._stall)

    def _stalls(self) -> None:
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._head = _cancelled(self._head)
        self._stall = _cancelled(self._stall)
        super().connection_lost(exc)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()

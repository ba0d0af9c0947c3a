"""uvicorn's HTTP protocol, with timeouts and limits that it lacks.

A client that opens a connection and sends nothing, or never finishes the head of its request, occupies a connection for
as long as it likes, and so does one that requests much and never reads the response. Here, a head must be complete
within ``HEAD_TIMEOUT_S`` of the connection or of its own first byte, and a reader that takes nothing for
``STALL_TIMEOUT_S`` is disconnected. (The guard limits how long a body may take. What still arrives of a body that is
no longer wanted counts as an unfinished head.)

**Too many connections.** An idle connection is closed to accept a new one: the longest idle connection of the network
address that has the most idle connections. So idle connections cannot lock out others, such as health checks. A new
connection is refused only if every other one has a request in progress.

Refusals here have problem responses as well. ``httptools_connection`` has the limits that depend on the parser.
"""

from __future__ import annotations

import asyncio
import socket
from abc import abstractmethod
from collections import OrderedDict
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from holdfast.server.http.problems import Problem
from holdfast.server.http.remote_addresses import SOCKET_OWNERS, get_network
from holdfast.server.http.request_ids import REQUEST_ID_HEADER, new_request_id

MAX_HEAD_BYTES = 32 * 1024
STATUS_HEAD_TOO_LARGE = 431
HEAD_TIMEOUT_S = 10.0
STALL_TIMEOUT_S = 60.0
"""Seconds after which a client that reads nothing is disconnected."""


class IdleConnections:
    """Connections without a request in progress, by network address."""

    def __init__(self) -> None:
        self._by_network: dict[str, OrderedDict[LimitedConnection, None]] = {}

    def add(self, connection: LimitedConnection) -> None:
        """Add a connection that became idle."""
        self._by_network.setdefault(connection.network, OrderedDict())[connection] = None

    def remove(self, connection: LimitedConnection) -> None:
        """Remove a connection that is no longer idle."""
        group = self._by_network.get(connection.network)
        if group is not None:
            group.pop(connection, None)
            if not group:
                del self._by_network[connection.network]

    def pop(self) -> LimitedConnection | None:
        """Remove and return the connection to close, if any is idle."""
        if not self._by_network:
            return None
        connection = next(iter(max(self._by_network.values(), key=len)))
        self.remove(connection)
        return connection


class ConnectionState(ServerState):
    """State that all connections of a server share."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = IdleConnections()


class LimitedConnection(HttpToolsProtocol):
    """One connection, with limits of time and number."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_connections, self.limit_concurrency = self.limit_concurrency, None
        state = self.server_state
        self._idle_connections = state.idle if isinstance(state, ConnectionState) else IdleConnections()
        self.network = ""
        """The network address of the client."""
        self.app_state = {**self.app_state, SOCKET_OWNERS: dict[Any, Any]()}
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._has_received_data = False
        self.is_head_too_large = False
        """Whether the head of the request exceeds the limit."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected: its first request must arrive in time."""
        super().connection_made(transport)
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            # A response is written in pieces, which must not wait for each other. asyncio sets this option only on
            # sockets that name their protocol.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.network = get_network(self.client[0]) if self.client is not None else ""
        if self._max_connections is not None and len(self.connections) > self._max_connections:
            idle = self._idle_connections.pop()
            if idle is None:
                self._refuse(Problem(503, "overloaded", "There are too many connections", headers={"Retry-After": "1"}))
                return
            idle.transport.close()
        self._idle_connections.add(self)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_head_timeout)

    def data_received(self, data: bytes) -> None:
        """A piece of a request has arrived."""
        self._has_received_data = True
        super().data_received(data)
        if self._has_open_request:
            self._idle_connections.remove(self)
            self._head_timer = _cancel_timer(self._head_timer)
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_head_timeout)

    def on_response_complete(self) -> None:
        """The response is complete: the next request may come, or has come already."""
        self._idle_connections.add(self)
        super().on_response_complete()
        if self._has_open_request or self.transport.is_closing():
            self._idle_connections.remove(self)

    @property
    def _has_open_request(self) -> bool:
        """Whether there is a request with a complete head and an incomplete response."""
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[reportUnnecessaryComparison]

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self._has_received_data:
            detail = f"The head of a request must be there within {HEAD_TIMEOUT_S:.0f} seconds."
            self._refuse(Problem(408, "request-timeout", "The request took too long", detail))
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not a valid HTTP request."""
        if self.is_head_too_large:
            detail = f"The request line and the headers may have {MAX_HEAD_BYTES:,} bytes."
            self._refuse(
                Problem(STATUS_HEAD_TOO_LARGE, "head-too-large", "The head of the request is too large", detail)
            )
        else:
            self._refuse(Problem(400, "invalid-http", "The request is not valid HTTP", msg))

    def _refuse(self, problem: Problem) -> None:
        """Send a problem, if a response is still possible, and disconnect."""
        request_id = new_request_id()
        response: Response = problem.to_response(request_id)
        headers = [
            *response.raw_headers,
            (REQUEST_ID_HEADER.lower().encode(), request_id.encode()),
            (b"connection", b"close"),
        ]
        if not self._write_response(problem.status, headers, bytes(response.body)):
            self.transport.abort()  # in the middle of another response
            return
        self.transport.close()
        self._start_stall_timer()  # in case the client does not even read this

    @abstractmethod
    def _write_response(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a whole response. Returns false if none is possible now."""

    def pause_writing(self) -> None:
        """The client reads too slowly: buffers are full."""
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._stall_timer = _cancel_timer(self._stall_timer)

    def _start_stall_timer(self) -> None:
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_TIMEOUT_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._idle_connections.remove(self)
        self._head_timer = _cancel_timer(self._head_timer)
        self._stall_timer = _cancel_timer(self._stall_timer)
        super().connection_lost(exc)


def _cancel_timer(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()

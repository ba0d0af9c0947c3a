"""uvicorn's HTTP protocol, with timeouts, limits, and checks that it lacks.

**Time.** A client that opens a connection and sends nothing, or never finishes the head of its request, occupies a
connection for as long as it likes, and so does one that requests much and never reads the response. Here, a head must
be complete within ``HEAD_TIMEOUT_S`` of the connection or of its own first byte, and a reader that takes nothing for
``STALL_TIMEOUT_S`` is disconnected. (``Request`` limits how long a body may take. What still arrives of a body that is
no longer wanted counts as an unfinished head.)

**Heads.** httptools accepts heads and trailers of any size, requests without a ``Host`` header or with several, and
takes the path out of an absolute URL. Here, heads are limited as they arrive, such requests are refused, and an
absolute URL stays one, so that it is no path of this server. Trailers are counted and dropped: uvicorn would add them
to the headers of the request.

**Pipelines.** httptools parses everything it is given at once. A client could send thousands of small requests in one
piece, which would all be in memory before the first is answered. So data is passed on in small pieces, and only while
no request waits for an earlier one.

**Too many connections.** See ``idle_connections``.

Refusals here have problem responses as well. The callbacks of the parser, which run for every request, replace those of
uvicorn instead of extending them.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from holdfast.server.http.idle_connections import ConnectionState, IdleConnections
from holdfast.server.http.problems import make_problem_response
from holdfast.server.http.remote_addresses import SOCKET_OWNERS, get_network
from holdfast.server.http.request import REQUEST_CYCLE
from holdfast.server.http.request_cycle import RequestCycle
from holdfast.server.http.request_ids import RAW_REQUEST_ID_HEADER, new_request_id
from holdfast.services.problems import Problem

MAX_HEAD_BYTES = 32 * 1024
STATUS_HEAD_TOO_LARGE = 431
HEAD_TIMEOUT_S = 10.0
STALL_TIMEOUT_S = 60.0
"""Seconds after which a client that reads nothing is disconnected."""
PIECE_BYTES: Final = 4096
"""Bytes that are parsed before the server checks whether a request waits."""
MAX_FRAMING_FACTOR: Final = 16
"""Bytes that the framing of a body may have for each byte of the body: a chunk of one byte has at least five."""
_LINE_BYTES: Final = 12
"""Of the request line besides method and target; a header has four bytes besides name and value."""


class InvalidRequest(Exception):
    """A request that httptools accepts, and this server does not."""


class HttpConnection(HttpToolsProtocol):
    """One connection."""

    _unparsed = b""
    """What arrived while a request waited for an earlier one."""
    _is_body_pending = False
    """The head of a request is complete, and its body is not."""
    _head_bytes = 0
    """Bytes that arrived since the last request was complete, or size of the head."""
    _framing_bytes = 0
    """Bytes of chunk sizes and trailers that the body of the request may still have."""
    _has_received_data = False
    _is_head_too_large = False
    _idle_since = 0.0
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_connections, self.limit_concurrency = self.limit_concurrency, None
        state = self.server_state
        self._idle_connections = state.idle if isinstance(state, ConnectionState) else IdleConnections()
        self.network = ""
        """The network address of the client."""
        self.app_state = {**self.app_state, SOCKET_OWNERS: dict[Any, Any]()}

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
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._idle_connections.remove(self)
        for timer in (self._head_timer, self._stall_timer, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._stall_timer = self.timeout_keep_alive_task = None
        super().connection_lost(exc)

    # Parsing

    def data_received(self, data: bytes) -> None:
        """A piece of a request has arrived."""
        self._has_received_data = True
        if self.pipeline:
            self._unparsed += data
            self.flow.pause_reading()
            return
        if len(data) <= PIECE_BYTES:
            self._parse(data)
        else:
            self._parse_pieces(data)
        if self._has_open_request:
            self._idle_connections.remove(self)
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None and not self.transport.is_closing():
            self._start_head_timer()

    def _parse_pieces(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            self._parse(data[start : start + PIECE_BYTES])
            if self.transport.is_closing():
                return
            if self.pipeline:
                self._unparsed = data[start + PIECE_BYTES :]
                self.flow.pause_reading()
                return

    def _parse(self, piece: bytes) -> None:
        self._head_bytes += len(piece)
        self._framing_bytes -= len(piece)
        try:
            cast("Any", self.parser).feed_data(piece)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade:
            pass  # a request for another protocol is answered as an ordinary one
        if self._is_body_pending:
            if self._framing_bytes < 0 and not self.transport.is_closing():
                self.send_400_response("The framing of the body is too large.")
        elif self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._is_head_too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """A request begins."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        if self._is_body_pending:
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """A head is complete. Raises ``InvalidRequest``."""
        parser, app = cast("Any", self.parser), cast("Any", self).app
        method, http_version = parser.get_method(), parser.get_http_version()
        self._check_head(method, http_version)
        scope = self.scope = cast("Any", self._make_scope(method.decode("ascii"), http_version))
        earlier = self.cycle
        self.cycle = cycle = scope[REQUEST_CYCLE] = RequestCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            # httptools parses nothing after a request for another protocol.
            keep_alive=http_version != "1.0" and parser.should_keep_alive() and not parser.should_upgrade(),
            on_response=self.on_response_complete,
        )
        self._is_body_pending = True
        self._framing_bytes = MAX_HEAD_BYTES + PIECE_BYTES
        if earlier is None or earlier.response_complete:  # type: ignore[reportUnnecessaryComparison]
            self._start_asgi_task(cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))

    def _check_head(self, method: bytes, http_version: str) -> None:
        head_size, host_count = _LINE_BYTES + len(method) + len(self.url), 0
        for name, value in self.headers:
            head_size += len(name) + len(value) + 4
            host_count += name == b"host"
        if head_size > MAX_HEAD_BYTES:
            self._is_head_too_large = True
            raise InvalidRequest
        if host_count > 1 or (host_count == 0 and http_version == "1.1"):
            raise InvalidRequest

    def _make_scope(self, method: str, http_version: str) -> dict[str, Any]:
        url = httptools.parse_url(self.url)
        raw_path, query = (url.path, url.query or b"") if self.url.startswith(b"/") else (self.url, b"")
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": http_version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": method,
            "root_path": self.root_path,
            "path": self.root_path + (unquote(path) if "%" in path else path),
            "raw_path": self.root_path.encode("ascii") + raw_path,
            "query_string": query,
            "headers": self.headers,
            "state": self.app_state.copy(),
        }

    def on_body(self, body: bytes) -> None:
        """A part of the body has arrived."""
        self._framing_bytes += len(body) * (1 + MAX_FRAMING_FACTOR)
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._is_body_pending = False
        self._head_bytes = 0
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()

    # The end of a response

    def on_response_complete(self) -> None:
        """The response is complete: go on with what has arrived meanwhile, or wait for the next request."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_connections.add(self)
            self._idle_since = self.loop.time()
            if self.timeout_keep_alive_task is None:
                self._start_idle_timer(self.timeout_keep_alive)
        if self._unparsed and not self.pipeline:
            self.loop.call_soon(self._parse_rest)

    def _parse_rest(self) -> None:
        data, self._unparsed = self._unparsed, b""
        if data and not self.transport.is_closing():
            self.data_received(data)

    @property
    def _has_open_request(self) -> bool:
        """Whether there is a request with a complete head and an incomplete response."""
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[reportUnnecessaryComparison]

    # Timers

    def _start_idle_timer(self, delay_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(delay_s, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has been idle for long enough. (A timer for each response would cost more.)"""
        self.timeout_keep_alive_task = None
        if self._has_open_request or self._head_timer is not None:
            return  # the end of the response starts the timer again
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._start_idle_timer(left_s)
        else:
            self.transport.close()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self._has_received_data:
            detail = f"The head of a request must be there within {HEAD_TIMEOUT_S:.0f} seconds."
            self._refuse(Problem(408, "request-timeout", "The request took too long", detail))
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        """The client reads too slowly: buffers are full."""
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _start_stall_timer(self) -> None:
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_TIMEOUT_S, self.transport.abort)

    # Refusing

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not a valid HTTP request."""
        if self._is_head_too_large:
            detail = f"The request line and the headers may have {MAX_HEAD_BYTES:,} bytes."
            self._refuse(
                Problem(STATUS_HEAD_TOO_LARGE, "head-too-large", "The head of the request is too large", detail)
            )
        else:
            self._refuse(Problem(400, "invalid-http", "The request is not valid HTTP", msg))

    def _refuse(self, problem: Problem) -> None:
        """Send a problem, if a response is still possible, and disconnect."""
        if not self._can_respond:
            self.transport.abort()  # in the middle of another response
            return
        request_id = new_request_id()
        response = make_problem_response(problem, request_id)
        headers = [
            *response.headers,
            (RAW_REQUEST_ID_HEADER, request_id.encode()),
            (b"connection", b"close"),
        ]
        lines = [line for name, value in headers for line in (name, b": ", value, b"\r\n")]
        self.transport.write(b"".join([STATUS_LINE[problem.status], *lines, b"\r\n", response.body]))
        self.transport.close()
        self._start_stall_timer()  # in case the client does not even read this

    @property
    def _can_respond(self) -> bool:
        """Whether a response would not be taken for that of another request."""
        if self._has_open_request:
            return self._is_body_pending and not self.cycle.response_started
        return not self._is_body_pending  # otherwise, the request was answered before

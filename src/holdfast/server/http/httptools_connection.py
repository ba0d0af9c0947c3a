"""A connection parsed by httptools, with limits and checks that httptools lacks.

**Heads.** httptools accepts heads and trailers of any size, requests without a ``Host`` header or with several, and
takes the path out of an absolute URL. Here, heads are limited as they arrive, such requests are refused, and an
absolute URL stays one, so that it is no path of this server. Trailers are counted and dropped: uvicorn would add them
to the headers of the request.

**Pipelines.** httptools parses everything it is given at once. A client could send thousands of small requests in one
piece, which would all be in memory before the first is answered. So data is passed on in small pieces, and only while
no request waits for an earlier one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from holdfast.server.http.http_connection import MAX_HEAD_BYTES, LimitedConnection
from holdfast.server.http.request_guard import REQUEST_CYCLE

PIECE_BYTES: Final = 4096
"""Bytes that are parsed before the server checks whether a request waits."""
MAX_FRAMING_FACTOR: Final = 16
"""Bytes that the framing of a body may have for each byte of the body: a chunk of one byte has at least five."""
_LINE_BYTES: Final = 12
"""Of the request line besides method and target; a header has four bytes besides name and value."""


class InvalidRequest(Exception):
    """A request that httptools accepts, and this server does not."""


class JoinedWrites:
    """Writes the head of a response together with the beginning of its body: sending costs more than all the rest.

    If the body comes later, as in a stream, the head does not wait for it.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self._has_head = False

    def write(self, data: bytes) -> None:
        """Write a part of the response; the first part is the head."""
        if not self._has_head:
            self._has_head, self._head = True, data
            self._loop.call_soon(self._flush)
        elif self._head is not None:
            data, self._head = self._head + data, None
            self._transport.write(data)
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        if self._head is not None and not self._transport.is_closing():
            data, self._head = self._head, None
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection once everything is written."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class HttpToolsConnection(LimitedConnection):
    """One connection, with limits of what is parsed."""

    _unparsed = b""
    """What arrived while a request waited for an earlier one."""
    _is_body_pending = False
    """The head of a request is complete, and its body is not."""
    _head_bytes = 0
    """Bytes that arrived since the last request was complete, or size of the head."""
    _framing_bytes = 0
    """Bytes of chunk sizes and trailers that the body of the request may still have."""

    # Parsing

    def data_received(self, data: bytes) -> None:
        """A piece of a request has arrived."""
        if self.pipeline:
            self._unparsed += data
            self.flow.pause_reading()
            return
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
        super().data_received(piece)
        if self.transport.is_closing():
            return
        if self._is_body_pending:
            if self._framing_bytes < 0:
                self.send_400_response("The framing of the body is too large.")
        elif self._head_bytes > MAX_HEAD_BYTES:
            self.is_head_too_large = True
            self.send_400_response("")

    def on_response_complete(self) -> None:
        """The response is complete: go on with what has arrived meanwhile."""
        super().on_response_complete()
        if self._unparsed and not self.pipeline and not self.transport.is_closing():
            self.loop.call_soon(self._parse_rest)

    def _parse_rest(self) -> None:
        data, self._unparsed = self._unparsed, b""
        if data and not self.transport.is_closing():
            self.data_received(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        if not self._is_body_pending:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head is complete. Raises ``InvalidRequest``."""
        parser = cast("Any", self.parser)
        head_size, host_count = _LINE_BYTES + len(parser.get_method()) + len(self.url), 0
        for name, value in self.headers:
            head_size += len(name) + len(value) + 4
            host_count += name == b"host"
        if head_size > MAX_HEAD_BYTES:
            self.is_head_too_large = True
            raise InvalidRequest
        if host_count > 1 or (host_count == 0 and parser.get_http_version() == "1.1"):
            raise InvalidRequest
        super().on_headers_complete()
        self.cycle.transport = cast("asyncio.Transport", JoinedWrites(self.transport, self.loop))
        cast("dict[str, Any]", self.scope)[REQUEST_CYCLE] = self.cycle
        if not self.url.startswith(b"/"):
            self.scope["path"], self.scope["raw_path"] = self.url.decode("ascii"), self.url
        if parser.should_upgrade():
            self.cycle.keep_alive = False  # httptools parses nothing after a request for another protocol
        self._is_body_pending = True
        self._framing_bytes = MAX_HEAD_BYTES + PIECE_BYTES

    def on_body(self, body: bytes) -> None:
        """A part of the body has arrived."""
        self._framing_bytes += len(body) * (1 + MAX_FRAMING_FACTOR)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._is_body_pending = False
        self._head_bytes = 0
        super().on_message_complete()

    # Refusing

    def _write_response(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        if self._has_open_request and (not self._is_body_pending or self.cycle.response_started):
            return False  # the response would be taken for that of the open request
        if not self._has_open_request and self._is_body_pending:
            return False  # the request was answered before
        lines = [line for name, value in headers for line in (name, b": ", value, b"\r\n")]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", body]))
        return True

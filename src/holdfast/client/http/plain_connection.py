"""One HTTP/1.1 connection to a server without TLS, with no layers in between.

A client of a local server, or of one behind a tunnel, makes many small requests, and so does a listener: one or two for
each step. Through ``httpx2``, each costs about a millisecond of CPU, several times as much as the server needs for it.
So this connection has what ``Transport`` uses of an ``httpx2.AsyncClient``, and raises the same errors, but it knows
neither TLS nor proxies, redirects, or compression. It sends one request at a time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Final, cast
from urllib.parse import urlsplit

import httpx2

MAX_HEAD_BYTES: Final = 256 * 1024
MAX_BUFFERED_BYTES: Final = 1024 * 1024
"""Bytes of a stream that are received before its reader has taken any of them."""
DEFAULT_PORT: Final = 80

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")


class _Part(Enum):
    """What the next bytes of a response belong to."""

    HEAD = auto()
    BODY = auto()
    """A body, or a chunk, of known length."""
    CHUNK_SIZE = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    BODY_UNTIL_CLOSE = auto()


class PlainResponse:
    """A response, which may still be arriving."""

    def __init__(self, connection: PlainConnection) -> None:
        self.status_code = 0
        self.headers: dict[str, str] = {}
        """By name, in lower case."""
        self.is_complete = False
        self._connection = connection
        self._parts: list[bytes] = []
        self._buffered_bytes = 0
        self._error: Exception | None = None
        self._progress: asyncio.Future[None] | None = None

    @property
    def is_success(self) -> bool:
        """Whether the request was carried out."""
        return 200 <= self.status_code < 300

    @property
    def content(self) -> bytes:
        """The body, as far as it has arrived and was not iterated over."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def feed(self, data: bytes) -> None:
        """A part of the body has arrived."""
        self._parts.append(data)
        self._buffered_bytes += len(data)

    def finish(self, error: Exception | None = None) -> None:
        """The response is complete, or never will be."""
        self.is_complete, self._error = error is None, error
        self.note_progress()

    def note_progress(self) -> None:
        """Wake the reader."""
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    async def _wait_for_progress(self) -> None:
        if self._error is not None:
            raise self._error
        self._progress = asyncio.get_running_loop().create_future()
        await self._progress
        if self._error is not None and not self._parts:
            raise self._error

    async def wait_for_head(self) -> None:
        """Wait for the status and the headers."""
        while not self.status_code:
            await self._wait_for_progress()

    async def aread(self) -> bytes:
        """The whole body."""
        while not self.is_complete:
            if self._error is not None:
                raise self._error
            await self._wait_for_progress()
        return self.content

    async def aiter_bytes(self, idle_timeout_s: float | None = None) -> AsyncGenerator[bytes]:
        """The body as it arrives. Raises ``httpx2.ReadTimeout`` after ``idle_timeout_s`` seconds without a byte."""
        while True:
            if self._parts:
                data, self._parts, self._buffered_bytes = self.content, [], 0
                self._connection.resume_reading()
                yield data
            elif self.is_complete:
                return
            else:
                try:
                    async with asyncio.timeout(idle_timeout_s):
                        await self._wait_for_progress()
                except TimeoutError:
                    raise httpx2.ReadTimeout(f"nothing has come for {idle_timeout_s:g} s") from None

    @property
    def is_full(self) -> bool:
        """Whether no more should be received until the reader has taken something."""
        return self._buffered_bytes > MAX_BUFFERED_BYTES


class PlainConnection(asyncio.Protocol):
    """One connection, which is opened when a request needs it, and opened anew when it was closed.

    Args:
        url: that of the server; all requests begin with it.
        headers: of all requests.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or DEFAULT_PORT
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._common_head = f" HTTP/1.1\r\nHost: {parts.netloc}\r\n{_format_headers(headers)}"
        self._transport: asyncio.Transport | None = None
        self._response: PlainResponse | None = None
        self._is_streaming = False
        self._reset_parser()

    def _reset_parser(self) -> None:
        self._unparsed = b""
        self._part = _Part.HEAD
        self._left_bytes = 0
        """Of the body, or of the chunk."""
        self._is_chunked = False
        self._can_be_reused = True
        self._is_paused = False

    # For the transport of a client

    async def request(
        self, method: str, url: str, *, content: bytes | None, headers: Mapping[str, str], timeout: httpx2.Timeout
    ) -> PlainResponse:
        """Send a request, and receive the response. The caller limits the time that it takes."""
        try:
            response = await self._send(method, url, content, headers, timeout.connect)
            await response.aread()
        except BaseException:
            self.close()
            raise
        return response

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], timeout: httpx2.Timeout
    ) -> AsyncGenerator[PlainResponse]:
        """A response whose body is read inside of the block."""
        response = None
        try:
            response = await self._send(method, url, None, headers, timeout.connect, is_stream=True)
            try:
                async with asyncio.timeout(timeout.read):
                    await response.wait_for_head()
            except TimeoutError:
                raise httpx2.ReadTimeout("the server has not answered in time") from None
            yield response
        finally:
            if response is None or not response.is_complete:
                self.close()

    async def aclose(self) -> None:
        """Disconnect."""
        self.close()

    def close(self) -> None:
        """Disconnect."""
        if self._transport is not None:
            self._transport.abort()

    def resume_reading(self) -> None:
        """The reader of a stream has taken what was received."""
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    async def _send(
        self,
        method: str,
        url: str,
        content: bytes | None,
        headers: Mapping[str, str],
        connect_timeout_s: float | None,
        *,
        is_stream: bool = False,
    ) -> PlainResponse:
        length = f"Content-Length: {len(content)}\r\n" if content is not None else ""
        target = url.removeprefix(self._origin) or "/"
        head = f"{method} {target}{self._common_head}{_format_headers(headers)}{length}\r\n"
        try:
            data = head.encode("ascii") + (content or b"")
        except UnicodeEncodeError as error:
            raise httpx2.LocalProtocolError(f"the head of the request is not ASCII: {error}") from None
        if self._transport is None or self._transport.is_closing() or not self._can_be_reused:
            await self._connect(connect_timeout_s)
        assert self._transport is not None
        self._response = response = PlainResponse(self)
        self._is_streaming = is_stream
        self._transport.write(data)
        return response

    async def _connect(self, timeout_s: float | None) -> None:
        self.close()
        self._reset_parser()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: self, self._host, self._port)
        except TimeoutError:
            raise httpx2.ConnectTimeout("it cannot be reached in time") from None
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(str(error)) from error

    # For the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        response, self._response = self._response, None
        self._can_be_reused = False
        if response is None:
            return
        if exc is None and self._part is _Part.BODY_UNTIL_CLOSE:
            response.finish()
        else:
            response.finish(httpx2.ReadError(str(exc or "the server has closed the connection before it answered")))

    def data_received(self, data: bytes) -> None:
        """A part of a response has arrived."""
        response = self._response
        if response is None:  # nothing was requested
            self.close()
            return
        self._unparsed += data
        try:
            while self._response is not None and self._parse_next(response):
                pass
        except ValueError as error:
            self._response = None
            response.finish(httpx2.RemoteProtocolError(f"the response is not valid HTTP: {error}"))
            self.close()
        else:
            if self._is_streaming and not response.is_complete:
                if response.is_full and not self._is_paused and self._transport is not None:
                    self._is_paused = True
                    self._transport.pause_reading()
                response.note_progress()

    # Parsing

    def _parse_next(self, response: PlainResponse) -> bool:
        """Parse the next part; false if more bytes are needed. Raises ``ValueError``."""
        match self._part:
            case _Part.HEAD:
                head, separator, rest = self._unparsed.partition(b"\r\n\r\n")
                if len(head) > MAX_HEAD_BYTES:
                    raise ValueError("its head is too large")
                if not separator:
                    return False
                self._unparsed = rest
                self._parse_head(response, head)
            case _Part.BODY:
                if not self._unparsed:
                    return False
                data, self._unparsed = self._unparsed[: self._left_bytes], self._unparsed[self._left_bytes :]
                self._left_bytes -= len(data)
                response.feed(data)
                if not self._left_bytes:
                    self._end_body_or_chunk(response)
            case _Part.BODY_UNTIL_CLOSE:
                data, self._unparsed = self._unparsed, b""
                if data:
                    response.feed(data)
                return False
            case _:
                line, separator, rest = self._unparsed.partition(b"\r\n")
                if len(line) > MAX_HEAD_BYTES:
                    raise ValueError("a line of its body is too long")
                if not separator:
                    return False
                self._unparsed = rest
                self._parse_line(response, line)
        return True

    def _parse_head(self, response: PlainResponse, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        status_line = _STATUS_LINE.fullmatch(first)
        if status_line is None:
            raise ValueError(f"it begins with {first[:50]!r}")
        status = int(status_line[2])
        if status == 101:
            raise ValueError("it changes the protocol")
        if status < 200:
            return  # the response itself follows
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon or not name or name != name.strip():
                raise ValueError(f"it has the header {line[:50]!r}")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        response.status_code, response.headers = status, headers
        tokens = {token.strip() for token in headers.get("connection", "").lower().split(",")}
        self._can_be_reused = "close" not in tokens and (status_line[1] == b"1" or "keep-alive" in tokens)
        encoding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if status in (204, 304):
            self._end_response(response)
        elif encoding is not None:
            if encoding.lower() != "chunked":
                raise ValueError(f"it is encoded as {encoding[:50]!r}")
            self._part, self._is_chunked = _Part.CHUNK_SIZE, True
        elif length is None:
            self._part, self._can_be_reused = _Part.BODY_UNTIL_CLOSE, False
        elif not _LENGTH.fullmatch(length):
            raise ValueError(f"it has the length {length[:50]!r}")
        elif int(length):
            self._part, self._left_bytes, self._is_chunked = _Part.BODY, int(length), False
        else:
            self._end_response(response)

    def _parse_line(self, response: PlainResponse, line: bytes) -> None:
        if self._part is _Part.CHUNK_SIZE:
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise ValueError(f"it has a chunk of size {line[:50]!r}")
            self._left_bytes = int(size[1], 16)
            self._part = _Part.BODY if self._left_bytes else _Part.TRAILERS
        elif self._part is _Part.CHUNK_END:
            if line:
                raise ValueError("it has a chunk that is too long")
            self._part = _Part.CHUNK_SIZE
        elif not line:  # the trailers end
            self._end_response(response)

    def _end_body_or_chunk(self, response: PlainResponse) -> None:
        if self._is_chunked:
            self._part = _Part.CHUNK_END
        else:
            self._end_response(response)

    def _end_response(self, response: PlainResponse) -> None:
        self._response, self._part = None, _Part.HEAD
        if self._unparsed or not self._can_be_reused:
            self.close()
        response.finish()


def _format_headers(headers: Mapping[str, str]) -> str:
    """The lines of headers. Raises ``httpx2.LocalProtocolError``."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise httpx2.LocalProtocolError("a header has a line break in it")
    return lines

"""One HTTP/1.1 connection to a server without TLS, with no layers in between.

A client of a local server, or of one behind a tunnel, makes many small requests, and so does a listener: one or two for
each step. Through ``httpx2``, each costs about a millisecond of CPU, several times as much as the server needs for it.
So this connection has what ``Transport`` uses of an ``httpx2.AsyncClient``, and raises the same errors, but it knows
neither TLS nor proxies, redirects, or compression. It sends one request at a time; ``httptools`` parses the responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools
import httpx2

MAX_HEAD_BYTES: Final = 256 * 1024
MAX_BUFFERED_BYTES: Final = 1024 * 1024
"""Bytes of a stream that are received before its reader has taken any of them."""
DEFAULT_PORT: Final = 80


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
        self._parser: Any = None
        self._head_bytes = 0
        """Bytes received of a head that is not complete."""
        self._ends_with_connection = False
        """Whether the body of the response ends when the server closes the connection."""
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
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str],
        timeout: httpx2.Timeout,
    ) -> AsyncGenerator[PlainResponse]:
        """A response whose body is read inside of the block."""
        response = None
        try:
            response = await self._send(method, url, content, headers, timeout.connect, is_stream=True)
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
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._can_be_reused, self._is_paused, self._ends_with_connection = True, False, False
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
        if exc is None and self._ends_with_connection:
            response.finish()
        else:
            response.finish(httpx2.ReadError(str(exc or "the server has closed the connection before it answered")))

    def data_received(self, data: bytes) -> None:
        """A part of a response has arrived."""
        response = self._response
        if response is None:  # nothing was requested
            self.close()
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if not response.status_code and self._head_bytes > MAX_HEAD_BYTES:
                raise httptools.HttpParserError("its head is too large")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # The cause of an error that a callback has raised is in its context.
            self._fail(
                response, httpx2.RemoteProtocolError(f"the response is not valid HTTP: {error.__context__ or error}")
            )
        else:
            if self._is_streaming and not response.is_complete:
                if response.is_full and not self._is_paused and self._transport is not None:
                    self._is_paused = True
                    self._transport.pause_reading()
                response.note_progress()

    def _fail(self, response: PlainResponse, error: Exception) -> None:
        self._response = None
        response.finish(error)
        self.close()

    # For the parser

    def on_message_begin(self) -> None:
        """A response begins: the one that was requested, or one that only announces it."""
        if self._response is None:
            raise ValueError("it is followed by another one")
        self._headers: dict[str, str] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is complete."""
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status, headers = self._parser.get_status_code(), self._headers
        if status < 200 or self._response is None:
            return
        encoding = headers.get("transfer-encoding")
        if encoding is not None and encoding.lower() != "chunked":
            raise ValueError(f"it is encoded as {encoding[:50]!r}")
        self._response.status_code, self._response.headers = status, headers
        has_body = status not in (204, 304)
        self._ends_with_connection = has_body and encoding is None and "content-length" not in headers

    def on_body(self, data: bytes) -> None:
        """A part of the body has arrived."""
        if self._response is not None:
            self._response.feed(data)

    def on_message_complete(self) -> None:
        """The response is complete, or the requested one follows."""
        response = self._response
        if response is None or not response.status_code:
            return
        self._response, self._head_bytes = None, 0
        self._can_be_reused = self._parser.should_keep_alive()
        if not self._can_be_reused:
            self.close()
        response.finish()


def _format_headers(headers: Mapping[str, str]) -> str:
    """The lines of headers. Raises ``httpx2.LocalProtocolError``."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise httpx2.LocalProtocolError("a header has a line break in it")
    return lines

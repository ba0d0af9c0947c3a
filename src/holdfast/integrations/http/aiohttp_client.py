"""``aiohttp``: recorded where a session sends a request."""

from __future__ import annotations

import asyncio
import inspect
import json as json_module
from collections.abc import AsyncIterator, Callable
from functools import cache, partial, wraps
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.integrations.http.endpoints import RequestFilter

if TYPE_CHECKING:
    from holdfast.integrations.http.exchange import Head, Request
    from holdfast.integrations.http.recorded_exchange import AsyncStream

closing_streams: set[asyncio.Task[None]] = set()
"""Streams that are being closed. aiohttp closes a response in code that is not async."""


def patch(library: Any, request_filter: RequestFilter) -> None:
    """Record what sessions send."""
    original = library.ClientSession._request  # all methods of a session call it

    @wraps(original)
    async def _request(session: Any, method: str, str_or_url: Any, **options: Any) -> Any:
        send = partial(original, session, method, str_or_url, **options)
        url = session._build_url(str_or_url)
        if params := options.get("params"):
            url = url.update_query(params)
        if not request_filter.may_match(method.upper(), str(url)):
            return await send()
        return await _record(library, session, method.upper(), url, options, send, request_filter)

    library.ClientSession._request = _request


async def _record(
    library: Any,
    session: Any,
    method: str,
    url: Any,
    options: dict[str, Any],
    send: Callable[..., Any],
    request_filter: RequestFilter,
) -> Any:
    from holdfast.integrations.http.recorded_exchange import find_recording

    request = _read_request(method, url, options)
    recording = None if request is None else find_recording(request, request_filter)
    if recording is None:
        return await send()

    async def send_live() -> _LiveAnswer:
        return _LiveAnswer(await send(auto_decompress=True))  # what is recorded has no content encoding

    head, body = await recording.answer(send_live)
    return await _make_response(library, session, method, url, head, body)


def _read_request(method: str, url: Any, options: dict[str, Any]) -> Request | None:
    """The request; ``None``: its body cannot be read without using it up."""
    from holdfast.integrations.http.exchange import Request

    body, content_type = options.get("data"), ""
    if options.get("json") is not None:
        body, content_type = json_module.dumps(options["json"]), "application/json"
    if isinstance(body, str):
        body = body.encode()
    elif body is not None and not isinstance(body, bytes | bytearray):
        return None
    return Request(method, str(url), bytes(body or b""), content_type)


async def _make_response(
    library: Any, session: Any, method: str, url: Any, head: Head, body: bytes | AsyncStream
) -> Any:
    """A response of the library's class, which reads from a connection that does not exist."""
    loop = asyncio.get_running_loop()
    multidict: Any = import_module("multidict")  # a part of aiohttp
    headers = multidict.CIMultiDictProxy(multidict.CIMultiDict(head.headers))
    info = library.RequestInfo(url, method, multidict.CIMultiDictProxy(multidict.CIMultiDict()), url)
    given: dict[str, Any] = {
        "writer": None, "continue100": None, "timer": None, "request_info": info, "traces": [], "loop": loop,
        "session": session, "stream_writer": _NoConnection(),
    }  # fmt: skip
    known = inspect.signature(library.ClientResponse.__init__).parameters
    response = library.ClientResponse(method, url, **{name: given[name] for name in given if name in known})
    content = _make_reader_class(library.StreamReader)(body, loop)
    message = library.http_parser.RawResponseMessage(
        version=library.HttpVersion11, code=head.status, reason=_get_reason(head.status), headers=headers,
        raw_headers=tuple((name.encode(), value.encode()) for name, value in head.headers.items()),
        should_close=False, compression=None, upgrade=False, chunked=False,
    )  # fmt: skip
    return await response.start(_NoConnection((message, content)))


def _get_reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


class _NoConnection:
    """What a response and a stream need of a connection."""

    connected = True
    upgraded = False
    output_size = 0
    _reading_paused = False

    def __init__(self, answer: tuple[Any, Any] | None = None) -> None:
        self._answer = answer

    @property
    def protocol(self) -> _NoConnection:
        return self

    async def read(self) -> tuple[Any, Any]:
        assert self._answer is not None
        return self._answer

    def pause_reading(self, *_: Any, **__: Any) -> None:
        """The stream is read when it is needed."""

    def resume_reading(self, *_: Any, **__: Any) -> None:
        """The same."""

    def release(self) -> None:
        self.close()

    def close(self) -> None:
        if self._answer is not None:
            self._answer[1].close_stream()


@cache
def _make_reader_class(base: Any) -> Any:
    class RecordedReader(base):
        """The body of a response. It waits for more by reading the stream."""

        def __init__(self, body: bytes | AsyncStream, loop: asyncio.AbstractEventLoop) -> None:
            base.__init__(self, _NoConnection(), 2**16, loop=loop)
            self._recorded_stream: AsyncStream | None = None
            if isinstance(body, bytes):
                self.feed_data(body)
                self.feed_eof()
            else:
                self._recorded_stream = body

        async def _wait(self, func_name: str) -> None:
            stream = self._recorded_stream
            if stream is None:
                await base._wait(self, func_name)
                return
            try:
                self.feed_data(await anext(stream))
            except StopAsyncIteration:
                self.feed_eof()

        def close_stream(self) -> None:
            stream, self._recorded_stream = self._recorded_stream, None
            if stream is not None and not self._eof:
                task = asyncio.get_running_loop().create_task(stream.close())
                closing_streams.add(task)
                task.add_done_callback(closing_streams.discard)

    return RecordedReader


class _LiveAnswer:
    def __init__(self, response: Any) -> None:
        self._response = response

    @property
    def head(self) -> Head:
        from holdfast.integrations.http.exchange import make_head

        return make_head(self._response.status, self._response.headers.items())

    async def read(self) -> bytes:
        return await self._response.read()

    def iter_chunks(self) -> AsyncIterator[bytes]:
        return self._response.content.iter_any()

    async def close(self) -> None:
        self._response.release()

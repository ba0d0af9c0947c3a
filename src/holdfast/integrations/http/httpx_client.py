"""``httpx`` and ``httpx2``, which have the same interface: recorded where a transport sends a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any

from holdfast.integrations.http.endpoints import RequestFilter

if TYPE_CHECKING:
    from holdfast.integrations.http.exchange import Head
    from holdfast.integrations.http.recorded_exchange import AsyncStream, Recording, Stream

HandleRequest = Callable[[Any], Any]
HandleAsyncRequest = Callable[[Any], Awaitable[Any]]


def patch(library: Any, request_filter: RequestFilter) -> None:
    """Record what the transports send that connect to servers."""
    handle, handle_async = library.HTTPTransport.handle_request, library.AsyncHTTPTransport.handle_async_request
    if hasattr(handle, "holdfast_original"):
        return  # a library can have two names

    @wraps(handle)
    def handle_request(transport: Any, request: Any) -> Any:
        return record(library, request, partial(handle, transport), request_filter)

    @wraps(handle_async)
    async def handle_async_request(transport: Any, request: Any) -> Any:
        return await record_async(library, request, partial(handle_async, transport), request_filter)

    handle_request.holdfast_original = handle  # type: ignore[attr-defined]
    library.HTTPTransport.handle_request = handle_request
    library.AsyncHTTPTransport.handle_async_request = handle_async_request


def record(library: Any, request: Any, handle: HandleRequest, request_filter: RequestFilter) -> Any:
    """The response to a request: recorded, or that of ``handle``."""
    url = str(request.url)
    if not request_filter.may_match(request.method, url):
        return handle(request)
    request.read()
    recording = _find_recording(request, url, request_filter)
    if recording is None:
        return handle(request)
    head, body = recording.answer_sync(lambda: _LiveAnswer(handle(request)))
    return _make_response(library, head, body, "ByteStream" if isinstance(body, bytes) else "SyncByteStream")


async def record_async(library: Any, request: Any, handle: HandleAsyncRequest, request_filter: RequestFilter) -> Any:
    """The same for async code."""
    url = str(request.url)
    if not request_filter.may_match(request.method, url):
        return await handle(request)
    await request.aread()
    recording = _find_recording(request, url, request_filter)
    if recording is None:
        return await handle(request)

    async def send() -> _AsyncLiveAnswer:
        return _AsyncLiveAnswer(await handle(request))

    head, body = await recording.answer(send)
    return _make_response(library, head, body, "ByteStream" if isinstance(body, bytes) else "AsyncByteStream")


def _find_recording(request: Any, url: str, request_filter: RequestFilter) -> Recording | None:
    from holdfast.integrations.http.exchange import Request
    from holdfast.integrations.http.recorded_exchange import find_recording

    content_type = request.headers.get("content-type", "")
    return find_recording(Request(request.method, url, request.content, content_type), request_filter)


def _make_response(library: Any, head: Head, body: bytes | Stream | AsyncStream, stream_class: str) -> Any:
    base = getattr(library, stream_class)
    stream = base(body) if isinstance(body, bytes) else _make_stream_class(base)(body)
    return library.Response(head.status, headers=head.headers, stream=stream, extensions={"http_version": b"HTTP/1.1"})


@cache
def _make_stream_class(base: Any) -> Any:
    """The class of streamed bodies, which must be one of the library's."""

    class RecordedStream(base):
        def __init__(self, body: Any) -> None:
            self._body = body

        def __iter__(self) -> Iterator[bytes]:
            return iter(self._body)

        def close(self) -> None:
            self._body.close()

        def __aiter__(self) -> AsyncIterator[bytes]:
            return aiter(self._body)

        async def aclose(self) -> None:
            await self._body.close()

    return RecordedStream


class _LiveAnswer:
    def __init__(self, response: Any) -> None:
        self._response = response

    @property
    def head(self) -> Head:
        return _read_head(self._response)

    def read(self) -> bytes:
        return self._response.read()

    def iter_chunks(self) -> Iterator[bytes]:
        return self._response.iter_bytes()

    def close(self) -> None:
        self._response.close()


class _AsyncLiveAnswer:
    def __init__(self, response: Any) -> None:
        self._response = response

    @property
    def head(self) -> Head:
        return _read_head(self._response)

    async def read(self) -> bytes:
        return await self._response.aread()

    def iter_chunks(self) -> AsyncIterator[bytes]:
        return self._response.aiter_bytes()

    async def close(self) -> None:
        await self._response.aclose()


def _read_head(response: Any) -> Head:
    from holdfast.integrations.http.exchange import make_head

    return make_head(response.status_code, response.headers.multi_items())

"""``urllib3``, which ``requests`` and ``botocore`` use: recorded where a connection pool sends a request."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from holdfast.integrations.http.endpoints import RequestFilter

if TYPE_CHECKING:
    from holdfast.integrations.http.exchange import Head
    from holdfast.integrations.http.recorded_exchange import Stream

_CHUNK_SIZE = 65_536


def patch(library: Any, request_filter: RequestFilter) -> None:
    """Record what the connection pools send."""
    pool_class = library.connectionpool.HTTPConnectionPool
    original = pool_class.urlopen
    response_class = _make_response_class(library.HTTPResponse)

    @wraps(original)
    def urlopen(
        pool: Any, method: str, url: str, body: Any = None, headers: Any = None, *args: Any, **options: Any
    ) -> Any:
        send = partial(original, pool, method, url, body, headers, *args, **options)
        full_url = url if "://" in url else f"{pool.scheme}://{pool.host}:{pool.port}{url}"
        if args or not request_filter.may_match(method, full_url):
            return send()
        return _record(full_url, method, body, headers or pool.headers, options, send, response_class, request_filter)

    pool_class.urlopen = urlopen


def _record(
    url: str,
    method: str,
    body: Any,
    headers: Any,
    options: dict[str, Any],
    send: Callable[..., Any],
    response_class: Any,
    request_filter: RequestFilter,
) -> Any:
    from holdfast.integrations.http.exchange import Request
    from holdfast.integrations.http.recorded_exchange import find_recording

    data = body.encode() if isinstance(body, str) else body or b""
    if not isinstance(data, bytes | bytearray):  # a file, or an iterator, which can be read once
        return send()
    content_type = next((str(value) for name, value in headers.items() if name.lower() == "content-type"), "")
    recording = find_recording(Request(method, url, bytes(data), content_type), request_filter)
    if recording is None:
        return send()
    head, answer = recording.answer_sync(lambda: _LiveAnswer(send(preload_content=False)))
    return response_class.make(head, answer, method, url, preload_content=options.get("preload_content", True))


def _make_response_class(base: Any) -> Any:
    class RecordedResponse(base):
        """A response from the record, or one that is being recorded."""

        @classmethod
        def make(cls, head: Head, body: bytes | Stream, method: str, url: str, *, preload_content: bool) -> Any:
            return cls(
                io.BytesIO(body) if isinstance(body, bytes) else io.BufferedReader(_StreamFile(body)),
                headers=head.headers,
                status=head.status,
                version=11,
                version_string="HTTP/1.1",
                preload_content=preload_content,
                request_method=method,
                request_url=url,
            )

        def stream(self, amt: int | None = _CHUNK_SIZE, decode_content: bool | None = None) -> Generator[bytes]:
            # In the parts in which the answer arrives: reading a fixed number of bytes would wait for later parts.
            while data := self._fp.read1(amt or _CHUNK_SIZE):
                yield data
            self._fp.close()

    return RecordedResponse


class _StreamFile(io.RawIOBase):
    """A streamed answer as a file."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._rest or next(self._stream, b"")
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        self._rest = data[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class _LiveAnswer:
    def __init__(self, response: Any) -> None:
        self._response = response

    @property
    def head(self) -> Head:
        from holdfast.integrations.http.exchange import make_head

        return make_head(self._response.status, self._response.headers.items())

    def read(self) -> bytes:
        return self._response.read(decode_content=True)

    def iter_chunks(self) -> Iterator[bytes]:
        response = self._response
        if getattr(response, "chunked", False):
            yield from response.stream(_CHUNK_SIZE, decode_content=True)
            return
        read = getattr(response, "read1", response.read)
        while data := read(_CHUNK_SIZE, decode_content=True):
            yield data

    def close(self) -> None:
        self._response.close()
        self._response.release_conn()

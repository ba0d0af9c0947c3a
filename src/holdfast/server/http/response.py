"""Responses, with headers that forbid caching, embedding, and guessing their type unless they say otherwise."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Final

from holdfast.server.http.asgi import Message

_DEFAULT_HEADERS: Final = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]
_STATUSES_WITHOUT_BODY: Final = (204, 304)


class Response:
    """A response whose body is complete."""

    __slots__ = ("_default_headers", "body", "headers", "status")

    def __init__(
        self,
        body: bytes = b"",
        status: int = 200,
        *,
        media_type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.body = body
        self.status = status
        self._set_headers(media_type, headers)
        if status not in _STATUSES_WITHOUT_BODY:
            self.headers.append((b"content-length", b"%d" % len(body)))

    def make_start_message(self, added: Iterable[tuple[bytes, bytes]]) -> Message:
        """The message that starts the response, with headers of the request that it answers."""
        headers = [*self.headers, *added, *self._default_headers]
        return {"type": "http.response.start", "status": self.status, "headers": headers}

    def _set_headers(self, media_type: str | None, headers: Mapping[str, str] | None) -> None:
        """Set the headers that the response has of its own, with names in lower case."""
        self.headers = [] if media_type is None else [(b"content-type", media_type.encode())]
        self._default_headers = _DEFAULT_HEADERS
        if headers:
            given = {name.lower().encode(): value.encode() for name, value in headers.items()}
            self.headers += given.items()
            self._default_headers = [header for header in _DEFAULT_HEADERS if header[0] not in given]


class TextResponse(Response):
    """A text that is not JSON, in a format for machines."""

    __slots__ = ()


class StreamingResponse(Response):
    """A response whose body comes in pieces."""

    __slots__ = ("chunks",)

    def __init__(
        self, chunks: AsyncGenerator[bytes], *, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.body = b""
        self.status = 200
        self._set_headers(media_type, headers)
        self.chunks = chunks

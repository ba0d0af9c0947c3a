"""What is recorded of an HTTP exchange: a request's content, and an answer's status, body, and a few headers.

Keys never are. The headers of a request are neither recorded nor a part of what identifies it; of a URL, credentials
and parameters that look like keys are left out; of an answer's headers, only those in ``RECORDED_HEADERS`` are kept.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

RECORDED_HEADERS = frozenset({"content-type", "x-request-id", "request-id", "x-amzn-requestid", "location", "etag"})
_TRANSFER_HEADERS = frozenset({"content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive"})
_SECRET_PARAMETER = re.compile(
    r"(?i)x-(?:amz|goog)-.*|(?:.*[-_])?(?:api[-_]?key|key|secret|password|signature|sig|credential|auth)"
    r"|(?:access|auth|api|id|refresh|session)?[-_]?token"
)
_MULTIPART_BOUNDARY = re.compile(r'boundary="?([^";,]+)')


class Request(NamedTuple):
    """A request that a program makes."""

    method: str
    url: str
    body: bytes
    content_type: str = ""

    @property
    def public_url(self) -> str:
        """The URL without credentials and keys."""
        parts = urlsplit(self.url)
        query = [
            (name, value)
            for name, value in parse_qsl(parts.query, keep_blank_values=True)
            if _SECRET_PARAMETER.fullmatch(name) is None
        ]
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, urlencode(query), ""))

    @property
    def stable_body(self) -> bytes:
        """The body, without the random boundary of a multipart body."""
        found = _MULTIPART_BOUNDARY.search(self.content_type) if "multipart/" in self.content_type else None
        return self.body if found is None else self.body.replace(found[1].encode(), b"boundary")


class Head(NamedTuple):
    """The beginning of an answer."""

    status: int
    headers: dict[str, str]

    @property
    def is_success(self) -> bool:
        """Whether the answer is one to record."""
        return 200 <= self.status < 300

    @property
    def content_type(self) -> str:
        """The media type, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Answer(NamedTuple):
    """A whole answer."""

    head: Head
    body: bytes


class LiveAnswer(Protocol):
    """An answer that is still arriving. Its body has no content encoding."""

    @property
    def head(self) -> Head:
        """Its beginning."""
        ...

    def read(self) -> bytes:
        """All of its body."""
        ...

    def iter_chunks(self) -> Iterator[bytes]:
        """Its body as it arrives."""
        ...

    def close(self) -> None:
        """Give the connection back."""


class AsyncLiveAnswer(Protocol):
    """The same for async code."""

    @property
    def head(self) -> Head:
        """Its beginning."""
        ...

    async def read(self) -> bytes:
        """All of its body."""
        ...

    def iter_chunks(self) -> AsyncIterator[bytes]:
        """Its body as it arrives."""
        ...

    async def close(self) -> None:
        """Give the connection back."""


def make_head(status: int, headers: Any) -> Head:
    """The beginning of a live answer, from its headers as pairs. The body will have no content encoding."""
    kept: dict[str, str] = {}
    for name, value in headers:
        if (lower := name.lower()) not in _TRANSFER_HEADERS:
            kept[lower] = f"{kept[lower]}, {value}" if lower in kept and lower != "content-type" else value
    return Head(status, kept)


def dump_head(head: Head) -> dict[str, Any]:
    """What is recorded of it."""
    headers = {name: value for name, value in head.headers.items() if name in RECORDED_HEADERS}
    return {"status": head.status, "headers": headers}


def load_head(data: dict[str, Any]) -> Head:
    """The recorded head."""
    return Head(data["status"], data["headers"])


def dump_bytes(data: bytes) -> Any:
    """A part of a body as JSON data."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def load_bytes(data: Any) -> bytes:
    """The recorded part."""
    return data.encode() if isinstance(data, str) else base64.b64decode(data["base64"])

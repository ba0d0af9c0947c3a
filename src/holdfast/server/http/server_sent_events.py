"""Server-sent events: streams that readers can resume.

Once a stream has begun, an error can no longer become a status: the stream ends, and the reader learns about the error
when it reconnects.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from holdfast.server.http.response import StreamingResponse

MEDIA_TYPE = "text/event-stream"
KEEPALIVE = b": still here\n\n"
"""A comment that the app sends now and then, so that no proxy takes the stream for dead."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event."""

    data: bytes
    """JSON."""
    event: str = ""
    id: str = ""
    """A reader sends it as ``Last-Event-ID`` to continue after this event."""
    preceding: bytes = b""
    """Encoded events that are sent together with this one, before it."""

    def encode(self) -> bytes:
        """The bytes of the event in the stream."""
        lines = [f"id: {self.id}"] if self.id else []
        lines += [f"event: {self.event}"] if self.event else []
        return b"".join([self.preceding, *(f"{line}\n".encode() for line in lines), b"data: ", self.data, b"\n\n"])


def make_event_response(events: AsyncGenerator[ServerSentEvent | bytes]) -> StreamingResponse:
    """A response that sends events (some may be encoded) until there are no more or the reader disconnects."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_encode_events(events), media_type=f"{MEDIA_TYPE}; charset=utf-8", headers=headers)


async def _encode_events(events: AsyncGenerator[ServerSentEvent | bytes]) -> AsyncGenerator[bytes]:
    yield b": welcome\n\n"  # so that the reader knows at once that it is connected
    async with aclosing(events):
        async for event in events:
            yield event if isinstance(event, bytes) else event.encode()

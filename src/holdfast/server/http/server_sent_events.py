"""Server-sent events: streams that readers can resume.

Once a stream has begun, an error can no longer become a status: the stream ends, and the reader learns about the error
when it reconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.responses import StreamingResponse

MEDIA_TYPE = "text/event-stream"
KEEPALIVE_INTERVAL_S = 15.0
"""Seconds after which a comment is sent, so that no proxy takes the stream for dead."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event."""

    data: bytes
    """JSON."""
    event: str = ""
    id: str = ""
    """A reader sends it as ``Last-Event-ID`` to continue after this event."""

    def encode(self) -> bytes:
        """The bytes of the event in the stream."""
        lines = [f"id: {self.id}"] if self.id else []
        lines += [f"event: {self.event}"] if self.event else []
        return b"".join([*(f"{line}\n".encode() for line in lines), b"data: ", self.data, b"\n\n"])


def make_event_response(events: AsyncGenerator[ServerSentEvent]) -> StreamingResponse:
    """A response that sends events as they come, until there are no more or the reader disconnects."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_with_keepalives(events), media_type=MEDIA_TYPE, headers=headers)


async def _with_keepalives(events: AsyncGenerator[ServerSentEvent]) -> AsyncGenerator[bytes]:
    yield b": welcome\n\n"  # so that the reader knows at once that it is connected
    upcoming: asyncio.Future[ServerSentEvent | None] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(events, None))
            done, _ = await asyncio.wait([upcoming], timeout=KEEPALIVE_INTERVAL_S)
            if not done:
                yield b": still here\n\n"
                continue
            event, upcoming = upcoming.result(), None
            if event is None:
                return
            yield event.encode()
    finally:
        if upcoming is not None:
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)
        await events.aclose()

"""Server-sent events: a stream that a reader can come back to.

What goes wrong once a stream has begun can be told by no status any more: it just ends, and whoever comes back is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.responses import StreamingResponse

MEDIA_TYPE = "text/event-stream"
KEEPALIVE_INTERVAL_S = 15.0
"""Seconds after which a comment is sent, so that whoever stands between does not take the stream for dead."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event."""

    data: bytes
    """JSON."""
    event: str = ""
    id: str = ""
    """What a reader hands in as ``Last-Event-ID`` to go on behind it."""

    def encode(self) -> bytes:
        """As it is sent."""
        lines = [f"id: {self.id}"] if self.id else []
        lines += [f"event: {self.event}"] if self.event else []
        return b"".join([*(f"{line}\n".encode() for line in lines), b"data: ", self.data, b"\n\n"])


def make_event_response(events: AsyncGenerator[ServerSentEvent]) -> StreamingResponse:
    """A response that sends events as they come, until there are no more or the reader is gone."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_with_keepalives(events), media_type=MEDIA_TYPE, headers=headers)


async def _with_keepalives(events: AsyncGenerator[ServerSentEvent]) -> AsyncGenerator[bytes]:
    yield b": welcome\n\n"  # so that the reader knows at once that it is heard
    following: asyncio.Task[ServerSentEvent | None] | None = None
    try:
        while True:
            following = following or asyncio.create_task(_next_event(events))
            done, _ = await asyncio.wait([following], timeout=KEEPALIVE_INTERVAL_S)
            if not done:
                yield b": still here\n\n"
                continue
            event, following = following.result(), None
            if event is None:
                return
            yield event.encode()
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await events.aclose()


async def _next_event(events: AsyncGenerator[ServerSentEvent]) -> ServerSentEvent | None:
    return await anext(events, None)

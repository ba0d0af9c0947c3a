"""Sending a stream to its reader.

The chunks are made and sent by the task of the request. A second task watches the connection and, while the stream is
silent, the key.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from holdfast.server.auth.authenticator import Authenticator
from holdfast.server.http.asgi import Send
from holdfast.server.http.bounded_wait import ClosingEvent, expire_limit
from holdfast.server.http.request import Request
from holdfast.server.http.response import StreamingResponse
from holdfast.server.http.server_sent_events import KEEPALIVE

KEY_RECHECK_S = 10.0
"""Seconds after which the server checks again whether the key of a silent stream is still valid, and says so."""


class StreamSender:
    """Sends one stream."""

    def __init__(self, request: Request, authenticator: Authenticator, closing: ClosingEvent, send: Send) -> None:
        self._request = request
        self._authenticator = authenticator
        self._closing = closing
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()

    async def send(self, response: StreamingResponse) -> None:
        """Send the chunks of a response until there are no more, the reader disconnects, the server is about to stop,
        or the key is no longer valid. The reader reconnects. Raises what making the chunks raises.
        """
        limit = asyncio.timeout(None)
        watcher = asyncio.create_task(self._watch())
        watcher.add_done_callback(lambda _: expire_limit(limit))
        try:
            async with aclosing(response.chunks) as chunks, limit:
                with self._closing.expiring(limit):
                    async for chunk in chunks:
                        if not await self._send_chunk(chunk):
                            return
        except TimeoutError:
            if not limit.expired():
                raise
            if watcher.done():
                watcher.result()
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    async def _send_chunk(self, chunk: bytes) -> bool:
        """Send a chunk, if the key is still valid."""
        if await self._authenticator.authenticate(self._request) is None:
            return False
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._sent_at = self._loop.time()
        return True

    async def _watch(self) -> None:
        """Return when the reader has disconnected, or its key is no longer valid."""
        is_valid = True
        while is_valid:
            try:
                async with asyncio.timeout_at(self._sent_at + KEY_RECHECK_S):
                    return await self._request.wait_for_disconnect()
            except TimeoutError:
                if self._loop.time() >= self._sent_at + KEY_RECHECK_S:
                    is_valid = await self._send_chunk(KEEPALIVE)

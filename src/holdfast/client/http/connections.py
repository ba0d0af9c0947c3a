"""The connections of a client to its server, under one event loop.

Each connection is a client of its own; without TLS, it is a ``PlainConnection``. The pool of a single ``httpx2`` client
looks at all of its connections, and asks the system about each idle one, whenever a request begins or ends: with a few
hundred listeners or waiting calls in a process, that costs several times as much as the requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import httpx2

from holdfast.client.http.plain_connection import PlainConnection

IDLE_TIMEOUT_S = 5.0
"""Seconds for which an idle connection stays open for another request. The server closes it later than that."""

HttpConnection = httpx2.AsyncClient | PlainConnection


class HttpConnections:
    """Connections, each used by one request at a time.

    Args:
        connect: creates a connection, which connects at its first request.
    """

    def __init__(self, connect: Callable[[], HttpConnection]) -> None:
        self._connect = connect
        self._open: set[HttpConnection] = set()
        self._idle: deque[tuple[HttpConnection, float]] = deque()
        """Each with the time of its last use, the latest one last."""

    @asynccontextmanager
    async def acquire(self) -> AsyncGenerator[HttpConnection]:
        """A connection for one request: the one that was used last, or a new one."""
        if self._idle:
            connection, _ = self._idle.pop()
        else:
            connection = self._connect()
            self._open.add(connection)
        try:
            yield connection
        finally:
            if connection in self._open:
                self._idle.append((connection, asyncio.get_running_loop().time()))
        await self._close_expired()

    async def _close_expired(self) -> None:
        expired_before = asyncio.get_running_loop().time() - IDLE_TIMEOUT_S
        while self._idle and self._idle[0][1] < expired_before:
            connection, _ = self._idle.popleft()
            self._open.discard(connection)
            await connection.aclose()

    async def close(self) -> None:
        """Disconnect, also requests in progress."""
        open, self._open = self._open, set()
        self._idle.clear()
        for connection in open:
            await connection.aclose()

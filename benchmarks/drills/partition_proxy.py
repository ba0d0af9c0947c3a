"""A proxy between one worker and the database that can cut the network between them.

It forwards bytes and knows nothing of the protocol. In a *black hole*, nothing is forwarded and nothing is closed: what
either side sends waits in buffers, and so do new connections. After a *reset*, both sides have lost their
connections, and new ones are reset at once. ``heal`` ends both. What waited is then forwarded, so the database gets
what a partitioned worker wrote while others took over its runs.

Its own kernel still acknowledges what it gets, so TCP's timeouts don't end connections in a black hole; a partition
without acknowledgments would, after half a minute, and continue like a reset.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from psycopg.conninfo import conninfo_to_dict

CHUNK_BYTES = 65536
CLOSE_TIMEOUT_S = 5.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""For ``SO_LINGER``: closing the socket sends RST."""


class PartitionProxy:
    """Listens at ``url`` on an event loop in a thread of its own."""

    def __init__(self, database_url: str) -> None:
        target = conninfo_to_dict(database_url)
        self._host, self._port = str(target["host"]), int(target.get("port") or 5432)
        self._loop = asyncio.new_event_loop()
        self._is_forwarding = asyncio.Event()
        self._is_forwarding.set()
        self._is_resetting = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        user, password = target.get("user") or "postgres", target.get("password") or ""
        own_port = self._listener.getsockname()[1]
        self.url = (
            f"postgresql://{user}:{password}@127.0.0.1:{own_port}/{target['dbname']}?sslmode=disable&gssencmode=disable"
        )
        self._thread = threading.Thread(target=self._run, daemon=True, name="partition proxy")
        self._thread.start()

    def black_hole(self) -> None:
        """Forward nothing from now on, and close nothing."""
        self._call(self._is_forwarding.clear)

    def reset(self) -> None:
        """Reset all connections, and each new one."""
        self._call(self._reset)

    def heal(self) -> None:
        """Forward again, what waited included."""
        self._call(self._heal)

    def close(self) -> None:
        """Close everything."""
        self._call(self._reset)
        self._call(self._is_forwarding.set)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._listener.close()

    def _call(self, function: Callable[[], Any]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (function(), done.set()))
        done.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listener))
        self._loop.run_forever()
        server.close()
        if tasks := asyncio.all_tasks(self._loop):  # they end, because their connections have
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S))
        self._loop.close()

    def _reset(self) -> None:
        self._is_resetting = True
        for writer in self._writers:
            _abort(writer)

    def _heal(self) -> None:
        self._is_resetting = False
        self._is_forwarding.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        others: list[asyncio.StreamWriter] = []
        try:
            if self._is_resetting:
                return
            await self._is_forwarding.wait()
            from_database, to_database = await self._connect()
            others.append(to_database)
            self._writers.add(to_database)
            pumps = [self._pump(reader, to_database), self._pump(from_database, writer)]
            await asyncio.wait([asyncio.ensure_future(pump) for pump in pumps], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (writer, *others):
                self._writers.discard(one)
                if self._is_resetting:
                    _abort(one)
                one.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        return await asyncio.open_connection(self._host, self._port)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._is_forwarding.wait()
                writer.write(data)
                await writer.drain()
            await self._is_forwarding.wait()  # the end of a connection is not forwarded either


def _abort(writer: asyncio.StreamWriter) -> None:
    one = writer.get_extra_info("socket")
    if one is not None and one.family != socket.AF_UNIX:
        with suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()

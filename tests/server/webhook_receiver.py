"""A receiver of webhooks on a port of this machine, which answers as the test wants it to."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Got:
    """A request that came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def delivery(self) -> Any:
        return json.loads(self.body)

    def signed_by(self, secret: str) -> bool:
        """Whether one of the signatures is made with this secret: what the specification says, written down anew."""
        key = base64.b64decode(secret[len("whsec_") :])
        what = b".".join([self.headers["webhook-id"].encode(), self.headers["webhook-timestamp"].encode(), self.body])
        made = "v1," + base64.b64encode(hmac.new(key, what, hashlib.sha256).digest()).decode()
        return made in self.headers["webhook-signature"].split(" ")


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


Answering = Callable[[Got], Awaitable[Reply | None]]
"""What a request is answered with; ``None``: the connection is closed instead."""


class Receiver:
    def __init__(self) -> None:
        self.got: list[Got] = []
        self.broken_off = 0
        """Requests whose connection was closed before they were answered."""
        self.replies: list[Reply] = []
        """What the next requests are answered with, in turn; 204 afterwards."""
        self.answering: Answering = self._next_reply
        self.port = 0
        self._came = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def has_got(self, number: int) -> Got:
        """The request of this number (1 for the first), once it is there."""
        async with asyncio.timeout(20), self._came:
            await self._came.wait_for(lambda: len(self.got) >= number)
        return self.got[number - 1]

    async def was_broken_off(self, times: int) -> None:
        async with asyncio.timeout(20), self._came:
            await self._came.wait_for(lambda: self.broken_off >= times)

    async def _next_reply(self, got: Got) -> Reply:
        return self.replies.pop(0) if self.replies else Reply(204)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            got = Got(head[0].split(" ")[1], headers, body)
            async with self._came:
                self.got.append(got)
                self._came.notify_all()
            answering = asyncio.ensure_future(self.answering(got))
            gone = asyncio.ensure_future(reader.read(1))
            await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                answering.cancel()
                async with self._came:
                    self.broken_off += 1
                    self._came.notify_all()
                return
            gone.cancel()
            reply = answering.result()
            if reply is not None:
                length = {"content-length": str(len(reply.body))} | reply.headers
                lines = "".join(f"{name}: {value}\r\n" for name, value in length.items())
                writer.write(f"HTTP/1.1 {reply.status} X\r\n{lines}\r\n".encode() + reply.body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", port, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
